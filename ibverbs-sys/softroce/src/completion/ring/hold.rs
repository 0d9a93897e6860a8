//! Rare operations on the ring: removing entries out of order, and changing the number of slots.
//! Other threads wait during these operations.

use super::sync::{Ordering, relax};
use super::{Position, Ring, Slots};

/// Factor of the growth of the ring: the number of slots is multiplied by this number when all
/// slots contain entries. Other threads wait while slots are added. With a large factor, this
/// happens rarely.
const GROWTH_FACTOR: usize = 4;

/// Error: the capacity was not reduced, because the ring contains more entries than the new
/// capacity allows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::completion) struct TooManyEntries;

impl<T: Copy + Send> Ring<T> {
    /// Removes the entries for which `keep` returns `false` from the ring. Keeps all entries that
    /// other threads add during the call.
    pub(in crate::completion) fn retain(&self, keep: impl Fn(&T) -> bool) {
        if self.head().unflagged() == self.tail().unflagged() {
            return;
        }
        let head = self.hold();
        let end = self.tail().unflagged();
        let slots = self.table.slots();
        let count = head.distance(end, slots.lap);
        let place = |index| head.nth(index, slots.lap);
        for index in 0..count {
            wait(&slots, place(index), Position::full);
        }
        // The kept entries move to the end, because other threads add behind the tail.
        let mut removed = count;
        for index in (0..count).rev() {
            // SAFETY: this thread holds the head, the position is behind it, and its entry is full.
            let entry = unsafe { slots.of(place(index)).read(|entry| *entry) };
            if keep(&entry) {
                removed -= 1;
                if removed != index {
                    // SAFETY: this thread holds the head, and the position is behind it.
                    unsafe { slots.of(place(removed)).write(entry) };
                }
            }
        }
        for index in 0..removed {
            let place = place(index);
            slots.of(place).set_turn(place.next_lap().free());
        }
        self.release(place(removed));
    }

    /// Changes the capacity of the ring to `capacity` entries. Fails if the ring contains more than
    /// `capacity` entries.
    pub(in crate::completion) fn resize(&self, capacity: usize) -> Result<(), TooManyEntries> {
        let (head, tail) = self.hold_both();
        let lap = self.table.slots().lap;
        if head.distance(tail, lap) > capacity {
            self.release_both(head, tail);
            return Err(TooManyEntries);
        }
        self.capacity.store(capacity, Ordering::Relaxed);
        if lap.length() > capacity {
            self.set_slots(head, tail, capacity);
        } else {
            self.release_both(head, tail);
        }
        Ok(())
    }

    /// Adds slots (memory for entries) to the ring of a completion queue. Does nothing if a slot is
    /// free, for example because another thread has added slots. Also does nothing if the number of
    /// slots equals the capacity of the ring.
    pub(super) fn grow(&self) {
        let (head, tail) = self.hold_both();
        let length = self.table.slots().lap.length();
        let capacity = self.capacity.load(Ordering::Relaxed);
        if length < capacity && tail == head.next_lap() {
            self.set_slots(head, tail, capacity.min(GROWTH_FACTOR * length));
        } else {
            self.release_both(head, tail);
        }
    }

    /// Changes the number of slots of the ring to `length`, and moves the entries to the new slots.
    /// The caller must have obtained exclusive control of the head and the tail, so no other thread
    /// can add or remove entries during the call. `head` and `tail` are their positions. This
    /// function releases the control at its end.
    fn set_slots(&self, head: Position, tail: Position, length: usize) {
        let slots = self.table.slots();
        let count = head.distance(tail, slots.lap);
        let entry = |index| {
            let place = head.nth(index, slots.lap);
            wait(&slots, place, Position::full);
            // SAFETY: this thread holds the head, the position is behind it, and its entry is full.
            unsafe { slots.of(place).read(|entry| *entry) }
        };
        let entries: Vec<T> = (0..count).map(entry).collect();
        // A consumer of earlier entries may still be reading them.
        for index in count..slots.lap.length() {
            wait(&slots, head.nth(index, slots.lap), Position::free);
        }
        // A new lap ensures that a thread which read the head or tail before this change cannot
        // claim a position with the old value.
        let start = tail.new_lap();
        // SAFETY: this thread holds the head.
        let slots = unsafe { self.table.set_length(length) };
        for index in 0..length {
            let place = start.nth(index, slots.lap);
            let slot = slots.of(place);
            if let Some(&entry) = entries.get(index) {
                // SAFETY: this thread holds head and tail, and no other thread is between a claim
                // and its completion.
                unsafe { slot.write(entry) };
                slot.set_turn(place.full());
            } else {
                slot.set_turn(place.free());
            }
        }
        self.release_both(start, start.nth(count, slots.lap));
    }

    /// Takes exclusive control of the head of the ring, so that no other thread can remove entries
    /// until [`release`](Self::release) is called. Returns the position of the head.
    fn hold(&self) -> Position {
        let mut attempt = 0;
        loop {
            let head = self.head();
            let held = head.with(Position::HELD);
            let (success, failure) = (Ordering::Acquire, Ordering::Relaxed);
            if !head.has(Position::HELD)
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

    fn release(&self, head: Position) {
        // `Release`: a thread that reads the head here finds the entries at their new positions.
        self.head.0.store(head.0, Ordering::Release);
    }

    /// Takes exclusive control of the head and the tail of the ring, so that no other thread can
    /// add or remove entries until [`release_both`](Self::release_both) is called. Returns the
    /// positions of the head and the tail.
    fn hold_both(&self) -> (Position, Position) {
        let head = self.hold();
        let tail = self.tail.0.fetch_or(Position::HELD, Ordering::Acquire);
        (head, Position(tail).unflagged())
    }

    fn release_both(&self, head: Position, tail: Position) {
        let kept = Position::CLOSED | Position::MARKS;
        let (success, failure) = (Ordering::Release, Ordering::Relaxed);
        let changed = |word| Some(tail.0 | word & kept);
        let _ = self.tail.0.fetch_update(success, failure, changed);
        self.release(head);
    }
}

/// Waits until another thread has finished its use of the ring slot at the position `place`. `turn`
/// computes the state that the slot has afterwards: [`Position::full`] if the other thread is
/// writing an entry, or [`Position::free`] if the other thread is removing an entry.
fn wait<T: Copy>(slots: &Slots<'_, T>, place: Position, turn: fn(Position) -> u64) {
    let mut attempt = 0;
    while !slots.of(place).has_turn(turn(place)) {
        relax(&mut attempt);
    }
}
