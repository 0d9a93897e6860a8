#![forbid(unsafe_code)]
//! Tables that a process publishes and its peers read without a lock.
//!
//! A [`RecordArray`] is an array of records of one cache line each. The first word of a record is
//! its version, as in a sequence lock. The version is odd while the record has no valid content,
//! and grows with every change. A reader has read a consistent record if it finds the same even
//! version before and after it reads the other words.
//!
//! This module does not ensure that the published memory stays valid while a peer uses it.
//! [`epoch`](crate::epoch) does: a thread that retracts a record then waits for the peers that may
//! have read the record before.

use std::ops::Deref;

use crate::sync::{AtomicU64, Ordering, fence};

/// A record that fills one cache line of a shared table: the version, then [`WORDS`] words of
/// content.
#[derive(Debug)]
#[repr(C, align(64))]
pub(super) struct Record([AtomicU64; 8]);

/// Number of content words in a [`Record`] of a shared table: all eight words of its cache line
/// except the version.
pub(super) const WORDS: usize = 7;

/// Array of records in shared memory. A record is empty until it is published.
#[derive(Debug)]
pub(super) struct RecordArray<R>(pub(super) R);

impl<R: Deref<Target = [Record]>> RecordArray<R> {
    /// Replaces the content of the record at `index`. Also changes the version of the record, so
    /// that concurrent readers notice the change. Does nothing if `index` is out of range. Only one
    /// thread at a time may change a record.
    pub(super) fn publish(&self, index: usize, content: &[u64; WORDS]) {
        let Some(Record([version, words @ ..])) = self.0.get(index) else {
            return;
        };
        let before = self.retract(index);
        for (word, &value) in words.iter().zip(content) {
            word.store(value, Ordering::Relaxed);
        }
        // The new version is never 0, which means that a record was never published.
        let after = before.wrapping_add(1).max(2);
        version.store(after, Ordering::Release);
    }

    /// Marks the record at `index` as empty, so that later reads return `None`. Returns the new
    /// version of the record, or 0 if `index` is out of range. Afterwards the caller must wait for
    /// peer processes that have read the record before, because they can still be using its
    /// content.
    pub(super) fn retract(&self, index: usize) -> u64 {
        let Some(Record([version, ..])) = self.0.get(index) else {
            return 0;
        };
        // In one step, because another thread may publish the record at the same time.
        let value = version.fetch_or(1, Ordering::Relaxed) | 1;
        // A peer that sees any later write of this thread also sees this version.
        fence(Ordering::Release);
        value
    }

    /// Returns the content of the record at `index` in this array, or `None` if the record is empty
    /// or changes during the read.
    pub(super) fn read(&self, index: usize) -> Option<[u64; WORDS]> {
        self.find(index).map(|(_, content)| content)
    }

    /// Returns the version and the content of the record at `index`, or `None` if the record is
    /// empty or changes during the read.
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

    /// Returns whether the record at `index` still has the version `version`. The caller got the
    /// version from [`find`](Self::find). Another version means that the record was changed or
    /// retracted.
    #[inline]
    pub(super) fn is_current(&self, index: usize, version: u64) -> bool {
        let record = self.0.get(index);
        record.is_some_and(|Record([current, ..])| current.load(Ordering::Acquire) == version)
    }

    /// Returns whether the record at `index` still has the version `version`, and so the content,
    /// that [`find`](Self::find) returned. If so, the record was not retracted while this thread
    /// copied bytes of the memory that the record describes, and these bytes are valid.
    pub(super) fn has_kept_version(&self, index: usize, version: u64) -> bool {
        // This fence pairs with the one in `retract`: a thread that has copied bytes which were
        // written after the retraction sees the new version.
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
    fn a_published_record_is_read_until_withdrawn() {
        let record_array = RecordArray(records(3));
        assert_eq!(record_array.read(1), None);
        for round in 0..10 {
            record_array.publish(1, &[round; WORDS]);
            assert_eq!(record_array.read(1), Some([round; WORDS]));
            if round % 2 == 0 {
                record_array.retract(1);
                record_array.retract(1);
                assert_eq!(record_array.read(1), None);
            }
        }
        assert_eq!((record_array.read(0), record_array.read(2)), (None, None));
        record_array.publish(3, &[1; WORDS]);
        assert_eq!((record_array.read(3), record_array.retract(3)), (None, 0));
    }

    #[test]
    fn versions_wrap_and_are_never_zero() {
        let record_array = RecordArray(records(1));
        record_array.0[0].0[0].store(u64::MAX - 1, Ordering::Relaxed);
        for round in 0..3 {
            record_array.publish(0, &[round; WORDS]);
            assert_eq!(record_array.read(0), Some([round; WORDS]));
        }
    }

    #[test]
    fn no_reader_sees_a_partly_written_record() {
        let record_array = RecordArray(records(1));
        thread::scope(|scope| {
            let writer = scope.spawn(|| {
                for round in 0..2_000 {
                    record_array.publish(0, &[round; WORDS]);
                }
            });
            while !writer.is_finished() {
                if let Some(content) = record_array.read(0) {
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
    fn no_reader_sees_a_partly_written_record() {
        let mut model = loom::model::Builder::new();
        model.preemption_bound = Some(3);
        model.check(|| {
            let record_array = Arc::new(RecordArray(records(1)));
            record_array.publish(0, &[1; WORDS]);
            let other = {
                let record_array = Arc::clone(&record_array);
                thread::spawn(move || {
                    record_array.publish(0, &[2; WORDS]);
                    record_array.retract(0);
                })
            };
            if let Some(content) = record_array.read(0) {
                assert_eq!(content, [content[0]; WORDS]);
            }
            other.join().unwrap();
            assert_eq!(record_array.read(0), None);
        });
    }
}
