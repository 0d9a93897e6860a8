//! A borrowed range of bytes that other threads or processes may access concurrently.

use std::marker::PhantomData;
use std::ops::Range;

use super::copy;
use crate::sync::AtomicU64;

/// A borrowed range of bytes that other threads and processes can access concurrently. The bytes
/// are registered memory, or memory of this process that is borrowed for the lifetime `'a`. An
/// access to bytes that are no longer mapped returns an error.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Piece<'a> {
    address: usize,
    length: usize,
    writable: bool,
    bytes: PhantomData<&'a [u8]>,
}

impl<'a> Piece<'a> {
    /// Creates a read-only memory range of `bytes`, which are memory of this process.
    pub(crate) fn of(bytes: &'a [u8]) -> Self {
        Self {
            address: bytes.as_ptr().expose_provenance(),
            length: bytes.len(),
            writable: false,
            bytes: PhantomData,
        }
    }

    /// Creates a writable memory range of `bytes`, which are memory of this process.
    pub(crate) fn of_mut(bytes: &'a mut [u8]) -> Self {
        // SAFETY: the piece keeps the exclusive borrow, so no other references exist, and the bytes
        // may be written.
        unsafe { Self::new(bytes.as_mut_ptr().expose_provenance(), bytes.len(), true) }
    }

    /// Creates a writable memory range of `words`, which other threads or processes may read and
    /// write at any time.
    pub(crate) fn of_atomics(words: &'a [AtomicU64]) -> Self {
        let address = words.as_ptr().expose_provenance();
        // SAFETY: `words` keeps the memory for `'a`, and atomics may be written through a shared
        // reference.
        unsafe { Self::new(address, size_of_val(words), true) }
    }

    /// Creates a memory range of `length` bytes at `address`. The range is writable if `writable`
    /// is set.
    ///
    /// # Safety
    /// While the piece exists, the bytes must be registered memory, or the caller must ensure that
    /// no references to them exist.
    #[inline]
    pub(super) unsafe fn new(address: usize, length: usize, writable: bool) -> Self {
        Self {
            address,
            length,
            writable,
            bytes: PhantomData,
        }
    }

    /// Returns the address of the range's first byte.
    pub(crate) fn address(&self) -> usize {
        self.address
    }

    /// Returns the length of the range in bytes.
    pub(crate) fn length(&self) -> usize {
        self.length
    }

    /// Returns the total length in bytes of the memory ranges in `list`. Optimized for lists of one
    /// range.
    #[inline]
    pub(crate) fn total(list: &[Self]) -> usize {
        match list {
            [only] => only.length,
            list => list.iter().map(Self::length).sum(),
        }
    }

    /// Returns the parts of the memory ranges in `list` that contain the bytes `range`. The bytes
    /// are counted as if the memory ranges were contiguous.
    #[inline]
    pub(crate) fn parts(list: &[Self], range: Range<usize>) -> impl Iterator<Item = Self> {
        let (mut skip, mut left) = (range.start, range.len());
        list.iter().filter_map(move |piece| {
            let begin = skip.min(piece.length);
            skip -= begin;
            let length = left.min(piece.length - begin);
            left -= length;
            (length > 0).then(|| Self {
                address: piece.address + begin,
                length,
                ..*piece
            })
        })
    }

    /// Copies all bytes of this memory range to the memory range `to`. Returns `None` if the
    /// lengths differ, or if bytes are unmapped or not writable.
    #[inline]
    pub(crate) fn copy_to(&self, to: &Piece<'_>) -> Option<()> {
        if !to.writable || self.length != to.length {
            return None;
        }
        // SAFETY: the creators of both pieces guarantee that no references to the bytes exist,
        // except to atomics, as long as the pieces exist. `to` may be written, and both pieces have
        // `length` bytes.
        unsafe { copy::copy(self.address, to.address, self.length).ok() }
    }

    /// Returns whether the bytes of this memory range are writable. A write to any other range
    /// fails.
    pub(crate) fn is_writable(&self) -> bool {
        self.writable
    }

    /// Writes `word` to the first eight bytes of the memory range. Returns `None` if the range has
    /// fewer than eight bytes, is not writable, or is unmapped.
    pub(crate) fn store(&self, word: u64) -> Option<()> {
        if !self.writable || self.length < size_of::<u64>() {
            return None;
        }
        // SAFETY: the creator of the piece guarantees that it may be written, and the word is
        // inside the piece.
        unsafe {
            let from = (&raw const word).expose_provenance();
            copy::copy(from, self.address, size_of::<u64>()).ok()
        }
    }
}
