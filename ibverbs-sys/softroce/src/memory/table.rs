#![forbid(unsafe_code)]

use std::collections::VecDeque;

use crate::context::Refusal;
use crate::random::{self, Permutation};

/// A table of objects that are found by memory keys. Each object is in a slot (entry) of the table.
/// A key consists of an index (24 bits), which determines the slot, and a tag (the low byte). The
/// tag changes with every use of the slot, so the key of a removed object does not find a later
/// object.
///
/// Indices and tags are in random order, so a program cannot guess a key, even from other keys. The
/// slots themselves are used in ascending order, so objects that are used one after the other are
/// often adjacent in memory.
#[derive(Debug)]
pub(super) struct Table<T> {
    /// Random number that is added to each index in keys, so that keys differ between processes and
    /// runs.
    base: u32,
    /// Generator of the random orders: of the indices in each block of slots, and of the tags of
    /// each slot.
    order: Permutation,
    slots: Vec<Slot<T>>,
    /// For each index, the bits in which the index differs from the number of its slot. The index
    /// and the number are in the same block, so only bits of the low byte differ. (LLVM 22
    /// miscompiles an `or` that inserts a low byte.)
    differences: Vec<u8>,
    /// Numbers of the free slots. A slot is taken from the front and returned to the back, so it is
    /// reused as late as possible.
    free: VecDeque<u32>,
}

#[derive(Debug)]
struct Slot<T> {
    tag: u8,
    /// Position of a tag (low byte of the key) in the random order of the slot's tags: the last tag
    /// that the table has selected. A window binding may have set another tag since.
    turn: u8,
    /// Bits in which the slot's index in keys differs from its number.
    difference: u8,
    content: Option<T>,
}

/// Minimum number of free slots (entries of the table). If the table has fewer free slots, a block
/// of slots is added. With few free slots, each slot would be reused often, and the keys of its
/// objects would soon repeat.
const MIN_FREE_SLOTS: usize = 64;

/// Number of slots (entries) that are added to the table together, as one block. The slots of a
/// block have their indices in memory keys in random order. With 256 slots per block, the index of
/// a slot differs from its number only in the low byte.
const BLOCK_SIZE: usize = 1 << 8;

/// Flag in the number that selects one of the random orders of a [`Permutation`]. With this flag,
/// the number selects the order of the indices in one block of the table. Without the flag, the
/// number selects the order in which one slot uses its tags (low bytes of keys).
const BLOCK_ORDER_BIT: u32 = 1 << 31;

/// Number of different indices that a memory key can contain. Index 0 is never used, because
/// programs use key 0 for "no key".
const INDICES: u32 = 1 << 24;

impl<T> Table<T> {
    pub(super) fn new() -> Self {
        let [random] = random::words();
        Self {
            // In the lower half, so that the indices of all slots stay below the maximum.
            base: 1 + random as u32 % (INDICES / 2),
            order: Permutation::new(8),
            slots: Vec::new(),
            differences: Vec::new(),
            free: VecDeque::new(),
        }
    }

    /// Returns the random number that is added to the index of a slot (entry of the table) to form
    /// the index in a memory key. The random number makes keys hard to guess. Peer processes need
    /// the random number to find the slot of a key.
    pub(super) fn base(&self) -> u32 {
        self.base
    }

    /// Stores the object `content` in a free slot of the table, and returns the number of this
    /// slot. Fails if the table is full.
    pub(super) fn insert(&mut self, content: T) -> Result<u32, Refusal> {
        if self.free.len() < MIN_FREE_SLOTS && self.slots.len() + BLOCK_SIZE < INDICES as usize / 2
        {
            self.grow();
        }
        let number = self.free.pop_front().ok_or(Refusal::Exhausted)?;
        self.slots[number as usize].content = Some(content);
        Ok(number)
    }

    /// Adds [`BLOCK_SIZE`] free slots (entries) to the table of objects. The memory keys of these
    /// slots contain their indices in a random order, so that keys are unpredictable.
    fn grow(&mut self) {
        let first = self.slots.len() as u32;
        self.differences.resize(self.slots.len() + BLOCK_SIZE, 0);
        for number in 0..BLOCK_SIZE as u32 {
            let index = self.order.apply(BLOCK_ORDER_BIT | first, number);
            let difference = (index ^ number) as u8;
            self.differences[(first + index) as usize] = difference;
            self.free.push_back(first + number);
            self.slots.push(Slot {
                tag: self.order.apply(first + number, 0) as u8,
                turn: 0,
                difference,
                content: None,
            });
        }
    }

    /// Removes the object in the slot `number` (entry of the table), and returns the object.
    /// Returns `None` if the slot is empty. The key of the object becomes invalid.
    pub(super) fn remove(&mut self, number: u32) -> Option<T> {
        let content = self.slots.get_mut(number as usize)?.content.take()?;
        self.renew(number);
        self.free.push_back(number);
        Some(content)
    }

    /// Assigns the next tag (low byte of the key) to the slot `number` (entry of the table), and
    /// returns the new key of the slot. A tag repeats only after all other tags of the slot were
    /// used.
    pub(super) fn renew(&mut self, number: u32) -> u32 {
        if let Some(slot) = self.slots.get_mut(number as usize) {
            let before = slot.tag;
            // The program may have chosen the present tag (of a memory window). The next tag must
            // differ from it.
            while slot.tag == before {
                slot.turn = slot.turn.wrapping_add(1);
                slot.tag = self.order.apply(number, slot.turn.into()) as u8;
            }
        }
        self.key(number)
    }

    /// Returns the present memory key of the slot (entry of the table) with the number `number`.
    /// The key consists of an index and, in the low byte, a tag that changes with every use of the
    /// slot.
    pub(super) fn key(&self, number: u32) -> u32 {
        let slot = self.slots.get(number as usize);
        let (tag, difference) = slot.map_or((0, 0), |slot| (slot.tag, slot.difference));
        let index = number ^ u32::from(difference);
        (self.base + index) << 8 | u32::from(tag)
    }

    /// Changes the memory key of the slot with the number `number`, by setting the low byte of the
    /// key to `tag`. Returns the new key. Called when a memory window is bound, because the bind
    /// request contains the low byte of the window's new key.
    pub(super) fn retag(&mut self, number: u32, tag: u8) -> u32 {
        if let Some(slot) = self.slots.get_mut(number as usize) {
            slot.tag = tag;
        }
        self.key(number)
    }

    /// Returns the number of the slot (entry of the table) to which the memory key `key` belongs,
    /// or `None` if the slot is empty. The tag (low byte) of the key is not checked, so the key may
    /// be an earlier key of the slot.
    #[inline]
    pub(super) fn slot_of(&self, key: u32) -> Option<u32> {
        let index = (key >> 8).checked_sub(self.base)?;
        let number = index ^ u32::from(*self.differences.get(index as usize)?);
        let slot = self.slots.get(number as usize)?;
        slot.content.is_some().then_some(number)
    }

    /// Returns the object that has the memory key `key`, and the number of its slot (entry of the
    /// table). Returns `None` if no object has this key at present.
    #[inline]
    pub(super) fn find(&self, key: u32) -> Option<(u32, &T)> {
        let number = self.slot_of(key)?;
        let slot = &self.slots[number as usize];
        Some((
            number,
            slot.content.as_ref().filter(|_| slot.tag == key as u8)?,
        ))
    }

    #[inline]
    pub(super) fn get(&self, number: u32) -> Option<&T> {
        self.slots.get(number as usize)?.content.as_ref()
    }

    pub(super) fn get_mut(&mut self, number: u32) -> Option<&mut T> {
        self.slots.get_mut(number as usize)?.content.as_mut()
    }

    /// Returns all objects in the table, each with the number of its slot.
    pub(super) fn iter_mut(&mut self) -> impl Iterator<Item = (u32, &mut T)> {
        self.slots
            .iter_mut()
            .enumerate()
            .filter_map(|(number, slot)| Some((number as u32, slot.content.as_mut()?)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_finds_its_object_and_a_stale_key_finds_none() {
        let mut table = Table::new();
        let first = table.insert('a').unwrap();
        let second = table.insert('b').unwrap();
        let stale = table.key(first);
        assert_eq!(table.find(stale), Some((first, &'a')));
        assert_eq!(table.find(table.key(second)), Some((second, &'b')));
        assert_eq!(table.find(stale ^ 1), None, "another tag");
        assert_eq!(table.remove(first), Some('a'));
        assert_eq!(table.find(stale), None);
        assert_eq!(table.remove(first), None);
        assert_eq!(table.find(0), None);
        assert_eq!(table.find(u32::MAX), None);
    }

    #[test]
    fn a_reused_slot_has_a_different_key() {
        let mut table = Table::new();
        let mut keys = std::collections::HashSet::new();
        for _ in 0..10_000 {
            let number = table.insert(()).unwrap();
            assert!(keys.insert(table.key(number)));
            table.remove(number);
        }
        assert_eq!(table.slots.len(), BLOCK_SIZE, "slots are used again");
    }

    #[test]
    fn every_key_finds_its_own_object() {
        let mut table = Table::new();
        let keys: Vec<u32> = (0..20_000)
            .map(|content| {
                let number = table.insert(content).unwrap();
                table.key(number)
            })
            .collect();
        for (content, &key) in keys.iter().enumerate() {
            let found = table.find(key);
            assert_eq!(found.map(|(_, content)| *content), Some(content));
            let (number, _) = found.unwrap();
            assert_eq!((table.slot_of(key), table.key(number)), (Some(number), key));
        }
    }

    /// Checks that memory keys look random. Truly random keys would fail this test with a
    /// probability below 2^-60.
    #[test]
    fn keys_are_unpredictable() {
        let [one, other] = [(); 2].map(|()| {
            let mut table = Table::new();
            let keys = (0..4096).map(|_| {
                let number = table.insert(()).unwrap();
                table.key(number)
            });
            keys.collect::<Vec<_>>()
        });
        let same = one.iter().filter(|key| other.contains(key));
        assert!(same.count() < 64, "of two devices");
        let pairs = || one.iter().zip(&one[1..]);
        let adjacent = pairs().filter(|(one, next)| (**one >> 8).abs_diff(**next >> 8) < 2);
        assert!(adjacent.count() < 100, "indices of one device");
        let step = |one: u32, next: u32| (next as u8).wrapping_sub(one as u8);
        let mut steps = [0; 256];
        pairs().for_each(|(one, next)| steps[usize::from(step(*one, *next))] += 1);
        assert!(steps.iter().all(|&count| count < 100), "tags of slots");
        let mut table = Table::new();
        let number = table.insert(()).unwrap();
        let tags: Vec<u8> = (0..256).map(|_| table.renew(number) as u8).collect();
        let mut steps = [0; 256];
        tags.windows(2)
            .for_each(|pair| steps[usize::from(pair[1].wrapping_sub(pair[0]))] += 1);
        assert!(steps.iter().all(|&count| count < 32), "tags of one slot");
    }
}
