//! Work request ids, which are unique within the process.
//!
//! A completion can be copied, stored, and passed to any queue at any time. If the id in a stale
//! completion matched a newer request, the memory of that request would be freed in flight.
//! Therefore ids contain no short counters that wrap around: an id is reused only after 2^48 other
//! ids.

use std::sync::atomic::{AtomicU64, Ordering};

/// The number of low bits of a work request id that differ within a block. A block is a range of
/// 2^24 consecutive ids, which a queue allocates at once.
pub(super) const BLOCK_BITS: u32 = 24;
pub(super) const BLOCK_MASK: u64 = (1 << BLOCK_BITS) - 1;

/// Allocates a block of 2^24 consecutive work request ids, and returns the first id of the block.
/// Each block is allocated only once in a process, so ids are never reused. Block 0 is never
/// allocated, because it contains 0, the id of an empty completion.
pub(super) fn next_block() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    NEXT.fetch_add(1, Ordering::Relaxed) << BLOCK_BITS
}

/// Returns the number of the block (2^24 consecutive ids) that contains `id`.
pub(super) fn block_of(id: u64) -> u64 {
    id >> BLOCK_BITS
}

/// The work request ids of a queue with a single owner. A request has a number, counted from 0 in
/// the order of posting, and an id, which is unique within the process. The queue gets its ids in
/// blocks of 2^24 consecutive ids. An id has the same low 24 bits as the number. Its high bits
/// identify the block.
///
/// The number of outstanding requests is at most the number of ids in a block. Therefore the ids of
/// all outstanding requests are from the last two blocks, and only the last two blocks are stored.
///
/// The fast path (with few checks) compares two ids: `tail_id` with `end_id` before a request is
/// posted, and the id in a completion with `head_id`. Both comparisons also fail in the states that
/// need more checks: [`Admission::Closed`] is stored in `end_id`, [`Removals::OutOfOrder`] in
/// `head_id`.
#[derive(Debug)]
pub(super) struct Sequence {
    /// The first id for which the sequence has no room: [`Self::tail_id`] plus the number of
    /// further requests that can be posted. In the state [`Admission::Closed`], [`CLOSED`] is
    /// subtracted.
    end_id: i64,
    /// Id of the oldest outstanding request or, if no request is outstanding, of the next request.
    /// Includes [`OUT_OF_ORDER`] in the state [`Removals::OutOfOrder`].
    head_id: u64,
    /// Id of the next request to be posted.
    tail_id: u64,
    /// Number of the first request whose id is in the same block as the id of the next request.
    tail_block: u64,
    /// First ids of the last two blocks. Element 0 is for the last block with an even index,
    /// element 1 for the last block with an odd index.
    blocks: [u64; 2],
    /// Number of blocks of ids that this sequence has allocated so far.
    opened: u64,
    /// Maximum number of outstanding requests.
    capacity: usize,
}

/// State of a [`Sequence`] that determines whether requests may be posted on the fast path (with
/// few, inlined checks).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Admission {
    /// Requests may be posted on the fast path while the sequence has room.
    Open,
    /// No request may be posted on the fast path.
    Closed,
}

/// The order in which completed requests have been removed from a [`Sequence`], compared with the
/// order of posting.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Removals {
    /// All removed requests are older than all outstanding requests.
    InOrder,
    /// A request was removed although an older request is still outstanding.
    OutOfOrder,
}

/// The bit that is set in [`Sequence::head_id`] in the state [`Removals::OutOfOrder`]. A completion
/// is handled with few checks only if its id equals `head_id`. With this bit `head_id` equals no
/// id: ids of this crate never have the bit, and ids that the program chooses are below 2^24 or at
/// least 2^63.
const OUT_OF_ORDER: u64 = 1 << 62;

/// The number that is subtracted from [`Sequence::end_id`] in the state [`Admission::Closed`]. A
/// request can be posted with few checks only if its id is below `end_id`. After the subtraction no
/// new id is below `end_id`, because this number is larger than any capacity.
const CLOSED: i64 = 1 << 32;

impl Sequence {
    /// Creates the work request ids for a queue with at most `capacity` outstanding requests. Ids
    /// are allocated in blocks of 2^[`BLOCK_BITS`], and `capacity` must not be larger than a block.
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

    /// Returns whether the next request can be posted with few, inlined checks: the number of
    /// outstanding requests is below the capacity, and the state is [`Admission::Open`].
    #[inline]
    pub(super) fn is_open(&self) -> bool {
        (self.tail_id as i64) < self.end_id
    }

    /// Sets the state that determines whether requests may be posted with few, inlined checks.
    pub(super) fn set_admission(&mut self, admission: Admission) {
        match (self.admission(), admission) {
            (Admission::Open, Admission::Closed) => self.end_id -= CLOSED,
            (Admission::Closed, Admission::Open) => self.end_id += CLOSED,
            _ => {}
        }
    }

    #[inline]
    fn admission(&self) -> Admission {
        if self.end_id < self.tail_id as i64 {
            Admission::Closed
        } else {
            Admission::Open
        }
    }

    /// Records whether completed requests were removed in the order of posting. Called after the
    /// removal of a completed request. In the state [`Removals::OutOfOrder`], [`Self::oldest_id`]
    /// matches no id, so that every completion is handled with all checks.
    pub(super) fn set_removals(&mut self, removals: Removals) {
        self.head_id = match removals {
            Removals::InOrder => self.head_id & !OUT_OF_ORDER,
            Removals::OutOfOrder => self.head_id | OUT_OF_ORDER,
        };
    }

    /// Returns the number of the oldest outstanding request or, if no request is outstanding, the
    /// number of the next request.
    #[inline]
    pub(super) fn head(&self) -> u64 {
        self.tail() - self.outstanding() as u64
    }

    /// Returns the number of the next request to be posted, counted from 0.
    #[inline]
    pub(super) fn tail(&self) -> u64 {
        self.tail_block | (self.tail_id & BLOCK_MASK)
    }

    #[inline]
    pub(super) fn outstanding(&self) -> usize {
        let end_id = match self.admission() {
            Admission::Open => self.end_id,
            Admission::Closed => self.end_id + CLOSED,
        };
        self.capacity - (end_id - self.tail_id as i64) as usize
    }

    /// Returns the id of the oldest outstanding request or, if no request is outstanding, the id of
    /// the next request. If requests have been removed out of order, the returned value is the id
    /// of no request, so that a comparison with any id fails.
    #[inline]
    pub(super) fn oldest_id(&self) -> u64 {
        self.head_id
    }

    /// Returns the id of the next request to be posted.
    #[inline]
    pub(super) fn next_id(&self) -> u64 {
        self.tail_id
    }

    /// Returns the work request id of the request with the number `number`. Numbers count from 0 in
    /// each queue, whereas ids are unique within the process.
    #[inline]
    pub(super) fn id(&self, number: u64) -> u64 {
        self.blocks[(number >> BLOCK_BITS) as usize & 1] | (number & BLOCK_MASK)
    }

    /// Returns the number of the outstanding request with the work request id `id`, counted from 0
    /// in the order of posting, or `None` if there is no such request.
    pub(super) fn number(&self, id: u64) -> Option<u64> {
        let head = self.head();
        let number = head + (id.wrapping_sub(head) & BLOCK_MASK);
        (number < self.tail() && self.id(number) == id).then_some(number)
    }

    /// Returns the number of unused ids in the current block, including the id of the next request.
    /// After the last of these ids, the queue needs a new block of ids.
    #[inline]
    pub(super) fn left_in_block(&self) -> u64 {
        BLOCK_MASK + 1 - (self.tail_id & BLOCK_MASK)
    }

    /// Records that the next `count` requests were posted and are outstanding. Does not allocate a
    /// new block of ids, so `count` must be less than [`Self::left_in_block`].
    #[inline]
    pub(super) fn advance_tail_within(&mut self, count: u64) {
        debug_assert!(count < self.left_in_block());
        self.tail_id += count;
    }

    /// Records that the next request was posted and is outstanding. Allocates a new block of ids if
    /// the request has used the last id of the current block.
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
        // `end_id` moves by the same distance as `tail_id`, so that the room for further requests
        // does not change.
        self.end_id += id as i64 - self.tail_id as i64;
        self.tail_id = id;
    }

    /// Removes the oldest outstanding request from the sequence, after the request has completed.
    /// At least one request must be outstanding.
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
        self.head_id = self.id(self.head()) | self.head_id & OUT_OF_ORDER;
    }

    /// Allocates a new block of 2^[`BLOCK_BITS`] work request ids if the request with the number
    /// `number` is the first to use the block. Only the last two blocks are stored, so the new
    /// block replaces the older of them. Therefore `number` must be less than 2^[`BLOCK_BITS`]
    /// above the number of the oldest outstanding request. `number` must not decrease from call to
    /// call.
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

    /// Returns a sequence without outstanding requests that has used all but 7 ids of `blocks`
    /// blocks. After 7 further requests the sequence needs the next block of 2^24 ids.
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
    fn a_closed_sequence_counts_requests() {
        let mut sequence = Sequence::new(2);
        sequence.advance_tail();
        assert!(sequence.is_open());
        for state in [Admission::Closed, Admission::Closed, Admission::Open] {
            sequence.set_admission(state);
            let is_open = state == Admission::Open;
            assert_eq!((sequence.is_open(), sequence.outstanding()), (is_open, 1));
        }
        sequence.set_admission(Admission::Closed);
        sequence.advance_tail();
        assert_eq!((sequence.head(), sequence.outstanding()), (0, 2));
        sequence.set_admission(Admission::Open);
        assert!(!sequence.is_open(), "it is full");
        sequence.advance_head();
        assert!(sequence.is_open());
    }

    #[test]
    fn out_of_order_the_oldest_id_matches_no_completion() {
        let mut sequence = Sequence::new(9);
        let id = sequence.oldest_id();
        sequence.set_removals(Removals::OutOfOrder);
        // Ids that the program chooses are below 2^24, or at least 2^63, so no id of this crate
        // equals one of them.
        assert!(((1 << BLOCK_BITS)..1 << 63).contains(&sequence.oldest_id()));
        assert_ne!(sequence.oldest_id(), id);
        sequence.set_removals(Removals::InOrder);
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
        // In this sequence the next requests have numbers with the same low bits as before, but
        // belong to another block.
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
