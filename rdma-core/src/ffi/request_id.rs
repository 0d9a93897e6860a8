//! Work request ids, each of which the process gives out once.
//!
//! A completion can be copied, kept, and shown to any queue at any time, and one that were taken for
//! another request's would free memory in flight. So there are no generations that wrap around soon
//! and no tags that queues share: an id that was given out does not come again before 2^48 others.

use std::sync::atomic::{AtomicU64, Ordering};

/// How many ids a block has: two to this power.
pub(super) const BLOCK_BITS: u32 = 24;
pub(super) const BLOCK_MASK: u64 = (1 << BLOCK_BITS) - 1;

/// The first id of a block that no queue had before. Block 0, which has the id of an empty
/// completion, is never given out.
pub(super) fn next_block() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    NEXT.fetch_add(1, Ordering::Relaxed) << BLOCK_BITS
}

/// The number of the block that an id is of.
pub(super) fn block_of(id: u64) -> u64 {
    id >> BLOCK_BITS
}

/// The requests of a queue with one owner, numbered from 0 in the order of posting, and their ids.
///
/// At most 2^[`BLOCK_BITS`] are outstanding, so they are of the current block or the one before.
///
/// What happens for every request looks at ids and at how much room there is alone: the low bits of
/// an id are those of the request's number, and the others change with the block.
#[derive(Debug)]
pub(super) struct Sequence {
    /// The id behind those that the next requests can have, if all were of one block: so far behind
    /// [`Self::tail_id`] as there is room for more. [`CLOSED`] less while it is closed.
    end_id: i64,
    /// The id of the oldest outstanding request; of the next one, when there is none. With [`MARK`]
    /// while it is marked.
    head_id: u64,
    /// The id of the next request.
    tail_id: u64,
    /// The number of the first request of the block that the next one is of.
    tail_block: u64,
    /// The blocks of ids, of even ones of 2^[`BLOCK_BITS`] numbers and of odd ones.
    blocks: [u64; 2],
    /// How many blocks there have been.
    opened: u64,
    /// How many can be outstanding.
    capacity: usize,
}

/// A bit that no id has, nor any that the program may give to the device beside those of this crate,
/// which have all of the bits from 24 up to this one clear, or the highest set.
const MARK: u64 = 1 << 62;

/// More room than any sequence has.
const CLOSED: i64 = 1 << 32;

impl Sequence {
    /// A sequence in which so many requests can be outstanding, 2^[`BLOCK_BITS`] at most.
    pub(super) fn new(capacity: usize) -> Self {
        let block = next_block();
        Self {
            end_id: block as i64 + capacity as i64,
            head_id: block,
            tail_id: block,
            tail_block: 0,
            blocks: [block, 0],
            opened: 1,
            capacity,
        }
    }

    #[inline]
    pub(super) fn capacity(&self) -> usize {
        self.capacity
    }

    /// Whether there is room for one more, and the sequence is not closed.
    #[inline]
    pub(super) fn is_open(&self) -> bool {
        (self.tail_id as i64) < self.end_id
    }

    /// Lets [`Self::is_open`] be false until further notice, or no longer.
    pub(super) fn close(&mut self, closed: bool) {
        match (self.is_closed(), closed) {
            (false, true) => self.end_id -= CLOSED,
            (true, false) => self.end_id += CLOSED,
            _ => {}
        }
    }

    #[inline]
    fn is_closed(&self) -> bool {
        self.end_id < self.tail_id as i64
    }

    /// Lets [`Self::oldest_id`] be none that a request has until further notice, or no longer.
    pub(super) fn mark(&mut self, marked: bool) {
        self.head_id = self.head_id & !MARK | if marked { MARK } else { 0 };
    }

    /// The number of the oldest outstanding request; of the next one, when there is none.
    #[inline]
    pub(super) fn head(&self) -> u64 {
        self.tail() - self.outstanding() as u64
    }

    /// The number of the next request.
    #[inline]
    pub(super) fn tail(&self) -> u64 {
        self.tail_block | (self.tail_id & BLOCK_MASK)
    }

    #[inline]
    pub(super) fn outstanding(&self) -> usize {
        let closed = if self.is_closed() { CLOSED } else { 0 };
        self.capacity - (self.end_id + closed - self.tail_id as i64) as usize
    }

    /// The id of the oldest outstanding request; of the next one, when there is none.
    #[inline]
    pub(super) fn oldest_id(&self) -> u64 {
        self.head_id
    }

    /// The id of the next request.
    #[inline]
    pub(super) fn next_id(&self) -> u64 {
        self.tail_id
    }

    /// The id of the request with this number.
    #[inline]
    pub(super) fn id(&self, number: u64) -> u64 {
        self.blocks[(number >> BLOCK_BITS) as usize & 1] | (number & BLOCK_MASK)
    }

    /// The number of the outstanding request with this id.
    pub(super) fn number(&self, id: u64) -> Option<u64> {
        let head = self.head();
        let number = head + (id.wrapping_sub(head) & BLOCK_MASK);
        (number < self.tail() && self.id(number) == id).then_some(number)
    }

    /// How many requests from the next one on have ids of its block.
    #[inline]
    pub(super) fn left_in_block(&self) -> u64 {
        BLOCK_MASK + 1 - (self.tail_id & BLOCK_MASK)
    }

    /// Counts so many more requests as outstanding, less than are [left in the block](Self::left_in_block).
    #[inline]
    pub(super) fn advance_tail_within(&mut self, count: u64) {
        debug_assert!(count < self.left_in_block());
        self.tail_id += count;
    }

    /// Counts one more request as outstanding.
    #[inline]
    pub(super) fn advance_tail(&mut self) {
        self.tail_id += 1;
        if self.tail_id & BLOCK_MASK == 0 {
            self.change_block_of_tail();
        }
    }

    #[cold]
    #[inline(never)]
    fn change_block_of_tail(&mut self) {
        self.tail_block += 1 << BLOCK_BITS;
        self.open(self.tail_block);
        let id = self.id(self.tail_block);
        // As much room as before.
        self.end_id += id as i64 - self.tail_id as i64;
        self.tail_id = id;
    }

    /// Counts the oldest request, of which there is one, as outstanding no more.
    #[inline]
    pub(super) fn advance_head(&mut self) {
        debug_assert!(self.outstanding() > 0);
        self.end_id += 1;
        self.head_id += 1;
        if self.head_id & BLOCK_MASK == 0 {
            self.change_block_of_head();
        }
    }

    #[cold]
    #[inline(never)]
    fn change_block_of_head(&mut self) {
        self.head_id = self.id(self.head()) | self.head_id & MARK;
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
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_belong_to_one_sequence() {
        let (mut one, mut two) = (Sequence::new(9), Sequence::new(9));
        one.advance_tail();
        two.advance_tail();
        assert_eq!(one.number(one.id(0)), Some(0));
        assert_eq!(two.number(one.id(0)), None);
        assert_eq!(one.number(one.id(1)), None, "not posted");
        assert_eq!(one.number(0), None, "the id of an empty completion");
    }

    /// A sequence whose next request is `number`, a few before the change of the block.
    fn before_the_change(blocks: u64) -> Sequence {
        at((blocks << BLOCK_BITS) - 7, blocks)
    }

    fn at(number: u64, opened: u64) -> Sequence {
        let mut sequence = Sequence {
            end_id: 99,
            head_id: 0,
            tail_id: 0,
            tail_block: number & !BLOCK_MASK,
            blocks: [next_block(), next_block()],
            opened,
            capacity: 99,
        };
        sequence.head_id = sequence.id(number);
        sequence.tail_id = sequence.head_id;
        sequence.end_id += sequence.tail_id as i64;
        sequence
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
                assert_eq!(sequence.oldest_id(), sequence.id(sequence.head()));
                assert_eq!(sequence.next_id(), sequence.id(sequence.tail()));
                if sequence.outstanding() == 5 {
                    let oldest = sequence.id(sequence.head());
                    sequence.advance_head();
                    assert_eq!(sequence.number(oldest), None);
                }
            }
        }
    }

    #[test]
    fn ids_follow_each_other_to_the_end_of_the_block() {
        let mut sequence = before_the_change(2);
        assert_eq!(sequence.left_in_block(), 7);
        let first = sequence.tail();
        for more in 0..7 {
            assert_eq!(sequence.id(first + more), sequence.next_id() + more);
        }
        sequence.advance_tail_within(6);
        assert_eq!((sequence.left_in_block(), sequence.outstanding()), (1, 6));
        sequence.advance_tail();
        assert_eq!(sequence.left_in_block(), BLOCK_MASK + 1);
        assert_eq!((sequence.tail(), sequence.outstanding()), (first + 7, 7));
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
    fn a_closed_sequence_counts_on() {
        let mut sequence = Sequence::new(2);
        sequence.advance_tail();
        assert!(sequence.is_open());
        for closed in [true, true, false] {
            sequence.close(closed);
            assert_eq!((sequence.is_open(), sequence.outstanding()), (!closed, 1));
        }
        sequence.close(true);
        sequence.advance_tail();
        assert_eq!((sequence.head(), sequence.outstanding()), (0, 2));
        sequence.close(false);
        assert!(!sequence.is_open(), "it is full");
        sequence.advance_head();
        assert!(sequence.is_open());
    }

    #[test]
    fn a_mark_makes_an_id_that_no_completion_has() {
        let mut sequence = Sequence::new(9);
        let id = sequence.oldest_id();
        sequence.mark(true);
        // Those beside this crate's: below 2^24, and from 2^63 on.
        assert!(((1 << BLOCK_BITS)..1 << 63).contains(&sequence.oldest_id()));
        assert_ne!(sequence.oldest_id(), id);
        sequence.mark(false);
        assert_eq!(sequence.oldest_id(), id);
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
        let mut sequence = at(
            sequence.head() + (2 << BLOCK_BITS) - 40,
            sequence.opened + 1,
        );
        for _ in 0..40 {
            sequence.advance_tail();
            assert!(old.iter().all(|&id| sequence.number(id).is_none()));
        }
    }
}
