#![forbid(unsafe_code)]
//! Multicast groups in the network. While the NIC is a member of a group, it has a socket for the
//! group on each network interface.

use std::collections::HashMap;
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

/// Sockets of multicast groups, by the address of the group and the index of the network interface,
/// each with the number of times that the group was joined.
pub(super) type JoinedGroups = HashMap<(SocketAddr, u32), (usize, Arc<Endpoint>)>;

impl Network {
    /// Makes the NIC join a multicast group, so that packets to the group arrive at the NIC. Each
    /// call must be matched by a call of [`leave`](Self::leave).
    pub(crate) fn join(&self, group: Ipv6Addr) -> io::Result<()> {
        let wanted = self.group_addresses(group);
        if wanted.is_empty() {
            let message = format!("{group} is no multicast group that the port's GIDs reach");
            return Err(io::Error::new(io::ErrorKind::InvalidInput, message));
        }
        let mut groups = self.groups.lock();
        let mut added = Vec::new();
        for (at, gid, local_address) in wanted {
            if groups.contains_key(&(at, local_address.interface())) {
                continue;
            }
            let socket =
                match Socket::join(at, local_address.local.ip(), self.config.receive_buffer) {
                    Ok(socket) => socket,
                    // The interface may be gone or without multicast.
                    Err(_) if !added.is_empty() => continue,
                    Err(error) => return Err(error),
                };
            self.prepare(&socket, &[]);
            let endpoint = Endpoint {
                socket,
                gid,
                tunnelled: self.table.tunnelled(gid),
            };
            added.push(((at, local_address.interface()), Arc::new(endpoint)));
        }
        for (at, endpoint) in added {
            groups.insert(at, (0, endpoint));
        }
        for (at, _, local_address) in self.group_addresses(group) {
            if let Some((members, _)) = groups.get_mut(&(at, local_address.interface())) {
                *members += 1;
            }
        }
        self.publish(&groups);
        Ok(())
    }

    /// Reverses one call of [`join`](Self::join). After the last call for a group, the group's
    /// sockets are closed.
    pub(crate) fn leave(&self, group: Ipv6Addr) {
        let mut groups = self.groups.lock();
        for (at, _, local_address) in self.group_addresses(group) {
            if let Some((members, _)) = groups.get_mut(&(at, local_address.interface())) {
                *members = members.saturating_sub(1);
                if *members == 0 {
                    groups.remove(&(at, local_address.interface()));
                }
            }
        }
        self.publish(&groups);
    }

    /// Returns the socket addresses at which packets to the multicast group `group` arrive, at most
    /// one for each network interface and IP version. Each comes with an address of this process on
    /// the interface, and the index of the first GID of that address.
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

    /// Prepares the new UDP socket `socket`: the kernel drops packets of other programs of this
    /// host, and merges received datagrams unless the configuration forbids this. `peers` are the
    /// devices of this host whose packets of connections the socket accepts.
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
        let of_groups = groups.values().map(|(_, endpoint)| endpoint);
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
