//! The ledger of a device: the amount of memory that is granted to each peer, and to all peers.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::Arc;

use parking_lot::Mutex;

/// Amount of memory that a peer has [requested](crate::Rdma::request_remote_mr) from this end and
/// holds. Memory that the peer has returned no longer counts. In
/// [`RdmaDevice::granted_memory`](crate::RdmaDevice::granted_memory), returned memory counts until
/// the program has [received](crate::Rdma::receive_local_mr) it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct GrantedMemory {
    /// Number of bytes. Each region counts with its size or its alignment, whichever is greater.
    pub bytes: usize,
    /// Number of regions.
    pub regions: usize,
}

/// Amounts of memory of this device that each peer holds. Each amount consists of the memory that
/// the peer has requested, and of the rings into which the peer writes long pieces of streams. The
/// limits of the peers are checked against these amounts.
#[derive(Debug, Default)]
pub(crate) struct Ledger {
    accounts: Mutex<Accounts>,
}

#[derive(Debug, Default)]
struct Accounts {
    /// Amounts of memory by the IP address of the peer.
    peers: HashMap<IpAddr, GrantedMemory>,
    /// Number of bytes of the device's pool that all peers together hold.
    pool_bytes: usize,
}

/// Sizes, in bytes, with which a region that a peer has requested counts towards two limits. The
/// first size counts towards the limit of the peer. The second size is the memory that the region
/// uses in the device's pool, and counts towards the limit of all peers.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Amount {
    /// Number of bytes that count towards the limit of the peer.
    pub(crate) bytes: usize,
    /// Number of bytes of the device's pool that the region uses.
    pub(crate) pool_bytes: usize,
}

/// Limit that a peer's request for memory would exceed, in bytes: the limit of this peer, or the
/// limit of all peers together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Exceeded {
    /// Limit of one peer.
    Peer(usize),
    /// Limit of all peers together.
    AllPeers(usize),
}

impl Ledger {
    /// Returns the amount of memory that counts as held by a peer, over all its connections.
    /// Returned memory counts until the program has received it.
    pub(crate) fn granted(&self, peer: IpAddr) -> GrantedMemory {
        let accounts = self.accounts.lock();
        let granted = accounts.peers.get(&peer.to_canonical());
        granted.copied().unwrap_or_default()
    }

    /// Counts a region as held by a peer, until the returned value is dropped. Fails if the peer
    /// would then hold more than `peer_limit` bytes, or if all peers would hold more than
    /// `pool_limit` bytes of the device's memory pool.
    pub(crate) fn charge(
        self: &Arc<Self>,
        peer: IpAddr,
        amount: Amount,
        peer_limit: usize,
        pool_limit: Option<usize>,
    ) -> Result<Charge, Exceeded> {
        let peer = peer.to_canonical();
        let accounts = &mut *self.accounts.lock();
        let held = accounts.peers.get(&peer).copied().unwrap_or_default();
        let bytes =
            sum_within(held.bytes, amount.bytes, peer_limit).ok_or(Exceeded::Peer(peer_limit))?;
        let pool_limit = pool_limit.unwrap_or(usize::MAX);
        accounts.pool_bytes = sum_within(accounts.pool_bytes, amount.pool_bytes, pool_limit)
            .ok_or(Exceeded::AllPeers(pool_limit))?;
        let granted = GrantedMemory {
            bytes,
            regions: held.regions + 1,
        };
        accounts.peers.insert(peer, granted);
        Ok(Charge {
            ledger: Arc::clone(self),
            peer,
            amount,
        })
    }
}

/// Returns the sum of `held` and `more`, two numbers of bytes. Returns `None` if the sum exceeds
/// `limit`.
fn sum_within(held: usize, more: usize, limit: usize) -> Option<usize> {
    held.checked_add(more).filter(|&sum| sum <= limit)
}

/// Guard that counts the bytes of a region towards the memory limits of a peer and of all peers.
/// Dropping the guard subtracts the bytes again: when the lease ends, or, for a returned region,
/// when the program has received the region.
#[derive(Debug)]
pub(crate) struct Charge {
    ledger: Arc<Ledger>,
    peer: IpAddr,
    amount: Amount,
}

impl Charge {
    /// Returns the number of bytes with which the region counts towards the peer's limit of
    /// requested memory.
    pub(crate) fn bytes(&self) -> usize {
        self.amount.bytes
    }
}

impl Drop for Charge {
    fn drop(&mut self) {
        let mut accounts = self.ledger.accounts.lock();
        accounts.pool_bytes -= self.amount.pool_bytes;
        if let Some(granted) = accounts.peers.get_mut(&self.peer) {
            granted.bytes -= self.amount.bytes;
            granted.regions -= 1;
            if granted.regions == 0 {
                accounts.peers.remove(&self.peer);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn amount(bytes: usize) -> Amount {
        Amount {
            bytes,
            pool_bytes: bytes,
        }
    }

    #[test]
    fn a_peer_is_charged_until_its_regions_are_released_for_both_forms_of_its_address() {
        let ledger = Arc::new(Ledger::default());
        let peer: IpAddr = "10.0.0.1".parse().unwrap();
        let mapped: IpAddr = "::ffff:10.0.0.1".parse().unwrap();
        let charge = |peer, bytes| ledger.charge(peer, amount(bytes), 100, None);
        let first = charge(peer, 60).unwrap();
        assert_eq!(charge(mapped, 41).unwrap_err(), Exceeded::Peer(100));
        let unlimited = ledger.charge(mapped, amount(usize::MAX), usize::MAX, None);
        assert!(unlimited.is_err());
        let second = charge(mapped, 40).unwrap();
        let granted = ledger.granted(peer);
        assert_eq!((granted.bytes, granted.regions), (100, 2));
        let other = "10.0.0.2".parse().unwrap();
        assert_eq!(ledger.granted(other), GrantedMemory::default());
        drop(first);
        assert_eq!(ledger.granted(mapped).bytes, second.bytes());
        drop(second);
        let accounts = ledger.accounts.lock();
        assert!(accounts.peers.is_empty() && accounts.pool_bytes == 0);
    }

    #[test]
    fn all_peers_together_hold_no_more_of_the_pool_than_its_limit_for_peers() {
        let ledger = Arc::new(Ledger::default());
        let charge = |peer: &str, bytes, pool_bytes| {
            let amount = Amount { bytes, pool_bytes };
            ledger.charge(peer.parse().unwrap(), amount, 1000, Some(150))
        };
        let first = charge("10.0.0.1", 70, 128).unwrap();
        assert_eq!(
            charge("10.0.0.2", 1, 64).unwrap_err(),
            Exceeded::AllPeers(150)
        );
        assert_eq!(
            ledger.granted("10.0.0.2".parse().unwrap()),
            GrantedMemory::default()
        );
        drop(first);
        charge("10.0.0.2", 1, 64).unwrap();
    }
}
