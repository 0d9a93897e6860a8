#![forbid(unsafe_code)]

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6};

use super::endpoint::{Gid, GidKind};
use crate::address::{self, Ports};
use crate::multicast::canonical;
use crate::number;
use crate::proto::Path;
use crate::wire::ip::Route;

/// Hop limit of packets whose path has the hop limit 0 or 1. Programs often set the hop limit 1 for
/// peers behind routers, because kernel drivers ignore the hop limit of a path.
const HOP_LIMIT: u8 = 64;

/// Route of a packet: the socket that sends the packet, the destination, and the headers. Later
/// packets of the queue pair usually have the same route.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct PacketRoute {
    /// Index of the first GID of the socket that sends the packet.
    pub(super) endpoint: usize,
    /// Destination address of the datagram.
    pub(super) to: SocketAddr,
    /// Contents of the packet's IP and UDP headers. If the packet is tunnelled, these headers are
    /// inside the datagram.
    pub(super) route: Route,
    /// Set if the packet is tunnelled: an IPv6 header and a UDP header of its own precede the BTH.
    pub(super) tunnelled: bool,
    /// Hop limit of the datagram; `None` for the socket's default.
    pub(super) hop_limit: Option<u8>,
    /// Other packets that may be sent together with the packet in a burst.
    pub(super) batching: Batching,
    /// Set if later packets to the same destination have the same route, until the [recorded
    /// ports](super::hosts) of the peer's host change.
    pub(super) is_certain: bool,
}

/// Rule for the packets that may be sent together with a packet as a burst: no packets, or all
/// packets of the same route. A burst is one message that the kernel splits into datagrams. The
/// kernel numbers the datagrams from 0 on in the identification of their IPv4 headers, which the
/// checksum (ICRC) covers. So the sender may have to compute the ICRC for this number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Batching {
    /// No other packet, because the packet goes to a multicast group, whose members need not
    /// support bursts.
    None,
    /// All packets of the same route. The ICRC of the packets does not depend on the
    /// identification: it covers an IPv6 header, or the packets stay on this host, where bursts are
    /// not split and both sides assume 0.
    Any,
    /// All packets of the same route, after a [trial](super::trial) has succeeded. The receiver may
    /// see the identification, so the ICRC must cover the index of the packet in the burst.
    Numbered,
    /// The other packets of a [trial](super::trial), whose ICRC covers their index, too.
    Trial,
}

/// UDP ports to which a process sends packets: the first port of the devices' port range, from
/// which the port of each queue pair is calculated, and the port of multicast groups.
#[derive(Clone, Copy, Debug)]
pub(super) struct LocalPorts {
    /// First port of the device's port range.
    pub(super) base: u16,
    /// UDP port to which packets for multicast groups are sent.
    pub(super) groups: u16,
}

/// Returns the route of packets on `path` to the queue pair with the number `queue_pair`. Returns
/// `None` if packets cannot be sent on the path. The packets are sent from the GID `gid`, through a
/// socket that is bound to `local`. `ports_of` returns the UDP ports of a host's devices, and
/// `true` if these ports are certain. If the ports are only a guess, the route is not
/// [certain](PacketRoute::is_certain).
pub(super) fn way(
    gid: &Gid,
    local: SocketAddr,
    ports: LocalPorts,
    path: &Path,
    queue_pair: u32,
    ports_of: impl Fn(IpAddr) -> (Ports, bool),
) -> Option<PacketRoute> {
    let destination = path.destination;
    let group = canonical(destination);
    let mut is_certain = true;
    let mut port_at = |ip: IpAddr| {
        if number::slot(queue_pair) == 0 {
            return Some(ports.base);
        }
        let of_host;
        (of_host, is_certain) = ports_of(ip);
        of_host.of(ports.base, queue_pair)
    };
    let to: SocketAddr = match gid.kind {
        GidKind::Mapped => match group {
            Some(group) => SocketAddrV4::new(address::ipv4_group(group)?, ports.groups).into(),
            None => {
                let ip = destination.to_ipv4_mapped().filter(is_unicast)?;
                SocketAddrV4::new(ip, port_at(ip.into())?).into()
            }
        },
        GidKind::Tunnelled => match group {
            Some(group) => SocketAddrV4::new(address::ipv4_group(group)?, ports.groups).into(),
            None => address::address_in_gid(destination)?.into(),
        },
        GidKind::Native => {
            let mapped = destination.to_ipv4_mapped().is_some();
            if mapped
                || destination.is_unspecified()
                || address::address_in_gid(destination).is_some()
            {
                return None;
            }
            let SocketAddr::V6(local) = local else {
                return None;
            };
            let port = match group {
                Some(_) => ports.groups,
                None => port_at(destination.into())?,
            };
            // A link-local address belongs to the network interface of the socket.
            SocketAddrV6::new(destination, port, 0, local.scope_id()).into()
        }
    };
    let hop_limit = if path.hop_limit > 1 {
        path.hop_limit
    } else {
        HOP_LIMIT
    };
    let batching = match (gid.kind, to) {
        _ if group.is_some() => Batching::None,
        (GidKind::Mapped, SocketAddr::V4(to)) if !to.ip().is_loopback() => Batching::Numbered,
        _ => Batching::Any,
    };
    let route = Route {
        source: gid.address,
        destination: match (gid.kind, to) {
            (GidKind::Mapped, SocketAddr::V4(to)) => to.ip().to_ipv6_mapped(),
            _ => destination,
        },
        source_port: local.port(),
        destination_port: to.port(),
        traffic_class: path.traffic_class,
        hop_limit,
        flow_label: path.flow_label & 0xf_ffff,
    };
    Some(PacketRoute {
        endpoint: gid.endpoint,
        to,
        route,
        tunnelled: gid.kind == GidKind::Tunnelled,
        hop_limit: (hop_limit != HOP_LIMIT).then_some(hop_limit),
        batching,
        is_certain,
    })
}

fn is_unicast(ip: &Ipv4Addr) -> bool {
    !ip.is_unspecified() && !ip.is_broadcast() && !ip.is_multicast()
}

/// Returns the GID of an IP address: an IPv6 address itself, or the IPv4-mapped form of an IPv4
/// address.
pub(super) fn gid_of(ip: IpAddr) -> Ipv6Addr {
    match ip {
        IpAddr::V4(ip) => ip.to_ipv6_mapped(),
        IpAddr::V6(ip) => ip,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_route_determines_which_packets_may_form_a_burst() {
        let v4 = |ip: [u8; 4]| Ipv4Addr::from(ip).to_ipv6_mapped();
        let tunnel = address::unique_local("10.0.0.2:4791".parse().unwrap());
        let host: SocketAddr = "10.0.0.1:4791".parse().unwrap();
        let native: SocketAddr = "[2001:db8::1]:4791".parse().unwrap();
        for (kind, local, destination, batching) in [
            (GidKind::Mapped, host, v4([127, 5, 5, 5]), Batching::Any),
            (GidKind::Mapped, host, v4([10, 0, 0, 2]), Batching::Numbered),
            (GidKind::Mapped, host, v4([239, 1, 1, 1]), Batching::None),
            (GidKind::Tunnelled, host, tunnel, Batching::Any),
            (
                GidKind::Native,
                native,
                "2001:db8::2".parse().unwrap(),
                Batching::Any,
            ),
            (
                GidKind::Native,
                native,
                "ff0e::2".parse().unwrap(),
                Batching::None,
            ),
        ] {
            let gid = Gid {
                address: gid_of(local.ip()),
                kind,
                endpoint: 0,
            };
            let path = Path {
                source: 0,
                destination,
                traffic_class: 0,
                hop_limit: 64,
                flow_label: 0,
            };
            let ports_of = |_| (Ports::Slots, false);
            let ports = LocalPorts {
                base: 4791,
                groups: 4791,
            };
            let to = |number| way(&gid, local, ports, &path, number, ports_of).unwrap();
            assert_eq!(to(0x1234).batching, batching, "{destination}");
            // Without a slot, nothing has to be known of the host. The GID of a tunnel and a group
            // contain the port.
            assert!(to(0x1234).is_certain);
            let has_port = kind == GidKind::Tunnelled || batching == Batching::None;
            assert_eq!(to(0x02_1234).is_certain, has_port, "{destination}");
            assert_eq!(to(0x02_1234).to.port(), if has_port { 4791 } else { 4991 });
        }
    }
}
