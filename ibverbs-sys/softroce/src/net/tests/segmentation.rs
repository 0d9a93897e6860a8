//! Tests of bursts (several packets in one message to the kernel): packets must be sent together,
//! and this must have no other effect.

use std::time::{Duration, Instant};

use super::super::socket::Ring;
use super::{
    ReceivedPacket, collect, datagram, number, open, path, receive, receive_datagrams, socket_of,
};
use crate::config::{Config, Segmentation};
use crate::fault::NetworkFaults;
use crate::net::{Inbox, Network};
use crate::proto::Counter;

pub(super) fn of(segmentation: Segmentation) -> Network {
    open(&Config {
        segmentation,
        ..Config::default()
    })
}

pub(super) const ALL: [Segmentation; 3] = [
    Segmentation::Never,
    Segmentation::Peers,
    Segmentation::Always,
];

/// Sends packets whose payloads have the lengths `sizes`, with the sequence numbers 0, 1, 2 and so
/// on.
fn send(from: &Network, to: &Network, gid: u8, sizes: &[usize]) {
    let mut outbox = from.outbox();
    for (sequence, &size) in sizes.iter().enumerate() {
        outbox.push(|out| {
            datagram(number(to), sequence as u32, &payload(sequence, size), out);
            Some(path(gid, to.addresses()[usize::from(gid)]))
        });
    }
}

fn payload(sequence: usize, size: usize) -> Vec<u8> {
    (0..size).map(|at| (at * 7 + sequence) as u8).collect()
}

/// Returns whether the kernel of this host supports bursts. Without support, packets must arrive,
/// too, but separately.
pub(super) fn supported(network: &Network) -> bool {
    let socket = socket_of(network);
    socket.sends_bursts() && socket.merge_received()
}

/// Receives messages until `datagrams` datagrams have arrived. Returns how many datagrams the
/// kernel has merged in each message.
pub(super) fn messages(network: &Network, datagrams: usize) -> Vec<usize> {
    let (mut ring, mut got) = (Ring::new(), Vec::new());
    let end = Instant::now() + Duration::from_secs(20);
    while got.iter().sum::<usize>() < datagrams {
        assert!(Instant::now() < end, "{got:?}");
        let count = socket_of(network).receive(&mut ring, false).unwrap();
        got.extend((0..count).map(|index| ring.message(index).datagrams()));
    }
    got
}

#[test]
fn packets_of_equal_size_pass_the_kernel_together() {
    let (a, b) = (of(Segmentation::Peers), of(Segmentation::Peers));
    if !supported(&a) {
        eprintln!("skipped: this kernel does not take bursts apart and put them burst_length");
        return;
    }
    for gid in 0..2 {
        send(&a, &b, gid, &[1024; 40]);
        assert_eq!(messages(&b, 40), [40]);
        // The longer packet is sent with the first packet after it.
        let sizes: Vec<usize> = [vec![1040], [1024].repeat(9)].concat();
        send(&a, &b, gid, &sizes);
        assert_eq!(messages(&b, 10), [2, 8]);
    }
    assert_eq!(a.counters.value(Counter::SentPackets), 100);
}

#[test]
fn packets_are_sent_singly_if_configured() {
    let (a, b) = (of(Segmentation::Never), of(Segmentation::Peers));
    send(&a, &b, 0, &[1024; 40]);
    assert_eq!(messages(&b, 40), [1; 40]);
    // The receiver's kernel splits the bursts.
    send(&b, &a, 0, &[1024; 40]);
    assert_eq!(messages(&a, 40), [1; 40]);
    let (sent, received) = (Counter::SentPackets, Counter::ReceivedPackets);
    assert_eq!(
        (a.counters.value(sent), a.counters.value(received)),
        (40, 0)
    );
}

#[test]
fn packets_of_mixed_sizes_are_received_complete_and_in_order() {
    let sizes: Vec<usize> = [
        [4096].repeat(20),
        vec![1, 0, 0, 63, 63, 63, 17, 1024, 1024, 5, 4096, 4095, 4093],
        [1024].repeat(100),
        [0].repeat(70),
        (0..60).collect(),
        (0..60).rev().collect(),
    ]
    .concat();
    for (from, to) in ALL.into_iter().flat_map(|from| ALL.map(|to| (from, to))) {
        let (a, b) = (of(from), of(to));
        for gid in 0..2 {
            send(&a, &b, gid, &sizes);
            let got = receive(&b, sizes.len());
            for (sequence, (got, &size)) in got.iter().zip(&sizes).enumerate() {
                assert_eq!(got.sequence, sequence as u32, "{from:?} {to:?}");
                assert_eq!(got.payload, payload(sequence, size), "{from:?} {to:?}");
                assert_eq!(got.arrival.source, a.addresses()[usize::from(gid)]);
                assert_eq!(got.arrival.destination, b.addresses()[usize::from(gid)]);
            }
        }
        let packets = sizes.len() as u64 * 2;
        assert_eq!(a.counters.value(Counter::SentPackets), packets);
        assert_eq!(b.counters.value(Counter::ReceivedPackets), packets);
        let bytes = [&a, &b].map(|network| {
            let counters = &network.counters;
            counters.value(Counter::SentBytes) + counters.value(Counter::ReceivedBytes)
        });
        assert_eq!(bytes[0], bytes[1]);
    }
}

/// Sends packets with injected faults. Returns the packets that arrive.
fn accidents(segmentation: Segmentation, faults: NetworkFaults) -> Vec<ReceivedPacket> {
    let (a, b) = (of(segmentation), of(segmentation));
    a.faults.set_network(faults);
    send(&a, &b, 0, &[1024; 300]);
    a.send_held();
    a.faults.set_network(NetworkFaults::default());
    let mut outbox = a.outbox();
    outbox.push(|out| {
        datagram(number(&b), LAST, &[], out);
        Some(path(0, b.addresses()[0]))
    });
    drop(outbox);
    let (mut inbox, mut got) = (Inbox::new(), Vec::new());
    let end = Instant::now() + Duration::from_secs(20);
    while got
        .last()
        .is_none_or(|last: &ReceivedPacket| last.sequence != LAST)
    {
        assert!(Instant::now() < end, "{} packets came", got.len());
        collect(&b, &mut inbox, &mut got);
    }
    got
}

const LAST: u32 = 0xff_ffff;

#[test]
fn faults_affect_the_same_packets_in_bursts_as_singly() {
    let faults = NetworkFaults {
        loss: 0.1,
        duplicate: 0.1,
        reorder: 0.1,
        corrupt: 0.1,
        seed: 11,
        ..NetworkFaults::default()
    };
    let numbers = |got: Vec<ReceivedPacket>| got.iter().map(|got| got.sequence).collect::<Vec<_>>();
    let alone = numbers(accidents(Segmentation::Never, faults));
    assert!(alone.len() > 150 && !alone.is_sorted());
    assert_eq!(numbers(accidents(Segmentation::Peers, faults)), alone);
}

#[test]
fn each_packet_of_a_burst_is_damaged_separately() {
    let (a, b) = (of(Segmentation::Peers), of(Segmentation::Peers));
    a.faults.set_network(NetworkFaults {
        corrupt: 0.5,
        seed: 5,
        ..NetworkFaults::default()
    });
    send(&a, &b, 0, &[256; 100]);
    let got = receive_datagrams(&b, 100);
    let wrong = b.counters.value(Counter::WrongIcrc);
    assert_eq!(wrong + got.len() as u64, 100);
    assert!((25..75).contains(&wrong), "{wrong}");
}

#[test]
fn packets_that_the_kernel_refuses_as_a_burst_are_sent_singly() {
    let (a, b) = (of(Segmentation::Peers), of(Segmentation::Peers));
    socket_of(&a).disable_bursts();
    send(&a, &b, 0, &[1024; 20]);
    assert_eq!(messages(&b, 20), [1; 20]);
    assert_eq!(a.counters.value(Counter::SendDiscarded), 0);
}

#[test]
fn every_packet_of_a_burst_is_written_to_the_capture() {
    let file = std::env::temp_dir().join(format!("softroce-bursts-{}.pcap", std::process::id()));
    let a = open(&Config {
        capture: Some(file.clone()),
        ..Config::default()
    });
    send(&a, &a, 0, &[512; 50]);
    receive(&a, 50);
    let written = std::fs::read(&file).unwrap();
    std::fs::remove_file(&file).unwrap();
    let packet = 16 + 20 + 8 + 12 + 8 + 512 + 4;
    assert_eq!(written.len(), 24 + 2 * 50 * packet);
}

/// Returns an address of this host that is not in 127/8, or `None` if the host has no such address.
pub(super) fn elsewhere() -> Option<std::net::Ipv4Addr> {
    let socket = std::net::UdpSocket::bind("0.0.0.0:0").ok()?;
    // No packet is sent: `connect` only makes the kernel choose a source address.
    socket.connect("192.0.2.1:9").ok()?;
    match socket.local_addr().ok()?.ip() {
        std::net::IpAddr::V4(address) if !address.is_loopback() => Some(address),
        _ => None,
    }
}

#[test]
fn packets_outside_loopback_have_the_icrc_of_their_identification() {
    let Some(address) = elsewhere() else {
        eprintln!("skipped: this host has no address but in 127/8");
        return;
    };
    for (segmentation, burst_length) in ALL.into_iter().zip([false, false, true]) {
        let a = open(&Config {
            segmentation,
            addresses: vec![address.into()],
            port: super::port(),
            ..Config::default()
        });
        let burst_length = burst_length && supported(&a);
        let sizes = [256; 40];
        send(&a, &a, 0, &sizes);
        let expected = match segmentation {
            _ if burst_length => vec![40],
            // The packets of a trial, which nobody answers here.
            Segmentation::Peers if supported(&a) => [vec![1; 40], vec![2]].concat(),
            _ => vec![1; 40],
        };
        let datagrams = expected.iter().sum();
        assert_eq!(messages(&a, datagrams), expected, "{segmentation:?}");
        send(&a, &a, 0, &sizes);
        let got = receive(&a, 40);
        assert!(got.iter().map(|got| got.sequence).eq(0..40));
        assert_eq!(a.counters.value(Counter::WrongIcrc), 0);
        // If the receiving kernel does not merge the packets of a burst again, their
        // identifications are unknown.
        a.faults.set_network(NetworkFaults {
            corrupt: 1.0,
            ..NetworkFaults::default()
        });
        send(&a, &a, 0, &sizes);
        let got = receive_datagrams(&a, 40);
        let wrong = a.counters.value(Counter::WrongIcrc);
        assert_eq!(wrong + got.len() as u64, 40);
        assert!(wrong > 35, "{wrong}");
    }
}

#[test]
fn packets_to_a_remote_host_form_bursts_after_a_trial() {
    let Some(address) = elsewhere() else {
        eprintln!("skipped: this host has no address but in 127/8");
        return;
    };
    let a = open(&Config {
        addresses: vec![address.into()],
        port: super::port(),
        ..Config::default()
    });
    if !supported(&a) {
        eprintln!("skipped: this kernel does not take bursts apart and put them burst_length");
        return;
    }
    // A single packet causes no trial.
    send(&a, &a, 0, &[256]);
    receive(&a, 1);
    let sent = |network: &Network| network.counters.value(Counter::SentPackets);
    assert_eq!(sent(&a), 1);
    send(&a, &a, 0, &[256; 2]);
    assert_eq!(sent(&a), 1 + 2 + 2);
    let (mut inbox, mut got) = (Inbox::new(), Vec::new());
    let end = Instant::now() + Duration::from_secs(20);
    while !a.trials.is_proven(address.into(), address.into()) {
        assert!(Instant::now() < end, "no answer");
        collect(&a, &mut inbox, &mut got);
    }
    // The packets of a trial are not delivered.
    assert_eq!(got.len(), 2);
    assert_eq!(sent(&a), 1 + 2 + 2 + 1);
    send(&a, &a, 0, &[1024; 40]);
    assert_eq!(messages(&a, 40), [40]);
    assert_eq!(a.counters.value(Counter::WrongIcrc), 0);
}
