#![forbid(unsafe_code)]
//! Peers that may copy from and to memory of this process.
//!
//! A thread that retracts a region, a window or a queue pair waits for the copies of all of these peers. Therefore each peer is
//! added before it is told that it may copy, and removed when it certainly does not copy any more.

use super::sync::{AtomicU64, Mutex, Ordering, fence, lock};

/// All of them.
#[derive(Debug)]
pub(super) struct Admitted<T> {
    /// Number of peers that were ever admitted.
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

    /// Adds one, and then has it told that it may copy.
    pub(super) fn admit<R>(&self, visitor: T, tell: impl FnOnce() -> R) -> R {
        lock(&self.present).push(visitor);
        self.count.fetch_add(1, Ordering::SeqCst);
        tell()
    }

    /// All who may have seen what was there before. To be called after it was taken back.
    pub(super) fn all(&self) -> Vec<T> {
        // Who is admitted later sees all that was taken back before this.
        fence(Ordering::SeqCst);
        if self.count.load(Ordering::SeqCst) == 0 {
            return Vec::new();
        }
        lock(&self.present).clone()
    }

    /// Returns the number of those that `is_counted` selects.
    pub(super) fn count(&self, mut is_counted: impl FnMut(&T) -> bool) -> usize {
        let present = lock(&self.present);
        present.iter().filter(|visitor| is_counted(visitor)).count()
    }

    /// Forgets those of which `stays` says so.
    pub(super) fn retain(&self, stays: impl FnMut(&T) -> bool) {
        lock(&self.present).retain(stays);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_visitor_is_known_before_it_is_told() {
        let admitted = Admitted::new();
        assert_eq!(admitted.all(), []);
        let known = admitted.admit(7, || admitted.all());
        assert_eq!(known, [7]);
        admitted.retain(|&visitor| visitor != 7);
        assert_eq!(admitted.all(), []);
    }
}

#[cfg(all(test, loom))]
mod models {
    use loom::sync::Arc;
    use loom::thread;

    use super::super::epoch::Lanes;
    use super::super::ring::Line;
    use super::*;

    struct World {
        lines: Vec<Line>,
        published: AtomicU64,
        memory: loom::cell::UnsafeCell<u64>,
        admitted: Admitted<()>,
        told: AtomicU64,
    }

    /// A peer that is being admitted while something is taken back has finished its copy, or does not begin one.
    #[test]
    fn who_is_admitted_meanwhile_is_waited_for() {
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
                    world.admitted.admit((), tell);
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
                while !occupied.are_left(lanes) {
                    thread::yield_now();
                }
            }
            // The model fails where this is not ordered behind the copy.
            world.memory.with_mut(|_| ());
            asker.join().unwrap();
            peer.join().unwrap();
        });
    }
}
