//! IP and UDP headers of a packet, as Linux sends them from an unconnected UDP socket that forbids
//! fragmentation: no IPv4 options, identification 0, and the don't-fragment bit.
//!
//! A socket neither accepts nor reports these headers. The headers are built for other purposes:
//! the ICRC covers them, the receiver of a datagram gets them, captures contain them, and packets
//! between IPv6 GIDs carry them before the BTH.

use std::net::{Ipv4Addr, Ipv6Addr};

use super::icrc;

/// The UDP port of RoCEv2 (IBTA annex A17).
pub const PORT: u16 = 4791;

/// Protocol number of UDP, in the protocol field (IPv4) or next header field (IPv6) of an IP
/// header.
const UDP: u8 = 17;

/// Fields from which the IP header and the UDP header of a packet are built.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Route {
    /// Source address. If source and destination are IPv4-mapped, the packet is sent over IPv4.
    pub source: Ipv6Addr,
    /// Destination address.
    pub destination: Ipv6Addr,
    /// UDP source port.
    pub source_port: u16,
    /// UDP destination port.
    pub destination_port: u16,
    /// Traffic class of IPv6, or TOS of IPv4.
    pub traffic_class: u8,
    /// Hop limit of IPv6, or time to live of IPv4.
    pub hop_limit: u8,
    /// Flow label of IPv6 (20 bits). 0 for IPv4.
    pub flow_label: u32,
}

/// The IP header and the UDP header of a packet, in encoded form.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "the headers' names")]
pub enum Headers {
    /// Headers of a packet over IPv4.
    V4 { ip: [u8; 20], udp: [u8; 8] },
    /// Headers of a packet over IPv6.
    V6 { ip: [u8; 40], udp: [u8; 8] },
}

impl Route {
    /// Returns the headers of a packet with `transport` bytes between the UDP header and the ICRC.
    /// The length fields of the headers include the ICRC. If a length does not fit into 16 bits,
    /// the field contains its low 16 bits.
    pub fn headers(&self, transport: usize) -> Headers {
        let udp_len = transport.wrapping_add(8 + 4) as u16;
        let mut udp = [0; 8];
        udp[..2].copy_from_slice(&self.source_port.to_be_bytes());
        udp[2..4].copy_from_slice(&self.destination_port.to_be_bytes());
        udp[4..6].copy_from_slice(&udp_len.to_be_bytes());
        // The checksum stays 0 (not used): the ICRC covers more, so senders of RoCEv2 omit it,
        // which IPv6 allows for tunnels too (RFC 6935).
        match (
            self.source.to_ipv4_mapped(),
            self.destination.to_ipv4_mapped(),
        ) {
            (Some(source), Some(destination)) => Headers::V4 {
                ip: self.ipv4(source, destination, udp_len.wrapping_add(20)),
                udp,
            },
            _ => Headers::V6 {
                ip: self.ipv6(udp_len),
                udp,
            },
        }
    }

    fn ipv4(&self, source: Ipv4Addr, destination: Ipv4Addr, total: u16) -> [u8; 20] {
        let mut ip = [0; 20];
        ip[0] = 0x45; // version 4, five words
        ip[1] = self.traffic_class;
        ip[2..4].copy_from_slice(&total.to_be_bytes());
        ip[6] = 0x40; // don't fragment
        ip[8] = self.hop_limit;
        ip[9] = UDP;
        ip[12..16].copy_from_slice(&source.octets());
        ip[16..20].copy_from_slice(&destination.octets());
        let checksum = checksum(&ip);
        ip[10..12].copy_from_slice(&checksum.to_be_bytes());
        ip
    }

    fn ipv6(&self, payload: u16) -> [u8; 40] {
        let mut ip = [0; 40];
        let first = 6 << 28 | u32::from(self.traffic_class) << 20 | self.flow_label & 0xf_ffff;
        ip[..4].copy_from_slice(&first.to_be_bytes());
        ip[4..6].copy_from_slice(&payload.to_be_bytes());
        ip[6] = UDP;
        ip[7] = self.hop_limit;
        ip[8..24].copy_from_slice(&self.source.octets());
        ip[24..40].copy_from_slice(&self.destination.octets());
        ip
    }
}

impl Headers {
    /// Parses the IP header and the UDP header of a packet. Returns both headers, and the bytes
    /// after them, from BTH to ICRC. Returns `None` if `bytes` is not exactly one UDP packet, or if
    /// the IPv4 checksum is wrong. Also returns `None` for a fragment, and for IP options or
    /// extension headers. The UDP checksum is ignored, because the ICRC covers more.
    pub fn parse(bytes: &[u8]) -> Option<(Self, &[u8])> {
        match bytes.first()? >> 4 {
            4 => {
                let (ip, rest) = bytes.split_first_chunk::<20>()?;
                let whole = [ip[6] & 0xbf, ip[7]] == [0, 0];
                let len = usize::from(u16::from_be_bytes([ip[2], ip[3]]));
                let plain = ip[0] == 0x45 && ip[9] == UDP && checksum(ip) == 0;
                if !whole || !plain || len != bytes.len() {
                    return None;
                }
                let (udp, rest) = parse_udp(rest)?;
                Some((Self::V4 { ip: *ip, udp }, rest))
            }
            6 => {
                let (ip, rest) = bytes.split_first_chunk::<40>()?;
                let len = usize::from(u16::from_be_bytes([ip[4], ip[5]]));
                if ip[6] != UDP || len != rest.len() {
                    return None;
                }
                let (udp, rest) = parse_udp(rest)?;
                Some((Self::V6 { ip: *ip, udp }, rest))
            }
            _ => None,
        }
    }

    /// Returns the bytes of the encoded IP header: 20 bytes for IPv4, or 40 bytes for IPv6.
    pub fn ip(&self) -> &[u8] {
        match self {
            Self::V4 { ip, .. } => ip,
            Self::V6 { ip, .. } => ip,
        }
    }

    /// Returns the eight bytes of the encoded UDP header.
    pub fn udp(&self) -> &[u8; 8] {
        match self {
            Self::V4 { udp, .. } | Self::V6 { udp, .. } => udp,
        }
    }

    /// Sets the identification field of an IPv4 header to `identification`. Does nothing to an IPv6
    /// header, which has no such field.
    pub fn set_identification(&mut self, identification: u16) {
        if let Self::V4 { ip, .. } = self {
            ip[4..6].copy_from_slice(&identification.to_be_bytes());
            ip[10..12].fill(0);
            let checksum = checksum(ip);
            ip[10..12].copy_from_slice(&checksum.to_be_bytes());
        }
    }

    /// Appends the encoded IP header and UDP header to `out`, the bytes of a packet.
    pub fn emit(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(self.ip());
        out.extend_from_slice(self.udp());
    }

    /// Returns the ICRC of a packet with these headers. `transport` has the bytes from BTH to pad.
    pub fn icrc(&self, transport: &[u8]) -> u32 {
        self.begin_icrc().finish(transport)
    }

    /// Begins the calculation of a packet's ICRC (invariant CRC) with these IP and UDP headers.
    /// [`PartialIcrc::finish`](icrc::PartialIcrc::finish) adds the rest of the packet.
    pub fn begin_icrc(&self) -> icrc::PartialIcrc {
        match self {
            Self::V4 { ip, udp } => icrc::PartialIcrc::ipv4(ip, udp),
            Self::V6 { ip, udp } => icrc::PartialIcrc::ipv6(ip, udp),
        }
    }

    /// Returns the fields of the IP header and the UDP header in decoded form.
    pub fn route(&self) -> Route {
        let udp = self.udp();
        let port = |at: usize| u16::from_be_bytes([udp[at], udp[at + 1]]);
        let (source_port, destination_port) = (port(0), port(2));
        match self {
            Self::V4 { ip, .. } => {
                let address = |at: usize| {
                    Ipv4Addr::new(ip[at], ip[at + 1], ip[at + 2], ip[at + 3]).to_ipv6_mapped()
                };
                Route {
                    source: address(12),
                    destination: address(16),
                    source_port,
                    destination_port,
                    traffic_class: ip[1],
                    hop_limit: ip[8],
                    flow_label: 0,
                }
            }
            Self::V6 { ip, .. } => {
                let address = |at: usize| {
                    let mut octets = [0; 16];
                    octets.copy_from_slice(&ip[at..at + 16]);
                    Ipv6Addr::from(octets)
                };
                let first = u32::from_be_bytes([ip[0], ip[1], ip[2], ip[3]]);
                Route {
                    source: address(8),
                    destination: address(24),
                    source_port,
                    destination_port,
                    traffic_class: (first >> 20) as u8,
                    hop_limit: ip[7],
                    flow_label: first & 0xf_ffff,
                }
            }
        }
    }

    /// Returns the global route header (GRH, 40 bytes), which a receiver stores before the payload
    /// of a datagram. For IPv6, the GRH is the IPv6 header. For IPv4, the GRH is 20 bytes without
    /// meaning and the IPv4 header (IBTA annex A17.4.5.1).
    pub fn global_route(&self) -> [u8; 40] {
        match self {
            Self::V4 { ip, .. } => {
                let mut bytes = [0; 40];
                bytes[20..].copy_from_slice(ip);
                bytes
            }
            Self::V6 { ip, .. } => *ip,
        }
    }
}

fn parse_udp(bytes: &[u8]) -> Option<([u8; 8], &[u8])> {
    let (udp, rest) = bytes.split_first_chunk::<8>()?;
    let len = usize::from(u16::from_be_bytes([udp[4], udp[5]]));
    (len == bytes.len()).then_some((*udp, rest))
}

/// Returns the Internet checksum (RFC 1071) of all bytes of an IPv4 header, including its checksum
/// field. The result is 0 if the field contains the valid checksum. If the field is 0, the result
/// is the checksum.
fn checksum(header: &[u8; 20]) -> u16 {
    let sum: u32 = header
        .chunks_exact(2)
        .map(|word| u32::from(u16::from_be_bytes([word[0], word[1]])))
        .sum();
    // The sum of ten words is so small that carries are added at most twice.
    let folded = (sum & 0xffff) + (sum >> 16);
    !((folded & 0xffff) + (folded >> 16)) as u16
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn v4() -> Route {
        Route {
            source: Ipv4Addr::new(10, 0, 17, 1).to_ipv6_mapped(),
            destination: Ipv4Addr::new(10, 0, 18, 1).to_ipv6_mapped(),
            source_port: 0xc000,
            destination_port: PORT,
            traffic_class: 0xc2,
            hop_limit: 64,
            flow_label: 0,
        }
    }

    fn v6() -> Route {
        Route {
            source: "fd00::1".parse().unwrap(),
            destination: "fd00::2".parse().unwrap(),
            flow_label: 0x12345,
            traffic_class: 0x2b,
            hop_limit: 33,
            ..v4()
        }
    }

    #[test]
    fn ipv4_headers_have_the_specified_bytes() {
        let Headers::V4 { ip, udp } = v4().headers(28) else {
            panic!("IPv4")
        };
        #[rustfmt::skip]
        assert_eq!(ip, [
            0x45, 0xc2, 0, 60, 0, 0, 0x40, 0, 64, 17, 0x02, 0xee, 10, 0, 17, 1, 10, 0, 18, 1,
        ]);
        assert_eq!(udp, [0xc0, 0, 0x12, 0xb7, 0, 40, 0, 0]);
    }

    #[test]
    fn ipv6_headers_have_the_specified_bytes() {
        let Headers::V6 { ip, udp } = v6().headers(20) else {
            panic!("IPv6")
        };
        assert_eq!(ip[..8], [0x62, 0xb1, 0x23, 0x45, 0, 0x20, 17, 33]);
        assert_eq!(ip[8..24], v6().source.octets());
        assert_eq!(ip[24..], v6().destination.octets());
        assert_eq!(udp, [0xc0, 0, 0x12, 0xb7, 0, 0x20, 0, 0]);
    }

    #[test]
    fn an_ipv4_header_is_at_the_end_of_the_global_routing_header() {
        let headers = v4().headers(20);
        assert_eq!(headers.global_route()[20..], *headers.ip());
        let headers = v6().headers(20);
        assert_eq!(headers.global_route()[..], *headers.ip());
    }

    #[test]
    fn an_incomplete_udp_packet_is_refused() {
        for route in [v4(), v6()] {
            let mut packet = Vec::new();
            route.headers(12).emit(&mut packet);
            packet.extend_from_slice(&[7; 16]);
            assert!(Headers::parse(&packet).is_some());
            for len in 0..packet.len() {
                assert_eq!(Headers::parse(&packet[..len]), None, "{len} bytes");
            }
            let longer = [&packet[..], &[0]].concat();
            assert_eq!(Headers::parse(&longer), None);
        }
        let refused = |at: usize, bit: u8| {
            let mut packet = Vec::new();
            v4().headers(12).emit(&mut packet);
            packet.extend_from_slice(&[7; 16]);
            packet[at] ^= bit;
            packet[10..12].fill(0);
            let right = checksum(packet[..20].try_into().unwrap());
            packet[10..12].copy_from_slice(&right.to_be_bytes());
            Headers::parse(&packet).is_none()
        };
        assert!(refused(0, 1), "options");
        assert!(refused(6, 0x20), "more fragments");
        assert!(refused(7, 1), "a fragment that is not the first");
        assert!(refused(9, 1), "another protocol");
        assert!(!refused(6, 0x40), "may be fragmented, but is not");
        assert!(!refused(8, 1), "another time to live");
    }

    proptest! {
        #[test]
        fn headers_are_decoded_as_encoded(
            mapped in any::<bool>(), source in any::<u128>(), destination in any::<u128>(),
            ports in any::<(u16, u16)>(), traffic_class in any::<u8>(), hop_limit in any::<u8>(),
            flow_label in 0..1_u32 << 20, payload in proptest::collection::vec(any::<u8>(), 12..80),
        ) {
            let address = |bits: u128| {
                if mapped { Ipv4Addr::from(bits as u32).to_ipv6_mapped() } else { Ipv6Addr::from(bits) }
            };
            let route = Route {
                source: address(source),
                destination: address(destination),
                source_port: ports.0,
                destination_port: ports.1,
                traffic_class,
                hop_limit,
                flow_label: if mapped { 0 } else { flow_label },
            };
            let headers = route.headers(payload.len());
            let mut packet = Vec::new();
            headers.emit(&mut packet);
            packet.extend_from_slice(&payload);
            packet.extend_from_slice(&headers.icrc(&payload).to_le_bytes());
            let (parsed, rest) = Headers::parse(&packet).unwrap();
            prop_assert_eq!(parsed, headers);
            prop_assert_eq!(parsed.route(), route);
            let (transport, icrc) = icrc::split(rest).unwrap();
            prop_assert_eq!(transport, &payload[..]);
            prop_assert_eq!(parsed.icrc(transport), icrc);
        }

        #[test]
        fn arbitrary_bytes_do_not_cause_a_panic(bytes in proptest::collection::vec(any::<u8>(), 0..100)) {
            if let Some((headers, rest)) = Headers::parse(&bytes) {
                prop_assert_eq!(headers.ip().len() + 8 + rest.len(), bytes.len());
                let _ = headers.route();
            }
        }
    }
}
