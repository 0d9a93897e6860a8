//! The header in front of a received datagram.

use std::net::{IpAddr, Ipv4Addr};

use crate::device::Gid;
use crate::error::{Error, Result};

/// The header in front of a received datagram, with the addresses of sender and destination.
///
/// A receive of a datagram queue pair stores 40 bytes in front of the message, so the memory of the
/// receive must be 40 bytes longer than the message. The 40 bytes contain the global route header
/// of InfiniBand and RoCE v1, or the IPv6 header of RoCE v2, which has the same layout. An IPv4
/// header is in the last 20 bytes. The first 20 bytes are then undefined (RoCE v2 annex,
/// A17.4.5.1). On InfiniBand, a datagram can have no global route header. All 40 bytes are then
/// undefined. The completion reports whether the datagram has the header.
#[doc(alias = "ibv_grh")]
#[doc(alias = "GRH")]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum DatagramHeader {
    /// An IPv4 header.
    Ipv4(Ipv4Header),
    /// A global route header or an IPv6 header.
    Global(GlobalRouteHeader),
}

/// The IPv4 header in front of a datagram (RFC 791).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Ipv4Header {
    /// The sender's address.
    pub source: Ipv4Addr,
    /// The destination address: this machine or a multicast group.
    pub destination: Ipv4Addr,
    /// DSCP and ECN, in the byte that was formerly the type of service.
    pub traffic_class: u8,
    /// The time to live: the remaining number of hops.
    pub time_to_live: u8,
    /// The protocol of the payload: 17 for UDP.
    pub protocol: u8,
    /// The length of the packet in bytes, including this header.
    pub total_length: u16,
}

/// The global route header (IBTA volume 1, 8.3) or IPv6 header in front of a datagram.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct GlobalRouteHeader {
    /// The sender's GID.
    pub source: Gid,
    /// The destination GID: this machine or a multicast group.
    pub destination: Gid,
    /// The traffic class.
    pub traffic_class: u8,
    /// The flow label, 20 bits.
    pub flow_label: u32,
    /// The number of bytes after this header in the packet.
    pub payload_length: u16,
    /// The type of the next header: 27 on InfiniBand, 17 (UDP) for IPv6.
    pub next_header: u8,
    /// The hop limit: the remaining number of hops.
    pub hop_limit: u8,
}

/// The first byte of an IPv4 header without options: version 4, length of five 32-bit words.
const IPV4_OF_FIVE_WORDS: u8 = 0x45;

impl DatagramHeader {
    /// The length in bytes of the header area that a receive stores in front of each datagram.
    pub const LEN: usize = 40;

    /// Parses the IPv4, IPv6 or global route header at the beginning of the memory of a datagram
    /// receive.
    ///
    /// ```
    /// # use rdma_core::address::DatagramHeader;
    /// let mut memory = [0; 64];
    /// memory[..8].copy_from_slice(&[0x60, 0, 0, 0, 0, 36, 17, 64]);
    /// memory[39] = 1;
    /// let DatagramHeader::Global(header) = DatagramHeader::parse(&memory)? else { panic!() };
    /// assert_eq!(header.destination.to_string(), "::1");
    /// # Ok::<(), rdma_core::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`Error::InvalidArgument`] for fewer than 40 bytes, and for bytes that contain no valid
    /// header.
    pub fn parse(memory: &[u8]) -> Result<Self> {
        let what = "beginning of a datagram";
        let Some(bytes) = memory.first_chunk::<{ Self::LEN }>() else {
            let reason = format!("{} bytes are less than the 40 of a header", memory.len());
            return Err(Error::invalid(what, reason));
        };
        let ipv4 = bytes.last_chunk::<20>().expect("20 of 40 bytes");
        let looks_global = bytes[0] >> 4 == 6;
        // The bytes in front of an IPv4 header are undefined, so they may look like the start of a
        // global header. Likewise an address in a global header may look like an IPv4 header.
        if ipv4[0] == IPV4_OF_FIVE_WORDS && (!looks_global || checksum_fits(ipv4)) {
            return Ok(Self::Ipv4(Ipv4Header::read(ipv4)));
        }
        if looks_global {
            return Ok(Self::Global(GlobalRouteHeader::read(bytes)));
        }
        Err(Error::invalid(
            what,
            "it is no header of IPv4, IPv6 or InfiniBand",
        ))
    }

    /// Returns the sender's address as a GID.
    pub fn source(&self) -> Gid {
        match self {
            Self::Ipv4(header) => IpAddr::from(header.source).into(),
            Self::Global(header) => header.source,
        }
    }

    /// Returns the destination address as a GID. The GID belongs to this machine or to a multicast
    /// group.
    pub fn destination(&self) -> Gid {
        match self {
            Self::Ipv4(header) => IpAddr::from(header.destination).into(),
            Self::Global(header) => header.destination,
        }
    }

    /// Returns the traffic class of the datagram. On RoCE v2, the traffic class contains DSCP and
    /// ECN.
    pub fn traffic_class(&self) -> u8 {
        match self {
            Self::Ipv4(header) => header.traffic_class,
            Self::Global(header) => header.traffic_class,
        }
    }

    /// Returns the remaining number of hops: the time to live of an IPv4 header, or the hop limit
    /// of another header.
    pub fn hop_limit(&self) -> u8 {
        match self {
            Self::Ipv4(header) => header.time_to_live,
            Self::Global(header) => header.hop_limit,
        }
    }
}

impl Ipv4Header {
    fn read(bytes: &[u8; 20]) -> Self {
        let address = |at: usize| {
            Ipv4Addr::from(u32::from_be_bytes([
                bytes[at],
                bytes[at + 1],
                bytes[at + 2],
                bytes[at + 3],
            ]))
        };
        Self {
            source: address(12),
            destination: address(16),
            traffic_class: bytes[1],
            time_to_live: bytes[8],
            protocol: bytes[9],
            total_length: u16::from_be_bytes([bytes[2], bytes[3]]),
        }
    }
}

impl GlobalRouteHeader {
    fn read(bytes: &[u8; 40]) -> Self {
        let first = u32::from_be_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
        let gid = |at: usize| Gid(bytes[at..at + 16].try_into().expect("sixteen bytes"));
        Self {
            source: gid(8),
            destination: gid(24),
            traffic_class: (first >> 20) as u8,
            flow_label: first & 0xf_ffff,
            payload_length: u16::from_be_bytes([bytes[4], bytes[5]]),
            next_header: bytes[6],
            hop_limit: bytes[7],
        }
    }
}

/// Returns whether the checksum of the IPv4 header is correct (RFC 1071).
fn checksum_fits(header: &[u8; 20]) -> bool {
    let words = header
        .chunks_exact(2)
        .map(|word| u32::from(u16::from_be_bytes([word[0], word[1]])));
    let sum: u32 = words.sum();
    // The sum of ten words has a carry of at most four bits. If the checksum is correct, adding the
    // carry produces no second carry.
    (sum & 0xffff) + (sum >> 16) == 0xffff
}

#[cfg(test)]
mod tests {
    use std::net::Ipv6Addr;

    use super::*;

    /// Returns the 40 bytes that a receive stores for an IPv4 datagram from 10.0.0.1 to 10.0.0.2.
    /// The IPv4 header, with a correct checksum, follows 20 undefined bytes. Each undefined byte
    /// has the value `front`.
    fn ipv4(front: u8) -> [u8; 40] {
        let mut bytes = [front; 40];
        bytes[20..].copy_from_slice(&[
            0x45, 0xb8, 0, 60, 0, 0, 0x40, 0, 63, 17, 0x26, 0xf7, 10, 0, 0, 1, 10, 0, 0, 2,
        ]);
        bytes
    }

    fn global() -> [u8; 40] {
        let mut bytes = [0; 40];
        bytes[..8].copy_from_slice(&[0x6b, 0x81, 0x23, 0x45, 0, 20, 27, 62]);
        bytes[8..24].copy_from_slice(&Ipv6Addr::new(0xfe80, 0, 0, 0, 1, 2, 3, 4).octets());
        bytes[24..].copy_from_slice(&Ipv6Addr::new(0xff0e, 0, 0, 0, 0, 0, 0, 9).octets());
        bytes
    }

    #[test]
    fn an_ipv4_header_is_in_the_last_20_bytes_whatever_is_before_it() {
        for front in [0, 0x45, 0x60, 0xff] {
            let header = DatagramHeader::parse(&ipv4(front)).unwrap();
            let expected = Ipv4Header {
                source: Ipv4Addr::new(10, 0, 0, 1),
                destination: Ipv4Addr::new(10, 0, 0, 2),
                traffic_class: 0xb8,
                time_to_live: 63,
                protocol: 17,
                total_length: 60,
            };
            assert_eq!(header, DatagramHeader::Ipv4(expected), "behind {front:#x}");
            assert_eq!(header.source().to_string(), "::ffff:10.0.0.1");
            assert_eq!(header.destination().to_string(), "::ffff:10.0.0.2");
        }
    }

    #[test]
    fn a_global_route_header_fills_the_40_bytes() {
        let header = DatagramHeader::parse(&global()).unwrap();
        let expected = GlobalRouteHeader {
            source: Gid(Ipv6Addr::new(0xfe80, 0, 0, 0, 1, 2, 3, 4).octets()),
            destination: Gid(Ipv6Addr::new(0xff0e, 0, 0, 0, 0, 0, 0, 9).octets()),
            traffic_class: 0xb8,
            flow_label: 0x1_2345,
            payload_length: 20,
            next_header: 27,
            hop_limit: 62,
        };
        assert_eq!(header, DatagramHeader::Global(expected));
        assert_eq!((header.traffic_class(), header.hop_limit()), (0xb8, 62));
    }

    #[test]
    fn an_address_that_looks_like_an_ipv4_header_does_not_make_it_one() {
        let mut bytes = global();
        bytes[20] = IPV4_OF_FIVE_WORDS;
        let header = DatagramHeader::parse(&bytes).unwrap();
        assert!(matches!(header, DatagramHeader::Global(_)), "{header:?}");
    }

    #[test]
    fn bytes_without_a_header_are_refused() {
        assert!(DatagramHeader::parse(&[0; 40]).is_err());
        assert!(DatagramHeader::parse(&global()[..39]).is_err());
    }
}
