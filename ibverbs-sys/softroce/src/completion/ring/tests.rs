use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::AtomicBool;
use std::thread;

use proptest::collection::vec;
use proptest::prelude::*;

use super::*;

fn rest(ring: &Ring<u64>) -> Vec<u64> {
    let mut all = Vec::new();
    while ring.poll(3, |&entry| all.push(entry)) > 0 {}
    all
}

#[derive(Clone, Debug)]
enum Step {
    Push(usize),
    Poll(usize),
    Remove(u64),
    Resize(usize),
    Mark(bool),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => (1_usize..9).prop_map(Step::Push),
        4 => (0_usize..9).prop_map(Step::Poll),
        1 => (1_u64..4).prop_map(Step::Remove),
        1 => (1_usize..20).prop_map(Step::Resize),
        1 => any::<bool>().prop_map(Step::Mark),
    ]
}

proptest! {
    /// Checks that the ring behaves like a bounded queue, for all capacities and initial numbers of
    /// slots.
    #[test]
    fn entries_are_removed_in_order_of_addition(capacity in 1_usize..20, room in 1_usize..20, steps in vec(step(), 1..200)) {
        let ring = Ring::new(capacity, room);
        let (mut model, mut capacity, mut marked, mut next) = (VecDeque::new(), capacity, false, 0);
        for step in steps {
            match step {
                Step::Push(count) => {
                    let entries: Vec<u64> = (next..).take(count).collect();
                    next += count as u64;
                    let mut left = &entries[..];
                    while !left.is_empty() {
                        match ring.push_all(left) {
                            Ok((count, added)) => {
                                prop_assert_eq!(added.marks().is_empty(), !marked);
                                model.extend(&left[..count]);
                                left = &left[count..];
                            }
                            Err(refused) => {
                                prop_assert!(matches!(refused, AddError::Full(_)));
                                prop_assert_eq!(model.len(), capacity);
                                break;
                            }
                        }
                    }
                }
                Step::Poll(limit) => {
                    let mut taken = Vec::new();
                    let count = ring.poll(limit, |&entry| taken.push(entry));
                    let expected: Vec<u64> = model.drain(..limit.min(model.len())).collect();
                    prop_assert_eq!(count, taken.len());
                    prop_assert_eq!(taken, expected);
                }
                Step::Remove(divisor) => {
                    ring.retain(|entry| !entry.is_multiple_of(divisor));
                    model.retain(|entry| !entry.is_multiple_of(divisor));
                }
                Step::Resize(wanted) => {
                    let result = ring.resize(wanted);
                    prop_assert_eq!(result.is_ok(), wanted >= model.len());
                    if result.is_ok() {
                        capacity = wanted;
                    }
                }
                Step::Mark(on) => {
                    if on {
                        ring.mark(TailFlags::SECOND);
                    } else {
                        ring.unmark();
                    }
                    marked = on;
                }
            }
            prop_assert_eq!(ring.is_empty(), model.is_empty());
            prop_assert_eq!(ring.len(), model.len());
        }
        prop_assert_eq!(rest(&ring), Vec::from(model));
    }
}

#[test]
fn a_closed_ring_accepts_no_entries_and_keeps_the_present_entries() {
    let ring = Ring::new(2, 2);
    assert_eq!(ring.push_all(&[1, 2, 3]).unwrap().0, 2);
    let Err(AddError::Full(full)) = ring.push_all(&[4]) else {
        panic!("there is no room");
    };
    let Err(AddError::Full(before)) = ring.push_all(&[4]) else {
        panic!("there is no room");
    };
    assert!(ring.close(full));
    assert!(!ring.close(before), "it is closed");
    assert_eq!(rest(&ring), [1, 2]);
    assert_eq!(ring.push_all(&[5]), Err(AddError::Closed));
    ring.resize(7).unwrap();
    assert_eq!(ring.push_all(&[5]), Err(AddError::Closed));
}

#[test]
fn a_full_ring_has_space_after_a_removal() {
    let ring = Ring::new(1, 1);
    ring.push_all(&[1]).unwrap();
    let Err(AddError::Full(full)) = ring.push_all(&[2]) else {
        panic!("there is no room");
    };
    assert_eq!(rest(&ring), [1]);
    ring.push_all(&[2]).unwrap();
    assert!(!ring.close(full), "that was then");
    assert_eq!(rest(&ring), [2]);
}

/// Checks that the entries that a consumer has claimed are removed, and their slots freed, if the
/// consumer panics.
#[test]
fn claimed_entries_are_removed_after_a_panic() {
    let ring = Ring::new(4, 4);
    ring.push_all(&[1, 2, 3, 4]).unwrap();
    let poll = || ring.poll(3, |&entry| assert_ne!(entry, 2, "as planned"));
    assert!(catch_unwind(AssertUnwindSafe(poll)).is_err());
    assert_eq!(ring.push_all(&[5, 6, 7, 8]).unwrap().0, 3);
    assert_eq!(rest(&ring), [4, 5, 6, 7]);
}

/// Checks that threads which add, remove and resize at the same time lose no entry, and that the
/// entries of each producer stay in order.
#[test]
fn no_entry_is_lost_between_threads() {
    const PER_THREAD: u64 = 20_000;
    const PUSHERS: u64 = 3;
    /// Flag of entries that are removed out of order.
    const REMOVED: u64 = 1 << 40;
    let ring = Ring::new(64, 1);
    let done = AtomicBool::new(false);
    let (ring, done) = (&ring, &done);
    let taken: Vec<Vec<u64>> = thread::scope(|scope| {
        let pollers: Vec<_> = (1..3)
            .map(|limit| {
                scope.spawn(move || {
                    let mut all = Vec::new();
                    loop {
                        let is_over = done.load(Ordering::Acquire);
                        if ring.poll(limit * 3, |&entry| all.push(entry)) == 0 {
                            if is_over {
                                return all;
                            }
                            thread::yield_now();
                        }
                    }
                })
            })
            .collect();
        scope.spawn(move || {
            for capacity in (32..64).cycle() {
                if done.load(Ordering::Acquire) {
                    return;
                }
                let _ = ring.resize(capacity);
                ring.retain(|&entry| entry & REMOVED == 0);
                thread::yield_now();
            }
        });
        let pushers: Vec<_> = (0..PUSHERS)
            .map(|pusher| {
                scope.spawn(move || {
                    for number in 0..PER_THREAD {
                        let entry = pusher << 32 | number;
                        let both = [entry, entry | REMOVED];
                        let mut left = &both[..];
                        while !left.is_empty() {
                            match ring.push_all(left) {
                                Ok((count, _)) => left = &left[count..],
                                Err(_) => thread::yield_now(),
                            }
                        }
                    }
                })
            })
            .collect();
        for pusher in pushers {
            pusher.join().unwrap();
        }
        done.store(true, Ordering::Release);
        pollers
            .into_iter()
            .map(|poller| poller.join().unwrap())
            .collect()
    });
    for all in &taken {
        for pusher in 0..PUSHERS {
            let of = |entry: &&u64| **entry >> 32 == pusher;
            assert!(all.iter().filter(of).is_sorted(), "out of order");
        }
    }
    let mut all: Vec<u64> = taken.into_iter().flatten().collect();
    all.retain(|entry| entry & REMOVED == 0);
    all.sort_unstable();
    let expected =
        (0..PUSHERS).flat_map(|pusher| (0..PER_THREAD).map(move |number| pusher << 32 | number));
    assert!(all.into_iter().eq(expected));
}
