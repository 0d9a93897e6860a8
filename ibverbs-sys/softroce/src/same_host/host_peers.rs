#![forbid(unsafe_code)]

use std::collections::HashMap;
use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use parking_lot::RwLock;

use super::copying_peer::CopiesInProgress;
use super::handshake_message::without_interface;
use super::link::Link;
use super::local::ProcessResources;
use super::peer_directory::PeerDirectory;
use super::regions::{Publication, QueuePair};
use super::wake_target::WakeTarget;
use super::withdrawal::Withdrawals;
use crate::completion::{WakeEventfd, WakeEventfds};
use crate::context::Refusal;
use crate::memory::{Peers, Published};
use crate::proto::Withdrawal;

/// The links (shared memory) of a NIC to other processes of the host, and the tables that the NIC
/// publishes to these processes.
pub struct HostPeers {
    directory: PeerDirectory,
    publication: Arc<Publication>,
    withdrawals: Withdrawals,
    /// Links (shared memory with other processes), by the socket addresses of the peers. A peer may
    /// have several addresses.
    by_address: RwLock<HashMap<SocketAddr, Arc<Link>>>,
    pub(super) links: RwLock<Arc<[Arc<Link>]>>,
    count: AtomicUsize,
    /// Number of times that links (shared memory) were added or removed. A [`CachedLinks`] is out
    /// of date if this number has changed since it was filled.
    version: AtomicUsize,
    wake_eventfds: Arc<WakeEventfds>,
    pub(super) wake_target: WakeTarget,
}

/// Cached list of all links (shared memory with other processes), for a thread that often polls all
/// links. The thread then needs no lock while no link is added or removed.
/// [`HostPeers::refresh_links`] updates the list.
#[derive(Debug)]
pub(crate) struct CachedLinks {
    version: usize,
    links: Arc<[Arc<Link>]>,
}

impl CachedLinks {
    /// Creates an empty list. [`HostPeers::refresh_links`] fills it.
    pub(crate) fn empty() -> Self {
        Self {
            version: 0,
            links: Arc::new([]),
        }
    }

    /// Returns the links (shared memory with other processes) of this cached list. The list may be
    /// out of date until [`HostPeers::refresh_links`] updates it.
    pub(crate) fn links(&self) -> &[Arc<Link>] {
        &self.links
    }
}

/// Copies by peer processes that were in progress when [`HostPeers::accesses`] was called. A caller
/// that must not sleep [polls](Self::poll) until the copies have ended.
#[derive(Debug)]
pub(super) struct Accesses(Vec<CopiesInProgress>);

impl Accesses {
    /// Returns the state of the recorded copies of peers from and to memory of this process: the
    /// copies have ended, are in progress, or exceed the time limit.
    pub(super) fn poll(&mut self) -> Withdrawal {
        let mut is_refused = false;
        self.0.retain_mut(|copies| {
            let over = copies.poll();
            is_refused |= over == Some(false);
            over != Some(true)
        });
        match self.0.iter().map(CopiesInProgress::elapsed).max() {
            None => Withdrawal::Complete,
            Some(_) if is_refused => Withdrawal::Refused,
            // The longer the copies have taken so far, the longer the next check is delayed.
            Some(age) => Withdrawal::Pending {
                delay: age.clamp(MIN_CHECK_INTERVAL, MAX_CHECK_INTERVAL),
            },
        }
    }
}

/// Minimum time between two checks whether peers have finished their copies. A thread waits before
/// the next check for as long as it has waited so far, because most copies end soon. This constant
/// is the lower limit of that delay, and [`MAX_CHECK_INTERVAL`] is the upper limit.
const MIN_CHECK_INTERVAL: Duration = Duration::from_micros(10);
/// Maximum time between two checks whether peers have finished their copies. A work request that
/// withdraws memory from the peers therefore completes at most this time after the last copy.
const MAX_CHECK_INTERVAL: Duration = Duration::from_millis(1);

impl HostPeers {
    /// Begins to listen for connections of other processes of the host, in order to share memory
    /// with them. `resources` are the descriptors and tables of this process that each peer
    /// receives.
    pub(crate) fn open(resources: ProcessResources) -> io::Result<Self> {
        let publication = Arc::clone(&resources.publication);
        Ok(Self {
            wake_eventfds: Arc::clone(&resources.channels),
            wake_target: WakeTarget::default(),
            directory: PeerDirectory::open(resources)?,
            publication,
            withdrawals: Withdrawals::default(),
            by_address: RwLock::default(),
            links: RwLock::new(Arc::new([])),
            count: AtomicUsize::new(0),
            version: AtomicUsize::new(0),
        })
    }

    /// Makes this process reachable for other processes of the host that know `address`, the
    /// address of a UDP socket of this process. Afterwards these processes can begin handshakes
    /// with this process.
    pub(crate) fn listen(&self, address: SocketAddr) -> io::Result<()> {
        self.directory.listen(address)
    }

    /// Establishes a link (shared memory) to the process that has the socket address `address`,
    /// unless a link exists already. Blocks until the end of the handshake. If the handshake fails,
    /// there is no link, and [`link`](Self::link) returns `None`.
    pub(crate) fn establish_link(&self, address: SocketAddr) {
        let address = without_interface(address);
        if self.directory.link(address).is_some() {
            self.refresh();
            // The engine must look for messages: for a message that arrived before the engine knew
            // the link, the peer sends no second wakeup.
            self.directory.wake_engine();
        }
    }

    /// Returns the link (shared memory) to the process that has the socket address `address`, or
    /// `None` if there is no live link.
    pub(crate) fn link(&self, address: SocketAddr) -> Option<Arc<Link>> {
        if self.count.load(Ordering::Relaxed) == 0 {
            return None;
        }
        let by_address = self.by_address.read();
        by_address
            .get(&without_interface(address))
            .filter(|link| !link.is_dead())
            .cloned()
    }

    /// Returns the links (shared memory) to all peer processes of the host, or `None` if there are
    /// no links.
    pub(crate) fn links(&self) -> Option<Arc<[Arc<Link>]>> {
        (self.count.load(Ordering::Relaxed) > 0).then(|| Arc::clone(&self.links.read()))
    }

    /// Updates the cached list `known` of all links (shared memory), if links were added or removed
    /// since the last update.
    #[inline]
    pub(crate) fn refresh_links(&self, known: &mut CachedLinks) {
        let version = self.version.load(Ordering::Acquire);
        if known.version != version {
            // Links that are added after `version` was loaded change the version again, and so
            // cause another update.
            *known = CachedLinks {
                version,
                links: Arc::clone(&self.links.read()),
            };
        }
    }

    /// Continues handshakes that other processes have begun, and removes links (shared memory) that
    /// have ended. The engine (background thread) calls this function when
    /// [`events_descriptor`](Self::events_descriptor) is readable.
    pub(crate) fn handle_events(&self) {
        if self.directory.handle_events() {
            self.refresh();
        }
    }

    /// Returns a descriptor that is readable while events for
    /// [`handle_events`](Self::handle_events) wait, such as a connection or the end of a peer.
    pub(crate) fn events_descriptor(&self) -> BorrowedFd<'_> {
        self.directory.events_descriptor()
    }

    /// Reserves an eventfd for a completion channel. Peers write to the eventfd to wake threads
    /// that wait on the channel. Returns `None` if all eventfds are in use.
    pub(crate) fn wake_eventfd(&self) -> Option<WakeEventfd> {
        self.wake_eventfds.take()
    }

    /// Ensures that peers are woken after a short time for messages that this process has sent
    /// without a wakeup. The engine (background thread) then wakes the peers.
    pub(crate) fn schedule_wakeups(&self) {
        self.directory.schedule_wakeups();
    }

    /// Wakes this process's engine (background thread).
    pub(crate) fn wake_engine(&self) {
        self.directory.wake_engine();
    }

    /// Removes the memory region or window with the record number `slot` from the table that peers
    /// read. Returns the version of the record, which changes if the record is published again.
    pub(super) fn retract_region(&self, slot: u32) -> u64 {
        self.publication.retract_region(slot)
    }

    /// Publishes the queue pair `queue_pair` in the table that peer processes of the host read. The
    /// connected peer may then copy from and to memory of this process through the queue pair.
    pub(crate) fn publish_queue_pair(&self, queue_pair: &QueuePair) {
        self.publication.publish_queue_pair(queue_pair);
    }

    /// Removes the queue pair with the number `number` from the table that peers read. Returns
    /// `true` if the queue pair was in the table. The caller must then wait until peers have
    /// finished the accesses that they have already begun through the queue pair.
    pub(crate) fn retract_queue_pair(&self, number: u32) -> bool {
        self.publication.retract_queue_pair(number)
    }

    /// Waits until peers have finished all copies that are in progress. Before the call, the caller
    /// must make the region, window or queue pair inaccessible for new copies.
    ///
    /// # Errors
    /// [`Refusal::Busy`] if a copy did not end within the time limit, because the peer was stopped
    /// or frozen during the copy.
    pub(crate) fn wait_for_copying_peers(&self) -> Result<(), Refusal> {
        let Accesses(all) = self.accesses();
        let are_over = all.into_iter().all(CopiesInProgress::wait);
        are_over.then_some(()).ok_or(Refusal::Busy)
    }

    /// Returns the copies that peers have in progress now, so that the caller can wait or poll for
    /// their end. Before the call, the caller must make the memory inaccessible for new copies.
    pub(super) fn accesses(&self) -> Accesses {
        let copying_peers = self.directory.copying_peers();
        // The state of all peers is read first. So copies of one peer can end while this thread
        // waits for another peer.
        Accesses(
            copying_peers
                .into_iter()
                .map(CopiesInProgress::of)
                .collect(),
        )
    }

    fn refresh(&self) {
        // The links are read under the lock, so that the last of several concurrent calls stores
        // the newest links.
        let mut by_address = self.by_address.write();
        let links = self.directory.links();
        by_address.clear();
        for link in &links {
            let addresses = link.addresses().iter();
            by_address.extend(addresses.map(|&address| (address, Arc::clone(link))));
        }
        self.count.store(links.len(), Ordering::Relaxed);
        *self.links.write() = links.into();
        self.version.fetch_add(1, Ordering::Release);
    }
}

impl Peers for HostPeers {
    fn publish(&self, slot: u32, region: &Published) {
        self.publication.publish_region(slot, region);
    }

    fn retract(&self, slot: u32) {
        self.retract_region(slot);
    }

    fn is_published(&self, slot: u32) -> bool {
        self.publication.has_published_region(slot)
    }

    fn wait(&self) -> Result<(), Refusal> {
        self.wait_for_copying_peers()
    }

    fn withdraw(&self, slot: u32) -> Withdrawal {
        self.withdrawals.poll(slot, self)
    }

    fn cancel_withdrawal(&self, slot: u32) -> bool {
        self.withdrawals.remove(slot)
    }
}

impl fmt::Debug for HostPeers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.directory.fmt(f)
    }
}
