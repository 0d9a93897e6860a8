//! Leaks of other RDMA libraries: descriptors, objects of the device, and pinned memory. The tests
//! check that this crate has none of them.

mod common;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

use common::held::unchanged_by;
use common::{Pair, completion, context, exposed, nobody, pattern, succeed};
use rdma_core::completion::CompletionFields;
use rdma_core::memory::SharedBuffer;
use rdma_core::{AccessFlags, Buffer, RemoteMemory, SendRequest, WorkCompletion};

const ROUNDS: usize = 30;

const NOWHERE: RemoteMemory = RemoteMemory {
    address: 0,
    len: 0,
    rkey: 0,
};

/// Uses a context, and drops it. A library could keep the context open for ever.
fn opened_and_dropped() {
    let domain = context().protection_domain().unwrap();
    drop(domain.allocate(4096).unwrap());
    Pair::new().check();
}

/// Drops a queue with an event that was never read, for which a driver could keep an object.
fn announced_and_not_taken() {
    let context = context();
    let channel = context.completion_channel().unwrap();
    let queue = context
        .completion_queue(64)
        .channel(&channel)
        .build()
        .unwrap();
    let domain = context.protection_domain().unwrap();
    let on_it = |builder: rdma_core::QueuePairBuilder| builder.send_completions(&queue);
    let pair = Pair::in_domain(&domain, on_it, &Default::default());
    let mut sends = pair.left.send_queue();
    for taken in [true, true, false] {
        queue.request_notification().unwrap();
        sends.post(SendRequest::write((), NOWHERE)).unwrap();
        assert!(channel.wait(Some(Duration::from_secs(60))).unwrap());
        if taken {
            assert_eq!(channel.drain(|_| ()), Ok(1));
        }
        succeed(&queue);
    }
}

/// Drops queues after refused requests, whose slots a library could keep.
fn refused_requests() {
    let pair = Pair::with(|builder| builder.send_requests(1), &Default::default());
    let mut sends = pair.left.send_queue();
    for _ in 0..3 {
        let many = [(); 40].map(|()| pair.domain.allocate(8).unwrap());
        assert!(sends.post(SendRequest::send(many)).is_err());
    }
    let concurrent = pair.left.concurrent_send_queue::<Buffer>();
    drop(concurrent.reserve().unwrap());
}

/// Drops queues with requests in flight, whose memory a library could keep.
fn queues_dropped_in_flight() {
    let domain = context().protection_domain().unwrap();
    let prepared = domain.queue_pair().build().unwrap();
    let remote = nobody(prepared.endpoint());
    let pair = prepared.connect(&remote, &Default::default()).unwrap();
    let mut shared = SharedBuffer::new(domain.allocate(4096).unwrap());
    let mut receives = pair.receive_queue();
    receives.post(shared.try_write(..).unwrap()).unwrap();
    let mut sends = pair.send_queue();
    sends
        .post(SendRequest::send(pattern(&domain, 4096, 1)))
        .unwrap();
    drop((sends, receives));
    drop(pair);
    assert!(shared.is_unclaimed());
}

/// Panics while requests are in flight.
fn panic_in_flight() {
    let pair = Pair::new();
    let unwound = catch_unwind(AssertUnwindSafe(|| {
        let mut receives = pair.left.receive_queue();
        receives.post(pair.domain.allocate(64).unwrap()).unwrap();
        let target = exposed(&pair.domain, 64, AccessFlags::REMOTE);
        let mut sends = pair.left.send_queue();
        let source = pattern(&pair.domain, 64, 1);
        sends
            .post(SendRequest::write(source, target.remote()))
            .unwrap();
        // Like a panic, but without a message.
        std::panic::resume_unwind(Box::new(()));
    }));
    assert!(unwound.is_err());
}

/// Panics within a poll, which could leave a lock behind, and drops a queue pair within a poll.
fn polls_of_an_extended_queue() {
    let context = context();
    let queue = context.completion_queue(64);
    let queue = queue.extended(CompletionFields::STANDARD).build().unwrap();
    let domain = context.protection_domain().unwrap();
    let on_it = |builder: rdma_core::QueuePairBuilder| builder.send_completions(queue.queue());
    let pair = Pair::in_domain(&domain, on_it, &Default::default());
    pair.left
        .send_queue()
        .post(SendRequest::write((), NOWHERE))
        .unwrap();
    let unwound = catch_unwind(AssertUnwindSafe(|| {
        queue.poll(|completions| {
            let _ = completions.next();
            std::panic::resume_unwind(Box::new(()));
        })
    }));
    assert!(unwound.is_err());
    queue.poll(|_| drop(pair)).unwrap();
}

/// Drops a queue with completions that were put back and never polled again.
fn put_back_and_left() {
    let pair = Pair::new();
    let mut sends = pair.left.send_queue();
    sends.post(SendRequest::write((), NOWHERE)).unwrap();
    let sent = completion(pair.left.send_completions());
    pair.left
        .send_completions()
        .put_back(&[sent, WorkCompletion::default()]);
}

/// Drops exposed memory without revoking it, while a peer knows its key.
fn grants_dropped() {
    let pair = Pair::new();
    let target = exposed(&pair.domain, 4096, AccessFlags::REMOTE);
    let remote = target.remote();
    drop(target);
    let mut sends = pair.left.send_queue();
    sends
        .post(SendRequest::write(pattern(&pair.domain, 64, 1), remote))
        .unwrap();
    assert!(completion(pair.left.send_completions()).result().is_err());
}

#[test]
fn nothing_leaks_in_cases_in_which_other_libraries_leak() {
    let device = context().name().to_owned();
    // At its first use, a device may open descriptors that it keeps for ever.
    opened_and_dropped();
    let kinds: [(&str, fn()); 8] = [
        ("contexts", opened_and_dropped),
        ("announcements", announced_and_not_taken),
        ("refused requests", refused_requests),
        ("queues dropped in flight", queues_dropped_in_flight),
        ("panics in flight", panic_in_flight),
        ("polls of an extended queue", polls_of_an_extended_queue),
        ("completions put back", put_back_and_left),
        ("grants dropped", grants_dropped),
    ];
    unchanged_by(&device, ROUNDS, &kinds);
}
