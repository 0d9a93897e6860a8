#![forbid(unsafe_code)]
//! The list of peer processes that may copy from and to memory of this process.
//!
//! A thread that retracts a region, a window or a queue pair waits until these peers have finished
//! their copies. Therefore each peer is added to the list before it gets the permission to copy,
//! and is removed once it can no longer copy.

use crate::sync::{AtomicU64, Mutex, Ordering, fence, lock};

/// List of the peer processes that may copy from and to memory of this process. `T` is the type of
/// an entry, which represents one peer.
#[derive(Debug)]
pub(super) struct Admitted<T> {
    /// Number of peers that were added to the list since its creation. While the number is 0,
    /// [`all`](Self::all) need not lock the list.
    count: AtomicU64,
    present: Mutex<Vec<T>>,
}

impl<T: Clone> Admitted<T> {
    pub(super) fn new() -> Self {
        Self {
            count: AtomicU64::new(0),
            present: Mutex::new(Vec::new()),
        }
    }

    /// Adds the peer `copying_peer` to the list of peers that may copy, and then calls `tell`,
    /// which sends the peer the permission to copy. Returns the result of `tell`. Because of this
    /// order, the list contains each peer that has the permission. So a thread that withdraws
    /// memory finds all peers whose copies it must wait for.
    pub(super) fn add<R>(&self, copying_peer: T, tell: impl FnOnce() -> R) -> R {
        lock(&self.present).push(copying_peer);
        self.count.fetch_add(1, Ordering::SeqCst);
        tell()
    }

    /// Returns the peer processes whose copies from or to memory of this process are possibly still
    /// in progress. Before the call, the caller must make the memory inaccessible for new copies.
    pub(super) fn all(&self) -> Vec<T> {
        // This fence pairs with the update of `count` in `add`. A peer that this thread does not
        // find receives its permission later, and so sees that the memory was retracted.
        fence(Ordering::SeqCst);
        if self.count.load(Ordering::SeqCst) == 0 {
            return Vec::new();
        }
        lock(&self.present).clone()
    }

    /// Returns the number of peers in this list for which `is_counted` returns `true`.
    pub(super) fn count(&self, mut is_counted: impl FnMut(&T) -> bool) -> usize {
        let present = lock(&self.present);
        present
            .iter()
            .filter(|copying_peer| is_counted(copying_peer))
            .count()
    }

    /// Removes the peers for which `stays` returns `false` from this list of peers that may copy.
    /// The caller must ensure that these peers cannot copy any more, for example because they have
    /// ended.
    pub(super) fn retain(&self, stays: impl FnMut(&T) -> bool) {
        lock(&self.present).retain(stays);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_copying_peer_is_recorded_before_its_permission_is_sent() {
        let admitted = Admitted::new();
        assert_eq!(admitted.all(), []);
        let known = admitted.add(7, || admitted.all());
        assert_eq!(known, [7]);
        admitted.retain(|&copying_peer| copying_peer != 7);
        assert_eq!(admitted.all(), []);
    }
}

#[cfg(all(test, loom))]
mod models {
    use loom::sync::Arc;
    use loom::thread;

    use super::*;
    use crate::epoch::Lanes;
    use crate::sync::Line;

    struct World {
        lines: Vec<Line>,
        published: AtomicU64,
        memory: loom::cell::UnsafeCell<u64>,
        admitted: Admitted<()>,
        told: AtomicU64,
    }

    /// Checks that memory is not reused during a copy by a peer that gets the permission to copy
    /// while another thread withdraws the memory. Either the peer must see the withdrawal and not
    /// copy, or the thread must wait until the copy has ended.
    #[test]
    fn a_peer_that_is_admitted_during_a_wait_is_waited_for() {
        loom::model(|| {
            let world = Arc::new(World {
                lines: vec![Line::here()],
                published: AtomicU64::new(1),
                memory: loom::cell::UnsafeCell::new(0),
                admitted: Admitted::new(),
                told: AtomicU64::new(0),
            });
            let asker = {
                let world = Arc::clone(&world);
                thread::spawn(move || {
                    let tell = || world.told.store(1, Ordering::Release);
                    world.admitted.add((), tell);
                })
            };
            let peer = {
                let world = Arc::clone(&world);
                thread::spawn(move || {
                    if world.told.load(Ordering::Acquire) == 0 {
                        return;
                    }
                    let _lane = Lanes(&world.lines).enter(0);
                    if world.published.load(Ordering::Relaxed) == 1 {
                        world.memory.with_mut(|_| ());
                    }
                })
            };
            world.published.store(0, Ordering::Relaxed);
            let lanes = Lanes(&world.lines);
            for () in world.admitted.all() {
                let mut occupied = lanes.occupied();
                while !occupied.have_ended(lanes) {
                    thread::yield_now();
                }
            }
            // The model fails if this access is not ordered after the peer's copy.
            world.memory.with_mut(|_| ());
            asker.join().unwrap();
            peer.join().unwrap();
        });
    }
}
