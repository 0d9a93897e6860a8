//! Queues to which several threads post, and whose requests several threads complete.

mod common;

use std::collections::HashSet;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;

use common::{Pair, bytes, completion, eventually, exposed, pattern, succeed};
use rdma_core::memory::Tagged;
use rdma_core::queue_pair::ConcurrentSendQueue;
use rdma_core::queue_pair::ReservedSlot;
use rdma_core::{AccessFlags, Buffer, ConnectOptions, Error, SendRequest, WorkCompletion};

const THREADS: usize = 4;
const EACH: usize = 500;

/// Reserves every free slot, checks that there are `expected` slots, and releases the slots.
fn free_slots(queue: &ConcurrentSendQueue<Buffer>) -> usize {
    let slots: Vec<ReservedSlot<'_>> = std::iter::from_fn(|| queue.reserve()).collect();
    let distinct: HashSet<u32> = slots.iter().map(ReservedSlot::index).collect();
    assert_eq!(distinct.len(), slots.len());
    slots.len()
}

#[test]
fn every_request_of_every_thread_completes_exactly_once() {
    let pair = Pair::with(
        |builder| builder.send_requests(16),
        &ConnectOptions::default(),
    );
    let target = exposed(&pair.domain, 8, AccessFlags::REMOTE);
    let queue = pair.left.concurrent_send_queue::<Buffer>();
    assert_eq!(queue.capacity(), 16);
    let completed = AtomicUsize::new(0);
    let seen = Mutex::new(HashSet::new());
    thread::scope(|scope| {
        for number in 0..THREADS {
            let (queue, pair, target) = (&queue, &pair, &target);
            scope.spawn(move || {
                for index in 0..EACH {
                    let mut memory = pair.domain.allocate(8).unwrap();
                    memory.copy_from_slice(&((number * EACH + index) as u64).to_ne_bytes());
                    let slot = eventually("a free slot", || queue.reserve());
                    queue
                        .post(slot, SendRequest::write(memory, target.remote()))
                        .unwrap();
                }
            });
        }
        for _ in 0..2 {
            scope.spawn(|| {
                let mut room = [WorkCompletion::default(); 4];
                eventually("every completion", || {
                    for completion in pair.left.send_completions().poll(&mut room).unwrap() {
                        completion.result().unwrap();
                        let (slot, memory) = queue.complete(completion).next().unwrap();
                        assert!(queue.complete(completion).next().is_none(), "once only");
                        queue.release(slot);
                        let number = u64::from_ne_bytes(memory[..].try_into().unwrap());
                        assert!(seen.lock().unwrap().insert(number));
                        completed.fetch_add(1, Ordering::Relaxed);
                    }
                    (completed.load(Ordering::Relaxed) == THREADS * EACH).then_some(())
                });
            });
        }
    });
    assert_eq!(seen.lock().unwrap().len(), THREADS * EACH);
    assert_eq!(free_slots(&queue), queue.capacity());
}

#[test]
fn receives_are_posted_and_completed_by_any_thread() {
    let pair = Pair::new();
    let receives = pair.right.concurrent_receive_queue::<Buffer>();
    for _ in 0..32 {
        receives.post(pair.domain.allocate(8).unwrap()).unwrap();
    }
    let arrived = Mutex::new(Vec::new());
    thread::scope(|scope| {
        scope.spawn(|| {
            let mut sends = pair.left.send_queue();
            let mut memory = pair.domain.allocate(8).unwrap();
            for number in 0..(THREADS * EACH) as u64 {
                memory.copy_from_slice(&number.to_ne_bytes());
                memory = common::carry_out(&pair.left, &mut sends, SendRequest::send(memory));
            }
        });
        for _ in 0..THREADS {
            scope.spawn(|| {
                let mut room = [WorkCompletion::default(); 2];
                eventually("every message", || {
                    for completion in pair.right.receive_completions().poll(&mut room).unwrap() {
                        completion.result().unwrap();
                        let memory = receives.complete(completion).unwrap();
                        let number = u64::from_ne_bytes(memory[..].try_into().unwrap());
                        receives.post(memory).unwrap();
                        arrived.lock().unwrap().push(number);
                    }
                    (arrived.lock().unwrap().len() == THREADS * EACH).then_some(())
                });
            });
        }
    });
    let mut arrived = arrived.into_inner().unwrap();
    arrived.sort_unstable();
    assert_eq!(arrived, (0..(THREADS * EACH) as u64).collect::<Vec<_>>());
}

#[test]
fn a_full_concurrent_queue_refuses_and_recovers() {
    let pair = Pair::with(
        |builder| builder.send_requests(3).receive_requests(3),
        &ConnectOptions::default(),
    );
    let target = exposed(&pair.domain, 8, AccessFlags::REMOTE);
    let queue = pair.left.concurrent_send_queue::<Buffer>();
    for _ in 0..3 {
        let slot = queue.reserve().unwrap();
        let source = pattern(&pair.domain, 8, 1);
        queue
            .post(slot, SendRequest::write(source, target.remote()))
            .unwrap();
    }
    assert!(queue.reserve().is_none());
    let (slot, _) = queue
        .complete(&succeed(pair.left.send_completions()))
        .next()
        .unwrap();
    assert!(
        queue.reserve().is_none(),
        "a completed slot is in use until it is released"
    );
    queue.release(slot);
    queue.release(slot);
    assert_eq!(free_slots(&queue), 1, "released once only");

    let receives = pair.right.concurrent_receive_queue();
    for _ in 0..3 {
        receives.post(pair.domain.allocate(8).unwrap()).unwrap();
    }
    let refused = receives.post(pattern(&pair.domain, 8, 7)).unwrap_err();
    assert!(matches!(
        refused.error,
        Error::QueueFull { capacity: 3, .. }
    ));
    assert_eq!(refused.memory[..], bytes(8, 7));
}

#[test]
fn a_refused_request_gives_its_slot_and_memory_back() {
    let pair = Pair::new();
    let queue = pair.left.concurrent_send_queue();
    let slot = queue.reserve().unwrap();
    let too_much = [(); 20].map(|()| pair.domain.allocate(8).unwrap());
    let refused = queue.post(slot, SendRequest::send(too_much)).unwrap_err();
    assert_eq!(refused.memory.len(), 20);
    let slots: Vec<_> = std::iter::from_fn(|| queue.reserve()).collect();
    assert_eq!(slots.len(), queue.capacity());
}

#[test]
fn a_slot_of_another_queue_is_refused() {
    let pair = Pair::with(
        |builder| builder.send_requests(1),
        &ConnectOptions::default(),
    );
    let target = exposed(&pair.domain, 8, AccessFlags::REMOTE);
    let (one, other) = (
        pair.left.concurrent_send_queue::<Buffer>(),
        pair.right.concurrent_send_queue::<Buffer>(),
    );
    let write = |seed| SendRequest::write(pattern(&pair.domain, 8, seed), target.remote());
    let (slot, foreign) = (one.reserve().unwrap(), other.reserve().unwrap());
    assert_eq!(slot.index(), foreign.index());
    one.post(slot, write(1)).unwrap();
    let refused = one.post(foreign, write(2)).unwrap_err();
    assert!(
        matches!(refused.error, Error::InvalidArgument { .. }),
        "{refused:?}"
    );
    assert_eq!(refused.memory[..], bytes(8, 2));
    let (slot, memory) = one
        .complete(&succeed(pair.left.send_completions()))
        .next()
        .unwrap();
    assert_eq!(
        memory[..],
        bytes(8, 1),
        "the request in flight was left alone"
    );
    one.release(slot);
    assert_eq!(free_slots(&one), 1);

    assert_eq!(free_slots(&other), 1, "the refused slot went back");
}

#[test]
fn a_detached_slot_can_be_kept_beside_its_queue() {
    let pair = Pair::with(
        |builder| builder.send_requests(1),
        &ConnectOptions::default(),
    );
    let target = exposed(&pair.domain, 8, AccessFlags::REMOTE);
    let (one, other) = (
        pair.left.concurrent_send_queue::<Buffer>(),
        pair.right.concurrent_send_queue::<Buffer>(),
    );
    let write = |seed| SendRequest::write(pattern(&pair.domain, 8, seed), target.remote());
    let detached = one.reserve().unwrap().detach();
    assert!(one.reserve().is_none());
    let slot = one.attach(detached).unwrap();
    let index = slot.index();
    one.post(slot, write(1)).unwrap();
    let mut completed = one.complete(&succeed(pair.left.send_completions()));
    let (slot, _) = completed.next().unwrap();
    assert_eq!(slot, index);
    one.release(slot);
    drop(one.attach(one.reserve().unwrap().detach()).unwrap());
    assert_eq!(free_slots(&one), 1);

    // The slot of another queue is refused, does not replace a slot of this queue, and is not lost.
    let own = other.reserve();
    let refused = other.attach(one.reserve().unwrap().detach()).unwrap_err();
    let error = refused.error;
    assert!(matches!(error, Error::InvalidArgument { .. }), "{error}");
    assert!(other.reserve().is_none());
    drop(own);
    let own = one.attach(refused.value).unwrap();
    one.post(own, write(2)).unwrap();
}

/// A function that returns early by `?` releases its slot by dropping it.
#[test]
fn a_slot_that_is_dropped_unused_is_free_again() {
    let pair = Pair::new();
    let queue = pair.left.concurrent_send_queue::<Buffer>();
    let fails = || -> Result<(), Error> {
        let slot = queue.reserve().ok_or(Error::QueueFull {
            queue: "send",
            capacity: queue.capacity(),
        })?;
        let page = pair.domain.allocate(8)?;
        page.expose_at(AccessFlags::empty(), 1)?;
        unreachable!("an address inside of a page in slot {}", slot.index());
    };
    for round in 0..=queue.capacity() {
        let error = fails().unwrap_err();
        assert!(!matches!(error, Error::QueueFull { .. }), "round {round}");
    }
    assert_eq!(free_slots(&queue), queue.capacity());
}

#[test]
fn memory_that_is_not_taken_back_from_a_batch_leaves_no_slot_in_use() {
    let pair = Pair::new();
    let target = exposed(&pair.domain, 8, AccessFlags::REMOTE);
    let memory = || pair.domain.allocate(8).unwrap();
    let sends = pair.left.concurrent_send_queue::<Buffer>();
    let mut batch = sends.batch(4);
    for _ in 0..4 {
        let request = SendRequest::write(memory(), target.remote());
        batch.push(sends.reserve().unwrap(), request).unwrap();
    }
    assert!(
        batch.take_back().next().is_some(),
        "and three are not asked for"
    );
    assert_eq!(free_slots(&sends), sends.capacity());

    let receives = pair.left.concurrent_receive_queue::<Buffer>();
    let mut batch = receives.batch(receives.capacity());
    for _ in 0..2 {
        for _ in 0..receives.capacity() {
            batch.push(memory()).unwrap();
        }
        assert!(batch.take_back().next().is_some());
    }

    let shared = pair.domain.shared_receive_queue(4).build().unwrap();
    let mut batch = shared.batch(shared.capacity());
    for _ in 0..2 {
        for _ in 0..shared.capacity() {
            batch.push(memory()).unwrap();
        }
        assert!(batch.take_back().next().is_some());
    }
}

#[test]
fn unsignaled_requests_of_every_thread_complete_with_later_ones() {
    for way in [false, true] {
        let pair = Pair::with(
            |builder| {
                let builder = builder.send_requests(16).inline_data(8);
                if way {
                    builder.extended_posting()
                } else {
                    builder
                }
            },
            &ConnectOptions::default(),
        );
        let target = exposed(&pair.domain, 8, AccessFlags::REMOTE);
        let queue = pair.left.concurrent_send_queue::<Buffer>();
        let (ended, polled) = (AtomicUsize::new(0), AtomicUsize::new(0));
        thread::scope(|scope| {
            for _ in 0..THREADS {
                let (queue, pair, target) = (&queue, &pair, &target);
                scope.spawn(move || {
                    for index in 1..=EACH {
                        let slot = eventually("a free slot", || queue.reserve());
                        let remote = target.remote();
                        if index % 2 == 0 {
                            let request = SendRequest::write(&[1_u8; 8], remote).unsignaled();
                            queue.post_inline(slot, request).unwrap();
                        } else {
                            let memory = pattern(&pair.domain, 8, 1);
                            let request = SendRequest::write(memory, remote).unsignaled();
                            queue.post(slot, request).unwrap();
                        }
                    }
                });
            }
            scope.spawn(|| {
                let mut room = [WorkCompletion::default(); 4];
                eventually("the completions", || {
                    for completion in pair.left.send_completions().poll(&mut room).unwrap() {
                        completion.result().unwrap();
                        polled.fetch_add(1, Ordering::Relaxed);
                        for (slot, _) in queue.finish(completion) {
                            queue.release(slot);
                            ended.fetch_add(1, Ordering::Relaxed);
                        }
                    }
                    // Up to half of the slots wait for a later signaled request.
                    (ended.load(Ordering::Relaxed) >= THREADS * EACH - 8).then_some(())
                });
            });
        });
        let signaled = polled.load(Ordering::Relaxed);
        assert!(signaled <= THREADS * EACH / 8, "{signaled} completions");
        let slot = queue.reserve().unwrap();
        let request = SendRequest::write(&[1_u8; 8], target.remote());
        queue.post_inline(slot, request).unwrap();
        for (slot, _) in queue.finish(&succeed(pair.left.send_completions())) {
            queue.release(slot);
        }
        assert_eq!(free_slots(&queue), queue.capacity());
    }
}

#[test]
fn two_concurrent_queues_of_unsignaled_requests_go_on() {
    let pair = Pair::with(
        |builder| builder.send_requests(8),
        &ConnectOptions::default(),
    );
    let target = exposed(&pair.domain, 8, AccessFlags::REMOTE);
    let queues = [(); 2].map(|()| pair.left.concurrent_send_queue::<Buffer>());
    let post = |queue: &ConcurrentSendQueue<Buffer>| {
        let Some(slot) = queue.reserve() else {
            return false;
        };
        let memory = pattern(&pair.domain, 8, 1);
        let request = SendRequest::write(memory, target.remote()).unsignaled();
        queue.post(slot, request).is_ok()
    };
    for _ in 0..50 {
        for queue in &queues {
            // Posts until the queue is full; later rounds post as many requests as have completed.
            while post(queue) {}
            let completion = completion(pair.left.send_completions());
            let ended: usize = queues
                .iter()
                .map(|queue| {
                    let ended = queue.complete(&completion);
                    ended.map(|(slot, _)| queue.release(slot)).count()
                })
                .sum();
            assert!(ended > 0);
        }
    }
}

/// Value whose drop increments the counter, and then panics if the second field is `true`.
struct Dropped(Arc<AtomicUsize>, bool);

impl Drop for Dropped {
    fn drop(&mut self) {
        self.0.fetch_add(1, Ordering::Relaxed);
        if self.1 {
            // Like a panic, but without a message.
            std::panic::resume_unwind(Box::new(()));
        }
    }
}

#[test]
fn memory_that_panics_when_it_is_dropped_does_not_keep_the_rest_of_its_chain() {
    let pair = Pair::new();
    let target = exposed(&pair.domain, 8, AccessFlags::REMOTE);
    let queue = pair.left.concurrent_send_queue();
    let count = Arc::new(AtomicUsize::new(0));
    for (panics, signaled) in [(false, false), (true, false), (false, true)] {
        let value = Dropped(Arc::clone(&count), panics);
        let memory = Tagged::new(pattern(&pair.domain, 8, 1), value);
        let request = SendRequest::write(memory, target.remote());
        let request = if signaled {
            request
        } else {
            request.unsignaled()
        };
        queue.post(queue.reserve().unwrap(), request).unwrap();
    }
    let completion = succeed(pair.left.send_completions());
    let dropped = catch_unwind(AssertUnwindSafe(|| drop(queue.complete(&completion))));
    assert!(dropped.is_err());
    assert_eq!(count.load(Ordering::Relaxed), 3);
    let free: Vec<_> = std::iter::from_fn(|| queue.reserve()).collect();
    assert_eq!(free.len(), queue.capacity());
}
