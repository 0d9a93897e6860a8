//! Messages from one process to another.
//!
//! A ring has slots of one cache line, and chunks for what does not fit into one. The word that a slot begins with
//! says whose turn it is: its low half counts the slot's position, plus one. A message is one slot, whose first word
//! is stored last. Where its chunks are both sides know: behind those of the message before.
//!
//! Producers are threads of one process. They claim a slot and chunks at once, by one compare and swap in
//! that process's own memory, and wait for nobody. There is one consumer, of another process. It tells
//! how far it is once in a while, and not for each message: a line that both write would be
//! carried back and forth.
//!
//! Neither side believes the other. What the consumer reads is copied out once and then checked; a count that cannot be
//! is the end of the ring ([`Broken`]). A producer that dies between claim and publication leaves a slot that never
//! comes: its process is gone, and the ring with it.
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

/// A slot: a cache line.
#[derive(Debug)]
#[repr(C, align(64))]
pub(super) struct Slot([AtomicU64; 8]);

/// Room for what is too long for a slot: a cache line.
pub(super) type Chunk = [AtomicU64; CHUNK_WORDS];

/// What the two sides tell each other beside messages. Each line has one writer.
#[derive(Debug)]
#[repr(C)]
pub(super) struct Marks {
    released: Line,
    starved: Line,
}

/// Words of a slot that a message is made of.
pub(super) const WORDS: usize = 7;

/// Words of a chunk.
pub(super) const CHUNK_WORDS: usize = 8;

/// Bytes of a chunk.
pub(super) const CHUNK: usize = 8 * CHUNK_WORDS;

/// A slot that was claimed for nothing.
const NOTHING: u16 = 0;

/// The memory of a ring. The numbers of slots and chunks are powers of two.
#[derive(Debug)]
pub(super) struct Memory<S, C, M> {
    pub(super) slots: S,
    pub(super) chunks: C,
    pub(super) marks: M,
}

/// The other side did what it cannot do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the peer's memory makes no sense")]
pub(super) struct Broken;

/// How far somebody is: slots in the high half, chunks in the low one. Both wrap.
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

/// Whether the message with this number is in its slot.
#[inline]
pub(super) fn has_come(slots: &[Slot], number: u32) -> bool {
    head_of(slots, number).is_some()
}

/// The first word of the slot with this number, if it is there.
#[inline]
fn head_of(slots: &[Slot], number: u32) -> Option<u64> {
    let head = slots[number as usize & (slots.len() - 1)].0[0].load(Ordering::Acquire);
    (head as u32 == number.wrapping_add(1)).then_some(head)
}

/// The first word of a slot.
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

    /// Chunks from a position on: up to the end of the memory, and then from its beginning on.
    fn room(&self, from: u32, count: u16) -> Room<'_> {
        let (start, count) = (
            from as usize & (self.chunks.len() - 1),
            usize::from(count).min(self.chunks.len()),
        );
        let first = count.min(self.chunks.len() - start);
        Room {
            first: &self.chunks[start..start + first],
            second: &self.chunks[..count - first],
        }
    }
}

/// The chunks of a message, which others may write at any time.
#[derive(Clone, Copy, Debug)]
pub(super) struct Room<'a> {
    first: &'a [Chunk],
    second: &'a [Chunk],
}

impl<'a> Room<'a> {
    /// Returns the memory, in order.
    pub(super) fn pieces(&self) -> [Piece<'a>; 2] {
        [self.first, self.second].map(|chunks| Piece::of_atomics(chunks.as_flattened()))
    }

    /// Bytes.
    pub(super) fn length(&self) -> usize {
        (self.first.len() + self.second.len()) * CHUNK
    }

    /// Stores bytes from the beginning on, as many as there is room for.
    pub(super) fn write(&self, data: &[u8]) {
        let chunks = self.first.iter().chain(self.second);
        for (words, bytes) in chunks.zip(data.chunks(CHUNK)) {
            // One loop for all words of a chunk: this is what a long message takes most of its time for.
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

    /// Copies bytes from the beginning on. Bytes of `out` behind the end of the chunks are left as they are.
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

    /// Memory of a ring in one process.
    pub(in crate::same_host) type Here = Memory<Arc<[Slot]>, Arc<[Chunk]>, Arc<Marks>>;

    pub(in crate::same_host) fn memory(slots: usize, chunks: usize) -> (Here, Here) {
        let zero = || AtomicU64::new(0);
        let slots: Arc<[Slot]> = (0..slots)
            .map(|_| Slot(std::array::from_fn(|_| zero())))
            .collect();
        let chunks: Arc<[Chunk]> = (0..chunks)
            .map(|_| std::array::from_fn(|_| zero()))
            .collect();
        let marks = Arc::new(Marks {
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
