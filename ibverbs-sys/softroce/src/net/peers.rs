#![forbid(unsafe_code)]
//! The devices of this host that queue pairs are connected to. The sockets accept packets of connections only from these
//! devices.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::net::{SocketAddr, SocketAddrV4};

use parking_lot::Mutex;

use super::network::Network;
use crate::proto::Path;

/// Addresses of these devices, each with the number of queue pairs that are connected to it.
#[derive(Debug, Default)]
pub(super) struct Peers(Mutex<HashMap<SocketAddrV4, usize>>);

impl Network {
    /// Accepts packets from the device that has a queue pair. Each call must be matched by a call of
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

    /// Reverses one [`connect`](Self::connect) to the device that has a queue pair. After the last one, the kernel drops
    /// packets of the device as soon as another device is connected.
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

    /// Makes the kernel pass all packets, so that a test can check how the receiver handles them.
    #[cfg(test)]
    pub(crate) fn pass_strangers(&self) {
        for endpoint in &self.own {
            endpoint.socket.pass_strangers();
        }
    }

    /// Returns the address of the device that has a queue pair, if the device is on this host and uses IPv4. The filters pass
    /// packets of all other devices.
    fn filtered(&self, path: &Path, queue_pair: u32) -> Option<SocketAddrV4> {
        match self.address(path, queue_pair)? {
            SocketAddr::V4(peer) if peer.ip().is_loopback() => Some(peer),
            _ => None,
        }
    }
}
