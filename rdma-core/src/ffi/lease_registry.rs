//! The registry of a context's leases (memory that peers access through a memory window). When a
//! peer's message has invalidated a window key, the registry finds the lease with that key.

use std::array;
use std::ops::Deref;
use std::sync::{Arc, OnceLock};

use super::lease_slot::Slot;
use super::lease_state::{Phase, State};

/// The leases (memory that peers access through a window) of a context, indexed by window number:
/// the upper 24 bits of a window's key, which never change.
///
/// The table belongs to a context and not to a protection domain: a message that ends a lease can
/// arrive at a shared receive queue of another protection domain.
///
/// The table has three levels, one for each byte of a window number. A new lease allocates the
/// missing nodes of the table. Nodes are freed only when the context is closed, so the table finds
/// a lease without a lock. The table has at most one slot for each of the 2^24 numbers, plus one
/// slot for each lease whose number another lease is already using.
#[derive(Default)]
pub(super) struct Leases {
    root: OnceLock<Box<Level<InnerLevel>>>,
}

type InnerLevel = Box<Level<Arc<Slots>>>;

/// A node in one of the first two levels of the table in [`Leases`], with one entry for each value
/// of a byte of the window number.
struct Level<T>([OnceLock<T>; 256]);

/// A node in the last of the three levels of the table in [`Leases`], with one slot for each value
/// of the lowest byte of the window number. A slot stores the state of the lease with that number.
struct Slots([Slot; 256]);

impl<T> Default for Level<T> {
    fn default() -> Self {
        Self(array::from_fn(|_| OnceLock::new()))
    }
}

impl Default for Slots {
    fn default() -> Self {
        Self(array::from_fn(|_| Slot::default()))
    }
}

impl Leases {
    /// Adds a lease for the memory window with the key `key`, in the phase [`Phase::Free`] (no peer
    /// has access). Returns the slot of this table that stores the state of the lease.
    pub(super) fn add(&self, key: u32) -> OccupiedSlot {
        let [high, middle, low, tag] = indices_of(key);
        let root = self.root.get_or_init(Box::default);
        let level = root.0[high].get_or_init(Box::default);
        let slots = Arc::clone(level.0[middle].get_or_init(Arc::default));
        let mut place = OccupiedSlot {
            slots,
            low,
            is_vacant: true,
        };
        place.take(Phase::Free, tag as u8);
        place
    }

    /// Records that a peer's message has invalidated the window key `key`, which ends the lease
    /// with this key. Must be called once for each such message: a second call could end a later
    /// lease.
    pub(super) fn ended_by_peer(&self, key: u32) {
        if let Some(slot) = self.find(key) {
            slot.ended_by_peer(key as u8);
        }
    }

    fn find(&self, key: u32) -> Option<&Slot> {
        let [high, middle, low, _] = indices_of(key);
        let level = self.root.get()?.0[high].get()?;
        Some(&level.0[middle].get()?.0[low])
    }

    /// Makes the table ignore one more report for the key `key`. A report is a completion that
    /// names a key as invalidated by a peer. The ignored report belongs to a lease that has ended,
    /// and could otherwise end a later lease with the same key. The number of reports to ignore
    /// decreases only when a report is ignored.
    #[cfg(test)]
    pub(super) fn doubt(&self, key: u32) {
        self.find(key).unwrap().doubt(key as u8);
    }

    /// Returns the number of reports for the key `key` that the table will ignore. A report is a
    /// completion that names a key as invalidated by a peer. An ignored report belongs to a lease
    /// that has ended.
    #[cfg(test)]
    pub(super) fn doubts(&self, key: u32) -> u8 {
        self.find(key).map_or(0, |slot| slot.doubts(key as u8))
    }
}

/// Returns the four bytes of a window key, from the highest to the lowest. The first three bytes
/// are the indexes in the three levels of the table. The lowest byte changes with each binding.
fn indices_of(key: u32) -> [usize; 4] {
    key.to_be_bytes().map(usize::from)
}

/// The registry slot that a lease occupies until it ends. Dropping this value frees the slot.
pub(super) struct OccupiedSlot {
    slots: Arc<Slots>,
    low: usize,
    is_vacant: bool,
}

impl OccupiedSlot {
    /// Removes the lease from its slot, and returns its last state. From then on, no message of a
    /// peer affects the lease. Must be called before the device can assign the window's number to
    /// another window.
    pub(super) fn vacate(&mut self) -> State {
        if self.is_vacant {
            // Another lease may be using the slot by now.
            return State::default();
        }
        self.is_vacant = true;
        self.slots.0[self.low].vacate()
    }

    /// Puts a lease that [`Self::vacate`] has removed back into its slot, in the state `state`.
    /// Called if the device has refused to free the memory window.
    pub(super) fn retake(&mut self, state: State) {
        self.take(state.phase, state.tag);
    }

    fn take(&mut self, phase: Phase, tag: u8) {
        if !self.slots.0[self.low].take(phase, tag) {
            // Some drivers assign the same number to several windows that were never bound. A
            // message with such a number cannot be matched to one lease. This lease therefore gets
            // a separate slot, where no message finds it.
            self.slots = Arc::default();
            self.slots.0[self.low].take(phase, tag);
        }
        self.is_vacant = false;
    }
}

impl Deref for OccupiedSlot {
    type Target = Slot;

    fn deref(&self) -> &Slot {
        &self.slots.0[self.low]
    }
}

impl Drop for OccupiedSlot {
    fn drop(&mut self) {
        self.vacate();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Barrier;
    use std::thread;

    use super::*;

    fn bound(leases: &Leases, key: u32) -> OccupiedSlot {
        let place = leases.add(key);
        let before = place.state();
        let mut after = before;
        after.phase = Phase::Bound;
        assert!(place.change(before, after));
        place
    }

    #[test]
    fn a_key_finds_the_lease_of_its_number_and_no_other() {
        let leases = Leases::default();
        leases.ended_by_peer(0x0102_0304);
        let keys = [0x0102_0304, 0x0102_0404, 0x0103_0304, 0x0202_0304, 4, !0xfb];
        let places = keys.map(|key| bound(&leases, key));
        leases.ended_by_peer(0x0102_0504);
        for (place, key) in places.iter().zip(keys) {
            assert_eq!(place.state().phase, Phase::Bound, "{key:#x}");
            leases.ended_by_peer(key);
            assert_eq!(place.state().phase, Phase::Free, "{key:#x}");
        }
    }

    #[test]
    fn a_doubt_outlives_its_window_until_it_is_resolved() {
        let leases = Leases::default();
        drop(bound(&leases, 0x105));
        drop(leases.add(0x106));
        let place = bound(&leases, 0x105);
        leases.ended_by_peer(0x105);
        assert_eq!(place.state().phase, Phase::Bound);
        leases.ended_by_peer(0x105);
        assert_eq!(place.state().phase, Phase::Free);
    }

    #[test]
    fn many_doubts_do_not_increase_the_memory() {
        let leases = Leases::default();
        drop(bound(&leases, 0x100));
        let slot: *const Slot = leases.find(0x100).unwrap();
        for round in 0..10_000_u32 {
            drop(bound(&leases, 0x100 | round & 0xff));
        }
        assert!(std::ptr::eq(slot, leases.find(0x100).unwrap()));
        assert_eq!((leases.doubts(0x100), leases.doubts(0x1ff)), (41, 40 - 1));
    }

    #[test]
    fn a_second_lease_of_a_number_is_ended_by_no_message() {
        let leases = Leases::default();
        let (first, second) = (bound(&leases, 0x100), bound(&leases, 0x100));
        leases.ended_by_peer(0x100);
        leases.ended_by_peer(0x100);
        let phases = (first.state().phase, second.state().phase);
        assert_eq!(phases, (Phase::Free, Phase::Bound));
        drop((first, second));
        assert_eq!(
            leases.doubts(0x100),
            0,
            "no message is believed to be of the second"
        );
    }

    #[test]
    fn a_slot_is_vacated_once() {
        let leases = Leases::default();
        let mut first = bound(&leases, 0x100);
        assert_eq!(first.vacate().phase, Phase::Bound);
        let second = bound(&leases, 0x100);
        drop(first);
        assert_eq!(second.state().phase, Phase::Bound);
        assert_eq!(leases.doubts(0x100), 1);
    }

    #[test]
    fn a_retaken_slot_has_its_former_state() {
        let leases = Leases::default();
        let mut place = bound(&leases, 0x1ff);
        let before = place.vacate();
        place.retake(before);
        assert_eq!(
            (place.state().phase, place.state().tag),
            (Phase::Bound, 0xff)
        );
        leases.ended_by_peer(0x1ff);
        assert_eq!(place.state().phase, Phase::Bound, "one doubt");
        leases.ended_by_peer(0x1ff);
        assert_eq!(place.state().phase, Phase::Free);
    }

    /// Checks that no invalidation is lost while several threads create leases. The window numbers
    /// are partly adjacent and partly far apart, and each lease is invalidated by a peer.
    #[test]
    fn concurrent_leases_lose_no_invalidation() {
        const THREADS: u32 = 3;
        const EACH: u32 = if cfg!(miri) { 20 } else { 500 };
        let leases = Leases::default();
        let barrier = Barrier::new(THREADS as usize + 1);
        let key = |number: u32, thread: u32| (number * 0x1357 * THREADS + thread) << 8 | 1;
        thread::scope(|scope| {
            for thread in 0..THREADS {
                let (leases, barrier) = (&leases, &barrier);
                scope.spawn(move || {
                    barrier.wait();
                    for number in 0..EACH {
                        let key = key(number, thread);
                        let place = bound(leases, key);
                        assert_eq!(place.state().phase, Phase::Bound);
                        leases.ended_by_peer(key);
                        assert_eq!(place.state().phase, Phase::Free);
                        drop(place);
                        // This lease ends while it is bound, so one later completion with its key
                        // will be ignored.
                        drop(bound(leases, key));
                    }
                });
            }
            barrier.wait();
            // No lease has a key with these low bits, so the messages must have no effect.
            for number in 0..EACH {
                (0..THREADS).for_each(|thread| leases.ended_by_peer(key(number, thread) ^ 3));
            }
        });
        for number in 0..EACH {
            for thread in 0..THREADS {
                assert_eq!(leases.doubts(key(number, thread)), 1);
            }
        }
    }
}
