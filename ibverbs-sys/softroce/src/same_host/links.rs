#![forbid(unsafe_code)]
//! The table of the links (shared memory with other processes) of this process, found by the socket
//! addresses of the peers.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Instant;

use rustix::process::Pid;

use super::link::Link;

/// Table of all links (shared memory with other processes) and of the state of each process, found
/// by the socket addresses of the processes.
#[derive(Default)]
pub(super) struct Links {
    by_address: HashMap<SocketAddr, ProcessState>,
    links: Vec<Arc<Link>>,
    /// Set if a link (shared memory) in the table may have ended, so that
    /// [`remove_ended`](Self::remove_ended) must be called.
    has_ended: bool,
    /// Number of times that links (shared memory) were added or removed.
    changes: u64,
}

/// Known state of another process, which is identified by its socket address.
pub(super) enum ProcessState {
    /// A thread of this process is performing a handshake with the process.
    InHandshake,
    Linked(Arc<Link>),
    /// The process refused to share memory, or did not answer, at this time.
    Declined(Instant),
}

impl Links {
    /// Returns the state of the process that has the socket address `address`. Returns `None` if no
    /// handshake with the process was begun, or if the link to the process was removed.
    pub(super) fn state(&self, address: SocketAddr) -> Option<&ProcessState> {
        self.by_address.get(&address)
    }

    /// Returns the link (shared memory) to the process that has the socket address `address`, or
    /// `None` if there is no live link.
    pub(super) fn link(&self, address: SocketAddr) -> Option<Arc<Link>> {
        match self.state(address) {
            Some(ProcessState::Linked(link)) if !link.is_dead() => Some(Arc::clone(link)),
            _ => None,
        }
    }

    /// Returns whether a thread of this process is performing a handshake with the process that has
    /// the address `address`.
    pub(super) fn is_in_handshake(&self, address: SocketAddr) -> bool {
        matches!(self.state(address), Some(ProcessState::InHandshake))
    }

    /// Records that a thread of this process begins a handshake with the process that has the
    /// address `address`. Other threads then wait for the result, and do not begin a second
    /// handshake.
    pub(super) fn begin_handshake(&mut self, address: SocketAddr) {
        self.by_address.insert(address, ProcessState::InHandshake);
    }

    /// Records that the process with the address `address` refused to share memory, or did not
    /// answer, at the time `now`.
    pub(super) fn set_declined(&mut self, address: SocketAddr, now: Instant) {
        self.by_address.insert(address, ProcessState::Declined(now));
    }

    /// Returns the links (shared memory) to all peer processes, including links that have ended but
    /// were not removed yet.
    pub(super) fn all(&self) -> &[Arc<Link>] {
        &self.links
    }

    /// Returns the number of times that a link (shared memory) was added to or removed from the
    /// table. A caller detects changes of the table by comparing two results.
    pub(super) fn changes(&self) -> u64 {
        self.changes
    }

    /// Returns whether a link (shared memory) in the table has possibly ended. If so, the caller
    /// must call [`remove_ended`](Self::remove_ended), which checks each link.
    pub(super) fn has_ended(&self) -> bool {
        self.has_ended
    }

    /// Returns whether one of `addresses` belongs to a process with a live link to this process,
    /// other than `process`. If so, a handshake in which `process` claims these addresses must be
    /// refused, because an address belongs to only one process.
    pub(super) fn is_taken(&self, addresses: &[SocketAddr], process: Pid) -> bool {
        addresses.iter().any(|address| match self.state(*address) {
            Some(ProcessState::Linked(link)) => link.process() != process && link.check(),
            _ => false,
        })
    }

    /// Adds `link` (shared memory with a peer) to the table. Ends earlier links to the same
    /// addresses, because the peer no longer uses them. Does not end an earlier link if its address
    /// is in `own`, the addresses of this process: a process that is its own peer has two links.
    pub(super) fn add(&mut self, link: &Arc<Link>, own: &[SocketAddr]) {
        for &address in link.addresses() {
            let known = ProcessState::Linked(Arc::clone(link));
            if let Some(ProcessState::Linked(earlier)) = self.by_address.insert(address, known)
                && !own.contains(&address)
            {
                earlier.end();
                self.has_ended = true;
            }
        }
        self.links.push(Arc::clone(link));
        self.changes += 1;
    }

    /// Removes links (shared memory) that have ended from the table, and returns them. An ended
    /// link stays in the table while it has messages to receive. It also stays while queue pairs
    /// wait for space in its ring, because these queue pairs must be resumed.
    pub(super) fn remove_ended(&mut self) -> Vec<Arc<Link>> {
        let (present, ended): (Vec<_>, Vec<_>) = (self.links.drain(..))
            .partition(|link| link.check() || link.may_have_messages() || link.must_resume());
        self.links = present;
        self.has_ended = self.links.iter().any(|link| link.is_dead());
        if !ended.is_empty() {
            let is_dead = |known: &ProcessState| matches!(known, ProcessState::Linked(link) if link.is_dead());
            self.by_address.retain(|_, known| !is_dead(known));
            self.changes += 1;
        }
        ended
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::super::testing;
    use super::*;

    #[test]
    fn a_link_replaces_an_earlier_one_with_its_address() {
        let (first, _first_end, _) = testing::links().unwrap();
        let (second, _second_end, _) = testing::links().unwrap();
        let address = first.addresses()[0];
        let mut links = Links::default();
        links.add(&first, &[]);
        assert!(!links.has_ended() && links.remove_ended().is_empty());
        links.add(&second, &[]);
        assert!(first.is_dead() && links.has_ended());
        assert!(Arc::ptr_eq(&links.link(address).unwrap(), &second));
        let ended = links.remove_ended();
        assert!(ended.len() == 1 && Arc::ptr_eq(&ended[0], &first));
        assert!(!links.has_ended());
        assert_eq!((links.all().len(), links.changes()), (1, 3));
        assert!(Arc::ptr_eq(&links.link(address).unwrap(), &second));
    }

    #[test]
    fn both_ends_of_a_link_to_this_process_are_kept() {
        let (first, _first_end, _) = testing::links().unwrap();
        let (second, _second_end, _) = testing::links().unwrap();
        let mut links = Links::default();
        links.add(&first, first.addresses());
        links.add(&second, first.addresses());
        assert!(!first.is_dead() && !links.has_ended());
        assert_eq!(links.all().len(), 2);
    }

    #[test]
    fn a_link_with_messages_stays_until_the_messages_are_received() {
        let (here, there, _) = testing::links().unwrap();
        let mut links = Links::default();
        links.add(&here, &[]);
        assert_eq!(there.send(0x100, 0, b"last"), Ok(()));
        drop(there);
        assert!(links.remove_ended().is_empty() && links.has_ended());
        assert_eq!(here.receive(2, |_, _| ()), Some(1));
        assert_eq!(links.remove_ended().len(), 1);
        assert!(links.all().is_empty() && !links.has_ended());
        assert!(links.state(here.addresses()[0]).is_none());
    }
}
