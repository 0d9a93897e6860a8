//! Which leases of a context a peer's message can end.

use std::array;
use std::ops::Deref;
use std::sync::{Arc, OnceLock};

use super::lease_slot::Slot;
use super::lease_state::{Phase, State};

/// The leases of a context, by the part of their windows' keys that does not vary.
///
/// Not those of a protection domain: a message ends leases of its queue pair's domain, and its receive
/// may be of a shared queue of another one.
///
/// It is a table with three levels, one for each byte of a window's number. A lease makes the parts
/// that it needs, and they stay while the context is open: so a peer's message is told without a lock,
/// and there is at most one slot for each of the 2^24 numbers, whatever is leased how often, beside
/// those of leases whose number another one has.
#[derive(Default)]
pub(super) struct Leases {
    root: OnceLock<Box<Level<Middle>>>,
}

type Middle = Box<Level<Arc<Slots>>>;

/// One entry for each value of a byte.
struct Level<T>([OnceLock<T>; 256]);

/// The slots of neighbouring numbers.
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
    /// A place for a lease by the window with this key, which grants nothing yet.
    pub(super) fn add(&self, key: u32) -> Place {
        let [high, middle, low, tag] = places_of(key);
        let root = self.root.get_or_init(Box::default);
        let level = root.0[high].get_or_init(Box::default);
        let slots = Arc::clone(level.0[middle].get_or_init(Arc::default));
        let mut place = Place {
            slots,
            low,
            is_vacant: true,
        };
        place.take(Phase::Free, tag as u8);
        place
    }

    /// Says that a message of a peer has ended the access that this key gave. To be called once for
    /// each message.
    pub(super) fn ended_by_peer(&self, key: u32) {
        if let Some(slot) = self.find(key) {
            slot.ended_by_peer(key as u8);
        }
    }

    fn find(&self, key: u32) -> Option<&Slot> {
        let [high, middle, low, _] = places_of(key);
        let level = self.root.get()?.0[high].get()?;
        Some(&level.0[middle].get()?.0[low])
    }

    /// Puts the key of a window that was leased in doubt, as if a lease had ended so.
    #[cfg(test)]
    pub(super) fn doubt(&self, key: u32) {
        self.find(key).unwrap().doubt(key as u8);
    }

    /// How many completions that tell of this key would not be believed.
    #[cfg(test)]
    pub(super) fn doubts(&self, key: u32) -> u8 {
        self.find(key).map_or(0, |slot| slot.doubts(key as u8))
    }
}

/// Where an entry is in each level, and the part of the key that varies.
fn places_of(key: u32) -> [usize; 4] {
    key.to_be_bytes().map(usize::from)
}

/// The slot of a lease, which it leaves when it ends.
pub(super) struct Place {
    slots: Arc<Slots>,
    low: usize,
    is_vacant: bool,
}

impl Place {
    /// Sees to it that nothing a peer did or does counts any more. To be called before the device can
    /// give the window's number to another. What the state was.
    pub(super) fn vacate(&mut self) -> State {
        if self.is_vacant {
            // It may be another lease's by now.
            return State::default();
        }
        self.is_vacant = true;
        self.slots.0[self.low].vacate()
    }

    /// Takes it again, as it was: the window could not be freed, so the number is no other's.
    pub(super) fn retake(&mut self, state: State) {
        self.take(state.phase, state.tag);
    }

    fn take(&mut self, phase: Phase, tag: u8) {
        if !self.slots.0[self.low].take(phase, tag) {
            // Two windows of one number are of a driver that gives them none before they are bound. No
            // message tells which of the two it ended, so it ended none that is in a place of its own.
            self.slots = Arc::default();
            self.slots.0[self.low].take(phase, tag);
        }
        self.is_vacant = false;
    }
}

impl Deref for Place {
    type Target = Slot;

    fn deref(&self) -> &Slot {
        &self.slots.0[self.low]
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.vacate();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Barrier;
    use std::thread;

    use super::*;

    fn bound(leases: &Leases, key: u32) -> Place {
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
    fn leases_with_doubts_without_end_take_no_more_memory() {
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
    fn a_place_is_left_once() {
        let leases = Leases::default();
        let mut first = bound(&leases, 0x100);
        assert_eq!(first.vacate().phase, Phase::Bound);
        let second = bound(&leases, 0x100);
        drop(first);
        assert_eq!(second.state().phase, Phase::Bound);
        assert_eq!(leases.doubts(0x100), 1);
    }

    #[test]
    fn a_place_that_is_taken_again_is_as_before() {
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

    /// Leases of neighbouring numbers and of far ones are made while messages tell of all of them.
    #[test]
    fn threads_lease_and_tell_at_once() {
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
                        // In doubt.
                        drop(bound(leases, key));
                    }
                });
            }
            barrier.wait();
            // The tags of these are of no lease.
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
