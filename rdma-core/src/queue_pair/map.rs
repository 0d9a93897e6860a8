//! A map from queue pair numbers, which completions contain, to values of the program.

use std::fmt;
use std::mem;

/// Number of bits of a queue pair number that each level of a [`QueuePairMap`] uses as an array
/// index. Queue pair numbers have 24 bits (IBTA volume 1, 9.2.4), so the map has three levels.
const LEVEL_BITS: u32 = 8;
const LEVELS: u32 = 3;
const WIDTH: usize = 1 << LEVEL_BITS;

/// A map from queue pair numbers to values, for a program that polls one completion queue for many
/// queue pairs.
///
/// A lookup reads three array elements, without hashing. A device may reuse the number of a
/// destroyed queue pair for a new queue pair. The map then returns the new queue for late
/// completions of the old queue pair. The new queue ignores these completions because of their work
/// request ids.
///
/// ```
/// # use rdma_core::{AccessFlags, ConnectOptions, Context, SendRequest};
/// use rdma_core::{QueuePairMap, WorkCompletion};
///
/// # let domain = Context::open_default()?.protection_domain()?;
/// # let peer = domain.allocate(8)?.expose(AccessFlags::REMOTE)?;
/// let completions = domain.context().completion_queue(64).build()?;
/// let mut queues = QueuePairMap::new();
/// # let mut kept = Vec::new();
/// for _ in 0..3 {
///     // One queue pair per client. In this example each queue pair is connected to itself.
///     let builder = domain.queue_pair().send_completions(&completions);
///     let prepared = builder.build()?;
///     let endpoint = prepared.endpoint();
///     let queue_pair = prepared.connect(&endpoint, &ConnectOptions::default())?;
///     let mut queue = queue_pair.send_queue();
///     queue.post(SendRequest::write(domain.allocate(8)?, peer.remote()))?;
///     queues.insert(queue_pair.number(), queue);
/// #     kept.push(queue_pair);
/// }
/// let mut room = [WorkCompletion::default(); 8];
/// let mut written = 0;
/// while written < 3 {
///     for completion in completions.poll(&mut room)? {
///         completion.result()?;
///         if let Some(queue) = queues.get_mut(completion.queue_pair()) {
///             written += queue.complete(completion).count();
///         }
///     }
/// }
/// # Ok::<(), rdma_core::Error>(())
/// ```
pub struct QueuePairMap<T> {
    /// The nodes of all levels. Each node contains an array of entries. In the last level an entry
    /// is the index of a value. In the other levels an entry is the index of a node in the next
    /// level. An unused entry is [`EMPTY`].
    nodes: Vec<Node>,
    /// Indexes of nodes that are not in use. All entries of these nodes are empty.
    spare: Vec<u32>,
    values: Vec<Option<T>>,
    /// Indexes of elements of `values` that are not in use.
    vacant: Vec<u32>,
}

/// The index that unused entries of a [`QueuePairMap`]'s nodes contain. The node and the value at
/// this index are always empty. A lookup therefore needs no check for unused entries: the lookup
/// reads empty nodes, and ends at the empty value.
const EMPTY: u32 = 0;
const ROOT: usize = 1;

#[derive(Clone)]
struct Node {
    entries: [u32; WIDTH],
    /// Number of entries of the node that are in use.
    len: u32,
}

const NO_ENTRIES: Node = Node {
    entries: [EMPTY; WIDTH],
    len: 0,
};

/// Returns the position of an entry in the array of a node. The node is in the level `level`, and
/// the entry leads to the value for the queue pair number `number`. Each of the three levels uses 8
/// bits of the number. Level 0 uses the highest bits.
#[inline]
fn entry(number: u32, level: u32) -> usize {
    (number >> (LEVEL_BITS * (LEVELS - 1 - level))) as usize & (WIDTH - 1)
}

impl<T> Default for QueuePairMap<T> {
    fn default() -> Self {
        Self::new()
    }
}

impl<T: fmt::Debug> fmt::Debug for QueuePairMap<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.values()).finish()
    }
}

impl<T> QueuePairMap<T> {
    /// Creates an empty map from queue pair numbers to values.
    pub fn new() -> Self {
        Self {
            nodes: vec![NO_ENTRIES; 2],
            spare: Vec::new(),
            values: vec![None],
            vacant: Vec::new(),
        }
    }

    /// Inserts `value` for the queue pair with the number `number`, and returns the previous value
    /// for that number, if any.
    ///
    /// # Panics
    ///
    /// Panics if the number has more than 24 bits.
    pub fn insert(&mut self, number: u32, value: T) -> Option<T> {
        assert!(
            number >> (LEVEL_BITS * LEVELS) == 0,
            "queue pair numbers have 24 bits, not {number:#x}"
        );
        if let Some(present) = self.get_mut(number) {
            return Some(mem::replace(present, value));
        }
        let mut node = ROOT;
        for level in 0..LEVELS - 1 {
            node = self.child(node, entry(number, level));
        }
        let index = self.vacant.pop().unwrap_or(self.values.len() as u32);
        if index as usize == self.values.len() {
            self.values.push(None);
        }
        self.values[index as usize] = Some(value);
        self.set(node, entry(number, LEVELS - 1), index);
        None
    }

    /// Returns the value for the queue pair with this number, or `None` if the map has no value for
    /// the number. A [completion](crate::WorkCompletion::queue_pair) contains the number of its
    /// queue pair.
    #[inline]
    pub fn get(&self, number: u32) -> Option<&T> {
        self.values.get(self.find(number)?)?.as_ref()
    }

    /// Returns a mutable reference to the map's value for the queue pair with this number, or
    /// `None` if the map has no value for the number.
    #[inline]
    pub fn get_mut(&mut self, number: u32) -> Option<&mut T> {
        let index = self.find(number)?;
        self.values.get_mut(index)?.as_mut()
    }

    /// Removes the value for the queue pair with this number, and returns the value. Returns `None`
    /// if the map has no value for the number.
    pub fn remove(&mut self, number: u32) -> Option<T> {
        let index = self.find(number)?;
        let value = self.values.get_mut(index)?.take()?;
        self.vacant.push(index as u32);
        let mut path = [ROOT; LEVELS as usize];
        for level in 1..LEVELS {
            let above = &self.nodes[path[level as usize - 1]];
            path[level as usize] = above.entries[entry(number, level - 1)] as usize;
        }
        // Nodes that become empty are reused, so that the map does not grow with every number that
        // it ever contained.
        for level in (0..LEVELS).rev() {
            let node = path[level as usize];
            self.set(node, entry(number, level), EMPTY);
            if self.nodes[node].len > 0 || node == ROOT {
                break;
            }
            self.spare.push(node as u32);
        }
        Some(value)
    }

    /// Returns the number of values in the map.
    pub fn len(&self) -> usize {
        self.values.len() - 1 - self.vacant.len()
    }

    /// Returns whether the map is empty.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns an iterator over all values, in unspecified order.
    pub fn values(&self) -> impl Iterator<Item = &T> {
        self.values.iter().flatten()
    }

    /// Returns an iterator over mutable references to all values, in unspecified order.
    pub fn values_mut(&mut self) -> impl Iterator<Item = &mut T> {
        self.values.iter_mut().flatten()
    }

    /// Returns the index in `self.values` of the value for the queue pair number `number`. If the
    /// map has no value for the number, the index is [`EMPTY`], and the element at this index is
    /// `None`. Returns `None` if the number has more than 24 bits.
    #[inline]
    fn find(&self, number: u32) -> Option<usize> {
        // The top index is out of bounds for a number with more than 24 bits.
        let top = (number >> (LEVEL_BITS * (LEVELS - 1))) as usize;
        let middle = *self.nodes[ROOT].entries.get(top)? as usize;
        let leaf = self.nodes[middle].entries[entry(number, 1)] as usize;
        Some(self.nodes[leaf].entries[entry(number, 2)] as usize)
    }

    /// Returns the index of a child node in the tree of the map, and creates the child node if it
    /// does not exist. `node` is the index of the parent node, and `entry` is the position of the
    /// child in the parent's array.
    fn child(&mut self, node: usize, entry: usize) -> usize {
        let child = self.nodes[node].entries[entry];
        if child != EMPTY {
            return child as usize;
        }
        let child = self.spare.pop().unwrap_or(self.nodes.len() as u32);
        if child as usize == self.nodes.len() {
            self.nodes.push(NO_ENTRIES);
        }
        self.set(node, entry, child);
        child as usize
    }

    fn set(&mut self, node: usize, entry: usize, to: u32) {
        let Node { entries, len } = &mut self.nodes[node];
        let before = mem::replace(&mut entries[entry], to);
        *len += u32::from(to != EMPTY);
        *len -= u32::from(before != EMPTY);
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    /// Returns a queue pair number for the test's iteration `round`. The numbers are distributed as
    /// devices may assign them: consecutive, in steps, or scattered.
    fn number(round: u32) -> u32 {
        match round % 3 {
            0 => 0xff_ff00 + round % 256,
            1 => (round % 64) << 16,
            _ => round.wrapping_mul(0x9e37_79b9) >> 8 & 0xf0_0ff3,
        }
    }

    #[test]
    fn a_value_is_found_from_insertion_to_removal() {
        let (mut map, mut model) = (QueuePairMap::new(), BTreeMap::new());
        for round in 0..20_000 {
            let number = number(round);
            if round % 7 < 4 {
                assert_eq!(map.insert(number, round), model.insert(number, round));
            } else {
                assert_eq!(map.remove(number), model.remove(&number));
            }
            assert_eq!(map.len(), model.len());
            assert_eq!(map.get(number), model.get(&number));
            let other = self::number(round / 2);
            assert_eq!(map.get_mut(other), model.get_mut(&other));
        }
        assert!(
            model
                .iter()
                .all(|(&number, value)| map.get(number) == Some(value))
        );
        let mut values: Vec<_> = map.values_mut().map(|value| *value).collect();
        values.sort_unstable();
        let mut expected: Vec<_> = model.into_values().collect();
        expected.sort_unstable();
        assert_eq!(values, expected);
    }

    #[test]
    fn a_map_of_few_numbers_stays_small_whatever_numbers_were_in_it() {
        let mut map = QueuePairMap::new();
        for round in 0..1_000_u32 {
            let number = round.wrapping_mul(0x9e37_79b9) >> 8;
            assert_eq!(map.insert(number, ()), None);
            assert_eq!(map.remove(number), Some(()));
        }
        assert!(map.is_empty());
        assert_eq!((map.nodes.len(), map.values.len()), (4, 2));
        assert!(map.nodes.iter().all(|node| node.len == 0));
    }

    #[test]
    fn numbers_that_are_not_in_it_have_no_value() {
        let mut map = QueuePairMap::default();
        assert_eq!(map.get(0), None);
        map.insert(0, 'a');
        map.insert(0x01_0101, 'b');
        for other in [1, 0x01_0100, 0x01_0001, 0x100_0000, 0x101_0101, u32::MAX] {
            assert_eq!(map.get(other), None, "{other:#x}");
            assert_eq!(map.remove(other), None, "{other:#x}");
        }
        assert_eq!((map.get(0), map.get(0x01_0101)), (Some(&'a'), Some(&'b')));
    }

    #[test]
    #[should_panic = "24 bits"]
    fn a_number_of_25_bits_is_refused() {
        QueuePairMap::new().insert(1 << 24, ());
    }
}
