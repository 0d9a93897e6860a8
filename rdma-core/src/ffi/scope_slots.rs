//! The slots of a scope's requests, which a single thread uses.

use std::cell::Cell;
use std::sync::Arc;

use super::completion_record::CompletionRecord;
use super::inbox::Inbox;
use super::request_id::{BLOCK_BITS, BLOCK_MASK};
use crate::completion::WorkCompletion;
use crate::queue_pair::KeepAlive;

/// Maximum number of slots of a scope.
const MAX_SLOTS: u32 = 1 << 16;

/// Value of a slot's word while the slot is free. Like [`OTHER`], this value is never the id of a
/// request: ids begin at 2^24.
pub(super) const FREE: u64 = 0;

/// Value of a slot's word if the word cannot express the state of the slot. [`Details::what`] then
/// contains the state.
const OTHER: u64 = 1;

/// The state of a scope's request, which its slot contains.
#[derive(Debug, Clone, Copy)]
pub(super) enum Use {
    InFlight {
        id: u64,
    },
    /// The request is in flight, and its handle was dropped.
    Unwatched {
        id: u64,
    },
    Completed(WorkCompletion),
    /// A reset of the queue pair has discarded the request.
    Forgotten,
    /// The slot is never used. The length of the table is rounded up to a power of two, so it may
    /// exceed the capacity.
    Nothing,
}

/// A fixed number of slots for requests.
///
/// The low bits of a request's id are the index of its slot. Ids are consecutive, so requests use
/// the slots in turn; slots that are still in use are skipped.
pub(super) struct ScopeSlots {
    /// The word of each slot. In the usual state it is the id of the request: the request is in
    /// flight, has a handle and keeps nothing alive. Otherwise it is [`FREE`] or [`OTHER`]. The
    /// length is `mask + 1`.
    words: Box<[Cell<u64>]>,
    details: Box<[Details]>,
    mask: u64,
    next: Cell<u64>,
    capacity: usize,
    /// Completions of the scope's requests that other threads have polled.
    inbox: Arc<Inbox<CompletionRecord>>,
}

/// The part of a slot that is used only after the completion of the request, after the drop of its
/// handle, or if the request keeps objects alive.
struct Details {
    /// State of the request. Valid only if the slot's word is [`OTHER`].
    what: Cell<Use>,
    keep: Cell<KeepAlive>,
}

/// A request of a scope: its id, and the word of its slot, which contains the state.
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

    /// Returns whether the word of the slot has the value `word`.
    #[inline]
    pub(super) fn finds(self, word: u64) -> bool {
        self.word.get() == word
    }

    /// Returns whether the request is in flight, has a handle, and keeps nothing alive.
    #[inline]
    pub(super) fn is_simply_in_flight(self) -> bool {
        self.finds(self.id)
    }

    /// Frees the slot of the request.
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
            what: Cell::new(Use::Nothing),
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

    /// Returns the id of the next request and the word of its slot. If the slot is in use, the
    /// caller must call [`Self::reserve`] instead.
    #[inline]
    pub(super) fn next(&self) -> Ticket<'_> {
        self.ticket(self.next.get())
    }

    #[inline]
    fn ticket(&self, id: u64) -> Ticket<'_> {
        let word = self.word(id);
        Ticket { id, word }
    }

    /// Returns the word of the slot that the request with this id uses.
    #[inline]
    fn word(&self, id: u64) -> &Cell<u64> {
        // SAFETY: the number of words is `mask + 1`.
        unsafe { self.words.get_unchecked((id & self.mask) as usize) }
    }

    fn details(&self, id: u64) -> &Details {
        &self.details[(id & self.mask) as usize]
    }

    /// Finds a free slot, and returns it with the id of the next request. Returns `None` if every
    /// slot is in use.
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

    /// Records the next request, which was posted, as in flight. The request must keep nothing
    /// alive, and its slot must be free.
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

    /// Records the next request, which was posted, as in flight, with the objects that it keeps
    /// alive. Its slot must be free.
    pub(super) fn launch_with(&self, ticket: Ticket<'_>, keep: KeepAlive) {
        let id = ticket.id;
        self.launch(ticket);
        if !matches!(keep, KeepAlive::Nothing) {
            self.details(id).keep.set(keep);
            self.set(id, Use::InFlight { id });
        }
    }

    /// Returns the state of the request in the slot for this id, or `None` if the slot is free.
    pub(super) fn get(&self, id: u64) -> Option<Use> {
        match self.word(id).get() {
            FREE => None,
            OTHER => Some(self.details(id).what.get()),
            id => Some(Use::InFlight { id }),
        }
    }

    pub(super) fn set(&self, id: u64, what: Use) {
        self.details(id).what.set(what);
        self.word(id).set(OTHER);
    }

    pub(super) fn free(&self, id: u64) {
        self.word(id).set(FREE);
    }

    /// Takes the objects that the request keeps alive.
    pub(super) fn keep(&self, id: u64) -> KeepAlive {
        self.details(id).keep.replace(KeepAlive::Nothing)
    }

    /// Returns whether the request with this id is in flight.
    pub(super) fn is_in_flight(&self, id: u64) -> bool {
        match self.get(id) {
            Some(Use::InFlight { id: it } | Use::Unwatched { id: it }) => it == id,
            _ => false,
        }
    }

    /// Returns the slots in use, each with its index, which can be passed in place of an id.
    pub(super) fn in_use(&self) -> impl Iterator<Item = (u64, Use)> {
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
    fn there_are_as_many_slots_as_were_asked_for() {
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
    fn slots_that_stay_in_use_are_left_out() {
        let slots = ScopeSlots::new(4);
        let kept = launch(&slots).unwrap();
        let mut seen = HashSet::from([kept]);
        for _ in 0..100 {
            let id = launch(&slots).unwrap();
            assert!(seen.insert(id));
            slots.set(id, Use::Unwatched { id });
            assert!(slots.is_in_flight(id));
            slots.set(id, Use::Forgotten);
            assert!(!slots.is_in_flight(id));
            slots.free(id);
        }
        assert!(slots.is_in_flight(kept));
    }

    #[test]
    fn ids_of_another_block_follow_at_its_end() {
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
    fn an_empty_completion_is_of_no_request() {
        let slots = ScopeSlots::new(1);
        assert!(!slots.is_in_flight(0));
        launch(&slots).unwrap();
        assert!(!slots.is_in_flight(0));
    }
}
