//! Polls one completion queue for many queue pairs, and finds the queues of each completion by a
//! map.

mod common;

use common::{Pair, bytes, context, eventually, pattern};
use rdma_core::{
    Buffer, ConnectOptions, QueuePairMap, ReceiveQueue, SendQueue, SendRequest, WorkCompletion,
};

/// The two queues of a queue pair, and the number of messages that it has received.
struct Queues {
    sends: SendQueue<Buffer>,
    receives: ReceiveQueue<Buffer>,
    received: usize,
}

#[test]
fn completions_of_many_queue_pairs_find_their_queues() {
    const PAIRS: u8 = 12;
    let context = context();
    let domain = context.protection_domain().unwrap();
    let completions = context.completion_queue(256).build().unwrap();
    let on_it = |builder: rdma_core::QueuePairBuilder| {
        let builder = builder.send_completions(&completions);
        builder.receive_completions(&completions)
    };
    let pairs: Vec<Pair> = (0..PAIRS)
        .map(|_| Pair::in_domain(&domain, on_it, &ConnectOptions::default()))
        .collect();
    let mut map = QueuePairMap::new();
    for (seed, pair) in (0..).zip(&pairs) {
        for (end, expected) in [(&pair.left, 1), (&pair.right, 0)] {
            let (mut sends, mut receives) = (end.send_queue(), end.receive_queue());
            receives.post(domain.allocate(8).unwrap()).unwrap();
            if expected == 1 {
                let message = SendRequest::send(pattern(&domain, 8, seed));
                sends.post(message).unwrap();
            }
            let queues = Queues {
                sends,
                receives,
                received: 0,
            };
            assert!(map.insert(end.number(), (seed, queues)).is_none());
        }
    }
    assert_eq!(map.len(), 2 * usize::from(PAIRS));
    let (mut sent, mut room) = (0, [WorkCompletion::default(); 8]);
    eventually("all completions", || {
        for completion in completions.poll(&mut room).unwrap() {
            completion.result().unwrap();
            let (seed, queues) = map.get_mut(completion.queue_pair()).unwrap();
            // A completion belongs to one of the two queues.
            match queues.receives.complete(completion) {
                Some(message) => {
                    assert_eq!(message[..], bytes(8, *seed));
                    queues.received += 1;
                }
                None => sent += queues.sends.complete(completion).count(),
            }
        }
        let received: usize = map.values().map(|(_, queues)| queues.received).sum();
        (sent == PAIRS.into() && received == PAIRS.into()).then_some(())
    });
    for pair in &pairs {
        assert_eq!(map.remove(pair.right.number()).unwrap().1.received, 1);
        assert!(map.get(pair.right.number()).is_none());
        assert_eq!(map.get(pair.left.number()).unwrap().1.received, 0);
    }
}

/// Checks a queue pair number that the device reuses: passes a completion of the earlier queue pair
/// to the later one.
#[test]
fn a_completion_of_an_earlier_queue_pair_ends_no_request_of_a_later_one() {
    let (earlier, later) = (Pair::new(), Pair::new());
    let mut map = QueuePairMap::new();
    let number = earlier.left.number();
    map.insert(number, earlier.left.send_queue());
    let send = |pair: &Pair, queue: &mut SendQueue<Buffer>| {
        let mut receives = pair.right.receive_queue();
        receives.post(pair.domain.allocate(8).unwrap()).unwrap();
        queue
            .post(SendRequest::send(pattern(&pair.domain, 8, 1)))
            .unwrap();
        common::receive(&pair.right, &mut receives);
        common::succeed(pair.left.send_completions())
    };
    let old = send(&earlier, map.get_mut(number).unwrap());
    // Simulates that the later queue pair has got the number of the earlier one.
    drop(map.insert(number, later.left.send_queue()));
    drop(earlier);
    let queue = map.get_mut(number).unwrap();
    let new = send(&later, queue);
    assert_eq!(queue.complete(&old).count(), 0, "it is of another request");
    assert_eq!(queue.in_flight(), 1);
    assert_eq!(queue.complete(&new).count(), 1);
}
