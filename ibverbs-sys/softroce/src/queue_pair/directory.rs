use std::collections::HashMap;
use std::fmt;
use std::hash::{BuildHasherDefault, Hasher};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use parking_lot::RwLock;

use super::QueuePair;
use crate::limits::MAX_QP;

/// The queue pairs of a NIC by their numbers.
///
/// The four high bits of a number are the slot of the NIC's port, so that a peer knows from the
/// number where to send. Below them numbers are taken in turn from a random start: one comes again
/// as late as possible, and a late packet for a queue pair that is gone finds nobody.
pub struct Directory<T = QueuePair> {
    slot: u32,
    next: AtomicU32,
    queue_pairs: RwLock<HashMap<u32, Arc<T>, BuildHasherDefault<Spread>>>,
    /// Another one after each change.
    version: AtomicU64,
}

/// What was found last.
#[derive(Debug)]
pub struct Recent<T = QueuePair> {
    number: u32,
    version: u64,
    found: Option<Arc<T>>,
}

/// There are as many queue pairs as there may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("there are no more queue pairs")]
pub struct Exhausted;

/// Spreads numbers over a table. They are given out here, so nobody can choose them to be alike.
#[derive(Debug, Default)]
struct Spread(u64);

impl Hasher for Spread {
    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|&byte| self.write_u32(byte.into()));
    }

    fn write_u32(&mut self, number: u32) {
        // Fibonacci hashing: 2^64 divided by the golden ratio.
        self.0 = (self.0 ^ u64::from(number)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    }

    fn finish(&self) -> u64 {
        self.0
    }
}

/// Bits below the slot.
const NUMBER_BITS: u32 = 20;

/// How many numbers a slot has.
const NUMBERS: u32 = 1 << NUMBER_BITS;

/// What a queue pair's number never is: those of the management queue pairs, and the one that says
/// multicast (IBTA 9.2.2, 9.6.3).
const RESERVED: [u32; 3] = [0, 1, 0xff_ffff];

impl<T> Directory<T> {
    /// An empty one. `start` is where the numbers begin.
    pub fn new(slot: u8, start: u32) -> Self {
        Self {
            slot: u32::from(slot & 0xf) << NUMBER_BITS,
            next: AtomicU32::new(start % NUMBERS),
            queue_pairs: RwLock::default(),
            version: AtomicU64::new(0),
        }
    }

    /// Makes a queue pair that knows its number, and lists it.
    pub fn insert<E: From<Exhausted>>(
        &self,
        make: impl FnOnce(u32) -> Result<Arc<T>, E>,
    ) -> Result<Arc<T>, E> {
        let mut queue_pairs = self.queue_pairs.write();
        if queue_pairs.len() >= MAX_QP {
            return Err(Exhausted.into());
        }
        // There are far more numbers than there may be queue pairs.
        let number = (0..NUMBERS)
            .map(|_| self.slot | (self.next.fetch_add(1, Ordering::Relaxed) % NUMBERS))
            .find(|number| !RESERVED.contains(number) && !queue_pairs.contains_key(number))
            .ok_or(Exhausted)?;
        let queue_pair = make(number)?;
        queue_pairs.insert(number, Arc::clone(&queue_pair));
        self.version.fetch_add(1, Ordering::Release);
        Ok(queue_pair)
    }

    /// The queue pair with this number.
    pub fn find(&self, number: u32) -> Option<Arc<T>> {
        self.queue_pairs.read().get(&number).cloned()
    }

    /// The same, for one who mostly looks for the one that he found last: then nothing is locked, nor counted.
    #[inline]
    pub fn find_again<'r>(&self, number: u32, recent: &'r mut Recent<T>) -> Option<&'r Arc<T>> {
        let version = self.version.load(Ordering::Acquire);
        if (recent.number, recent.version) != (number, version) {
            *recent = Recent {
                number,
                version,
                found: self.find(number),
            };
        }
        recent.found.as_ref()
    }

    /// Takes a queue pair off the list: packets no longer find it.
    pub fn remove(&self, number: u32) -> Option<Arc<T>> {
        let mut queue_pairs = self.queue_pairs.write();
        self.version.fetch_add(1, Ordering::Release);
        queue_pairs.remove(&number)
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.queue_pairs.read().len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// All of them, as they are at this moment, in no order.
    pub fn all(&self) -> Vec<Arc<T>> {
        self.queue_pairs.read().values().cloned().collect()
    }
}

impl<T> Default for Recent<T> {
    fn default() -> Self {
        Self {
            number: 0,
            version: 0,
            found: None,
        }
    }
}

impl<T> fmt::Debug for Directory<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Directory")
            .field("slot", &(self.slot >> NUMBER_BITS))
            .field("queue_pairs", &self.len())
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::{Directory, Exhausted, NUMBERS, Recent};
    use crate::limits::MAX_QP;

    fn insert(directory: &Directory<u32>) -> Result<u32, Exhausted> {
        directory
            .insert(|number| Ok(Arc::new(number)))
            .map(|number| *number)
    }

    #[test]
    fn numbers_are_of_the_slot_and_never_reserved() {
        let directory = Directory::new(0, NUMBERS - 1);
        let numbers: Vec<_> = (0..3).map(|_| insert(&directory).unwrap()).collect();
        assert_eq!(numbers, [0xf_ffff, 2, 3]);

        let directory = Directory::new(15, NUMBERS - 2);
        let numbers: Vec<_> = (0..2).map(|_| insert(&directory).unwrap()).collect();
        assert_eq!(numbers, [0xff_fffe, 0xf0_0000]);
    }

    #[test]
    fn a_number_comes_again_only_after_all_others() {
        let directory = Directory::new(2, 100);
        let first = insert(&directory).unwrap();
        assert_eq!(directory.find(first).as_deref(), Some(&first));
        assert!(directory.remove(first).is_some());
        assert!(directory.remove(first).is_none());
        assert!(directory.find(first).is_none());
        for _ in 1..NUMBERS {
            let number = insert(&directory).unwrap();
            assert_ne!(number, first);
            directory.remove(number);
        }
        assert_eq!(insert(&directory), Ok(first));
    }

    #[test]
    fn what_was_found_last_is_found_again_until_something_changes() {
        let directory = Directory::new(3, 5);
        let (one, other) = (insert(&directory).unwrap(), insert(&directory).unwrap());
        let mut recent = Recent::default();
        for number in [one, one, other, one] {
            assert_eq!(
                directory.find_again(number, &mut recent).unwrap().as_ref(),
                &number
            );
        }
        // It is no longer there, also where it was found last.
        directory.remove(one);
        assert_eq!(directory.find_again(one, &mut recent), None);
        // Who comes is found, also where nobody was found last.
        let next = other + 1;
        assert_eq!(directory.find_again(next, &mut recent), None);
        assert_eq!(insert(&directory), Ok(next));
        assert!(directory.find_again(next, &mut recent).is_some());
    }

    #[test]
    fn there_is_a_limit_and_what_was_not_made_is_not_listed() {
        let directory = Directory::new(1, 7);
        assert!(directory.insert(|_| Err::<Arc<u32>, _>(Exhausted)).is_err());
        assert!(directory.is_empty());
        for _ in 0..MAX_QP {
            insert(&directory).unwrap();
        }
        assert_eq!(insert(&directory), Err(Exhausted));
        assert_eq!(directory.len(), MAX_QP);
        directory.remove(0x10_0009);
        assert!(insert(&directory).is_ok());
    }
}
