//! Memory and who may touch it.

mod common;

use common::{Pair, bytes, carry_out, completion, context, pattern, until_failed};
use rdma_core::{
    AccessFlags, Claim, Error, ReadClaim, SendRequest, SharedBuffer, WorkStatus, WriteClaim,
};

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
    let exposed = domain.allocate(64).unwrap().expose(AccessFlags::REMOTE);
    let exposed = exposed.map_err(|(_, error)| error).unwrap();
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
    let exposed = pair
        .domain
        .allocate(64)
        .unwrap()
        .expose(AccessFlags::REMOTE);
    let exposed = exposed.map_err(|(_, error)| error).unwrap();
    let remote = exposed.remote();
    let mut sends = pair.left.send_queue();
    let source = carry_out(
        &pair.left,
        &mut sends,
        SendRequest::write(pattern(&pair.domain, 64, 1), remote),
    );
    let part = exposed.slice(..8).unwrap();
    let (exposed, error) = exposed.revoke().expect_err("a part is held");
    assert!(matches!(error, Error::InUse { .. }));
    drop(part);
    let mut buffer = exposed.revoke().map_err(|(_, error)| error).unwrap();
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
    let exposed = pair
        .domain
        .allocate(64)
        .unwrap()
        .expose(AccessFlags::REMOTE);
    let exposed = exposed.map_err(|(_, error)| error).unwrap();
    let mut receives = pair.right.receive_queue();
    receives.post(exposed.clone()).unwrap();
    let (exposed, error) = exposed.revoke().expect_err("it is in flight");
    assert!(matches!(error, Error::InUse { .. }));
    pair.right.fail().unwrap();
    drop(receives.complete(&completion(pair.right.receive_completions())));
    assert!(exposed.revoke().is_ok());
}

#[test]
fn parts_of_one_buffer_are_exposed_apart_from_each_other() {
    let pair = Pair::new();
    let (left, mut right) = pair.domain.allocate(128).unwrap().split_at(64);
    let exposed = left
        .expose(AccessFlags::REMOTE)
        .map_err(|(_, error)| error)
        .unwrap();
    right.fill(7);
    let mut sends = pair.left.send_queue();
    let source = pattern(&pair.domain, 64, 2);
    carry_out(
        &pair.left,
        &mut sends,
        SendRequest::write(source, exposed.remote()),
    );
    assert!(right.iter().all(|&byte| byte == 7));
    let left = exposed.revoke().map_err(|(_, error)| error).unwrap();
    let whole = left.join(right).unwrap();
    assert_eq!(
        (&whole[..64], &whole[64..]),
        (&bytes(64, 2)[..], &[7; 64][..])
    );
}

#[test]
fn nothing_empty_is_exposed() {
    let domain = context().protection_domain().unwrap();
    let (empty, _rest) = domain.allocate(8).unwrap().split_at(0);
    let (empty, error) = empty.expose(AccessFlags::REMOTE).unwrap_err();
    assert!(matches!(error, Error::InvalidArgument { .. }));
    assert!(empty.is_empty());
}
