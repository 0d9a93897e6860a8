#![forbid(unsafe_code)]
//! Tracking of memory accesses that no lock protects, so that the owner of the memory can wait
//! until they have ended.
//!
//! A peer process copies bytes from and to memory of this process without a thread of this process,
//! and threads read the table of memory regions without a lock. An accessing thread first records
//! in a lane (a word in a cache line of its own) that an access begins, then checks that the memory
//! is still published, and only then accesses it. To reclaim memory, a thread first withdraws it,
//! and then waits until all accesses that lanes recorded at that moment have ended.
//!
//! Either the accessing thread finds that the memory was withdrawn, or the reclaiming thread finds
//! that the lane is in use: both threads store, then execute a sequentially consistent fence, and
//! then load the word of the other thread.
//!
//! An accessing thread increments the word of its lane at the beginning and at the end of the
//! access. So the lane is in use while the word is odd, and a thread that waits for the end of one
//! access does not wait for the next access in the same lane.

use crate::sync::{AtomicU64, Line, Ordering, fence, fence_after_update, relax};

/// Lanes of a process: words in memory in which the threads of the process record their accesses to
/// memory that no lock protects. The accessed memory belongs to another process, or is a table of
/// the same process. Only the accessing threads write the lanes. The owner of the accessed memory
/// reads the lanes, to wait for the end of accesses.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Lanes<'a>(pub(crate) &'a [Line]);

/// Guard of a memory access in progress. While the guard exists, a word (lane) shows that an access
/// is in progress, so that no thread frees or reuses the memory. Dropping the guard records the end
/// of the access.
#[derive(Debug)]
pub(crate) struct Lane<'a> {
    word: &'a AtomicU64,
    value: u64,
}

impl<'a> Lanes<'a> {
    /// Records the beginning of a memory access in a free lane (word), preferably the lane with the
    /// index `preferred`. Returns a guard that records the end of the access when it is dropped.
    /// After this call, the caller must check that the memory is still published. If so, the caller
    /// may access the memory until the guard is dropped.
    #[inline]
    pub(crate) fn enter(self, preferred: usize) -> Lane<'a> {
        match self.try_enter(self.lane_index(preferred)) {
            Some(lane) => lane,
            None => self.enter_another(preferred),
        }
    }

    /// Returns `number` modulo the number of lanes, as the index of a lane. The number of lanes is
    /// a power of two, so no division is needed.
    #[inline]
    fn lane_index(self, number: usize) -> usize {
        debug_assert!(self.0.len().is_power_of_two());
        number & (self.0.len() - 1)
    }

    #[cold]
    fn enter_another(self, preferred: usize) -> Lane<'a> {
        let mut attempt = 1_u32;
        loop {
            let number = self.lane_index(preferred.wrapping_add(attempt as usize));
            if let Some(lane) = self.try_enter(number) {
                return lane;
            }
            attempt = attempt.wrapping_add(1);
            if attempt as usize >= self.0.len() {
                relax(attempt);
            }
        }
    }

    /// Records the beginning of a memory access in the lane with the index `number`. A lane is a
    /// word that records one access at a time. Returns `None` if another access occupies the lane.
    #[inline]
    fn try_enter(self, number: usize) -> Option<Lane<'a>> {
        let word = &self.0[number].0;
        let value = word.load(Ordering::Relaxed);
        if value % 2 == 1 {
            return None;
        }
        // `AcqRel`, because an earlier access used this lane: a thread that sees the end of this
        // access must also see all effects of the earlier one.
        let (success, failure) = (Ordering::AcqRel, Ordering::Relaxed);
        word.compare_exchange(value, value.wrapping_add(1), success, failure)
            .ok()?;
        fence_after_update();
        Some(Lane { word, value })
    }

    /// Returns the memory accesses that are in progress now. The owner of memory that was withdrawn
    /// must wait for the end of these accesses before it reuses the memory.
    pub(crate) fn occupied(self) -> OccupiedLanes {
        fence(Ordering::SeqCst);
        let words = self.0.iter().enumerate().filter_map(|(number, line)| {
            let value = line.0.load(Ordering::Acquire);
            (value % 2 == 1).then_some((number, value))
        });
        OccupiedLanes(words.collect())
    }
}

impl Drop for Lane<'_> {
    fn drop(&mut self) {
        // `Release`: a thread that sees this value sees all effects of the access.
        self.word
            .store(self.value.wrapping_add(2), Ordering::Release);
    }
}

/// Memory accesses that were in progress when [`Lanes::occupied`] was called. For each access, the
/// list contains the index of the lane (word) that records the access, and the value of the word.
#[derive(Debug)]
pub(crate) struct OccupiedLanes(Vec<(usize, u64)>);

impl OccupiedLanes {
    /// Returns whether all memory accesses in this list have ended. `lanes` are the words in which
    /// the accesses are recorded.
    pub(crate) fn have_ended(&mut self, lanes: Lanes<'_>) -> bool {
        self.0.retain(|&(number, value)| {
            let word = lanes.0.get(number).map(|line| &line.0);
            word.is_some_and(|word| word.load(Ordering::Acquire) == value)
        });
        self.0.is_empty()
    }

    /// Waits until all memory accesses in this list have ended, and returns `true`. `lanes` must be
    /// the [`Lanes`] that record these accesses. Sometimes calls `is_in_vain`, which returns
    /// whether waiting is useless, for example because the accessing process has died. In this
    /// case, returns `false`.
    pub(crate) fn wait(&mut self, lanes: Lanes<'_>, mut is_in_vain: impl FnMut() -> bool) -> bool {
        let mut attempt = 0_u32;
        while !self.have_ended(lanes) {
            attempt = attempt.wrapping_add(1);
            if attempt.is_multiple_of(1024) && is_in_vain() {
                return false;
            }
            relax(attempt);
        }
        true
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::sync::atomic::{AtomicBool, AtomicU64 as Word};
    use std::thread;

    use super::*;

    fn lines(count: usize) -> Vec<Line> {
        (0..count).map(|_| Line::here()).collect()
    }

    #[test]
    fn only_lanes_in_use_are_waited_for_and_only_once() {
        let lines = lines(4);
        let lanes = Lanes(&lines);
        assert!(lanes.occupied().have_ended(lanes));
        let (first, second) = (lanes.enter(1), lanes.enter(1));
        let mut occupied = lanes.occupied();
        assert!(!occupied.have_ended(lanes));
        drop(first);
        assert!(!occupied.have_ended(lanes));
        drop(second);
        // Later accesses use the same lanes again, but must not count as the earlier ones.
        let _later = (lanes.enter(1), lanes.enter(2));
        assert!(occupied.have_ended(lanes));
        assert!(!lanes.occupied().have_ended(lanes));
    }

    #[test]
    fn an_ended_process_is_not_waited_for() {
        let lines = lines(2);
        let lanes = Lanes(&lines);
        std::mem::forget(lanes.enter(0));
        let mut asked = 0;
        let are_left = lanes.occupied().wait(lanes, || {
            asked += 1;
            true
        });
        assert_eq!((are_left, asked), (false, 1));
    }

    #[test]
    fn more_threads_than_lanes_take_turns() {
        let lines = lines(2);
        let lanes = Lanes(&lines);
        let count = AtomicU64::new(0);
        thread::scope(|scope| {
            for thread in 0..4 {
                let count = &count;
                scope.spawn(move || {
                    for _ in 0..200 {
                        let _lane = lanes.enter(thread);
                        count.fetch_add(1, Ordering::Relaxed);
                    }
                });
            }
        });
        assert_eq!(count.load(Ordering::Relaxed), 800);
        assert!(lanes.occupied().have_ended(lanes));
    }

    /// Checks that no thread accesses memory after the owner has marked it as withdrawn and has
    /// waited for the accesses that were then in progress.
    #[test]
    fn no_copy_accesses_memory_after_its_withdrawal() {
        let lines = lines(8);
        let lanes = Lanes(&lines);
        let (published, memory, over) = (Word::new(0), Word::new(0), AtomicBool::new(false));
        let order = Ordering::Relaxed;
        thread::scope(|scope| {
            for thread in 0..3 {
                let (published, memory, over) = (&published, &memory, &over);
                scope.spawn(move || {
                    while !over.load(order) {
                        let _lane = lanes.enter(thread);
                        let generation = published.load(order);
                        if generation != 0 {
                            memory.store(generation, order);
                        }
                    }
                });
            }
            let mut wrong = 0;
            for generation in 1..200 {
                published.store(generation, order);
                thread::yield_now();
                published.store(0, order);
                lanes.occupied().wait(lanes, || false);
                memory.store(0, order);
                thread::yield_now();
                wrong += u64::from(memory.load(order) != 0);
            }
            over.store(true, order);
            assert_eq!(wrong, 0);
        });
    }
}

#[cfg(all(test, loom))]
mod models {
    use loom::sync::Arc;
    use loom::thread;

    use super::*;

    struct World {
        lines: Vec<Line>,
        published: AtomicU64,
        memory: loom::cell::UnsafeCell<u64>,
    }

    fn world(lanes: usize) -> Arc<World> {
        Arc::new(World {
            lines: (0..lanes).map(|_| Line::here()).collect(),
            published: AtomicU64::new(1),
            memory: loom::cell::UnsafeCell::new(0),
        })
    }

    /// Accesses the memory in `world` like a peer that copies bytes. First records the access in a
    /// word (lane) of `world`, if possible in the word with the index `preferred`. Then accesses
    /// the memory if the owner has not withdrawn it. The loom model fails if the owner uses the
    /// memory during the access.
    fn copy(world: &World, preferred: usize) {
        let _lane = Lanes(&world.lines).enter(preferred);
        if world.published.load(Ordering::Relaxed) == 1 {
            world.memory.with_mut(|_| ());
        }
    }

    fn take_back(world: &World) {
        world.published.store(0, Ordering::Relaxed);
        let lanes = Lanes(&world.lines);
        let mut occupied = lanes.occupied();
        while !occupied.have_ended(lanes) {
            thread::yield_now();
        }
        world.memory.with_mut(|_| ());
    }

    #[test]
    fn a_copy_has_ended_or_does_not_begin_after_a_withdrawal() {
        loom::model(|| {
            let world = world(1);
            let other = {
                let world = Arc::clone(&world);
                thread::spawn(move || copy(&world, 0))
            };
            take_back(&world);
            other.join().unwrap();
        });
    }

    /// Checks that the owner of memory sees the effects of an access by another thread after
    /// waiting for the end of the access. The check includes the case that a second access is
    /// recorded in the same word (lane) before the owner reads the word.
    #[test]
    fn a_reused_lane_does_not_hide_an_earlier_copy() {
        let mut model = loom::model::Builder::new();
        model.preemption_bound = Some(3);
        model.check(|| {
            let world = world(1);
            let others = [0, 1].map(|turn| {
                let world = Arc::clone(&world);
                thread::spawn(move || {
                    let lane = Lanes(&world.lines).try_enter(0);
                    let is_in = turn == 0 && lane.is_some();
                    if is_in && world.published.load(Ordering::Relaxed) == 1 {
                        world.memory.with_mut(|_| ());
                    }
                })
            });
            take_back(&world);
            for other in others {
                other.join().unwrap();
            }
        });
    }
}
