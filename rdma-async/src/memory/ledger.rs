//! The ledger of a device: the amount of memory that is granted to each peer.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::Arc;

use parking_lot::Mutex;

/// Amount of memory that a peer has [requested](crate::Rdma::request_remote_mr) from this end and
/// not yet returned.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct GrantedMemory {
    /// Number of bytes. Each region counts with its size or its alignment, whichever is greater.
    pub bytes: usize,
    /// Number of regions.
    pub regions: usize,
}

/// Amounts of memory that the device has lent to peers at their request, by the IP address of the
/// peer.
#[derive(Debug, Default)]
pub(crate) struct Ledger {
    peers: Mutex<HashMap<IpAddr, GrantedMemory>>,
}

impl Ledger {
    /// Returns the amount of memory that a peer holds on all its connections.
    pub(crate) fn granted(&self, peer: IpAddr) -> GrantedMemory {
        let peers = self.peers.lock();
        peers.get(&peer.to_canonical()).copied().unwrap_or_default()
    }

    /// Counts `bytes` of a region as held by a peer, until the returned value is dropped. Returns
    /// `None` if the peer would then hold more than `limit` bytes.
    pub(crate) fn charge(
        self: &Arc<Self>,
        peer: IpAddr,
        bytes: usize,
        limit: usize,
    ) -> Option<Charge> {
        let peer = peer.to_canonical();
        let mut peers = self.peers.lock();
        let held = peers.get(&peer).copied().unwrap_or_default();
        let sum = held.bytes.checked_add(bytes).filter(|&sum| sum <= limit)?;
        let granted = GrantedMemory {
            bytes: sum,
            regions: held.regions + 1,
        };
        peers.insert(peer, granted);
        Some(Charge {
            ledger: Arc::clone(self),
            peer,
            bytes,
        })
    }
}

/// Record that the bytes of a region count towards the memory limit of a peer. Dropping the value,
/// when the region is returned, subtracts the bytes again.
#[derive(Debug)]
pub(crate) struct Charge {
    ledger: Arc<Ledger>,
    peer: IpAddr,
    bytes: usize,
}

impl Charge {
    /// Returns the number of bytes that count towards the limit.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }
}

impl Drop for Charge {
    fn drop(&mut self) {
        let mut peers = self.ledger.peers.lock();
        if let Some(granted) = peers.get_mut(&self.peer) {
            granted.bytes -= self.bytes;
            granted.regions -= 1;
            if granted.regions == 0 {
                peers.remove(&self.peer);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_peer_is_charged_until_its_regions_are_released_for_both_forms_of_its_address() {
        let ledger = Arc::new(Ledger::default());
        let peer: IpAddr = "10.0.0.1".parse().unwrap();
        let mapped: IpAddr = "::ffff:10.0.0.1".parse().unwrap();
        let first = ledger.charge(peer, 60, 100).unwrap();
        assert!(ledger.charge(mapped, 41, 100).is_none());
        assert!(ledger.charge(mapped, usize::MAX, usize::MAX).is_none());
        let second = ledger.charge(mapped, 40, 100).unwrap();
        let granted = ledger.granted(peer);
        assert_eq!((granted.bytes, granted.regions), (100, 2));
        let other = "10.0.0.2".parse().unwrap();
        assert_eq!(ledger.granted(other), GrantedMemory::default());
        drop(first);
        assert_eq!(ledger.granted(mapped).bytes, second.bytes());
        drop(second);
        assert!(ledger.peers.lock().is_empty());
    }
}
