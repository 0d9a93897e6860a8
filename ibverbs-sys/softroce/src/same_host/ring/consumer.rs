use std::ops::Deref;

use super::{Broken, Chunk, Marks, Memory, NOTHING, Position, Room, Slot, WORDS, head_of};
use crate::sync::{Ordering, fence};

/// The side that receives.
#[derive(Debug)]
pub(in crate::same_host) struct Consumer<S, C, M> {
    memory: Memory<S, C, M>,
    position: Position,
    released: Position,
    owes_waking: bool,
}

/// A message, copied out of its slot. Its chunks are still where they were.
#[derive(Clone, Copy, Debug)]
pub(in crate::same_host) struct Message<'a> {
    /// What the producer says of it; not 0.
    pub(in crate::same_host) tag: u16,
    pub(in crate::same_host) words: [u64; WORDS],
    pub(in crate::same_host) room: Room<'a>,
}

impl<S, C, M> Consumer<S, C, M>
where
    S: Deref<Target = [Slot]>,
    C: Deref<Target = [Chunk]>,
    M: Deref<Target = Marks>,
{
    /// The consumer of a ring that nothing was ever in.
    pub(in crate::same_host) fn new(memory: Memory<S, C, M>) -> Self {
        Self::at(Position::of(0), memory)
    }

    /// The consumer of a ring in which all before a position has been.
    pub(super) fn at(position: Position, memory: Memory<S, C, M>) -> Self {
        Self {
            memory,
            position,
            released: position,
            owes_waking: false,
        }
    }

    /// Whether there is nothing.
    pub(in crate::same_host) fn is_empty(&self) -> bool {
        self.head().is_none()
    }

    /// Takes the next message. `take` does not keep its chunks. None: there is no message at present, or the producer has
    /// published a ring full of slots without one: then it is to be called again.
    pub(in crate::same_host) fn pop<T>(
        &mut self,
        take: impl FnOnce(Message<'_>) -> T,
    ) -> Result<Option<T>, Broken> {
        // A producer that publishes nothing else does not keep this thread here.
        for _ in 0..self.memory.slots.len() {
            let Some(head) = self.head() else {
                break;
            };
            let (tag, chunks) = ((head >> 48) as u16, (head >> 32) as u16);
            if usize::from(chunks) > self.memory.chunks.len() {
                return Err(Broken);
            }
            let slot = self.memory.slot(self.position);
            let mut words = [0; WORDS];
            for (value, word) in words.iter_mut().zip(&slot[1..]) {
                *value = word.load(Ordering::Relaxed);
            }
            if tag == NOTHING {
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

    /// Whether, since this was asked last, room has come for a producer that waits for some: then its process is to be
    /// woken, if it sleeps.
    pub(in crate::same_host) fn owes_waking(&mut self) -> bool {
        std::mem::take(&mut self.owes_waking)
    }

    /// The number of the slot that the next message comes in, for [`has_come`].
    pub(in crate::same_host) fn next_slot(&self) -> u32 {
        self.position.slot
    }

    /// Returns the number of the first slot that has not come yet.
    pub(in crate::same_host) fn end(&self) -> u32 {
        let slots = &self.memory.slots;
        let next = self.position.slot;
        let come = (0..slots.len() as u32)
            .take_while(|&ahead| head_of(slots, next.wrapping_add(ahead)).is_some());
        next.wrapping_add(come.count() as u32)
    }

    /// The first word of the next message.
    #[inline]
    fn head(&self) -> Option<u64> {
        head_of(&self.memory.slots, self.position.slot)
    }

    /// Goes on behind a message, and tells how far it is if it was silent for long.
    fn advance(&mut self, chunks: u16) {
        self.position = self.position.after(chunks);
        let slots = self.position.slot.wrapping_sub(self.released.slot) as usize;
        let chunks = self.position.chunk.wrapping_sub(self.released.chunk) as usize;
        if slots * 4 < self.memory.slots.len() && chunks * 4 < self.memory.chunks.len() {
            return;
        }
        self.released = self.position;
        let Marks { released, starved } = &*self.memory.marks;
        released.0.store(self.position.word(), Ordering::Release);
        fence(Ordering::SeqCst);
        if starved.0.load(Ordering::Relaxed) != 0 {
            starved.0.store(0, Ordering::Relaxed);
            self.owes_waking = true;
        }
    }
}
