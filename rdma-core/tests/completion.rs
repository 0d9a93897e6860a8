//! Completion queues: polling, and completions that are put back.

mod common;

use common::{Pair, bytes, completion, eventually, pattern, receive, succeed};
use rdma_core::{ConnectOptions, Context, SendRequest, WorkCompletion};

/// A pair both of whose queue pairs complete to one queue.
fn one_queue(context: &Context) -> (Pair, rdma_core::CompletionQueue) {
    let queue = context.completion_queue(64).build().unwrap();
    let domain = context.protection_domain().unwrap();
    let configure = |builder: rdma_core::QueuePairBuilder| {
        builder.send_completions(&queue).receive_completions(&queue)
    };
    let pair = Pair::in_domain(&domain, configure, &ConnectOptions::default());
    (pair, queue)
}

#[test]
fn what_is_put_back_is_polled_first_and_in_order() {
    let (pair, queue) = one_queue(&common::context());
    let mut sends = pair.left.send_queue();
    let mut receives = pair.right.receive_queue();
    let mut taken = Vec::new();
    for seed in 0..4 {
        receives.post(pair.domain.allocate(8).unwrap()).unwrap();
        sends
            .post(SendRequest::send(pattern(&pair.domain, 8, seed)))
            .unwrap();
        taken.push(succeed(&queue));
        taken.push(succeed(&queue));
    }
    queue.put_back(&taken[..5]);
    queue.put_back(&[]);
    queue.put_back(&taken[5..]);
    // A newer one, which the device has.
    receives.post(pair.domain.allocate(8).unwrap()).unwrap();
    sends
        .post(SendRequest::send(pattern(&pair.domain, 8, 9)))
        .unwrap();
    let again: Vec<_> = taken.iter().map(|_| completion(&queue)).collect();
    let ids = |all: &[WorkCompletion]| all.iter().map(WorkCompletion::id).collect::<Vec<_>>();
    assert_eq!(ids(&again), ids(&taken));
    let mut messages = Vec::new();
    let newer = [completion(&queue), completion(&queue)];
    for completion in again.iter().chain(&newer) {
        completion.result().unwrap();
        drop(sends.complete(completion));
        messages.extend(receives.complete(completion));
    }
    assert_eq!(sends.in_flight(), 0);
    let expected: Vec<_> = [0, 1, 2, 3, 9].map(|seed| bytes(8, seed)).into();
    assert_eq!(
        messages.iter().map(|it| it.to_vec()).collect::<Vec<_>>(),
        expected
    );
}

#[test]
fn a_completion_that_is_put_back_twice_returns_its_memory_once() {
    let (pair, queue) = one_queue(&common::context());
    let mut sends = pair.left.send_queue();
    let mut receives = pair.right.receive_queue();
    receives.post(pair.domain.allocate(8).unwrap()).unwrap();
    sends
        .post(SendRequest::send(pattern(&pair.domain, 8, 1)))
        .unwrap();
    let both = [completion(&queue), completion(&queue)];
    queue.put_back(&both);
    queue.put_back(&both);
    let mut room = [WorkCompletion::default(); 9];
    let all = queue.poll(&mut room).unwrap();
    assert_eq!(all.len(), 4);
    let returned: Vec<_> = all.iter().filter_map(|it| receives.complete(it)).collect();
    assert_eq!(returned.len(), 1);
    let sent: usize = all.iter().map(|it| sends.complete(it).count()).sum();
    assert_eq!(sent, 1);
}

#[test]
fn room_for_none_takes_none() {
    let pair = Pair::new();
    let mut sends = pair.left.send_queue();
    let mut receives = pair.right.receive_queue();
    receives.post(pair.domain.allocate(8).unwrap()).unwrap();
    sends
        .post(SendRequest::send(pattern(&pair.domain, 8, 1)))
        .unwrap();
    let sent = completion(pair.left.send_completions());
    let queue = pair.left.send_completions();
    queue.put_back(&[sent]);
    assert!(queue.poll(&mut []).unwrap().is_empty());
    assert_eq!(succeed(queue).id(), sent.id());
    assert!(
        pair.right
            .receive_completions()
            .poll(&mut [])
            .unwrap()
            .is_empty()
    );
    receive(&pair.right, &mut receives);
    eventually("an empty queue", || {
        let mut room = [WorkCompletion::default()];
        queue.poll(&mut room).unwrap().is_empty().then_some(())
    });
}
