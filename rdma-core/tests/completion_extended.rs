//! Extended completion queues: reading single fields, and the limit of one poll at a time.

mod common;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, SystemTime};

use common::{
    Pair, bytes, context, eventually, exposed, nobody, pattern, succeed, until_failed,
    where_supported,
};
use rdma_core::completion::{
    CompletionFields, ExtendedCompletion, ExtendedCompletionQueue, StatusClass,
};
use rdma_core::memory::{LeaseState, SharedBuffer, WindowType};
use rdma_core::{
    AccessFlags, ConnectOptions, Context, Error, QueuePairState, Refused, RemoteMemory,
    SendRequest, WorkCompletion, WorkOpcode, WorkStatus,
};

type Fields = CompletionFields;

fn extended(context: &Context, fields: Fields) -> ExtendedCompletionQueue {
    let queue = context
        .completion_queue(512)
        .extended(fields)
        .build()
        .unwrap();
    assert_eq!(queue.fields(), fields);
    queue
}

/// Returns a pair whose left side uses `queue` for the completions of sends and receives.
fn pair_on(context: &Context, queue: &ExtendedCompletionQueue) -> Pair {
    let domain = context.protection_domain().unwrap();
    let left = domain.queue_pair().send_completions(queue.queue());
    let left = left.receive_completions(queue.queue()).build().unwrap();
    let right = domain.queue_pair().build().unwrap();
    let (to_left, to_right) = (left.endpoint(), right.endpoint());
    let options = ConnectOptions::default();
    Pair {
        domain,
        left: left.connect(&to_right, &options).unwrap(),
        right: right.connect(&to_left, &options).unwrap(),
    }
}

fn pair(fields: Fields) -> (Pair, ExtendedCompletionQueue) {
    let context = context();
    let queue = extended(&context, fields);
    (pair_on(&context, &queue), queue)
}

/// Returns the result of `read` for the next completion.
#[track_caller]
fn next<R>(
    queue: &ExtendedCompletionQueue,
    mut read: impl FnMut(&ExtendedCompletion<'_>) -> R,
) -> R {
    eventually("a completion", || {
        let found = queue.poll(|completions| completions.next().map(|it| read(&it)));
        found.unwrap()
    })
}

/// Returns a write of zero bytes, which completes with success.
fn nothing() -> SendRequest<()> {
    let nowhere = RemoteMemory {
        address: 0,
        len: 0,
        rkey: 0,
    };
    SendRequest::write((), nowhere)
}

#[test]
fn requested_fields_are_present() {
    let (pair, queue) = pair(Fields::STANDARD);
    let mut receives = pair.left.receive_queue();
    receives.post(pair.domain.allocate(64).unwrap()).unwrap();
    let message = pattern(&pair.domain, 33, 1);
    let mut sends = pair.right.send_queue();
    sends
        .post(SendRequest::send_with_immediate(message, 0x0506_0708))
        .unwrap();
    let completion = next(&queue, |completion| {
        assert_eq!(completion.status(), WorkStatus::Success);
        assert_eq!(completion.result(), Ok(()));
        assert_eq!(completion.opcode(), WorkOpcode::Receive);
        assert_eq!(completion.len(), Some(33));
        assert_eq!(completion.immediate(), Some(0x0506_0708));
        assert_eq!(completion.invalidated_key(), None);
        assert_eq!(completion.queue_pair(), Some(pair.left.number()));
        assert!(completion.source_queue_pair().is_some());
        assert!(completion.service_level().is_some());
        assert!(completion.source_lid().is_some() && completion.path_bits().is_some());
        assert!(!completion.has_valid_checksum());
        println!("{completion:?}");
        completion.completion()
    });
    assert_eq!(completion.len(), 33);
    assert_eq!(completion.opcode(), WorkOpcode::Receive);
    assert_eq!(completion.immediate(), Some(0x0506_0708));
    assert_eq!(completion.queue_pair(), pair.left.number());
    let received = receives.complete(&completion).expect("the memory");
    assert_eq!(received[..33], bytes(33, 1));
}

#[test]
fn other_fields_are_absent() {
    let (pair, queue) = pair(Fields::empty());
    let mut receives = pair.left.receive_queue();
    receives.post(pair.domain.allocate(8).unwrap()).unwrap();
    let message = pattern(&pair.domain, 8, 1);
    let mut sends = pair.right.send_queue();
    sends
        .post(SendRequest::send_with_immediate(message, 7))
        .unwrap();
    let completion = next(&queue, |completion| {
        assert_eq!(completion.opcode(), WorkOpcode::Receive);
        assert_eq!(completion.len(), None);
        assert_eq!(completion.immediate(), None);
        assert_eq!(completion.queue_pair(), None);
        assert_eq!(completion.source_queue_pair(), None);
        assert_eq!(completion.source_lid(), None);
        assert_eq!(completion.service_level(), None);
        assert_eq!(completion.path_bits(), None);
        assert_eq!(completion.timestamp(), None);
        assert_eq!(completion.wall_clock(), None);
        assert_eq!(completion.vlan(), None);
        assert_eq!(completion.flow_tag(), None);
        assert_eq!(completion.tag(), None);
        completion.completion()
    });
    assert_eq!((completion.len(), completion.queue_pair()), (0, 0));
    assert_eq!(completion.immediate(), None, "not 0, which a peer may send");
    // The queue needs only the id and the status to return the memory.
    assert!(completion.result().is_ok());
    assert_eq!(receives.complete(&completion).unwrap()[..], bytes(8, 1));
}

/// A window can have the key 0, so an absent key must not be reported as 0.
#[test]
fn a_key_without_its_field_is_absent_and_ends_no_lease() {
    for fields in [Fields::empty(), Fields::STANDARD - Fields::IMMEDIATE] {
        let (pair, queue) = pair(fields);
        let Some(window) = where_supported(pair.domain.memory_window(WindowType::Two)) else {
            return;
        };
        let memory = pair.domain.registration().access(AccessFlags::WINDOW_BIND);
        let lease = memory.allocate(64).unwrap();
        let lease = lease.lease(window, AccessFlags::REMOTE).unwrap();
        let mut bindings = pair.left.send_queue::<()>();
        bindings.post_inline(lease.bind().unwrap()).unwrap();
        let bound = next(&queue, |completion| completion.completion());
        assert!(bound.result().is_ok());
        assert_eq!(bindings.complete(&bound).count(), 0);

        let mut receives = pair.left.receive_queue();
        receives.post(pair.domain.allocate(8).unwrap()).unwrap();
        let key = lease.remote().expect("it is bound").rkey;
        let message = SendRequest::send_with_invalidate(pattern(&pair.domain, 8, 1), key);
        pair.right.send_queue().post(message).unwrap();
        let received = next(&queue, |completion| {
            assert_eq!(completion.invalidated_key(), None);
            completion.completion()
        });
        assert_eq!(received.invalidated_key(), None);
        assert!(receives.complete(&received).is_some());
        assert_eq!(
            lease.state(),
            LeaseState::Bound,
            "nobody was told otherwise"
        );
        lease.revoke().unwrap();
    }
}

#[test]
fn every_completion_of_a_batch_comes_once_and_in_order() {
    let (pair, queue) = pair(Fields::STANDARD);
    let mut sends = pair.left.send_queue();
    // Together more completions than the queue can hold; each poll takes all that are available.
    for round in 0..100 {
        let count = 1 + round % 20;
        (0..count).for_each(|_| sends.post(nothing()).unwrap());
        let mut retired = 0;
        eventually("all completions", || {
            queue
                .poll(|completions| {
                    while let Some(completion) = completions.next() {
                        completion.result().unwrap();
                        let count = sends.complete(&completion.completion()).count();
                        assert_eq!(count, 1, "after {retired} of round {round}");
                        retired += count;
                    }
                    assert!(completions.next().is_none(), "none is none");
                })
                .unwrap();
            (retired == count).then_some(())
        });
    }
    assert_eq!(sends.in_flight(), 0);
}

#[test]
fn what_a_poll_does_not_take_stays() {
    let (pair, queue) = pair(Fields::STANDARD);
    let mut sends = pair.left.send_queue();
    for _ in 0..3 {
        sends.post(nothing()).unwrap();
    }
    for taken in 1..=3 {
        queue.poll(|_| ()).unwrap();
        let completion = next(&queue, |it| it.completion());
        assert_eq!(sends.complete(&completion).count(), 1);
        assert_eq!(sends.in_flight(), 3 - taken);
    }
}

#[test]
fn a_failed_request_has_status_and_vendor_error() {
    let (pair, queue) = pair(Fields::QUEUE_PAIR);
    let exposed = exposed(&pair.domain, 8, AccessFlags::REMOTE_READ);
    let mut sends = pair.left.send_queue();
    let refused = SendRequest::write(pattern(&pair.domain, 8, 1), exposed.remote());
    sends.post(refused).unwrap();
    sends
        .post(SendRequest::send(pattern(&pair.domain, 8, 2)))
        .unwrap();
    let first = next(&queue, |completion| {
        let error = completion.result().unwrap_err();
        assert_eq!(error.status, WorkStatus::RemoteAccess);
        assert_eq!(error.queue_pair, pair.left.number());
        assert_eq!(error.vendor, completion.vendor_error());
        assert_eq!(error.status.class(), StatusClass::Remote);
        completion.completion()
    });
    assert_eq!(first.status(), WorkStatus::RemoteAccess);
    assert_eq!(first.result().unwrap_err().queue_pair, pair.left.number());
    assert_eq!(sends.complete(&first).count(), 1);
    let second = next(&queue, |it| it.completion());
    assert_eq!(second.status(), WorkStatus::Flushed);
    assert_eq!(sends.complete(&second).count(), 1);
}

#[test]
fn timestamps_rise_where_the_device_has_a_clock() {
    let context = context();
    let fields = Fields::TIMESTAMP | Fields::WALL_CLOCK;
    let made = context.completion_queue(64).extended(fields).build();
    let Some(queue) = where_supported(made) else {
        return;
    };
    let pair = pair_on(&context, &queue);
    let mut sends = pair.left.send_queue();
    let (mut last, begin) = (0, SystemTime::now());
    for _ in 0..5 {
        sends.post(nothing()).unwrap();
        let (tick, at) = next(&queue, |it| (it.timestamp(), it.wall_clock()));
        let (tick, at) = (tick.unwrap(), at.unwrap());
        assert!(tick > last, "{tick} came after {last}");
        last = tick;
        // The clocks of the device and of the system may differ a little.
        let slack = Duration::from_secs(1);
        assert!(
            at > begin - slack && at < SystemTime::now() + slack,
            "{at:?}"
        );
    }
}

#[test]
fn a_field_that_the_device_does_not_have_is_refused() {
    let context = context();
    for field in [Fields::VLAN, Fields::FLOW_TAG, Fields::TAG_MATCHING] {
        match context.completion_queue(16).extended(field).build() {
            Ok(queue) => assert_eq!(queue.fields(), field),
            Err(error) => {
                assert!(error.is_unsupported(), "{error:?}");
                assert!(error.to_string().contains(&field.to_string()), "{error}");
            }
        }
    }
    let unknown = Fields::from_bits_retain(1 << 60);
    let error = context.completion_queue(16).extended(unknown).build();
    assert!(error.unwrap_err().is_unsupported());
}

#[test]
fn a_poll_within_a_poll_is_refused_and_does_not_hang() {
    let (pair, queue) = pair(Fields::STANDARD);
    pair.left.send_queue().post(nothing()).unwrap();
    let in_use = |error: Error| assert!(matches!(error, Error::InUse { .. }), "{error:?}");
    next(&queue, |_| {
        in_use(queue.poll(|_| ()).unwrap_err());
        in_use(queue.clone().poll(|_| ()).unwrap_err());
        let mut room = [WorkCompletion::default()];
        in_use(queue.queue().poll(&mut room).unwrap_err());
        in_use(queue.queue().resize(100).unwrap_err());
        // Another queue can be polled during the poll.
        let other = extended(&context(), Fields::STANDARD);
        assert!(
            other
                .poll(|completions| completions.next().is_none())
                .unwrap()
        );
    });
    assert!(
        queue
            .poll(|completions| completions.next().is_none())
            .unwrap()
    );
}

#[test]
fn a_poll_of_another_thread_is_refused_meanwhile() {
    let (_pair, queue) = pair(Fields::STANDARD);
    let (begun, wait) = mpsc::channel();
    let (done, end) = mpsc::channel::<()>();
    thread::scope(|scope| {
        let polled = &queue;
        scope.spawn(move || {
            polled
                .poll(|_| {
                    begun.send(()).unwrap();
                    let _ = end.recv();
                })
                .unwrap();
        });
        wait.recv().unwrap();
        assert!(matches!(queue.poll(|_| ()), Err(Error::InUse { .. })));
        drop(done);
    });
    queue.poll(|_| ()).unwrap();
}

#[test]
fn threads_that_poll_in_the_plain_way_wait_for_each_other() {
    const EACH: usize = 500;
    let (pair, queue) = pair(Fields::STANDARD);
    let (sends, taken) = (pair.left.concurrent_send_queue(), AtomicUsize::new(0));
    thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                eventually("all completions", || {
                    let mut room = [WorkCompletion::default(); 4];
                    for completion in queue.queue().poll(&mut room).unwrap() {
                        let (slot, ()) = sends.complete(completion).next().unwrap();
                        sends.release(slot);
                        taken.fetch_add(1, Ordering::Relaxed);
                    }
                    (taken.load(Ordering::Relaxed) == EACH).then_some(())
                });
            });
        }
        for _ in 0..EACH {
            let slot = eventually("a free slot", || sends.reserve());
            sends.post(slot, nothing()).unwrap();
        }
    });
}

#[test]
fn a_poll_that_panics_has_ended() {
    let (pair, queue) = pair(Fields::STANDARD);
    pair.left.send_queue().post(nothing()).unwrap();
    pair.left.send_queue().post(nothing()).unwrap();
    let panicked = catch_unwind(AssertUnwindSafe(|| {
        next(&queue, |_| panic!("within a poll"));
    }));
    assert!(panicked.is_err());
    assert_eq!(next(&queue, |it| it.status()), WorkStatus::Success);
}

#[test]
fn a_plain_poll_needs_the_standard_fields() {
    let (pair, queue) = pair(Fields::STANDARD);
    let mut sends = pair.left.send_queue();
    sends.post(nothing()).unwrap();
    let completion = succeed(queue.queue());
    assert_eq!(completion.opcode(), WorkOpcode::Write);
    assert_eq!(sends.complete(&completion).count(), 1);

    let poor = extended(&context(), Fields::STANDARD - Fields::LEN);
    let error = poor
        .queue()
        .poll(&mut [WorkCompletion::default()])
        .unwrap_err();
    assert!(error.to_string().contains("LEN"), "{error}");
}

#[test]
fn what_is_put_back_comes_before_what_the_device_has() {
    let (pair, queue) = pair(Fields::STANDARD);
    let mut sends = pair.left.send_queue();
    (0..3).for_each(|_| sends.post(nothing()).unwrap());
    let taken: Vec<_> = (0..3).map(|_| next(&queue, |it| it.completion())).collect();
    queue.queue().put_back(&taken);
    sends.post(nothing()).unwrap();
    // One of the two remaining completions is left.
    assert_eq!(next(&queue, |it| it.id()), taken[0].id());
    let second = queue
        .queue()
        .poll(&mut [WorkCompletion::default()])
        .unwrap()[0];
    assert_eq!(second.id(), taken[1].id());
    let third = next(&queue, |completion| {
        assert_eq!(completion.queue_pair(), Some(pair.left.number()));
        assert_eq!(completion.timestamp(), None);
        completion.id()
    });
    assert_eq!(third, taken[2].id());
    let newest = next(&queue, |it| it.completion());
    assert!(!taken.iter().any(|it| it.id() == newest.id()));
    assert_eq!(sends.complete(&newest).count(), 4);
}

#[test]
fn a_queue_pair_that_is_dropped_within_a_poll_is_destroyed_after_it() {
    let context = context();
    let queue = extended(&context, Fields::STANDARD);
    let domain = context.protection_domain().unwrap();
    let prepared = domain
        .queue_pair()
        .send_completions(queue.queue())
        .receive_completions(queue.queue())
        .build()
        .unwrap();
    let remote = nobody(prepared.endpoint());
    let pair = prepared
        .connect(&remote, &ConnectOptions::default())
        .unwrap();
    let mut receives = pair.receive_queue();
    let mut shared = SharedBuffer::new(domain.allocate(8).unwrap());
    let claim = shared.try_write(..).unwrap();
    receives.post(claim).unwrap();
    queue
        .poll(|completions| {
            assert!(completions.next().is_none());
            drop((pair, receives));
            assert!(!shared.is_unclaimed(), "the device has it");
        })
        .unwrap();
    assert!(shared.is_unclaimed(), "the device has it no more");
}

#[test]
fn a_queue_pair_is_not_reset_within_a_poll() {
    let (pair, queue) = pair(Fields::STANDARD);
    let left = queue
        .poll(|_| {
            let Refused { value: left, error } = pair.left.reset().unwrap_err();
            assert!(matches!(error, Error::InUse { .. }), "{error:?}");
            left
        })
        .unwrap();
    assert!(left.reset().is_ok());
}

#[test]
fn a_scope_works_beside_polls_and_not_within_one() {
    const LONG: Duration = Duration::from_secs(60);
    let (pair, queue) = pair(Fields::STANDARD);
    let mut sends = pair.left.send_queue();
    let in_use = |error: Error| assert!(matches!(error, Error::InUse { .. }), "{error:?}");
    let never = queue.poll(|_| pair.left.scope(LONG, |_| panic!("it is called")));
    in_use(never.unwrap().unwrap_err());
    sends.post(nothing()).unwrap();
    pair.left
        .scope(LONG, |scope| {
            let first = scope.post(nothing()).unwrap();
            let second = scope.post(nothing()).unwrap();
            queue
                .poll(|_| in_use(scope.wait_all().unwrap_err()))
                .unwrap();
            let waited = catch_unwind(AssertUnwindSafe(|| queue.poll(|_| first.wait().is_ok())));
            assert!(waited.is_err(), "nothing completes before the poll ends");
            assert!(second.wait().is_ok());
        })
        .unwrap();
    // Completions of other requests that the scope has polled are still in the queue.
    let other = next(&queue, |it| it.completion());
    assert_eq!(sends.complete(&other).count(), 1);
    assert_eq!(pair.left.state(), Ok(QueuePairState::ReadyToSend));
}

#[test]
fn a_failed_queue_pair_flushes_to_an_extended_queue() {
    let (pair, queue) = pair(Fields::QUEUE_PAIR);
    let mut receives = pair.left.receive_queue();
    for _ in 0..3 {
        receives.post(pair.domain.allocate(8).unwrap()).unwrap();
    }
    let out = SendRequest::read(
        pair.domain.allocate(8).unwrap(),
        RemoteMemory {
            address: 0,
            len: 8,
            rkey: 0,
        },
    );
    pair.left.send_queue().post(out).unwrap();
    until_failed(&pair.left);
    let mut returned = 0;
    eventually("three receives", || {
        let polled = queue.poll(|completions| {
            while let Some(completion) = completions.next() {
                assert!(completion.result().is_err());
                returned += usize::from(receives.complete(&completion.completion()).is_some());
            }
        });
        polled.unwrap();
        (returned == 3).then_some(())
    });
}

#[test]
fn an_extended_queue_announces_on_a_channel() {
    let context = context();
    let channel = context.completion_channel().unwrap();
    let builder = context.completion_queue(16).channel(&channel);
    let queue = builder.extended(Fields::STANDARD).build().unwrap();
    let pair = pair_on(&context, &queue);
    queue.queue().request_notification().unwrap();
    pair.left.send_queue().post(nothing()).unwrap();
    assert!(channel.wait(Some(Duration::from_secs(60))).unwrap());
    let mut ids = Vec::new();
    channel.drain(|id| ids.push(id)).unwrap();
    assert_eq!(ids, [queue.queue().id()]);
    assert_eq!(next(&queue, |it| it.status()), WorkStatus::Success);
}

#[test]
fn promises_and_a_domain_are_taken_where_the_device_has_them() {
    let context = context();
    let builder = || context.completion_queue(64).extended(Fields::STANDARD);
    // SAFETY: only this thread uses the queue, and one request does not fill its 64 entries.
    let builders = unsafe { [builder().single_threaded(), builder().ignore_overrun()] };
    let domain = context.protection_domain().unwrap();
    let parent = where_supported(domain.parent());
    let in_parent = parent.map(|parent| builder().parent_domain(&parent));
    for builder in builders.into_iter().chain(in_parent) {
        if let Some(queue) = where_supported(builder.build()) {
            let pair = pair_on(&context, &queue);
            pair.left.send_queue().post(nothing()).unwrap();
            assert_eq!(next(&queue, |it| it.status()), WorkStatus::Success);
        }
    }
    let elsewhere = common::context().protection_domain().unwrap();
    for wrong in [domain, elsewhere] {
        let error = builder().parent_domain(&wrong).build().unwrap_err();
        assert!(matches!(error, Error::InvalidArgument { .. }), "{error:?}");
    }
}

#[test]
fn no_entries_are_no_queue() {
    let builder = context().completion_queue(0).extended(Fields::STANDARD);
    assert!(matches!(
        builder.build(),
        Err(Error::InvalidArgument { .. })
    ));
}
