//! Datagram peers and multicast groups, found by the connection manager.

mod common;
#[path = "common/manager.rs"]
mod manager;

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::thread;

use common::{bytes, pattern, succeed};
use manager::{MAX_WAIT, connection_error, connector, event};
use rdma_core::address::{DatagramHeader, Destination};
use rdma_core::cm::{
    ConnectionError, ConnectionEventKind, ConnectionId, ConnectionParameters, EventChannel,
    Listener, MulticastMember, PortSpace,
};
use rdma_core::{Buffer, Error, ProtectionDomain, QueuePair, ReceiveQueue, SendRequest, Transport};

const HEADER: usize = DatagramHeader::LEN;

/// A datagram queue pair, with posted receives, for the device and the port space of an identifier.
struct Datagrams {
    domain: ProtectionDomain,
    pair: QueuePair,
    receives: ReceiveQueue<Buffer>,
}

impl Datagrams {
    #[track_caller]
    fn new(id: &ConnectionId) -> Self {
        let domain = id.context().unwrap().protection_domain().unwrap();
        let prepared = id.prepare(domain.queue_pair()).unwrap();
        assert_eq!(prepared.kind(), Transport::Datagram);
        let mut receives = prepared.receive_queue();
        for _ in 0..4 {
            receives.post(domain.allocate(HEADER + 8).unwrap()).unwrap();
        }
        let pair = id.activate(prepared).unwrap();
        Self {
            domain,
            pair,
            receives,
        }
    }

    #[track_caller]
    fn send(&self, to: &Destination, seed: u8) {
        let mut sends = self.pair.send_queue();
        let request = SendRequest::send(pattern(&self.domain, 8, seed)).to(to);
        sends.post(request).unwrap();
        let sent = succeed(self.pair.send_completions());
        assert_eq!(sends.complete(&sent).count(), 1);
    }

    /// Waits for the next message, and returns it.
    #[track_caller]
    fn receive(&mut self) -> Vec<u8> {
        // Each send has been waited for, so the next completion is that of a receive.
        let received = succeed(self.pair.receive_completions());
        let memory = self.receives.complete(&received).unwrap();
        memory[HEADER..].to_vec()
    }
}

fn datagram_listener(address: IpAddr) -> (Listener, SocketAddr) {
    let listener = Listener::builder(SocketAddr::new(address, 0)).port_space(PortSpace::Udp);
    let listener = listener.listen().unwrap();
    let there = listener.local_address().unwrap();
    (listener, there)
}

#[test]
fn a_datagram_peer_is_found_and_sent_to() {
    let Some(address) = manager::address() else {
        return;
    };
    let (listener, there) = datagram_listener(address);
    let (question, answer) = (bytes(180, 1), bytes(136, 2));
    assert_eq!(PortSpace::Udp.connect_limit(), question.len());
    assert_eq!(PortSpace::Udp.accept_limit(), answer.len());
    thread::scope(|scope| {
        scope.spawn(|| {
            // One queue pair serves all peers.
            let mut serving: Option<Datagrams> = None;
            let mut accepted = Vec::new();
            for _ in 0..2 {
                let incoming = listener.next(Some(MAX_WAIT)).unwrap().unwrap();
                assert_eq!(incoming.private_data(), question);
                let own = serving.get_or_insert_with(|| Datagrams::new(incoming.request().id()));
                let parameters = ConnectionParameters::default().private_data(answer.clone());
                accepted.push(incoming.accept_datagram(&own.pair, &parameters).unwrap());
            }
            let mut serving = serving.unwrap();
            let mut received = [serving.receive(), serving.receive()];
            received.sort();
            let mut expected = [bytes(8, 1), bytes(8, 2)];
            expected.sort();
            assert_eq!(received, expected);
        });
        for seed in [1, 2] {
            let peer = connector(there)
                .port_space(PortSpace::Udp)
                .resolve()
                .unwrap();
            let own = Datagrams::new(peer.id());
            let parameters = ConnectionParameters::default().private_data(question.clone());
            let found = peer.find_datagram_peer(&parameters).unwrap();
            assert_eq!(found.private_data, answer);
            let datagram = found.datagram.expect("how to reach it");
            assert_eq!(datagram.address.gid.unwrap().to_ip(), address);
            let to = found
                .destination(&own.domain)
                .unwrap()
                .expect("a datagram peer");
            assert_eq!((to.queue_pair, to.qkey), (found.queue_pair, datagram.qkey));
            own.send(&to, seed);
        }
    });
}

#[test]
fn a_datagram_peer_that_refuses_is_an_error() {
    let Some(address) = manager::address() else {
        return;
    };
    let (listener, there) = datagram_listener(address);
    let parameters = ConnectionParameters::default();
    thread::scope(|scope| {
        scope.spawn(|| {
            let incoming = listener.next(Some(MAX_WAIT)).unwrap().unwrap();
            incoming.reject(b"no datagrams, please").unwrap();
        });
        let peer = connector(there)
            .port_space(PortSpace::Udp)
            .resolve()
            .unwrap();
        let error = connection_error(peer.find_datagram_peer(&parameters));
        // The connection manager reports the peer as unreachable, with the status of the response.
        assert!(
            matches!(
                error,
                ConnectionError::Failed { .. } | ConnectionError::Rejected { .. }
            ),
            "{error:?}"
        );
    });
    // Private data that does not fit is refused on this side.
    let peer = connector(there)
        .port_space(PortSpace::Udp)
        .resolve()
        .unwrap();
    let too_long = ConnectionParameters::default().private_data(vec![0; 181]);
    let error = peer.find_datagram_peer(&too_long).unwrap_err();
    assert!(matches!(error, Error::InvalidArgument { .. }), "{error:?}");
}

#[test]
fn connections_and_datagrams_are_not_mixed() {
    let Some(address) = manager::address() else {
        return;
    };
    let (_listener, there) = manager::listener(address);
    let (connected, datagrams) = (
        connector(there).resolve().unwrap(),
        connector(there)
            .port_space(PortSpace::Udp)
            .resolve()
            .unwrap(),
    );
    let parameters = ConnectionParameters::default();
    let refused = [connected.find_datagram_peer(&parameters).unwrap_err(), {
        let domain = connected.context().unwrap().protection_domain().unwrap();
        let prepared = connected.id().prepare(domain.queue_pair()).unwrap();
        assert_eq!(prepared.kind(), Transport::ReliableConnected);
        let error = datagrams.id().connect(&prepared, &parameters).unwrap_err();
        drop(connected.id().activate(prepared).unwrap_err());
        error
    }];
    for error in refused {
        assert!(matches!(error, Error::InvalidArgument { .. }), "{error:?}");
    }
}

/// Joins a group, and waits until the group was joined.
#[track_caller]
fn join(
    channel: &EventChannel,
    id: &ConnectionId,
    group: SocketAddr,
    send_only: bool,
    token: usize,
) -> MulticastMember {
    id.join_multicast(group, send_only, token).unwrap();
    match event(channel).kind {
        ConnectionEventKind::MulticastJoined(member) => {
            assert_eq!(member.token, token);
            member
        }
        other => panic!("{other}"),
    }
}

#[test]
fn a_group_is_joined_and_its_datagrams_arrive() {
    let Some(address) = manager::address() else {
        return;
    };
    let group = SocketAddr::from((Ipv4Addr::new(239, 77, 2, 1), 0));
    let channel = EventChannel::new().unwrap();
    let id = ConnectionId::new(&channel, PortSpace::Udp).unwrap();
    id.bind(SocketAddr::new(address, 0)).unwrap();
    let mut own = Datagrams::new(&id);
    let member = join(&channel, &id, group, false, 7);
    let gid = member.address.gid.expect("the group's GID");
    assert_eq!(gid.to_ip(), group.ip());
    assert_eq!(member.queue_pair, Destination::EVERY_MEMBER);
    let attached = own.pair.attach_to_group(gid, member.address.lid).unwrap();
    // A queue pair that sends to the group without receiving from it.
    let sending = ConnectionId::new(&channel, PortSpace::Udp).unwrap();
    sending.bind(SocketAddr::new(address, 0)).unwrap();
    let sender = Datagrams::new(&sending);
    let to = member.destination(&sender.domain).unwrap();
    sender.send(&to, 9);
    assert_eq!(own.receive(), bytes(8, 9));
    attached.leave().unwrap();
    id.leave_multicast(group).unwrap();
    let error = id.leave_multicast(group).unwrap_err();
    assert!(matches!(error, Error::InvalidArgument { .. }), "{error:?}");
    // After leaving, the identifier can join the group again.
    join(&channel, &id, group, false, 8);
}

#[test]
fn identifiers_leave_their_groups_when_they_are_dropped() {
    let Some(address) = manager::address() else {
        return;
    };
    let channel = EventChannel::new().unwrap();
    for round in 0..20_u8 {
        let id = ConnectionId::new(&channel, PortSpace::Udp).unwrap();
        id.bind(SocketAddr::new(address, 0)).unwrap();
        let groups = [1, 2, 3].map(|last| Ipv4Addr::new(239, 77, 3, last));
        for (token, group) in groups.into_iter().enumerate() {
            let group = SocketAddr::from((group, 0));
            if round % 2 == 0 {
                join(&channel, &id, group, false, token);
            } else {
                // The identifier is dropped before the event of the join was read.
                id.join_multicast(group, false, token).unwrap();
            }
        }
        drop(id);
        assert_eq!(channel.identifiers(), 0);
        while channel.try_next().unwrap().is_some() {}
    }
}

#[test]
fn joining_only_to_send_works_or_is_unsupported() {
    let Some(address) = manager::address() else {
        return;
    };
    let group = SocketAddr::from((Ipv4Addr::new(239, 77, 2, 2), 0));
    let channel = EventChannel::new().unwrap();
    let id = ConnectionId::new(&channel, PortSpace::Udp).unwrap();
    id.bind(SocketAddr::new(address, 0)).unwrap();
    // On RoCE a sender need not be a member, so the kernel may refuse such a join.
    match id.join_multicast(group, true, 1) {
        Ok(()) => match event(&channel).kind {
            ConnectionEventKind::MulticastJoined(member) => assert_eq!(member.token, 1),
            ConnectionEventKind::MulticastError { token, status } => {
                println!("{status}");
                assert_eq!(token, 1);
            }
            other => panic!("{other}"),
        },
        Err(error) => assert!(matches!(error, Error::Verb { .. }), "{error:?}"),
    }
    let nobodys = SocketAddr::from((Ipv4Addr::new(239, 77, 2, 9), 0));
    assert!(id.leave_multicast(nobodys).is_err());
}
