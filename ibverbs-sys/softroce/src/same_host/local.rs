#![forbid(unsafe_code)]
//! This process as its peers see it: the resources that it passes in a handshake, and the list of
//! peers that may copy from and to its memory.

use std::fs;
use std::io;
use std::net::{Ipv6Addr, SocketAddr};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::sync::{Arc, OnceLock};
use std::time::Instant;

use parking_lot::{Condvar, Mutex};
use rustix::process::Pid;

use super::admitted::Admitted;
use super::copying_peer::{CopyingPeer, Process};
use super::events::{Events, Source};
use super::handshake_message::{HandshakeMessage, MessageType};
use super::link::{Link, LinkFailures, Peer};
use super::process;
use super::regions::{Publication, Tables};
use super::segment::LinkMemory;
use crate::address::slot_of_sender;
use crate::completion::WakeEventfds;
use crate::counters::Counters;
use crate::descriptor::{self, Descriptor};
use crate::memory::Arena;

/// Resources of this process that are passed to peers in a handshake: its addresses, tables, memory
/// and eventfds.
pub(crate) struct ProcessResources {
    /// First UDP port of the device's port range. The slot of a peer (index of its port) is counted
    /// from this port. See [`slot_of_sender`].
    pub(crate) base_port: u16,
    /// UDP addresses of this process, at most [`MAX_LIST`](super::MAX_LIST).
    pub(crate) addresses: Vec<SocketAddr>,
    /// Number of addresses at the beginning of `addresses` whose UDP sockets are open from the
    /// beginning.
    pub(crate) open: usize,
    /// First entries of the device's GID table, at most [`MAX_LIST`](super::MAX_LIST).
    pub(crate) gids: Vec<Ipv6Addr>,
    /// Tables in which this process publishes regions and queue pairs.
    pub(crate) publication: Arc<Publication>,
    /// Arena (shared file) from which memory regions are allocated.
    pub(crate) arena: Arc<Arena>,
    /// Eventfd by which peers wake this process's engine thread.
    pub(crate) wake_eventfd: Arc<Descriptor>,
    /// Eventfds by which peers wake threads of the program that wait at completion channels.
    pub(crate) channels: Arc<WakeEventfds>,
    /// Counters of the wakeups that this process sends.
    pub(crate) counters: Arc<Counters>,
    /// Set if this process may be a peer of itself, and so share memory with itself.
    pub(crate) is_peer: bool,
}

/// State of this process for all its handshakes and links (shared memory with other processes): the
/// resources that it passes to peers, and the list of peers that may copy from and to its memory.
pub(super) struct LocalProcess {
    pub(super) resources: ProcessResources,
    pub(super) events: Events,
    engine: EngineThread,
    /// Peer processes that may copy from and to memory of this process.
    admitted: Admitted<Arc<CopyingPeer>>,
    failures: Arc<LinkFailures>,
}

/// Thread ID of this process's engine (background thread). Peers name this thread in the system
/// calls that copy from and to the memory of this process. Unset until the engine is started.
struct EngineThread {
    thread: OnceLock<Pid>,
    lock: Mutex<()>,
    started: Condvar,
}

impl EngineThread {
    /// Stores the ID of the calling thread, which is the engine (background thread), and wakes the
    /// threads that wait for the ID.
    fn set_started(&self) {
        if self.thread.get().is_none() {
            let _locked = self.lock.lock();
            let _ = self.thread.set(rustix::thread::gettid());
            self.started.notify_all();
        }
    }

    /// Waits until the engine (background thread) runs, or until `deadline`.
    fn wait(&self, deadline: Instant) {
        let mut locked = self.lock.lock();
        let is_missing = |_: &mut ()| self.thread.get().is_none();
        self.started
            .wait_while_until(&mut locked, is_missing, deadline);
    }
}

impl LocalProcess {
    pub(super) fn new(resources: ProcessResources, events: Events) -> Self {
        Self {
            failures: LinkFailures::new(Arc::clone(&resources.wake_eventfd)),
            resources,
            events,
            engine: EngineThread {
                thread: OnceLock::new(),
                lock: Mutex::new(()),
                started: Condvar::new(),
            },
            admitted: Admitted::new(),
        }
    }

    /// Returns whether `address` is the address of a UDP socket of this process.
    pub(super) fn has_address(&self, address: SocketAddr) -> bool {
        self.resources.addresses.contains(&address)
    }

    /// Stores the ID of the calling thread as the thread ID of this process's engine (background
    /// thread). Handshakes can begin only after this call, because their messages contain the ID.
    pub(super) fn set_engine(&self) {
        self.engine.set_started();
    }

    /// Waits until the engine (background thread) has started and stored its thread ID, or until
    /// `deadline`.
    pub(super) fn wait_for_engine(&self, deadline: Instant) {
        self.engine.wait(deadline);
    }

    /// Wakes the engine (background thread) of this process.
    pub(super) fn wake_engine(&self) {
        descriptor::increment(self.resources.wake_eventfd.as_fd());
    }

    /// Returns whether a link (shared memory with another process) has failed since the previous
    /// call.
    pub(super) fn take_failure(&self) -> bool {
        self.failures.take()
    }

    /// Returns a handshake message of the type `word` that describes this process, or `None` if the
    /// engine (background thread) does not run yet.
    pub(super) fn describe(&self, word: MessageType) -> Option<HandshakeMessage> {
        Some(HandshakeMessage {
            word,
            probe: process::word(),
            thread: self.engine.thread.get()?.as_raw_pid(),
            key_base: self.resources.publication.key_base(),
            addresses: self.resources.addresses.clone(),
            gids: self.resources.gids.clone(),
        })
    }

    /// Returns the file descriptors that are sent with a handshake message from
    /// [`describe`](Self::describe). The first descriptor is `segment`, the file of the link's
    /// shared memory, if this process has created the link. Further descriptors are the files of
    /// this process's tables and of its memory for regions (arena), and its eventfds.
    pub(super) fn descriptors<'a>(
        &'a self,
        segment: Option<BorrowedFd<'a>>,
    ) -> Vec<BorrowedFd<'a>> {
        let resources = [
            self.resources.publication.as_fd(),
            self.resources.arena.as_fd(),
            self.resources.wake_eventfd.as_fd(),
        ];
        let resources = resources.into_iter().chain(self.resources.channels.all());
        segment.into_iter().chain(resources).collect()
    }

    /// Creates a [`Peer`] from a handshake message of the peer and the file descriptors that came
    /// with it, except the descriptor of the shared memory. Checks the descriptors, and maps the
    /// file in which the peer publishes its memory regions and queue pairs.
    pub(super) fn peer(
        &self,
        handshake_message: HandshakeMessage,
        mut descriptors: Vec<Descriptor>,
    ) -> io::Result<Peer> {
        if descriptors.len() != 3 + WakeEventfds::COUNT {
            return Err(io::ErrorKind::InvalidData.into());
        }
        let channels = descriptors.split_off(3);
        let wrong = |_| io::Error::from(io::ErrorKind::InvalidData);
        let [tables, arena, wake_eventfd] =
            <[Descriptor; 3]>::try_from(descriptors).map_err(wrong)?;
        // A write to a descriptor that is not an eventfd could block.
        if !channels
            .iter()
            .chain([&wake_eventfd])
            .all(|wake_eventfd| is_eventfd(wake_eventfd.as_fd()))
        {
            return Err(io::ErrorKind::InvalidData.into());
        }
        let mut slots = handshake_message.addresses.iter().filter_map(|&address| {
            let slot = slot_of_sender(self.resources.base_port, address);
            slot.ok().flatten()
        });
        Ok(Peer {
            slot: slots.next(),
            addresses: handshake_message.addresses,
            gids: handshake_message.gids,
            key_base: handshake_message.key_base,
            tables: Tables::map(tables.as_fd())?,
            arena,
            wake_eventfd,
            channels,
        })
    }

    /// Creates the link (shared memory) to the peer `peer`, whose process is `process`. `side` is
    /// this process's mapping of the shared memory. The caller must not use the link before the
    /// handshake is finished.
    pub(super) fn new_link(&self, peer: Peer, process: Process, side: LinkMemory) -> Arc<Link> {
        let counters = Arc::clone(&self.resources.counters);
        Link::new(peer, process, side, counters, Arc::clone(&self.failures))
    }

    /// Permits the peer of `link` to copy from and to memory of this process. Sends the peer
    /// `handshake_message`, which gives the permission, with the file descriptors `descriptors`.
    /// First adds the peer to the list of peers that may copy: a thread that withdraws memory waits
    /// for the copies of the peers in this list.
    pub(super) fn admit(
        &self,
        link: &Link,
        handshake_message: &HandshakeMessage,
        descriptors: &[BorrowedFd<'_>],
    ) -> io::Result<()> {
        let copying_peer = link.copying_peer();
        for watched in copying_peer.descriptors() {
            // If this fails, the end of the peer is noticed when a thread waits for copies by the
            // peer.
            let _ = self.events.add(watched, Source::Peer);
        }
        let socket = copying_peer.process.socket.as_fd();
        (self.admitted).add(Arc::clone(copying_peer), || {
            handshake_message.send(socket, descriptors)
        })
    }

    /// Removes the peers that have ended or closed their connection from the list of processes that
    /// may copy from and to memory of this process.
    pub(super) fn remove_gone(&self) {
        self.admitted.retain(|copying_peer| {
            let is_gone = copying_peer.is_gone();
            if is_gone {
                for watched in copying_peer.descriptors() {
                    self.events.remove(watched);
                }
            }
            !is_gone
        });
    }

    /// Returns all peer processes whose copies are possibly still in progress. Before the call, the
    /// caller must make the memory that it will reuse inaccessible for new copies.
    pub(super) fn copying_peers(&self) -> Vec<Arc<CopyingPeer>> {
        self.admitted.all()
    }

    /// Returns the number of peers that may copy from and to memory of this process. Peers that
    /// have ended are also counted until they are [removed](Self::remove_gone).
    pub(super) fn copying_peer_count(&self) -> usize {
        self.admitted.count(|_| true)
    }

    /// Returns the number of links (shared memory) with the process `process`. Also counts a link
    /// that has ended for this process, as long as the peer can still use it.
    pub(super) fn links_with(&self, process: Pid) -> usize {
        self.admitted
            .count(|copying_peer| copying_peer.process.number == process && !copying_peer.is_gone())
    }
}

/// Returns whether `descriptor` is an eventfd. A peer is woken by a write to its descriptor, which
/// could block if the descriptor is not an eventfd.
fn is_eventfd(descriptor: BorrowedFd<'_>) -> bool {
    let link = fs::read_link(format!("/proc/self/fd/{}", descriptor.as_raw_fd()));
    link.is_ok_and(|link| link.as_os_str() == "anon_inode:[eventfd]")
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn only_eventfds_are_accepted_as_wake_eventfds() {
        assert!(WakeEventfds::new().unwrap().all().all(is_eventfd));
        let other = fs::File::open("/dev/null").unwrap();
        assert!(!is_eventfd(other.as_fd()));
    }
}
