//! Which leases of a context a peer's message can end.

use std::collections::BTreeMap;
use std::sync::{Arc, Weak};

use parking_lot::Mutex;

use super::lease::{Lease, index_of};

/// The leases of a context, by the part of their windows' keys that does not vary.
///
/// Not those of a protection domain: a message ends leases of its queue pair's domain, and its receive
/// may be of a shared queue of another one.
///
/// A completion that tells of an invalidated key can be shown late, when the device has given the
/// key to another window. So keys of leases that ended in another way, while a peer may have ended
/// them too, are remembered: as many completions that tell of such a key are not believed.
#[derive(Debug, Default)]
pub(super) struct Leases {
    entries: Mutex<Entries>,
}

#[derive(Debug, Default)]
struct Entries {
    live: BTreeMap<u32, Weak<Lease>>,
    /// How many leases ended so with each key.
    doubtful: BTreeMap<u32, u32>,
}

impl Leases {
    pub(super) fn add(&self, lease: &Arc<Lease>) {
        let mut entries = self.entries.lock();
        entries.live.insert(lease.index(), Arc::downgrade(lease));
    }

    /// Forgets a lease that is ending; `doubtful` is its key, if a peer may have ended it.
    pub(super) fn remove(&self, index: u32, doubtful: Option<u32>) {
        let mut entries = self.entries.lock();
        // The window may be another lease's by now.
        if let Some(lease) = entries.live.get(&index)
            && lease.strong_count() == 0
        {
            entries.live.remove(&index);
        }
        if let Some(key) = doubtful {
            *entries.doubtful.entry(key).or_insert(0) += 1;
        }
    }

    /// How many completions that tell of this key would not be believed.
    #[cfg(test)]
    pub(super) fn doubts(&self, key: u32) -> u32 {
        let entries = self.entries.lock();
        entries.doubtful.get(&key).copied().unwrap_or(0)
    }

    /// Says that a message of a peer has ended the access that this key gave. To be called once for
    /// each message.
    #[cold]
    pub(super) fn ended_by_peer(&self, key: u32) {
        let mut entries = self.entries.lock();
        if let Some(count) = entries.doubtful.get_mut(&key) {
            *count -= 1;
            if *count == 0 {
                entries.doubtful.remove(&key);
            }
            return;
        }
        if let Some(lease) = entries.live.get(&index_of(key)).and_then(Weak::upgrade) {
            drop(entries);
            lease.ended_by_peer(key);
        }
    }
}
