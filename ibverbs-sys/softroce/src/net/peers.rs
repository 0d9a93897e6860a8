#![forbid(unsafe_code)]
//! The devices on this host to which local queue pairs are connected. The packet filters of the
//! sockets drop packets of connections that other devices in 127/8 have sent.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::net::{SocketAddr, SocketAddrV4};

use parking_lot::{Mutex, MutexGuard};

use super::network::Network;
use crate::proto::Path;

/// Addresses in 127/8 of the devices of this host to which queue pairs are connected, each with the
/// number of these queue pairs. The packet filters of the sockets drop packets of connections from
/// other addresses in 127/8.
#[derive(Debug, Default)]
pub(super) struct Peers(Mutex<ConnectedPeers>);

/// Number of connected queue pairs of each device in 127/8, by the address of the device.
#[derive(Debug, Default)]
pub(super) struct ConnectedPeers(HashMap<SocketAddrV4, usize>);

impl Peers {
    pub(super) fn lock(&self) -> MutexGuard<'_, ConnectedPeers> {
        self.0.lock()
    }
}

impl ConnectedPeers {
    /// Returns the addresses from which the packet filters accept packets of connections.
    pub(super) fn listed(&self) -> Vec<SocketAddrV4> {
        self.0.keys().copied().collect()
    }
}

impl Network {
    /// Prepares the network for a connection on `path` to the peer's queue pair number
    /// `queue_pair`. Opens the socket of the path. Makes the kernel's packet filters accept
    /// connection packets from the peer's device. Each call must be matched by a call of
    /// [`disconnect`](Self::disconnect).
    pub(crate) fn connect(&self, path: &Path, queue_pair: u32) {
        self.activate(path.source);
        let Some(peer) = self.filtered_peer(path, queue_pair) else {
            return;
        };
        let mut peers = self.peers.lock();
        let count = peers.0.entry(peer).or_insert(0);
        *count += 1;
        if *count == 1 {
            let listed = peers.listed();
            for socket in self
                .table
                .local_addresses()
                .filter_map(|(_, local_address)| local_address.socket())
            {
                socket.install_filter(self.base, &listed);
            }
        }
    }

    /// Records that a connection on `path` to the peer's queue pair number `queue_pair` has ended.
    /// The caller must call this function once for each call of [`connect`](Self::connect). After
    /// the end of all connections to the peer's device, the next update of the kernel's packet
    /// filters excludes the device. The filters then drop packets of connections from the device.
    pub(crate) fn disconnect(&self, path: &Path, queue_pair: u32) {
        let Some(peer) = self.filtered_peer(path, queue_pair) else {
            return;
        };
        if let Entry::Occupied(mut found) = self.peers.lock().0.entry(peer) {
            *found.get_mut() -= 1;
            if *found.get() == 0 {
                found.remove();
            }
        }
    }

    /// Removes the packet filters from the sockets, so that a test can check how the receiver
    /// handles packets that the filters would drop.
    #[cfg(test)]
    pub(crate) fn remove_filter(&self) {
        for socket in self
            .table
            .local_addresses()
            .filter_map(|(_, local_address)| local_address.socket())
        {
            socket.remove_filter();
        }
    }

    /// Returns the address of the peer's device, if the kernel's packet filters check packets from
    /// that device. Returns `None` if the address is not in 127/8, because the filters pass all
    /// packets of the device. `path` and `queue_pair` (a number) identify the peer.
    fn filtered_peer(&self, path: &Path, queue_pair: u32) -> Option<SocketAddrV4> {
        match self.address(path, queue_pair)? {
            SocketAddr::V4(peer) if peer.ip().is_loopback() => Some(peer),
            _ => None,
        }
    }
}
