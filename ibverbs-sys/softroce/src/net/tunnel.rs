//! Tunnelled packets: IPv6 packets that are sent by the socket of an IPv4 address. The IPv6 and UDP
//! headers of the packet are in front of its BTH. Packets between GIDs that
//! [contain](crate::address::address_in_gid) an IPv4 address are tunnelled.

#![forbid(unsafe_code)]

use crate::address::is_unique_local;
use crate::wire::ip::Headers;

/// Length in bytes of the IPv6 and UDP headers before the BTH of a tunnelled packet.
pub(crate) const OVERHEAD: usize = 40 + 8;

/// Returns whether a datagram begins with the IPv6 header of a tunnel. Other datagrams begin with a
/// BTH.
///
/// The IP version alone is not sufficient, because 0x64 is also the opcode of a UD packet. So the
/// source address must also have the prefix of tunnelled GIDs, which begins with 0xfd. A BTH cannot
/// have this byte there: six of the bits are reserved, and are sent as zero (IBTA 9.2.9).
pub(crate) fn is_tunnelled(datagram: &[u8]) -> bool {
    datagram.first().is_some_and(|first| first >> 4 == 6)
        && datagram.get(8..).is_some_and(is_unique_local)
}

/// Splits a tunnelled packet (IPv6 packet in an IPv4 datagram) into two parts: the IPv6 and UDP
/// headers, and the RDMA packet from its BTH (base transport header) to its checksum (ICRC).
/// Returns `None` if the headers are invalid.
pub(crate) fn open(datagram: &[u8]) -> Option<(Headers, &[u8])> {
    match Headers::parse(datagram)? {
        (headers @ Headers::V6 { .. }, rest) => Some((headers, rest)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, SocketAddrV4};

    use super::*;
    use crate::address::unique_local;
    use crate::wire::ip::Route;
    use crate::wire::{Bth, Deth, Header, Opcode, Operation, Transport};

    fn route(traffic_class: u8) -> Route {
        let gid = |last| unique_local(SocketAddrV4::new(Ipv4Addr::new(127, 1, 1, last), 4791));
        Route {
            source: gid(1),
            destination: gid(2),
            source_port: 4791,
            destination_port: 4791,
            traffic_class,
            hop_limit: 64,
            flow_label: 5,
        }
    }

    #[test]
    fn headers_of_every_traffic_class_are_decoded_as_encoded() {
        for traffic_class in 0..=255 {
            let headers = route(traffic_class).headers(12);
            let mut datagram = Vec::new();
            headers.emit(&mut datagram);
            assert_eq!(datagram.len(), OVERHEAD);
            datagram.extend_from_slice(&[1; 16]);
            assert!(is_tunnelled(&datagram));
            let (opened, rest) = open(&datagram).unwrap();
            assert_eq!((opened.route(), rest), (route(traffic_class), &[1; 16][..]));
        }
    }

    #[test]
    fn a_datagram_without_a_tunnel_header_is_refused() {
        for acknowledge in [false, true] {
            let mut packet = Vec::new();
            let opcode = Opcode::new(Transport::UnreliableDatagram, Operation::SendOnly);
            let mut header = Header::new(Bth {
                acknowledge,
                ..Bth::new(opcode, 0xff_11ff, 0x73_726f)
            });
            header.deth = Some(Deth {
                queue_key: 0x6365_0000,
                source: 1,
            });
            header.emit(&mut packet);
            assert_eq!(packet[0], 0x64);
            assert!(!is_tunnelled(&packet));
        }
        assert!(!is_tunnelled(&[]));
        assert!(!is_tunnelled(&[0x60; 10]));
    }

    #[test]
    fn a_truncated_datagram_is_refused() {
        let mut datagram = Vec::new();
        route(0).headers(12).emit(&mut datagram);
        assert!(open(&datagram).is_none());
    }
}
