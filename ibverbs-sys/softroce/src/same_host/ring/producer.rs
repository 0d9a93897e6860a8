use std::ops::Deref;

use super::{
    Chunk, ControlWords, Memory, MessageChunks, NO_MESSAGE, Position, Slot, Violation, head,
};
use crate::memory::prefetch_for_write;
use crate::sync::{AtomicU64, Ordering, fence};

/// Distance, in slots (cache lines of the ring), from the next slot to the slot that
/// [`Producer::prefetch`] loads into the cache. The next slot itself would soon be lost from the
/// cache, because the consumer polls it.
const PREFETCH_DISTANCE: u32 = 3;

/// Reason for which a message could not be sent on a ring (message queue).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::same_host) enum PushError<E> {
    /// The ring has no free space at present. The message can be sent after the consumer has
    /// received other messages.
    Full,
    /// The consumer has violated the protocol of the ring, so that the ring cannot be used any
    /// more.
    Violation,
    /// The function `fill`, which writes the payload, has failed with this error.
    Content(E),
}

/// Sending side of a ring (message queue in shared memory). Several threads may use it at the same
/// time. `S`, `C` and `M` are the types of the references to the ring's slots, chunks and control
/// words (see [`Memory`]).
#[derive(Debug)]
pub(in crate::same_host) struct Producer<S, C, M> {
    memory: Memory<S, C, M>,
    claimed: AtomicU64,
    /// Cached position of the consumer, as a thread of this process last loaded it from shared
    /// memory. The shared word is read again only if the ring seems to be full.
    released: AtomicU64,
}

impl<S, C, M> Producer<S, C, M>
where
    S: Deref<Target = [Slot]>,
    C: Deref<Target = [Chunk]>,
    M: Deref<Target = ControlWords>,
{
    /// Creates the producer (sending side) of a message ring in shared memory that has never been
    /// used.
    pub(in crate::same_host) fn new(memory: Memory<S, C, M>) -> Self {
        Self::at(Position::of(0), memory)
    }

    /// Creates the sending side of a message ring in the shared memory `memory`. `position` is the
    /// position of the next message. The caller must ensure that all earlier messages were sent and
    /// consumed.
    pub(super) fn at(position: Position, memory: Memory<S, C, M>) -> Self {
        debug_assert!(memory.slots.len().is_power_of_two());
        debug_assert!(memory.chunks.len().is_power_of_two());
        Self {
            memory,
            claimed: AtomicU64::new(position.word()),
            released: AtomicU64::new(position.word()),
        }
    }

    /// Sends a message that consists of `words` and of `chunks` chunks (cache lines of payload).
    /// The function `fill` writes the chunks. `tag` must not be 0. If `fill` fails, publishes the
    /// claimed slot without a message, and the consumer skips the slot.
    pub(in crate::same_host) fn push<E>(
        &self,
        tag: u16,
        words: &[u64],
        chunks: u16,
        fill: impl FnOnce(MessageChunks<'_>) -> Result<(), E>,
    ) -> Result<(), PushError<E>> {
        let position = self.claim(chunks)?;
        let mut claim = Claim {
            slot: self.memory.slot(position),
            head: head(position, NO_MESSAGE, chunks),
        };
        for (word, &value) in claim.slot[1..].iter().zip(words) {
            word.store(value, Ordering::Relaxed);
        }
        if chunks > 0 {
            fill(self.memory.room(position.chunk, chunks)).map_err(PushError::Content)?;
        }
        claim.head = head(position, tag, chunks);
        Ok(())
    }

    fn claim<E>(&self, chunks: u16) -> Result<Position, PushError<E>> {
        loop {
            let claimed = self.claimed.load(Ordering::Relaxed);
            let position = Position::of(claimed);
            if !self.has_room(claimed, chunks)? {
                if self.claimed.load(Ordering::Relaxed) == claimed {
                    return Err(PushError::Full);
                }
                // Another thread has claimed space meanwhile, so the check is repeated.
                continue;
            }
            let next = position.after(chunks).word();
            let order = Ordering::Relaxed;
            let result = self
                .claimed
                .compare_exchange_weak(claimed, next, order, order);
            if result.is_ok() {
                return Ok(position);
            }
        }
    }

    /// Returns whether the message ring has space for a message with `chunks` chunks (cache lines
    /// of payload) at the position `claimed`. The result is valid only while `claimed` is the
    /// position of the next message.
    fn has_room(&self, claimed: u64, chunks: u16) -> Result<bool, Violation> {
        let used = |released: u64| {
            let (claimed, released) = (Position::of(claimed), Position::of(released));
            let slots = claimed.slot.wrapping_sub(released.slot) as usize;
            (slots, claimed.chunk.wrapping_sub(released.chunk) as usize)
        };
        let (all_slots, all_chunks) = (self.memory.slots.len(), self.memory.chunks.len());
        let fits = |(slots, used): (usize, usize)| {
            slots < all_slots && used <= all_chunks && usize::from(chunks) <= all_chunks - used
        };
        // Acquire: the consumer has read the released slots before this process overwrites them.
        let known = self.released.load(Ordering::Acquire);
        if fits(used(known)) {
            return Ok(true);
        }
        let told = self.memory.marks.released.0.load(Ordering::Acquire);
        let (slots, chunks_used) = used(told);
        if slots > all_slots || chunks_used > all_chunks {
            // This is no violation if other threads have claimed more meanwhile, and the consumer
            // has released that.
            let present = self.claimed.load(Ordering::Relaxed) == claimed;
            return if present { Err(Violation) } else { Ok(false) };
        }
        // Nothing is stored if another thread has stored a newer position meanwhile.
        let (success, failure) = (Ordering::AcqRel, Ordering::Relaxed);
        let _ = self
            .released
            .compare_exchange(known, told, success, failure);
        Ok(fits((slots, chunks_used)))
    }

    /// Loads the cache line of a later slot into this processor's cache for writing, because
    /// further messages probably follow. Without this prefetch, a store to the slot would wait: the
    /// cache line is still in the cache of the consumer's processor, which has read the previous
    /// message of the slot.
    #[inline]
    pub(in crate::same_host) fn prefetch(&self) {
        let mut position = Position::of(self.claimed.load(Ordering::Relaxed));
        position.slot = position.slot.wrapping_add(PREFETCH_DISTANCE);
        prefetch_for_write(self.memory.slot(position));
    }

    /// Returns whether the message ring has space for a message with `chunks` chunks (cache lines
    /// of payload). The space is not reserved: another thread can take it before the caller does.
    /// Also returns `true` if the consumer has violated the protocol.
    pub(in crate::same_host) fn may_have_room(&self, chunks: u16) -> bool {
        loop {
            let claimed = self.claimed.load(Ordering::Relaxed);
            // Waiting for a consumer that violates the protocol is useless: `push` reports the
            // error.
            if self.has_room(claimed, chunks).unwrap_or(true) {
                return true;
            }
            if self.claimed.load(Ordering::Relaxed) == claimed {
                return false;
            }
        }
    }

    /// Requests that the consumer wakes this process when it has freed space. Returns whether there
    /// is space for a message with `chunks` chunks (cache lines of payload) now.
    pub(in crate::same_host) fn request_space(&self, chunks: u16) -> bool {
        let starved = &self.memory.marks.starved.0;
        // The word is loaded first: usually it still contains an earlier request.
        if starved.load(Ordering::Relaxed) == 0 {
            starved.store(1, Ordering::Relaxed);
        }
        fence(Ordering::SeqCst);
        self.may_have_room(chunks)
    }
}

impl<E> From<Violation> for PushError<E> {
    fn from(_: Violation) -> Self {
        Self::Violation
    }
}

/// A slot (one cache line of the ring buffer) that a producer is filling. Dropping this value
/// publishes the slot. If the message is not complete, the slot gets a mark that makes the consumer
/// skip it.
struct Claim<'a> {
    slot: &'a [AtomicU64; 8],
    head: u64,
}

impl Drop for Claim<'_> {
    fn drop(&mut self) {
        self.slot[0].store(self.head, Ordering::Release);
    }
}
