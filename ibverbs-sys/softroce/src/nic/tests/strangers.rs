//! Tests of packets that other programs of the host send to a device from their own sockets.

use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4, UdpSocket};
use std::thread;
use std::time::Instant;

use super::{Host, LOST_TIMEOUT, QUEUE_KEY, nobody_polls, numbers, open};
use crate::address::port_of_slot;
use crate::config::Config;
use crate::config::Way;
use crate::number;
use crate::proto::{Arrival, Counter, Service};
use crate::wire::ip::Route;
use crate::wire::{Bth, Deth, Header, Opcode, Operation, Packet, Reth, Run, Transport};

/// Creates two connected NICs that use no path except packets.
fn connected(service: Service) -> (Host, Host) {
    let [a, b] = [(); 2].map(|()| {
        let config = Config {
            path: Some(Way::Udp),
            ..Config::default()
        };
        Host::new(&open(config), service, 0)
    });
    a.connect(&b);
    b.connect(&a);
    (a, b)
}

fn port(slot: u8) -> u16 {
    port_of_slot(Config::default().port, slot).unwrap()
}

/// Returns the socket address to which packets for the queue pair of `host` must be sent.
fn socket_of(host: &Host) -> SocketAddrV4 {
    let slot = number::slot(host.queue_pair.number());
    SocketAddrV4::new(host.address().to_ipv4_mapped().unwrap(), port(slot))
}

/// Sends a packet that has the header `header`, no payload, and a valid ICRC.
fn send(socket: &UdpSocket, to: SocketAddrV4, header: &Header) {
    let SocketAddr::V4(from) = socket.local_addr().unwrap() else {
        panic!("IPv4")
    };
    let mut bytes = Vec::new();
    header.emit(&mut bytes);
    let route = Route {
        source: from.ip().to_ipv6_mapped(),
        destination: to.ip().to_ipv6_mapped(),
        source_port: from.port(),
        destination_port: to.port(),
        traffic_class: 0,
        hop_limit: 64,
        flow_label: 0,
    };
    let icrc = route.headers(bytes.len()).icrc(&bytes);
    bytes.extend(icrc.to_le_bytes());
    assert_eq!(socket.send_to(&bytes, to).unwrap(), bytes.len());
}

/// Returns the header of an empty message to the queue pair of `to`, with `number` as immediate
/// data.
fn message(transport: Transport, to: &Host, number: u32) -> Header {
    let opcode = Opcode::new(transport, Operation::SendOnlyImmediate);
    let mut header = Header::new(Bth::new(opcode, to.queue_pair.number(), 0));
    header.immediate = Some(number.to_be_bytes());
    header
}

#[test]
fn a_packet_of_another_socket_is_not_accepted_as_the_peers() {
    let (a, b) = connected(Service::ReliableConnection);
    b.post_receives(8);
    // The kernel would drop these packets, so its filter is disabled to test the receiver's checks.
    b.nic.network.remove_filter();
    let (peer, other) = (*socket_of(&a).ip(), Ipv4Addr::new(127, 0, 77, 1));
    let taken = port(number::slot(a.queue_pair.number()));
    let free = (0..15).map(port).find(|&port| port != taken).unwrap();
    for (ip, port) in [(peer, 0), (other, 0), (other, taken), (peer, free)] {
        let stranger = UdpSocket::bind((ip, port)).unwrap();
        let forged = message(Transport::ReliableConnection, &b, 1000);
        send(&stranger, socket_of(&b), &forged);
    }
    a.send(7, None);
    assert_eq!(numbers(&b.completions(1, nobody_polls)), [7]);
    a.completions(1, nobody_polls);
    assert_eq!(b.nic.counters.value(Counter::Unaddressed), 4);
}

#[test]
fn a_datagram_does_not_reach_a_queue_pair_of_another_device() {
    let (a, b) = connected(Service::UnreliableDatagram);
    let taken = port(number::slot(a.queue_pair.number()));
    let free = (0..15).map(port).find(|&port| port != taken).unwrap();
    let stranger = UdpSocket::bind((*socket_of(&a).ip(), free)).unwrap();
    let mut forged = message(Transport::UnreliableDatagram, &b, 1000);
    forged.deth = Some(Deth {
        queue_key: QUEUE_KEY,
        source: a.queue_pair.number(),
    });
    send(&stranger, socket_of(&b), &forged);
    let end = Instant::now() + LOST_TIMEOUT;
    while b.nic.counters.value(Counter::Unaddressed) == 0 {
        let dropped = b.nic.counters.value(Counter::ReceiveDropped);
        assert_eq!(dropped, 0, "it was taken, but for want of a receive");
        assert!(Instant::now() < end, "it did not come");
        thread::yield_now();
    }
}

#[test]
fn sequence_numbers_are_skipped_only_for_a_peer_with_shared_memory() {
    let (a, b) = connected(Service::ReliableConnection);
    b.post_receives(1);
    let mut skip = Header::new(Bth::new(Opcode::SKIP, b.queue_pair.number(), 5));
    skip.reth = Some(Reth {
        address: 5,
        key: 0,
        length: 0,
    });
    let mut bytes = Vec::new();
    skip.emit(&mut bytes);
    let packet = Packet::parse(&bytes).unwrap();
    let expected = || b.queue_pair.query().rq_psn;
    let arrival = |private| Arrival {
        local: 0,
        source: a.address(),
        destination: b.address(),
        route: [0; 40],
        slot: Some(number::slot(a.queue_pair.number())),
        private,
    };
    // Passes the packet as if it came from the peer's own socket. The queue pair must ignore it:
    // such a packet is valid only through shared memory.
    let (now, run) = (b.nic.now(), Run::of_packet(packet));
    b.queue_pair.receive(now, &arrival(false), &run);
    assert_eq!(expected(), 0);
    a.send(7, None);
    assert_eq!(numbers(&b.completions(1, nobody_polls)), [7]);
    a.completions(1, nobody_polls);
    b.queue_pair.receive(now, &arrival(true), &run);
    assert_eq!(expected(), 5);
}
