//! Tests of sending and receiving between the networks of two NICs in one process, over real
//! sockets.

use std::io::IoSlice;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::{Duration, Instant};

pub(crate) mod namespace;

mod host;
mod runs;
mod segmentation;

use super::socket::{Burst, Socket};
use super::{Inbox, Network};
use crate::address::{self, MULTICAST};
use crate::config::Config;
use crate::counters::Counters;
use crate::fault::NetworkFaults;
use crate::proto::{Arrival, Counter, Mtu, Path};
use crate::timers::{Sleeper, Timers};
use crate::wire::{Bth, Deth, Header, Opcode, Operation, Transport};

/// Maximum time to wait for packets in a test. No wait takes that long unless packets are lost.
const TIMEOUT: Duration = Duration::from_secs(60);

/// Returns a base port that no other test uses, for tests that depend on the port range of devices.
fn port() -> u16 {
    static NEXT: AtomicU16 = AtomicU16::new(20_000);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

/// Opens a network without filters, which accepts packets of connections from all senders.
fn open(config: &Config) -> Network {
    let network = open_filtered(config);
    network.remove_filter();
    network
}

/// Opens a network with the packet filters that devices normally have.
fn open_filtered(config: &Config) -> Network {
    try_open(&Config {
        interfaces: Some(Vec::new()),
        ..config.clone()
    })
    .unwrap()
}

/// Opens a network with the addresses of the configuration, by default also those of the host.
fn try_open(config: &Config) -> std::io::Result<Network> {
    let (counters, faults) = (Arc::<Counters>::default(), Arc::new(config.faults()));
    let timers = Arc::new(Timers::new(Sleeper::new().unwrap()));
    Network::open(config, counters, faults, timers)
}

fn socket_of(network: &Network) -> &Socket {
    network
        .local_address(0)
        .and_then(|local_address| local_address.socket())
        .unwrap()
}

impl Network {
    /// Returns the GIDs of the table, which has no gaps.
    fn addresses(&self) -> Vec<Ipv6Addr> {
        self.gids().map(|(_, gid)| gid).collect()
    }
}

fn networks() -> (Network, Network) {
    (open(&Config::default()), open(&Config::default()))
}

/// A packet that was received: its origin, sequence number and payload.
#[derive(Clone, Debug, PartialEq)]
struct ReceivedPacket {
    arrival: Arrival,
    sequence: u32,
    payload: Vec<u8>,
}

/// Receives until `packets` valid packets have been delivered, and returns these packets.
fn receive(network: &Network, packets: usize) -> Vec<ReceivedPacket> {
    let (mut inbox, mut got) = (Inbox::new(), Vec::new());
    // The wait lasts until `end` only if a packet never arrives.
    let end = Instant::now() + TIMEOUT;
    while got.len() < packets {
        assert!(
            Instant::now() < end,
            "{} of {packets} packets came",
            got.len()
        );
        collect(network, &mut inbox, &mut got);
    }
    got
}

fn collect(network: &Network, inbox: &mut Inbox, got: &mut Vec<ReceivedPacket>) -> usize {
    network.receive(inbox, true, |packets| {
        for (arrival, run) in packets {
            got.extend(run.packets().map(|packet| ReceivedPacket {
                arrival,
                sequence: packet.header.bth.sequence,
                payload: packet.payload.to_vec(),
            }));
        }
    })
}

/// Receives until `datagrams` datagrams have arrived, valid or not. Returns the packets that were
/// valid and delivered.
fn receive_datagrams(network: &Network, datagrams: usize) -> Vec<ReceivedPacket> {
    let (mut inbox, mut got, mut came) = (Inbox::new(), Vec::new(), 0);
    let end = Instant::now() + TIMEOUT;
    while came < datagrams {
        assert!(Instant::now() < end, "{came} of {datagrams} datagrams came");
        came += collect(network, &mut inbox, &mut got);
    }
    got
}

fn path(source: u8, destination: Ipv6Addr) -> Path {
    Path {
        source,
        destination,
        traffic_class: 0,
        hop_limit: 1,
        flow_label: 0,
    }
}

/// Appends a UD packet without its ICRC.
fn datagram(queue_pair: u32, sequence: u32, payload: &[u8], out: &mut Vec<u8>) {
    let opcode = Opcode::new(Transport::UnreliableDatagram, Operation::SendOnly);
    let mut header = Header::new(Bth {
        pad: Header::pad_for(payload.len()),
        ..Bth::new(opcode, queue_pair, sequence)
    });
    header.deth = Some(Deth {
        queue_key: 0x1111_1111,
        source: 2,
    });
    header.emit(out);
    out.extend_from_slice(payload);
    out.extend(std::iter::repeat_n(
        0,
        usize::from(Header::pad_for(payload.len())),
    ));
}

/// Returns a queue pair number that contains the slot of a network's port.
fn number(network: &Network) -> u32 {
    u32::from(network.slot()) << 16 | 0x1234
}

/// Sends packets with the given sequence numbers and a payload of 64 bytes.
fn send(from: &Network, path: &Path, queue_pair: u32, sequences: std::ops::Range<u32>) {
    let mut outbox = from.outbox();
    for sequence in sequences {
        let sent = outbox.push(|out| {
            datagram(queue_pair, sequence, &[sequence as u8; 64], out);
            Some(*path)
        });
        assert!(sent);
    }
}

#[test]
fn a_packet_is_received_over_ipv4_with_its_header() {
    let (a, b) = networks();
    let to = Path {
        traffic_class: 0x68,
        hop_limit: 9,
        ..path(0, b.addresses()[0])
    };
    let mut outbox = a.outbox();
    assert!(outbox.push(|out| {
        datagram(number(&b), 77, b"hello", out);
        Some(to)
    }));
    outbox.flush();
    let [got] = &receive(&b, 1)[..] else {
        panic!("one packet")
    };
    assert_eq!((got.sequence, &got.payload[..]), (77, &b"hello"[..]));
    assert_eq!(got.arrival.local, 0);
    assert_eq!(got.arrival.source, a.addresses()[0]);
    assert_eq!(got.arrival.destination, b.addresses()[0]);
    let header = &got.arrival.route[20..];
    assert_eq!(
        (header[0], header[1], header[8], header[9]),
        (0x45, 0x68, 9, 17)
    );
    assert_eq!(header[12..16], a.addresses()[0].octets()[12..]);
    assert_eq!(header[16..20], b.addresses()[0].octets()[12..]);
    assert_eq!(a.counters.value(Counter::SentPackets), 1);
    assert_eq!(b.counters.value(Counter::ReceivedPackets), 1);
    assert_eq!(a.counters.value(Counter::SentBytes), 12 + 8 + 8 + 4);
    assert_eq!(b.counters.value(Counter::ReceivedBytes), 12 + 8 + 8 + 4);
}

#[test]
fn a_packet_is_received_through_the_tunnel_with_its_ipv6_header() {
    let (a, b) = networks();
    // With traffic class 0x40, the first byte of the IPv6 header equals the opcode of a UD packet.
    for traffic_class in [0, 0x40, 0xff] {
        let to = Path {
            traffic_class,
            flow_label: 0x12345,
            ..path(1, b.addresses()[1])
        };
        send(&a, &to, number(&b), 5..6);
        let [got] = &receive(&b, 1)[..] else {
            panic!("one packet")
        };
        assert_eq!((got.sequence, &got.payload[..]), (5, &[5; 64][..]));
        assert_eq!(got.arrival.local, 1);
        assert_eq!(got.arrival.source, a.addresses()[1]);
        assert_eq!(got.arrival.destination, b.addresses()[1]);
        let route = &got.arrival.route;
        let first = u32::from_be_bytes(route[..4].try_into().unwrap());
        assert_eq!(first, 6 << 28 | u32::from(traffic_class) << 20 | 0x12345);
        assert_eq!(route[8..24], a.addresses()[1].octets());
        assert_eq!(route[24..], b.addresses()[1].octets());
    }
}

#[test]
fn a_packet_to_the_own_device_is_received() {
    let a = open(&Config::default());
    for gid in 0..2 {
        send(
            &a,
            &path(gid, a.addresses()[usize::from(gid)]),
            number(&a),
            3..5,
        );
        let sequences: Vec<u32> = receive(&a, 2).iter().map(|got| got.sequence).collect();
        assert_eq!(sequences, [3, 4]);
    }
}

#[test]
fn packets_of_all_sizes_are_received_complete_and_in_order() {
    let (a, b) = networks();
    for gid in 0..2 {
        for size in [0, 1, 63, 1024, 4096] {
            let payload = vec![0xa5; size];
            let mut outbox = a.outbox();
            // The packets do not fit into one system call.
            for sequence in 0..40 {
                outbox.push(|out| {
                    datagram(number(&b), sequence, &payload, out);
                    Some(path(gid, b.addresses()[usize::from(gid)]))
                });
            }
            drop(outbox);
            let got = receive(&b, 40);
            assert!(got.iter().map(|got| got.sequence).eq(0..40));
            assert!(got.iter().all(|got| got.payload == payload));
        }
    }
}

#[test]
fn a_damaged_packet_is_dropped_and_counted() {
    let (a, b) = networks();
    a.faults.set_network(NetworkFaults {
        corrupt: 1.0,
        seed: 3,
        ..NetworkFaults::default()
    });
    for gid in 0..2 {
        send(
            &a,
            &path(gid, b.addresses()[usize::from(gid)]),
            number(&b),
            0..100,
        );
    }
    let got = receive_datagrams(&b, 200);
    // The faults flip one bit per packet. One of a hundred flipped bits is a congestion bit of the
    // BTH, which the ICRC does not cover.
    let wrong = b.counters.value(Counter::WrongIcrc);
    assert_eq!(wrong + got.len() as u64, 200);
    assert!(wrong > 190, "{wrong}");
    assert!(
        got.iter()
            .all(|got| got.payload == [got.sequence as u8; 64])
    );
}

#[test]
fn invalid_packets_are_dropped_and_counted() {
    let config = Config {
        port: port(),
        ..Config::default()
    };
    let b = open(&config);
    let stranger = UdpSocket::bind((Ipv4Addr::LOCALHOST, config.port)).unwrap();
    let to = b.local_address(0).unwrap().local;
    let mut tunnel = vec![0; 200];
    tunnel[0] = 0x60;
    tunnel[8..14].copy_from_slice(&a_gid().octets()[..6]);
    let bad: [&[u8]; 6] = [
        &[],
        &[1, 2, 3],
        &[0; 4],
        &[0xff; 100],
        &[0x64; 5000],
        &tunnel,
    ];
    for bytes in bad {
        stranger.send_to(bytes, to).unwrap();
    }
    assert_eq!(receive_datagrams(&b, bad.len()), []);
    let counted = [Counter::Malformed, Counter::WrongIcrc].map(|counter| b.counters.value(counter));
    assert_eq!(counted.iter().sum::<u64>(), bad.len() as u64, "{counted:?}");
    assert_eq!(b.counters.value(Counter::ReceivedPackets), 0);
}

fn a_gid() -> Ipv6Addr {
    address::unique_local("127.1.1.1:4791".parse().unwrap())
}

/// Returns the bytes of a tunnelled datagram between the GIDs with the index 1 of two NICs.
fn tunnelled(from: &Network, to: &Network) -> Vec<u8> {
    let way = from.way(&path(1, to.addresses()[1]), number(to)).unwrap();
    let mut transport = Vec::new();
    datagram(number(to), 0, &[], &mut transport);
    let headers = way.route.headers(transport.len());
    let mut bytes = Vec::new();
    headers.emit(&mut bytes);
    bytes.extend_from_slice(&transport);
    bytes.extend_from_slice(&headers.icrc(&transport).to_le_bytes());
    bytes
}

#[test]
fn a_tunnel_to_another_nic_or_from_another_sender_is_refused() {
    let (a, b) = networks();
    let c = open(&Config::default());
    let send_by = |socket: &super::Socket, bytes: &[u8]| {
        let alone = Burst {
            payloads: &[IoSlice::new(bytes)],
            segment: None,
            to: b.local_address(0).unwrap().local,
            traffic_class: 0,
            hop_limit: None,
        };
        assert_eq!(socket.send(&[alone]).unwrap(), 1);
    };
    send_by(socket_of(&a), &tunnelled(&a, &b));
    assert_eq!(receive(&b, 1).len(), 1);
    send_by(socket_of(&a), &tunnelled(&a, &c));
    assert_eq!(receive_datagrams(&b, 1), []);
    assert_eq!(b.counters.value(Counter::Unaddressed), 1);
    send_by(socket_of(&a), &tunnelled(&c, &b));
    assert_eq!(receive_datagrams(&b, 1), []);
    assert_eq!(b.counters.value(Counter::Malformed), 1);
}

/// Checks that the kernel drops packets of programs that are not devices, before they take space in
/// the socket's buffer.
#[test]
fn packets_of_other_senders_occupy_no_socket_buffer() {
    let of_port = |port| {
        open_filtered(&Config {
            port,
            ..Config::default()
        })
    };
    let (here, elsewhere) = (port(), port());
    let (a, b) = (of_port(here), of_port(here));
    let to = b.local_address(0).unwrap().local;
    let (peer, other) = (
        a.local_address(0).unwrap().local.ip(),
        Ipv4Addr::new(127, 0, 78, 1),
    );
    let mut forged = Vec::new();
    datagram(number(&b), 0, &[1; 64], &mut forged);
    let above = address::port_of_slot(here, address::PORT_SLOTS).unwrap();
    for (ip, port) in [
        (peer, 0),
        (other.into(), 0),
        (other.into(), here - 1),
        (other.into(), here - 100),
        (other.into(), above),
    ] {
        let stranger = UdpSocket::bind((ip, port)).unwrap();
        for bytes in [&forged[..], &tunnelled(&a, &b), &[0x60; 100], &[]] {
            stranger.send_to(bytes, to).unwrap();
        }
    }
    // A device with another base port is reached by its GID for tunnels, which contains the port.
    let c = of_port(elsewhere);
    send(&c, &path(1, b.addresses()[1]), number(&b), 8..9);
    send(&a, &path(0, b.addresses()[0]), number(&b), 9..10);
    let got = receive_datagrams(&b, 2);
    assert!(got.iter().map(|got| got.sequence).eq(8..10));
}

/// Sends a packet of a connection from the socket of a NIC to another NIC.
fn send_connected(from: &Network, gid: u8, to: &Network, sequence: u32) {
    let opcode = Opcode::new(Transport::ReliableConnection, Operation::SendOnly);
    let header = Header::new(Bth::new(opcode, number(to), sequence));
    let mut outbox = from.outbox();
    outbox.push(|out| {
        header.emit(out);
        Some(path(gid, to.addresses()[usize::from(gid)]))
    });
    outbox.flush();
}

#[test]
fn packets_for_connections_are_accepted_only_from_peers() {
    let (a, b) = (open(&Config::default()), open_filtered(&Config::default()));
    let others: Vec<_> = (0..3).map(|_| open(&Config::default())).collect();
    let to_a = path(0, a.addresses()[0]);
    let mut sequence = 0;
    let mut round = |gid: u8, is_peer: bool| {
        others
            .iter()
            .for_each(|other| send_connected(other, gid, &b, 1000));
        send_connected(&a, gid, &b, sequence);
        // UD packets are accepted from every device, connected or not.
        send(&a, &path(0, b.addresses()[0]), number(&b), 500..501);
        let got = receive_datagrams(&b, 1 + usize::from(is_peer));
        let expected = is_peer.then_some(sequence).into_iter().chain([500]);
        assert!(got.iter().map(|got| got.sequence).eq(expected), "{got:?}");
        sequence += 1;
    };
    round(0, false);
    // Two queue pairs are connected to that device.
    b.connect(&to_a, number(&a));
    b.connect(&to_a, number(&a));
    (0..2).for_each(|gid| round(gid, true));
    b.disconnect(&to_a, number(&a));
    let to_another = path(0, others[0].addresses()[0]);
    b.connect(&to_another, number(&others[0]));
    b.disconnect(&to_another, number(&others[0]));
    b.connect(&path(1, a_gid()), 0);
    round(0, true);
    b.disconnect(&to_a, number(&a));
    let again = path(0, others[1].addresses()[0]);
    b.connect(&again, number(&others[1]));
    b.disconnect(&again, number(&others[1]));
    let again = path(0, others[2].addresses()[0]);
    b.connect(&again, number(&others[2]));
    send_connected(&a, 0, &b, 7);
    send_connected(&others[2], 0, &b, 8);
    assert_eq!(receive(&b, 1)[0].sequence, 8);
}

/// Checks that packets of all peers are accepted even if there are more peers than a filter can
/// list.
#[test]
fn packets_of_many_peers_are_received() {
    let (a, b) = (open(&Config::default()), open_filtered(&Config::default()));
    let to_a = path(0, a.addresses()[0]);
    for others in 0..=1000_u16 {
        if [0, 100, 127, 128, 1000].contains(&others) {
            b.connect(&to_a, number(&a));
            send_connected(&a, 0, &b, others.into());
            assert_eq!(receive(&b, 1)[0].sequence, u32::from(others));
            b.disconnect(&to_a, number(&a));
        }
        let [high, low] = others.to_be_bytes();
        let other = Ipv4Addr::new(127, 0, 80 + high, low);
        b.connect(&path(0, other.to_ipv6_mapped()), 0);
    }
}

#[test]
fn invalid_routes_are_refused() {
    let (a, b) = networks();
    let addresses = b.addresses();
    let [mapped, carrying] = &addresses[..] else {
        panic!("two GIDs")
    };
    assert!(a.can_send_on(&path(0, *mapped)) && a.can_send_on(&path(1, *carrying)));
    for (source, destination) in [
        (0, *carrying),
        (1, *mapped),
        (2, *mapped),
        (0, Ipv6Addr::UNSPECIFIED),
        (1, "fd00::1".parse().unwrap()),
        (0, "::ffff:0.0.0.0".parse().unwrap()),
    ] {
        assert!(
            !a.can_send_on(&path(source, destination)),
            "{source} {destination}"
        );
        send(&a, &path(source, destination), number(&b), 0..1);
    }
    assert_eq!(a.counters.value(Counter::SendDiscarded), 6);
    assert_eq!(a.counters.value(Counter::SentPackets), 0);
}

#[test]
fn no_packet_is_sent_while_the_link_is_down() {
    let (a, b) = networks();
    let to = path(0, b.addresses()[0]);
    a.faults.set_link(false);
    send(&a, &to, number(&b), 0..3);
    assert_eq!(a.counters.value(Counter::SendDiscarded), 3);
    a.faults.set_link(true);
    b.faults.set_link(false);
    send(&a, &to, number(&b), 3..5);
    assert_eq!(receive_datagrams(&b, 2), []);
    b.faults.set_link(true);
    send(&a, &to, number(&b), 5..6);
    assert_eq!(receive(&b, 1)[0].sequence, 5);
}

/// Sends a hundred packets while faults are injected. Returns the sequence numbers of the received
/// packets in the order of arrival.
fn accidents(faults: NetworkFaults) -> Vec<u32> {
    let (a, b) = networks();
    a.faults.set_network(faults);
    send(&a, &path(0, b.addresses()[0]), number(&b), 0..100);
    let held = a.timers.now() + Duration::from_secs(10);
    a.send_delayed(held, held);
    // This packet is sent last, without faults, and shows that no more packets follow.
    a.faults.set_network(NetworkFaults::default());
    send(&a, &path(0, b.addresses()[0]), number(&b), 100..101);
    let (mut inbox, mut got) = (Inbox::new(), Vec::new());
    let end = Instant::now() + TIMEOUT;
    while got
        .last()
        .is_none_or(|last: &ReceivedPacket| last.sequence != 100)
    {
        assert!(Instant::now() < end, "{got:?}");
        collect(&b, &mut inbox, &mut got);
    }
    got.pop();
    got.iter().map(|got| got.sequence).collect()
}

#[test]
fn faults_are_the_same_for_the_same_seed() {
    let faults = NetworkFaults {
        loss: 0.1,
        duplicate: 0.1,
        reorder: 0.2,
        seed: 42,
        ..NetworkFaults::default()
    };
    let order = accidents(faults);
    assert_eq!(accidents(faults), order);
    assert_ne!(accidents(NetworkFaults { seed: 43, ..faults }), order);
    assert!(!order.is_sorted());
}

#[test]
fn each_fault_has_its_documented_effect() {
    let all = || (0..100).collect::<Vec<u32>>();
    let none = NetworkFaults::default();
    assert_eq!(accidents(none), all());
    assert_eq!(accidents(NetworkFaults { loss: 1.0, ..none }), []);
    let doubled: Vec<u32> = all().into_iter().flat_map(|number| [number; 2]).collect();
    assert_eq!(
        accidents(NetworkFaults {
            duplicate: 1.0,
            ..none
        }),
        doubled
    );
    let latency = Duration::from_secs(1);
    assert_eq!(accidents(NetworkFaults { latency, ..none }), all());
    let mut reordered = accidents(NetworkFaults {
        reorder: 0.3,
        seed: 1,
        ..none
    });
    assert_ne!(reordered, all());
    for (place, &number) in reordered.iter().enumerate() {
        assert!((place as u32).abs_diff(number) <= 8, "{number} at {place}");
    }
    reordered.sort_unstable();
    assert_eq!(reordered, all());
}

#[test]
fn an_address_in_use_selects_the_next_address() {
    let config = Config {
        port: port(),
        ..Config::default()
    };
    let first = address::candidate(std::process::id(), 0);
    let taken = UdpSocket::bind((first, config.port)).unwrap();
    let network = open(&config);
    assert_eq!(network.slot(), 0);
    assert_eq!(network.local_address(0).unwrap().local.port(), config.port);
    assert_ne!(
        network.local_address(0).unwrap().local.ip(),
        IpAddr::V4(first)
    );
    drop(taken);
    assert_eq!(
        open(&config).local_address(0).unwrap().local.ip(),
        IpAddr::V4(first)
    );
}

#[test]
fn a_port_in_use_on_every_address_selects_the_next_slot() {
    let config = Config {
        port: port(),
        ..Config::default()
    };
    // The kernel's driver binds the port in this way.
    let _taken = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, config.port)).unwrap();
    let (a, b) = (open(&config), open(&config));
    assert_eq!((a.slot(), b.slot()), (1, 1));
    assert_eq!(b.local_address(0).unwrap().local.port(), config.port + 100);
    for gid in 0..2 {
        send(
            &a,
            &path(gid, b.addresses()[usize::from(gid)]),
            number(&b),
            0..1,
        );
        assert_eq!(receive(&b, 1).len(), 1);
    }
}

#[test]
fn devices_that_share_an_address_reach_each_other() {
    let addresses = [
        Some(Ipv4Addr::new(127, 88, 2, 1)),
        segmentation::elsewhere(),
    ];
    for address in addresses.into_iter().flatten() {
        let config = Config {
            port: port(),
            addresses: vec![address.into()],
            ..Config::default()
        };
        let devices = [open(&config), open(&config), open(&config)];
        assert_eq!(devices.each_ref().map(Network::slot), [0, 1, 2]);
        for (from, to) in [(0, 1), (1, 2), (2, 1), (1, 0)] {
            let (from, to) = (&devices[from], &devices[to]);
            send(from, &path(0, to.addresses()[0]), number(to), 0..1);
            assert_eq!(receive(to, 1)[0].arrival.slot, Some(from.slot()));
        }
    }
}

#[test]
fn the_port_of_a_remote_host_follows_from_its_packets() {
    let Some(address) = segmentation::elsewhere() else {
        eprintln!("skipped: this host has no address but in 127/8");
        return;
    };
    let device = open(&Config {
        port: port(),
        addresses: vec![address.into()],
        ..Config::default()
    });
    let other = Ipv4Addr::new(192, 0, 2, 7);
    let to = path(0, other.to_ipv6_mapped());
    let way = || device.way(&to, 0x02_1234).unwrap();
    assert!(!way().is_certain);
    device.hosts.record(device.base, (other, 50_000).into());
    assert_eq!((way().is_certain, way().to.port()), (true, device.base));
    device
        .hosts
        .record(device.base, (other, device.base).into());
    let slot = device.base + 200;
    assert_eq!((way().is_certain, way().to.port()), (true, slot));
    // Every packet that is received counts.
    let before = device.hosts.changes();
    send(
        &device,
        &path(0, device.addresses()[0]),
        number(&device),
        0..1,
    );
    receive(&device, 1);
    assert_eq!(device.hosts.changes(), before + 1);
}

#[test]
fn a_configured_address_in_use_is_an_error() {
    let ip = Ipv4Addr::new(127, 88, 1, 1);
    let config = Config {
        port: 65_500,
        addresses: vec![ip.into()],
        ..Config::default()
    };
    let first = open(&config);
    assert_eq!(first.addresses()[0], ip.to_ipv6_mapped());
    // The port is so high that the port range has only one slot.
    let error = try_open(&config).unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::AddrInUse);
    assert!(error.to_string().contains("127.88.1.1:65500"), "{error}");
}

#[test]
fn a_socket_buffers_a_window_of_packets_without_loss() {
    // The expected number is for half of the buffer that an unprivileged process gets under the
    // kernel's default limits.
    let config = Config {
        receive_buffer: 212_992 / 2,
        ..Config::default()
    };
    let (a, b) = (open(&config), open(&config));
    for mtu in [
        Mtu::Mtu256,
        Mtu::Mtu512,
        Mtu::Mtu1024,
        Mtu::Mtu2048,
        Mtu::Mtu4096,
    ] {
        let window = *b.windows(0, mtu).start();
        assert!(window >= 8);
        // Sends the packets first in bursts, and then each packet separately.
        for alone in [false, true] {
            let mut outbox = a.outbox();
            for sequence in 0..window {
                outbox.push(|out| {
                    datagram(number(&b), sequence, &vec![1; mtu.bytes()], out);
                    Some(path(1, b.addresses()[1]))
                });
                if alone {
                    outbox.flush();
                }
            }
            drop(outbox);
            let got = receive(&b, window as usize);
            assert!(got.iter().map(|got| got.sequence).eq(0..window), "{mtu:?}");
        }
    }
    let large = open(&Config::default());
    assert!(large.windows(0, Mtu::Mtu4096).start() >= b.windows(0, Mtu::Mtu4096).start());
    assert!(*large.windows(0, Mtu::Mtu256).end() <= 512);
}

#[test]
fn every_group_member_receives_its_datagrams() {
    let config = Config {
        port: port(),
        ..Config::default()
    };
    let (a, b) = (open(&config), open(&config));
    let ipv4: Ipv6Addr = "ff0e::ffff:239.192.7.1".parse().unwrap();
    let other: Ipv6Addr = "ff12::77:1".parse().unwrap();
    for (gid, group) in [(0, ipv4), (1, ipv4), (1, other)] {
        a.join(group).unwrap();
        b.join(group).unwrap();
        b.join(group).unwrap();
        send(&a, &path(gid, group), MULTICAST, 0..3);
        // The sender is a member of the group, and so receives the datagram, too.
        for network in [&a, &b] {
            let got = receive(network, 3);
            assert!(got.iter().map(|got| got.sequence).eq(0..3));
            for got in got {
                assert_eq!(got.arrival.destination, group);
                assert_eq!(got.arrival.source, a.addresses()[usize::from(gid)]);
                assert_eq!(got.arrival.local, gid);
            }
        }
        a.leave(group);
        b.leave(group);
        send(&a, &path(gid, group), MULTICAST, 3..4);
        assert_eq!(receive(&b, 1)[0].sequence, 3);
        assert_eq!(a.endpoints().sockets().count(), 1);
        b.leave(group);
        assert_eq!(b.endpoints().sockets().count(), 1);
    }
    assert!(a.join(a.addresses()[0]).is_err());
}

#[test]
fn packets_are_received_over_ipv6() {
    let config = Config {
        port: port(),
        addresses: vec![Ipv6Addr::LOCALHOST.into()],
        ..Config::default()
    };
    if UdpSocket::bind((Ipv6Addr::LOCALHOST, config.port)).is_err() {
        eprintln!("skipped: this host has no IPv6");
        return;
    }
    let a = open(&config);
    assert_eq!(a.addresses(), [Ipv6Addr::LOCALHOST]);
    let to = Path {
        traffic_class: 0x68,
        hop_limit: 9,
        ..path(0, Ipv6Addr::LOCALHOST)
    };
    send(&a, &to, number(&a), 0..1);
    let got = receive(&a, 1).remove(0);
    assert_eq!(got.arrival.source, Ipv6Addr::LOCALHOST);
    let first = u32::from_be_bytes(got.arrival.route[..4].try_into().unwrap());
    assert_eq!(first >> 20, 6 << 8 | 0x68);
    assert_eq!(got.arrival.route[7], 9);
}

#[test]
fn every_packet_is_written_to_the_capture() {
    let directory = std::env::temp_dir();
    let file = directory.join(format!("softroce-{}-{}.pcap", std::process::id(), port()));
    let config = Config {
        capture: Some(file.clone()),
        ..Config::default()
    };
    let a = open(&config);
    for gid in 0..2 {
        send(
            &a,
            &path(gid, a.addresses()[usize::from(gid)]),
            number(&a),
            0..2,
        );
    }
    receive(&a, 4);
    let written = std::fs::read(&file).unwrap();
    std::fs::remove_file(&file).unwrap();
    // BTH, DETH, payload, ICRC. For a tunnelled packet, the inner headers are captured.
    let transport = 12 + 8 + 64 + 4;
    let (ipv4, ipv6) = (20 + 8 + transport, 40 + 8 + transport);
    assert_eq!(written.len(), 24 + 4 * (16 + ipv4) + 4 * (16 + ipv6));
}
