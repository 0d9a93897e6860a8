/// Position in the order of all entries, as a word: a lap and an index within the lap, with flags in the low bits. With
/// [`Place::FULL`] in place of the index, it is also the turn of a slot.
///
/// Laps wrap after 2^36. A thread that was interrupted for exactly that many laps would mistake one position for the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::completion) struct Place(pub(super) u64);

/// Length of laps, in a form that can be compared with a position: the index of the last slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Lap(pub(super) u64);

const INDEX_BITS: u32 = 22;

impl Place {
    /// Set while a thread holds this end: no other thread may add or remove here.
    pub(super) const HELD: u64 = 1;
    /// Set if no more entries may be added.
    pub(super) const CLOSED: u64 = 1 << 1;
    /// Flags whose meaning is defined by the user of the ring.
    pub(super) const MARKS: u64 = 0b11 << 2;

    /// Step from one index to the next. It is the size of a slot in bytes, so that no multiplication is needed.
    const STEP: u64 = 1 << 6;
    const INDEX: u64 = ((1 << INDEX_BITS) - 1) * Self::STEP;
    const LAP: u64 = Self::INDEX + Self::STEP;
    const FLAGS: u64 = Self::STEP - 1;

    /// In the turn of a slot: the slot contains the entry of the lap.
    const FULL: u64 = 1 << 4;

    /// Beginning of the first lap.
    pub(super) const START: Self = Self(0);

    #[inline]
    pub(super) fn index(self) -> usize {
        ((self.0 & Self::INDEX) / Self::STEP) as usize
    }

    /// Returns the position without flags.
    #[inline]
    pub(super) fn plain(self) -> Self {
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

    /// Returns the turn of the slot while it waits for the entry of this position. No slot has the turn of a position that is
    /// held or closed.
    #[inline]
    pub(super) fn free(self) -> u64 {
        self.0 & !(Self::INDEX | Self::MARKS)
    }

    /// Returns the turn of the slot while it contains the entry of this position. No slot has the turn of a position that is
    /// held or closed.
    #[inline]
    pub(super) fn full(self) -> u64 {
        self.free() | Self::FULL
    }

    /// Returns the next position, with the same flags.
    #[inline]
    pub(super) fn next(self, lap: Lap) -> Self {
        // `>=`, not `==`: a stale position from a longer lap, which no thread can claim any more, must not lead out of a
        // shorter lap.
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

    /// Returns the position with the same index, one lap later.
    #[inline]
    pub(super) fn next_lap(self) -> Self {
        Self(self.0.wrapping_add(Self::LAP))
    }

    /// Returns the beginning of the next lap.
    pub(super) fn new_lap(self) -> Self {
        self.plain().at_next_lap()
    }

    /// Returns the position `count` steps later, at most one lap, without flags.
    pub(super) fn nth(self, count: usize, lap: Lap) -> Self {
        let index = self.index() + count;
        let start = Self(self.plain().0 & !Self::INDEX);
        if index >= lap.length() {
            start.next_lap().add(index - lap.length())
        } else {
            start.add(index)
        }
    }

    /// Returns the number of positions from this one to `end`, which is at most one lap later.
    pub(super) fn distance(self, end: Self, lap: Lap) -> usize {
        let same_lap = (self.0 ^ end.0) & !(Self::INDEX | Self::FLAGS) == 0;
        end.index() + if same_lap { 0 } else { lap.length() } - self.index()
    }

    /// Returns whether this position is before `other`.
    pub(in crate::completion) fn is_before(self, other: Self) -> bool {
        let ahead = self.plain().0.wrapping_sub(other.plain().0);
        ahead.cast_signed() < 0
    }

    fn add(self, count: usize) -> Self {
        Self(self.0 + count as u64 * Self::STEP)
    }
}

impl Lap {
    /// Maximum number of slots in a lap.
    pub(super) const MAX: usize = (1 << INDEX_BITS) - 1;

    /// Creates the lap of `length` slots, at least one.
    pub(super) fn of(length: usize) -> Self {
        debug_assert!((1..=Self::MAX).contains(&length));
        Self((length - 1) as u64 * Place::STEP)
    }

    pub(super) fn length(self) -> usize {
        (self.0 / Place::STEP) as usize + 1
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn places_follow_each_other_lap_after_lap() {
        for length in [1, 2, 3, Lap::MAX] {
            let lap = Lap::of(length);
            assert_eq!(lap.length(), length);
            let start = Place(u64::MAX / 2).new_lap();
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
        let last = Place::START.nth(2, three);
        assert_eq!(last.next(three), Place::START.next_lap());
        assert_eq!(last.distance(last.next_lap(), three), 3);
        assert_eq!(last.next(two), Place::START.next_lap());
        let marked = last.with(Place::MARKS);
        assert_eq!(marked.next(three), marked.next(two));
        assert_eq!(marked.next(three).plain(), last.next(three));
    }

    #[test]
    fn laps_wrap() {
        let last = Place(u64::MAX).plain();
        assert_eq!(last.next(Lap::of(1)), Place::START);
        assert!(last.is_before(Place::START));
    }

    #[test]
    fn no_slot_says_that_it_is_in_turn_for_a_place_that_is_held() {
        let place = Place::START.next_lap().nth(7, Lap::of(9));
        assert_eq!(place.with(Place::MARKS).free(), place.free());
        for flag in [Place::HELD, Place::CLOSED] {
            let other = place.with(flag);
            for said in [place.free(), place.full(), place.next_lap().free()] {
                assert!(other.free() != said && other.full() != said);
            }
        }
    }
}
