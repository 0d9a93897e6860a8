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

use super::directory::Directory;
use super::link::Link;
use super::local::Own;
use super::regions::{Publication, QueuePair};
use super::vigil::Vigil;
use super::visitor::Copies;
use super::withdrawal::Withdrawals;
use crate::completion::{Bell, Bells};
use crate::context::Refusal;
use crate::memory::{Peers, Published};
use crate::proto::Withdrawal;

/// The processes of the host that a NIC shares memory with, and what it tells them.
pub struct Neighbourhood {
    directory: Directory,
    publication: Arc<Publication>,
    withdrawals: Withdrawals,
    /// By all addresses of theirs.
    by_address: RwLock<HashMap<SocketAddr, Arc<Link>>>,
    pub(super) links: RwLock<Arc<[Arc<Link>]>>,
    count: AtomicUsize,
    /// How often the links changed.
    version: AtomicUsize,
    bells: Arc<Bells>,
    pub(super) vigil: Vigil,
}

/// All links as they were when somebody looked.
#[derive(Debug)]
pub(crate) struct Known {
    version: usize,
    links: Arc<[Arc<Link>]>,
}

impl Known {
    /// None yet.
    pub(crate) fn nobody() -> Self {
        Self {
            version: 0,
            links: Arc::new([]),
        }
    }

    /// They.
    pub(crate) fn links(&self) -> &[Arc<Link>] {
        &self.links
    }
}

/// Copies of peers that were under way at a moment, and that nobody sleeps for.
#[derive(Debug)]
pub(super) struct Accesses(Vec<Copies>);

impl Accesses {
    /// Returns the progress of the copies.
    pub(super) fn poll(&mut self) -> Withdrawal {
        let mut is_refused = false;
        self.0.retain_mut(|copies| {
            let over = copies.poll();
            is_refused |= over == Some(false);
            over != Some(true)
        });
        match self.0.iter().map(Copies::age).max() {
            None => Withdrawal::Complete,
            Some(_) if is_refused => Withdrawal::Refused,
            // What took long may take as long again.
            Some(age) => Withdrawal::Pending {
                again: age.clamp(SHORTEST, LONGEST),
            },
        }
    }
}

/// Time between two looks whether a copy has ended.
const SHORTEST: Duration = Duration::from_micros(10);
const LONGEST: Duration = Duration::from_millis(1);

impl Neighbourhood {
    /// Says to others that this process is there.
    pub(crate) fn open(own: Own) -> io::Result<Self> {
        let publication = Arc::clone(&own.publication);
        Ok(Self {
            bells: Arc::clone(&own.channels),
            vigil: Vigil::default(),
            directory: Directory::open(own)?,
            publication,
            withdrawals: Withdrawals::default(),
            by_address: RwLock::default(),
            links: RwLock::new(Arc::new([])),
            count: AtomicUsize::new(0),
            version: AtomicUsize::new(0),
        })
    }

    /// Finds the process with this address and asks whether it wants to share memory, if it is not known.
    pub(crate) fn meet(&self, address: SocketAddr) {
        if self.directory.link(address).is_some() {
            self.refresh();
            // What has come before the engine could know of it is not told again.
            self.directory.ring();
        }
    }

    /// The link to the process with this address.
    pub(crate) fn link(&self, address: SocketAddr) -> Option<Arc<Link>> {
        if self.count.load(Ordering::Relaxed) == 0 {
            return None;
        }
        let by_address = self.by_address.read();
        by_address
            .get(&address)
            .filter(|link| !link.is_dead())
            .cloned()
    }

    /// All links.
    pub(crate) fn links(&self) -> Option<Arc<[Arc<Link>]>> {
        (self.count.load(Ordering::Relaxed) > 0).then(|| Arc::clone(&self.links.read()))
    }

    /// All links, where they are not those that are known from before.
    #[inline]
    pub(crate) fn refresh_links(&self, known: &mut Known) {
        let version = self.version.load(Ordering::Acquire);
        if known.version != version {
            // Later ones are taken once more.
            *known = Known {
                version,
                links: Arc::clone(&self.links.read()),
            };
        }
    }

    /// Hears those who want to share memory, and those who are gone.
    pub(crate) fn attend(&self) {
        if self.directory.attend() {
            self.refresh();
        }
    }

    /// What is readable when there is something to [`attend`](Self::attend) to.
    pub(crate) fn heard(&self) -> BorrowedFd<'_> {
        self.directory.heard()
    }

    /// A bell for a channel, if there is one left.
    pub(crate) fn bell(&self) -> Option<Bell> {
        self.bells.take()
    }

    /// Has the engine wake those who were to be woken later, unless that is done before.
    pub(crate) fn remind(&self) {
        self.directory.remind();
    }

    /// Wakes the engine.
    pub(crate) fn ring(&self) {
        self.directory.ring();
    }

    /// Retracts a slot of the table of regions. Returns the record's version, which each publication changes.
    pub(super) fn retract_region(&self, slot: u32) -> u64 {
        self.publication.retract_region(slot)
    }

    /// Tells of a queue pair.
    pub(crate) fn publish_queue_pair(&self, queue_pair: &QueuePair) {
        self.publication.publish_queue_pair(queue_pair);
    }

    /// Takes back what was told of a queue pair; whether it was.
    pub(crate) fn retract_queue_pair(&self, number: u32) -> bool {
        self.publication.retract_queue_pair(number)
    }

    /// Waits until all copies of peers have ended that may have gone by what was taken back before. Busy: one has not,
    /// since the peer was stopped in the middle of it.
    pub(crate) fn wait_for_visitors(&self) -> Result<(), Refusal> {
        let Accesses(all) = self.accesses();
        let are_over = all.into_iter().all(Copies::wait);
        are_over.then_some(()).ok_or(Refusal::Busy)
    }

    /// All copies of peers that may have gone by what was taken back before.
    pub(super) fn accesses(&self) -> Accesses {
        let visitors = self.directory.visitors();
        // All of them look first: they end while others are waited for.
        Accesses(visitors.into_iter().map(Copies::of).collect())
    }

    fn refresh(&self) {
        // Under the lock: who comes later has the later ones.
        let mut by_address = self.by_address.write();
        let links = self.directory.everyone();
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

impl Peers for Neighbourhood {
    fn publish(&self, slot: u32, region: &Published) {
        self.publication.publish_region(slot, region);
    }

    fn retract(&self, slot: u32) {
        self.retract_region(slot);
    }

    fn is_published(&self, slot: u32) -> bool {
        self.publication.tells_region(slot)
    }

    fn wait(&self) -> Result<(), Refusal> {
        self.wait_for_visitors()
    }

    fn withdraw(&self, slot: u32) -> Withdrawal {
        self.withdrawals.poll(slot, self)
    }

    fn forget_withdrawal(&self, slot: u32) -> bool {
        self.withdrawals.forget(slot)
    }
}

impl fmt::Debug for Neighbourhood {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.directory.fmt(f)
    }
}
