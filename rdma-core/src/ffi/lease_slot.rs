//! What is known of the leases of one window number.

use std::array;
use std::sync::OnceLock;
use std::sync::atomic::Ordering;

#[cfg(all(test, loom))]
use loom::sync::atomic::{AtomicBool, AtomicU8, AtomicU64};
#[cfg(not(all(test, loom)))]
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64};

use super::lease_state::{Phase, State};

/// The state of the lease by the window of this number, and the keys in doubt.
///
/// A completion that tells of an invalidated key can be shown late, when the device has given the
/// key to another window. So keys of leases that ended in another way, while a peer may have ended
/// them too, are remembered: as many completions that tell of such a key are not believed. That
/// another window has the number, or the same one another key, is no reason to forget one: only then
/// can it be taken for a new one.
#[derive(Default)]
pub(super) struct Slot {
    /// Whether there is a lease. If not, the state says that nothing is reached.
    is_taken: AtomicBool,
    state: AtomicU64,
    /// How many leases ended so with each key, by the part that varies; made for the first.
    doubts: OnceLock<Box<Doubts>>,
}

/// A count that reached [`u8::MAX`] stays there: the key is never believed again.
type Doubts = [AtomicU8; 256];

impl Slot {
    /// Begins a lease; `false` if there is one.
    pub(super) fn take(&self, phase: Phase, tag: u8) -> bool {
        if self.is_taken.swap(true, Ordering::Acquire) {
            return false;
        }
        let state = State {
            phase,
            tag,
            // So that who knows the state of a lease before changes nothing.
            generation: self.state().generation + 1,
        };
        self.state.store(state.to_bits(), Ordering::Release);
        true
    }

    /// Ends the lease, whose state nobody changes by now except for a peer's messages; what it was.
    pub(super) fn vacate(&self) -> State {
        let end = loop {
            let before = self.state();
            if before.phase == Phase::Free {
                break before;
            }
            // Before the change: who sees that fail must see the doubt.
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

    /// Says that a message of a peer has ended the binding with this key, and no older one. To be
    /// called once for each message.
    pub(super) fn ended_by_peer(&self, tag: u8) {
        // The doubts are looked at after the state: those of leases before are seen then, and a lease
        // that ends from here on is no longer in this state.
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
            // It fails if the binding's request has completed just now, or if one that ends the
            // binding was made, which will fail, or if the lease ended.
            if self.change(before, after) {
                return;
            }
            before = self.state();
        }
    }

    /// Puts a key in doubt once more.
    pub(super) fn doubt(&self, tag: u8) {
        let doubts = self
            .doubts
            .get_or_init(|| Box::new(array::from_fn(|_| AtomicU8::new(0))));
        let more = |count: u8| count.checked_add(1);
        // It fails if the key is in doubt for good.
        let _ = doubts[usize::from(tag)].fetch_update(Ordering::AcqRel, Ordering::Relaxed, more);
    }

    /// Whether the key was in doubt, from which it is taken once.
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

    /// How many completions that tell of this key would not be believed.
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
    fn what_binds_can_be_ended_by_a_peer_and_nothing_else() {
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
    fn a_key_with_too_many_doubts_is_in_doubt_for_good() {
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

    /// Shows a message of a peer in every round while the owner of the lease does something else, each
    /// a little earlier or later than the other; `judge` is called when both are done.
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

    /// A message of a peer, shown while its lease ends and another one takes the same key, is counted
    /// once: for the lease that it ended, or as a doubt that is resolved.
    #[test]
    fn a_message_never_ends_the_next_lease() {
        let next = |slot: &Slot| {
            slot.vacate();
            assert!(slot.take(Phase::Bound, TAG));
        };
        let judge = |slot: &Slot| (slot.state().phase, slot.doubts(TAG)) == (Phase::Bound, 0);
        race(Phase::Bound, next, judge);
    }

    /// A message of a peer, shown while the completion of the binding is, is not lost.
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

    /// Messages of one key, each shown by another thread, resolve as many doubts.
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
