//! What is done rarely, while others wait: entries are taken out of their order, and slots come to be more or fewer.

use super::sync::{Ordering, relax};
use super::{Place, Ring, Slots};

/// How many times as many slots there are after all were taken.
const GROWTH: usize = 4;

/// There are more entries than that.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::completion) struct TooMany;

impl<T: Copy + Send> Ring<T> {
    /// Removes the entries that are not to be kept. Those that are added meanwhile stay.
    pub(in crate::completion) fn retain(&self, keep: impl Fn(&T) -> bool) {
        if self.head().plain() == self.tail().plain() {
            return;
        }
        let head = self.hold();
        let end = self.tail().plain();
        let slots = self.table.slots();
        let count = head.distance(end, slots.lap);
        let place = |index| head.nth(index, slots.lap);
        for index in 0..count {
            wait(&slots, place(index), Place::full);
        }
        // Those that stay move to the end: the tail is where others add.
        let mut removed = count;
        for index in (0..count).rev() {
            // SAFETY: the head is held, the place behind it, and the entry there.
            let entry = unsafe { slots.of(place(index)).read(|entry| *entry) };
            if keep(&entry) {
                removed -= 1;
                if removed != index {
                    // SAFETY: the head is held, and the place behind it.
                    unsafe { slots.of(place(removed)).write(entry) };
                }
            }
        }
        for index in 0..removed {
            let place = place(index);
            slots.of(place).say(place.next_lap().free());
        }
        self.release(place(removed));
    }

    /// There is room for so many entries from now on; not for fewer than there are.
    pub(in crate::completion) fn resize(&self, capacity: usize) -> Result<(), TooMany> {
        let (head, tail) = self.hold_both();
        let lap = self.table.slots().lap;
        if head.distance(tail, lap) > capacity {
            self.release_both(head, tail);
            return Err(TooMany);
        }
        self.capacity.store(capacity, Ordering::Relaxed);
        if lap.length() > capacity {
            self.rebuild(head, tail, capacity);
        } else {
            self.release_both(head, tail);
        }
        Ok(())
    }

    /// Adds slots, if all are taken.
    pub(super) fn grow(&self) {
        let (head, tail) = self.hold_both();
        let length = self.table.slots().lap.length();
        let capacity = self.capacity.load(Ordering::Relaxed);
        if length < capacity && tail == head.next_lap() {
            self.rebuild(head, tail, capacity.min(GROWTH * length));
        } else {
            self.release_both(head, tail);
        }
    }

    /// Goes on with the same entries in laps of another length, and lets go of both ends, which are held.
    fn rebuild(&self, head: Place, tail: Place, length: usize) {
        let slots = self.table.slots();
        let count = head.distance(tail, slots.lap);
        let entry = |index| {
            let place = head.nth(index, slots.lap);
            wait(&slots, place, Place::full);
            // SAFETY: the head is held, the place behind it, and the entry there.
            unsafe { slots.of(place).read(|entry| *entry) }
        };
        let entries: Vec<T> = (0..count).map(entry).collect();
        // Who took other entries may still be reading them.
        for index in count..slots.lap.length() {
            wait(&slots, head.nth(index, slots.lap), Place::free);
        }
        // A new lap, so that who looked at an end before does not find it as it was.
        let start = tail.new_lap();
        // SAFETY: the head is held.
        let slots = unsafe { self.table.set_length(length) };
        for index in 0..length {
            let place = start.nth(index, slots.lap);
            let slot = slots.of(place);
            if let Some(&entry) = entries.get(index) {
                // SAFETY: both ends are held, and nobody is between having claimed and being done.
                unsafe { slot.write(entry) };
                slot.say(place.full());
            } else {
                slot.say(place.free());
            }
        }
        self.release_both(start, start.nth(count, slots.lap));
    }

    /// Keeps others from taking entries, and from holding; where the head is.
    fn hold(&self) -> Place {
        let mut attempt = 0;
        loop {
            let head = self.head();
            let held = head.with(Place::HELD);
            let (success, failure) = (Ordering::Acquire, Ordering::Relaxed);
            if !head.has(Place::HELD)
                && self
                    .head
                    .0
                    .compare_exchange(head.0, held.0, success, failure)
                    .is_ok()
            {
                return head;
            }
            relax(&mut attempt);
        }
    }

    fn release(&self, head: Place) {
        // With Release: who finds the head here finds the entries where they are now.
        self.head.0.store(head.0, Ordering::Release);
    }

    /// Keeps others from adding entries too; where the ends are.
    fn hold_both(&self) -> (Place, Place) {
        let head = self.hold();
        let tail = self.tail.0.fetch_or(Place::HELD, Ordering::Acquire);
        (head, Place(tail).plain())
    }

    fn release_both(&self, head: Place, tail: Place) {
        let kept = Place::CLOSED | Place::MARKS;
        let (success, failure) = (Ordering::Release, Ordering::Relaxed);
        let changed = |word| Some(tail.0 | word & kept);
        let _ = self.tail.0.fetch_update(success, failure, changed);
        self.release(head);
    }
}

/// Waits until the slot of a place says so: who claimed it is about to let it.
fn wait<T: Copy>(slots: &Slots<'_, T>, place: Place, turn: fn(Place) -> u64) {
    let mut attempt = 0;
    while !slots.of(place).says(turn(place)) {
        relax(&mut attempt);
    }
}
