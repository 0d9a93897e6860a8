#![forbid(unsafe_code)]
//! Multicast groups in the network. While the NIC is a member of a group, the NIC has a socket for
//! the group on each network interface.

use std::collections::hash_map::{Entry, HashMap};
use std::io;
use std::net::{Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::endpoint::{Endpoint, Endpoints};
use super::gid_table::LocalAddress;
use super::network::Network;
use super::socket::Socket;
use crate::address;
use crate::config::Segmentation;

/// The multicast groups that the NIC has joined, by their GIDs.
pub(super) type JoinedGroups = HashMap<Ipv6Addr, JoinedGroup>;

/// A multicast group that the NIC has joined.
#[derive(Debug, Default)]
pub(super) struct JoinedGroup {
    /// Number of calls of [`Network::join`] that were not reversed by [`Network::leave`].
    joins: usize,
    /// Sockets that receive packets to the group, by the address of the group and the index of the
    /// network interface.
    sockets: HashMap<(SocketAddr, u32), Arc<Endpoint>>,
}

impl Network {
    /// Makes the NIC join a multicast group, so that packets to the group arrive at the NIC. Each
    /// call must be matched by a call of [`leave`](Self::leave).
    pub(crate) fn join(&self, group: Ipv6Addr) -> io::Result<()> {
        let mut groups = self.groups.lock();
        let joined = groups.entry(group).or_default();
        let outcome = self.join_on_interfaces(group, joined);
        match &outcome {
            Ok(()) => joined.joins += 1,
            Err(_) if joined.joins == 0 => drop(groups.remove(&group)),
            Err(_) => {}
        }
        self.publish(&groups);
        outcome
    }

    /// Ends the membership in the multicast group `group` that one call of [`join`](Self::join) has
    /// begun. When as many memberships in the group have ended as have begun, closes the sockets of
    /// the group.
    pub(crate) fn leave(&self, group: Ipv6Addr) {
        let mut groups = self.groups.lock();
        if let Entry::Occupied(mut joined) = groups.entry(group) {
            let joins = &mut joined.get_mut().joins;
            *joins = joins.saturating_sub(1);
            if joined.get().joins == 0 {
                joined.remove();
            }
        }
        self.publish(&groups);
    }

    /// Joins the groups of the NIC also on network interfaces that the host has got after the calls
    /// of [`join`](Self::join).
    pub(super) fn join_on_new_interfaces(&self) {
        let mut groups = self.groups.lock();
        for (&group, joined) in groups.iter_mut() {
            // An interface on which the group cannot be joined receives no packets to the group.
            let _ = self.join_on_interfaces(group, joined);
        }
        self.publish(&groups);
    }

    /// Opens the missing sockets of the multicast group `group`, one for each network interface,
    /// and adds them to `joined`. Closes the sockets for interfaces that the host no longer has.
    /// Fails if the group then has no socket.
    fn join_on_interfaces(&self, group: Ipv6Addr, joined: &mut JoinedGroup) -> io::Result<()> {
        let mut failure = None;
        let wanted = self.group_addresses(group);
        joined.sockets.retain(|(at, interface), _| {
            (wanted.iter()).any(|(other, _, on)| (other, on.interface()) == (at, *interface))
        });
        for (at, gid, local_address) in wanted {
            let Entry::Vacant(entry) = joined.sockets.entry((at, local_address.interface())) else {
                continue;
            };
            match Socket::join(at, local_address.local.ip(), self.config.receive_buffer) {
                Ok(socket) => {
                    self.prepare(&socket, &[]);
                    entry.insert(Arc::new(Endpoint {
                        socket,
                        gid,
                        tunnelled: self.table.tunnelled(gid),
                    }));
                }
                // The interface may be gone or without multicast.
                Err(error) => failure = Some(error),
            }
        }
        match joined.sockets.is_empty() {
            true => Err(failure.unwrap_or_else(|| {
                let message = format!("{group} is no multicast group that the port's GIDs reach");
                io::Error::new(io::ErrorKind::InvalidInput, message)
            })),
            false => Ok(()),
        }
    }

    /// Returns the socket addresses at which packets to the multicast group `group` arrive. The
    /// result contains at most one address for each network interface and IP version. Each tuple
    /// also has an address of this process on the interface, and the index of the first GID of that
    /// address.
    fn group_addresses(&self, group: Ipv6Addr) -> Vec<(SocketAddr, u8, &Arc<LocalAddress>)> {
        let port = self.group_port;
        let of = |local_address: &Arc<LocalAddress>| match local_address.local {
            SocketAddr::V4(_) => {
                let ip = address::ipv4_group(group)?;
                Some(SocketAddr::V4(SocketAddrV4::new(ip, port)))
            }
            SocketAddr::V6(_) => group.is_multicast().then(|| {
                let interface = local_address.interface();
                SocketAddr::V6(SocketAddrV6::new(group, port, 0, interface))
            }),
        };
        let mut all: Vec<(SocketAddr, u8, &Arc<LocalAddress>)> = Vec::new();
        for (gid, local_address) in self.table.local_addresses() {
            if let Some(at) = of(local_address)
                && !(all.iter()).any(|(other, _, on)| {
                    (*other, on.interface()) == (at, local_address.interface())
                })
            {
                all.push((at, gid, local_address));
            }
        }
        all
    }

    /// Sets options of the new UDP socket `socket`. Attaches a packet filter, by which the kernel
    /// drops packets of other programs on this host. The filter also drops packets of connections
    /// from devices of this host that are not in `peers`. Makes the kernel merge received
    /// datagrams, unless the configuration forbids this.
    pub(super) fn prepare(&self, socket: &Socket, peers: &[SocketAddrV4]) {
        socket.install_filter(self.base, peers);
        if self.segmentation != Segmentation::Never {
            socket.merge_received();
        }
    }

    /// Returns all sockets that must receive packets: the open sockets of this device's own
    /// addresses, and the sockets of the multicast groups `groups`.
    pub(super) fn sockets(&self, groups: &JoinedGroups) -> Endpoints {
        let local_address = self
            .table
            .local_addresses()
            .filter_map(|(_, local_address)| local_address.endpoint());
        let of_groups = groups.values().flat_map(|joined| joined.sockets.values());
        local_address.chain(of_groups).cloned().collect()
    }

    /// Replaces the set of sockets from which the engine (background thread) and all polling
    /// threads receive, and wakes the engine. The new set has the open sockets of this device's own
    /// addresses, and the sockets of the multicast groups `groups`. Called after each change of the
    /// sockets.
    pub(super) fn publish(&self, groups: &JoinedGroups) {
        *self.endpoints.write() = Arc::new(self.sockets(groups));
        self.endpoints_changes.fetch_add(1, Ordering::Release);
        // The engine still watches the previous set of sockets, so it is woken.
        self.timers.sleeper().signal();
    }
}
