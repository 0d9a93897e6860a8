//! Receives shared by many queue pairs.

mod common;

use std::collections::HashMap;

use common::{bytes, carry_out, pattern, succeed};
use rdma_core::{
    Buffer, CompletionQueue, ConnectOptions, Error, ProtectionDomain, QueuePair, SendRequest,
    SharedReceiveQueue,
};

const CLIENTS: usize = 5;

/// Connected queue pairs: a client's, and the server's, which receives from `queue`.
fn served(
    domain: &ProtectionDomain,
    queue: &SharedReceiveQueue<Buffer>,
    completions: &CompletionQueue,
) -> (QueuePair, QueuePair) {
    let client = domain.queue_pair().build().unwrap();
    let server = domain.queue_pair().receive_completions(completions);
    let server = server.shared_receive_queue(queue).build().unwrap();
    let (to_client, to_server) = (client.endpoint(), server.endpoint());
    let options = ConnectOptions::default();
    (
        client.connect(&to_server, &options).unwrap(),
        server.connect(&to_client, &options).unwrap(),
    )
}

#[test]
fn messages_of_many_clients_come_from_one_shared_queue() {
    let domain = common::context().protection_domain().unwrap();
    let completions = domain.context().completion_queue(64).build().unwrap();
    let queue = domain.shared_receive_queue(8).build().unwrap();
    for _ in 0..8 {
        queue.post(domain.allocate(16).unwrap()).unwrap();
    }
    let pairs: Vec<_> = (0..CLIENTS)
        .map(|_| served(&domain, &queue, &completions))
        .collect();
    let mut counts = HashMap::new();
    for round in 0..6_u8 {
        for (number, (client, server)) in pairs.iter().enumerate() {
            let seed = round * 16 + number as u8;
            let mut sends = client.send_queue();
            carry_out(
                client,
                &mut sends,
                SendRequest::send(pattern(&domain, 16, seed)),
            );
            let completion = succeed(&completions);
            assert_eq!(completion.queue_pair(), server.number());
            let memory = queue.complete(&completion).expect("of this queue");
            assert!(queue.complete(&completion).is_none(), "once only");
            assert_eq!(memory[..], bytes(16, seed));
            *counts.entry(completion.queue_pair()).or_insert(0) += 1;
            queue.post(memory).unwrap();
        }
    }
    assert_eq!(counts.len(), CLIENTS);
    assert!(counts.values().all(|&count| count == 6));
}

#[test]
fn a_shared_queue_outlives_its_handles_in_its_queue_pairs() {
    let domain = common::context().protection_domain().unwrap();
    let completions = domain.context().completion_queue(64).build().unwrap();
    let queue = domain.shared_receive_queue(4).build().unwrap();
    let (client, _server) = served(&domain, &queue, &completions);
    queue.post(domain.allocate(8).unwrap()).unwrap();
    drop(queue);
    let mut sends = client.send_queue();
    carry_out(
        &client,
        &mut sends,
        SendRequest::send(pattern(&domain, 8, 1)),
    );
    assert_eq!(succeed(&completions).len(), 8, "its memory was still there");
}

#[test]
fn a_full_shared_queue_gives_the_memory_back() {
    let domain = common::context().protection_domain().unwrap();
    let queue: SharedReceiveQueue<Buffer> = domain.shared_receive_queue(2).build().unwrap();
    for _ in 0..2 {
        queue.post(domain.allocate(8).unwrap()).unwrap();
    }
    let refused = queue.post(pattern(&domain, 8, 3)).unwrap_err();
    assert!(matches!(
        refused.error,
        Error::QueueFull { capacity: 2, .. }
    ));
    assert_eq!(refused.memory[..], bytes(8, 3));
}

#[test]
fn its_attributes_are_what_was_asked_for_or_more() {
    let domain = common::context().protection_domain().unwrap();
    let queue = domain.shared_receive_queue(5).elements(2);
    let queue = queue.build::<Buffer>().unwrap();
    let attributes = queue.attributes().unwrap();
    assert!(
        attributes.requests >= 5 && attributes.elements >= 2,
        "{attributes:?}"
    );
    assert_eq!((attributes.limit, queue.number()), (0, None));
    assert_eq!(queue.capacity(), 5);
}
