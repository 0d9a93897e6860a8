//! Loom models of the slot that stores the state of a lease. The models explore every interleaving
//! of the lease's owner with the threads that process completions, and every value that their loads
//! may return.
//!
//! ```sh
//! RUSTFLAGS="--cfg loom" cargo test --release -p rdma-core --lib ffi::lease_slot
//! ```

use loom::sync::Arc;
use loom::thread::{self, JoinHandle};

use super::{Phase, Slot};

const TAG: u8 = 7;

/// Creates a registry slot, occupied by a lease (memory that peers access through a window) in the
/// phase `phase`. The slot will ignore the next `doubts` completions that report the lease's key as
/// invalidated.
fn slot(phase: Phase, doubts: usize) -> Arc<Slot> {
    let slot = Slot::default();
    slot.doubt(TAG);
    slot.withdraw(TAG);
    (0..doubts).for_each(|_| slot.doubt(TAG));
    assert!(slot.take(phase, TAG));
    Arc::new(slot)
}

/// Starts a thread that calls [`Slot::ended_by_peer`] on `slot`, to report that a peer has
/// invalidated the window key of the slot's lease.
fn report_invalidation(slot: &Arc<Slot>) -> JoinHandle<()> {
    let slot = Arc::clone(slot);
    thread::spawn(move || slot.ended_by_peer(TAG))
}

fn assert_is(slot: &Slot, phase: Phase, doubts: u8) {
    assert_eq!((slot.state().phase, slot.doubts(TAG)), (phase, doubts));
}

#[test]
fn a_message_never_ends_the_next_lease() {
    loom::model(|| {
        let slot = slot(Phase::Bound, 0);
        let teller = report_invalidation(&slot);
        slot.vacate();
        assert!(slot.take(Phase::Bound, TAG));
        teller.join().unwrap();
        assert_is(&slot, Phase::Bound, 0);
    });
}

#[test]
fn messages_of_two_leases_never_end_a_third() {
    loom::model(|| {
        let slot = slot(Phase::Bound, 1);
        let tellers = [report_invalidation(&slot), report_invalidation(&slot)];
        slot.vacate();
        assert!(slot.take(Phase::Bound, TAG));
        tellers
            .into_iter()
            .for_each(|teller| teller.join().unwrap());
        assert_is(&slot, Phase::Bound, 0);
    });
}

#[test]
fn one_of_two_messages_resolves_a_doubt_and_the_other_ends_the_lease() {
    loom::model(|| {
        let slot = slot(Phase::Bound, 1);
        let teller = report_invalidation(&slot);
        slot.ended_by_peer(TAG);
        teller.join().unwrap();
        assert_is(&slot, Phase::Free, 0);
    });
}

#[test]
fn a_message_ends_a_binding_whose_request_completes() {
    loom::model(|| {
        let slot = slot(Phase::Binding, 0);
        let teller = report_invalidation(&slot);
        let before = slot.state();
        let mut after = before;
        after.phase = Phase::Bound;
        if before.phase == Phase::Binding {
            slot.change(before, after);
        }
        teller.join().unwrap();
        assert_is(&slot, Phase::Free, 0);
    });
}

/// Checks that a late report of an invalidated key does not end the next lease (memory that peers
/// access) in the same slot. The slot must ignore the report, because the report is for the lease
/// that has just ended. Another thread creates the next lease, because the device can assign the
/// number of a freed window to any thread.
#[test]
fn the_next_lease_sees_earlier_doubts() {
    loom::model(|| {
        let slot = slot(Phase::Bound, 0);
        let first = slot.state();
        let next = {
            let slot = Arc::clone(&slot);
            thread::spawn(move || {
                slot.take(Phase::Bound, TAG).then(|| {
                    assert_eq!(slot.state().generation, first.generation + 1);
                    slot.ended_by_peer(TAG);
                    assert_is(&slot, Phase::Bound, 0);
                })
            })
        };
        assert_eq!(slot.vacate(), first);
        next.join().unwrap();
    });
}
