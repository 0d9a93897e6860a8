/// Position of an entry in the order in which entries are added to a ring of slots. The word
/// contains the number of the lap (pass through all slots), the index of the slot, and flags in the
/// low bits. The state (turn) of a slot has the same form without the index: see [`Position::free`]
/// and [`Position::full`].
///
/// The lap number wraps after 2^36. A thread that was interrupted for exactly 2^36 laps would take
/// an old position for the present one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::completion) struct Position(pub(super) u64);

/// Number of slots of a ring, in the form of a [`Position`]. In this form, the number can be
/// compared with the slot index in another position without a shift. As a position, the value is
/// that of the last slot in the first pass through the ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Lap(pub(super) u64);

/// Number of bits for the index of a slot (memory for one entry) in a [`Position`]. The bits above
/// the index count the passes through the ring. With more bits for the index, this count would wrap
/// sooner.
const INDEX_BITS: u32 = 22;

impl Position {
    /// Flag in the word of the head or tail of the ring: a thread has exclusive control. While the
    /// flag is set, no other thread can remove entries (head) or add entries (tail).
    pub(super) const HELD: u64 = 1;
    /// Flag of the tail of the ring: no more entries can be added, because the completion queue has
    /// failed.
    pub(super) const CLOSED: u64 = 1 << 1;
    /// Bit mask of the [`super::TailFlags`] in the word of the tail. The completion queue sets
    /// these flags to request a completion event for the next entry.
    pub(super) const MARKS: u64 = 0b11 << 2;

    /// Difference between the positions of two consecutive slots. The bits below this value are
    /// flags. The value equals the size of a slot in bytes, so the bits of the slot index are the
    /// offset of the slot in memory.
    const STEP: u64 = 1 << 6;
    const INDEX: u64 = ((1 << INDEX_BITS) - 1) * Self::STEP;
    const LAP: u64 = Self::INDEX + Self::STEP;
    const FLAGS: u64 = Self::STEP - 1;

    /// Flag in the state of a slot ([`Slot::turn`](super::slots::Slot::turn)): the slot contains an
    /// entry.
    const FULL: u64 = 1 << 4;

    /// First position of the ring: the first slot (memory for one entry) in the first pass through
    /// the ring.
    pub(super) const START: Self = Self(0);

    #[inline]
    pub(super) fn index(self) -> usize {
        ((self.0 & Self::INDEX) / Self::STEP) as usize
    }

    /// Returns this position without the flags in its low bits. The number of the pass through the
    /// ring and the slot index remain. This value can be compared with other positions.
    #[inline]
    pub(super) fn unflagged(self) -> Self {
        Self(self.0 & !Self::FLAGS)
    }

    #[inline]
    pub(super) fn has(self, flags: u64) -> bool {
        self.0 & flags != 0
    }

    #[inline]
    pub(super) fn with(self, flags: u64) -> Self {
        Self(self.0 | flags)
    }

    /// Returns the state word of a ring slot that is free for the entry at this position. The state
    /// contains the number of the pass through the ring (lap). If this position has the flag
    /// [`Position::HELD`] or [`Position::CLOSED`], the result equals the state of no slot. So an
    /// attempt to add an entry while one of these flags is set finds no free slot.
    #[inline]
    pub(super) fn free(self) -> u64 {
        self.0 & !(Self::INDEX | Self::MARKS)
    }

    /// Returns the state word of a ring slot that contains the entry at this position. The state
    /// contains the number of the pass through the ring (lap) and the flag [`Position::FULL`]. If
    /// this position has the flag [`Position::HELD`], the result equals the state of no slot. So an
    /// attempt to remove an entry while this flag is set finds no full slot.
    #[inline]
    pub(super) fn full(self) -> u64 {
        self.free() | Self::FULL
    }

    /// Returns the next position in a ring with `lap` slots: the next slot, or after the last slot
    /// the first slot. The flags in the low bits stay unchanged.
    #[inline]
    pub(super) fn next(self, lap: Lap) -> Self {
        // `>=`, not `==`: a stale position from a longer lap, which no thread can claim any more,
        // must not lead out of a shorter lap.
        if self.0 & Self::INDEX >= lap.0 {
            self.at_next_lap()
        } else {
            Self(self.0 + Self::STEP)
        }
    }

    #[cold]
    fn at_next_lap(self) -> Self {
        Self(self.0 & !Self::INDEX).next_lap()
    }

    /// Returns the position of the same slot (memory for one entry) in the next pass through the
    /// ring. The flags in the low bits stay unchanged.
    #[inline]
    pub(super) fn next_lap(self) -> Self {
        Self(self.0.wrapping_add(Self::LAP))
    }

    /// Returns the position of the first slot (memory for one entry) in the next pass through the
    /// ring. The result has no flags in its low bits.
    pub(super) fn new_lap(self) -> Self {
        self.unflagged().at_next_lap()
    }

    /// Returns the position that is `count` entries after this position, with all flags cleared.
    /// `lap` is the number of slots of the ring. `count` must be at most this number.
    pub(super) fn nth(self, count: usize, lap: Lap) -> Self {
        let index = self.index() + count;
        let start = Self(self.unflagged().0 & !Self::INDEX);
        if index >= lap.length() {
            start.next_lap().add(index - lap.length())
        } else {
            start.add(index)
        }
    }

    /// Returns the number of entries from this position up to the position `end`, without the entry
    /// at `end`. `lap` is the number of slots of the ring. `end` must be at most `lap` entries
    /// later than this position.
    pub(super) fn distance(self, end: Self, lap: Lap) -> usize {
        let same_lap = (self.0 ^ end.0) & !(Self::INDEX | Self::FLAGS) == 0;
        end.index() + if same_lap { 0 } else { lap.length() } - self.index()
    }

    /// Returns whether this position is before `other` in the order of entries.
    pub(in crate::completion) fn is_before(self, other: Self) -> bool {
        let ahead = self.unflagged().0.wrapping_sub(other.unflagged().0);
        ahead.cast_signed() < 0
    }

    fn add(self, count: usize) -> Self {
        Self(self.0 + count as u64 * Self::STEP)
    }
}

impl Lap {
    /// Maximum number of slots (memory for one entry each) of a ring.
    pub(super) const MAX: usize = (1 << INDEX_BITS) - 1;

    /// Creates a [`Lap`] from the number of slots of a ring, `length`. A `Lap` is this number in
    /// the form in which it is compared with positions. `length` must be at least 1.
    pub(super) fn of(length: usize) -> Self {
        debug_assert!((1..=Self::MAX).contains(&length));
        Self((length - 1) as u64 * Position::STEP)
    }

    pub(super) fn length(self) -> usize {
        (self.0 / Position::STEP) as usize + 1
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn positions_are_consecutive_across_laps() {
        for length in [1, 2, 3, Lap::MAX] {
            let lap = Lap::of(length);
            assert_eq!(lap.length(), length);
            let start = Position(u64::MAX / 2).new_lap();
            let mut place = start;
            for count in 0..length.min(5) {
                assert_eq!(place, start.nth(count, lap));
                assert_eq!(start.distance(place, lap), count);
                assert!(!place.is_before(start));
                assert_eq!(start.is_before(place), count > 0);
                place = place.next(lap);
            }
            assert_eq!(start.nth(length, lap), start.next_lap());
        }
        let (three, two) = (Lap::of(3), Lap::of(2));
        let last = Position::START.nth(2, three);
        assert_eq!(last.next(three), Position::START.next_lap());
        assert_eq!(last.distance(last.next_lap(), three), 3);
        assert_eq!(last.next(two), Position::START.next_lap());
        let marked = last.with(Position::MARKS);
        assert_eq!(marked.next(three), marked.next(two));
        assert_eq!(marked.next(three).unflagged(), last.next(three));
    }

    #[test]
    fn laps_wrap() {
        let last = Position(u64::MAX).unflagged();
        assert_eq!(last.next(Lap::of(1)), Position::START);
        assert!(last.is_before(Position::START));
    }

    #[test]
    fn no_slot_is_ready_for_a_position_that_is_held() {
        let place = Position::START.next_lap().nth(7, Lap::of(9));
        assert_eq!(place.with(Position::MARKS).free(), place.free());
        for flag in [Position::HELD, Position::CLOSED] {
            let other = place.with(flag);
            for said in [place.free(), place.full(), place.next_lap().free()] {
                assert!(other.free() != said && other.full() != said);
            }
        }
    }
}
