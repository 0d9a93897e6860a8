//! Soundness holes of other RDMA libraries in safe code, one by one. The tests check that this
//! crate has none of them. Holes that the compiler prevents are in `compile_fail`; holes that need
//! a failing device, in `holes_of_devices`; leaked memory and objects, in `holes_that_leak`.

mod common;

use std::collections::HashSet;
use std::mem;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

use common::{
    Pair, bytes, carry_out, completion, context, eventually, expose, exposed, nobody, pattern,
    succeed, until_failed,
};
use rdma_core::completion::CompletionFields;
use rdma_core::memory::{LentMemory, Part, SharedBuffer};
use rdma_core::{
    AccessFlags, Buffer, Error, QueuePair, RemoteMemory, SendRequest, WorkCompletion, WorkStatus,
};

/// Returns a queue pair whose peer never answers, with the timeouts and retries of the default
/// settings.
fn to_nobody(domain: &rdma_core::ProtectionDomain) -> QueuePair {
    let prepared = domain.queue_pair().build().unwrap();
    let remote = nobody(prepared.endpoint());
    prepared.connect(&remote, &Default::default()).unwrap()
}

#[test]
fn swapped_owners_take_their_memory_along() {
    let domain = context().protection_domain().unwrap();
    let (mut one, mut other) = (pattern(&domain, 4096, 1), pattern(&domain, 4096, 2));
    let address = one.as_ptr();
    mem::swap(&mut one, &mut other);
    drop(one);
    // The new memory may reuse the address of the freed memory, and must be its only user.
    let mut new = domain.allocate(4096).unwrap();
    new.fill(0xaa);
    assert_eq!((other.as_ptr(), &other[..]), (address, &bytes(4096, 1)[..]));

    let mut left = SharedBuffer::new(other);
    let mut right = SharedBuffer::new(new);
    let (mut claim, mut elsewhere) = (left.try_write(..8).unwrap(), right.try_write(..).unwrap());
    mem::swap(&mut claim, &mut elsewhere);
    mem::swap(&mut left, &mut right);
    claim.fill(0xbb);
    drop(left);
    assert_eq!(claim[..], [0xbb; 4096]);
    assert!(
        right.bytes().is_err(),
        "the claim of 8 bytes still is there"
    );
    drop(elsewhere);
    assert_eq!(right.bytes().unwrap(), bytes(4096, 1));
}

#[test]
fn halves_of_different_memory_do_not_become_one() {
    let domain = context().protection_domain().unwrap();
    let (left, right) = pattern(&domain, 64, 1).split_at(32);
    let (other_left, other_right) = pattern(&domain, 64, 2).split_at(32);
    let (left, other_right) = left.join(other_right).unwrap_err();
    let (right, left) = right.join(left).unwrap_err();
    assert_eq!(left.join(right).unwrap()[..], bytes(64, 1));
    assert_eq!(other_left.join(other_right).unwrap()[..], bytes(64, 2));
}

#[test]
fn forgotten_guards_do_not_affect_other_objects() {
    let pair = Pair::new();
    let domain = &pair.domain;
    mem::forget(domain.allocate(64).unwrap());
    mem::forget(exposed(domain, 64, AccessFlags::REMOTE));

    // A claim that was forgotten is never released, so the bytes stay inaccessible.
    let mut shared = SharedBuffer::new(domain.allocate(64).unwrap());
    mem::forget(shared.try_write(..32).unwrap());
    assert!(matches!(shared.bytes(), Err(Error::InUse { .. })));
    assert!(shared.try_write(16..48).is_err() && shared.try_read(40..).is_err());
    assert!(shared.into_buffer().is_err());
    let shared = SharedBuffer::new(domain.allocate(64).unwrap());
    mem::forget(LentMemory::new(shared.try_read(32..).unwrap()).unwrap());
    let mut shared = shared.into_buffer().unwrap_err();
    assert!(shared.bytes().is_ok() && shared.bytes_mut().is_err());

    // A queue that was forgotten keeps its memory for ever.
    let mut shared = SharedBuffer::new(domain.allocate(64).unwrap());
    let mut forgotten = pair.left.receive_queue();
    forgotten.post(shared.try_write(..).unwrap()).unwrap();
    mem::forget(forgotten);
    pair.right
        .send_queue()
        .post(SendRequest::send(pattern(domain, 64, 3)))
        .unwrap();
    succeed(pair.left.receive_completions());
    succeed(pair.right.send_completions());
    assert!(shared.bytes().is_err());

    // The sends complete, and the program forgets their memory.
    let mut sends = pair.left.send_queue();
    let target = exposed(domain, 8, AccessFlags::REMOTE_WRITE);
    let write = || SendRequest::write(pattern(domain, 8, 4), target.remote());
    sends.post(write().unsignaled()).unwrap();
    sends.post(write()).unwrap();
    mem::forget(sends.complete(&succeed(pair.left.send_completions())));
    let source = carry_out(&pair.left, &mut sends, write());
    assert_eq!(source[..], bytes(8, 4));

    // A reserved slot that was forgotten is lost to its queue; all other slots stay usable.
    let concurrent = pair.left.concurrent_send_queue::<Buffer>();
    mem::forget(concurrent.reserve().unwrap());
    let free = std::iter::from_fn(|| concurrent.reserve())
        .collect::<Vec<_>>()
        .len();
    assert_eq!(free, concurrent.capacity() - 1);

    let context = context();
    mem::forget(context.completion_channel().unwrap());
    mem::forget(context.completion_queue(8).build().unwrap());
    mem::forget((pair.left.clone(), context));
    pair.check();
}

#[test]
fn regions_of_no_bytes_are_refused_and_parts_of_none_are_harmless() {
    let pair = Pair::new();
    let domain = &pair.domain;
    let refused =
        |error: Error| assert!(matches!(error, Error::InvalidArgument { .. }), "{error:?}");
    refused(domain.allocate(0).unwrap_err());
    refused(
        domain
            .allocate_layout(std::alloc::Layout::new::<()>())
            .unwrap_err(),
    );
    refused(domain.register(Vec::new()).unwrap_err().error);
    let (empty, all) = domain.allocate(64).unwrap().split_at(0);
    assert!(empty.is_empty());
    refused(empty.expose(AccessFlags::REMOTE_READ).unwrap_err().error);
    let shared = SharedBuffer::new(all);
    refused(LentMemory::new(shared.try_read(8..8).unwrap()).unwrap_err());

    let mut receives = pair.right.receive_queue();
    receives.post(()).unwrap();
    let mut sends = pair.left.send_queue();
    let (nothing, rest) = domain.allocate(64).unwrap().split_at(0);
    carry_out(&pair.left, &mut sends, SendRequest::send(nothing));
    let received = succeed(pair.right.receive_completions());
    assert_eq!(received.len(), 0);
    assert_eq!(receives.complete(&received), Some(()));
    drop(rest);
}

#[test]
fn ranges_outside_of_memory_are_refused_before_the_device_sees_them() {
    let domain = context().protection_domain().unwrap();
    let mut buffer = domain.allocate(64).unwrap();
    let outside = [0..65, 65..65, 64..usize::MAX, usize::MAX..usize::MAX];
    for range in outside.clone() {
        assert!(buffer.slice(range.clone()).is_err(), "{range:?}");
        assert!(buffer.slice_mut(range.clone()).is_err(), "{range:?}");
        let part = Part::new(domain.allocate(64).unwrap(), range.clone());
        assert!(part.is_err(), "{range:?}");
    }
    let exposed = expose(buffer, AccessFlags::REMOTE);
    for range in outside {
        assert!(exposed.remote().slice(range.clone()).is_err());
        assert!(exposed.slice(range).is_err());
    }
    let end = RemoteMemory {
        address: u64::MAX - 3,
        len: 8,
        rkey: 1,
    };
    assert!(end.slice(4..8).is_err() || end.slice(4..8).unwrap().address >= end.address);
    assert!(exposed.read_at(60, &mut [0; 8]).is_err());
    assert!(exposed.write_at(usize::MAX, &[0; 8]).is_err());
    assert!(exposed.load_u64(usize::MAX - 3).is_err());
}

#[test]
fn new_memory_is_initialised() {
    let domain = context().protection_domain().unwrap();
    for _ in 0..20 {
        let mut buffer = domain.allocate(8192).unwrap();
        assert!(buffer.iter().all(|&byte| byte == 0));
        buffer.fill(0xff);
    }
}

#[test]
fn memory_is_deregistered_before_it_is_freed() {
    let pair = Pair::new();
    let target = exposed(&pair.domain, 4096, AccessFlags::REMOTE_WRITE);
    let remote = target.remote();
    drop(target);
    // Most likely at the address of the freed memory. The old key must not grant access to it.
    let heir = pair.domain.allocate(4096).unwrap();
    let mut sends = pair.left.send_queue();
    let late = SendRequest::write(pattern(&pair.domain, 4096, 1), remote);
    sends.post(late).unwrap();
    let refused = completion(pair.left.send_completions());
    assert_eq!(refused.status(), WorkStatus::RemoteAccess);
    assert!(heir.iter().all(|&byte| byte == 0));
}

#[test]
fn a_key_grants_access_to_its_memory_only() {
    let (left, right) = (0..32, 64..96);
    for place in [left, right] {
        let pair = Pair::new();
        let (before, rest) = pattern(&pair.domain, 96, 1).split_at(32);
        let (middle, after) = rest.split_at(32);
        let granted = expose(middle, AccessFlags::REMOTE_WRITE);
        let remote = granted.remote();
        let neighbour = RemoteMemory {
            address: remote.address - 32 + place.start,
            ..remote
        };
        let mut sends = pair.left.send_queue();
        let beside = SendRequest::write(pattern(&pair.domain, 32, 2), neighbour);
        sends.post(beside).unwrap();
        let refused = completion(pair.left.send_completions());
        assert_eq!(refused.status(), WorkStatus::RemoteAccess);
        assert_eq!(before[..], bytes(96, 1)[..32]);
        assert_eq!(after[..], bytes(96, 1)[64..]);
    }
}

#[test]
fn a_lease_ends_at_the_device_and_not_by_a_timer() {
    let pair = Pair::new();
    let target = exposed(&pair.domain, 64, AccessFlags::REMOTE);
    let remote = target.remote();
    let mut sends = pair.left.send_queue();
    let write = |seed| SendRequest::write(pattern(&pair.domain, 64, seed), remote);
    carry_out(&pair.left, &mut sends, write(1));
    let buffer = target.revoke().unwrap();
    sends.post(write(2)).unwrap();
    let refused = completion(pair.left.send_completions());
    assert_eq!(refused.status(), WorkStatus::RemoteAccess);
    assert_eq!(buffer[..], bytes(64, 1));
}

#[test]
fn nothing_waits_for_memory_in_flight() {
    let domain = context().protection_domain().unwrap();
    let pair = to_nobody(&domain);
    let shared = SharedBuffer::new(pattern(&domain, 64, 1));
    let mut sends = pair.send_queue();
    let request = SendRequest::send(shared.try_read(..).unwrap());
    sends.post(request).unwrap();
    drop(sends);
    // A reader gets the bytes; a writer gets an error immediately, because the device uses the
    // memory.
    let mut shared = shared.into_buffer().unwrap_err();
    assert!(matches!(shared.bytes_mut(), Err(Error::InUse { .. })));
    assert!(matches!(shared.try_write(..1), Err(Error::InUse { .. })));
    assert_eq!(shared.bytes().unwrap(), bytes(64, 1));
    drop(pair);
    assert!(shared.into_buffer().is_ok(), "the queue pair is gone");
}

#[test]
fn a_peer_that_never_answers_hangs_no_drop() {
    let domain = context().protection_domain().unwrap();
    for _ in 0..10 {
        let pair = to_nobody(&domain);
        let mut sends = pair.send_queue();
        for _ in 0..8 {
            sends
                .post(SendRequest::send(pattern(&domain, 4096, 1)))
                .unwrap();
        }
    }
}

#[test]
fn memory_that_was_posted_stays_when_its_queue_is_dropped() {
    let pair = Pair::new();
    let mut shared = SharedBuffer::new(pair.domain.allocate(64).unwrap());
    let mut receives = pair.left.receive_queue();
    receives.post(shared.try_write(..).unwrap()).unwrap();
    drop(receives);
    // The device writes to the memory after the queue was dropped.
    pair.right
        .send_queue()
        .post(SendRequest::send(pattern(&pair.domain, 64, 1)))
        .unwrap();
    let received = succeed(pair.left.receive_completions());
    assert!(!shared.is_unclaimed());
    let mut other = pair.left.receive_queue::<Buffer>();
    assert!(other.complete(&received).is_none());
    drop((other, pair));
    assert_eq!(shared.bytes().unwrap(), bytes(64, 1));
}

#[test]
fn a_completion_gives_no_memory_of_other_queues_back() {
    let pair = Pair::new();
    let silent = to_nobody(&pair.domain);
    // A queue of each kind, with requests in flight.
    let mut sends = silent.send_queue();
    let mut receives = silent.receive_queue();
    let concurrent = pair.left.concurrent_receive_queue();
    let shared = pair.domain.shared_receive_queue(8).build().unwrap();
    for _ in 0..4 {
        sends
            .post(SendRequest::send(pattern(&pair.domain, 8, 1)))
            .unwrap();
        receives.post(pair.domain.allocate(8).unwrap()).unwrap();
        concurrent.post(pair.domain.allocate(8).unwrap()).unwrap();
        shared.post(pair.domain.allocate(8).unwrap()).unwrap();
    }
    let mut foreign = vec![WorkCompletion::default()];
    let mut elsewhere = pair.right.receive_queue();
    for _ in 0..4 {
        elsewhere.post(pair.domain.allocate(8).unwrap()).unwrap();
    }
    pair.right.fail().unwrap();
    for _ in 0..4 {
        foreign.push(completion(pair.right.receive_completions()));
    }
    for completion in &foreign {
        assert_eq!(sends.complete(completion).count(), 0);
        assert!(receives.complete(completion).is_none());
        assert!(concurrent.complete(completion).is_none());
        assert!(shared.complete(completion).is_none());
    }
    assert_eq!((sends.in_flight(), receives.in_flight()), (4, 4));
    for completion in &foreign[1..] {
        assert!(elsewhere.complete(completion).is_some());
        assert!(elsewhere.complete(completion).is_none(), "once");
    }
}

#[test]
fn a_panic_with_operations_in_flight_frees_nothing_too_early() {
    let pair = Pair::new();
    let target = exposed(&pair.domain, 4096, AccessFlags::REMOTE_WRITE);
    let mut shared = SharedBuffer::new(pair.domain.allocate(64).unwrap());
    let panicked = catch_unwind(AssertUnwindSafe(|| {
        let mut sends = pair.left.send_queue();
        let mut receives = pair.left.receive_queue();
        receives.post(shared.try_write(..).unwrap()).unwrap();
        for _ in 0..16 {
            let source = pattern(&pair.domain, 4096, 7);
            sends
                .post(SendRequest::write(source, target.remote()))
                .unwrap();
        }
        panic!("with sixteen writes and a receive in flight");
    }));
    assert!(panicked.is_err());
    // The requests complete although the closure panicked.
    for _ in 0..16 {
        succeed(pair.left.send_completions());
    }
    pair.right
        .send_queue()
        .post(SendRequest::send(pattern(&pair.domain, 64, 5)))
        .unwrap();
    assert_eq!(succeed(pair.left.receive_completions()).len(), 64);
    assert!(!shared.is_unclaimed());
    let target = target.revoke().unwrap();
    assert_eq!(target[..], bytes(4096, 7));
    drop(pair);
    assert_eq!(shared.bytes().unwrap(), bytes(64, 5));
}

#[test]
fn a_refused_request_gives_its_memory_and_its_slot_back() {
    let pair = Pair::with(
        |builder| builder.send_requests(2).receive_requests(2),
        &Default::default(),
    );
    let mut sends = pair.left.send_queue();
    let concurrent = pair.right.concurrent_send_queue();
    for _ in 0..1000 {
        let many = [(); 40].map(|()| None::<Buffer>);
        let some = || Some(pair.domain.allocate(1).unwrap());
        let mut too_many = many;
        too_many.iter_mut().for_each(|place| *place = some());
        let refused = sends.post(SendRequest::send(too_many)).unwrap_err();
        assert!(matches!(refused.error, Error::TooManyElements { .. }));
        let slot = concurrent.reserve().expect("a slot is free");
        let refused = concurrent.post(slot, SendRequest::send(refused.memory));
        assert_eq!(refused.unwrap_err().memory.iter().flatten().count(), 40);
    }
    assert_eq!(sends.in_flight(), 0);
}

#[test]
fn immediate_data_is_the_same_number_at_both_ends() {
    let pair = Pair::new();
    let mut sends = pair.left.send_queue();
    let mut receives = pair.right.receive_queue();
    for number in [0, 1, 0x0102_0304, 0x8000_0000, u32::MAX] {
        receives.post(()).unwrap();
        let request = SendRequest::send_with_immediate((), number);
        carry_out(&pair.left, &mut sends, request);
        let received = succeed(pair.right.receive_completions());
        assert_eq!(received.immediate(), Some(number));
        receives.complete(&received).unwrap();
    }
    // A completion whose only flag is that of immediate data, as hardware devices report it.
    let mut raw = *WorkCompletion::default().as_raw();
    raw.wc_flags = ibverbs_sys::ibv_wc_flags::IBV_WC_WITH_IMM.0;
    // SAFETY: no request has the id 0.
    let completion = unsafe { WorkCompletion::from_raw(raw) };
    assert_eq!(completion.immediate(), Some(0));
}

#[test]
fn completions_of_others_that_a_waiter_takes_are_not_lost() {
    let domain = context().protection_domain().unwrap();
    let queue = domain.context().completion_queue(64).build().unwrap();
    let on_one = |builder: rdma_core::QueuePairBuilder| builder.send_completions(&queue);
    let pairs = [(); 2].map(|()| Pair::in_domain(&domain, on_one, &Default::default()));
    let nowhere = RemoteMemory {
        address: 0,
        len: 0,
        rkey: 0,
    };
    let mut sends = pairs.each_ref().map(|pair| pair.left.send_queue());
    for _ in 0..3 {
        for sends in &mut sends {
            sends.post(SendRequest::write((), nowhere)).unwrap();
        }
    }
    let numbers = pairs.each_ref().map(|pair| pair.left.number());
    // A loop that waits for completions of one queue pair puts completions of the other back.
    let mut found = 0;
    eventually("the completions of the second", || {
        let mut room = [WorkCompletion::default(); 6];
        let polled = queue.poll(&mut room).unwrap();
        for completion in polled {
            if completion.queue_pair() == numbers[1] {
                found += sends[1].complete(completion).count();
            } else {
                queue.put_back(&[*completion]);
            }
        }
        (found == 3).then_some(())
    });
    for _ in 0..3 {
        assert_eq!(sends[0].complete(&succeed(&queue)).count(), 1);
    }
}

#[test]
fn a_queue_that_overflows_fails_and_frees_nothing() {
    let context = context();
    let queue = context.completion_queue(2).build().unwrap();
    let domain = context.protection_domain().unwrap();
    let small = |builder: rdma_core::QueuePairBuilder| builder.send_completions(&queue);
    let pair = Pair::in_domain(&domain, small, &Default::default());
    let target = exposed(&domain, 8, AccessFlags::REMOTE_WRITE);
    let mut sends = pair.left.send_queue();
    let count = queue.capacity() + 8;
    for _ in 0..count {
        let request = SendRequest::write(pattern(&domain, 8, 1), target.remote());
        if sends.post(request).is_err() {
            break;
        }
    }
    let posted = sends.in_flight();
    // A device reports the overrun by a failed poll, or loses completions.
    let mut back = 0;
    for _ in 0..1000 {
        let mut room = [WorkCompletion::default(); 4];
        match queue.poll(&mut room) {
            Ok(completions) => {
                back += completions
                    .iter()
                    .map(|completion| sends.complete(completion).count())
                    .sum::<usize>();
            }
            Err(error) => {
                println!("{error}");
                break;
            }
        }
        std::thread::yield_now();
    }
    assert_eq!(sends.in_flight(), posted - back);
    drop((sends, pair));
}

#[test]
fn events_are_acknowledged_so_that_a_queue_can_be_destroyed() {
    let context = context();
    let channel = context.completion_channel().unwrap();
    for round in 0..20 {
        let queue = context
            .completion_queue(64)
            .channel(&channel)
            .build()
            .unwrap();
        let domain = context.protection_domain().unwrap();
        let on_it = |builder: rdma_core::QueuePairBuilder| builder.send_completions(&queue);
        let pair = Pair::in_domain(&domain, on_it, &Default::default());
        let mut sends = pair.left.send_queue();
        let nowhere = RemoteMemory {
            address: 0,
            len: 0,
            rkey: 0,
        };
        for _ in 0..50 {
            queue.request_notification().unwrap();
            sends.post(SendRequest::write((), nowhere)).unwrap();
            assert!(channel.wait(Some(Duration::from_secs(60))).unwrap());
            assert_eq!(channel.drain(|id| assert_eq!(id, queue.id())), Ok(1));
            drop(sends.complete(&succeed(&queue)));
        }
        // Destroying a queue waits for the acknowledgement of every event that was read. Events
        // that were not read need no acknowledgement.
        queue.request_notification().unwrap();
        sends.post(SendRequest::write((), nowhere)).unwrap();
        if round % 2 == 0 {
            succeed(&queue);
        }
    }
}

/// A generator of reproducible random numbers.
struct Random(u64);

impl Random {
    fn below(&mut self, limit: usize) -> usize {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        (self.0 >> 33) as usize % limit
    }
}

#[test]
fn objects_are_dropped_in_any_order_with_operations_in_flight() {
    let mut random = Random(11);
    let mut orders = HashSet::new();
    for _ in 0..100 {
        let context = context();
        let domain = context.protection_domain().unwrap();
        let channel = context.completion_channel().unwrap();
        let queue = context
            .completion_queue(64)
            .channel(&channel)
            .build()
            .unwrap();
        let fields = CompletionFields::STANDARD;
        let extended = context
            .completion_queue(64)
            .extended(fields)
            .build()
            .unwrap();
        let prepared = domain
            .queue_pair()
            .send_completions(&queue)
            .receive_completions(extended.queue())
            .build()
            .unwrap();
        let remote = nobody(prepared.endpoint());
        let pair = prepared.connect(&remote, &Default::default()).unwrap();
        let mut sends = pair.send_queue();
        let receives = pair.concurrent_receive_queue();
        let frozen = pattern(&domain, 64, 1).freeze();
        for _ in 0..3 {
            sends.post(SendRequest::send(frozen.clone())).unwrap();
            receives.post(domain.allocate(64).unwrap()).unwrap();
        }
        queue.request_notification().unwrap();
        let exposed = exposed(&domain, 64, AccessFlags::REMOTE);
        let mut objects: Vec<Box<dyn std::any::Any>> = vec![
            Box::new(context),
            Box::new(domain),
            Box::new(channel),
            Box::new(queue),
            Box::new(extended),
            Box::new(pair),
            Box::new(sends),
            Box::new(receives),
            Box::new(frozen),
            Box::new(exposed),
        ];
        let mut order = Vec::new();
        while !objects.is_empty() {
            let next = random.below(objects.len());
            order.push(next);
            drop(objects.swap_remove(next));
        }
        orders.insert(order);
    }
    assert!(orders.len() > 90);
}

#[test]
fn a_failed_queue_pair_gives_all_memory_back_and_takes_no_more() {
    let pair = Pair::new();
    let mut receives = pair.left.receive_queue();
    for _ in 0..3 {
        receives.post(pair.domain.allocate(8).unwrap()).unwrap();
    }
    pair.left.fail().unwrap();
    until_failed(&pair.left);
    for _ in 0..3 {
        let flushed = completion(pair.left.receive_completions());
        assert_eq!(flushed.status(), WorkStatus::Flushed);
        assert!(receives.complete(&flushed).is_some());
    }
    assert_eq!(receives.in_flight(), 0);
}

/// Fails to compile if `$type` implements the trait: both implementations then apply, which is
/// ambiguous.
macro_rules! assert_not {
    ($type:ty: $trait:path) => {{
        trait Ambiguous<A> {
            fn some() {}
        }
        impl<T: ?Sized> Ambiguous<()> for T {}
        struct Has;
        impl<T: ?Sized + $trait> Ambiguous<Has> for T {}
        let _ = <$type as Ambiguous<_>>::some;
    }};
}

#[test]
fn what_is_bound_to_a_thread_cannot_leave_it() {
    fn everywhere<T: Send + Sync>() {}
    everywhere::<rdma_core::CompletionQueue>();
    everywhere::<rdma_core::completion::ExtendedCompletionQueue>();
    everywhere::<rdma_core::CompletionChannel>();
    everywhere::<WorkCompletion>();
    everywhere::<QueuePair>();
    everywhere::<rdma_core::queue_pair::ConcurrentSendQueue<Buffer>>();
    assert_not!(rdma_core::completion::PolledCompletions<'static>: Send);
    assert_not!(rdma_core::completion::PolledCompletions<'static>: Sync);
    assert_not!(rdma_core::completion::ExtendedCompletion<'static>: Send);
    assert_not!(rdma_core::completion::ExtendedCompletion<'static>: Clone);
    // A copy of a write claim would be a second write claim.
    assert_not!(rdma_core::memory::WriteClaim: Clone);
    assert_not!(rdma_core::Buffer: Clone);
    assert_not!(rdma_core::queue_pair::ReservedSlot<'static>: Clone);
    // Collecting the entries of a poll would yield the last entry several times.
    assert_not!(rdma_core::completion::PolledCompletions<'static>: Iterator);
    // Memory that is not registered cannot be posted.
    assert_not!(Vec<u8>: rdma_core::memory::Gather);
    assert_not!(&'static [u8]: rdma_core::memory::Gather);
    assert_not!(&'static mut [u8]: rdma_core::memory::Scatter);
    // Read-only memory cannot be the destination of a receive.
    assert_not!(rdma_core::FrozenBuffer: rdma_core::memory::Scatter);
    assert_not!(rdma_core::memory::ReadClaim: rdma_core::memory::Scatter);
    assert_not!(rdma_core::memory::BufferSlice<'static>: rdma_core::memory::Scatter);
}
