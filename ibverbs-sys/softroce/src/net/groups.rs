#![forbid(unsafe_code)]
//! Multicast groups in the network. While the NIC is a member of a group, it has a socket for the group.

use std::collections::HashMap;
use std::io;
use std::net::{IpAddr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::endpoint::Endpoint;
use super::network::Network;
use super::socket::{Interface, Socket};
use crate::address;
use crate::config::Segmentation;

impl Network {
    /// Makes the NIC join a multicast group. Each call must be matched by a call of [`leave`](Self::leave).
    pub(crate) fn join(&self, group: Ipv6Addr) -> io::Result<()> {
        let wanted = self.group_addresses(group);
        if wanted.is_empty() {
            let message = format!("{group} is no multicast group that the port's GIDs reach");
            return Err(io::Error::new(io::ErrorKind::InvalidInput, message));
        }
        let mut groups = self.groups.lock();
        let mut added = Vec::new();
        for (at, own) in wanted {
            if groups.contains_key(&at) {
                continue;
            }
            let interface = own.socket.local().ip();
            let socket = Socket::join(at, interface, self.asked_buffer)?;
            socket.refuse_strangers(self.base, &[]);
            if self.segmentation != Segmentation::Never {
                socket.coalesce();
            }
            let endpoint = Endpoint {
                socket,
                gid: own.gid,
                tunnelled: own.tunnelled,
            };
            added.push((at, Arc::new(endpoint)));
        }
        for (at, endpoint) in added {
            groups.insert(at, (0, endpoint));
        }
        for (at, _) in self.group_addresses(group) {
            if let Some((members, _)) = groups.get_mut(&at) {
                *members += 1;
            }
        }
        self.publish(&groups);
        Ok(())
    }

    /// Reverses one call of [`join`](Self::join). After the last call for a group, the group's sockets are closed.
    pub(crate) fn leave(&self, group: Ipv6Addr) {
        let mut groups = self.groups.lock();
        for (at, _) in self.group_addresses(group) {
            if let Some((members, _)) = groups.get_mut(&at) {
                *members -= 1;
                if *members == 0 {
                    groups.remove(&at);
                }
            }
        }
        self.publish(&groups);
    }

    /// Returns the socket addresses at which packets to a multicast group arrive. Each comes with the port's socket on the
    /// same network interface.
    fn group_addresses(&self, group: Ipv6Addr) -> Vec<(SocketAddr, &Arc<Endpoint>)> {
        let of = |own: &Arc<Endpoint>| match own.socket.local() {
            SocketAddr::V4(local) => {
                let ip = address::ipv4_group(group)?;
                Some(SocketAddr::V4(SocketAddrV4::new(ip, local.port())))
            }
            SocketAddr::V6(local) => group.is_multicast().then(|| {
                let interface = Interface::of(IpAddr::V6(*local.ip())).map_or(0, |i| i.index);
                SocketAddr::V6(SocketAddrV6::new(group, local.port(), 0, interface))
            }),
        };
        self.own
            .iter()
            .filter_map(|own| Some((of(own)?, own)))
            .collect()
    }

    fn publish(&self, groups: &HashMap<SocketAddr, (usize, Arc<Endpoint>)>) {
        let of_groups = groups.values().map(|(_, endpoint)| endpoint);
        let all = self.own.iter().chain(of_groups).cloned().collect();
        *self.endpoints.write() = Arc::new(all);
        self.endpoints_changes.fetch_add(1, Ordering::Release);
        // The engine still watches the previous set of sockets, so it is woken.
        self.timers.sleeper().ring();
    }
}
