//! Entries in order, from any thread to any thread, as many as there is room for.
//!
//! A slot says whose turn it is in which lap. Who adds an entry claims the place at the tail by one compare and swap,
//! writes the entry into the place's slot, and lets the slot say that it is there; who takes entries claims
//! those that are there by one at the head, reads them, and lets their slots say that they are free in the
//! next lap. Nobody waits for a thread that was kept from running between its claim and the slot's word: an entry
//! that is claimed and not there yet, and those behind it, have not come.
//!
//! What is rarely done (entries removed out of their order, laps of another length) is done while the ends are
//! held: a flag in their words that makes every claim fail. The memory begins small and grows when all of it
//! is taken, so that few entries in a queue for many stay within a few cache lines.
//!
//! In the tail's word are also the marks: who adds an entry is told by its claim which of them were set, without a fence.
//! Who sets one and then waits for those that claimed before ([`Ring::settle`]) finds their entries.

use self::place::Lap;
use self::slots::{Slots, Table};
use self::sync::{AtomicU64, AtomicUsize, Ordering, relax};

mod hold;
#[cfg(all(test, loom))]
mod models;
mod place;
mod slots;
mod sync;
#[cfg(all(test, not(loom)))]
mod tests;

pub(super) use hold::TooMany;
pub(super) use place::Place;

/// The ring.
pub(super) struct Ring<T> {
    /// Where the next entry goes, with [`Place::HELD`], [`Place::CLOSED`] and the marks.
    tail: Line,
    /// Where the oldest entry is, with [`Place::HELD`].
    head: Line,
    table: Table<T>,
    /// Slots come up to so many.
    capacity: AtomicUsize,
}

/// A word in a cache line of its own.
#[repr(align(64))]
struct Line(AtomicU64);

/// Entries were added at this place, or from it on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Added(Place);

/// Flags whose meaning is the user's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Marks(u64);

/// Why no entry was added.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Refused {
    /// There are as many as there may be.
    Full(Full),
    /// Nothing more comes.
    Closed,
}

/// The ring as it was when it was full.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Full(Place);

impl Marks {
    pub(super) const FIRST: Self = Self(1 << 2);
    pub(super) const SECOND: Self = Self(1 << 3);

    #[inline]
    pub(super) fn is_empty(self) -> bool {
        self.0 == 0
    }

    pub(super) fn contains(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }
}

impl Added {
    /// The marks that were set.
    #[inline]
    pub(super) fn marks(self) -> Marks {
        Marks(self.0.0 & Place::MARKS)
    }

    /// Whether this was before a mark was set.
    pub(super) fn is_before(self, mark: Place) -> bool {
        self.0.is_before(mark)
    }
}

impl<T: Copy + Send> Ring<T> {
    /// The largest capacity.
    pub(super) const MAX_CAPACITY: usize = Lap::MAX;

    /// A ring for so many entries, with memory for `room` of them to begin with.
    pub(super) fn new(capacity: usize, room: usize) -> Self {
        debug_assert!((1..=Self::MAX_CAPACITY).contains(&capacity));
        Self {
            tail: Line(AtomicU64::new(Place::START.0)),
            head: Line(AtomicU64::new(Place::START.0)),
            table: Table::new(room.min(capacity)),
            capacity: AtomicUsize::new(capacity),
        }
    }

    /// Adds an entry, if there is room without ado and nobody else adds one.
    #[inline]
    pub(super) fn push(&self, entry: T) -> Option<Added> {
        let tail = self.tail();
        let slots = self.table.slots();
        let slot = slots.of(tail);
        if !slot.says(tail.free()) || !claim(&self.tail, tail, tail.next(slots.lap)) {
            return None;
        }
        // SAFETY: the slot was free for this place when the place was the tail, stays so until the place is claimed, and
        // it is claimed now, since nobody had changed the tail.
        unsafe { slot.write(entry) };
        slot.say(tail.full());
        Some(Added(tail))
    }

    /// Adds entries, at least one, as many as there is room for without ado; how many.
    pub(super) fn push_all(&self, entries: &[T]) -> Result<(usize, Added), Refused> {
        let mut attempt = 0;
        loop {
            let tail = self.tail();
            let slots = self.table.slots();
            let (mut end, mut count) = (tail, 0);
            while count < entries.len() && slots.of(end).says(end.free()) {
                end = end.next(slots.lap);
                count += 1;
            }
            if count == 0 {
                self.make_room(tail, &mut attempt)?;
            } else if claim(&self.tail, tail, end) {
                let mut place = tail;
                for &entry in &entries[..count] {
                    let slot = slots.of(place);
                    // SAFETY: as in push; this place was behind the tail, and is claimed with it.
                    unsafe { slot.write(entry) };
                    slot.say(place.full());
                    place = place.next(slots.lap);
                }
                return Ok((count, Added(tail)));
            }
        }
    }

    /// The slot at this tail is not free: says why, or does something about it, or waits for who does.
    #[cold]
    fn make_room(&self, tail: Place, attempt: &mut u32) -> Result<(), Refused> {
        if tail.has(Place::CLOSED) {
            return Err(Refused::Closed);
        }
        // In this order: what was there is at least what this finds.
        let head = self.head();
        if tail.plain() != head.next_lap() {
            // Somebody holds an end, is still reading the entry, or was faster.
            relax(attempt);
        } else if self.table.slots().lap.length() < self.capacity.load(Ordering::Relaxed) {
            self.grow();
        } else {
            return Err(Refused::Full(Full(tail)));
        }
        Ok(())
    }

    /// Lets nothing more come, unless something has changed since the ring was full: whether this did it.
    pub(super) fn close(&self, full: Full) -> bool {
        claim(&self.tail, full.0, full.0.with(Place::CLOSED))
    }

    /// Whether there is no entry. One that is there is not overlooked by who knows of it otherwise.
    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        let head = self.head();
        self.table.slots().of(head).says(head.free())
    }

    /// Takes at most `limit` entries, the oldest first; how many there were.
    #[inline(always)]
    pub(super) fn poll(&self, limit: usize, mut out: impl FnMut(&T)) -> usize {
        let mut attempt = 0;
        loop {
            let head = self.head();
            let slots = self.table.slots();
            let (mut end, mut count) = (head, 0);
            while count < limit && slots.of(end).says(end.full()) {
                end = end.next(slots.lap);
                count += 1;
            }
            if count == 0 {
                if limit == 0 || slots.of(head).says(head.free()) {
                    return 0;
                }
                // It came just now, others were faster, or somebody holds the head.
                relax(&mut attempt);
            } else if claim(&self.head, head, end) {
                let mut taken = Taken {
                    slots,
                    next: head,
                    end,
                };
                while taken.next != end {
                    taken.take(&mut out);
                }
                return count;
            }
        }
    }

    /// Sets marks: every entry behind the place that this gives tells so when it is added.
    pub(super) fn mark(&self, marks: Marks) -> Place {
        Place(self.tail.0.fetch_or(marks.0, Ordering::AcqRel)).plain()
    }

    /// Clears all marks.
    pub(super) fn unmark(&self) {
        self.tail.0.fetch_and(!Place::MARKS, Ordering::AcqRel);
    }

    /// Waits until all entries whose places were claimed before are there.
    pub(super) fn settle(&self) {
        let end = self.tail().plain();
        let mut attempt = 0;
        'again: loop {
            let head = self.head();
            if head.has(Place::HELD) {
                relax(&mut attempt);
                continue;
            }
            let slots = self.table.slots();
            let mut place = head;
            while place.is_before(end) {
                if slots.of(place).says(place.full()) {
                    place = place.next(slots.lap);
                } else if self.head() == head {
                    relax(&mut attempt);
                } else {
                    // It was taken, or is elsewhere.
                    continue 'again;
                }
            }
            return;
        }
    }

    /// How many entries there are, more or less if others add and take some.
    pub(super) fn len(&self) -> usize {
        let (tail, head) = (self.tail(), self.head().plain());
        let lap = self.table.slots().lap;
        (0..lap.length())
            .find(|&count| head.nth(count, lap) == tail.plain())
            .unwrap_or(lap.length())
    }

    #[inline]
    fn head(&self) -> Place {
        Place(self.head.0.load(Ordering::Acquire))
    }

    #[inline]
    fn tail(&self) -> Place {
        Place(self.tail.0.load(Ordering::Acquire))
    }
}

/// Moves an end on, if nobody has changed it.
#[inline]
fn claim(end: &Line, from: Place, to: Place) -> bool {
    // Relaxed: what belongs to the places is published by their slots.
    let order = Ordering::Relaxed;
    end.0.compare_exchange(from.0, to.0, order, order).is_ok()
}

/// Entries that are claimed. Their slots are free when this is gone.
struct Taken<'a, T: Copy> {
    slots: Slots<'a, T>,
    next: Place,
    end: Place,
}

impl<T: Copy> Taken<'_, T> {
    #[inline]
    fn take(&mut self, out: impl FnOnce(&T)) {
        let place = self.next;
        let slot = self.slots.of(place);
        // SAFETY: the slot was full for this place when the place was the head or behind it, stays so until the place is
        // claimed, and it was claimed, since nobody had changed the head.
        unsafe { slot.read(out) };
        slot.say(place.next_lap().free());
        self.next = place.next(self.slots.lap);
    }
}

impl<T: Copy> Drop for Taken<'_, T> {
    #[inline]
    fn drop(&mut self) {
        while self.next != self.end {
            self.take(|_| ());
        }
    }
}
