//! Writes the seeds of the corpora: `cargo run --bin seeds` in this directory.

use std::net::{Ipv4Addr, Ipv6Addr};
use std::path::Path;
use std::{fs, io};

use softroce::wire::ip::{self, Route};
use softroce::wire::{
    Aeth, AtomicEth, Bth, Deth, Feth, Header, Nak, Opcode, Packet, Reth, Syndrome, Transport,
};

fn main() -> io::Result<()> {
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus");
    packets(&corpus.join("packet"))?;
    calls(&corpus.join("attributes"))?;
    for target in ["handshake", "ring", "tables", "manufacturer", "queue_pair"] {
        steps(&corpus.join(target))?;
    }
    Ok(())
}

/// Writes seeds for fuzz targets that derive steps from arbitrary bytes: zeros, counting bytes, and
/// pseudo-random bytes.
fn steps(corpus: &Path) -> io::Result<()> {
    fs::create_dir_all(corpus)?;
    fs::write(corpus.join("zeros"), [0; 64])?;
    let counting: Vec<u8> = (0..=255).collect();
    fs::write(corpus.join("counting"), counting)?;
    runs(corpus, 400)
}

/// Writes seeds for the fuzz target that calls verbs: one seed for each verb, with simple
/// arguments, and seeds of pseudo-random bytes.
fn calls(corpus: &Path) -> io::Result<()> {
    fs::create_dir_all(corpus)?;
    for call in 0..18_u8 {
        let mut bytes = vec![0; 24];
        bytes.push(call);
        bytes.extend([1; 40]);
        fs::write(corpus.join(format!("call-{call}")), bytes)?;
    }
    runs(corpus, 700)
}

/// Writes eight seeds of `length` pseudo-random bytes each.
fn runs(corpus: &Path, length: usize) -> io::Result<()> {
    for seed in 1..9_u32 {
        let mut state = seed;
        let mut next = || {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 24) as u8
        };
        let bytes: Vec<u8> = (0..length).map(|_| next()).collect();
        fs::write(corpus.join(format!("run-{seed}")), bytes)?;
    }
    Ok(())
}

/// Writes a packet of every opcode as a seed, and some packets also with their IP and UDP headers.
fn packets(corpus: &Path) -> io::Result<()> {
    fs::create_dir_all(corpus)?;
    for opcode in Opcode::all() {
        let mut transport = Vec::new();
        let payload: &[u8] = if opcode.has_payload() { b"hello" } else { b"" };
        let header = header(opcode, payload.len());
        Packet { header, payload }.emit(&mut transport);
        let service = match opcode.transport {
            Transport::ReliableConnection => "rc",
            Transport::UnreliableConnection => "uc",
            Transport::UnreliableDatagram => "ud",
            Transport::ExtendedReliableConnection => "xrc",
            Transport::Manufacturer => "own",
        };
        let name = format!("{service}-{:?}", opcode.operation);
        fs::write(corpus.join(&name), &transport)?;
        if opcode.is_only() && opcode.is_send() {
            for (version, addresses) in addresses() {
                fs::write(
                    corpus.join(format!("{version}-{name}")),
                    over(addresses, &transport),
                )?;
            }
        }
    }
    for (name, syndrome) in [
        ("rnr", Syndrome::ReceiverNotReady { timer: 12 }),
        ("nak-sequence", Syndrome::Nak(Nak::SequenceError)),
        ("nak-access", Syndrome::Nak(Nak::RemoteAccessError)),
    ] {
        let mut header = header(Opcode::from_byte(0x11).expect("acknowledge"), 0);
        header.aeth = Some(Aeth {
            syndrome,
            message_sequence: 5,
        });
        let mut bytes = Vec::new();
        header.emit(&mut bytes);
        fs::write(corpus.join(format!("rc-{name}")), bytes)?;
    }
    Ok(())
}

fn header(opcode: Opcode, payload: usize) -> Header {
    Header {
        bth: Bth {
            solicited: opcode.ends_message(),
            pad: Header::pad_for(payload),
            acknowledge: opcode.ends_message(),
            ..Bth::new(opcode, 0x11, 0xff_ffff)
        },
        xrc_srq: opcode.has_xrc_srq().then_some(3),
        deth: opcode.has_deth().then_some(Deth {
            queue_key: 0x1111_1111,
            source: 0x12,
        }),
        feth: opcode.has_feth().then_some(Feth {
            placement: 1,
            level: 0,
        }),
        reth: opcode.has_reth().then_some(Reth {
            address: 0x7000,
            key: 0x100,
            length: 5,
        }),
        atomic: opcode.has_atomic().then_some(AtomicEth {
            address: 0x7000,
            key: 0x100,
            swap_or_add: 1,
            compare: 2,
        }),
        aeth: opcode.has_aeth().then_some(Aeth {
            syndrome: Syndrome::Ack { credits: 31 },
            message_sequence: 1,
        }),
        original: opcode.has_original().then_some(42),
        immediate: opcode.has_immediate().then_some(*b"imm!"),
        invalidate: opcode.has_invalidate().then_some(0x100),
    }
}

fn addresses() -> [(&'static str, [Ipv6Addr; 2]); 2] {
    let v4 = |last| Ipv4Addr::new(127, 0, 0, last).to_ipv6_mapped();
    let v6 = |last| Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, last);
    [("v4", [v4(1), v4(2)]), ("v6", [v6(1), v6(2)])]
}

fn over([source, destination]: [Ipv6Addr; 2], transport: &[u8]) -> Vec<u8> {
    let route = Route {
        source,
        destination,
        source_port: 0xc001,
        destination_port: ip::PORT,
        traffic_class: 0,
        hop_limit: 64,
        flow_label: 0,
    };
    let headers = route.headers(transport.len());
    let mut packet = Vec::new();
    headers.emit(&mut packet);
    packet.extend_from_slice(transport);
    packet.extend_from_slice(&headers.icrc(transport).to_le_bytes());
    packet
}
