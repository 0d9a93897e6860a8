//! The memberships of queue pairs in multicast groups.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::fmt;
use std::sync::{Arc, LazyLock};

use ibverbs_sys as sys;
use parking_lot::Mutex;

use super::context::positive;
use super::queue_pair::QueuePairHandle;
use crate::device::Gid;
use crate::error::{Error, Result};

/// The key of a queue pair's membership in a multicast group: the address of the `ibv_qp`, and the
/// GID and the LID of the group. The address is unique, because the queue pair exists as long as
/// its memberships.
type Key = (usize, Gid, u16);

/// The number of [`AttachedQueuePair`]s for each queue pair and multicast group. The first value
/// calls `ibv_attach_mcast`, and the end of the last value calls `ibv_detach_mcast`. The number is
/// needed because the verbs do not count attachments.
static MEMBERSHIPS: LazyLock<Mutex<HashMap<Key, usize>>> = LazyLock::new(Mutex::default);

/// The membership of a queue pair in a multicast group. Dropping the value ends the membership.
pub(crate) struct AttachedQueuePair {
    queue_pair: Arc<QueuePairHandle>,
    gid: Gid,
    lid: u16,
    detached: bool,
}

impl fmt::Debug for AttachedQueuePair {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AttachedQueuePair")
            .field("queue_pair", &self.queue_pair.number())
            .field("gid", &self.gid)
            .field("lid", &self.lid)
            .finish()
    }
}

impl AttachedQueuePair {
    pub(crate) fn attach(queue_pair: Arc<QueuePairHandle>, gid: Gid, lid: u16) -> Result<Self> {
        let mut memberships = MEMBERSHIPS.lock();
        let count = memberships.get_mut(&key(&queue_pair, gid, lid));
        match count {
            Some(count) => *count += 1,
            None => {
                let raw = sys::ibv_gid { raw: gid.0 };
                // SAFETY: the queue pair and the GID are valid.
                let errno = unsafe { sys::ibv_attach_mcast(queue_pair.as_raw(), &raw, lid) };
                checked(&queue_pair, gid, "ibv_attach_mcast", errno)?;
                memberships.insert(key(&queue_pair, gid, lid), 1);
            }
        }
        Ok(Self {
            queue_pair,
            gid,
            lid,
            detached: false,
        })
    }

    pub(crate) fn gid(&self) -> Gid {
        self.gid
    }

    pub(crate) fn lid(&self) -> u16 {
        self.lid
    }

    /// Ends the membership of the queue pair in the group. Does nothing if the membership has
    /// already ended. After an error the membership still exists.
    pub(crate) fn detach(&mut self) -> Result<()> {
        if self.detached {
            return Ok(());
        }
        let mut memberships = MEMBERSHIPS.lock();
        let key = key(&self.queue_pair, self.gid, self.lid);
        let count = memberships.entry(key).or_insert(1);
        if *count > 1 {
            *count -= 1;
        } else {
            let raw = sys::ibv_gid { raw: self.gid.0 };
            // SAFETY: the queue pair and the GID are valid.
            let errno = unsafe { sys::ibv_detach_mcast(self.queue_pair.as_raw(), &raw, self.lid) };
            // After an error the membership still exists, so the count stays.
            checked(&self.queue_pair, self.gid, "ibv_detach_mcast", errno)?;
            memberships.remove(&key);
        }
        self.detached = true;
        Ok(())
    }
}

impl Drop for AttachedQueuePair {
    fn drop(&mut self) {
        if let Err(error) = self.detach() {
            tracing::error!(%error, "a queue pair stays in a group");
            // The key must not outlive the queue pair, whose address may be used again.
            let mut memberships = MEMBERSHIPS.lock();
            let key = key(&self.queue_pair, self.gid, self.lid);
            if let Entry::Occupied(mut count) = memberships.entry(key) {
                *count.get_mut() -= 1;
                if *count.get() == 0 {
                    count.remove();
                }
            }
        }
    }
}

fn key(queue_pair: &QueuePairHandle, gid: Gid, lid: u16) -> Key {
    (queue_pair.as_raw().addr(), gid, lid)
}

fn checked(queue_pair: &QueuePairHandle, gid: Gid, verb: &'static str, errno: i32) -> Result<()> {
    if errno == 0 {
        return Ok(());
    }
    let errno = positive(errno);
    let object = format!("{}, group {gid}", queue_pair.describe());
    Err(Error::verb(verb, object, errno))
}
