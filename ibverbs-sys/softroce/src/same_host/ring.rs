#![forbid(unsafe_code)]
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

use std::ops::Deref;

use super::sync::{AtomicU64, Ordering, fence};

/// A slot: a cache line.
#[derive(Debug)]
#[repr(C, align(64))]
pub(super) struct Slot([AtomicU64; 8]);

/// Room for what is too long for a slot.
#[derive(Debug)]
#[repr(C, align(64))]
pub(super) struct Chunk([AtomicU64; CHUNK_WORDS]);

/// What the two sides tell each other beside messages. Each line has one writer.
#[derive(Debug)]
#[repr(C)]
pub(super) struct Marks {
    released: Line,
    starved: Line,
}

/// A word in a cache line of its own.
#[derive(Debug)]
#[repr(C, align(64))]
pub(super) struct Line(pub(super) AtomicU64, [AtomicU64; 7]);

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

/// Why a message was not sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PushError<E> {
    /// There is no room at present.
    Full,
    /// The other side did what it cannot do.
    Broken,
    /// What should be in it could not be had.
    Content(E),
}

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

impl Room<'_> {
    /// Bytes.
    pub(super) fn length(&self) -> usize {
        (self.first.len() + self.second.len()) * CHUNK
    }

    /// Stores bytes from the beginning on, as many as there is room for.
    pub(super) fn write(&self, data: &[u8]) {
        for (word, bytes) in self.words().zip(data.chunks(8)) {
            let mut value = [0; 8];
            value[..bytes.len()].copy_from_slice(bytes);
            word.store(u64::from_ne_bytes(value), Ordering::Relaxed);
        }
    }

    /// Copies bytes from `offset` on, a multiple of eight. What is not there is left as it is.
    pub(super) fn read(&self, offset: usize, out: &mut [u8]) {
        let words = self.words().skip(offset / 8);
        for (word, bytes) in words.zip(out.chunks_mut(8)) {
            let value = word.load(Ordering::Relaxed).to_ne_bytes();
            bytes.copy_from_slice(&value[..bytes.len()]);
        }
    }

    fn words(&self) -> impl Iterator<Item = &AtomicU64> {
        self.first
            .iter()
            .chain(self.second)
            .flat_map(|chunk| &chunk.0)
    }
}

/// The side that sends.
#[derive(Debug)]
pub(super) struct Producer<S, C, M> {
    memory: Memory<S, C, M>,
    claimed: AtomicU64,
    /// How far the consumer was when somebody last looked.
    released: AtomicU64,
}

impl<S, C, M> Producer<S, C, M>
where
    S: Deref<Target = [Slot]>,
    C: Deref<Target = [Chunk]>,
    M: Deref<Target = Marks>,
{
    /// The producer of a ring that nothing was ever in.
    pub(super) fn new(memory: Memory<S, C, M>) -> Self {
        debug_assert!(memory.slots.len().is_power_of_two());
        debug_assert!(memory.chunks.len().is_power_of_two());
        Self {
            memory,
            claimed: AtomicU64::new(0),
            released: AtomicU64::new(0),
        }
    }

    /// Sends a message of so many bytes in chunks, which `fill` writes, beside the words. `tag` is not 0.
    pub(super) fn push<E>(
        &self,
        tag: u16,
        words: &[u64],
        chunks: u16,
        fill: impl FnOnce(Room<'_>) -> Result<(), E>,
    ) -> Result<(), PushError<E>> {
        let position = self.claim(chunks)?;
        let mut claim = Claim {
            slot: self.memory.slot(position),
            head: head(position, NOTHING, chunks),
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
                // It was the room of one who came first.
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

    /// Whether there is room behind what was claimed, provided that it still is what was claimed.
    fn has_room(&self, claimed: u64, chunks: u16) -> Result<bool, Broken> {
        let used = |released: u64| {
            let (claimed, released) = (Position::of(claimed), Position::of(released));
            let slots = claimed.slot.wrapping_sub(released.slot) as usize;
            (slots, claimed.chunk.wrapping_sub(released.chunk) as usize)
        };
        let (all_slots, all_chunks) = (self.memory.slots.len(), self.memory.chunks.len());
        let fits = |(slots, used): (usize, usize)| {
            slots < all_slots && used <= all_chunks && usize::from(chunks) <= all_chunks - used
        };
        // With Acquire: the consumer has read what is released before anybody writes over it.
        let known = self.released.load(Ordering::Acquire);
        if fits(used(known)) {
            return Ok(true);
        }
        let told = self.memory.marks.released.0.load(Ordering::Acquire);
        let (slots, chunks_used) = used(told);
        if slots > all_slots || chunks_used > all_chunks {
            // Not if others claimed more meanwhile, and the consumer is done with that.
            let is_present = self.claimed.load(Ordering::Relaxed) == claimed;
            return if is_present { Err(Broken) } else { Ok(false) };
        }
        // Not if another thread knows better, be it long ago.
        let (success, failure) = (Ordering::AcqRel, Ordering::Relaxed);
        let _ = self
            .released
            .compare_exchange(known, told, success, failure);
        Ok(fits((slots, chunks_used)))
    }

    /// Whether there is room for so many chunks, unless others take it first.
    pub(super) fn may_have_room(&self, chunks: u16) -> bool {
        loop {
            let claimed = self.claimed.load(Ordering::Relaxed);
            // Something broken is not worth waiting for.
            if self.has_room(claimed, chunks).unwrap_or(true) {
                return true;
            }
            if self.claimed.load(Ordering::Relaxed) == claimed {
                return false;
            }
        }
    }

    /// Asks to be woken when there is room; whether there is some now.
    pub(super) fn starve(&self, chunks: u16) -> bool {
        let starved = &self.memory.marks.starved.0;
        // A load first: mostly the consumer has not answered yet.
        if starved.load(Ordering::Relaxed) == 0 {
            starved.store(1, Ordering::Relaxed);
        }
        fence(Ordering::SeqCst);
        self.may_have_room(chunks)
    }
}

impl<E> From<Broken> for PushError<E> {
    fn from(_: Broken) -> Self {
        Self::Broken
    }
}

/// A claimed slot: it is published, as nothing if nothing was written.
struct Claim<'a> {
    slot: &'a [AtomicU64; 8],
    head: u64,
}

impl Drop for Claim<'_> {
    fn drop(&mut self) {
        self.slot[0].store(self.head, Ordering::Release);
    }
}

/// The side that receives.
#[derive(Debug)]
pub(super) struct Consumer<S, C, M> {
    memory: Memory<S, C, M>,
    position: Position,
    released: Position,
    owes_waking: bool,
}

/// A message, copied out of its slot. Its chunks are still where they were.
#[derive(Clone, Copy, Debug)]
pub(super) struct Message<'a> {
    /// What the producer says of it; not 0.
    pub(super) tag: u16,
    pub(super) words: [u64; WORDS],
    pub(super) room: Room<'a>,
}

impl<S, C, M> Consumer<S, C, M>
where
    S: Deref<Target = [Slot]>,
    C: Deref<Target = [Chunk]>,
    M: Deref<Target = Marks>,
{
    /// The consumer of a ring that nothing was ever in.
    pub(super) fn new(memory: Memory<S, C, M>) -> Self {
        let start = Position::of(0);
        Self {
            memory,
            position: start,
            released: start,
            owes_waking: false,
        }
    }

    /// Whether there is nothing.
    pub(super) fn is_empty(&self) -> bool {
        self.head().is_none()
    }

    /// Takes the next message. `take` does not keep its chunks. None: there is no message at present.
    pub(super) fn pop<T>(
        &mut self,
        take: impl FnOnce(Message<'_>) -> T,
    ) -> Result<Option<T>, Broken> {
        while let Some(head) = self.head() {
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
    pub(super) fn owes_waking(&mut self) -> bool {
        std::mem::take(&mut self.owes_waking)
    }

    /// The number of the slot that the next message comes in, for [`has_come`].
    pub(super) fn next_slot(&self) -> u32 {
        self.position.slot
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

#[cfg(test)]
impl Line {
    /// A line that is in this process alone.
    pub(super) fn here() -> Self {
        Self(
            AtomicU64::new(0),
            std::array::from_fn(|_| AtomicU64::new(0)),
        )
    }
}

#[cfg(test)]
mod memory {
    use std::sync::Arc;

    use super::*;

    /// Memory of a ring in one process.
    pub(super) type Here = Memory<Arc<[Slot]>, Arc<[Chunk]>, Arc<Marks>>;

    pub(super) fn memory(slots: usize, chunks: usize) -> (Here, Here) {
        let zero = || AtomicU64::new(0);
        let slots: Arc<[Slot]> = (0..slots)
            .map(|_| Slot(std::array::from_fn(|_| zero())))
            .collect();
        let chunks: Arc<[Chunk]> = (0..chunks)
            .map(|_| Chunk(std::array::from_fn(|_| zero())))
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

#[cfg(all(test, not(loom)))]
mod tests {
    use std::sync::atomic::AtomicBool;
    use std::thread;

    use super::memory::memory;
    use super::*;

    fn no_content(_: Room<'_>) -> Result<(), ()> {
        unreachable!("there are no chunks")
    }

    #[test]
    fn messages_come_in_order_with_their_bytes() {
        let (here, there) = memory(4, 8);
        let (producer, mut consumer) = (Producer::new(here), Consumer::new(there));
        assert!(consumer.is_empty());
        for round in 0..100_u64 {
            // Of all lengths, so that chunks go over the end.
            let data: Vec<u8> = (0..round % 190).map(|at| (at + round) as u8).collect();
            let chunks = data.len().div_ceil(CHUNK) as u16;
            let fill = |room: Room<'_>| {
                assert_eq!(room.length(), usize::from(chunks) * CHUNK);
                room.write(&data);
                Ok::<(), ()>(())
            };
            producer
                .push(3, &[round, 1, 2, 3, 4, 5, 6], chunks, fill)
                .unwrap();
            assert!(!consumer.is_empty());
            let popped = consumer.pop(|message| {
                assert_eq!(message.tag, 3);
                assert_eq!(message.words, [round, 1, 2, 3, 4, 5, 6]);
                let mut out = vec![0; data.len()];
                message.room.read(0, &mut out);
                assert_eq!(out, data);
                if data.len() > 24 {
                    let mut tail = vec![0; data.len() - 24];
                    message.room.read(24, &mut tail);
                    assert_eq!(tail, data[24..]);
                }
            });
            assert_eq!(popped, Ok(Some(())));
            assert_eq!(consumer.pop(|_| ()), Ok(None));
        }
    }

    #[test]
    fn a_full_ring_takes_no_more_until_there_is_room() {
        let (here, there) = memory(4, 4);
        let (producer, mut consumer) = (Producer::new(here), Consumer::new(there));
        for _ in 0..3 {
            for _ in 0..4 {
                producer.push(1, &[], 0, no_content).unwrap();
            }
            assert_eq!(producer.push(1, &[], 0, no_content), Err(PushError::Full));
            for _ in 0..4 {
                assert_eq!(consumer.pop(|_| ()), Ok(Some(())));
            }
        }
        let fill = |_: Room<'_>| Ok::<(), ()>(());
        producer.push(1, &[], 3, fill).unwrap();
        assert_eq!(producer.push(1, &[], 2, fill), Err(PushError::Full));
        producer.push(1, &[], 1, fill).unwrap();
        assert_eq!(producer.push(1, &[], 1, fill), Err(PushError::Full));
        // Without chunks there is room.
        producer.push(1, &[], 0, no_content).unwrap();
        assert!(producer.starve(0));
        assert!(!producer.starve(1));
        assert!(!consumer.owes_waking());
        assert_eq!(consumer.pop(|_| ()), Ok(Some(())));
        assert!(consumer.owes_waking());
        assert!(!consumer.owes_waking(), "once");
        assert!(producer.starve(3));
    }

    #[test]
    fn what_could_not_be_filled_is_not_there() {
        let (here, there) = memory(4, 4);
        let (producer, mut consumer) = (Producer::new(here), Consumer::new(there));
        let failed = producer.push(1, &[], 2, |_| Err("fault"));
        assert_eq!(failed, Err(PushError::Content("fault")));
        assert_eq!(consumer.pop(|_| ()), Ok(None));
        producer.push(2, &[], 0, no_content).unwrap();
        assert_eq!(consumer.pop(|message| message.tag), Ok(Some(2)));
    }

    #[test]
    fn positions_wrap() {
        let (here, there) = memory(4, 8);
        let start = Position {
            slot: u32::MAX - 5,
            chunk: u32::MAX - 7,
        };
        let mut producer = Producer::new(here);
        producer.claimed = AtomicU64::new(start.word());
        producer.released = AtomicU64::new(start.word());
        producer
            .memory
            .marks
            .released
            .0
            .store(start.word(), Ordering::Relaxed);
        let mut consumer = Consumer::new(there);
        (consumer.position, consumer.released) = (start, start);
        for round in 0..50_u64 {
            let byte = [round as u8; 2 * CHUNK];
            producer
                .push(1, &[round], 2, |room| {
                    room.write(&byte);
                    Ok::<(), ()>(())
                })
                .unwrap();
            let (number, bytes) = consumer
                .pop(|message| {
                    let mut bytes = [0; 2 * CHUNK];
                    message.room.read(0, &mut bytes);
                    (message.words[0], bytes)
                })
                .unwrap()
                .unwrap();
            assert_eq!((number, bytes), (round, byte));
        }
    }

    #[test]
    fn nonsense_is_the_end() {
        let (here, there) = memory(4, 4);
        let memory = Memory {
            slots: std::sync::Arc::clone(&there.slots),
            chunks: std::sync::Arc::clone(&there.chunks),
            marks: std::sync::Arc::clone(&there.marks),
        };
        let mut consumer = Consumer::new(there);
        for head in [5_u64 << 32 | 1, u64::MAX << 32 | 1] {
            memory.slots[0].0[0].store(head, Ordering::Relaxed);
            assert_eq!(consumer.pop(|_| ()), Err(Broken), "{head:#x}");
        }
        let producer = Producer::new(here);
        for _ in 0..4 {
            producer.push(1, &[], 0, no_content).unwrap();
        }
        for told in [5_u64 << 32, u64::MAX, 1] {
            memory.marks.released.0.store(told, Ordering::Relaxed);
            let result = producer.push(1, &[], 0, no_content);
            assert_eq!(result, Err(PushError::Broken), "{told:#x}");
        }
    }

    #[test]
    fn threads_share_a_ring() {
        const EACH: u64 = 2_000;
        let (here, there) = memory(16, 32);
        let (producer, mut consumer) = (Producer::new(here), Consumer::new(there));
        let failed = AtomicBool::new(false);
        thread::scope(|scope| {
            for thread in 0..3_u64 {
                let (producer, failed) = (&producer, &failed);
                scope.spawn(move || {
                    for number in 0..EACH {
                        let chunks = (number % 4) as u16;
                        let bytes = vec![number as u8; usize::from(chunks) * CHUNK];
                        let fill = |room: Room<'_>| {
                            room.write(&bytes);
                            Ok::<(), ()>(())
                        };
                        while let Err(error) = producer.push(1, &[thread, number], chunks, fill) {
                            assert_eq!(error, PushError::Full);
                            if failed.load(std::sync::atomic::Ordering::Relaxed) {
                                return;
                            }
                            thread::yield_now();
                        }
                    }
                });
            }
            let mut next = [0; 3];
            let mut check = || {
                while next.iter().sum::<u64>() < 3 * EACH {
                    let popped = consumer.pop(|message| {
                        let [thread, number, ..] = message.words;
                        let mut bytes = vec![0; message.room.length()];
                        message.room.read(0, &mut bytes);
                        let chunks = (number % 4) as usize;
                        let right = bytes == vec![number as u8; chunks * CHUNK];
                        (thread as usize, number, right)
                    });
                    match popped {
                        Ok(Some((thread, number, right))) => {
                            if !right || next[thread] != number {
                                return false;
                            }
                            next[thread] += 1;
                        }
                        Ok(None) => thread::yield_now(),
                        Err(Broken) => return false,
                    }
                }
                true
            };
            let right = check();
            failed.store(!right, std::sync::atomic::Ordering::Relaxed);
            assert!(right);
        });
    }
}

/// Models of the ring: every order in which threads can run, and every value that their loads can see.
///
/// ```sh
/// RUSTFLAGS="--cfg loom" cargo test --release -p softroce --lib same_host
/// ```
#[cfg(all(test, loom))]
mod models {
    use loom::sync::Arc;
    use loom::thread;

    use super::memory::memory;
    use super::*;

    /// Takes what is there, at most so many times; the numbers, with whether their bytes were right.
    fn take<S, C, M>(consumer: &mut Consumer<S, C, M>, times: usize) -> Vec<u64>
    where
        S: Deref<Target = [Slot]>,
        C: Deref<Target = [Chunk]>,
        M: Deref<Target = Marks>,
    {
        let mut taken = Vec::new();
        for _ in 0..times {
            let popped = consumer.pop(|message| {
                let mut word = [0; 8];
                message.room.read(0, &mut word);
                assert_eq!(u64::from_ne_bytes(word), message.words[0]);
                message.words[0]
            });
            match popped.expect("nobody breaks it") {
                Some(number) => taken.push(number),
                None => thread::yield_now(),
            }
        }
        taken
    }

    fn fill(number: u64) -> impl FnOnce(Room<'_>) -> Result<(), ()> {
        move |room| {
            room.write(&number.to_ne_bytes());
            Ok(())
        }
    }

    /// A slot and its chunk are not written again before they were read, and not read before they were written.
    #[test]
    fn a_message_is_all_there_or_not_at_all() {
        loom::model(|| {
            let (here, there) = memory(1, 1);
            let mut consumer = Consumer::new(there);
            let sender = thread::spawn(move || {
                let producer = Producer::new(here);
                producer.push(1, &[1], 1, fill(1)).unwrap();
                producer.push(1, &[2], 1, fill(2)).is_ok()
            });
            let mut taken = take(&mut consumer, 2);
            let both = sender.join().unwrap();
            taken.extend(take(&mut consumer, 2));
            assert_eq!(taken, if both { vec![1, 2] } else { vec![1] });
        });
    }

    /// Two threads send at once: both messages come, once each.
    #[test]
    fn producers_do_not_take_each_others_room() {
        loom::model(|| {
            let (here, there) = memory(2, 2);
            let producer = Arc::new(Producer::new(here));
            let mut consumer = Consumer::new(there);
            let other = {
                let producer = Arc::clone(&producer);
                thread::spawn(move || producer.push(1, &[7], 1, fill(7)).unwrap())
            };
            producer.push(1, &[8], 1, fill(8)).unwrap();
            let mut taken = take(&mut consumer, 1);
            other.join().unwrap();
            taken.extend(take(&mut consumer, 2));
            taken.sort_unstable();
            assert_eq!(taken, [7, 8]);
        });
    }

    /// One who asks to be woken is told, or sees that there is room.
    #[test]
    fn nobody_starves() {
        loom::model(|| {
            let (here, there) = memory(1, 1);
            let mut consumer = Consumer::new(there);
            let producer = Producer::new(here);
            producer.push(1, &[1], 1, fill(1)).unwrap();
            let receiver = thread::spawn(move || {
                assert_eq!(take(&mut consumer, 1), [1]);
                consumer.owes_waking()
            });
            let sees_room = producer.starve(1);
            let is_woken = receiver.join().unwrap();
            assert!(sees_room || is_woken);
        });
    }
}
