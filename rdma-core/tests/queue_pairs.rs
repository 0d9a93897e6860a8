//! The kinds of queue pair: made, brought up, used.

mod common;

use common::{Pair, bytes, context, pattern, receive, succeed};
use rdma_core::{
    ConnectOptions, DatagramOptions, Error, QueuePairState, SendOperations, SendRequest, Transport,
};

/// The options of pairs of this test.
fn options() -> ConnectOptions {
    ConnectOptions::default()
}

#[test]
fn reliable_and_unreliable_connections_carry_messages() {
    for kind in [Transport::ReliableConnected, Transport::UnreliableConnected] {
        let pair = Pair::with(|builder| builder.transport(kind), &options());
        assert_eq!(pair.left.kind(), kind);
        assert_eq!(pair.left.state(), Ok(QueuePairState::ReadyToSend));
        assert_eq!(pair.left.remote(), Some(pair.right.local()));
        pair.check();
    }
}

#[test]
fn a_pair_made_for_extended_posting_takes_plain_requests_too() {
    for kind in [Transport::ReliableConnected, Transport::UnreliableConnected] {
        let pair = Pair::with(
            |builder| builder.transport(kind).extended_posting(),
            &options(),
        );
        assert_eq!(pair.left.operations(), SendOperations::of(kind));
        pair.check();
    }
    let few = SendOperations::SEND | SendOperations::WRITE;
    let pair = Pair::with(|builder| builder.operations(few), &options());
    assert_eq!(pair.left.operations(), few);
    pair.check();
}

#[test]
fn datagrams_are_received_after_activation() {
    let domain = context().protection_domain().unwrap();
    let prepared = domain
        .queue_pair()
        .transport(Transport::Datagram)
        .build()
        .unwrap();
    let pair = prepared.activate(&DatagramOptions::new(7)).unwrap();
    assert_eq!(pair.state(), Ok(QueuePairState::ReadyToSend));
    assert_eq!(pair.remote(), None);
}

#[test]
fn each_kind_has_its_own_way_up() {
    let domain = context().protection_domain().unwrap();
    let prepared = domain.queue_pair().build().unwrap();
    let refused = prepared.activate(&DatagramOptions::default()).unwrap_err();
    assert!(
        matches!(refused, Error::InvalidArgument { .. }),
        "{refused}"
    );
    let prepared = domain
        .queue_pair()
        .transport(Transport::Datagram)
        .build()
        .unwrap();
    let remote = prepared.endpoint();
    let refused = prepared.connect(&remote, &options()).unwrap_err();
    assert!(
        matches!(refused, Error::InvalidArgument { .. }),
        "{refused}"
    );
}

#[test]
fn a_queue_pair_that_signals_all_completes_unsignaled_requests() {
    let pair = Pair::with(|builder| builder.signal_all(), &options());
    let mut receives = pair.right.receive_queue();
    let mut sends = pair.left.send_queue();
    for seed in 0..3 {
        receives.post(pair.domain.allocate(8).unwrap()).unwrap();
        let request = SendRequest::send(pattern(&pair.domain, 8, seed)).unsignaled();
        sends.post(request).unwrap();
        let sent = succeed(pair.left.send_completions());
        assert_eq!(sends.complete(&sent).count(), 1);
        let received = receive(&pair.right, &mut receives);
        assert_eq!(received.1[..], bytes(8, seed));
    }
}
