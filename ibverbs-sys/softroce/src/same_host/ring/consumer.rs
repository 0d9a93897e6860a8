use std::ops::Deref;

use super::{
    Chunk, ControlWords, Memory, MessageChunks, NO_MESSAGE, Position, Slot, Violation, WORDS,
    head_of,
};
use crate::sync::{Ordering, fence};

/// Receiving side of a ring (message queue in shared memory). `S`, `C` and `M` are the types of the
/// references to the ring's slots, chunks and control words (see [`Memory`]).
#[derive(Debug)]
pub(in crate::same_host) struct Consumer<S, C, M> {
    memory: Memory<S, C, M>,
    position: Position,
    released: Position,
    must_wake_producer: bool,
}

/// A received message: its words, which are copied out of the slot (cache line of the ring), and
/// its chunks (cache lines of payload), which are still in the ring. So the producer can no longer
/// change the words, but can still change the chunks.
#[derive(Clone, Copy, Debug)]
pub(in crate::same_host) struct Message<'a> {
    /// Number that the producer has added to the message: the message type, and the indices of the
    /// GIDs. The number is not 0.
    pub(in crate::same_host) tag: u16,
    pub(in crate::same_host) words: [u64; WORDS],
    pub(in crate::same_host) room: MessageChunks<'a>,
}

impl<S, C, M> Consumer<S, C, M>
where
    S: Deref<Target = [Slot]>,
    C: Deref<Target = [Chunk]>,
    M: Deref<Target = ControlWords>,
{
    /// Creates the consumer (receiving side) of a message ring in shared memory that has never been
    /// used.
    pub(in crate::same_host) fn new(memory: Memory<S, C, M>) -> Self {
        Self::at(Position::of(0), memory)
    }

    /// Creates the consumer (receiving side) of a message ring in shared memory. All messages
    /// before `position` were consumed already.
    pub(super) fn at(position: Position, memory: Memory<S, C, M>) -> Self {
        Self {
            memory,
            position,
            released: position,
            must_wake_producer: false,
        }
    }

    /// Returns whether the ring (message queue in shared memory) currently contains no message for
    /// this consumer.
    pub(in crate::same_host) fn is_empty(&self) -> bool {
        self.head().is_none()
    }

    /// Removes the next message from the ring (message queue in shared memory), and calls `take`
    /// with the message. Returns the result of `take`, or `None` if there is no message at present.
    /// Also returns `None` if the producer has published only slots without a message. The caller
    /// must then call this function again.
    pub(in crate::same_host) fn pop<T>(
        &mut self,
        take: impl FnOnce(Message<'_>) -> T,
    ) -> Result<Option<T>, Violation> {
        // The loop is bounded, so that a producer that publishes only slots without a message does
        // not keep this thread busy.
        for _ in 0..self.memory.slots.len() {
            let Some(head) = self.head() else {
                break;
            };
            let (tag, chunks) = ((head >> 48) as u16, (head >> 32) as u16);
            if usize::from(chunks) > self.memory.chunks.len() {
                return Err(Violation);
            }
            let slot = self.memory.slot(self.position);
            let words: [u64; WORDS] =
                std::array::from_fn(|word| slot[1 + word].load(Ordering::Relaxed));
            if tag == NO_MESSAGE {
                self.advance(chunks);
                continue;
            }
            let room = self.memory.room(self.position.chunk, chunks);
            let result = take(Message { tag, words, room });
            self.advance(chunks);
            return Ok(Some(result));
        }
        Ok(None)
    }

    /// Returns whether the caller must wake the producer (the sending process): the producer has
    /// requested a wakeup, and space was freed since the last call.
    pub(in crate::same_host) fn must_wake_producer(&mut self) -> bool {
        std::mem::take(&mut self.must_wake_producer)
    }

    /// Returns the number of the slot (cache line of the ring) in which the next message arrives.
    /// Callers pass the number to [`is_published`](super::is_published).
    pub(in crate::same_host) fn next_slot(&self) -> u32 {
        self.position.slot
    }

    /// Returns the number of the first slot (cache line of the ring) that the producer has not
    /// published yet. All messages that have arrived are in the slots before it.
    pub(in crate::same_host) fn end(&self) -> u32 {
        let slots = &self.memory.slots;
        let next = self.position.slot;
        let come = (0..slots.len() as u32)
            .take_while(|&ahead| head_of(slots, next.wrapping_add(ahead)).is_some());
        next.wrapping_add(come.count() as u32)
    }

    /// Returns the first word of the next message's slot (cache line of the ring), or `None` if the
    /// producer has not published the slot yet.
    #[inline]
    fn head(&self) -> Option<u64> {
        head_of(&self.memory.slots, self.position.slot)
    }

    /// Moves the consumer's position past a message with `chunks` cache lines of payload. Publishes
    /// the position to the producer whenever a quarter of the ring buffer has become free.
    fn advance(&mut self, chunks: u16) {
        self.position = self.position.after(chunks);
        let slots = self.position.slot.wrapping_sub(self.released.slot) as usize;
        let chunks = self.position.chunk.wrapping_sub(self.released.chunk) as usize;
        if slots * 4 < self.memory.slots.len() && chunks * 4 < self.memory.chunks.len() {
            return;
        }
        self.released = self.position;
        let ControlWords { released, starved } = &*self.memory.marks;
        released.0.store(self.position.word(), Ordering::Release);
        fence(Ordering::SeqCst);
        if starved.0.load(Ordering::Relaxed) != 0 {
            starved.0.store(0, Ordering::Relaxed);
            self.must_wake_producer = true;
        }
    }
}
