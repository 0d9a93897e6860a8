/// Where something is in the order of all entries, as a word: a lap and an index in it, with flags below them. Also, with
/// [`Place::FULL`] in the index's stead, what a slot says of itself.
///
/// Laps wrap after 2^36 of them. A thread that was kept from running as long as that, to the very entry, would take the
/// one for the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::completion) struct Place(pub(super) u64);

/// How long laps are, as what can be compared with a place: the index of a lap's last.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Lap(pub(super) u64);

const INDEX_BITS: u32 = 22;

impl Place {
    /// Nobody takes from this end, or adds to it, but who set this.
    pub(super) const HELD: u64 = 1;
    /// Nothing more comes.
    pub(super) const CLOSED: u64 = 1 << 1;
    /// The flags whose meaning is the user's.
    pub(super) const MARKS: u64 = 0b11 << 2;

    /// The step from one index to the next: the bytes of a slot, so that none are reckoned.
    const STEP: u64 = 1 << 6;
    const INDEX: u64 = ((1 << INDEX_BITS) - 1) * Self::STEP;
    const LAP: u64 = Self::INDEX + Self::STEP;
    const FLAGS: u64 = Self::STEP - 1;

    /// In a slot's turn: the entry of the lap is there.
    const FULL: u64 = 1 << 4;

    /// The beginning of the first lap.
    pub(super) const START: Self = Self(0);

    #[inline]
    pub(super) fn index(self) -> usize {
        ((self.0 & Self::INDEX) / Self::STEP) as usize
    }

    /// Without flags.
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

    /// What the slot says while it waits for the entry of this place. No slot says it of one that is held or closed.
    #[inline]
    pub(super) fn free(self) -> u64 {
        self.0 & !(Self::INDEX | Self::MARKS)
    }

    /// What the slot says while the entry of this place is in it. No slot says it of one that is held or closed.
    #[inline]
    pub(super) fn full(self) -> u64 {
        self.free() | Self::FULL
    }

    /// The next one; with the same flags.
    #[inline]
    pub(super) fn next(self, lap: Lap) -> Self {
        // Not only equal: a place of a longer lap, which nobody will claim any more, must not lead out of a shorter one.
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

    /// The same index, a lap later.
    #[inline]
    pub(super) fn next_lap(self) -> Self {
        Self(self.0.wrapping_add(Self::LAP))
    }

    /// The beginning of the next lap.
    pub(super) fn new_lap(self) -> Self {
        self.plain().at_next_lap()
    }

    /// The one that is `count` after this, at most a lap; without flags.
    pub(super) fn nth(self, count: usize, lap: Lap) -> Self {
        let index = self.index() + count;
        let start = Self(self.plain().0 & !Self::INDEX);
        if index >= lap.length() {
            start.next_lap().add(index - lap.length())
        } else {
            start.add(index)
        }
    }

    /// How many there are from this on to `end`, which is at most a lap later.
    pub(super) fn distance(self, end: Self, lap: Lap) -> usize {
        let same_lap = (self.0 ^ end.0) & !(Self::INDEX | Self::FLAGS) == 0;
        end.index() + if same_lap { 0 } else { lap.length() } - self.index()
    }

    /// Whether this is before another one.
    pub(in crate::completion) fn is_before(self, other: Self) -> bool {
        let ahead = self.plain().0.wrapping_sub(other.plain().0);
        ahead.cast_signed() < 0
    }

    fn add(self, count: usize) -> Self {
        Self(self.0 + count as u64 * Self::STEP)
    }
}

impl Lap {
    /// The longest one.
    pub(super) const MAX: usize = (1 << INDEX_BITS) - 1;

    /// One of so many places, which are some.
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
