use std::net::Ipv6Addr;

use crate::proto::Path;
use crate::sim::random::splitmix;
use crate::wire::ip::{Headers, PORT, Route};
use crate::wire::{Packet, icrc};

/// Appends a packet to `out` in the form that a network transmits: with IP and UDP headers before
/// the bytes `transport` (from BTH to pad), and the ICRC after them.
pub(super) fn emit(source: Ipv6Addr, path: &Path, transport: &[u8], out: &mut Vec<u8>) {
    let route = Route {
        source,
        destination: path.destination,
        source_port: 0xc000,
        destination_port: PORT,
        traffic_class: path.traffic_class,
        hop_limit: path.hop_limit,
        flow_label: path.flow_label,
    };
    let headers = route.headers(transport.len());
    headers.emit(out);
    out.extend_from_slice(transport);
    out.extend_from_slice(&headers.icrc(transport).to_le_bytes());
}

/// Parses a packet with its IP and UDP headers. Returns `None` if a header is malformed, or if the
/// checksum (ICRC) shows that the bytes were changed.
pub(super) fn accept(bytes: &[u8]) -> Option<(Headers, Packet<'_>)> {
    let (headers, rest) = Headers::parse(bytes)?;
    let (transport, found) = icrc::split(rest)?;
    if headers.icrc(transport) != found {
        return None;
    }
    Some((headers, Packet::parse(transport).ok()?))
}

/// Flips up to three bits of a packet, or several bits within four consecutive bytes. The random
/// number `how` determines the bits. A 32-bit CRC detects each of these changes.
pub(super) fn corrupt(bytes: &mut [u8], mut how: u64) {
    let bits = bytes.len() * 8;
    if how & 1 == 0 {
        for _ in 0..=(how >> 1) % 3 {
            let bit = (splitmix(&mut how) % bits as u64) as usize;
            bytes[bit / 8] ^= 1 << (bit % 8);
        }
    } else {
        let first = (splitmix(&mut how) % (bytes.len() as u64 - 3)) as usize;
        let pattern = (splitmix(&mut how) as u32 | 1).to_le_bytes();
        for (byte, flip) in bytes[first..].iter_mut().zip(pattern) {
            *byte ^= flip;
        }
    }
}
