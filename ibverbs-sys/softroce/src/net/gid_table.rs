#![forbid(unsafe_code)]
//! The GID table of the port, and the address behind each GID.
//!
//! Queue pairs, packets and peers name a GID by its index. So an entry keeps its index and its GID
//! as long as the process lives. If the host loses an address, the entry is only marked as absent,
//! and becomes present again with the address. Threads read the table without a lock.

use std::io;
use std::net::{Ipv6Addr, SocketAddr};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use parking_lot::Mutex;

use super::endpoint::{Endpoint, Gid, GidKind};
use super::limits::{interface_mtu, path_mtu};
use super::route::gid_of;
use super::socket::{BoundAddress, Interface, Socket};
use crate::address;
use crate::proto::Mtu;

/// Number of entries of the GID table, most of them empty. The number is sufficient for the
/// addresses of a usual host. If the host has more addresses, the remaining addresses get no GID,
/// so the device does not use them.
pub(crate) const GIDS: usize = 128;

/// The GID table of the port: the GIDs by their indices. Each entry also has the local IP address
/// and UDP port by which packets of the GID are sent and received.
#[derive(Debug)]
pub(super) struct Table {
    /// Entries in the order of their addition, followed by entries without a value.
    entries: Box<[OnceLock<Entry>]>,
    /// Held while entries are added, so that only one thread at a time extends the table.
    adding: Mutex<()>,
}

/// Entry of the GID table: a GID, and the local address and socket that send and receive the
/// packets of the GID.
#[derive(Debug)]
pub(super) struct Entry {
    pub(super) gid: Gid,
    /// Local address from which the packets of the GID are sent, and at which they arrive.
    pub(super) local_address: Arc<LocalAddress>,
}

/// An IP address and UDP port of this process, with a socket. The sockets of some addresses are
/// opened together with the network. The sockets of all others are opened when the first queue pair
/// uses the address.
#[derive(Debug)]
pub(super) struct LocalAddress {
    pub(super) local: SocketAddr,
    /// Network interface that has the address, or that had the address until the host lost it.
    /// `None` if no interface has had the address.
    interface: Mutex<Option<Interface>>,
    /// Set while the host has the address. While clear, programs find an empty entry for the GIDs
    /// of the address.
    is_present: AtomicBool,
    /// Set if the last attempt to open the socket has failed, for example because the host did not
    /// have the address. A queue pair then waits for the socket.
    is_awaited: AtomicBool,
    reserved: Mutex<Option<BoundAddress>>,
    endpoint: OnceLock<Arc<Endpoint>>,
}

impl LocalAddress {
    pub(super) fn new(udp: BoundAddress, local: SocketAddr, interface: Option<Interface>) -> Self {
        Self {
            local,
            interface: Mutex::new(interface),
            is_present: AtomicBool::new(true),
            is_awaited: AtomicBool::new(false),
            reserved: Mutex::new(Some(udp)),
            endpoint: OnceLock::new(),
        }
    }

    /// Returns the UDP socket of this address. Returns `None` if the socket is not open. The socket
    /// is not open if no queue pair has used the address yet, or if opening the socket has failed.
    pub(super) fn socket(&self) -> Option<&Socket> {
        Some(&self.endpoint()?.socket)
    }

    /// Returns the UDP socket of this address together with the GIDs at which its packets arrive.
    /// Returns `None` if the socket is not open. The socket is not open if no queue pair has used
    /// the address yet, or if opening the socket has failed.
    pub(super) fn endpoint(&self) -> Option<&Arc<Endpoint>> {
        self.endpoint.get()
    }

    /// Returns the index of the network interface that has this IP address. If the host has lost
    /// the address, returns the index of the interface that had it. Returns 0 if no interface has
    /// had the address.
    pub(super) fn interface(&self) -> u32 {
        self.interface
            .lock()
            .as_ref()
            .map_or(0, |found| found.index)
    }

    /// Returns the name of the network interface that has this IP address. If the host has lost the
    /// address, returns the name of the interface that had it. Returns `None` if no interface has
    /// had the address.
    pub(super) fn interface_name(&self) -> Option<String> {
        let interface = self.interface.lock();
        interface.as_ref().map(|found| found.name.clone())
    }

    /// Returns the present MTU, in bytes, of the network interface of this local address.
    pub(super) fn interface_mtu(&self) -> usize {
        interface_mtu(self.interface.lock().as_ref(), self.local.ip())
    }

    /// Returns the largest path MTU whose packets, with all headers, fit into the MTU of this
    /// address's network interface.
    pub(super) fn mtu(&self) -> Mtu {
        path_mtu(self.interface_mtu())
    }

    /// Returns whether the host has this local IP address at present. If not, programs find empty
    /// entries in the GID table instead of the GIDs of the address.
    pub(super) fn is_present(&self) -> bool {
        self.is_present.load(Ordering::Relaxed)
    }

    /// Returns whether the socket must be opened: a queue pair waits for the socket, and the host
    /// has the address at present.
    pub(super) fn must_open(&self) -> bool {
        self.is_present() && self.is_awaited.load(Ordering::Relaxed)
    }

    /// Records the network interface that has the address at present, or `None` if the host does
    /// not have the address. Returns whether the host got or lost the address.
    pub(super) fn set_interface(&self, interface: Option<&Interface>) -> bool {
        if let Some(interface) = interface {
            *self.interface.lock() = Some(interface.clone());
        }
        let is_present = interface.is_some();
        self.is_present.swap(is_present, Ordering::Relaxed) != is_present
    }
}

impl Table {
    pub(super) fn new() -> Self {
        Self {
            entries: (0..GIDS).map(|_| OnceLock::new()).collect(),
            adding: Mutex::new(()),
        }
    }

    /// Returns the entry of the GID table with the index `index`, or `None` if the table has no
    /// such entry. Also returns an entry whose IP address has been removed from the host.
    pub(super) fn get(&self, index: usize) -> Option<&Entry> {
        self.entries.get(index)?.get()
    }

    /// Returns all entries of the GID table in the order of their indices. The result includes
    /// entries for addresses that the host does not have at present.
    pub(super) fn iter(&self) -> impl Iterator<Item = &Entry> {
        self.entries.iter().map_while(OnceLock::get)
    }

    /// Returns the index of the GID `gid` in the GID table, or `None` if the table does not contain
    /// it. GIDs stay in the table after their IP address was removed from the host.
    pub(super) fn position(&self, gid: Ipv6Addr) -> Option<u8> {
        let found = self.iter().position(|entry| entry.gid.address == gid)?;
        Some(found as u8)
    }

    /// Returns all local addresses of this process, each with the index of the address's first GID.
    /// An address has a second GID if the address also receives tunnelled packets (IPv6 packets in
    /// IPv4 datagrams).
    pub(super) fn local_addresses(&self) -> impl Iterator<Item = (u8, &Arc<LocalAddress>)> {
        (0..).zip(self.iter()).filter_map(|(index, entry)| {
            (entry.gid.endpoint == usize::from(index)).then_some((index, &entry.local_address))
        })
    }

    /// Adds an entry for the GID that is formed from the IP address `local_address`. If
    /// `is_tunnelled` is set and the address is an IPv4 address, also adds an entry for a unique
    /// local IPv6 address (RFC 4193). Packets of that address are sent in a
    /// [tunnel](super::tunnel). Returns `false`, and adds nothing, if the table is full.
    pub(super) fn add(&self, local_address: LocalAddress, is_tunnelled: bool) -> bool {
        let _adding = self.adding.lock();
        let first = self.iter().count();
        let local_address = Arc::new(local_address);
        let mut gids = vec![Gid {
            address: gid_of(local_address.local.ip()),
            kind: match local_address.local {
                SocketAddr::V4(_) => GidKind::Mapped,
                SocketAddr::V6(_) => GidKind::Native,
            },
            endpoint: first,
        }];
        if let SocketAddr::V4(local) = local_address.local
            && is_tunnelled
        {
            gids.push(Gid {
                address: address::unique_local(local),
                kind: GidKind::Tunnelled,
                endpoint: first,
            });
        }
        if first + gids.len() > GIDS {
            return false;
        }
        for (place, gid) in self.entries[first..].iter().zip(gids) {
            let local_address = Arc::clone(&local_address);
            let _ = place.set(Entry { gid, local_address });
        }
        true
    }

    /// Opens the UDP socket for the packets of the GID with the index `index`, and returns the
    /// local address of the socket. `receive_buffer` is the requested size of the receive buffer in
    /// bytes. `prepare` sets the options of the new socket. Returns `None` if the socket is already
    /// open or no GID has this index.
    pub(super) fn open(
        &self,
        index: usize,
        receive_buffer: usize,
        prepare: impl FnOnce(&Socket),
    ) -> Option<io::Result<&Arc<LocalAddress>>> {
        let first = self.get(index)?.gid.endpoint;
        let local_address = &self.get(first)?.local_address;
        let mut reserved = local_address.reserved.lock();
        let opened = reserved.take()?.open(receive_buffer);
        let opened = opened.map_err(|(address, error)| {
            // The next call of this function tries again: the host may have the address again.
            *reserved = Some(address);
            error
        });
        local_address
            .is_awaited
            .store(opened.is_err(), Ordering::Relaxed);
        Some(opened.map(|socket| {
            prepare(&socket);
            let gid = first as u8;
            let _ = local_address.endpoint.set(Arc::new(Endpoint {
                socket,
                gid,
                tunnelled: self.tunnelled(gid),
            }));
            local_address
        }))
    }

    /// Returns the index of the second GID of a local address: the GID for tunnelled packets (IPv6
    /// packets in IPv4 datagrams). `gid` is the index of the address's first GID. Returns `None` if
    /// the address has no second GID, and thus receives no tunnelled packets.
    pub(super) fn tunnelled(&self, gid: u8) -> Option<u8> {
        let next = gid.checked_add(1)?;
        let entry = self.get(next.into())?;
        (entry.gid.endpoint == usize::from(gid)).then_some(next)
    }
}
