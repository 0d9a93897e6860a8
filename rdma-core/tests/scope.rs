//! Scopes: requests with borrowed memory, none of which outlives the borrow.

mod common;

use std::mem;
use std::panic::{self, AssertUnwindSafe};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use common::{Pair, bytes, context, exposed, nobody, pattern, receive, succeed};
use rdma_core::memory::AtomicResult;
use rdma_core::{
    AccessFlags, Buffer, ConnectOptions, Error, PostError, QueuePair, QueuePairState, Result,
    Scope, SendRequest, WorkCompletion, WorkStatus,
};

/// Maximum wait for an event that must happen.
const LONG: Duration = Duration::from_secs(60);

/// Timeout of a scope in which no request completes.
const SHORT: Duration = Duration::from_millis(50);

/// Returns a queue pair whose peer never answers and that never gives up, with its domain.
fn lonely() -> (rdma_core::ProtectionDomain, QueuePair) {
    let domain = context().protection_domain().unwrap();
    let prepared = domain.queue_pair().build().unwrap();
    let peer = nobody(prepared.endpoint());
    // An exponent of 0 means that an unacknowledged request never fails.
    let options = ConnectOptions::default().ack_timeout_exponent(0);
    let queue_pair = prepared.connect(&peer, &options).unwrap();
    (domain, queue_pair)
}

fn nowhere() -> rdma_core::RemoteMemory {
    rdma_core::RemoteMemory {
        address: 4096,
        len: 8,
        rkey: 1,
    }
}

#[test]
fn borrowed_memory_is_written_read_and_sent() {
    let pair = Pair::new();
    let there = exposed(&pair.domain, 64, AccessFlags::REMOTE);
    let source = pattern(&pair.domain, 64, 1);
    let mut target = pair.domain.allocate(64).unwrap();
    let mut received = pair.domain.allocate(64).unwrap();
    let mut receives = pair.right.receive_queue();
    receives.post(pair.domain.allocate(64).unwrap()).unwrap();
    pair.right
        .scope(LONG, |right| {
            // The receive of the queue was posted before that of the scope, so it gets the first
            // message.
            let receiving = right.post_receive(received.as_slice_mut()).unwrap();
            let outcome = pair.left.scope(LONG, |left| {
                let write = left.post(SendRequest::write(source.as_slice(), there.remote()))?;
                let read = left.post(SendRequest::read(target.as_slice_mut(), there.remote()))?;
                write.wait()?;
                let read = read.wait()?;
                assert_eq!(read.completion.len(), 64);
                assert_eq!(
                    read.memory[..],
                    bytes(64, 1),
                    "it is there within the scope"
                );
                left.post(SendRequest::send_with_immediate(source.slice(..8)?, 5))?;
                left.post(SendRequest::send_with_immediate(source.slice(8..24)?, 6))?;
                left.wait_all()
            });
            outcome.unwrap().unwrap();
            let message = receiving.wait().unwrap();
            assert_eq!(message.completion.immediate(), Some(6));
            let len = message.completion.len();
            assert_eq!(message.memory[..len], source[8..24]);
        })
        .unwrap();
    assert_eq!(target[..], source[..]);
    assert_eq!(received[..16], source[8..24]);
    let (first, memory) = receive(&pair.right, &mut receives);
    assert_eq!((first.immediate(), first.len()), (Some(5), 8));
    assert_eq!(memory[..8], source[..8]);
}

#[test]
fn references_and_tuples_are_borrowed_memory_too() {
    let pair = Pair::new();
    let there = exposed(&pair.domain, 16, AccessFlags::REMOTE);
    there.store_u64(0, 7).unwrap();
    let (one, other) = (pattern(&pair.domain, 8, 1), pattern(&pair.domain, 8, 2));
    let mut result = AtomicResult::new(&pair.domain).unwrap();
    let (mut low, mut high) = (
        pair.domain.allocate(8).unwrap(),
        pair.domain.allocate(8).unwrap(),
    );
    let found = pair.left.scope(LONG, |scope| {
        let word = there.remote().slice(..8)?;
        let swap = SendRequest::compare_and_swap(&mut result, word, 7, 8);
        let found = scope.post(swap)?.wait()?.memory.value();
        scope.post(SendRequest::write((&one, &other), there.remote()))?;
        scope.post(SendRequest::read([&mut low, &mut high], there.remote()))?;
        Result::<_>::Ok(found)
    });
    assert_eq!(found.unwrap().unwrap(), 7);
    assert_eq!(
        (low[..].to_vec(), high[..].to_vec()),
        (bytes(8, 1), bytes(8, 2))
    );
}

#[test]
fn disjoint_parts_are_in_flight_at_once() {
    let pair = Pair::new();
    let there = exposed(&pair.domain, 1024, AccessFlags::REMOTE);
    let source = pattern(&pair.domain, 1024, 3);
    let mut target = pair.domain.allocate(1024).unwrap();
    pair.left
        .scope(LONG, |scope| {
            for (index, piece) in source.as_slice().chunks(64).enumerate() {
                let place = there.remote().slice(index * 64..).unwrap();
                scope.post(SendRequest::write(piece, place)).unwrap();
            }
            scope.wait_all().unwrap();
            assert_eq!(scope.in_flight(), 0);
            for (index, piece) in target.as_slice_mut().chunks_mut(64).enumerate() {
                let place = there.remote().slice(index * 64..).unwrap();
                scope.post(SendRequest::read(piece, place)).unwrap();
            }
        })
        .unwrap();
    assert_eq!(target[..], source[..]);
}

#[test]
fn more_requests_than_the_queue_has_go_through_one_scope() {
    let pair = Pair::with(
        |builder| builder.send_requests(4).receive_requests(1),
        &ConnectOptions::default(),
    );
    let there = exposed(&pair.domain, 8, AccessFlags::REMOTE);
    let source = pattern(&pair.domain, 8, 3);
    let write = || SendRequest::write(&source, there.remote());
    pair.left
        .scope(LONG, |scope| {
            let mut posted = 0;
            while posted < 100 {
                match scope.post(write()) {
                    Ok(_) => posted += 1,
                    Err(refused) => {
                        assert!(
                            matches!(refused.error, Error::QueueFull { .. })
                                || refused.error.errno().is_some(),
                            "{refused:?}"
                        );
                        scope.wait_all().unwrap();
                    }
                }
            }
        })
        .unwrap();
    pair.check();
}

#[test]
fn inline_data_needs_no_registration_in_a_scope() {
    let pair = Pair::with(
        |builder| builder.inline_data(32),
        &ConnectOptions::default(),
    );
    let there = exposed(&pair.domain, 8, AccessFlags::REMOTE);
    pair.left
        .scope(LONG, |scope| {
            let number = 0x1234_5678_9abc_u64.to_ne_bytes();
            let write = SendRequest::write(&number, there.remote());
            scope.post_inline(write)?.wait()?;
            Result::<_>::Ok(())
        })
        .unwrap()
        .unwrap();
    assert_eq!(there.load_u64(0).unwrap(), 0x1234_5678_9abc);
}

#[test]
fn handles_that_are_dropped_or_forgotten_are_waited_for() {
    let pair = Pair::new();
    let there = exposed(&pair.domain, 4096, AccessFlags::REMOTE);
    there.write_at(0, &bytes(4096, 9)).unwrap();
    for forget in [false, true] {
        let mut target = pair.domain.allocate(4096).unwrap();
        pair.left
            .scope(LONG, |scope| {
                let read = SendRequest::read(target.as_slice_mut(), there.remote());
                let read = scope.post(read).unwrap();
                if forget {
                    mem::forget(read);
                } else {
                    drop(read);
                }
                assert_eq!(scope.in_flight(), 1);
            })
            .unwrap();
        assert_eq!(target[..], bytes(4096, 9));
    }
    let mut room = [WorkCompletion::default()];
    let rest = pair.left.send_completions().poll(&mut room).unwrap();
    assert!(rest.is_empty(), "{rest:?}");
}

#[test]
fn a_scope_returns_an_unreported_failure() {
    for ask in [true, false] {
        let pair = Pair::new();
        let there = exposed(&pair.domain, 8, AccessFlags::REMOTE);
        let wrong = rdma_core::RemoteMemory {
            rkey: there.remote().rkey ^ 0x5a00,
            ..there.remote()
        };
        let source = pattern(&pair.domain, 8, 1);
        let outcome = pair.left.scope(LONG, |scope| {
            let write = scope.post(SendRequest::write(&source, wrong)).unwrap();
            if ask {
                let failed = write.wait().unwrap_err();
                assert_eq!(failed.memory[..], source[..]);
                assert!(
                    matches!(&failed.error, Error::Work(error) if error.status == WorkStatus::RemoteAccess),
                    "{failed:?}"
                );
            }
        });
        match outcome {
            Ok(()) => assert!(ask),
            Err(Error::Work(error)) => {
                assert!(!ask);
                assert_eq!(error.status, WorkStatus::RemoteAccess);
            }
            Err(other) => panic!("{other}"),
        }
    }
}

#[test]
fn completions_of_other_queues_that_come_meanwhile_are_not_lost() {
    let context = context();
    let queue = context.completion_queue(256).build().unwrap();
    let domain = context.protection_domain().unwrap();
    let configure = |builder: rdma_core::QueuePairBuilder| builder.send_completions(&queue);
    let pair = Pair::in_domain(&domain, configure, &ConnectOptions::default());
    let there = exposed(&pair.domain, 64, AccessFlags::REMOTE);
    let (mut left, mut right) = (pair.left.send_queue(), pair.right.send_queue());
    let write = |seed| SendRequest::write(pattern(&pair.domain, 8, seed), there.remote());
    let source = pattern(&pair.domain, 8, 7);
    for seed in 0..20 {
        // Earlier requests of the same queue pair, and of another queue pair with the same
        // completion queue.
        left.post(write(seed)).unwrap();
        right.post(write(seed)).unwrap();
        pair.left
            .scope(LONG, |scope| {
                let place = there.remote().slice(8..16).unwrap();
                let mine = scope.post(SendRequest::write(&source, place)).unwrap();
                right.post(write(seed + 100)).unwrap();
                mine.wait().unwrap();
                left.post(write(seed + 100)).unwrap();
            })
            .unwrap();
        let mut retired = (Vec::new(), Vec::new());
        while retired.0.len() < 2 || retired.1.len() < 2 {
            let completion = succeed(&queue);
            retired.0.extend(left.complete(&completion));
            retired.1.extend(right.complete(&completion));
        }
        for memory in [retired.0, retired.1] {
            assert_eq!(memory[0][..], bytes(8, seed));
            assert_eq!(memory[1][..], bytes(8, seed + 100));
        }
    }
    let mut room = [WorkCompletion::default()];
    assert!(queue.poll(&mut room).unwrap().is_empty());
}

#[test]
fn scopes_of_one_queue_pair_can_be_nested() {
    let pair = Pair::new();
    let there = exposed(&pair.domain, 16, AccessFlags::REMOTE);
    there.write_at(0, &bytes(16, 4)).unwrap();
    let (mut outer, mut inner) = (
        pair.domain.allocate(16).unwrap(),
        pair.domain.allocate(16).unwrap(),
    );
    pair.left
        .scope(LONG, |scope| {
            let read = SendRequest::read(outer.as_slice_mut(), there.remote());
            let reading = scope.post(read).unwrap();
            pair.left
                .scope(LONG, |scope| {
                    let read = SendRequest::read(inner.as_slice_mut(), there.remote());
                    scope.post(read).unwrap().wait().unwrap();
                })
                .unwrap();
            assert_eq!(inner[..], bytes(16, 4));
            reading.wait().unwrap();
        })
        .unwrap();
    assert_eq!(outer[..], bytes(16, 4));
}

/// Runs a scope with a send to a peer that never answers. Without a timeout, the scope would wait
/// for ever.
fn hopeless<R>(
    queue_pair: &QueuePair,
    source: &Buffer,
    body: impl for<'scope> FnOnce(&'scope Scope<'scope, '_>) -> R,
) -> Result<R> {
    queue_pair.scope(SHORT, |scope| {
        scope.post(SendRequest::write(source, nowhere())).unwrap();
        body(scope)
    })
}

#[test]
fn a_peer_that_never_answers_cannot_hang_a_scope() {
    let (domain, queue_pair) = lonely();
    let source = pattern(&domain, 8, 1);
    let error = hopeless(&queue_pair, &source, |scope| scope.in_flight()).unwrap_err();
    assert!(
        matches!(error, Error::TimedOut { timeout, .. } if timeout == SHORT),
        "{error:?}"
    );
    let state = queue_pair.state().unwrap();
    assert!(
        matches!(state, QueuePairState::Error | QueuePairState::Reset),
        "{state}"
    );
    // After the scope, the program can use the memory again.
    let mut source = source;
    source.fill(3);
}

#[test]
fn a_wait_that_takes_too_long_gives_the_memory_back() {
    let (domain, queue_pair) = lonely();
    let source = pattern(&domain, 8, 1);
    let mut target = domain.allocate(8).unwrap();
    let mut received = domain.allocate(8).unwrap();
    let outcome = queue_pair.scope(SHORT, |scope| {
        let write = scope.post(SendRequest::write(&source, nowhere())).unwrap();
        let read = SendRequest::read(target.as_slice_mut(), nowhere());
        let read = scope.post(read).unwrap();
        let receive = scope.post_receive(received.as_slice_mut()).unwrap();
        let failed = read.wait().unwrap_err();
        assert!(matches!(failed.error, Error::TimedOut { .. }), "{failed:?}");
        let mut memory = failed.memory;
        memory.fill(9);
        assert_eq!(scope.in_flight(), 0, "nothing is left in flight");
        for error in [
            write.wait().map(drop).map_err(Error::from),
            receive.wait().map(drop).map_err(Error::from),
        ] {
            let error = error.unwrap_err();
            assert!(
                matches!(&error, Error::Work(error) if error.status == WorkStatus::Flushed)
                    || matches!(error, Error::TimedOut { .. }),
                "{error:?}"
            );
        }
        // A request that is posted to the failed queue pair does not outlive the scope either.
        match scope.post(SendRequest::write(&source, nowhere())) {
            Ok(write) => drop(write.wait().unwrap_err()),
            Err(PostError { error, .. }) => assert!(error.errno().is_some(), "{error}"),
        }
    });
    outcome.unwrap();
    assert_eq!(target[..], [9; 8]);
}

#[test]
fn a_receive_without_a_message_times_out() {
    let pair = Pair::new();
    let mut received = pair.domain.allocate(8).unwrap();
    let outcome = pair.left.scope(SHORT, |scope| {
        let receive = scope.post_receive(received.as_slice_mut()).unwrap();
        assert!(!receive.is_over().unwrap());
    });
    assert!(
        matches!(outcome, Err(Error::TimedOut { .. })),
        "{outcome:?}"
    );
    received.fill(1);
    assert_eq!(received[..], [1; 8]);
}

#[test]
fn a_panic_in_a_scope_waits_for_what_is_in_flight() {
    let pair = Pair::new();
    let there = exposed(&pair.domain, 1 << 20, AccessFlags::REMOTE);
    there.write_at(0, &bytes(1 << 20, 2)).unwrap();
    let mut target = pair.domain.allocate(1 << 20).unwrap();
    let caught = panic::catch_unwind(AssertUnwindSafe(|| {
        pair.left.scope(LONG, |scope| {
            let read = SendRequest::read(target.as_slice_mut(), there.remote());
            let _reading = scope.post(read).unwrap();
            panic::resume_unwind(Box::new("the body's own"));
        })
    }));
    let payload = caught.expect_err("the panic goes on");
    assert_eq!(payload.downcast_ref(), Some(&"the body's own"));
    assert_eq!(target[..], bytes(1 << 20, 2), "the read has ended");
    pair.check();
}

#[test]
fn a_panic_with_a_peer_that_never_answers_goes_on_too() {
    let (domain, queue_pair) = lonely();
    let source = pattern(&domain, 8, 1);
    let caught = panic::catch_unwind(AssertUnwindSafe(|| {
        hopeless(&queue_pair, &source, |_| {
            panic::resume_unwind(Box::new("the body's own"))
        })
    }));
    let payload = caught.map(drop).expect_err("the panic goes on");
    assert_eq!(payload.downcast_ref(), Some(&"the body's own"));
    drop(source);
}

#[test]
fn a_scope_with_nothing_posted_returns_what_its_body_does() {
    let pair = Pair::new();
    assert_eq!(pair.left.scope(SHORT, |_| 5), Ok(5));
    assert_eq!(pair.left.scope(SHORT, |scope| scope.wait_all()), Ok(Ok(())));
    pair.check();
}

#[test]
fn a_handle_that_is_kept_is_not_in_the_way_of_others() {
    let pair = Pair::with(
        |builder| builder.send_requests(2).receive_requests(1),
        &ConnectOptions::default(),
    );
    let there = exposed(&pair.domain, 8, AccessFlags::REMOTE);
    let source = pattern(&pair.domain, 8, 3);
    let write = || SendRequest::write(&source, there.remote());
    let end = || {
        pair.left.scope(LONG, |scope| {
            let kept = scope.post(write()).unwrap();
            for _ in 0..100 {
                scope.post(write()).unwrap().wait().unwrap();
                let (one, other) = (scope.post(write()).unwrap(), scope.post(write()));
                drop(other);
                one.wait().unwrap();
                scope.wait_all().unwrap();
            }
            assert!(kept.is_over().unwrap());
            kept.wait().unwrap();
        })
    };
    end().unwrap();
    pair.check();
}

/// Checks that a thread that requests a notification, polls once more and sleeps gets all
/// completions of its requests while a scope polls the same completion queue.
#[test]
fn a_sleeping_thread_misses_no_completion_that_a_scope_polled() {
    let context = context();
    let channel = context.completion_channel().unwrap();
    let queue = context.completion_queue(256).channel(&channel);
    let queue = queue.build().unwrap();
    let domain = context.protection_domain().unwrap();
    let configure = |builder: rdma_core::QueuePairBuilder| builder.send_completions(&queue);
    let pair = Pair::in_domain(&domain, configure, &ConnectOptions::default());
    let there = exposed(&pair.domain, 16, AccessFlags::REMOTE);
    let source = pattern(&pair.domain, 8, 7);
    let over = AtomicBool::new(false);
    thread::scope(|threads| {
        threads.spawn(|| {
            let place = there.remote().slice(8..16).unwrap();
            let outcome = pair.left.scope(LONG, |scope| {
                while !over.load(Ordering::Relaxed) {
                    let write = SendRequest::write(&source, place);
                    scope.post(write).unwrap().wait().unwrap();
                }
            });
            outcome.unwrap();
        });
        let slept = panic::catch_unwind(AssertUnwindSafe(|| {
            let mut sends = pair.right.send_queue();
            let mut room = [WorkCompletion::default()];
            for seed in 0..200 {
                let memory = pattern(&pair.domain, 8, seed);
                sends
                    .post(SendRequest::write(memory, there.remote()))
                    .unwrap();
                loop {
                    queue.request_notification().unwrap();
                    let Some(completion) = queue.poll(&mut room).unwrap().first() else {
                        assert!(channel.wait(Some(LONG)).unwrap(), "it sleeps for ever");
                        channel.drain(|_| {}).unwrap();
                        continue;
                    };
                    if sends.complete(completion).next().is_some() {
                        completion.result().unwrap();
                        break;
                    }
                    // The completion belongs to a request of the scope.
                    queue.put_back(&[*completion]);
                    thread::yield_now();
                }
            }
        }));
        over.store(true, Ordering::Relaxed);
        if let Err(payload) = slept {
            panic::resume_unwind(payload);
        }
    });
}
