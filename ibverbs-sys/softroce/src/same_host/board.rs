#![forbid(unsafe_code)]
//! What a process publishes for its peers to read.
//!
//! A board has records of one cache line. The first word of a record is odd while nothing is in it that may be
//! used, and grows with every change: who reads the same even number before and after the other words has read what
//! was there at that moment.
//!
//! That a record is still valid while it is acted upon is not this module's matter, but that of [`epoch`](crate::epoch):
//! who takes a record back waits for those who may have read it before.

use std::ops::Deref;

use crate::sync::{AtomicU64, Ordering, fence};

/// A record: a cache line.
#[derive(Debug)]
#[repr(C, align(64))]
pub(super) struct Record([AtomicU64; 8]);

/// Words of a record that mean something.
pub(super) const WORDS: usize = 7;

/// Records, of which all are empty as long as nobody wrote to them.
#[derive(Debug)]
pub(super) struct Board<R>(pub(super) R);

impl<R: Deref<Target = [Record]>> Board<R> {
    /// Puts something in the place of what is in a record; one at a time does that. Nothing happens where there is no such
    /// record.
    pub(super) fn publish(&self, index: usize, content: &[u64; WORDS]) {
        let Some(Record([version, words @ ..])) = self.0.get(index) else {
            return;
        };
        let before = self.retract(index);
        for (word, &value) in words.iter().zip(content) {
            word.store(value, Ordering::Relaxed);
        }
        // Never 0, which is what a record begins with.
        let after = before.wrapping_add(1).max(2);
        version.store(after, Ordering::Release);
    }

    /// Takes back what is in a record. Who reads it from now on finds nothing; for others wait.
    pub(super) fn retract(&self, index: usize) -> u64 {
        let Some(Record([version, ..])) = self.0.get(index) else {
            return 0;
        };
        let value = version.load(Ordering::Relaxed) | 1;
        version.store(value, Ordering::Relaxed);
        // Who sees anything that is written afterwards sees this, too.
        fence(Ordering::Release);
        value
    }

    /// What is in a record, all of one moment.
    pub(super) fn read(&self, index: usize) -> Option<[u64; WORDS]> {
        self.find(index).map(|(_, content)| content)
    }

    /// The same, and the version that it is of.
    pub(super) fn find(&self, index: usize) -> Option<(u64, [u64; WORDS])> {
        let Record([version, words @ ..]) = self.0.get(index)?;
        let before = version.load(Ordering::Acquire);
        if before == 0 || !before.is_multiple_of(2) {
            return None;
        }
        let mut content = [0; WORDS];
        for (value, word) in content.iter_mut().zip(words) {
            *value = word.load(Ordering::Relaxed);
        }
        fence(Ordering::Acquire);
        (version.load(Ordering::Relaxed) == before).then_some((before, content))
    }

    /// Whether what is in a record is still what it was in this version, which somebody has found.
    #[inline]
    pub(super) fn is_current(&self, index: usize, version: u64) -> bool {
        let record = self.0.get(index);
        record.is_some_and(|Record([current, ..])| current.load(Ordering::Acquire) == version)
    }

    /// Returns whether a record has not changed since this version of it was found: bytes that were copied since then are
    /// those that were there before it was taken back.
    pub(super) fn was_current(&self, index: usize, version: u64) -> bool {
        // This fence pairs with the one in `retract`: a thread that has read bytes which were written after that sees the
        // change.
        fence(Ordering::Acquire);
        self.is_current(index, version)
    }
}

#[cfg(test)]
pub(super) fn records(count: usize) -> Vec<Record> {
    let record = |_| Record(std::array::from_fn(|_| AtomicU64::new(0)));
    (0..count).map(record).collect()
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::thread;

    use super::*;

    #[test]
    fn what_is_published_is_read_until_it_is_taken_back() {
        let board = Board(records(3));
        assert_eq!(board.read(1), None);
        for round in 0..10 {
            board.publish(1, &[round; WORDS]);
            assert_eq!(board.read(1), Some([round; WORDS]));
            if round % 2 == 0 {
                board.retract(1);
                board.retract(1);
                assert_eq!(board.read(1), None);
            }
        }
        assert_eq!((board.read(0), board.read(2)), (None, None));
        board.publish(3, &[1; WORDS]);
        assert_eq!((board.read(3), board.retract(3)), (None, 0));
    }

    #[test]
    fn versions_wrap_and_are_never_none() {
        let board = Board(records(1));
        board.0[0].0[0].store(u64::MAX - 1, Ordering::Relaxed);
        for round in 0..3 {
            board.publish(0, &[round; WORDS]);
            assert_eq!(board.read(0), Some([round; WORDS]));
        }
    }

    #[test]
    fn nobody_reads_half_of_a_record() {
        let board = Board(records(1));
        thread::scope(|scope| {
            let writer = scope.spawn(|| {
                for round in 0..2_000 {
                    board.publish(0, &[round; WORDS]);
                }
            });
            while !writer.is_finished() {
                if let Some(content) = board.read(0) {
                    assert_eq!(content, [content[0]; WORDS]);
                }
            }
        });
    }
}

#[cfg(all(test, loom))]
mod models {
    use loom::sync::Arc;
    use loom::thread;

    use super::*;

    #[test]
    fn nobody_reads_half_of_a_record() {
        let mut model = loom::model::Builder::new();
        model.preemption_bound = Some(3);
        model.check(|| {
            let board = Arc::new(Board(records(1)));
            board.publish(0, &[1; WORDS]);
            let other = {
                let board = Arc::clone(&board);
                thread::spawn(move || {
                    board.publish(0, &[2; WORDS]);
                    board.retract(0);
                })
            };
            if let Some(content) = board.read(0) {
                assert_eq!(content, [content[0]; WORDS]);
            }
            other.join().unwrap();
            assert_eq!(board.read(0), None);
        });
    }
}
