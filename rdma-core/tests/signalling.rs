//! Unsignaled requests. Checks that a queue with many of them does not get stuck.

mod common;

use common::{Pair, bytes, completion, eventually, exposed, pattern, succeed};
use rdma_core::queue_pair::ConcurrentSendQueue;
use rdma_core::{
    AccessFlags, Buffer, ConnectOptions, Error, ExposedMemory, QueuePairBuilder, SendQueue,
    SendRequest, WorkCompletion,
};

fn pairs(requests: u32) -> [Pair; 2] {
    let ways: [fn(QueuePairBuilder) -> QueuePairBuilder; 2] =
        [|builder| builder, |builder| builder.extended_posting()];
    ways.map(|way| {
        Pair::with(
            |builder| way(builder.send_requests(requests).inline_data(8)),
            &ConnectOptions::default(),
        )
    })
}

fn unsignaled(pair: &Pair, there: &ExposedMemory, seed: u8) -> SendRequest<Buffer> {
    SendRequest::write(pattern(&pair.domain, 8, seed), there.remote()).unsignaled()
}

/// Waits for the next completion, and returns the memory of all requests that it completes.
fn retired(pair: &Pair, sends: &mut SendQueue<Buffer>) -> Vec<Buffer> {
    let completion = succeed(pair.left.send_completions());
    sends.complete(&completion).collect()
}

fn nothing_completes(pair: &Pair) {
    let mut room = [WorkCompletion::default()];
    assert!(
        pair.left
            .send_completions()
            .poll(&mut room)
            .unwrap()
            .is_empty()
    );
}

#[test]
fn a_queue_that_never_signals_goes_on() {
    for capacity in [1, 2, 5] {
        for pair in pairs(capacity) {
            let there = exposed(&pair.domain, 8, AccessFlags::REMOTE);
            let mut sends = pair.left.send_queue();
            for round in 0..10 {
                for seed in 0..capacity as u8 {
                    sends.post(unsignaled(&pair, &there, round + seed)).unwrap();
                }
                let refused = sends.post(unsignaled(&pair, &there, 0)).unwrap_err();
                assert!(matches!(refused.error, Error::QueueFull { .. }));
                // The request that filled the queue was signaled, and its completion completes the
                // requests before it.
                let all = retired(&pair, &mut sends);
                assert_eq!(all.len(), capacity as usize);
                for (seed, memory) in (0..).zip(all) {
                    assert_eq!(memory[..], bytes(8, round + seed));
                }
                nothing_completes(&pair);
            }
        }
    }
}

#[test]
fn a_batch_that_never_signals_goes_on() {
    for pair in pairs(6) {
        let there = exposed(&pair.domain, 8, AccessFlags::REMOTE);
        let mut sends = pair.left.send_queue();
        for _ in 0..10 {
            for _ in 0..2 {
                let mut batch = sends.batch();
                for seed in 0..2 {
                    batch.push(unsignaled(&pair, &there, seed)).unwrap();
                }
                batch
                    .push_inline(SendRequest::write(&[1; 8], there.remote()).unsignaled())
                    .unwrap();
                assert_eq!(batch.post().unwrap(), 3);
            }
            assert_eq!(retired(&pair, &mut sends).len(), 4, "two have no memory");
            assert_eq!(sends.in_flight(), 0);
        }
        nothing_completes(&pair);
    }
}

#[test]
fn a_batch_that_is_not_posted_does_not_count() {
    let [pair, _] = pairs(4);
    let there = exposed(&pair.domain, 8, AccessFlags::REMOTE);
    let mut sends = pair.left.send_queue();
    for _ in 0..3 {
        let mut batch = sends.batch();
        for seed in 0..4 {
            batch.push(unsignaled(&pair, &there, seed)).unwrap();
        }
        drop(batch);
    }
    for seed in 0..3 {
        sends.post(unsignaled(&pair, &there, seed)).unwrap();
    }
    nothing_completes(&pair);
    sends.post(unsignaled(&pair, &there, 3)).unwrap();
    assert_eq!(retired(&pair, &mut sends).len(), 4);
}

#[test]
fn a_signaled_request_begins_the_count_anew() {
    for pair in pairs(4) {
        let there = exposed(&pair.domain, 8, AccessFlags::REMOTE);
        let mut sends = pair.left.send_queue();
        for _ in 0..10 {
            for seed in 0..2 {
                sends.post(unsignaled(&pair, &there, seed)).unwrap();
            }
            let request = SendRequest::write(pattern(&pair.domain, 8, 2), there.remote());
            sends.post(request).unwrap();
            assert_eq!(retired(&pair, &mut sends).len(), 3);
        }
        nothing_completes(&pair);
    }
}

/// Each queue alone would keep a place for a signaled request, but together the queues would fill
/// all places.
#[test]
fn queues_that_share_a_queue_pair_and_never_signal_go_on() {
    for pair in pairs(8) {
        let there = exposed(&pair.domain, 8, AccessFlags::REMOTE);
        let mut queues = vec![pair.left.send_queue()];
        // Fills all places except one, before another queue exists.
        for seed in 0..7 {
            queues[0].post(unsignaled(&pair, &there, seed)).unwrap();
        }
        let mut posted = 7;
        queues.push(pair.left.send_queue());
        queues.push(pair.left.send_queue());
        for round in 0..300 {
            let queue = &mut queues[round % 3];
            match queue.post(unsignaled(&pair, &there, 0)) {
                Ok(()) => posted += 1,
                Err(refused) => {
                    // The queue or the device is full, so a signaled request must be outstanding.
                    assert!(
                        matches!(refused.error, Error::QueueFull { .. })
                            || refused.error.errno() == Some(rdma_core::Errno(libc::ENOMEM)),
                        "{refused:?}"
                    );
                    let completion = succeed(pair.left.send_completions());
                    for queue in &mut queues {
                        drop(queue.complete(&completion));
                    }
                }
            }
        }
        assert!(posted > 100, "{posted} of 300 were posted");
    }
}

/// Waits for the next completion, and returns the slots and the memory of all requests that it
/// completes.
fn finished(pair: &Pair, queue: &ConcurrentSendQueue<Buffer>) -> Vec<(u32, Buffer)> {
    let completion = succeed(pair.left.send_completions());
    let all: Vec<_> = queue.complete(&completion).collect();
    all.iter().for_each(|&(slot, _)| queue.release(slot));
    all
}

fn assert_all_are_free(queue: &ConcurrentSendQueue<Buffer>) {
    let free: Vec<_> = std::iter::from_fn(|| queue.reserve()).collect();
    assert_eq!(free.len(), queue.capacity(), "every slot is free again");
}

#[test]
fn every_nth_request_of_a_concurrent_queue_has_a_completion() {
    const N: u8 = 4;
    for pair in pairs(16) {
        let there = exposed(&pair.domain, 8, AccessFlags::REMOTE);
        let queue = pair.left.concurrent_send_queue();
        let mut batch = queue.batch(N.into());
        for round in 0..50 {
            let mut slots = Vec::new();
            for seed in 0..N {
                let slot = queue.reserve().expect("a free slot");
                slots.push(slot.index());
                let request = unsignaled(&pair, &there, round + seed);
                batch.push(slot, request).unwrap();
            }
            assert_eq!(batch.post().unwrap(), N.into());
            // The iterator returns the latest request first.
            let all = finished(&pair, &queue);
            let seen: Vec<_> = all.iter().map(|(slot, _)| *slot).rev().collect();
            assert_eq!(seen, slots);
            for (seed, (_, memory)) in (0..N).rev().zip(all) {
                assert_eq!(memory[..], bytes(8, round + seed));
            }
            nothing_completes(&pair);
        }
        assert_all_are_free(&queue);
    }
}

/// Checks that a signaled request within a batch completes only the requests before it.
#[test]
fn a_signaled_request_of_a_concurrent_batch_ends_a_run() {
    for pair in pairs(16) {
        let there = exposed(&pair.domain, 8, AccessFlags::REMOTE);
        let queue = pair.left.concurrent_send_queue();
        let mut batch = queue.batch(16);
        for signaled in [false, true, true, false, false] {
            let request = match signaled {
                true => SendRequest::write(pattern(&pair.domain, 8, 0), there.remote()),
                false => unsignaled(&pair, &there, 0),
            };
            batch.push(queue.reserve().unwrap(), request).unwrap();
        }
        batch.post().unwrap();
        let lengths = [(); 3].map(|()| finished(&pair, &queue).len());
        assert_eq!(lengths, [2, 1, 2]);
        nothing_completes(&pair);
        assert_all_are_free(&queue);
    }
}

#[test]
fn what_is_not_taken_of_a_concurrent_completion_is_dropped_and_its_slots_are_free() {
    let [pair, _] = pairs(4);
    let there = exposed(&pair.domain, 8, AccessFlags::REMOTE);
    let frozen = pattern(&pair.domain, 8, 1).freeze();
    let queue = pair.left.concurrent_send_queue();
    let mut batch = queue.batch(4);
    for _ in 0..4 {
        let write = SendRequest::write(frozen.clone(), there.remote()).unsignaled();
        batch.push(queue.reserve().unwrap(), write).unwrap();
    }
    batch.post().unwrap();
    let completion = succeed(pair.left.send_completions());
    let (slot, _) = queue
        .complete(&completion)
        .next()
        .expect("the signaled one");
    queue.release(slot);
    let free: Vec<_> = std::iter::from_fn(|| queue.reserve()).collect();
    assert_eq!(free.len(), 4, "every slot is free again");
    assert!(frozen.thaw().is_ok(), "no request keeps it");
    assert_eq!(queue.complete(&completion).count(), 0, "once only");
}

/// Checks threads that share one queue, each of which signals every eighth request.
#[test]
fn threads_that_signal_every_nth_request_get_all_of_their_memory() {
    const THREADS: u8 = 3;
    const ROUNDS: usize = 40;
    const N: usize = 8;
    for pair in pairs(64) {
        let there = exposed(&pair.domain, 8, AccessFlags::REMOTE);
        let queue = pair.left.concurrent_send_queue::<Buffer>();
        let completions = std::thread::scope(|scope| {
            for thread in 0..THREADS {
                let (queue, there, pair) = (&queue, &there, &pair);
                scope.spawn(move || {
                    let mut batch = queue.batch(N);
                    for _ in 0..ROUNDS {
                        for _ in 0..N {
                            let slot = eventually("a free slot", || queue.reserve());
                            batch.push(slot, unsignaled(pair, there, thread)).unwrap();
                        }
                        assert_eq!(batch.post().unwrap(), N);
                    }
                });
            }
            let (mut counts, mut completions) = ([0; THREADS as usize], 0);
            while counts.iter().sum::<usize>() < usize::from(THREADS) * ROUNDS * N {
                let all = finished(&pair, &queue);
                assert_eq!(all.len(), N, "those of one batch");
                let thread = (0..THREADS).find(|&thread| all[0].1[..] == bytes(8, thread));
                let thread = thread.expect("a thread's pattern");
                assert!(all.iter().all(|(_, memory)| memory[..] == bytes(8, thread)));
                counts[usize::from(thread)] += N;
                completions += 1;
            }
            assert_eq!(counts, [ROUNDS * N; THREADS as usize]);
            completions
        });
        assert_eq!(completions, usize::from(THREADS) * ROUNDS);
        nothing_completes(&pair);
        assert_all_are_free(&queue);
    }
}

/// Checks that failed requests have completions of their own, signaled or not.
#[test]
fn every_slot_of_a_concurrent_batch_that_fails_comes_back_once() {
    for failing in 0..6 {
        for pair in pairs(8) {
            let there = exposed(&pair.domain, 8, AccessFlags::REMOTE);
            let queue = pair.left.concurrent_send_queue();
            let mut batch = queue.batch(6);
            for index in 0..6 {
                let mut request = unsignaled(&pair, &there, index);
                if index == failing {
                    let mut nowhere = there.remote();
                    nowhere.rkey ^= 0xff;
                    request = SendRequest::write(pattern(&pair.domain, 8, index), nowhere);
                    request = request.unsignaled();
                }
                batch.push(queue.reserve().unwrap(), request).unwrap();
            }
            batch.post().unwrap();
            let mut seen = Vec::new();
            while seen.len() < 6 {
                let completion = completion(pair.left.send_completions());
                for (slot, memory) in queue.complete(&completion) {
                    assert!(!seen.contains(&slot), "slot {slot} came twice");
                    assert!((0..6).any(|seed| memory[..] == bytes(8, seed)));
                    seen.push(slot);
                }
            }
            seen.iter().for_each(|&slot| queue.release(slot));
            assert_all_are_free(&queue);
        }
    }
}
