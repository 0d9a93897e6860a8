//! Batches, whose requests are posted by one call of the driver.

mod common;

use common::{Pair, bytes, completion, exposed, pattern, receive, succeed};
use rdma_core::queue_pair::{BatchError, SendBatch};
use rdma_core::{
    AccessFlags, Buffer, ConnectOptions, Errno, Error, FrozenBuffer, QueuePair, QueuePairBuilder,
    SendQueue, SendRequest, WorkCompletion,
};

/// Returns a pair for each way to post: `ibv_post_send`, and the functions `ibv_wr_*`.
fn pairs(configure: impl Fn(QueuePairBuilder) -> QueuePairBuilder) -> [Pair; 2] {
    let options = ConnectOptions::default();
    [
        Pair::with(&configure, &options),
        Pair::with(|builder| configure(builder).extended_posting(), &options),
    ]
}

fn no_completion(pair: &Pair) {
    let mut room = [Default::default(); 4];
    let queue = pair.left.send_completions();
    assert!(queue.poll(&mut room).unwrap().is_empty());
}

#[test]
fn a_batch_is_carried_out_in_its_order() {
    for pair in pairs(|builder| builder) {
        let target = exposed(&pair.domain, 8 * 16, AccessFlags::REMOTE);
        let mut sends = pair.left.send_queue();
        for round in 0..20 {
            let mut batch = sends.batch();
            for index in 0..16 {
                let place = target.remote().slice(index * 8..(index + 1) * 8).unwrap();
                let memory = pattern(&pair.domain, 8, round + index as u8);
                let request = SendRequest::write(memory, place);
                let last = index == 15;
                let request = if last { request } else { request.unsignaled() };
                batch.push(request).unwrap();
                assert_eq!(batch.len(), index + 1);
            }
            assert!(!batch.is_empty());
            assert_eq!(batch.post().unwrap(), 16);
            assert_eq!(sends.in_flight(), 16);
            let completion = succeed(pair.left.send_completions());
            let retired = sends.complete(&completion);
            for (index, memory) in (0..16).zip(retired) {
                assert_eq!(memory[..], bytes(8, round + index));
            }
            let mut content = [0; 8 * 16];
            target.read_at(0, &mut content).unwrap();
            for (index, piece) in (0..16).zip(content.chunks(8)) {
                assert_eq!(piece, bytes(8, round + index));
            }
            assert_eq!(sends.in_flight(), 0);
        }
    }
}

#[test]
fn batches_of_two_queues_are_made_at_the_same_time() {
    for pair in pairs(|builder| builder) {
        let targets = [0, 1].map(|_| exposed(&pair.domain, 8 * 8, AccessFlags::REMOTE));
        let (mut left, mut right) = (pair.left.send_queue(), pair.right.send_queue());
        let ends = [&pair.left, &pair.right];
        for round in 0..10_u8 {
            let (mut first, mut second) = (left.batch(), right.batch());
            for index in 0..8 {
                for (end, batch) in [&mut first, &mut second].into_iter().enumerate() {
                    let place = targets[end].remote().slice(index * 8..(index + 1) * 8);
                    let seed = round + index as u8 + 100 * end as u8;
                    let memory = pattern(&pair.domain, 8, seed);
                    batch
                        .push(SendRequest::write(memory, place.unwrap()))
                        .unwrap();
                }
            }
            // In every other round, the batch that was begun first is posted last.
            let posted = match round % 2 {
                0 => [first.post().unwrap(), second.post().unwrap()],
                _ => [second.post().unwrap(), first.post().unwrap()],
            };
            assert_eq!(posted, [8, 8]);
            for (end, queue) in [&mut left, &mut right].into_iter().enumerate() {
                for index in 0..8 {
                    let completion = succeed(ends[end].send_completions());
                    let memory = queue.complete(&completion).next().unwrap();
                    assert_eq!(memory[..], bytes(8, round + index + 100 * end as u8));
                }
                let mut content = [0; 8 * 8];
                targets[end].read_at(0, &mut content).unwrap();
                for (index, piece) in (0..8).zip(content.chunks(8)) {
                    assert_eq!(piece, bytes(8, round + index + 100 * end as u8));
                }
            }
        }
    }
}

#[test]
fn receives_are_posted_in_batches() {
    for pair in pairs(|builder| builder) {
        let mut receives = pair.right.receive_queue();
        let mut sends = pair.left.send_queue();
        for _ in 0..20 {
            let mut batch = receives.batch();
            for _ in 0..8 {
                batch.push(pair.domain.allocate(16).unwrap()).unwrap();
            }
            assert_eq!(batch.post().unwrap(), 8);
            let mut batch = sends.batch();
            for seed in 0..8 {
                let memory = pattern(&pair.domain, 16, seed);
                let request = SendRequest::send_with_immediate(memory, seed.into());
                batch.push(request).unwrap();
            }
            assert_eq!(batch.post().unwrap(), 8);
            for seed in 0..8 {
                let (completion, memory) = receive(&pair.right, &mut receives);
                assert_eq!(completion.immediate(), Some(seed.into()));
                assert_eq!(memory[..], bytes(16, seed));
                let sent = succeed(pair.left.send_completions());
                assert_eq!(sends.complete(&sent).count(), 1);
            }
        }
    }
}

#[test]
fn posting_an_empty_batch_has_no_effect() {
    for pair in pairs(|builder| builder) {
        let mut sends = pair.left.send_queue::<Buffer>();
        assert_eq!(sends.batch().post().unwrap(), 0);
        let mut receives = pair.right.receive_queue::<Buffer>();
        assert_eq!(receives.batch().post().unwrap(), 0);
        let queue = pair.left.concurrent_send_queue::<Buffer>();
        assert_eq!(queue.batch(4).post().unwrap(), 0);
        let queue = pair.right.concurrent_receive_queue::<Buffer>();
        assert_eq!(queue.batch(0).post().unwrap(), 0);
        assert_eq!((sends.in_flight(), receives.in_flight()), (0, 0));
        no_completion(&pair);
        pair.check();
    }
}

#[test]
fn a_batch_that_is_dropped_is_not_posted_and_gives_its_memory_up() {
    for pair in pairs(|builder| builder) {
        let target = exposed(&pair.domain, 8, AccessFlags::REMOTE);
        let frozen = pattern(&pair.domain, 8, 1).freeze();
        let mut sends = pair.left.send_queue();
        let mut batch = sends.batch();
        for _ in 0..5 {
            let request = SendRequest::write(frozen.clone(), target.remote());
            batch.push(request).unwrap();
        }
        drop(batch);
        assert_eq!(sends.in_flight(), 0);
        assert!(frozen.thaw().is_ok(), "no request keeps it");
        no_completion(&pair);
        assert_eq!(target.load_u64(0).unwrap(), 0, "nothing was written");
        sends
            .post(SendRequest::write(
                pattern(&pair.domain, 8, 1).freeze(),
                target.remote(),
            ))
            .unwrap();
        let completion = succeed(pair.left.send_completions());
        assert_eq!(sends.complete(&completion).count(), 1);
    }
}

#[test]
fn a_batch_that_is_forgotten_is_not_posted_and_blocks_nothing() {
    for pair in pairs(|builder| builder.send_requests(4).receive_requests(4)) {
        let target = exposed(&pair.domain, 8, AccessFlags::REMOTE);
        let frozen = pattern(&pair.domain, 8, 7).freeze();
        let write = || SendRequest::write(frozen.clone(), target.remote());
        let mut sends = pair.left.send_queue::<FrozenBuffer>();
        for forgotten in 0..=4 {
            for posted in 0..=4 {
                let mut batch = sends.batch();
                for _ in 0..forgotten {
                    batch.push(write()).unwrap();
                }
                std::mem::forget(batch);
                assert_eq!(sends.in_flight(), 0);
                no_completion(&pair);
                // Posts some requests one by one, and the rest as a batch.
                for _ in 0..posted {
                    sends.post(write()).unwrap();
                }
                let mut batch = sends.batch();
                for _ in posted..4 {
                    batch.push(write()).unwrap();
                }
                assert!(batch.push(write()).is_err());
                assert_eq!(batch.post().unwrap(), 4 - posted);
                for _ in 0..4 {
                    let completion = succeed(pair.left.send_completions());
                    let retired: Vec<_> = sends.complete(&completion).collect();
                    assert_eq!(retired.len(), 1);
                    assert_eq!(retired[0][..], bytes(8, 7));
                }
            }
        }
        drop(sends);
        assert!(frozen.thaw().is_ok(), "nothing keeps it");
    }
}

#[test]
fn a_full_batch_refuses_and_keeps_what_it_has() {
    for pair in pairs(|builder| builder.send_requests(3).receive_requests(3)) {
        let target = exposed(&pair.domain, 8, AccessFlags::REMOTE);
        let write = |seed| SendRequest::write(pattern(&pair.domain, 8, seed), target.remote());
        let mut sends = pair.left.send_queue();
        sends.post(write(0)).unwrap();
        let mut batch = sends.batch();
        batch.push(write(1)).unwrap();
        batch.push(write(2)).unwrap();
        let refused = batch.push(write(3)).unwrap_err();
        assert!(
            matches!(refused.error, Error::QueueFull { capacity: 3, .. }),
            "{refused:?}"
        );
        assert_eq!(refused.memory[..], bytes(8, 3));
        assert_eq!(batch.post().unwrap(), 2);
        for seed in 0..3 {
            let completion = succeed(pair.left.send_completions());
            let retired: Vec<_> = sends.complete(&completion).collect();
            assert_eq!(retired[0][..], bytes(8, seed));
        }
    }
}

#[test]
fn a_refused_request_leaves_the_batch_as_it_was() {
    for pair in pairs(|builder| builder.inline_data(16)) {
        let target = exposed(&pair.domain, 64, AccessFlags::REMOTE);
        let mut sends = pair.left.send_queue();
        let mut batch = sends.batch();
        let write = |len| SendRequest::write(pattern(&pair.domain, len, 1), target.remote());
        batch.push(write(64)).unwrap();
        let limit = pair.left.inline_limit();
        let too_long = SendRequest::send(pattern(&pair.domain, limit + 1, 1));
        let refused = batch.push(too_long.inline()).unwrap_err();
        assert!(matches!(refused.error, Error::InvalidArgument { .. }));
        assert_eq!((batch.len(), refused.memory.len()), (1, limit + 1));
        batch.push(write(8)).unwrap();
        assert_eq!(batch.post().unwrap(), 2);
        let lengths = [64, 8].map(|_| {
            let completion = succeed(pair.left.send_completions());
            let memory = sends.complete(&completion).next();
            memory.map_or(0, |memory| memory.len())
        });
        assert_eq!(lengths, [64, 8]);
    }
}

#[test]
fn what_a_batch_takes_back_comes_in_its_order() {
    for pair in pairs(|builder| builder.inline_data(16)) {
        let target = exposed(&pair.domain, 8, AccessFlags::REMOTE);
        let write = |seed| SendRequest::write(pattern(&pair.domain, 8, seed), target.remote());
        let mut sends = pair.left.send_queue();
        let mut batch = sends.batch();
        for seed in 0..3 {
            batch.push(write(seed)).unwrap();
        }
        let inline = SendRequest::write(&[0; 8], target.remote());
        batch.push_inline(inline).unwrap();
        batch.push(write(3)).unwrap();
        let back: Vec<_> = batch.take_back().collect();
        let expected: Vec<_> = (0..4).map(|seed| bytes(8, seed)).collect();
        assert_eq!(
            back.iter().map(|it| it.to_vec()).collect::<Vec<_>>(),
            expected
        );
        assert!(batch.is_empty());
        batch.push(write(9)).unwrap();
        assert_eq!(batch.post().unwrap(), 1);
        let completion = succeed(pair.left.send_completions());
        let retired: Vec<_> = sends.complete(&completion).collect();
        assert_eq!(retired[0][..], bytes(8, 9));
        no_completion(&pair);
    }
}

/// Posts batches of seven requests to a queue pair for seven requests, each in a queue of its own,
/// until the device refuses a batch in part. Then calls `end` with that batch and the number of
/// requests that were posted before the batch. Returns the queues and the number of requests in
/// flight. All posted requests stay outstanding meanwhile.
fn fill(
    end: impl Fn(&QueuePair, usize, BatchError<SendBatch<'_, Buffer>>) -> usize,
) -> (QueuePair, Vec<SendQueue<Buffer>>, usize) {
    let domain = common::context().protection_domain().unwrap();
    let prepared = domain.queue_pair().send_requests(7);
    // The device may accept more requests than were requested at the creation.
    let completions = domain.context().completion_queue(1000).build().unwrap();
    let prepared = prepared.send_completions(&completions).build().unwrap();
    let peer = common::nobody(prepared.endpoint());
    // The peer never answers, and the queue pair never gives up.
    let options = ConnectOptions::default().ack_timeout_exponent(0);
    let queue_pair = prepared.connect(&peer, &options).unwrap();
    let (mut queues, mut all) = (Vec::new(), 0);
    for _ in 0..100 {
        let mut queue = queue_pair.send_queue();
        let mut batch = queue.batch();
        for seed in 0..7 {
            batch
                .push(SendRequest::send(pattern(&domain, 8, seed)))
                .unwrap();
        }
        let refused = match batch.post() {
            Ok(7) => None,
            Ok(posted) => panic!("{posted} of 7, and no error"),
            Err(refused) => Some((refused.posted, end(&queue_pair, all, refused))),
        };
        let posted = refused.map_or(7, |(first, then)| first + then);
        assert_eq!(queue.in_flight(), posted);
        all += posted;
        queues.push(queue);
        if refused.is_some() {
            return (queue_pair, queues, all);
        }
    }
    panic!("a queue pair of 7 requests has not 700");
}

/// Completes all requests in flight: with the completions in `before`, which were already polled,
/// and with newly polled ones.
fn retire(
    queue_pair: &QueuePair,
    queues: &mut [SendQueue<Buffer>],
    before: &[WorkCompletion],
    all: usize,
) {
    queue_pair.fail().unwrap();
    let mut retired = 0;
    let mut before = before.iter();
    while retired < all {
        let next = before.next().copied();
        let completion = next.unwrap_or_else(|| completion(queue_pair.send_completions()));
        let retire = |queue: &mut SendQueue<_>| queue.complete(&completion).count();
        retired += queues.iter_mut().map(retire).sum::<usize>();
    }
    assert_eq!(retired, all);
    assert!(queues.iter().all(|queue| queue.in_flight() == 0));
}

#[test]
fn a_batch_posted_in_part_reports_the_number_and_keeps_the_rest() {
    let (queue_pair, mut queues, all) = fill(|_, _, refused| {
        let BatchError {
            posted,
            error,
            mut rest,
        } = refused;
        assert_eq!(error.errno(), Some(Errno(libc::ENOMEM)), "{error}");
        assert_eq!(rest.len(), 7 - posted);
        let back: Vec<_> = rest.take_back().map(|memory| memory.to_vec()).collect();
        let expected: Vec<_> = (posted as u8..7).map(|seed| bytes(8, seed)).collect();
        assert_eq!(back, expected, "the memory of the others, in their order");
        0
    });
    retire(&queue_pair, &mut queues, &[], all);
}

#[test]
fn the_rest_of_a_batch_can_be_posted_again() {
    let flushed = std::cell::RefCell::new(Vec::new());
    let (queue_pair, mut queues, all) = fill(|queue_pair, before, refused| {
        // In the error state the device flushes the outstanding requests, and then has room again.
        queue_pair.fail().unwrap();
        while flushed.borrow().len() < before + refused.posted {
            let next = completion(queue_pair.send_completions());
            flushed.borrow_mut().push(next);
        }
        refused.rest.post().unwrap()
    });
    assert_eq!(all, queues.len() * 7, "every batch was posted in the end");
    retire(&queue_pair, &mut queues, &flushed.into_inner(), all);
}

#[test]
fn threads_post_batches_to_one_queue() {
    for pair in pairs(|builder| builder) {
        let target = exposed(&pair.domain, 8, AccessFlags::REMOTE);
        let queue = pair.left.concurrent_send_queue::<Buffer>();
        let source = pair.left.send_completions();
        let posted = std::sync::atomic::AtomicUsize::new(0);
        std::thread::scope(|scope| {
            for thread in 0..3_u8 {
                let (queue, target, domain, posted) = (&queue, &target, &pair.domain, &posted);
                scope.spawn(move || {
                    let mut batch = queue.batch(8);
                    for _ in 0..50 {
                        for _ in 0..8 {
                            let slot = common::eventually("a free slot", || queue.reserve());
                            let memory = pattern(domain, 8, thread);
                            let request = SendRequest::write(memory, target.remote());
                            batch.push(slot, request).unwrap();
                        }
                        assert_eq!(batch.post().unwrap(), 8);
                        posted.fetch_add(8, std::sync::atomic::Ordering::Relaxed);
                    }
                });
            }
            let mut completed = [0; 3];
            for _ in 0..3 * 50 * 8 {
                let completion = succeed(source);
                let (index, memory) = queue
                    .complete(&completion)
                    .next()
                    .expect("a request's memory");
                let thread = (0..3).find(|thread| memory[..] == bytes(8, *thread));
                completed[usize::from(thread.expect("a thread's pattern"))] += 1;
                queue.release(index);
            }
            assert_eq!(completed, [400; 3]);
        });
        assert_eq!(posted.into_inner(), 1200);
        let free = std::iter::from_fn(|| queue.reserve())
            .collect::<Vec<_>>()
            .len();
        assert_eq!(free, queue.capacity(), "every slot is free again");
    }
}

#[test]
fn a_concurrent_batch_that_is_dropped_frees_its_slots() {
    let pair = Pair::new();
    let target = exposed(&pair.domain, 8, AccessFlags::REMOTE);
    let frozen = pattern(&pair.domain, 8, 1).freeze();
    let queue = pair.left.concurrent_send_queue();
    let write = || SendRequest::write(frozen.clone(), target.remote());
    let mut batch = queue.batch(2);
    for _ in 0..2 {
        batch.push(queue.reserve().unwrap(), write()).unwrap();
    }
    let refused = batch.push(queue.reserve().unwrap(), write()).unwrap_err();
    assert!(matches!(
        refused.error,
        Error::QueueFull { capacity: 2, .. }
    ));
    drop(refused);
    assert_eq!(batch.take_back().count(), 2);
    batch.push(queue.reserve().unwrap(), write()).unwrap();
    drop(batch);
    assert!(frozen.thaw().is_ok(), "no request keeps it");
    let free = std::iter::from_fn(|| queue.reserve())
        .collect::<Vec<_>>()
        .len();
    assert_eq!(free, queue.capacity(), "every slot is free again");
    no_completion(&pair);
}

#[test]
fn receives_of_any_thread_are_posted_in_batches() {
    let pair = Pair::new();
    let receives = pair.right.concurrent_receive_queue();
    let mut batch = receives.batch(4);
    let mut sends = pair.left.send_queue();
    for _ in 0..10 {
        for _ in 0..4 {
            batch.push(pair.domain.allocate(8).unwrap()).unwrap();
        }
        assert!(batch.push(pair.domain.allocate(8).unwrap()).is_err());
        assert_eq!(batch.post().unwrap(), 4);
        for seed in 0..4 {
            let request = SendRequest::send(pattern(&pair.domain, 8, seed));
            common::carry_out(&pair.left, &mut sends, request);
            let received = succeed(pair.right.receive_completions());
            let memory = receives.complete(&received).expect("the memory");
            assert_eq!(memory[..], bytes(8, seed));
        }
    }
}
