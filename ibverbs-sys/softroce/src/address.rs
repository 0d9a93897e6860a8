//! The IP addresses and UDP ports that processes use, and at which peers reach them.

#![forbid(unsafe_code)]

use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4};

use crate::number;

/// Number of UDP ports from which a NIC chooses one, so that several NICs can use the same address.
/// The index of the chosen port is called the slot of the NIC, and forms the high eight bits of the
/// NIC's queue pair numbers. So a peer can compute the port from a queue pair number. Slot 255 is
/// not used, because it would contain the queue pair number 0xffffff, which is reserved for
/// multicast.
pub(crate) const PORT_SLOTS: u8 = 255;

/// Distance between the UDP ports of two adjacent slots (port indices). All processes that
/// communicate must use the same distance, because peers compute ports from slots. With the default
/// first port, the ports of all slots are below 32,768. Linux assigns ports from 32,768 on to other
/// programs.
pub(crate) const PORT_STRIDE: u16 = 100;

/// Queue pair number to which datagrams for a multicast group are sent. All queue pairs of the
/// group receive these datagrams (IBTA 9.2.3).
pub(crate) const MULTICAST: u32 = 0xff_ffff;

/// First six bytes of a GID whose packets are sent in UDP tunnels: 0xfd (unique local address of
/// RFC 4193), and the global ID of softroce (40 bits). The other bytes contain the UDP port, zeroes
/// and the IPv4 address of the device. Because of the zeroes, the text form of such a GID has at
/// most 30 characters, which fit into the 32-byte buffers of some programs.
const UNIQUE_LOCAL_PREFIX: [u8; 6] = [0xfd, b's', b'r', b'o', b'c', b'e'];

/// Returns the IP address in 127/8 that the process with the ID `process` tries to bind at its
/// attempt number `attempt`. For processes that run at the same time, the first addresses usually
/// differ, because a process ID has at most 22 bits.
pub(crate) fn candidate(process: u32, attempt: u32) -> Ipv4Addr {
    // An odd factor permutes the numbers below 2^24, and so spreads the processes over the
    // addresses.
    let mut host = (process & 0xff_ffff)
        .wrapping_add(attempt.wrapping_mul(0x61_c889))
        .wrapping_mul(0x9e_3779)
        & 0xff_ffff;
    // 127.0.0.0/16 is avoided, because it is commonly used for local services.
    if host < 0x1_0000 {
        host |= 0x80_0000;
    }
    // 127.255.255.255 is a broadcast address.
    if host == 0xff_ffff {
        host -= 1;
    }
    Ipv4Addr::from(0x7f00_0000 | host)
}

/// Returns the UDP port of the slot (port index) `slot`. `base` is the port of the first slot.
/// Returns `None` if the port would exceed 65,535.
pub(crate) fn port_of_slot(base: u16, slot: u8) -> Option<u16> {
    PORT_STRIDE.checked_mul(u16::from(slot))?.checked_add(base)
}

/// UDP ports at which the RDMA devices of a host receive packets. Network cards and kernel drivers
/// use one port for all queue pairs. Each process with a softroce device uses a port of its own.
/// The queue pair numbers of the process contain the index of this port (the slot).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ports {
    /// Base port, which network cards, kernel drivers and the first softroce device of an address
    /// use.
    Base,
    /// Port of a slot (port index), which the queue pair numbers of softroce devices contain.
    Slots,
}

impl Ports {
    /// Returns the UDP port at which a queue pair of a host with these ports receives packets.
    /// `queue_pair` is the number of the queue pair, and `base` the first port of the device's port
    /// range. Returns `None` if the port would exceed 65,535.
    pub(crate) fn of(self, base: u16, queue_pair: u32) -> Option<u16> {
        match self {
            Self::Base => Some(base),
            Self::Slots => port_of_slot(base, number::slot(queue_pair)),
        }
    }
}

/// Returns the slot (port index) whose UDP port is `port`, or `None` if no slot has this port.
/// `base` is the port of the first slot.
pub(crate) fn slot_of_port(base: u16, port: u16) -> Option<u8> {
    let above = port.checked_sub(base)?;
    let slot = (above / PORT_STRIDE) as u8;
    (above.is_multiple_of(PORT_STRIDE) && above / PORT_STRIDE < PORT_SLOTS.into()).then_some(slot)
}

/// Error: a packet came from a loopback address, but from a port that no softroce device uses. The
/// packet comes from another program on this host, and must be dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct UnknownSender;

/// Returns the slot (index of the UDP port) of the softroce device that sent a packet from the
/// address `from`. `base` is the port of the first slot. Must not be called for a packet in a UDP
/// tunnel. Returns `Ok(None)` if the port belongs to no slot, because the packet comes from a RoCE
/// device other than softroce.
///
/// Fails if the port belongs to no slot and the address is a loopback address. The packet then
/// comes from a program that is not a RoCE device. Every program on this host can send from a
/// loopback address. But if the port belongs to a slot, only the softroce device that has bound the
/// port can send from it.
pub(crate) fn slot_of_sender(base: u16, from: SocketAddr) -> Result<Option<u8>, UnknownSender> {
    let slot = slot_of_port(base, from.port());
    if slot.is_none() && from.ip().is_loopback() {
        return Err(UnknownSender);
    }
    Ok(slot)
}

/// Returns the unique local GID that contains the IPv4 address and the UDP port of `address`.
/// Packets between such GIDs are tunnelled.
pub(crate) fn unique_local(address: SocketAddrV4) -> Ipv6Addr {
    let mut octets = [0; 16];
    octets[..6].copy_from_slice(&UNIQUE_LOCAL_PREFIX);
    octets[6..8].copy_from_slice(&address.port().to_be_bytes());
    octets[12..].copy_from_slice(&address.ip().octets());
    Ipv6Addr::from(octets)
}

/// Returns the IPv4 address and the UDP port that the GID `gid` contains. Returns `None` if the GID
/// was not made by [`unique_local`].
pub(crate) fn address_in_gid(gid: Ipv6Addr) -> Option<SocketAddrV4> {
    let octets = gid.octets();
    if !is_unique_local(&octets) || octets[8..12] != [0; 4] {
        return None;
    }
    let port = u16::from_be_bytes([octets[6], octets[7]]);
    let address = Ipv4Addr::new(octets[12], octets[13], octets[14], octets[15]);
    let reachable = port != 0 && !address.is_unspecified() && !address.is_broadcast();
    (reachable && !address.is_multicast()).then(|| SocketAddrV4::new(address, port))
}

/// Returns whether a GID was made by [`unique_local`]. Packets between such GIDs are tunnelled.
/// `octets` are the first bytes of the GID, in network order. Six bytes are sufficient.
pub(crate) fn is_unique_local(octets: &[u8]) -> bool {
    octets.starts_with(&UNIQUE_LOCAL_PREFIX)
}

/// Returns the IPv4 multicast group to which datagrams for the multicast GID `gid` are sent. If the
/// GID represents an IPv4 group, returns that group. Otherwise computes an organization-local group
/// (RFC 2365) from the GID. Several GIDs can have the same computed group, so packets to such a
/// group are tunnelled with the GID in the inner header. Returns `None` if `gid` is not a multicast
/// GID.
pub(crate) fn ipv4_group(gid: Ipv6Addr) -> Option<Ipv4Addr> {
    if let Some(ipv4) = mapped_group(gid) {
        return Some(ipv4);
    }
    if !gid.is_multicast() {
        return None;
    }
    let folded = gid.segments().iter().fold(0_u32, |folded, &segment| {
        folded.rotate_left(7) ^ u32::from(segment)
    });
    // 239.192.0.0/14.
    Some(Ipv4Addr::from(
        0xefc0_0000 | (folded ^ folded >> 18) & 0x3_ffff,
    ))
}

/// Returns the IPv4 multicast group that the GID `gid` represents, or `None` if the GID does not
/// represent an IPv4 group.
fn mapped_group(gid: Ipv6Addr) -> Option<Ipv4Addr> {
    let octets = gid.octets();
    let ipv4 = Ipv4Addr::new(octets[12], octets[13], octets[14], octets[15]);
    let prefix = octets[..2] == [0; 2] || octets[0] == 0xff;
    let mapped = prefix && octets[2..10] == [0; 8] && octets[10..12] == [0xff; 2];
    (mapped && ipv4.is_multicast()).then_some(ipv4)
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;
    use crate::multicast::canonical;

    #[test]
    fn processes_have_different_addresses_in_127_8() {
        let addresses: HashSet<Ipv4Addr> = (1..=20_000).map(|pid| candidate(pid, 0)).collect();
        // Addresses in 127.0/16 are mapped to other addresses, so one in 256 collides with another
        // process's first candidate.
        assert!(addresses.len() > 19_900, "{}", addresses.len());
        for address in addresses {
            assert!(address.is_loopback());
            assert_ne!(address.octets()[..2], [127, 0]);
        }
        let attempts: HashSet<Ipv4Addr> = (0..100).map(|attempt| candidate(7, attempt)).collect();
        assert!(attempts.len() > 98);
    }

    #[test]
    fn a_gid_contains_the_address_and_the_port() {
        let address = SocketAddrV4::new(Ipv4Addr::new(127, 1, 2, 3), 4891);
        let gid = unique_local(address);
        assert_eq!(gid.to_string(), "fd73:726f:6365:131b::7f01:203");
        assert!(gid.is_unique_local());
        assert_eq!(address_in_gid(gid), Some(address));
        assert_eq!(address_in_gid("fd00::1".parse().unwrap()), None);
        assert_eq!(
            address_in_gid("fd73:726f:6365::7f01:203".parse().unwrap()),
            None,
            "port 0"
        );
        assert_eq!(
            address_in_gid("fd73:726f:6365:1::".parse().unwrap()),
            None,
            "address 0.0.0.0"
        );
        let other = "fd73:726f:6365:131b::1:7f01:203";
        assert_eq!(
            address_in_gid(other.parse().unwrap()),
            None,
            "another interface ID"
        );
    }

    #[test]
    fn the_port_of_a_peer_follows_from_its_queue_pair_number() {
        assert_eq!(Ports::Slots.of(4791, 0x01_2345), Some(4891));
        assert_eq!(Ports::Slots.of(4791, 0x00_2345), Some(4791));
        assert_eq!(Ports::Slots.of(4791, 0xfe_2345), Some(30_191));
        assert_eq!(Ports::Base.of(4791, 0x21_2345), Some(4791));
        assert_eq!(Ports::Slots.of(60_000, 0x40_0000), None);
    }

    #[test]
    fn the_slot_of_a_loopback_sender_follows_from_its_port() {
        let of = |from: &str| slot_of_sender(4791, from.parse().unwrap());
        for slot in 0..PORT_SLOTS {
            let from = format!("127.9.9.9:{}", 4791 + 100 * u16::from(slot));
            assert_eq!(of(&from), Ok(Some(slot)));
        }
        for stranger in [
            "127.9.9.9:4790",
            "127.9.9.9:4792",
            "127.9.9.9:3791",
            "127.9.9.9:4691",
            "127.9.9.9:30291",
            "[::1]:40000",
        ] {
            assert_eq!(of(stranger), Err(UnknownSender), "{stranger}");
        }
        assert_eq!(of("[::1]:4791"), Ok(Some(0)));
        assert_eq!(of("10.0.0.1:4991"), Ok(Some(2)));
        for elsewhere in ["10.0.0.1:4792", "10.0.0.1:49152", "[fd00::1]:1"] {
            assert_eq!(of(elsewhere), Ok(None), "{elsewhere}");
        }
    }

    #[test]
    fn all_gids_of_an_ipv4_group_are_the_same_group() {
        let parsed = |gid: &str| gid.parse::<Ipv6Addr>().unwrap();
        let one = parsed("ff0e::ffff:239.1.2.3");
        for form in [
            "ff0e::ffff:239.1.2.3",
            "::ffff:239.1.2.3",
            "ff12::ffff:239.1.2.3",
        ] {
            assert_eq!(canonical(parsed(form)), Some(one));
            assert_eq!(ipv4_group(parsed(form)), Some(Ipv4Addr::new(239, 1, 2, 3)));
        }
        for none in ["::ffff:10.1.2.3", "fe80::1", "::239.1.2.3"] {
            assert_eq!(
                (canonical(parsed(none)), ipv4_group(parsed(none))),
                (None, None)
            );
        }
    }

    #[test]
    fn other_groups_have_administratively_scoped_addresses() {
        let of = |gid: &str| ipv4_group(gid.parse().unwrap()).unwrap();
        let groups = [
            "ff0e::ffff:10.1.2.3",
            "ff0e::1:2:3:4",
            "ff0e::1:2:3:5",
            "ff02::1",
        ];
        let addresses: HashSet<Ipv4Addr> = groups.into_iter().map(of).collect();
        assert_eq!(addresses.len(), groups.len());
        for address in addresses {
            assert_eq!(
                (address.octets()[0], address.octets()[1] & 0xfc),
                (239, 192)
            );
        }
        let other = "ff0e::1:2:3:4".parse().unwrap();
        assert_eq!(canonical(other), Some(other));
    }
}
