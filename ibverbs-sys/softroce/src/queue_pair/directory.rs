use std::collections::HashMap;
use std::fmt;
use std::hash::{BuildHasherDefault, Hasher};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use parking_lot::RwLock;

use super::QueuePair;
use crate::limits::MAX_QP;
use crate::number;
use crate::random::Permutation;

/// Table of the queue pairs of a NIC, found by their numbers.
///
/// The eight high bits of a number identify the NIC's UDP port, so a peer finds the port from the
/// number. The low 16 bits are assigned in a random order that contains each value once. So other
/// processes cannot predict the numbers. A number is also reused as late as possible, so late
/// packets for a destroyed queue pair are dropped. A number is skipped if its entry in the table is
/// in use.
///
/// The low bits of consecutively assigned numbers differ. Threads use these bits to choose the
/// words that mark their accesses to shared data.
pub struct QueuePairDirectory<T = QueuePair> {
    slot: u32,
    order: Order,
    next: AtomicU32,
    queue_pairs: RwLock<Listed<T>>,
    /// Version of the table, which changes with each insertion and removal of a queue pair. A
    /// [`Recent`] cache is valid only for the version with which it was filled.
    version: AtomicU64,
}

/// Queue pairs with their numbers. The key is the index of the queue pair's record in shared
/// memory, which is calculated from the number.
type Listed<T> = HashMap<u32, (u32, Arc<T>), BuildHasherDefault<NumberHasher>>;

/// Cache of the queue pairs that a caller has found by [`QueuePairDirectory::find_again`]. A lookup
/// of a cached queue pair takes no lock.
#[derive(Debug)]
pub struct Recent<T = QueuePair> {
    version: u64,
    /// Queue pairs with their numbers. The low bits of a number determine the index in this list.
    found: Vec<Option<(u32, Arc<T>)>>,
}

/// Number of queue pairs that a [`Recent`] cache can contain: one for each value of the low eight
/// bits of a queue pair number.
const CACHE_SIZE: usize = 256;

/// Error: no queue pair can be created, because the NIC has the maximum number of queue pairs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("there are no more queue pairs")]
pub struct Exhausted;

/// A fast hash function for queue pair numbers. The function need not resist attacks, because other
/// processes cannot choose the numbers.
#[derive(Debug, Default)]
struct NumberHasher(u64);

impl Hasher for NumberHasher {
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

/// Queue pair numbers that are never assigned. The specification reserves these numbers for the
/// management queue pairs and for multicast (IBTA 9.2.2, 9.6.3).
const RESERVED: [u32; 3] = [0, 1, 0xff_ffff];

impl<T> QueuePairDirectory<T> {
    /// Creates an empty table of queue pairs. `slot` is the index of the NIC's UDP port, and forms
    /// the eight high bits of all queue pair numbers.
    pub fn new(slot: u8) -> Self {
        Self {
            slot: u32::from(slot) << number::BITS,
            order: Order::new(),
            next: AtomicU32::new(0),
            queue_pairs: RwLock::default(),
            version: AtomicU64::new(0),
        }
    }

    /// Creates a queue pair by calling `make` with a free queue pair number. Inserts the queue pair
    /// into the table, and returns it. Fails with [`Exhausted`] if the NIC has the maximum number
    /// of queue pairs, or with the error of `make`.
    pub fn insert<E: From<Exhausted>>(
        &self,
        make: impl FnOnce(u32) -> Result<Arc<T>, E>,
    ) -> Result<Arc<T>, E> {
        let mut queue_pairs = self.queue_pairs.write();
        if queue_pairs.len() >= MAX_QP {
            return Err(Exhausted.into());
        }
        // A free number is found: there are as many records as queue pairs may exist, and two
        // numbers for each record, of which at most one is reserved.
        let number = (0..number::COUNT)
            .map(|_| self.next.fetch_add(1, Ordering::Relaxed) % number::COUNT)
            .map(|next| self.slot | self.order.number(next))
            .find(|number| !RESERVED.contains(number) && !queue_pairs.contains_key(&key(*number)))
            .ok_or(Exhausted)?;
        let queue_pair = make(number)?;
        queue_pairs.insert(key(number), (number, Arc::clone(&queue_pair)));
        self.version.fetch_add(1, Ordering::Release);
        Ok(queue_pair)
    }

    /// Returns the queue pair with the number `number`, or `None` if it does not exist.
    pub fn find(&self, number: u32) -> Option<Arc<T>> {
        let queue_pairs = self.queue_pairs.read();
        let (found, queue_pair) = queue_pairs.get(&key(number))?;
        (*found == number).then(|| Arc::clone(queue_pair))
    }

    /// Returns the queue pair with the number `number`, or `None` if it does not exist. `recent` is
    /// the caller's cache of earlier lookups. A queue pair in the cache is found without a lock. If
    /// a queue pair was inserted into or removed from the table since the last call, clears the
    /// cache first.
    #[inline]
    pub fn find_again<'r>(&self, number: u32, recent: &'r mut Recent<T>) -> Option<&'r Arc<T>> {
        let version = self.version.load(Ordering::Acquire);
        if recent.version != version || recent.found.is_empty() {
            recent.version = version;
            recent.found.clear();
            recent.found.resize_with(CACHE_SIZE, || None);
        }
        let place = &mut recent.found[number as usize % CACHE_SIZE];
        if (place.as_ref()).is_none_or(|(known, _)| *known != number) {
            *place = self.find(number).map(|found| (number, found));
        }
        place.as_ref().map(|(_, found)| found)
    }

    /// Removes the queue pair with the number `number` from the table, and returns the queue pair.
    /// Packets then no longer reach it. Returns `None` if the queue pair does not exist.
    pub fn remove(&self, number: u32) -> Option<Arc<T>> {
        let mut queue_pairs = self.queue_pairs.write();
        self.version.fetch_add(1, Ordering::Release);
        let (found, _) = queue_pairs.get(&key(number))?;
        if *found != number {
            return None;
        }
        queue_pairs.remove(&key(number)).map(|(_, removed)| removed)
    }

    /// Returns the number of queue pairs in the table.
    pub fn len(&self) -> usize {
        self.queue_pairs.read().len()
    }

    /// Returns whether the table contains no queue pairs.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns all queue pairs (of type `T`) in the table, in no particular order.
    pub fn all(&self) -> Vec<Arc<T>> {
        let queue_pairs = self.queue_pairs.read();
        let all = queue_pairs.values();
        all.map(|(_, queue_pair)| Arc::clone(queue_pair)).collect()
    }
}

/// Random order in which the low 16 bits of queue pair numbers are assigned. Because of this order,
/// other processes cannot predict the numbers.
#[derive(Debug)]
struct Order {
    high: Permutation,
    low: Permutation,
}

/// Number of low bits in which all queue pair numbers of a block differ. A block is 32
/// consecutively assigned numbers. The low bits select the words in which a thread marks its
/// accesses to shared data for a queue pair. So threads of different queue pairs write to different
/// words, and do not slow each other down.
const DISTINCT_BITS: u32 = 5;

impl Order {
    fn new() -> Self {
        Self {
            high: Permutation::new(number::BITS - DISTINCT_BITS),
            low: Permutation::new(DISTINCT_BITS),
        }
    }

    /// Returns the low 16 bits of the queue pair number that is assigned after `turn` earlier
    /// numbers. For all values of `turn` below 65,536, the results are different, in a random
    /// order.
    fn number(&self, turn: u32) -> u32 {
        let (high, low) = (turn >> DISTINCT_BITS, turn & ((1 << DISTINCT_BITS) - 1));
        // Each half of the number selects the permutation of the other half, so the whole mapping
        // is a permutation.
        let low = self.low.apply(high, low);
        self.high.apply(low, high) << DISTINCT_BITS | low
    }
}

/// Returns the table key of the queue pair with the number `number`. The key is a part of the
/// number: the index of the queue pair's record in shared memory. Two queue pairs in the table have
/// different keys, and so never share a record.
fn key(number: u32) -> u32 {
    number::record(number) as u32
}

impl<T> Default for Recent<T> {
    fn default() -> Self {
        Self {
            version: 0,
            found: Vec::new(),
        }
    }
}

impl<T> fmt::Debug for QueuePairDirectory<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("QueuePairDirectory")
            .field("slot", &number::slot(self.slot))
            .field("queue_pairs", &self.len())
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::Ordering;

    use super::{Exhausted, QueuePairDirectory, RESERVED, Recent};
    use crate::limits::MAX_QP;
    use crate::number;

    fn insert(directory: &QueuePairDirectory<u32>) -> Result<u32, Exhausted> {
        directory
            .insert(|number| Ok(Arc::new(number)))
            .map(|number| *number)
    }

    /// Creates and destroys `count` queue pairs in `directory`, one after the other. Returns their
    /// numbers.
    fn one_by_one(directory: &QueuePairDirectory<u32>, count: u32) -> impl Iterator<Item = u32> {
        (0..count).map(|_| {
            let number = insert(directory).unwrap();
            assert!(directory.remove(number).is_some());
            number
        })
    }

    #[test]
    fn numbers_contain_the_slot_and_are_never_reserved_numbers() {
        for (slot, reserved) in [(0, 2), (255, 1), (7, 0)] {
            let directory = QueuePairDirectory::new(slot);
            let mut seen = vec![false; number::COUNT as usize];
            for number in one_by_one(&directory, number::COUNT - reserved) {
                assert_eq!(number::slot(number), slot);
                assert!(!RESERVED.contains(&number), "{number:#x}");
                let seen = &mut seen[(number % number::COUNT) as usize];
                assert!(!std::mem::replace(seen, true), "{number:#x} comes twice");
            }
        }
    }

    #[test]
    fn a_number_is_reused_only_after_all_other_numbers() {
        let directory = QueuePairDirectory::new(2);
        let first = insert(&directory).unwrap();
        assert_eq!(directory.find(first).as_deref(), Some(&first));
        assert!(directory.remove(first).is_some());
        assert!(directory.remove(first).is_none());
        assert!(directory.find(first).is_none());
        for number in one_by_one(&directory, number::COUNT - 1) {
            assert_ne!(number, first);
        }
        assert_eq!(insert(&directory), Ok(first));
    }

    /// Checks that queue pair numbers look random. The probability that truly random numbers fail
    /// this test is below 2^-60.
    #[test]
    fn numbers_are_unpredictable() {
        let [one, other] = [(); 2].map(|()| {
            let directory = QueuePairDirectory::new(3);
            one_by_one(&directory, 4096).collect::<Vec<_>>()
        });
        let same = one.iter().zip(&other).filter(|(one, other)| one == other);
        assert!(same.count() < 16, "of two devices");
        let pairs = one.iter().zip(&one[1..]);
        let adjacent = pairs.filter(|(one, next)| one.abs_diff(**next) < 2);
        assert!(adjacent.count() < 16, "of one device");
    }

    #[test]
    fn successive_numbers_differ_in_their_low_bits() {
        let directory = QueuePairDirectory::new(5);
        for _ in 0..100 {
            let mut low: Vec<u32> = one_by_one(&directory, 32)
                .map(|number| number % 32)
                .collect();
            low.sort_unstable();
            assert!(low.into_iter().eq(0..32));
        }
    }

    #[test]
    fn each_existing_queue_pair_has_its_own_record() {
        let directory = QueuePairDirectory::new(4);
        let kept: Vec<u32> = (0..100).map(|_| insert(&directory).unwrap()).collect();
        for number in one_by_one(&directory, number::COUNT) {
            let other = kept
                .iter()
                .find(|kept| number::record(**kept) == number::record(number));
            assert_eq!(other, None, "{number:#x} has the same record");
        }
        for number in kept {
            assert_eq!(directory.find(number).as_deref(), Some(&number));
            let another = number ^ MAX_QP as u32;
            assert_eq!(number::record(another), number::record(number));
            assert_eq!(directory.find(another), None);
            assert_eq!(directory.remove(another), None);
        }
    }

    #[test]
    fn the_last_found_queue_pair_is_cached_until_the_directory_changes() {
        let directory = QueuePairDirectory::new(3);
        let (one, other) = (insert(&directory).unwrap(), insert(&directory).unwrap());
        let mut recent = Recent::default();
        for number in [one, one, other, one] {
            assert_eq!(
                directory.find_again(number, &mut recent).unwrap().as_ref(),
                &number
            );
        }
        // A removed queue pair must not be found, although the cache contains it.
        directory.remove(one);
        assert_eq!(directory.find_again(one, &mut recent), None);
        // A new queue pair must be found, although the cache says that there is none with its
        // number.
        let next = directory.next.load(Ordering::Relaxed);
        let next = directory.slot | directory.order.number(next);
        assert_eq!(directory.find_again(next, &mut recent), None);
        assert_eq!(insert(&directory), Ok(next));
        assert!(directory.find_again(next, &mut recent).is_some());
    }

    #[test]
    fn the_number_of_queue_pairs_is_limited_and_a_failed_creation_is_not_listed() {
        let directory = QueuePairDirectory::new(1);
        assert!(directory.insert(|_| Err::<Arc<u32>, _>(Exhausted)).is_err());
        assert!(directory.is_empty());
        let numbers: Vec<u32> = (0..MAX_QP).map(|_| insert(&directory).unwrap()).collect();
        assert_eq!(insert(&directory), Err(Exhausted));
        assert_eq!(directory.len(), MAX_QP);
        directory.remove(numbers[9]);
        assert!(insert(&directory).is_ok());
    }
}
