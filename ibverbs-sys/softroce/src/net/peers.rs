#![forbid(unsafe_code)]
//! The devices of this host to which queue pairs are connected. The sockets accept packets of connections only from these
//! devices.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::net::{SocketAddr, SocketAddrV4};

use parking_lot::Mutex;

use super::network::Network;
use crate::proto::Path;

/// Addresses of the connected devices of this host, each with the number of queue pairs that are connected to it.
#[derive(Debug, Default)]
pub(super) struct Peers(Mutex<HashMap<SocketAddrV4, usize>>);

impl Network {
    /// Accepts packets of connections from the device that has a queue pair. Each call must be matched by a call of
    /// [`disconnect`](Self::disconnect).
    pub(crate) fn connect(&self, path: &Path, queue_pair: u32) {
        let Some(peer) = self.filtered(path, queue_pair) else {
            return;
        };
        let mut peers = self.peers.0.lock();
        let count = peers.entry(peer).or_insert(0);
        *count += 1;
        if *count == 1 {
            let listed: Vec<SocketAddrV4> = peers.keys().copied().collect();
            for endpoint in &self.own {
                endpoint.socket.refuse_strangers(self.base, &listed);
            }
        }
    }

    /// Reverses one call of [`connect`](Self::connect) for the device that has a queue pair. After the last reversal, the
    /// filters stop accepting packets of connections from the device once they are next updated.
    pub(crate) fn disconnect(&self, path: &Path, queue_pair: u32) {
        let Some(peer) = self.filtered(path, queue_pair) else {
            return;
        };
        if let Entry::Occupied(mut found) = self.peers.0.lock().entry(peer) {
            *found.get_mut() -= 1;
            if *found.get() == 0 {
                found.remove();
            }
        }
    }

    /// Removes the filters, so that the kernel passes all packets and a test can check how the receiver handles them.
    #[cfg(test)]
    pub(crate) fn pass_strangers(&self) {
        for endpoint in &self.own {
            endpoint.socket.pass_strangers();
        }
    }

    /// Returns the address of the device that has a queue pair, if the device is on this host and uses IPv4. The filters always
    /// pass packets of other devices.
    fn filtered(&self, path: &Path, queue_pair: u32) -> Option<SocketAddrV4> {
        match self.address(path, queue_pair)? {
            SocketAddr::V4(peer) if peer.ip().is_loopback() => Some(peer),
            _ => None,
        }
    }
}
