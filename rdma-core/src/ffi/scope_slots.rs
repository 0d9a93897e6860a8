//! The slots (places in a fixed table) of the requests of a scope, which a single thread uses.

use std::cell::Cell;
use std::sync::Arc;

use super::completion_record::CompletionRecord;
use super::inbox::Inbox;
use super::request_id::{BLOCK_BITS, BLOCK_MASK};
use crate::completion::WorkCompletion;
use crate::queue_pair::KeepAlive;

/// Maximum number of slots of a scope, and thus of the scope's requests in flight. Limits the
/// memory that a scope allocates for its table of slots.
const MAX_SLOTS: u32 = 1 << 16;

/// The value that marks a slot (place in the table of a scope's requests) as free. Never equal to
/// the id of a request: ids begin at 2^24.
pub(super) const FREE: u64 = 0;

/// The value that marks a slot whose state is stored in [`Details::state`]. Used for all states
/// other than a free slot and the usual state of a request in flight.
const OTHER: u64 = 1;

/// The state of a request of a [`Scope`](crate::Scope), or of the slot that the request uses.
#[derive(Debug, Clone, Copy)]
pub(super) enum SlotState {
    InFlight {
        id: u64,
    },
    /// The request is in flight, and the program has dropped its handle.
    HandleDropped {
        id: u64,
    },
    Completed(WorkCompletion),
    /// A reset of the queue pair has discarded the request.
    Discarded,
    /// No request may use the slot: the length of the table is a power of two, and may exceed the
    /// capacity of the scope.
    Unusable,
}

/// A table with a fixed number of slots (places) for the requests of a [`Scope`](crate::Scope).
///
/// The low bits of a request's id are the index of its slot. Ids are consecutive, so requests use
/// the slots one after the other. Slots that are still in use are skipped.
pub(super) struct ScopeSlots {
    /// The word of each slot, which expresses the state of the slot. The id of a request means that
    /// this request is in flight, has a handle and keeps nothing alive, the usual state. Other
    /// values are [`FREE`] and [`OTHER`]. The length is `mask + 1`.
    words: Box<[Cell<u64>]>,
    details: Box<[Details]>,
    mask: u64,
    next: Cell<u64>,
    capacity: usize,
    /// Completions of the scope's requests that other threads have polled.
    inbox: Arc<Inbox<CompletionRecord>>,
}

/// The part of a slot that is needed only in unusual states: the request has completed, the handle
/// of the request was dropped, or the request keeps objects alive.
struct Details {
    /// State of the request. Valid only while the word of the slot is [`OTHER`].
    state: Cell<SlotState>,
    keep: Cell<KeepAlive>,
}

/// A handle of one request of a [`Scope`](crate::Scope), used to wait for the request's completion.
/// The handle contains the id of the request, and a reference to the word that stores the state of
/// the request.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Ticket<'s> {
    id: u64,
    word: &'s Cell<u64>,
}

impl Ticket<'_> {
    #[inline]
    pub(crate) fn id(self) -> u64 {
        self.id
    }

    /// Returns whether the stored state of this request equals `word`. The id of the request as
    /// state means that the request is in flight; [`FREE`] means that no request is stored.
    #[inline]
    pub(super) fn has_word(self, word: u64) -> bool {
        self.word.get() == word
    }

    /// Returns whether the request is in flight, has no object to keep alive (such as an address
    /// handle), and still has the handle by which the program waits for it.
    #[inline]
    pub(super) fn is_simply_in_flight(self) -> bool {
        self.has_word(self.id)
    }

    /// Marks the request's slot as free, so that another request can use it.
    #[inline]
    pub(super) fn free(self) {
        self.word.set(FREE);
    }
}

impl ScopeSlots {
    pub(super) fn new(capacity: u32) -> Self {
        let capacity = capacity.clamp(1, MAX_SLOTS) as usize;
        let count = capacity.next_power_of_two();
        let word = |index| Cell::new(if index < capacity { FREE } else { OTHER });
        let details = || Details {
            state: Cell::new(SlotState::Unusable),
            keep: Cell::new(KeepAlive::Nothing),
        };
        let (inbox, first) = Inbox::new();
        Self {
            words: (0..count).map(word).collect(),
            details: (0..count).map(|_| details()).collect(),
            mask: count as u64 - 1,
            next: Cell::new(first),
            capacity,
            inbox: Arc::new(inbox),
        }
    }

    pub(super) fn inbox(&self) -> &Arc<Inbox<CompletionRecord>> {
        &self.inbox
    }

    pub(super) fn capacity(&self) -> usize {
        self.capacity
    }

    /// Returns the id and the slot for the next request. If that slot is still in use, the caller
    /// must call [`Self::reserve`] instead.
    #[inline]
    pub(super) fn next(&self) -> Ticket<'_> {
        self.ticket(self.next.get())
    }

    #[inline]
    fn ticket(&self, id: u64) -> Ticket<'_> {
        let word = self.word(id);
        Ticket { id, word }
    }

    /// Returns the word (stored state) of the slot that the request with this id uses.
    #[inline]
    fn word(&self, id: u64) -> &Cell<u64> {
        // SAFETY: the number of words is `mask + 1`.
        unsafe { self.words.get_unchecked((id & self.mask) as usize) }
    }

    fn details(&self, id: u64) -> &Details {
        &self.details[(id & self.mask) as usize]
    }

    /// Searches for a free slot for the next request. Returns the slot, with the id that the
    /// request must then use, or `None` if every slot is in use.
    pub(super) fn reserve(&self) -> Option<Ticket<'_>> {
        let next = self.next.get();
        for id in next..next + self.words.len() as u64 {
            if self.word(id).get() == FREE {
                let is_same_block = id >> BLOCK_BITS == next >> BLOCK_BITS;
                let id = if is_same_block {
                    id
                } else {
                    self.inbox.next_block() | (id & self.mask)
                };
                self.next.set(id);
                return Some(self.ticket(id));
            }
        }
        None
    }

    /// Records that the next request was posted and is in flight. `ticket` contains the id and the
    /// slot of the request. The slot must be free, and the request must not keep any object alive.
    #[inline]
    pub(super) fn launch(&self, ticket: Ticket<'_>) {
        let id = ticket.id;
        ticket.word.set(id);
        self.next.set(id + 1);
        if (id + 1) & BLOCK_MASK == 0 {
            self.begin_block();
        }
    }

    #[cold]
    #[inline(never)]
    fn begin_block(&self) {
        self.next.set(self.inbox.next_block());
    }

    /// Records that the next request was posted and is in flight, and stores the objects that the
    /// request keeps alive. `ticket` contains the id and the slot of the request. The slot must be
    /// free.
    pub(super) fn launch_with(&self, ticket: Ticket<'_>, keep: KeepAlive) {
        let id = ticket.id;
        self.launch(ticket);
        if !matches!(keep, KeepAlive::Nothing) {
            self.details(id).keep.set(keep);
            self.set(id, SlotState::InFlight { id });
        }
    }

    /// Returns the state of the request with the id `id`; `None` if its slot is free.
    pub(super) fn get(&self, id: u64) -> Option<SlotState> {
        match self.word(id).get() {
            FREE => None,
            OTHER => Some(self.details(id).state.get()),
            id => Some(SlotState::InFlight { id }),
        }
    }

    pub(super) fn set(&self, id: u64, state: SlotState) {
        self.details(id).state.set(state);
        self.word(id).set(OTHER);
    }

    pub(super) fn free(&self, id: u64) {
        self.word(id).set(FREE);
    }

    /// Removes and returns the objects that the request with the id `id` keeps alive, for example
    /// after the request has completed.
    pub(super) fn keep(&self, id: u64) -> KeepAlive {
        self.details(id).keep.replace(KeepAlive::Nothing)
    }

    /// Returns whether the request with this id is in flight.
    pub(super) fn is_in_flight(&self, id: u64) -> bool {
        match self.get(id) {
            Some(SlotState::InFlight { id: it } | SlotState::HandleDropped { id: it }) => it == id,
            _ => false,
        }
    }

    /// Returns the index and the state of each slot of this table that is not free. The methods of
    /// this table that take a request id also accept the index.
    pub(super) fn in_use(&self) -> impl Iterator<Item = (u64, SlotState)> {
        (0..=self.mask).filter_map(|slot| Some((slot, self.get(slot)?)))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    fn launch(slots: &ScopeSlots) -> Option<u64> {
        let ticket = slots.reserve()?;
        slots.launch(ticket);
        Some(ticket.id)
    }

    #[test]
    fn the_table_has_the_requested_number_of_slots() {
        for capacity in [1, 2, 3, 5, 8] {
            let slots = ScopeSlots::new(capacity);
            for _ in 0..3 {
                let ids: Vec<_> = std::iter::from_fn(|| launch(&slots)).collect();
                assert_eq!(ids.len(), capacity as usize);
                for &id in &ids {
                    assert!(slots.is_in_flight(id) && !slots.is_in_flight(id + (1 << 16)));
                    slots.free(id);
                    assert!(!slots.is_in_flight(id));
                }
            }
        }
    }

    #[test]
    fn slots_in_use_are_skipped() {
        let slots = ScopeSlots::new(4);
        let kept = launch(&slots).unwrap();
        let mut seen = HashSet::from([kept]);
        for _ in 0..100 {
            let id = launch(&slots).unwrap();
            assert!(seen.insert(id));
            slots.set(id, SlotState::HandleDropped { id });
            assert!(slots.is_in_flight(id));
            slots.set(id, SlotState::Discarded);
            assert!(!slots.is_in_flight(id));
            slots.free(id);
        }
        assert!(slots.is_in_flight(kept));
    }

    #[test]
    fn a_new_block_of_ids_follows_the_end_of_a_block() {
        for taken in [false, true] {
            let slots = ScopeSlots::new(4);
            let first = slots.next.get();
            let last = first + (1 << BLOCK_BITS) - 1;
            slots.next.set(last);
            if taken {
                slots.word(last).set(last - 4);
            }
            let id = launch(&slots).unwrap();
            assert_eq!(id == last, !taken);
            let next = launch(&slots).unwrap();
            assert_ne!(next >> BLOCK_BITS, first >> BLOCK_BITS);
            assert_ne!(next, id);
        }
    }

    #[test]
    fn an_empty_completion_belongs_to_no_request() {
        let slots = ScopeSlots::new(1);
        assert!(!slots.is_in_flight(0));
        launch(&slots).unwrap();
        assert!(!slots.is_in_flight(0));
    }
}
