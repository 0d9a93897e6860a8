//! Shared receive queues, which many queue pairs use.

mod common;

use std::collections::HashMap;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use common::{bytes, carry_out, completion, eventually, pattern, succeed};
use rdma_core::address::{AddressHandle, Counters, Destination, Flow, GroupMembership};
use rdma_core::receive::{SharedReceiveBatch, XrcDomain};
use rdma_core::{
    Buffer, CompletionQueue, ConnectOptions, Endpoint, Error, PreparedQueuePair, ProtectionDomain,
    QueuePair, SendRequest, SharedReceiveQueue, WorkCompletion,
};

const CLIENTS: usize = 5;

/// Returns connected queue pairs: the client's, and the server's, which takes its receives from
/// `queue`.
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

/// Exchanges endpoints with the peer over the stream, and connects.
fn connect(prepared: PreparedQueuePair, stream: &mut TcpStream) -> QueuePair {
    stream.write_all(&prepared.endpoint().to_bytes()).unwrap();
    let mut peer = [0; Endpoint::ENCODED_LEN];
    stream.read_exact(&mut peer).unwrap();
    let peer = Endpoint::from_bytes(&peer).unwrap();
    let connected = prepared.connect(&peer, &ConnectOptions::default()).unwrap();
    // Neither side sends before both are connected.
    stream.write_all(&[1]).unwrap();
    stream.read_exact(&mut [0]).unwrap();
    connected
}

/// Runs a client: connects, sends messages, and receives each of them back.
fn client(port: u16, number: u8) {
    let domain = common::context().protection_domain().unwrap();
    let mut stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
    let pair = connect(domain.queue_pair().build().unwrap(), &mut stream);
    let (mut sends, mut receives) = (pair.send_queue(), pair.receive_queue());
    for round in 0..ROUNDS {
        receives.post(domain.allocate(64).unwrap()).unwrap();
        let message = pattern(&domain, 64, number ^ round);
        sends.post(SendRequest::send(message)).unwrap();
        let mut back = None;
        for _ in 0..2 {
            let completion = succeed(pair.send_completions());
            if sends.complete(&completion).next().is_none() {
                back = receives.complete(&completion);
            }
        }
        assert_eq!(back.unwrap()[..], bytes(64, number ^ round));
    }
}

const ROUNDS: u8 = 20;

#[test]
fn one_listener_serves_many_clients_at_once() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let domain = common::context().protection_domain().unwrap();
    let completions = domain.context().completion_queue(256).build().unwrap();
    let queue: SharedReceiveQueue<Buffer> = domain.shared_receive_queue(32).build().unwrap();
    for _ in 0..32 {
        queue.post(domain.allocate(64).unwrap()).unwrap();
    }
    thread::scope(|scope| {
        for number in 0..CLIENTS {
            scope.spawn(move || client(port, 37 * number as u8));
        }
        let builder = domain
            .queue_pair()
            .send_completions(&completions)
            .shared_receive_queue(&queue);
        let mut served = HashMap::new();
        for _ in 0..CLIENTS {
            let mut stream = listener.accept().unwrap().0;
            let pair = connect(builder.clone().build().unwrap(), &mut stream);
            served.insert(pair.number(), (pair.send_queue(), 0, stream));
        }
        let mut room = [WorkCompletion::default(); 16];
        eventually("every message", || {
            for completion in completions.poll(&mut room).unwrap() {
                completion.result().unwrap();
                let (sends, echoed, _) = served.get_mut(&completion.queue_pair()).unwrap();
                if let Some(message) = queue.complete(completion) {
                    sends.post(SendRequest::send(message)).unwrap();
                } else {
                    let message = sends.complete(completion).next().unwrap();
                    queue.post(message).unwrap();
                    *echoed += 1;
                }
            }
            let done = served.values().all(|(_, echoed, _)| *echoed == ROUNDS);
            done.then_some(())
        });
    });
}

#[test]
fn receives_are_posted_and_completed_by_any_thread() {
    let domain = common::context().protection_domain().unwrap();
    let completions = domain.context().completion_queue(64).build().unwrap();
    let queue = domain.shared_receive_queue(16).build().unwrap();
    for _ in 0..16 {
        queue.post(domain.allocate(8).unwrap()).unwrap();
    }
    let pairs: Vec<_> = (0..4)
        .map(|_| served(&domain, &queue, &completions))
        .collect();
    let received = AtomicUsize::new(0);
    thread::scope(|scope| {
        for (client, _) in &pairs {
            let domain = &domain;
            scope.spawn(move || {
                let mut sends = client.send_queue();
                let mut message = pattern(domain, 8, 9);
                for _ in 0..200 {
                    message = carry_out(client, &mut sends, SendRequest::send(message));
                }
            });
        }
        for _ in 0..3 {
            let (queue, completions, received) = (queue.clone(), &completions, &received);
            scope.spawn(move || {
                let mut room = [WorkCompletion::default(); 2];
                eventually("every message", || {
                    for completion in completions.poll(&mut room).unwrap() {
                        completion.result().unwrap();
                        let memory = queue.complete(completion).unwrap();
                        assert_eq!(memory[..], bytes(8, 9));
                        queue.post(memory).unwrap();
                        received.fetch_add(1, Ordering::Relaxed);
                    }
                    (received.load(Ordering::Relaxed) == 800).then_some(())
                });
            });
        }
    });
}

#[test]
fn a_shared_queue_is_resized_within_what_it_was_built_for() {
    let domain = common::context().protection_domain().unwrap();
    let queue = domain.shared_receive_queue(2).max_requests(64);
    let queue: SharedReceiveQueue<Buffer> = queue.build().unwrap();
    let error = queue.resize(65).unwrap_err();
    assert!(matches!(error, Error::InvalidArgument { .. }), "{error}");
    assert!(queue.resize(0).is_err());
    if common::where_supported(queue.resize(48)).is_none() {
        return;
    }
    assert_eq!(queue.capacity(), 48);
    assert!(queue.attributes().unwrap().requests >= 48);
    for _ in 0..48 {
        queue.post(domain.allocate(8).unwrap()).unwrap();
    }
    let error = queue.resize(4).unwrap_err();
    assert_eq!(
        error.errno().map(|errno| errno.0),
        Some(libc::EINVAL),
        "they are in flight"
    );
}

#[test]
fn a_limit_above_the_capacity_is_refused_and_one_below_is_stored() {
    let domain = common::context().protection_domain().unwrap();
    let queue = domain.shared_receive_queue(4).build::<Buffer>().unwrap();
    for _ in 0..4 {
        queue.post(domain.allocate(8).unwrap()).unwrap();
    }
    queue.set_limit(3).unwrap();
    assert_eq!(queue.attributes().unwrap().limit, 3);
    queue.set_limit(0).unwrap();
    assert_eq!(queue.attributes().unwrap().limit, 0);
    let error = queue.set_limit(1 << 20).unwrap_err();
    assert!(
        matches!(
            error,
            Error::Verb {
                verb: "ibv_modify_srq",
                ..
            }
        ),
        "{error}"
    );
}

#[test]
fn what_cannot_be_is_refused_before_the_device_sees_it() {
    let domain = common::context().protection_domain().unwrap();
    for requests in [0, (1 << 16) + 1] {
        let error = domain
            .shared_receive_queue(requests)
            .build::<Buffer>()
            .unwrap_err();
        assert!(matches!(error, Error::InvalidArgument { .. }), "{error}");
    }
    let queue = domain.shared_receive_queue(1).elements(1).build().unwrap();
    let two = || [(); 20].map(|()| domain.allocate(8).unwrap());
    let refused = queue.post(two()).unwrap_err();
    assert!(matches!(
        refused.error,
        Error::TooManyElements { elements: 20, .. }
    ));
    assert!(
        queue.post(two()).is_err(),
        "the slot of the first is free again"
    );

    let other = common::context().protection_domain().unwrap();
    let error = other
        .queue_pair()
        .shared_receive_queue(&queue)
        .build()
        .unwrap_err();
    assert!(
        matches!(error, Error::InvalidArgument { .. }),
        "of another context: {error}"
    );
}

#[test]
fn a_receive_that_fails_gives_its_memory_back() {
    let domain = common::context().protection_domain().unwrap();
    let completions = domain.context().completion_queue(64).build().unwrap();
    let queue = domain.shared_receive_queue(4).build().unwrap();
    let (client, _server) = served(&domain, &queue, &completions);
    queue.post(domain.allocate(8).unwrap()).unwrap();
    let mut sends = client.send_queue();
    sends
        .post(SendRequest::send(pattern(&domain, 64, 1)))
        .unwrap();
    let failed = completion(&completions);
    assert!(
        failed.result().is_err(),
        "the message is longer than its memory"
    );
    assert_eq!(queue.complete(&failed).unwrap().len(), 8);
}

#[test]
fn a_queue_made_elsewhere_is_taken_over() {
    let domain = common::context().protection_domain().unwrap();
    let completions = domain.context().completion_queue(64).build().unwrap();
    let mut attributes = ibverbs_sys::ibv_srq_init_attr {
        srq_context: std::ptr::null_mut(),
        attr: ibverbs_sys::ibv_srq_attr {
            max_wr: 4,
            max_sge: 1,
            srq_limit: 0,
        },
    };
    // SAFETY: the domain and the attributes are valid; ownership of the queue passes to the crate.
    let queue: SharedReceiveQueue<Buffer> = unsafe {
        let raw = ibverbs_sys::ibv_create_srq(domain.as_raw(), &mut attributes);
        assert!(!raw.is_null());
        SharedReceiveQueue::from_raw(&domain, None, raw).unwrap()
    };
    assert!(queue.capacity() >= 4);
    queue.post(domain.allocate(8).unwrap()).unwrap();
    let (client, _server) = served(&domain, &queue, &completions);
    let mut sends = client.send_queue();
    carry_out(
        &client,
        &mut sends,
        SendRequest::send(pattern(&domain, 8, 5)),
    );
    let memory = queue.complete(&succeed(&completions)).unwrap();
    assert_eq!(memory[..], bytes(8, 5));
}

#[test]
fn a_batch_is_posted_at_once_and_gives_back_what_was_not() {
    let domain = common::context().protection_domain().unwrap();
    let completions = domain.context().completion_queue(64).build().unwrap();
    let queue = domain.shared_receive_queue(4).build().unwrap();
    let (client, _server) = served(&domain, &queue, &completions);
    let mut batch = queue.batch(3);
    assert_eq!(batch.post().unwrap(), 0, "nothing to post");
    for _ in 0..3 {
        batch.push(domain.allocate(8).unwrap()).unwrap();
    }
    let refused = batch.push(pattern(&domain, 8, 4)).unwrap_err();
    assert!(matches!(
        refused.error,
        Error::QueueFull {
            queue: "batch",
            capacity: 3
        }
    ));
    assert_eq!((batch.len(), batch.post().unwrap(), batch.len()), (3, 3, 0));

    batch.push(refused.memory).unwrap();
    let refused = batch.push(pattern(&domain, 8, 5)).unwrap_err();
    assert!(
        matches!(refused.error, Error::QueueFull { capacity: 4, .. }),
        "{refused:?}"
    );
    let back: Vec<Buffer> = batch.take_back().collect();
    assert_eq!(back[0][..], bytes(8, 4));
    batch.push(refused.memory).unwrap();
    drop(batch);

    let mut sends = client.send_queue();
    for seed in 0..3 {
        carry_out(
            &client,
            &mut sends,
            SendRequest::send(pattern(&domain, 8, seed)),
        );
        let memory = queue.complete(&succeed(&completions)).unwrap();
        assert_eq!(memory[..], bytes(8, seed));
    }
    for _ in 0..4 {
        queue.post(domain.allocate(8).unwrap()).unwrap();
    }
    assert!(
        queue.post(domain.allocate(8).unwrap()).is_err(),
        "every slot was free again"
    );
}

#[test]
fn the_rest_of_a_batch_that_does_not_fit_stays() {
    let domain = common::context().protection_domain().unwrap();
    // Devices hold more receives than requested and than they report, so the test posts many more.
    const MANY: usize = 1 << 12;
    let queue = domain.shared_receive_queue(4).max_requests(MANY as u32);
    let queue: SharedReceiveQueue<Buffer> = queue.build().unwrap();
    let mut rest = domain.allocate(8 * MANY).unwrap();
    let mut batch = queue.batch(MANY);
    for _ in 1..MANY {
        let (one, others) = rest.split_at(8);
        batch.push(one).unwrap();
        rest = others;
    }
    batch.push(rest).unwrap();
    let refused = batch.post().unwrap_err();
    assert!(
        matches!(refused.error, Error::QueueFull { .. }),
        "{refused}"
    );
    assert!(refused.posted >= 4 && !batch.is_empty(), "{refused}");
    assert_eq!(refused.posted + batch.len(), MANY);
    assert_eq!(batch.take_back().count(), MANY - refused.posted);
}

#[test]
fn shared_receive_types_are_send_and_sync() {
    fn both<T: Send + Sync>() {}
    both::<SharedReceiveQueue<Buffer>>();
    both::<SharedReceiveBatch<'_, Buffer>>();
    both::<XrcDomain>();
    both::<(AddressHandle, Destination)>();
    both::<(GroupMembership, Flow, Counters)>();
}
