//! Datagrams: to a queue pair, back to the sender, and to a shared receive queue.

mod common;

use common::{bytes, completion, pattern, succeed};
use rdma_core::address::{AddressHandle, AddressVector, DatagramHeader, Destination};
use rdma_core::device::{GidEntry, GidType};
use rdma_core::queue_pair::ReservedSlot;
use rdma_core::{
    AddressChoice, Buffer, CompletionQueue, DatagramOptions, ProtectionDomain, QueuePair,
    ReceiveQueue, SendRequest, SharedReceiveQueue, Transport, WorkCompletion,
};

const QKEY: u32 = 0x1357_9bdf;

const HEADER: usize = DatagramHeader::LEN;

fn datagrams(domain: &ProtectionDomain) -> QueuePair {
    datagrams_at(domain, AddressChoice::default())
}

fn datagrams_at(domain: &ProtectionDomain, address: AddressChoice) -> QueuePair {
    let prepared = domain.queue_pair().transport(Transport::Datagram);
    let prepared = prepared.address(address).build().unwrap();
    prepared.activate(&DatagramOptions::new(QKEY)).unwrap()
}

/// Returns an address choice for every GID of the port that the device would choose.
fn addresses(domain: &ProtectionDomain) -> Vec<AddressChoice> {
    let context = domain.context();
    let port = context.address(AddressChoice::default()).unwrap().port;
    let gids = context.gids().unwrap().into_iter();
    let choices = gids.filter(|gid| gid.port == port && gid.kind != GidType::RoceV1);
    let choice = |gid: GidEntry| AddressChoice {
        port: Some(port),
        gid_index: Some(gid.index),
        ..AddressChoice::default()
    };
    choices.map(choice).collect()
}

/// Returns the destination for datagrams to `to` from a queue pair with the same address.
fn destination(domain: &ProtectionDomain, to: &QueuePair, traffic_class: u8) -> Destination {
    let here = to.address();
    let vector = AddressVector {
        traffic_class,
        ..AddressVector::new(here, here.gid, here.lid)
    };
    Destination {
        handle: domain.address_handle(&vector).unwrap(),
        queue_pair: to.number(),
        qkey: QKEY,
    }
}

fn send(from: &QueuePair, memory: Buffer, to: &Destination) {
    let mut sends = from.send_queue();
    sends.post(SendRequest::send(memory).to(to)).unwrap();
    let sent = succeed(from.send_completions());
    assert_eq!(sends.complete(&sent).count(), 1);
}

fn post(domain: &ProtectionDomain, receives: &mut ReceiveQueue<Buffer>, len: usize) {
    receives
        .post(domain.allocate(HEADER + len).unwrap())
        .unwrap();
}

fn receive(
    completions: &CompletionQueue,
    receives: &mut ReceiveQueue<Buffer>,
) -> (WorkCompletion, Buffer) {
    let received = succeed(completions);
    let memory = receives.complete(&received).unwrap();
    (received, memory)
}

#[test]
fn a_datagram_contains_the_sender_and_the_path() {
    let domain = common::context().protection_domain().unwrap();
    for address in addresses(&domain) {
        let (left, right) = (
            datagrams_at(&domain, address),
            datagrams_at(&domain, address),
        );
        let mut receives = right.receive_queue();
        post(&domain, &mut receives, 100);
        let to = destination(&domain, &right, 0x40);
        send(&left, pattern(&domain, 100, 1), &to);

        let (received, memory) = receive(right.receive_completions(), &mut receives);
        assert_eq!(received.len(), HEADER + 100, "the header counts");
        assert_eq!(memory[HEADER..], bytes(100, 1));
        assert_eq!(received.source_queue_pair(), left.number());
        assert!(received.has_global_route());

        let header = DatagramHeader::parse(&memory).unwrap();
        let here = left.address();
        assert_eq!(
            (header.source(), header.destination()),
            (here.gid, here.gid)
        );
        assert_eq!(
            header.traffic_class() & 0xfc,
            0x40,
            "the network may mark ECN"
        );
        let ipv4 = here.gid.to_ipv4().is_some();
        assert_eq!(matches!(header, DatagramHeader::Ipv4(_)), ipv4);
    }
}

#[test]
fn the_path_to_the_sender_is_derived_from_the_datagram() {
    let domain = common::context().protection_domain().unwrap();
    for address in addresses(&domain) {
        let (left, right) = (
            datagrams_at(&domain, address),
            datagrams_at(&domain, address),
        );
        let (mut at_left, mut at_right) = (left.receive_queue(), right.receive_queue());
        post(&domain, &mut at_left, 8);
        post(&domain, &mut at_right, 8);
        let to = destination(&domain, &right, 0);
        send(&left, pattern(&domain, 8, 2), &to);
        let (received, memory) = receive(right.receive_completions(), &mut at_right);

        let (context, here) = (domain.context(), right.address());
        let vector = AddressVector::from_completion(context, &received, &memory, here.port);
        let vector = vector.unwrap();
        assert_eq!(vector.gid, Some(left.address().gid));
        assert_eq!((vector.port, vector.gid_index), (here.port, here.gid_index));
        let back = Destination {
            handle: AddressHandle::from_completion(&domain, &received, &memory, here.port).unwrap(),
            queue_pair: received.source_queue_pair(),
            qkey: QKEY,
        };
        send(&right, pattern(&domain, 8, 3), &back);
        let (_, memory) = receive(left.receive_completions(), &mut at_left);
        assert_eq!(memory[HEADER..], bytes(8, 3));

        let short = AddressHandle::from_completion(&domain, &received, &memory[..39], here.port);
        assert!(short.unwrap_err().to_string().contains("39 bytes"));
    }
}

#[test]
fn an_address_handle_lives_until_its_request_has_completed() {
    let domain = common::context().protection_domain().unwrap();
    let (left, right) = (datagrams(&domain), datagrams(&domain));
    let mut receives = right.receive_queue();
    post(&domain, &mut receives, 8);
    let mut sends = left.send_queue();
    let request = SendRequest::send(pattern(&domain, 8, 4));
    let request = request.to(&destination(&domain, &right, 0));
    sends.post(request).unwrap();
    // The request keeps the address handle alive; the destination's handle was already dropped.
    let (_, memory) = receive(right.receive_completions(), &mut receives);
    assert_eq!(memory[HEADER..], bytes(8, 4));
    drop(sends);
}

#[test]
fn a_request_without_a_destination_is_refused() {
    let domain = common::context().protection_domain().unwrap();
    let queue_pair = datagrams(&domain);
    let mut sends = queue_pair.send_queue();
    let refused = sends
        .post(SendRequest::send(pattern(&domain, 8, 5)))
        .unwrap_err();
    assert_eq!(refused.memory[..], bytes(8, 5));
}

#[test]
fn datagrams_of_several_senders_arrive_through_a_shared_queue() {
    let domain = common::context().protection_domain().unwrap();
    let queue: SharedReceiveQueue<Buffer> = domain.shared_receive_queue(8).build().unwrap();
    for _ in 0..8 {
        queue.post(domain.allocate(HEADER + 8).unwrap()).unwrap();
    }
    let server = domain.queue_pair().transport(Transport::Datagram);
    let server = server.shared_receive_queue(&queue).build().unwrap();
    let server = server.activate(&DatagramOptions::new(QKEY)).unwrap();
    let to = destination(&domain, &server, 0);
    let clients: Vec<QueuePair> = (0..4).map(|_| datagrams(&domain)).collect();
    for (seed, client) in clients.iter().enumerate() {
        send(client, pattern(&domain, 8, seed as u8), &to);
        let received = succeed(server.receive_completions());
        assert_eq!(received.source_queue_pair(), client.number());
        assert_eq!(
            queue.complete(&received).unwrap()[HEADER..],
            bytes(8, seed as u8)
        );
    }
}

#[test]
fn a_datagram_with_another_key_is_not_delivered() {
    let domain = common::context().protection_domain().unwrap();
    let (left, right) = (datagrams(&domain), datagrams(&domain));
    let mut receives = right.receive_queue();
    post(&domain, &mut receives, 8);
    let to = destination(&domain, &right, 0);
    let wrong = Destination {
        qkey: QKEY + 1,
        ..to.clone()
    };
    send(&left, pattern(&domain, 8, 6), &wrong);
    send(&left, pattern(&domain, 8, 7), &to);
    let received = completion(right.receive_completions());
    let memory = receives.complete(&received).unwrap();
    assert_eq!(memory[HEADER..], bytes(8, 7), "the first was dropped");
}

#[test]
fn datagrams_of_batches_arrive_and_keep_their_address_handle() {
    let context = common::context();
    let domain = context.protection_domain().unwrap();
    let [from, to] = [(); 2].map(|()| datagrams(&domain));
    let mut receives = to.receive_queue();
    let (mut sends, concurrent) = (from.send_queue(), from.concurrent_send_queue());
    for seed in 0..10 {
        let request = |seed| {
            let there = destination(&domain, &to, 0);
            SendRequest::send(pattern(&domain, 8, seed)).to(&there)
        };
        (0..4).for_each(|_| post(&domain, &mut receives, 8));
        let mut batch = sends.batch();
        batch.push(request(seed).unsignaled()).unwrap();
        batch.push(request(seed + 1)).unwrap();
        assert_eq!(batch.post().unwrap(), 2);
        let mut batch = concurrent.batch(2);
        for seed in [seed + 2, seed + 3] {
            let slot = concurrent.reserve().unwrap();
            batch.push(slot, request(seed).unsignaled()).unwrap();
        }
        assert_eq!(batch.post().unwrap(), 2);
        let sent = succeed(from.send_completions());
        assert_eq!(sends.complete(&sent).count(), 2);
        let sent = succeed(from.send_completions());
        let ended = concurrent.complete(&sent);
        assert_eq!(ended.map(|(slot, _)| concurrent.release(slot)).count(), 2);
        for seed in seed..seed + 4 {
            let (_, memory) = receive(to.receive_completions(), &mut receives);
            assert_eq!(memory[HEADER..HEADER + 8], bytes(8, seed));
        }
    }
}

#[test]
fn datagrams_of_a_concurrent_queue_arrive_and_keep_their_address_handle() {
    let context = common::context();
    let domain = context.protection_domain().unwrap();
    let [from, to] = [(); 2].map(|()| datagrams(&domain));
    let mut receives = to.receive_queue();
    let queue = from.concurrent_send_queue();
    for seed in 0..20 {
        post(&domain, &mut receives, 8);
        let there = destination(&domain, &to, 0);
        let slot = queue.reserve().unwrap();
        let request = SendRequest::send(pattern(&domain, 8, seed)).to(&there);
        // The queue keeps the address handle until the completion.
        drop(there);
        queue.post(slot, request).unwrap();
        let sent = succeed(from.send_completions());
        for (slot, memory) in queue.complete(&sent) {
            assert_eq!(memory[..], bytes(8, seed));
            queue.release(slot);
        }
        let (_, memory) = receive(to.receive_completions(), &mut receives);
        assert_eq!(memory[HEADER..HEADER + 8], bytes(8, seed));
    }
}

/// Checks that a refused request does not take the unsignaled request before it. The device refuses
/// the request because of an address handle of another protection domain.
#[test]
fn a_refused_request_of_a_concurrent_queue_leaves_unsignaled_ones_to_the_next() {
    if !common::is_softroce() {
        // Some devices accept address handles of other domains.
        return;
    }
    let context = common::context();
    let [domain, other] = [(); 2].map(|()| context.protection_domain().unwrap());
    let [from, to] = [(); 2].map(|()| datagrams(&domain));
    let [there, foreign] = [&domain, &other].map(|domain| destination(domain, &to, 0));
    let queue = from.concurrent_send_queue();
    let request = |to, seed| SendRequest::send(pattern(&domain, 8, seed)).to(to);
    let post = |request| queue.post(queue.reserve().unwrap(), request);
    post(request(&there, 1).unsignaled()).unwrap();
    for is_signaled in [true, false] {
        let refused = request(&foreign, 2);
        let refused = if is_signaled {
            refused
        } else {
            refused.unsignaled()
        };
        assert_eq!(post(refused).unwrap_err().memory[..], bytes(8, 2));
    }
    post(request(&there, 3)).unwrap();
    let sent = succeed(from.send_completions());
    let ended = queue.complete(&sent).map(|(slot, memory)| {
        queue.release(slot);
        memory[0]
    });
    assert_eq!(ended.collect::<Vec<_>>(), [bytes(8, 3)[0], bytes(8, 1)[0]]);
    let free = std::iter::from_fn(|| queue.reserve().map(ReservedSlot::detach));
    assert_eq!(free.count(), queue.capacity());
}
