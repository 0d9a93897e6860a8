//! Packets from the network: no bytes make the parser panic, and each accepted packet is emitted
//! again as it was received.

#![no_main]

use libfuzzer_sys::fuzz_target;
use softroce::wire::ip::Headers;
use softroce::wire::{Packet, icrc};

fuzz_target!(|bytes: &[u8]| {
    check_transport(bytes);
    if let Some((headers, rest)) = Headers::parse(bytes) {
        check_headers(&headers, rest, bytes);
    }
});

/// Parses `bytes` as a packet from the BTH to the padding, and checks that encoding the result
/// gives the same bytes.
fn check_transport(bytes: &[u8]) {
    let Ok(packet) = Packet::parse(bytes) else {
        return;
    };
    let header = &packet.header;
    assert_eq!(
        header.len() + packet.payload.len() + usize::from(header.bth.pad),
        bytes.len()
    );

    let mut again = Vec::new();
    packet.emit(&mut again);
    // Fields that a receiver ignores are emitted as zeros.
    let mut expected = bytes.to_vec();
    expected[4] = 0;
    expected[8] &= 0x80;
    if header.xrc_srq.is_some() {
        expected[12] = 0;
    }
    if header.deth.is_some() {
        expected[16] = 0;
    }
    if header.feth.is_some() {
        let feth = if header.xrc_srq.is_some() { 16 } else { 12 };
        expected[feth..feth + 3].fill(0);
        expected[feth + 3] &= 0x3f;
    }
    expected[header.len() + packet.payload.len()..].fill(0);
    assert_eq!(again, expected);
    assert_eq!(Packet::parse(&again), Ok(packet));
}

/// Checks the headers and the ICRC of a parsed packet: encoding them again gives the same bytes.
/// `rest` is the packet behind its IP and UDP headers.
fn check_headers(headers: &Headers, rest: &[u8], bytes: &[u8]) {
    let mut again = Vec::new();
    headers.emit(&mut again);
    again.extend_from_slice(rest);
    assert_eq!(again, bytes);

    let route = headers.route();
    let _ = headers.global_route();
    let Some((transport, received)) = icrc::split(rest) else {
        return;
    };
    let built = route.headers(transport.len());
    assert_eq!(built.route(), route);
    let icrc = headers.icrc(transport);
    match (headers, &built) {
        (Headers::V4 { ip, udp }, Headers::V4 { ip: known, .. }) => {
            // A different identification explains a different ICRC; no other field of the header
            // does.
            let mut other = *ip;
            other[4..6].fill(0);
            assert!(icrc::explained_by_identification(
                &other, udp, transport, icrc
            ));
            let other_fragment = ip[6..8] != known[6..8];
            let explained = icrc::explained_by_identification(known, udp, transport, icrc);
            assert_eq!(explained, !other_fragment);
        }
        // Two mapped addresses in an IPv6 header make a route over IPv4.
        (Headers::V6 { ip, .. }, _) => {
            assert_eq!(built.icrc(transport) == icrc, built.ip().len() == ip.len());
        }
        (Headers::V4 { .. }, Headers::V6 { .. }) => unreachable!("IPv4 addresses are mapped"),
    }
    if received == icrc {
        check_transport(transport);
    }
}
