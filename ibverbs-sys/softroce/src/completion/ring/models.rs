//! Loom models of the ring: every order in which threads can run, and every value that their loads
//! can return.

use loom::sync::Arc;
use loom::thread;

use super::hold::TooManyEntries;
use super::*;

fn ring(capacity: usize, room: usize) -> Arc<Ring<u64>> {
    Arc::new(Ring::new(capacity, room))
}

impl Ring<u64> {
    fn add(&self, entry: u64) -> Added {
        self.push(entry)
            .unwrap_or_else(|| self.push_all(&[entry]).unwrap().1)
    }

    /// Removes all entries from the ring under test, and returns them in order.
    fn take_all(&self) -> Vec<u64> {
        let mut all = Vec::new();
        while self.poll(2, |&entry| all.push(entry)) > 0 {}
        all
    }
}

/// Checks that no entry of the ring is lost, damaged or out of order. No thread may overwrite a
/// slot (memory for an entry) before it was read, or read a slot before it was written.
#[test]
fn entries_are_removed_in_order_and_complete() {
    loom::model(|| {
        let ring = ring(2, 2);
        let other = Arc::clone(&ring);
        ring.add(0);
        let pusher = thread::spawn(move || {
            other.add(1);
            let third = other.push_all(&[2, 3]);
            third.map_or(0, |(count, _)| count)
        });
        let mut all = Vec::new();
        ring.poll(1, |&entry| all.push(entry));
        let count = pusher.join().unwrap();
        all.extend(ring.take_all());
        let expected: Vec<u64> = (0..2 + count as u64).collect();
        assert_eq!(all, expected);
    });
}

/// Checks that two threads that add entries at the same time do not use the same slot: each entry
/// is added once.
#[test]
fn two_threads_never_add_to_the_same_slot() {
    loom::model(|| {
        let ring = ring(3, 3);
        let other = Arc::clone(&ring);
        let pusher = thread::spawn(move || other.push_all(&[1, 2]).unwrap().0);
        ring.add(7);
        let mut all = Vec::new();
        ring.poll(3, |&entry| all.push(entry));
        let count = pusher.join().unwrap();
        all.extend(ring.take_all());
        all.sort_unstable();
        assert_eq!(all, [&[1, 2][..count], &[7]].concat());
    });
}

/// Checks that each entry is removed once and its slot is reused, if two threads remove entries at
/// the same time.
#[test]
fn each_entry_is_removed_once() {
    loom::model(|| {
        let ring = ring(2, 2);
        ring.add(1);
        ring.add(2);
        let other = Arc::clone(&ring);
        let poller = thread::spawn(move || {
            let mut all = Vec::new();
            other.poll(1, |&entry| all.push(entry));
            all
        });
        let mut all = Vec::new();
        if ring.poll(1, |&entry| all.push(entry)) == 1 {
            ring.add(3);
        }
        let taken = poller.join().unwrap();
        all.extend(taken);
        all.extend(ring.take_all());
        all.sort_unstable();
        assert_eq!(all, [1, 2, 3]);
    });
}

/// Checks that no entry is lost if slots are added to the ring while entries are added and removed.
#[test]
fn growth_loses_nothing() {
    loom::model(|| {
        let ring = ring(2, 1);
        ring.add(1);
        let other = Arc::clone(&ring);
        let pusher = thread::spawn(move || other.add(2));
        let mut all = Vec::new();
        ring.poll(1, |&entry| all.push(entry));
        pusher.join().unwrap();
        all.extend(ring.take_all());
        assert_eq!(all, [1, 2]);
    });
}

/// Checks the case that the number of slots of the ring is reduced while another thread is removing
/// an entry. The reduction must wait for that thread.
#[test]
fn shrinking_waits_for_readers() {
    loom::model(|| {
        let ring = ring(2, 2);
        ring.add(1);
        ring.add(2);
        let other = Arc::clone(&ring);
        let poller = thread::spawn(move || {
            let mut all = Vec::new();
            other.poll(1, |&entry| all.push(entry));
            all
        });
        let resized = ring.resize(1);
        let mut all = poller.join().unwrap();
        all.extend(ring.take_all());
        assert_eq!(all, [1, 2]);
        if resized == Err(TooManyEntries) {
            assert_eq!(ring.resize(1), Ok(()));
        }
        ring.add(3);
        assert!(matches!(ring.push_all(&[4]), Err(AddError::Full(_))));
    });
}

/// Checks that [`Ring::retain`], which removes certain entries from the ring, loses no other entry
/// while another thread removes the first entry.
#[test]
fn removal_out_of_order_keeps_the_other_entries() {
    loom::model(|| {
        let ring = ring(3, 3);
        for entry in [10, 1, 11] {
            ring.add(entry);
        }
        let other = Arc::clone(&ring);
        let poller = thread::spawn(move || {
            let mut all = Vec::new();
            other.poll(1, |&entry| all.push(entry));
            all
        });
        ring.retain(|&entry| entry < 10);
        ring.add(2);
        let mut all = poller.join().unwrap();
        all.extend(ring.take_all());
        assert!(all == [1, 2] || all == [10, 1, 2], "{all:?}");
    });
}

/// Checks that [`Ring::retain`], which removes certain entries, keeps an entry that another thread
/// is adding at the same time.
#[test]
fn entries_added_during_a_removal_stay() {
    loom::model(|| {
        let ring = ring(2, 2);
        ring.add(10);
        let other = Arc::clone(&ring);
        let pusher = thread::spawn(move || other.add(1));
        ring.retain(|&entry| entry < 10);
        pusher.join().unwrap();
        ring.add(2);
        assert_eq!(ring.take_all(), [1, 2]);
    });
}

/// Checks that no entry is missed when a thread requests a completion event while another thread
/// adds an entry. Either the first thread finds the entry, or the second thread sees the request
/// and raises the event.
#[test]
fn a_mark_is_seen_or_the_entry_is_found() {
    loom::model(|| {
        let ring = ring(2, 2);
        let other = Arc::clone(&ring);
        let pusher = thread::spawn(move || other.add(1));
        let mark = ring.mark(TailFlags::FIRST);
        ring.wait_for_claims();
        let is_found = !ring.take_all().is_empty();
        let added = pusher.join().unwrap();
        let is_told = added.marks().contains(TailFlags::FIRST);
        assert!(is_found || is_told);
        assert_eq!(is_told, !added.is_before(mark));
    });
}

/// Checks that a request for a completion event is not lost while the ring grows. A thread adds an
/// entry, for which the ring gets more slots, while another thread sets the request flag. Either
/// the adding thread sees the flag, or the other thread finds the entry.
#[test]
fn a_mark_is_seen_while_the_ring_grows() {
    // All orders would take too long.
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(3);
    model.check(|| {
        let ring = ring(2, 1);
        ring.add(0);
        let other = Arc::clone(&ring);
        let pusher = thread::spawn(move || other.add(1));
        ring.mark(TailFlags::SECOND);
        ring.wait_for_claims();
        let count = ring.take_all().len();
        let added = pusher.join().unwrap();
        assert!(count == 2 || added.marks().contains(TailFlags::SECOND));
    });
}

/// Checks that exactly one of two threads closes the ring if both find it full and try to close it.
#[test]
fn a_full_ring_is_closed_once() {
    loom::model(|| {
        let ring = ring(1, 1);
        ring.add(1);
        let close = |ring: &Ring<u64>| match ring.push_all(&[2]) {
            Err(AddError::Full(full)) => ring.close(full),
            _ => false,
        };
        let other = Arc::clone(&ring);
        let pusher = thread::spawn(move || close(&other));
        let mine = close(&ring);
        let theirs = pusher.join().unwrap();
        assert!(mine != theirs);
        assert_eq!(ring.take_all(), [1]);
        assert_eq!(ring.push_all(&[3]), Err(AddError::Closed));
    });
}
