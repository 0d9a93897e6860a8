//! A ring: a queue of messages in shared memory, which the threads of one process send and another
//! process receives.
//!
//! A ring has slots of one cache line, and chunks (also of one cache line) for payloads that do not
//! fit into a slot. The low half of a slot's first word is the slot's number plus one once the slot
//! is published. A message is one slot, whose first word is stored last, and any number of chunks.
//! The chunks of a message follow those of the message before, so their position is not
//! transmitted.
//!
//! The producers are threads of one process. A producer claims a slot and chunks by a single
//! compare-and-swap in the process's own memory, and waits for no other thread. The only consumer
//! is in another process. The consumer publishes its position from time to time and not for each
//! message, because a cache line that both processes write would move between processors.
//!
//! Neither side trusts the other. The consumer copies each word once and then checks the copy. An
//! impossible count is a protocol violation ([`Violation`]). A producer that ends between claim and
//! publication leaves a slot that is never published. The process of the producer has then ended,
//! and with it the ring.
#![forbid(unsafe_code)]

use std::ops::Deref;

use crate::memory::Piece;
use crate::sync::{AtomicU64, Line, Ordering};

mod consumer;
#[cfg(all(test, loom))]
mod models;
mod producer;
#[cfg(all(test, not(loom)))]
mod tests;

pub(super) use consumer::Consumer;
pub(super) use producer::{Producer, PushError};

/// Slot of a ring (message queue). A slot is one cache line: a word with the slot's number, and
/// [`WORDS`] words of a message.
#[derive(Debug)]
#[repr(C, align(64))]
pub(super) struct Slot([AtomicU64; 8]);

/// Chunk of a message ring: a cache line of payload that does not fit into the message's slot
/// (cache line with the message's words).
pub(super) type Chunk = [AtomicU64; CHUNK_WORDS];

/// Shared control words of a ring (message queue). `released` is the position up to which the
/// consumer has freed the memory, and only the consumer writes this word. `starved` requests a
/// wakeup of a producer that waits for free space, and both sides write this word.
#[derive(Debug)]
#[repr(C)]
pub(super) struct ControlWords {
    released: Line,
    starved: Line,
}

/// Number of words of a slot that belong to the message: all eight words of the cache line except
/// the first. The first word shows whether the slot is published.
pub(super) const WORDS: usize = 7;

/// Number of 64-bit words of a chunk, the unit of payload memory: one cache line.
pub(super) const CHUNK_WORDS: usize = 8;

/// Length of a chunk (cache line of payload) in bytes.
pub(super) const CHUNK: usize = 8 * CHUNK_WORDS;

/// Tag of a published slot (cache line of the message ring) that contains no message. A producer
/// publishes such a slot if it has claimed the slot and then cannot complete the message.
const NO_MESSAGE: u16 = 0;

/// Shared memory of a ring buffer for messages: one cache line for each message (`slots`), cache
/// lines for longer payloads (`chunks`), and control words (`marks`). The numbers of slots and of
/// chunks must be powers of two.
#[derive(Debug)]
pub(super) struct Memory<S, C, M> {
    pub(super) slots: S,
    pub(super) chunks: C,
    pub(super) marks: M,
}

/// Error: the peer has violated the protocol of the message ring in shared memory, for example by
/// publishing an impossible position.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the peer's memory makes no sense")]
pub(super) struct Violation;

/// Position in a ring: the numbers of the next slot (cache line for one message) and of the next
/// chunk (cache line for a payload that does not fit into a slot). Both are modulo 2^32.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Position {
    slot: u32,
    chunk: u32,
}

impl Position {
    fn of(word: u64) -> Self {
        Self {
            slot: (word >> 32) as u32,
            chunk: word as u32,
        }
    }

    fn word(self) -> u64 {
        u64::from(self.slot) << 32 | u64::from(self.chunk)
    }

    fn after(self, chunks: u16) -> Self {
        Self {
            slot: self.slot.wrapping_add(1),
            chunk: self.chunk.wrapping_add(u32::from(chunks)),
        }
    }
}

/// Returns whether the producer has published the slot (cache line of the ring) with the number
/// `number`.
#[inline]
pub(super) fn is_published(slots: &[Slot], number: u32) -> bool {
    head_of(slots, number).is_some()
}

/// Returns the first word of the slot (cache line of the ring) with the number `number`, or `None`
/// if the producer has not published this slot yet.
#[inline]
fn head_of(slots: &[Slot], number: u32) -> Option<u64> {
    let head = slots[number as usize & (slots.len() - 1)].0[0].load(Ordering::Acquire);
    (head as u32 == number.wrapping_add(1)).then_some(head)
}

/// Returns the first word of the slot (cache line for one message) at `position`, which marks the
/// slot as filled. From the low bits: the slot number plus 1 (32 bits), the number `chunks` of
/// cache lines of payload (16 bits), and the message's tag (16 bits).
fn head(position: Position, tag: u16, chunks: u16) -> u64 {
    u64::from(tag) << 48 | u64::from(chunks) << 32 | u64::from(position.slot.wrapping_add(1))
}

impl<S, C, M> Memory<S, C, M>
where
    S: Deref<Target = [Slot]>,
    C: Deref<Target = [Chunk]>,
{
    fn slot(&self, position: Position) -> &[AtomicU64; 8] {
        &self.slots[position.slot as usize & (self.slots.len() - 1)].0
    }

    /// Returns the memory for the payload of a message: `count` cache lines of the ring buffer,
    /// beginning with the cache line number `from`. The memory may wrap around the end of the
    /// buffer.
    fn room(&self, from: u32, count: u16) -> MessageChunks<'_> {
        let (start, count) = (
            from as usize & (self.chunks.len() - 1),
            usize::from(count).min(self.chunks.len()),
        );
        let first = count.min(self.chunks.len() - start);
        MessageChunks {
            first: &self.chunks[start..start + first],
            second: &self.chunks[..count - first],
        }
    }
}

/// Chunks (cache lines of payload) of one message in a ring in shared memory. The other process may
/// change their contents at any time.
#[derive(Clone, Copy, Debug)]
pub(super) struct MessageChunks<'a> {
    first: &'a [Chunk],
    second: &'a [Chunk],
}

impl<'a> MessageChunks<'a> {
    /// Returns the payload memory of the message as two ranges in order, because it may wrap around
    /// the end of the ring buffer.
    pub(super) fn pieces(&self) -> [Piece<'a>; 2] {
        [self.first, self.second].map(|chunks| Piece::of_atomics(chunks.as_flattened()))
    }

    /// Returns the total size in bytes of the chunks (cache lines of payload) of this message. The
    /// payload is shorter if it does not fill the last chunk.
    pub(super) fn length(&self) -> usize {
        (self.first.len() + self.second.len()) * CHUNK
    }

    /// Copies `data` to the chunks (cache lines of payload) of the message. The caller must have
    /// claimed enough chunks, because bytes that do not fit are dropped.
    pub(super) fn write(&self, data: &[u8]) {
        let chunks = self.first.iter().chain(self.second);
        for (words, bytes) in chunks.zip(data.chunks(CHUNK)) {
            // All words of a chunk are stored by a single loop, because a long message spends most
            // of its time here.
            let (whole, rest) = bytes.as_chunks();
            for (word, bytes) in words.iter().zip(whole) {
                word.store(u64::from_ne_bytes(*bytes), Ordering::Relaxed);
            }
            if let (Some(word), false) = (words.get(whole.len()), rest.is_empty()) {
                let mut value = [0; 8];
                value[..rest.len()].copy_from_slice(rest);
                word.store(u64::from_ne_bytes(value), Ordering::Relaxed);
            }
        }
    }

    /// Copies bytes of the message's chunks (cache lines of payload) to `out`. Bytes of `out`
    /// beyond the length of the chunks stay unchanged.
    pub(super) fn read(&self, out: &mut [u8]) {
        let chunks = self.first.iter().chain(self.second);
        for (words, bytes) in chunks.zip(out.chunks_mut(CHUNK)) {
            let (whole, rest) = bytes.as_chunks_mut();
            for (word, bytes) in words.iter().zip(&mut *whole) {
                *bytes = word.load(Ordering::Relaxed).to_ne_bytes();
            }
            if let Some(word) = words.get(whole.len()) {
                let value = word.load(Ordering::Relaxed).to_ne_bytes();
                rest.copy_from_slice(&value[..rest.len()]);
            }
        }
    }
}

#[cfg(test)]
pub(super) mod memory {
    use std::sync::Arc;

    use super::*;

    /// Memory of a message ring that only threads of one process share, for tests.
    pub(in crate::same_host) type TestRing = Memory<Arc<[Slot]>, Arc<[Chunk]>, Arc<ControlWords>>;

    pub(in crate::same_host) fn memory(slots: usize, chunks: usize) -> (TestRing, TestRing) {
        let zero = || AtomicU64::new(0);
        let slots: Arc<[Slot]> = (0..slots)
            .map(|_| Slot(std::array::from_fn(|_| zero())))
            .collect();
        let chunks: Arc<[Chunk]> = (0..chunks)
            .map(|_| std::array::from_fn(|_| zero()))
            .collect();
        let marks = Arc::new(ControlWords {
            released: Line::here(),
            starved: Line::here(),
        });
        let again = Memory {
            slots: Arc::clone(&slots),
            chunks: Arc::clone(&chunks),
            marks: Arc::clone(&marks),
        };
        let memory = Memory {
            slots,
            chunks,
            marks,
        };
        (memory, again)
    }
}
