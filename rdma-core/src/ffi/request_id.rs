//! Work request ids, each of which the process gives out once.
//!
//! A completion can be copied, kept, and shown to any queue at any time, and one that were taken for
//! another request's would free memory in flight. So there are no generations that wrap around soon
//! and no tags that queues share: an id that was given out does not come again before 2^48 others.

use std::sync::atomic::{AtomicU64, Ordering};

/// How many ids a block has: two to this power.
pub(super) const BLOCK_BITS: u32 = 24;
const BLOCK_MASK: u64 = (1 << BLOCK_BITS) - 1;

/// The first id of a block that no queue had before. Block 0, which has the id of an empty
/// completion, is never given out.
pub(super) fn next_block() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    NEXT.fetch_add(1, Ordering::Relaxed) << BLOCK_BITS
}

/// The requests of a queue with one owner, numbered from 0 in the order of posting, and their ids.
///
/// At most 2^[`BLOCK_BITS`] are outstanding, so they are of the current block or the one before.
#[derive(Debug)]
pub(super) struct Sequence {
    /// The oldest request that is outstanding.
    head: u64,
    /// The number of the next request.
    tail: u64,
    /// The blocks of ids, of even ones of 2^[`BLOCK_BITS`] numbers and of odd ones.
    blocks: [u64; 2],
    /// How many blocks there have been.
    opened: u64,
}

impl Sequence {
    pub(super) fn new() -> Self {
        Self {
            head: 0,
            tail: 0,
            blocks: [next_block(), 0],
            opened: 1,
        }
    }

    #[inline]
    pub(super) fn head(&self) -> u64 {
        self.head
    }

    #[inline]
    pub(super) fn tail(&self) -> u64 {
        self.tail
    }

    #[inline]
    pub(super) fn outstanding(&self) -> usize {
        (self.tail - self.head) as usize
    }

    /// The id of the request with this number.
    #[inline]
    pub(super) fn id(&self, number: u64) -> u64 {
        self.blocks[(number >> BLOCK_BITS) as usize & 1] | (number & BLOCK_MASK)
    }

    /// The number of the outstanding request with this id.
    #[inline]
    pub(super) fn number(&self, id: u64) -> Option<u64> {
        let ahead = id.wrapping_sub(self.head) & BLOCK_MASK;
        let number = self.head + ahead;
        (number < self.tail && self.id(number) == id).then_some(number)
    }

    /// Counts one more request as outstanding.
    #[inline]
    pub(super) fn advance_tail(&mut self) {
        self.tail += 1;
        self.open(self.tail);
    }

    /// Makes sure that the request with this number, less than 2^[`BLOCK_BITS`] after the oldest
    /// outstanding one, has an id. Numbers are opened in their order.
    #[inline]
    pub(super) fn open(&mut self, number: u64) {
        if number & BLOCK_MASK == 0 && number >> BLOCK_BITS == self.opened {
            self.blocks[self.opened as usize & 1] = next_block();
            self.opened += 1;
        }
    }

    /// Counts the oldest request as outstanding no more.
    #[inline]
    pub(super) fn advance_head(&mut self) {
        self.head += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_belong_to_one_sequence() {
        let (mut one, mut two) = (Sequence::new(), Sequence::new());
        one.advance_tail();
        two.advance_tail();
        assert_eq!(one.number(one.id(0)), Some(0));
        assert_eq!(two.number(one.id(0)), None);
        assert_eq!(one.number(one.id(1)), None, "not posted");
        assert_eq!(one.number(0), None, "the id of an empty completion");
    }

    /// A sequence whose next request is `number`, a few before the change of the block.
    fn before_the_change(blocks: u64) -> Sequence {
        let number = (blocks << BLOCK_BITS) - 7;
        Sequence {
            head: number,
            tail: number,
            blocks: [next_block(), next_block()],
            opened: blocks,
        }
    }

    #[test]
    fn an_id_is_known_while_its_request_is_outstanding() {
        for blocks in [1, 2, 3] {
            let mut sequence = before_the_change(blocks);
            for _ in 0..20 {
                sequence.advance_tail();
                for number in sequence.head()..sequence.tail() {
                    assert_eq!(sequence.number(sequence.id(number)), Some(number));
                }
                if sequence.outstanding() == 5 {
                    let oldest = sequence.id(sequence.head());
                    sequence.advance_head();
                    assert_eq!(sequence.number(oldest), None);
                }
            }
        }
    }

    #[test]
    fn an_id_is_the_same_before_and_after_its_request_is_outstanding() {
        let mut sequence = before_the_change(1);
        let first = sequence.tail();
        let ids: Vec<_> = (first..first + 20)
            .map(|number| {
                sequence.open(number);
                sequence.id(number)
            })
            .collect();
        for (number, id) in (first..).zip(ids) {
            sequence.open(number);
            sequence.advance_tail();
            assert_eq!(sequence.number(id), Some(number));
        }
    }

    #[test]
    fn an_old_id_is_not_taken_for_a_new_one() {
        let mut sequence = before_the_change(1);
        let mut old = Vec::new();
        for _ in 0..40 {
            assert!(!old.contains(&sequence.id(sequence.tail())));
            old.push(sequence.id(sequence.tail()));
            sequence.advance_tail();
            sequence.advance_head();
        }
        // As many requests later as come back to the same places of a block.
        sequence.head += (2 << BLOCK_BITS) - 40;
        sequence.tail = sequence.head;
        sequence.blocks = [next_block(), next_block()];
        sequence.opened += 1;
        for _ in 0..40 {
            sequence.advance_tail();
            assert!(old.iter().all(|&id| sequence.number(id).is_none()));
        }
    }
}
