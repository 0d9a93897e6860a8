#![forbid(unsafe_code)]

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6};

use super::endpoint::{Gid, GidKind};
use crate::address;
use crate::multicast::canonical;
use crate::proto::Path;
use crate::wire::ip::Route;

/// The hop limit of packets whose path says none, or says that they stay in the subnet. A kernel takes that of
/// the IP route then, whatever the path says, so programs that say 1 are used to reach peers behind routers.
const HOP_LIMIT: u8 = 64;

/// Which way a packet goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Way {
    /// The socket.
    pub(super) endpoint: usize,
    /// Where the datagram goes.
    pub(super) to: SocketAddr,
    /// What the packet's own headers say, which are in the datagram if it is tunnelled.
    pub(super) route: Route,
    /// The headers stand in front of the BTH.
    pub(super) tunnelled: bool,
    /// The datagram's hop limit; none: the socket's.
    pub(super) hop_limit: Option<u8>,
    /// Whether it may go in a burst.
    pub(super) company: Company,
}

/// Whether packets may go together in a burst. The system numbers the datagrams of one from 0 on in the identification of
/// their IPv4 headers, when it takes the burst apart; and the ICRC covers that.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Company {
    /// Each goes by itself: to a group, of which nobody knows what its members can.
    None,
    /// No one ever sees an identification: the ICRC covers an IPv6 header, or the packet stays on this host, where bursts stay
    /// whole and both sides take it for 0.
    Any,
    /// Someone else may see it, and the ICRC has to be that of its number.
    Numbered,
}

/// The way from a GID, whose socket is bound to `local`, to a queue pair.
pub(super) fn way(
    gid: &Gid,
    local: SocketAddr,
    base: u16,
    path: &Path,
    queue_pair: u32,
) -> Option<Way> {
    let destination = path.destination;
    let group = canonical(destination);
    let to: SocketAddr = match gid.kind {
        GidKind::Mapped => match group {
            // The members are on ports like this one.
            Some(group) => SocketAddrV4::new(address::ipv4_group(group)?, local.port()).into(),
            None => {
                let ip = destination.to_ipv4_mapped().filter(is_unicast)?;
                SocketAddrV4::new(ip, address::port_of(base, ip, queue_pair)?).into()
            }
        },
        GidKind::Tunnelled => match group {
            Some(group) => SocketAddrV4::new(address::ipv4_group(group)?, local.port()).into(),
            None => address::carried(destination)?.into(),
        },
        GidKind::Native => {
            let mapped = destination.to_ipv4_mapped().is_some();
            if mapped || destination.is_unspecified() || address::carried(destination).is_some() {
                return None;
            }
            let SocketAddr::V6(local) = local else {
                return None;
            };
            let port = if group.is_some() { local.port() } else { base };
            // Link-local addresses are those of the socket's own link.
            SocketAddrV6::new(destination, port, 0, local.scope_id()).into()
        }
    };
    let hop_limit = if path.hop_limit > 1 {
        path.hop_limit
    } else {
        HOP_LIMIT
    };
    let company = match (gid.kind, to) {
        _ if group.is_some() => Company::None,
        (GidKind::Mapped, SocketAddr::V4(to)) if !to.ip().is_loopback() => Company::Numbered,
        _ => Company::Any,
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
    Some(Way {
        endpoint: gid.endpoint,
        to,
        route,
        tunnelled: gid.kind == GidKind::Tunnelled,
        hop_limit: (hop_limit != HOP_LIMIT).then_some(hop_limit),
        company,
    })
}

fn is_unicast(ip: &Ipv4Addr) -> bool {
    !ip.is_unspecified() && !ip.is_broadcast() && !ip.is_multicast()
}

/// An address as a GID.
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
    fn the_way_tells_what_may_go_together() {
        let v4 = |ip: [u8; 4]| Ipv4Addr::from(ip).to_ipv6_mapped();
        let tunnel = address::unique_local("10.0.0.2:4791".parse().unwrap());
        let host: SocketAddr = "10.0.0.1:4791".parse().unwrap();
        let native: SocketAddr = "[2001:db8::1]:4791".parse().unwrap();
        for (kind, local, destination, company) in [
            (GidKind::Mapped, host, v4([127, 5, 5, 5]), Company::Any),
            (GidKind::Mapped, host, v4([10, 0, 0, 2]), Company::Numbered),
            (GidKind::Mapped, host, v4([239, 1, 1, 1]), Company::None),
            (GidKind::Tunnelled, host, tunnel, Company::Any),
            (
                GidKind::Native,
                native,
                "2001:db8::2".parse().unwrap(),
                Company::Any,
            ),
            (
                GidKind::Native,
                native,
                "ff0e::2".parse().unwrap(),
                Company::None,
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
            let way = way(&gid, local, 4791, &path, 0x1234).unwrap();
            assert_eq!(way.company, company, "{destination}");
        }
    }
}
