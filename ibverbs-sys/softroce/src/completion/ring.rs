//! Bounded lock-free queue of entries, with any number of producers and consumers.
//!
//! The ring is an array of slots (one entry each) that is used again and again. A pass through the
//! array is a lap. The state word of a slot, its turn, contains the lap for which the slot is free
//! or full. A producer claims the position at the tail with one compare-and-swap, writes the entry
//! to the slot of this position, and marks the slot as full. A consumer claims full slots at the
//! head with one compare-and-swap, reads the entries, and marks the slots as free for the next lap.
//! No thread waits for a thread that was interrupted after its claim: a claimed entry that is not
//! yet full, and the entries after it, count as absent.
//!
//! Rare operations (removing entries out of order, changing the number of slots) take exclusive
//! control of head and tail by a flag in their words, which makes every claim fail. The array
//! begins small and grows when all slots are full, so that few entries in a queue with a large
//! capacity occupy only a few cache lines.
//!
//! The word of the tail also contains marks (flags for the user of the ring). A producer that
//! claims a position gets the marks that were set, without a fence. A thread that sets a mark and
//! then waits for earlier claims ([`Ring::wait_for_claims`]) finds the entries of these claims.

use self::position::Lap;
use self::slots::{Slots, Table};
use self::sync::{AtomicU64, AtomicUsize, Ordering, relax};

mod hold;
#[cfg(all(test, loom))]
mod models;
mod position;
mod slots;
mod sync;
#[cfg(all(test, not(loom)))]
mod tests;

pub(super) use hold::TooManyEntries;
pub(super) use position::Position;

/// Bounded lock-free queue of entries of the type `T`, in a ring of slots (memory for one entry
/// each).
pub(super) struct Ring<T> {
    /// Position at which the next entry is added, with the flags [`Position::HELD`] and
    /// [`Position::CLOSED`] and the marks ([`TailFlags`]).
    tail: RingEnd,
    /// Position of the oldest entry, with the flag [`Position::HELD`].
    head: RingEnd,
    table: Table<T>,
    /// Capacity of the ring in entries: the maximum number of slots, to which the ring may grow.
    capacity: AtomicUsize,
}

/// The head or the tail of the ring of entries: a [`Position`] with flags, in its own cache line.
#[repr(align(64))]
struct RingEnd(AtomicU64);

/// Result of adding entries to the ring: the position of the first added entry, and the
/// [`TailFlags`] that were set at that time. The flags show whether the caller must raise a
/// completion event for the entries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Added(Position);

/// Flags of the ring's tail, also called marks. Each flag means that the program has requested a
/// completion event for entries of one kind. A thread that adds an entry gets the flags, and raises
/// the event if one of the flags applies to the entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct TailFlags(u64);

/// Error of an attempt to add an entry to the ring: the ring is full or closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum AddError {
    /// The ring contains as many entries as its capacity allows.
    Full(Full),
    /// The ring is closed: no more entries can be added.
    Closed,
}

/// Value of the tail when the ring was found full. [`Ring::close`] closes the ring only if the tail
/// still has this value. If the tail has changed, the ring perhaps has room again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Full(Position);

impl TailFlags {
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
    /// Returns the flags ([`TailFlags`]) that the ring had when these entries were added. Each set
    /// flag is a request of the program for a completion event.
    #[inline]
    pub(super) fn marks(self) -> TailFlags {
        TailFlags(self.0.0 & Position::MARKS)
    }

    /// Returns whether these entries are older than the program's request for a completion event.
    /// `mark` is the position in the ring of the first entry after the request ([`Ring::mark`]).
    /// The request is for later entries only, so older entries raise no event.
    pub(super) fn is_before(self, mark: Position) -> bool {
        self.0.is_before(mark)
    }
}

impl<T: Copy + Send> Ring<T> {
    /// Maximum number of entries in a ring. The limit is the number of bits for the slot index in a
    /// [`Position`].
    pub(super) const MAX_CAPACITY: usize = Lap::MAX;

    /// Creates an empty ring for at most `capacity` entries. Allocates memory for `room` entries.
    /// More memory is allocated later if necessary.
    pub(super) fn new(capacity: usize, room: usize) -> Self {
        debug_assert!((1..=Self::MAX_CAPACITY).contains(&capacity));
        Self {
            tail: RingEnd(AtomicU64::new(Position::START.0)),
            head: RingEnd(AtomicU64::new(Position::START.0)),
            table: Table::new(room.min(capacity)),
            capacity: AtomicUsize::new(capacity),
        }
    }

    /// Adds an entry to the ring on the fast path. Returns `None`, without adding the entry, in
    /// four cases: the slot at the tail is not free, a thread has exclusive control of the tail,
    /// the ring is closed, or another thread changes the tail at the same time. The caller then
    /// uses [`push_all`](Self::push_all).
    #[inline]
    pub(super) fn push(&self, entry: T) -> Option<Added> {
        let tail = self.tail();
        let slots = self.table.slots();
        let slot = slots.of(tail);
        if !slot.has_turn(tail.free()) || !claim(&self.tail, tail, tail.next(slots.lap)) {
            return None;
        }
        // SAFETY: the slot was free for this position when the position was the tail, and stays
        // free until the position is claimed. This thread has just claimed it, because the
        // compare-and-swap succeeded.
        unsafe { slot.write(entry) };
        slot.set_turn(tail.full());
        Some(Added(tail))
    }

    /// Adds entries from the start of `entries` to the ring, until all are added or no further slot
    /// is free. Returns the number of added entries, at least one, and the [`Added`] of the first
    /// entry. Fails if no entry can be added, because the ring is full or closed.
    pub(super) fn push_all(&self, entries: &[T]) -> Result<(usize, Added), AddError> {
        let mut attempt = 0;
        loop {
            let tail = self.tail();
            let slots = self.table.slots();
            let (mut end, mut count) = (tail, 0);
            while count < entries.len() && slots.of(end).has_turn(end.free()) {
                end = end.next(slots.lap);
                count += 1;
            }
            if count == 0 {
                self.make_room(tail, &mut attempt)?;
            } else if claim(&self.tail, tail, end) {
                let mut place = tail;
                for &entry in &entries[..count] {
                    let slot = slots.of(place);
                    // SAFETY: the slot was free for this position when the position was at or
                    // behind the tail, and stays free until the position is claimed. This thread
                    // claimed it together with the tail.
                    unsafe { slot.write(entry) };
                    slot.set_turn(place.full());
                    place = place.next(slots.lap);
                }
                return Ok((count, Added(tail)));
            }
        }
    }

    /// Makes room for an entry in the ring if the slot at the tail position `tail` is not free.
    /// Adds slots (memory for entries), or waits a moment for a thread that is still using the
    /// slot. `attempt` counts the waits so far. Later waits are longer. Returns `Ok` if the caller
    /// must try again. Fails if the ring is closed or full.
    #[cold]
    fn make_room(&self, tail: Position, attempt: &mut u32) -> Result<(), AddError> {
        if tail.has(Position::CLOSED) {
            return Err(AddError::Closed);
        }
        // The head is read after the tail, so the ring contained at least as many entries as these
        // two values show.
        let head = self.head();
        if tail.unflagged() != head.next_lap() {
            // Another thread has exclusive control of the head or tail, is still reading the entry,
            // or has just changed the tail.
            relax(attempt);
        } else if self.table.slots().lap.length() < self.capacity.load(Ordering::Relaxed) {
            self.grow();
        } else {
            return Err(AddError::Full(Full(tail)));
        }
        Ok(())
    }

    /// Closes the ring after an entry did not fit, so that no more entries can be added. `full` is
    /// the error of the attempt to add the entry. Returns `true` if the ring was closed. Returns
    /// `false` if the tail of the ring has changed since the attempt: the caller must then try
    /// again to add the entry.
    pub(super) fn close(&self, full: Full) -> bool {
        claim(&self.tail, full.0, full.0.with(Position::CLOSED))
    }

    /// Returns whether the slot at the head of the ring contains no entry. The result is `false` if
    /// the oldest entry was completely added before the call. While a thread is still writing the
    /// oldest entry, the result is `true`, even if later entries are complete. While other threads
    /// change the ring, the result can be `false` for an empty ring.
    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        let head = self.head();
        self.table.slots().of(head).has_turn(head.free())
    }

    /// Removes at most `limit` entries from the ring, the oldest first, and calls `out` for each.
    /// Returns the number of removed entries.
    #[inline(always)]
    pub(super) fn poll(&self, limit: usize, mut out: impl FnMut(&T)) -> usize {
        let mut attempt = 0;
        loop {
            let head = self.head();
            let slots = self.table.slots();
            let (mut end, mut count) = (head, 0);
            while count < limit && slots.of(end).has_turn(end.full()) {
                end = end.next(slots.lap);
                count += 1;
            }
            if count == 0 {
                if limit == 0 || slots.of(head).has_turn(head.free()) {
                    return 0;
                }
                // An entry was just added, another thread has just changed the head, or a thread
                // has exclusive control of the head.
                relax(&mut attempt);
            } else if claim(&self.head, head, end) {
                let mut taken = ClaimedEntries {
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

    /// Sets the flags `marks` in the tail of the ring, and returns the position of the tail. A
    /// completion queue uses the flags to request a completion event. A thread that adds an entry
    /// at this position or later gets the flags as part of its [`Added`].
    pub(super) fn mark(&self, marks: TailFlags) -> Position {
        Position(self.tail.0.fetch_or(marks.0, Ordering::AcqRel)).unflagged()
    }

    /// Clears all marks (flags of the ring's tail), for example when the completion queue is no
    /// longer armed. Threads that add entries later then find no marks.
    pub(super) fn unmark(&self) {
        self.tail.0.fetch_and(!Position::MARKS, Ordering::AcqRel);
    }

    /// Waits until threads that have reserved slots of the ring before this call have written their
    /// entries to these slots.
    pub(super) fn wait_for_claims(&self) {
        let end = self.tail().unflagged();
        let mut attempt = 0;
        'again: loop {
            let head = self.head();
            if head.has(Position::HELD) {
                relax(&mut attempt);
                continue;
            }
            let slots = self.table.slots();
            let mut place = head;
            while place.is_before(end) {
                if slots.of(place).has_turn(place.full()) {
                    place = place.next(slots.lap);
                } else if self.head() == head {
                    relax(&mut attempt);
                } else {
                    // The entry was removed, or the ring was rebuilt.
                    continue 'again;
                }
            }
            return;
        }
    }

    /// Returns the number of entries in the ring. The result is inexact while other threads add or
    /// remove entries.
    pub(super) fn len(&self) -> usize {
        let (tail, head) = (self.tail(), self.head().unflagged());
        let lap = self.table.slots().lap;
        (0..lap.length())
            .find(|&count| head.nth(count, lap) == tail.unflagged())
            .unwrap_or(lap.length())
    }

    #[inline]
    fn head(&self) -> Position {
        Position(self.head.0.load(Ordering::Acquire))
    }

    #[inline]
    fn tail(&self) -> Position {
        Position(self.tail.0.load(Ordering::Acquire))
    }
}

/// Claims the positions from `from` to before `to` for this thread, by moving the head or tail
/// `end` from `from` to `to`. Returns `false`, and moves nothing, if another thread has changed
/// `end`.
#[inline]
fn claim(end: &RingEnd, from: Position, to: Position) -> bool {
    // `Relaxed`: the state words of the slots publish the entries.
    let order = Ordering::Relaxed;
    end.0.compare_exchange(from.0, to.0, order, order).is_ok()
}

/// Entries of the ring that a thread has claimed and is reading. Dropping this value frees the
/// slots of these entries.
struct ClaimedEntries<'a, T: Copy> {
    slots: Slots<'a, T>,
    next: Position,
    end: Position,
}

impl<T: Copy> ClaimedEntries<'_, T> {
    #[inline]
    fn take(&mut self, out: impl FnOnce(&T)) {
        let place = self.next;
        let slot = self.slots.of(place);
        // SAFETY: the slot was full for this position when the position was at or behind the head,
        // and stays full until the position is claimed. This thread claimed it, because the
        // compare-and-swap on the head succeeded.
        unsafe { slot.read(out) };
        slot.set_turn(place.next_lap().free());
        self.next = place.next(self.slots.lap);
    }
}

impl<T: Copy> Drop for ClaimedEntries<'_, T> {
    #[inline]
    fn drop(&mut self) {
        while self.next != self.end {
            self.take(|_| ());
        }
    }
}
