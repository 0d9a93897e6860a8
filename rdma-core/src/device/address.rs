//! Selection of the local port and GID that a queue pair uses.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, UdpSocket};

use super::{Gid, GidEntry, GidType, LinkLayer, Mtu, PortAttributes, PortState};
use crate::error::{Error, Result};

/// The local network address of a queue pair: a port and one of its GIDs.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct LocalAddress {
    /// The number of the port.
    pub port: u8,
    /// The index of the GID in the port's GID table.
    pub gid_index: u32,
    /// The GID at [`Self::gid_index`] in the port's GID table.
    pub gid: Gid,
    /// The type of the GID; `None` on InfiniBand without a GID.
    pub kind: Option<GidType>,
    /// The LID of the port; 0 on Ethernet.
    pub lid: u16,
    /// The link layer of the port.
    pub link_layer: LinkLayer,
    /// The active MTU of the port, the upper limit of the path MTU.
    pub mtu: Mtu,
    /// The reason why the crate chose this port and GID, as text for logs.
    pub reason: &'static str,
}

impl fmt::Display for LocalAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "port {}, GID index {} ({}), {}",
            self.port, self.gid_index, self.gid, self.reason
        )
    }
}

/// The program's requirements for a [`LocalAddress`]. For a field that is `None` the crate chooses
/// the value.
///
/// The port must be active. On Ethernet the crate prefers GIDs in this order: RoCE v2 with an
/// IPv4-mapped address, RoCE v2 with a global IPv6 address, RoCE v2 with a link-local address, RoCE
/// v1. If [`source`](Self::source) is set, the GID of that address comes first. On InfiniBand the
/// crate uses GID index 0 and the LID.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct AddressChoice {
    /// The required port, if any.
    pub port: Option<u8>,
    /// The required index in the port's GID table, if any.
    pub gid_index: Option<u32>,
    /// The local IP address from which this host sends packets to the peer, or `None` if the
    /// address is not known. The local address of a TCP connection to the peer is an example.
    /// [`Self::toward`] finds the address by the routes of the system.
    ///
    /// The crate prefers the GID of this address. If this address is a loopback address, the crate
    /// prefers the GID of any loopback address. Otherwise the GIDs of loopback interfaces come
    /// last.
    pub source: Option<IpAddr>,
}

impl AddressChoice {
    /// The name of the environment variable that sets the GID index if the program sets no index.
    /// The value of the variable is a GID index, or `auto`: the crate then chooses the GID.
    pub const GID_INDEX_VARIABLE: &'static str = "RDMA_GID_INDEX";

    /// Sets [`source`](Self::source) to the local address from which the system sends packets to
    /// `peer`. Sets `source` to `None` if the system has no route to `peer`.
    #[must_use]
    pub fn toward(self, peer: IpAddr) -> Self {
        let any: IpAddr = match peer {
            IpAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
            IpAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
        };
        // Connecting a UDP socket chooses the source address, and sends nothing.
        let route = UdpSocket::bind((any, 0)).and_then(|socket| {
            socket.connect((peer, ROCE_PORT))?;
            socket.local_addr()
        });
        Self {
            source: route.ok().map(|address| address.ip()),
            ..self
        }
    }

    /// Sets the GID index from the environment variable `RDMA_GID_INDEX`, unless the program has
    /// set an index. Without the variable, or with the value `auto`, the crate chooses the GID.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidArgument`] if the variable contains neither a number nor `auto`.
    pub fn or_environment(self) -> Result<Self> {
        if self.gid_index.is_some() {
            return Ok(self);
        }
        match std::env::var(Self::GID_INDEX_VARIABLE).as_deref() {
            Err(_) | Ok("" | "auto") => Ok(self),
            Ok(text) => match text.parse() {
                Ok(index) => Ok(Self {
                    gid_index: Some(index),
                    ..self
                }),
                Err(_) => {
                    let reason = format!("{text:?} is neither a number nor `auto`");
                    Err(Error::invalid(Self::GID_INDEX_VARIABLE, reason))
                }
            },
        }
    }

    /// Chooses the port and the GID that fit these requirements best. `device` is the name of the
    /// device in errors, `ports` are its ports, and `gids` are the valid entries of the ports' GID
    /// tables.
    ///
    /// # Errors
    ///
    /// [`Error::UnknownPort`] or [`Error::UnknownGidIndex`] if a required port or index does not
    /// exist, and [`Error::NoUsablePort`] with the reason for each port.
    pub fn choose(
        self,
        device: &str,
        ports: &[PortAttributes],
        gids: &[GidEntry],
    ) -> Result<LocalAddress> {
        let wanted = match self.port {
            None => ports,
            Some(number) => match ports.iter().position(|port| port.number() == number) {
                Some(at) => &ports[at..=at],
                None => {
                    let ports = u8::try_from(ports.len()).unwrap_or(u8::MAX);
                    return Err(Error::UnknownPort {
                        device: device.to_owned(),
                        port: number,
                        ports,
                    });
                }
            },
        };
        let mut best: Option<(Rank, LocalAddress)> = None;
        let mut lacking = Vec::new();
        let mut first_error = None;
        for port in wanted {
            match self.choose_on(device, port, gids) {
                Ok(found) => {
                    if best.as_ref().is_none_or(|(rank, _)| found.0 < *rank) {
                        best = Some(found);
                    }
                }
                Err(Error::NoUsablePort { reason, .. }) => lacking.push(reason),
                Err(error) => first_error = first_error.or(Some(error)),
            }
        }
        match (best, first_error) {
            (Some((_, address)), _) => Ok(address),
            (None, Some(error)) => Err(error),
            (None, None) => Err(Error::NoUsablePort {
                device: device.to_owned(),
                reason: if lacking.is_empty() {
                    "it has no port".into()
                } else {
                    lacking.join("; ")
                },
            }),
        }
    }

    /// Chooses a GID of the port `port`, and returns the rank of the GID and the local address. If
    /// the program requires a GID index, chooses the GID with this index. Otherwise chooses the GID
    /// with the lowest rank. An InfiniBand port that has a LID needs no GID.
    fn choose_on(
        self,
        device: &str,
        port: &PortAttributes,
        gids: &[GidEntry],
    ) -> Result<(Rank, LocalAddress)> {
        let number = port.number();
        let unusable = |reason: String| Error::NoUsablePort {
            device: device.to_owned(),
            reason,
        };
        if port.state() != PortState::Active {
            return Err(unusable(format!("port {number} is {}", port.state())));
        }
        let Some(mtu) = port.active_mtu() else {
            return Err(unusable(format!("port {number} has no MTU")));
        };
        let mut own: Vec<&GidEntry> = gids
            .iter()
            .filter(|entry| entry.port == number && !entry.gid.is_zero())
            .collect();
        if let Some(index) = self.gid_index {
            let valid = own.iter().map(ToString::to_string).collect();
            own.retain(|entry| entry.index == index);
            if own.is_empty() {
                let device = device.to_owned();
                return Err(Error::UnknownGidIndex {
                    device,
                    port: number,
                    index,
                    valid,
                });
            }
        }
        let address = |entry: Option<&GidEntry>, reason| LocalAddress {
            port: number,
            gid_index: entry.map_or(0, |entry| entry.index),
            gid: entry.map_or_else(Gid::default, |entry| entry.gid),
            kind: entry.map(|entry| entry.kind),
            lid: port.lid(),
            link_layer: port.link_layer(),
            mtu,
            reason,
        };
        let link = port.link_layer();
        let loopback: Vec<u32> = own
            .iter()
            .filter(|entry| entry.gid.to_ip().is_loopback())
            .map(|entry| entry.interface)
            .collect();
        let is_loopback = |entry: &GidEntry| loopback.contains(&entry.interface);
        let ranked = own.iter().map(|entry| {
            let (rank, reason) = rank(entry, link);
            let (fit, fit_reason) = self.fit(entry, is_loopback(entry));
            (((fit, rank), fit_reason.unwrap_or(reason)), *entry)
        });
        let best = ranked.min_by_key(|((rank, _), entry)| (*rank, entry.index));
        match best {
            Some((_, entry)) if self.gid_index.is_some() => Ok((
                (0, 0),
                address(Some(entry), "the index that the program set"),
            )),
            Some(((rank, reason), entry)) => Ok((rank, address(Some(entry), reason))),
            None if port.link_layer() != LinkLayer::Ethernet && port.lid() != 0 => {
                Ok(((0, 0), address(None, "InfiniBand, by LID")))
            }
            None => Err(unusable(format!(
                "port {number} has no GID: its network interface needs an address"
            ))),
        }
    }
}

/// The rank of a GID among all candidates. [`AddressChoice::choose`] chooses the GID with the
/// lowest rank. The first number, from 0 to 2, is the result of [`AddressChoice::fit`]. The second
/// number, from 0 to 5, is the preference for the type and the address of the GID; 0 is best.
type Rank = (u8, u8);

/// The UDP destination port of RoCE v2 packets. [`AddressChoice::toward`] uses this port when it
/// asks the system for the route to a peer.
const ROCE_PORT: u16 = 4791;

impl AddressChoice {
    /// Returns how well a GID fits [`AddressChoice::source`], from 0 (best) to 2. If the address of
    /// the GID matches `source`, also returns a text for logs that describes the match.
    /// `is_loopback` is `true` if the GID belongs to a loopback interface.
    fn fit(self, entry: &GidEntry, is_loopback: bool) -> (u8, Option<&'static str>) {
        match self.source.map(|source| source.to_canonical()) {
            None => (0, None),
            Some(source) if source.is_loopback() && entry.gid.to_ip().is_loopback() => {
                (0, Some("a loopback address, as the peer is on this host"))
            }
            Some(source) if source == entry.gid.to_ip() => (
                0,
                Some("the address from which this host sends to the peer"),
            ),
            Some(source) if is_loopback && !source.is_loopback() => (2, None),
            Some(_) => (1, None),
        }
    }
}

fn rank(entry: &GidEntry, link: LinkLayer) -> (u8, &'static str) {
    match entry.kind {
        // RoCE GIDs never have the type InfiniBand.
        GidType::InfiniBand if link == LinkLayer::Ethernet => (0, "iWARP"),
        GidType::InfiniBand => (0, "InfiniBand"),
        GidType::RoceV2 if entry.gid.to_ipv4().is_some() => (1, "RoCE v2, IPv4"),
        GidType::RoceV2 if !entry.gid.is_link_local() => (2, "RoCE v2, IPv6"),
        GidType::RoceV2 => (3, "RoCE v2, link-local, as there is no other"),
        GidType::RoceV1 => (4, "RoCE v1, as there is no RoCE v2"),
        GidType::Unknown(_) => (5, "of an unknown type, as there is no other"),
    }
}

#[cfg(test)]
mod tests {
    use ibverbs_sys as sys;

    use super::*;

    fn port(number: u8, state: sys::ibv_port_state, link_layer: u32, lid: u16) -> PortAttributes {
        let raw = sys::ibv_port_attr {
            state,
            active_mtu: sys::ibv_mtu::IBV_MTU_1024,
            link_layer: link_layer as u8,
            lid,
            ..Default::default()
        };
        PortAttributes::new(number, raw)
    }

    fn active(number: u8) -> PortAttributes {
        port(
            number,
            sys::ibv_port_state::IBV_PORT_ACTIVE,
            sys::IBV_LINK_LAYER_ETHERNET,
            0,
        )
    }

    fn gid(port: u8, index: u32, address: &str, kind: GidType) -> GidEntry {
        let gid = Gid::from(address.parse::<IpAddr>().unwrap());
        GidEntry {
            index,
            port,
            gid,
            kind,
            interface: 2,
        }
    }

    fn table() -> Vec<GidEntry> {
        vec![
            gid(1, 0, "fe80::1", GidType::RoceV2),
            gid(1, 1, "10.0.0.1", GidType::RoceV1),
            gid(1, 2, "2001:db8::1", GidType::RoceV2),
            gid(1, 3, "10.0.0.1", GidType::RoceV2),
            gid(1, 4, "10.0.0.2", GidType::RoceV2),
        ]
    }

    fn chosen(choice: AddressChoice, gids: &[GidEntry]) -> u32 {
        choice.choose("dev", &[active(1)], gids).unwrap().gid_index
    }

    #[test]
    fn ipv4_before_ipv6_before_link_local_before_v1() {
        let mut gids = table();
        let auto = AddressChoice::default();
        for expected in [3, 4, 2, 0, 1] {
            assert_eq!(chosen(auto, &gids), expected);
            gids.retain(|entry| entry.index != expected);
        }
        assert!(matches!(
            auto.choose("dev", &[active(1)], &gids),
            Err(Error::NoUsablePort { .. })
        ));
    }

    #[test]
    fn a_requested_address_is_chosen_or_refused_with_the_valid_ones() {
        let ask = |index| AddressChoice {
            gid_index: Some(index),
            ..AddressChoice::default()
        };
        assert_eq!(chosen(ask(2), &table()), 2);
        let error = ask(9).choose("dev", &[active(1)], &table()).unwrap_err();
        let text = error.to_string();
        assert!(
            text.contains("index 9") && text.contains("3 (::ffff:10.0.0.1, RoCE v2)"),
            "{text}"
        );
        let error = AddressChoice {
            port: Some(3),
            ..AddressChoice::default()
        }
        .choose("dev", &[active(1)], &table())
        .unwrap_err();
        assert_eq!(
            error.to_string(),
            "device dev has no port 3; its ports are 1 to 1"
        );
    }

    /// Returns an [`AddressChoice`] that contains only a source address. `source` is the text of an
    /// IP address, such as `127.0.0.1`.
    fn from(source: &str) -> AddressChoice {
        AddressChoice {
            source: Some(source.parse().unwrap()),
            ..AddressChoice::default()
        }
    }

    #[test]
    fn the_gid_that_fits_the_peer_is_taken() {
        let on = |interface, entry| GidEntry { interface, ..entry };
        let mut gids = vec![
            on(1, gid(1, 0, "127.4.5.6", GidType::RoceV2)),
            on(1, gid(1, 1, "fd73::1", GidType::RoceV2)),
        ];
        // Without another address, the default remains.
        assert_eq!(chosen(from("10.0.0.1"), &gids), 0);
        gids.extend([
            on(2, gid(1, 2, "10.0.0.1", GidType::RoceV2)),
            on(2, gid(1, 3, "2001:db8::1", GidType::RoceV2)),
            on(3, gid(1, 4, "10.0.1.1", GidType::RoceV2)),
            on(3, gid(1, 5, "fe80::1", GidType::RoceV2)),
        ]);
        for (source, expected) in [
            ("127.0.0.1", 0),
            ("::1", 0),
            ("10.0.0.1", 2),
            ("::ffff:10.0.1.1", 4),
            ("2001:db8::1", 3),
            ("fe80::1", 5),
            // An address of a network without RDMA.
            ("192.0.2.1", 2),
        ] {
            assert_eq!(chosen(from(source), &gids), expected, "{source}");
        }
        assert_eq!(chosen(AddressChoice::default(), &gids), 0);
        let asked = AddressChoice {
            gid_index: Some(1),
            ..from("10.0.0.1")
        };
        assert_eq!(chosen(asked, &gids), 1);
        // A network card has no loopback address.
        assert_eq!(chosen(from("127.0.0.1"), &table()), 3);
    }

    #[test]
    fn the_source_address_toward_a_peer_is_found() {
        let choice = AddressChoice::default();
        let local: IpAddr = Ipv4Addr::LOCALHOST.into();
        assert_eq!(choice.toward(local).source, Some(local));
        // A UDP socket cannot be connected to this address.
        let none = choice.toward("255.255.255.255".parse().unwrap());
        assert_eq!(none.source, None);
    }

    #[test]
    fn an_inactive_port_is_skipped_or_named_in_the_error() {
        let down = port(
            1,
            sys::ibv_port_state::IBV_PORT_DOWN,
            sys::IBV_LINK_LAYER_ETHERNET,
            0,
        );
        let mut gids = table();
        gids.push(gid(2, 0, "10.0.1.1", GidType::RoceV2));
        let found = AddressChoice::default()
            .choose("dev", &[down, active(2)], &gids)
            .unwrap();
        assert_eq!((found.port, found.gid_index), (2, 0));
        let error = AddressChoice::default()
            .choose("dev", &[down], &gids)
            .unwrap_err();
        assert_eq!(
            error.to_string(),
            "device dev has no usable port: port 1 is down"
        );
    }

    #[test]
    fn infiniband_needs_no_gid() {
        let state = sys::ibv_port_state::IBV_PORT_ACTIVE;
        let port = port(1, state, sys::IBV_LINK_LAYER_INFINIBAND, 7);
        let found = AddressChoice::default()
            .choose("dev", &[port], &[])
            .unwrap();
        assert_eq!((found.lid, found.gid_index), (7, 0));
        let zero = gid(1, 0, &Ipv6Addr::UNSPECIFIED.to_string(), GidType::RoceV2);
        let error = AddressChoice::default()
            .choose("dev", &[active(1)], &[zero])
            .unwrap_err();
        assert!(error.to_string().contains("has no GID"), "{error}");
    }
}
