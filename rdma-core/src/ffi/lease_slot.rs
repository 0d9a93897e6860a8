//! The registry slot of one window number: the state of the lease with that number, and the number
//! of late completions to ignore.

use std::array;
use std::sync::OnceLock;
use std::sync::atomic::Ordering;

#[cfg(all(test, loom))]
use loom::sync::atomic::{AtomicBool, AtomicU8, AtomicU64};
#[cfg(not(all(test, loom)))]
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64};

use super::lease_state::{Phase, State};

/// The registry slot of one window number. A slot stores the state of the lease (memory that peers
/// access through a memory window) whose window has this number.
///
/// A message of a peer can invalidate the window's key, which ends the lease. The completion that
/// reports the invalidation is sometimes processed late, when the next lease already has the same
/// key. Such a late completion must not end the next lease. Therefore, if a lease ends while such a
/// completion can still arrive, the slot will ignore one completion with the key. The slot counts
/// the completions to ignore, and keeps the count when another lease uses the slot.
#[derive(Default)]
pub(super) struct Slot {
    /// Set while a lease uses the slot. While it is not set, the phase in `state` is
    /// [`Phase::Free`].
    is_taken: AtomicBool,
    state: AtomicU64,
    /// Number of late completions to ignore, for each low byte of the key. Allocated when first
    /// needed.
    doubts: OnceLock<Box<Doubts>>,
}

/// The number of completions to ignore, for each low byte of a window key. An ignored completion
/// reports the key as invalidated, but belongs to a lease that has ended, and must not end the next
/// lease with this key. A count that has reached [`u8::MAX`] never decreases.
type Doubts = [AtomicU8; 256];

impl Slot {
    /// Occupies this slot for a new lease (memory that peers access through a window). `phase` says
    /// whether peers have access, and `tag` is the low byte of the window's key. Returns `false`,
    /// and changes nothing, if another lease uses the slot.
    pub(super) fn take(&self, phase: Phase, tag: u8) -> bool {
        if self.is_taken.swap(true, Ordering::Acquire) {
            return false;
        }
        let state = State {
            phase,
            tag,
            // The new generation makes every change fail that is based on an earlier state of the
            // slot.
            generation: self.state().generation + 1,
        };
        self.state.store(state.to_bits(), Ordering::Release);
        true
    }

    /// Removes the lease (memory that peers access through a window) from this slot, and returns
    /// its last state. Another lease can then use the slot. During the call another thread may
    /// report a peer's invalidation, but must not change the state in any other way.
    pub(super) fn vacate(&self) -> State {
        let end = loop {
            let before = self.state();
            if before.phase == Phase::Free {
                break before;
            }
            // The doubt is recorded before the state changes: a thread whose own change of the
            // state then fails must see the doubt.
            self.doubt(before.tag);
            let mut after = before;
            after.phase = Phase::Free;
            if self.change(before, after) {
                break before;
            }
            self.withdraw(before.tag);
        };
        self.is_taken.store(false, Ordering::Release);
        end
    }

    pub(super) fn state(&self) -> State {
        State::from_bits(self.state.load(Ordering::Acquire))
    }

    pub(super) fn change(&self, from: State, to: State) -> bool {
        let (from, to) = (from.to_bits(), to.to_bits());
        self.state
            .compare_exchange(from, to, Ordering::AcqRel, Ordering::Relaxed)
            .is_ok()
    }

    /// Records that a peer's message has invalidated the window key whose low byte is `tag`. Must
    /// be called once for each such message: a second call could end a later lease.
    pub(super) fn ended_by_peer(&self, tag: u8) {
        // The state must be read before the doubts. Then the doubts of all earlier leases are
        // visible, and if the lease ends after this line, the state is no longer the one read here.
        let first = self.state();
        let mut before = first;
        loop {
            let is_its = before.generation == first.generation && before.tag == tag;
            if self.withdraw(tag)
                || !is_its
                || !matches!(before.phase, Phase::Binding | Phase::Bound)
            {
                return;
            }
            let mut after = before;
            after.phase = Phase::Free;
            // The change fails in three cases: the bind request has just completed, a request that
            // ends the binding was created (and will fail), or the lease has ended.
            if self.change(before, after) {
                return;
            }
            before = self.state();
        }
    }

    /// Makes this slot ignore one more completion that reports the window key with the low byte
    /// `tag` as invalidated. Called when a lease ends while such a completion can still arrive: the
    /// completion could otherwise end the next lease with the same key. All keys of a slot differ
    /// only in the low byte.
    pub(super) fn doubt(&self, tag: u8) {
        let doubts = self
            .doubts
            .get_or_init(|| Box::new(array::from_fn(|_| AtomicU8::new(0))));
        let more = |count: u8| count.checked_add(1);
        // Has no effect if the count has reached its maximum: completions with this key are then
        // always ignored.
        let _ = doubts[usize::from(tag)].fetch_update(Ordering::AcqRel, Ordering::Relaxed, more);
    }

    /// Returns whether this slot must ignore a completion that reports the window key with the low
    /// byte `tag` as invalidated. The slot must ignore a completion that belongs to a lease that
    /// has ended. If the result is `true`, decrements the number of completions to ignore for this
    /// key. A number that has reached [`u8::MAX`] never decreases.
    fn withdraw(&self, tag: u8) -> bool {
        let Some(doubts) = self.doubts.get() else {
            return false;
        };
        let count = &doubts[usize::from(tag)];
        let less = |count| match count {
            0 | u8::MAX => None,
            _ => Some(count - 1),
        };
        match count.fetch_update(Ordering::AcqRel, Ordering::Acquire, less) {
            Ok(_) => true,
            Err(count) => count != 0,
        }
    }

    /// Returns the number of completions that this slot will ignore for the window key with the low
    /// byte `tag`. An ignored completion reports the key as invalidated, but belongs to a lease
    /// that has ended. All keys of a slot differ only in the low byte.
    #[cfg(test)]
    pub(super) fn doubts(&self, tag: u8) -> u8 {
        let doubts = self.doubts.get();
        doubts.map_or(0, |doubts| doubts[usize::from(tag)].load(Ordering::Acquire))
    }
}

#[cfg(all(test, loom))]
#[path = "lease_model.rs"]
mod model;

#[cfg(all(test, not(loom)))]
mod tests {
    use std::sync::atomic::AtomicUsize;
    use std::{hint, thread};

    use super::*;

    const ROUNDS: usize = if cfg!(miri) { 100 } else { 20_000 };
    const TAG: u8 = 7;

    #[test]
    fn there_is_one_lease_at_a_time() {
        let slot = Slot::default();
        assert!(slot.take(Phase::Free, TAG));
        assert!(!slot.take(Phase::Free, TAG));
        let first = slot.vacate();
        assert!(slot.take(Phase::Free, TAG));
        assert_ne!(slot.state(), first, "it is told from the one before");
        assert_eq!(slot.doubts(TAG), 0);
    }

    #[test]
    fn every_phase_but_free_leaves_a_doubt() {
        use Phase::{Binding, Bound, Ending, Free, Unknown};
        for (phase, doubts) in [
            (Free, 0),
            (Binding, 1),
            (Bound, 1),
            (Ending, 1),
            (Unknown, 1),
        ] {
            let slot = Slot::default();
            assert!(slot.take(phase, TAG));
            assert_eq!(slot.vacate().phase, phase);
            assert_eq!(slot.state().phase, Free);
            assert_eq!(slot.doubts(TAG), doubts, "{phase:?}");
            assert_eq!(slot.doubts(TAG + 1), 0);
        }
    }

    #[test]
    fn a_peer_ends_only_a_lease_that_is_bound_or_binding() {
        use Phase::{Binding, Bound, Ending, Free, Unknown};
        for (phase, after) in [
            (Free, Free),
            (Binding, Free),
            (Bound, Free),
            (Ending, Ending),
            (Unknown, Unknown),
        ] {
            let slot = Slot::default();
            assert!(slot.take(phase, TAG));
            slot.ended_by_peer(TAG + 1);
            assert_eq!(slot.state().phase, phase, "another key");
            slot.ended_by_peer(TAG);
            assert_eq!(slot.state().phase, after);
        }
    }

    #[test]
    fn a_key_with_the_maximum_of_doubts_stays_in_doubt() {
        let slot = Slot::default();
        for _ in 0..300 {
            slot.doubt(TAG);
        }
        assert!(slot.take(Phase::Bound, TAG));
        for _ in 0..300 {
            slot.ended_by_peer(TAG);
        }
        assert_eq!(slot.state().phase, Phase::Bound);
        assert_eq!(slot.doubts(TAG), u8::MAX);
    }

    /// Runs `meanwhile` on a slot while another thread reports that a peer has invalidated the key,
    /// in many rounds with varying delays. Each round begins with a new lease in the phase `begin`.
    /// Afterwards `judge` must return `true`, which means that the slot is in the expected state.
    fn race(begin: Phase, meanwhile: impl Fn(&Slot), judge: impl Fn(&Slot) -> bool) {
        let slot = Slot::default();
        let (begun, told) = (AtomicUsize::new(0), AtomicUsize::new(0));
        let await_round = |counter: &AtomicUsize, round| {
            for spin in 1_u64.. {
                if counter.load(Ordering::Acquire) >= round {
                    break;
                }
                hint::spin_loop();
                if spin % 1_000 == 0 {
                    thread::yield_now();
                }
            }
        };
        let delay = |count: usize| (0..count).for_each(|_| hint::spin_loop());
        let wrong = thread::scope(|scope| {
            scope.spawn(|| {
                for round in 1..=ROUNDS {
                    await_round(&begun, round);
                    delay(round % 13);
                    slot.ended_by_peer(TAG);
                    told.store(round, Ordering::Release);
                }
            });
            let mut wrong = 0;
            for round in 1..=ROUNDS {
                assert!(slot.take(begin, TAG));
                begun.store(round, Ordering::Release);
                delay(round % 17);
                meanwhile(&slot);
                await_round(&told, round);
                wrong += usize::from(!judge(&slot));
                while slot.doubts(TAG) > 0 {
                    slot.withdraw(TAG);
                }
                slot.vacate();
                slot.withdraw(TAG);
            }
            wrong
        });
        assert_eq!(wrong, 0, "of {ROUNDS} rounds");
    }

    /// Checks that the report of an invalidated key never ends the next lease with the same key.
    /// The report belongs to the first lease. The report arrives while that lease ends and the next
    /// lease begins. Afterwards the slot ignores no further report.
    #[test]
    fn a_message_never_ends_the_next_lease() {
        let next = |slot: &Slot| {
            slot.vacate();
            assert!(slot.take(Phase::Bound, TAG));
        };
        let judge = |slot: &Slot| (slot.state().phase, slot.doubts(TAG)) == (Phase::Bound, 0);
        race(Phase::Bound, next, judge);
    }

    /// Checks that the report of an invalidated key ends the lease, even if the report arrives
    /// while the bind request of the lease completes.
    #[test]
    fn a_message_ends_a_binding_whose_request_completes() {
        let complete = |slot: &Slot| {
            let before = slot.state();
            let mut after = before;
            after.phase = Phase::Bound;
            if before.phase == Phase::Binding {
                slot.change(before, after);
            }
        };
        let judge = |slot: &Slot| (slot.state().phase, slot.doubts(TAG)) == (Phase::Free, 0);
        race(Phase::Binding, complete, judge);
    }

    /// Checks that each call of [`Slot::doubt`] makes the slot ignore exactly one report of an
    /// invalidated key, even if several threads report at the same time. An ignored report belongs
    /// to a lease that has ended. The next report ends the current lease.
    #[test]
    fn no_doubt_is_resolved_twice() {
        const EACH: u8 = 50;
        for _ in 0..ROUNDS.div_ceil(1_000) {
            let slot = Slot::default();
            for _ in 0..3 * EACH {
                slot.doubt(TAG);
            }
            assert!(slot.take(Phase::Bound, TAG));
            thread::scope(|scope| {
                for _ in 0..3 {
                    scope.spawn(|| (0..EACH).for_each(|_| slot.ended_by_peer(TAG)));
                }
            });
            assert_eq!((slot.state().phase, slot.doubts(TAG)), (Phase::Bound, 0));
            slot.ended_by_peer(TAG);
            assert_eq!(slot.state().phase, Phase::Free);
        }
    }
}
