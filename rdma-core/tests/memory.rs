//! Memory, and the code that may access it.

mod common;

use std::sync::Arc;
use std::time::Duration;

use common::{Pair, bytes, carry_out, completion, context, expose, exposed, pattern, until_failed};
use rdma_core::memory::{Claim, ReadClaim, SharedBuffer, SharedFrozenBuffer, WriteClaim};
use rdma_core::{AccessFlags, Error, Refused, RemoteMemory, SendRequest, WorkStatus};

#[test]
fn buffers_are_zeroed_aligned_and_divide() {
    let domain = context().protection_domain().unwrap();
    let buffer = domain.allocate(10_000).unwrap();
    assert!(buffer.iter().all(|&byte| byte == 0));
    assert!(buffer.as_ptr().addr().is_multiple_of(4096));
    let (mut left, mut right) = buffer.split_at(4000);
    (left[3999], right[0]) = (1, 2);
    let (right, left) = right.join(left).expect_err("the wrong way round");
    let buffer = left.join(right).unwrap();
    assert_eq!((buffer.len(), &buffer[3999..4001]), (10_000, &[1, 2][..]));
    let (one, other) = (domain.allocate(8).unwrap(), domain.allocate(8).unwrap());
    assert!(one.join(other).is_err(), "of two regions");
    let layout = std::alloc::Layout::from_size_align(64, 1 << 16).unwrap();
    let aligned = domain.allocate_layout(layout).unwrap();
    assert!(aligned.as_ptr().addr().is_multiple_of(1 << 16));
}

#[test]
fn a_shared_buffer_has_many_readers_or_one_writer() {
    let domain = context().protection_domain().unwrap();
    let mut shared = SharedBuffer::new(pattern(&domain, 64, 1));
    let (one, other) = (shared.try_read(..8).unwrap(), shared.try_read(4..).unwrap());
    assert_eq!(
        (&one[4..8], &other[..4]),
        (&bytes(64, 1)[4..8], &bytes(64, 1)[4..8])
    );
    assert!(matches!(shared.try_write(..), Err(Error::InUse { .. })));
    drop((one, other));
    let mut writer = shared.try_write(8..16).unwrap();
    writer.fill(0xff);
    assert!(matches!(shared.try_read(..), Err(Error::InUse { .. })));
    assert!(matches!(shared.try_write(..), Err(Error::InUse { .. })));
    assert!(!shared.is_unclaimed());
    let shared = shared.into_buffer().expect_err("it is claimed");
    drop(writer);
    assert!(shared.is_unclaimed());
    assert!(matches!(
        shared.try_read(60..65),
        Err(Error::OutOfRange { .. })
    ));
    assert!(shared.is_unclaimed(), "a refused claim is none");
    let buffer = shared.into_buffer().unwrap();
    assert_eq!(buffer[8..16], [0xff; 8]);
}

#[test]
fn claims_of_many_threads_exclude_the_writer() {
    let domain = context().protection_domain().unwrap();
    let mut shared = SharedBuffer::new(domain.allocate(256).unwrap());
    let readers: Vec<_> = (0..3)
        .map(|_| {
            let (claims, received) = std::sync::mpsc::channel::<ReadClaim>();
            let reader = std::thread::spawn(move || {
                for claim in received {
                    assert!(claim.iter().all(|&byte| byte == claim[0]), "nobody writes");
                }
            });
            (claims, reader)
        })
        .collect();
    for value in 0..=255 {
        let mut writer = common::eventually("the readers' end", || shared.try_write(..).ok());
        writer.fill(value);
        drop(writer);
        for (claims, _) in &readers {
            claims.send(shared.try_read(..).unwrap()).unwrap();
        }
    }
    for (claims, reader) in readers {
        drop(claims);
        reader.join().unwrap();
    }
    assert!(shared.is_unclaimed());
}

#[test]
fn a_claim_in_flight_holds_and_comes_back() {
    let pair = Pair::new();
    let mut shared = SharedBuffer::new(pattern(&pair.domain, 64, 1));
    let mut target = SharedBuffer::new(pair.domain.allocate(64).unwrap());
    let mut receives = pair.right.receive_queue::<WriteClaim>();
    receives.post(target.try_write(16..32).unwrap()).unwrap();
    assert!(target.try_read(..).is_err(), "the device may be writing");
    let mut sends = pair.left.send_queue::<ReadClaim>();
    sends
        .post(SendRequest::send(shared.try_read(..16).unwrap()))
        .unwrap();
    assert!(shared.try_write(..).is_err(), "the device may be reading");
    assert!(shared.try_read(..).is_ok());
    let received = common::succeed(pair.right.receive_completions());
    drop(receives.complete(&received));
    assert_eq!(target.try_read(16..32).unwrap()[..], bytes(64, 1)[..16]);
    let sent = common::succeed(pair.left.send_completions());
    drop(sends.complete(&sent));
    assert!(shared.is_unclaimed());
}

#[test]
fn a_claim_to_read_is_no_destination() {
    let pair = Pair::new();
    let mut shared = SharedBuffer::new(pair.domain.allocate(64).unwrap());
    let mut receives = pair.right.receive_queue::<Claim>();
    let refused = receives
        .post(shared.try_read(..).unwrap().into())
        .unwrap_err();
    assert_eq!(refused.error, Error::NotWritable);
    drop(refused);
    assert!(shared.is_unclaimed());
    receives.post(shared.try_write(..).unwrap().into()).unwrap();
}

#[test]
fn a_claim_to_read_takes_no_data_of_a_peer() {
    let pair = Pair::new();
    let exposed = expose(pattern(&pair.domain, 8, 7), AccessFlags::REMOTE);
    let shared = SharedBuffer::new(pair.domain.allocate(8).unwrap());
    let claim = || Claim::from(shared.try_read(..).unwrap());
    let mut sends = pair.left.send_queue::<[Option<Claim>; 1]>();
    let concurrent = pair.left.concurrent_send_queue::<(Claim, ())>();
    for way in 0..3 {
        let (one, other) = ([Some(claim())], (claim(), ()));
        let remote = exposed.remote();
        let request = match way {
            0 => SendRequest::read(one, remote),
            1 => SendRequest::fetch_and_add(one, remote, 1),
            _ => SendRequest::compare_and_swap(one, remote, 0, 1),
        };
        let refused = if way == 1 {
            let mut batch = sends.batch();
            batch.push(request).unwrap_err().error
        } else {
            sends.post(request).unwrap_err().error
        };
        assert_eq!(refused, Error::NotWritable);
        let slot = concurrent.reserve().unwrap();
        let refused = concurrent.post(slot, SendRequest::read(other, remote));
        assert_eq!(refused.unwrap_err().error, Error::NotWritable);
    }
    let mut claims = [claim(), claim()];
    let refused = pair.left.scope(Duration::from_secs(5), |scope| {
        let [one, other] = &mut claims;
        let request = SendRequest::read((one, other), exposed.remote());
        scope.post(request).unwrap_err().error
    });
    assert_eq!(refused, Ok(Error::NotWritable));
    assert_eq!(shared.bytes().unwrap(), [0; 8]);
}

#[test]
fn a_forgotten_claim_claims_for_ever_and_keeps_the_memory() {
    let domain = context().protection_domain().unwrap();
    let mut shared = SharedBuffer::new(domain.allocate(8).unwrap());
    std::mem::forget(shared.try_write(..).unwrap());
    assert!(shared.try_read(..).is_err());
    let shared = shared.into_buffer().expect_err("a claim is held");
    assert!(!shared.is_unclaimed());
}

#[test]
fn exposed_memory_is_copied_from_and_to() {
    let domain = context().protection_domain().unwrap();
    let exposed = exposed(&domain, 64, AccessFlags::REMOTE);
    exposed.write_at(3, &bytes(40, 1)).unwrap();
    let mut back = [0; 40];
    exposed.slice(1..).unwrap().read_at(2, &mut back).unwrap();
    assert_eq!(back[..], bytes(40, 1));
    exposed.store_u64(48, 0x0102_0304_0506_0708).unwrap();
    assert_eq!(exposed.load_u64(48), Ok(0x0102_0304_0506_0708));
    exposed.store_u8(63, 9).unwrap();
    assert_eq!(exposed.load_u8(63), Ok(9));
    assert!(matches!(
        exposed.load_u64(57),
        Err(Error::OutOfRange { .. })
    ));
    assert!(matches!(
        exposed.load_u64(4),
        Err(Error::InvalidArgument { .. })
    ));
    assert!(matches!(exposed.load_u8(64), Err(Error::OutOfRange { .. })));
    assert!(exposed.write_at(usize::MAX, &[1]).is_err());
    assert!(exposed.read_at(60, &mut [0; 5]).is_err());
    let part = exposed.slice(8..16).unwrap();
    assert_eq!(part.len(), 8);
    assert!(part.load_u64(8).is_err(), "a part ends where it ends");
    assert!(exposed.slice(8..65).is_err());
    assert_eq!(part.remote(), exposed.remote().slice(8..16).unwrap());
}

#[test]
fn revoking_needs_the_last_clone_and_ends_the_grant_at_the_device() {
    let pair = Pair::new();
    let exposed = exposed(&pair.domain, 64, AccessFlags::REMOTE);
    let remote = exposed.remote();
    let mut sends = pair.left.send_queue();
    let source = carry_out(
        &pair.left,
        &mut sends,
        SendRequest::write(pattern(&pair.domain, 64, 1), remote),
    );
    let part = exposed.slice(..8).unwrap();
    let Refused {
        value: exposed,
        error,
    } = exposed.revoke().expect_err("a part is held");
    assert!(matches!(error, Error::InUse { .. }));
    drop(part);
    let mut buffer = exposed.revoke().unwrap();
    assert_eq!(buffer[..], bytes(64, 1));
    buffer.fill(0);
    sends.post(SendRequest::write(source, remote)).unwrap();
    let late = completion(pair.left.send_completions());
    assert_eq!(late.status(), WorkStatus::RemoteAccess);
    assert!(
        buffer.iter().all(|&byte| byte == 0),
        "the late write did not land"
    );
    until_failed(&pair.left);
}

#[test]
fn memory_in_flight_cannot_be_revoked() {
    let pair = Pair::new();
    let exposed = exposed(&pair.domain, 64, AccessFlags::REMOTE);
    let mut receives = pair.right.receive_queue();
    receives.post(exposed.clone()).unwrap();
    let Refused {
        value: exposed,
        error,
    } = exposed.revoke().expect_err("it is in flight");
    assert!(matches!(error, Error::InUse { .. }));
    pair.right.fail().unwrap();
    drop(receives.complete(&completion(pair.right.receive_completions())));
    assert!(exposed.revoke().is_ok());
}

#[test]
fn parts_of_one_buffer_are_exposed_apart_from_each_other() {
    let pair = Pair::new();
    let (left, mut right) = pair.domain.allocate(128).unwrap().split_at(64);
    let exposed = expose(left, AccessFlags::REMOTE);
    right.fill(7);
    let mut sends = pair.left.send_queue();
    let source = pattern(&pair.domain, 64, 2);
    carry_out(
        &pair.left,
        &mut sends,
        SendRequest::write(source, exposed.remote()),
    );
    assert!(right.iter().all(|&byte| byte == 7));
    let left = exposed.revoke().unwrap();
    let whole = left.join(right).unwrap();
    assert_eq!(
        (&whole[..64], &whole[64..]),
        (&bytes(64, 2)[..], &[7; 64][..])
    );
}

#[test]
fn borrowed_parts_are_disjoint_and_inside() {
    let domain = context().protection_domain().unwrap();
    let mut buffer = pattern(&domain, 100, 1);
    let whole = buffer.as_slice();
    let (left, right) = whole.split_at(40);
    assert_eq!(
        (&left[..], &right[..]),
        (&bytes(100, 1)[..40], &bytes(100, 1)[40..])
    );
    assert_eq!(right.slice(10..20).unwrap()[..], bytes(100, 1)[50..60]);
    let lens: Vec<_> = whole.chunks(30).map(|piece| piece.len()).collect();
    assert_eq!(lens, [30, 30, 30, 10]);
    assert_eq!(whole.slice(100..).unwrap().chunks(3).count(), 0);
    assert!(matches!(
        buffer.slice(90..101),
        Err(Error::OutOfRange { .. })
    ));
    assert!(matches!(
        buffer.slice_mut(101..),
        Err(Error::OutOfRange { .. })
    ));
    let pieces: Vec<_> = buffer.as_slice_mut().chunks_mut(30).collect();
    for (seed, mut piece) in (0..).zip(pieces) {
        piece.fill(seed);
        let (mut first, rest) = piece.reborrow().split_at_mut(1);
        first[0] = rest.slice(..1).unwrap()[0] + 100;
    }
    assert_eq!(
        (buffer[0], buffer[29], buffer[30], buffer[99]),
        (100, 0, 101, 3)
    );
    let [mut one, two] = buffer.disjoint_mut([10..20, 20..100]).unwrap();
    one.copy_from_slice(&two[..10]);
    assert_eq!(two.into_bytes().len(), 80);
    let overlap = buffer.disjoint_mut([0..11, 10..20]).map(drop);
    assert!(matches!(overlap, Err(Error::InvalidArgument { .. })));
    let backwards = buffer.disjoint_mut([10..20, 0..10]).map(drop);
    assert!(matches!(backwards, Err(Error::InvalidArgument { .. })));
    assert!(matches!(
        buffer.disjoint_mut([0..10, 90..101]).map(drop),
        Err(Error::OutOfRange { .. })
    ));
    let frozen = buffer.freeze().slice(30..40).unwrap();
    assert_eq!(frozen.as_slice()[0], 101);
    assert_eq!(frozen.as_slice().len(), 10);
}

#[test]
fn disjoint_parts_are_destinations_at_once() {
    let pair = Pair::new();
    let exposed = expose(pattern(&pair.domain, 96, 5), AccessFlags::REMOTE_READ);
    let mut target = pair.domain.allocate(96).unwrap();
    let scope = pair
        .left
        .scope(std::time::Duration::from_secs(60), |scope| {
            for (index, part) in target.as_slice_mut().chunks_mut(32).enumerate() {
                let from = exposed
                    .remote()
                    .slice(index * 32..(index + 1) * 32)
                    .unwrap();
                scope.post(SendRequest::read(part, from)).unwrap();
            }
        });
    scope.unwrap();
    assert_eq!(target[..], bytes(96, 5));
}

#[test]
fn exposed_memory_has_words_and_atomics_of_all_sizes() {
    let pair = Pair::new();
    let exposed = exposed(&pair.domain, 64, AccessFlags::REMOTE);
    let volatile = exposed.volatile();
    volatile.fill(0xab);
    assert_eq!(volatile.to_vec(), [0xab; 64]);
    volatile.store_u32(4, 0x0102_0304).unwrap();
    assert_eq!(exposed.load_u32(4), Ok(0x0102_0304));
    assert_eq!(volatile.load_u32(0), Ok(0xabab_abab));
    assert!(matches!(
        volatile.load_u32(2),
        Err(Error::InvalidArgument { .. })
    ));
    assert!(matches!(
        volatile.store_u32(61, 0),
        Err(Error::OutOfRange { .. })
    ));
    assert!(matches!(
        volatile.load_u32(usize::MAX),
        Err(Error::OutOfRange { .. })
    ));
    volatile.store_u64(8, 40).unwrap();
    assert_eq!(volatile.fetch_and_add_u64(8, 2), Ok(40));
    assert_eq!(volatile.compare_and_swap_u64(8, 1, 7), Ok(42), "not equal");
    assert_eq!(volatile.compare_and_swap_u64(8, 42, 7), Ok(42));
    assert_eq!(exposed.load_u64(8), Ok(7));
    assert!(volatile.fetch_and_add_u64(12, 1).is_err());
    let part = volatile.slice(8..16).unwrap();
    assert_eq!((part.len(), part.load_u64(0)), (8, Ok(7)));
    assert!(part.slice(4..9).is_err());
    assert!(part.load_u64(8).is_err());
    // The peer's atomic and the words of this process access the same bytes.
    let request = SendRequest::fetch_and_add(
        pair.domain.allocate(8).unwrap(),
        exposed.remote().slice(8..16).unwrap(),
        3,
    );
    let before = carry_out(&pair.left, &mut pair.left.send_queue(), request);
    assert_eq!(before[..], 7_u64.to_ne_bytes());
    assert_eq!(exposed.load_u64(8), Ok(10));
}

#[test]
fn tokens_travel_as_bytes_and_by_serde_and_divide() {
    let pair = Pair::new();
    let exposed = exposed(&pair.domain, 64, AccessFlags::REMOTE);
    let token = exposed.remote();
    let text = serde_json::to_string(&token).unwrap();
    let by_serde: RemoteMemory = serde_json::from_str(&text).unwrap();
    let by_bytes = RemoteMemory::from_bytes(&token.to_bytes());
    assert_eq!((by_serde, by_bytes), (token, token));
    let part = by_serde.slice(16..32).unwrap();
    assert!(part.slice(..17).is_err());
    let mut sends = pair.left.send_queue();
    carry_out(
        &pair.left,
        &mut sends,
        SendRequest::write(pattern(&pair.domain, 16, 3), part),
    );
    let content = exposed.volatile().to_vec();
    assert_eq!(content[16..32], bytes(16, 3));
    assert!(
        content[..16]
            .iter()
            .chain(&content[32..])
            .all(|&byte| byte == 0)
    );
}

#[test]
fn frozen_and_claimed_memory_is_lent_for_reading_only() {
    let pair = Pair::new();
    let frozen = pattern(&pair.domain, 64, 4).freeze().slice(16..48).unwrap();
    let lent = frozen.lend().unwrap();
    assert_eq!(lent[..], frozen[..]);
    let mut sends = pair.left.send_queue();
    let read = SendRequest::read(pair.domain.allocate(32).unwrap(), lent.remote());
    let target = carry_out(&pair.left, &mut sends, read);
    assert_eq!(target[..], bytes(64, 4)[16..48]);
    let shared = SharedBuffer::new(pattern(&pair.domain, 64, 5));
    let claimed = rdma_core::memory::LentMemory::new(shared.try_read(8..24).unwrap()).unwrap();
    let read = SendRequest::read(pair.domain.allocate(16).unwrap(), claimed.remote());
    let read = carry_out(&pair.left, &mut sends, read);
    assert_eq!(read[..], bytes(64, 5)[8..24]);
    assert!(frozen.slice(5..5).unwrap().lend().is_err(), "0 bytes");
    let frozen = frozen.thaw().expect_err("it is lent");
    sends
        .post(SendRequest::write(target, lent.remote()))
        .unwrap();
    let refused = completion(pair.left.send_completions());
    assert_eq!(refused.status(), WorkStatus::RemoteAccess);
    drop(lent);
    assert_eq!(frozen.thaw().unwrap()[..], bytes(64, 4));
}

#[test]
fn memory_that_others_read_is_claimed_for_reading_and_deregistered_after_the_last_claim() {
    let pair = Pair::new();
    let owner: Arc<[u8]> = Arc::from(bytes(64, 6));
    let frozen = pair.domain.register_shared(Arc::clone(&owner)).unwrap();
    let (part, clone) = (frozen.slice(..8).unwrap(), frozen.clone());
    drop(frozen);
    let part = SharedFrozenBuffer::new(part).expect_err("a clone exists");
    drop(clone);
    SharedFrozenBuffer::new(part).expect_err("a part");
    assert_eq!(Arc::strong_count(&owner), 1);

    let frozen = pair.domain.register_shared(Arc::clone(&owner)).unwrap();
    let shared = SharedFrozenBuffer::new(frozen).unwrap();
    let claim = shared.as_shared().try_read(8..24).unwrap();
    assert_eq!(claim.as_ptr(), owner[8..].as_ptr());
    let clone = shared.clone();
    let shared = shared.into_frozen().expect_err("a clone and a claim exist");
    drop(clone);
    let shared = shared.into_frozen().expect_err("a claim exists");
    let lent = rdma_core::memory::LentMemory::new(claim).unwrap();
    drop(shared);
    let mut sends = pair.left.send_queue();
    let read = SendRequest::read(pair.domain.allocate(16).unwrap(), lent.remote());
    let read = carry_out(&pair.left, &mut sends, read);
    assert_eq!(read[..], owner[8..24]);
    assert_eq!(Arc::strong_count(&owner), 2);
    drop(lent);
    assert_eq!(Arc::strong_count(&owner), 1);

    let frozen = pair.domain.register_shared(Arc::clone(&owner)).unwrap();
    let frozen = SharedFrozenBuffer::new(frozen).unwrap().into_frozen();
    let frozen = frozen.unwrap().thaw().expect_err("read-only memory");
    let same: Arc<[u8]> = frozen.into_owner().unwrap();
    assert!(Arc::ptr_eq(&same, &owner));
}

#[test]
fn nothing_empty_is_exposed() {
    let domain = context().protection_domain().unwrap();
    let (empty, _rest) = domain.allocate(8).unwrap().split_at(0);
    let Refused {
        value: empty,
        error,
    } = empty.expose(AccessFlags::REMOTE).unwrap_err();
    assert!(matches!(error, Error::InvalidArgument { .. }));
    assert!(empty.is_empty());
}
