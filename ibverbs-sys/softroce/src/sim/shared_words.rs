use std::collections::HashMap;

use crate::proto::{AccessFlags, Remote};

use super::memory::Memory;

/// Number of memory words for each of the two kinds of atomics: fetch-and-add, and
/// compare-and-swap. The number is small, so that several requesters often change the same word.
pub(crate) const WORDS: usize = 3;

/// Memory words of one simulated host that many queue pairs change by atomic operations. At the
/// end, the results of the operations show whether each operation was executed exactly once.
#[derive(Debug)]
pub(crate) struct SharedWords {
    key: u32,
    base: u64,
    added: [Added; WORDS],
    swapped: [Swapped; WORDS],
}

#[derive(Debug, Default)]
struct Added {
    /// Previous value and addend of each completed addition.
    done: Vec<(u64, u64)>,
    /// Sum of the addends of failed operations, which may or may not have been executed.
    maybe: u64,
}

#[derive(Debug, Default)]
struct Swapped {
    /// For each swap that found the compared value: the compared value (key) and the new value.
    done: HashMap<u64, u64>,
    maybe: HashMap<u64, Vec<u64>>,
    /// Values found by swaps that did not find the compared value.
    refused: Vec<u64>,
}

/// An atomic operation of a simulated requester on one of the [`SharedWords`] (memory words that
/// several requesters change).
#[derive(Clone, Copy, Debug)]
pub(crate) enum Change {
    Add {
        word: usize,
        add: u64,
    },
    Swap {
        word: usize,
        compare: u64,
        swap: u64,
    },
}

impl Change {
    /// Returns the index of the word that the operation changes. Words for fetch-and-add and words
    /// for compare-and-swap are numbered separately.
    pub(crate) fn word(self) -> usize {
        match self {
            Self::Add { word, .. } | Self::Swap { word, .. } => word,
        }
    }

    /// Returns the value of the word after this atomic operation, if the word had the value `was`
    /// before.
    fn result(self, was: u64) -> u64 {
        match self {
            Self::Add { add, .. } => was + add,
            Self::Swap { compare, swap, .. } if was == compare => swap,
            Self::Swap { .. } => was,
        }
    }

    /// Returns the compare value for the requester's next compare-and-swap of the same word: the
    /// value of the word after this operation. `was` is the value that this operation has found.
    /// Returns `None` if this operation is a fetch-and-add.
    pub(crate) fn next_compare(self, was: u64) -> Option<u64> {
        matches!(self, Self::Swap { .. }).then(|| self.result(was))
    }
}

impl SharedWords {
    pub(crate) fn new(memory: &Memory) -> Self {
        let access = AccessFlags::LOCAL_WRITE | AccessFlags::REMOTE_ATOMIC;
        let base = 0x7000_0000;
        Self {
            key: memory.register(vec![0; 2 * WORDS * 8], base, access),
            base,
            added: Default::default(),
            swapped: Default::default(),
        }
    }

    /// Returns the address and the remote key of the memory word that the atomic operation `change`
    /// accesses.
    pub(crate) fn remote(&self, change: Change) -> Remote {
        let index = match change {
            Change::Add { word, .. } => word,
            Change::Swap { word, .. } => WORDS + word,
        };
        Remote {
            address: self.base + index as u64 * 8,
            key: self.key,
        }
    }

    /// Records that the atomic operation `change` has completed and has returned `was`, the
    /// previous value of the word. Fails if an earlier compare-and-swap has replaced the same
    /// value. No value occurs twice in a word, so only one of the two operations can have
    /// succeeded.
    pub(crate) fn record_completed(&mut self, change: Change, was: u64) -> Result<(), String> {
        match change {
            Change::Add { word, add } => self.added[word].done.push((was, add)),
            Change::Swap {
                word,
                compare,
                swap,
            } => {
                let word = &mut self.swapped[word];
                if was != compare {
                    word.refused.push(was);
                } else if word.done.insert(compare, swap).is_some() {
                    return Err(format!("two swaps both found {compare:#x}"));
                }
            }
        }
        Ok(())
    }

    /// Records that the atomic operation `change` has failed. The operation was perhaps executed
    /// before the failure, so [`check`](Self::check) accepts both cases.
    pub(crate) fn record_failed(&mut self, change: Change) {
        match change {
            Change::Add { word, add } => self.added[word].maybe += add,
            Change::Swap {
                word,
                compare,
                swap,
            } => {
                let maybe = &mut self.swapped[word].maybe;
                maybe.entry(compare).or_default().push(swap);
            }
        }
    }

    /// Checks that each completed operation was executed exactly once. The evidence is the results
    /// of all operations and the final values of the words. A failed operation can have been
    /// executed or not.
    pub(crate) fn check(&self, memory: &Memory) -> Result<(), String> {
        let values = memory.inspect(self.key, |bytes| {
            let mut values = [0; 2 * WORDS];
            for (value, bytes) in values.iter_mut().zip(bytes.chunks_exact(8)) {
                *value = u64::from_ne_bytes(bytes.try_into().unwrap_or_default());
            }
            values
        });
        for (word, &value) in self.added.iter().zip(&values[..WORDS]) {
            word.check(value)?;
        }
        for (word, &value) in self.swapped.iter().zip(&values[WORDS..]) {
            word.check(value)?;
        }
        Ok(())
    }
}

impl Added {
    /// Checks that each completed fetch-and-add operation on one word was executed exactly once.
    /// `end` is the final value of the word, which was zero at first. Each operation must have
    /// found the sum of the operations before it. Gaps between these values are allowed only up to
    /// the sum of the failed operations, because a failed operation can have been executed.
    fn check(&self, end: u64) -> Result<(), String> {
        let mut done = self.done.clone();
        done.sort_unstable();
        done.push((end, 0));
        let mut sum = 0;
        let mut gaps = 0;
        for (was, add) in done {
            let Some(gap) = was.checked_sub(sum) else {
                return Err(format!("an addition that found {was} overlaps another"));
            };
            gaps += gap;
            sum = was + add;
        }
        if gaps > self.maybe {
            return Err(format!("{gaps} was added more than once or by nobody"));
        }
        Ok(())
    }
}

impl Swapped {
    /// Checks that the compare-and-swap operations on one word form a chain from zero to the final
    /// value `end`: each operation must have found the new value of the previous operation. The
    /// chain can include failed operations, because a failed operation was perhaps executed.
    fn check(&self, end: u64) -> Result<(), String> {
        let mut seen = vec![0];
        let mut done = 0;
        let mut value = 0;
        loop {
            if let Some(&next) = self.done.get(&value) {
                done += 1;
                value = next;
            } else if value == end && done == self.done.len() {
                break;
            } else {
                // A failed swap was executed before it failed. The new value of the swap is either
                // the final value or the compared value of another swap.
                let all = self.maybe.get(&value).map_or(&[][..], Vec::as_slice);
                let leads_on = |next: &&u64| {
                    **next == end || self.done.contains_key(next) || self.maybe.contains_key(next)
                };
                match all.iter().find(leads_on) {
                    Some(&next) => value = next,
                    None => return Err(format!("the swaps end at {value:#x}, not {end:#x}")),
                }
            }
            seen.push(value);
        }
        match self.refused.iter().find(|was| !seen.contains(was)) {
            Some(was) => Err(format!("a swap found {was:#x}, which never was there")),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn concurrent_additions_have_disjoint_results() {
        let added = |done: &[(u64, u64)], maybe, end| {
            let done = done.to_vec();
            Added { done, maybe }.check(end).is_ok()
        };
        assert!(added(&[(5, 2), (0, 5)], 0, 7));
        assert!(!added(&[(5, 2), (0, 5)], 0, 12), "one was done twice");
        assert!(!added(&[(5, 2), (0, 6)], 0, 8), "one was lost");
        assert!(!added(&[(5, 2), (5, 2)], 0, 9));
        assert!(added(&[(8, 2), (0, 5)], 3, 10));
        assert!(added(&[(5, 2), (0, 5)], 3, 7));
        assert!(!added(&[(8, 2), (0, 5)], 3, 13));
    }

    #[test]
    fn swaps_form_a_chain() {
        let swapped = |done: &[(u64, u64)], maybe: &[(u64, u64)], refused: &[u64], end| {
            let mut word = Swapped {
                done: done.iter().copied().collect(),
                refused: refused.to_vec(),
                ..Swapped::default()
            };
            for &(compare, swap) in maybe {
                word.maybe.entry(compare).or_default().push(swap);
            }
            word.check(end).is_ok()
        };
        assert!(swapped(&[(2, 3), (0, 2)], &[], &[2, 0, 3], 3));
        assert!(!swapped(&[(2, 3), (0, 2)], &[], &[], 2));
        assert!(!swapped(&[(2, 3), (0, 2)], &[], &[7], 3));
        assert!(!swapped(&[(5, 3), (0, 2)], &[], &[], 3));
        assert!(swapped(&[(5, 3), (0, 2)], &[(2, 4), (2, 5)], &[], 3));
        assert!(swapped(&[(0, 2)], &[(2, 5)], &[], 2));
        assert!(swapped(&[(0, 2)], &[(2, 5)], &[], 5));
    }
}
