#![forbid(unsafe_code)]
//! The sockets and GIDs of the host's addresses: sockets are opened on demand, and GIDs follow the
//! changes of the host.

use std::io::{self, ErrorKind};
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::Ordering;

use super::bind::{bind_host, report_taken, used_addresses};
use super::network::Network;
use super::socket::{HostAddress, InterfaceMonitor};
use crate::address;

impl Network {
    /// Opens the socket of the GID with the index `gid`, if it is not open. The device then
    /// receives the packets that are sent to the GID. Called when a queue pair begins to use the
    /// GID.
    pub(crate) fn activate(&self, gid: u8) {
        // If the socket cannot be opened, packets of the GID are discarded and counted.
        if self.open_socket(gid).is_ok_and(|opened| opened) {
            self.publish(&self.groups.lock());
        }
    }

    /// Opens the sockets of all addresses, present and future ones, because a queue pair receives
    /// datagrams at all GIDs.
    pub(crate) fn receive_everywhere(&self) {
        if !self.receives_everywhere.swap(true, Ordering::SeqCst) {
            self.open_all();
        }
    }

    /// Returns a descriptor that becomes readable when the kernel reports a change of the host's
    /// network. The caller must then call [`update_from_host`](Self::update_from_host). Returns
    /// `None` if the device ignores such changes.
    pub(crate) fn host_changes(&self) -> Option<BorrowedFd<'_>> {
        self.changes.as_ref().map(AsFd::as_fd)
    }

    /// Reads the kernel's reports about changes of the host's network. After changes of interfaces
    /// and addresses, updates the GID table. Returns whether the table has changed. After a change
    /// of routes, forgets which other hosts accept bursts (several packets that are passed to the
    /// kernel as one message). A host then needs a new [trial](super::trial) before it gets bursts.
    pub(crate) fn update_from_host(&self) -> bool {
        let Some(changes) = self.changes.as_ref().map(InterfaceMonitor::take) else {
            return false;
        };
        if changes.routes {
            self.trials.forget_all();
        }
        let Some(port) = address::port_of_slot(self.base, self.slot()) else {
            return false;
        };
        let must_list = self.must_list.swap(false, Ordering::Relaxed);
        if !changes.addresses && !must_list {
            return false;
        }
        // Without the list, no address is known to be lost. The table is updated after the kernel's
        // next report of any change.
        let Ok(list) = HostAddress::try_list() else {
            self.must_list.store(true, Ordering::Relaxed);
            return false;
        };
        let has_fixed_addresses = !self.config.addresses.is_empty();
        let hosts = match has_fixed_addresses {
            true => list.into_iter().filter(|host| host.is_up).collect(),
            false => used_addresses(&self.config, &list),
        };
        let mut has_changed = false;
        for (_, local_address) in self.table.local_addresses() {
            let ip = local_address.local.ip();
            // An address without an interface is local by a route, which the kernel does not list.
            if ip.is_loopback() || local_address.interface_name().is_none() {
                continue;
            }
            // The socket of a link-local address is bound to one interface. If the address returns
            // on another interface, the entry stays empty.
            let is_bound = |host: &&HostAddress| match local_address.local {
                SocketAddr::V6(local) if local.scope_id() != 0 => {
                    host.interface.index == local.scope_id()
                }
                _ => true,
            };
            let found = (hosts.iter()).find(|host| host.ip == ip && is_bound(host));
            has_changed |= local_address.set_interface(found.map(|host| &host.interface));
        }
        self.open_awaited();
        if has_fixed_addresses {
            if has_changed {
                self.join_on_new_interfaces();
            }
            return has_changed;
        }
        for host in hosts {
            if self
                .own_addresses()
                .any(|local_address| local_address.ip() == host.ip)
            {
                continue;
            }
            match bind_host(&host, port) {
                Ok(local_address) => has_changed |= self.table.add(local_address, false),
                Err(error) if error.kind() == ErrorKind::AddrInUse => {
                    if self.reported.lock().insert(host.ip) {
                        report_taken(host.ip, port);
                    }
                }
                // An IPv6 address whose uniqueness is being checked: the kernel reports the end of
                // the check.
                Err(_) => {}
            }
        }
        if self.receives_everywhere.load(Ordering::SeqCst) {
            self.open_all();
        }
        if has_changed {
            self.join_on_new_interfaces();
        }
        has_changed
    }

    /// Opens the UDP socket that sends and receives the packets of the GID with the index `gid`.
    /// Returns `false`, and opens nothing, if the socket is already open or no GID has this index.
    pub(super) fn open_socket(&self, gid: u8) -> io::Result<bool> {
        let buffer = self.config.receive_buffer;
        // Held until the table contains the socket, so that a new connection adds its peer to the
        // packet filter of the socket.
        let peers = self.peers.lock();
        let prepare = |socket: &_| self.prepare(socket, &peers.listed());
        let Some(local_address) = self.table.open(gid.into(), buffer, prepare).transpose()? else {
            return Ok(false);
        };
        drop(peers);
        if let Some(host_peers) = self.host_peers() {
            // On failure, processes of this host reach the address by packets.
            let _ = host_peers.listen(local_address.local);
        }
        Ok(true)
    }

    /// Opens each socket that a queue pair needs and that could not be opened before, if the host
    /// now has the address of the socket.
    fn open_awaited(&self) {
        let mut has_opened = false;
        for (gid, local_address) in self.table.local_addresses() {
            if local_address.must_open() {
                has_opened |= self.open_socket(gid).is_ok_and(|opened| opened);
            }
        }
        if has_opened {
            self.publish(&self.groups.lock());
        }
    }

    fn open_all(&self) {
        for (gid, _) in self.table.local_addresses() {
            let _ = self.open_socket(gid);
        }
        self.publish(&self.groups.lock());
    }
}
