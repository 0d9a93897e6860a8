//! Tests of runs (consecutive packets of one size in a message): each packet must arrive unchanged,
//! by every route.

use std::time::{Duration, Instant};

use super::segmentation::{ALL, elsewhere, messages, of, supported};
use super::{
    Inbox, Network, ReceivedPacket, TIMEOUT, collect, number, open, path, receive,
    receive_datagrams,
};
use crate::config::Config;
use crate::fault::NetworkFaults;
use crate::proto::{Counter, Run};
use crate::wire::{Bth, Header, Opcode, Operation, Packet, Transport};

const PAYLOAD: usize = 1024;
const LENGTH: usize = 12 + PAYLOAD;

/// Returns the bytes of a packet of an RDMA write, from BTH to pad.
fn packet(to: &Network, operation: Operation, sequence: u32) -> Vec<u8> {
    let opcode = Opcode::new(Transport::ReliableConnection, operation);
    let header = Header::new(Bth {
        acknowledge: sequence.is_multiple_of(16),
        ..Bth::new(opcode, number(to), sequence)
    });
    let mut bytes = Vec::new();
    let payload = &payload(sequence);
    Packet { header, payload }.emit(&mut bytes);
    bytes
}

fn payload(sequence: u32) -> Vec<u8> {
    (0..PAYLOAD)
        .map(|at| (at as u32 * 7 + sequence) as u8)
        .collect()
}

/// Sends `packets` middle packets of a message, numbered from 0 on, as runs (consecutive packets of
/// one size) where possible, and then the last packet. Returns the number of packets that were sent
/// in runs.
fn send(from: &Network, to: &Network, gid: u8, packets: u32) -> u32 {
    let mut outbox = from.outbox();
    let (mut sequence, mut in_runs) = (0, 0);
    let path = path(gid, to.addresses()[usize::from(gid)]);
    while sequence < packets {
        let run = Run {
            path,
            destination: number(to),
            length: LENGTH,
            count: (packets - sequence) as usize,
        };
        let before = sequence;
        let taken = outbox.push_run(&run, |count, out| {
            assert!(count > 1 && out.len() == count * (LENGTH + 4));
            for bytes in out.chunks_exact_mut(LENGTH + 4) {
                let packet = packet(to, Operation::WriteMiddle, sequence);
                bytes[..LENGTH].copy_from_slice(&packet);
                sequence += 1;
            }
            true
        });
        in_runs += sequence - before;
        if !taken {
            outbox.push(|out| {
                out.extend(packet(to, Operation::WriteMiddle, sequence));
                Some(path)
            });
            sequence += 1;
        }
    }
    outbox.push(|out| {
        out.extend(packet(to, Operation::WriteLast, sequence));
        Some(path)
    });
    in_runs
}

/// Checks that `packets` packets arrived, once each and in order.
fn check(got: &[ReceivedPacket], packets: u32) {
    let numbers = got.iter().map(|got| got.sequence);
    assert!(numbers.eq(0..=packets), "{}", got.len());
    for got in got {
        assert_eq!(got.payload, payload(got.sequence));
    }
}

#[test]
fn packets_of_a_run_are_received_complete_and_in_order() {
    for (from, to) in ALL.into_iter().flat_map(|from| ALL.map(|to| (from, to))) {
        let (a, b) = (of(from), of(to));
        for (gid, packets) in [(0, 2), (0, 150), (1, 150)] {
            let in_runs = send(&a, &b, gid, packets);
            // Tunnelled packets are not sent in runs, because each has headers in front of it.
            assert_eq!(in_runs > 0, gid == 0);
            check(&receive(&b, packets as usize + 1), packets);
        }
        let sent = [Counter::SentPackets, Counter::SentBytes].map(|c| a.counters.value(c));
        let came = [Counter::ReceivedPackets, Counter::ReceivedBytes].map(|c| b.counters.value(c));
        assert_eq!(sent, came);
        assert_eq!(sent[0], 3 + 151 + 151);
    }
}

#[test]
fn a_run_passes_the_kernel_and_is_received_together() {
    let (a, b) = (of(ALL[1]), of(ALL[1]));
    if !supported(&a) {
        eprintln!("skipped: this kernel does not take bursts apart and put them burst_length");
        return;
    }
    send(&a, &b, 0, 40);
    assert_eq!(messages(&b, 41), [41], "and the last one with them");
    send(&a, &b, 0, 40);
    let mut counts = Vec::new();
    let mut inbox = Inbox::new();
    let end = Instant::now() + TIMEOUT;
    while counts.iter().sum::<usize>() < 41 {
        assert!(Instant::now() < end, "these came: {counts:?}");
        b.receive(&mut inbox, true, |packets| {
            counts.extend(packets.map(|(_, run)| run.count()));
        });
    }
    assert_eq!(counts, [40, 1]);
}

#[test]
fn each_packet_of_a_run_is_damaged_and_captured_separately() {
    let (a, b) = (of(ALL[1]), of(ALL[1]));
    a.faults.set_network(NetworkFaults {
        corrupt: 0.5,
        seed: 5,
        ..NetworkFaults::default()
    });
    assert_eq!(send(&a, &b, 0, 99), 0, "accidents are those of packets");
    let got = receive_datagrams(&b, 100);
    let wrong = b.counters.value(Counter::WrongIcrc);
    assert_eq!(wrong + got.len() as u64, 100);
    assert!((25..75).contains(&wrong), "{wrong}");
    assert!(got.iter().all(|got| got.payload == payload(got.sequence)));

    let file = std::env::temp_dir().join(format!("softroce-runs-{}.pcap", std::process::id()));
    let a = open(&Config {
        capture: Some(file.clone()),
        ..Config::default()
    });
    assert_eq!(send(&a, &a, 0, 49), 0);
    check(&receive(&a, 50), 49);
    let written = std::fs::read(&file).unwrap();
    std::fs::remove_file(&file).unwrap();
    assert_eq!(written.len(), 24 + 2 * 50 * (16 + 20 + 8 + LENGTH + 4));
}

/// Sends 151 packets with the injected faults `faults`. Returns the number of packets that were
/// sent in runs, and the sequence numbers of the received packets.
fn received_with(faults: NetworkFaults) -> (u32, Vec<u32>) {
    let (a, b) = (of(ALL[1]), of(ALL[1]));
    a.faults.set_network(faults);
    let in_runs = send(&a, &b, 0, 150);
    a.faults.set_network(NetworkFaults::default());
    // The number 0 after other numbers shows that no more packets follow.
    send(&a, &b, 0, 0);
    let (mut inbox, mut got) = (Inbox::new(), Vec::new());
    let end = Instant::now() + TIMEOUT;
    while got.len() < 2
        || got
            .last()
            .is_some_and(|last: &ReceivedPacket| last.sequence != 0)
    {
        assert!(Instant::now() < end, "{}", got.len());
        collect(&b, &mut inbox, &mut got);
    }
    got.pop();
    (in_runs, got.iter().map(|got| got.sequence).collect())
}

#[test]
fn a_run_loses_the_packets_that_would_be_lost_separately() {
    let faults = NetworkFaults {
        loss: 0.3,
        seed: 5,
        ..NetworkFaults::default()
    };
    // Packets that may be duplicated are sent separately.
    let separately = NetworkFaults {
        duplicate: f64::MIN_POSITIVE,
        ..faults
    };
    let (in_runs, got) = received_with(faults);
    assert!(in_runs > 100, "{in_runs}");
    assert!((75..135).contains(&got.len()), "{got:?}");
    assert_eq!(received_with(separately), (0, got));
}

#[test]
fn runs_are_held_back_for_the_latency_and_keep_their_order() {
    let (a, b) = (of(ALL[1]), of(ALL[1]));
    a.faults.set_network(NetworkFaults {
        latency: Duration::from_secs(3600),
        ..NetworkFaults::default()
    });
    assert!(send(&a, &b, 0, 150) > 0);
    // Over the loopback interface, sent packets are in the receiver's socket already.
    assert_eq!(collect(&b, &mut Inbox::new(), &mut Vec::new()), 0);
    a.send_held();
    check(&receive(&b, 151), 150);
}

#[test]
fn only_the_invalid_packet_of_a_run_is_dropped() {
    let (a, b) = (of(ALL[1]), of(ALL[1]));
    let run = Run {
        path: path(0, b.addresses()[0]),
        destination: number(&b),
        length: LENGTH,
        count: 20,
    };
    // Damages a packet after its ICRC was computed; the outbox is not sent before.
    let mut outbox = a.outbox();
    outbox.push_run(&run, |_, out| {
        for (sequence, bytes) in (0..).zip(out.chunks_exact_mut(LENGTH + 4)) {
            bytes[..LENGTH].copy_from_slice(&packet(&b, Operation::WriteMiddle, sequence));
        }
        true
    });
    outbox.damage(7 * (LENGTH + 4) + 100);
    drop(outbox);
    let got = receive(&b, 19);
    let numbers: Vec<u32> = got.iter().map(|got| got.sequence).collect();
    assert_eq!(numbers, [(0..7), (8..20)].map(Vec::from_iter).concat());
    assert_eq!(b.counters.value(Counter::WrongIcrc), 1);
}

#[test]
fn packets_outside_loopback_have_the_icrc_of_their_identification() {
    let Some(address) = elsewhere() else {
        eprintln!("skipped: this host has no address but in 127/8");
        return;
    };
    for segmentation in ALL {
        let a = open(&Config {
            segmentation,
            addresses: vec![address.into()],
            port: super::port(),
            ..Config::default()
        });
        assert!(send(&a, &a, 0, 150) > 0);
        check(&receive(&a, 151), 150);
        assert_eq!(a.counters.value(Counter::WrongIcrc), 0);
    }
}
