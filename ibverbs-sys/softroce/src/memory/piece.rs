//! Bytes with a known owner.

use std::marker::PhantomData;
use std::ops::Range;

use super::copy;
use crate::sync::AtomicU64;

/// Bytes that stay registered for as long as this value exists. An access to missing bytes gives an error.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Piece<'a> {
    address: usize,
    length: usize,
    writable: bool,
    bytes: PhantomData<&'a [u8]>,
}

impl<'a> Piece<'a> {
    /// Makes a piece of bytes of this process, to be read.
    pub(crate) fn of(bytes: &'a [u8]) -> Self {
        Self {
            address: bytes.as_ptr().expose_provenance(),
            length: bytes.len(),
            writable: false,
            bytes: PhantomData,
        }
    }

    /// Makes a piece of bytes of this process, to be read and written.
    pub(crate) fn of_mut(bytes: &'a mut [u8]) -> Self {
        // SAFETY: the unique borrow allows writing them.
        unsafe { Self::new(bytes.as_mut_ptr().expose_provenance(), bytes.len(), true) }
    }

    /// Makes a piece of words that others may read and write at any time, to be read and written.
    pub(crate) fn of_atomics(words: &'a [AtomicU64]) -> Self {
        let address = words.as_ptr().expose_provenance();
        // SAFETY: `words` keeps the memory for `'a`, and a reference to atomics lets others write the words.
        unsafe { Self::new(address, size_of_val(words), true) }
    }

    /// Makes a piece of bytes that may be read and, if they are `writable`, written.
    ///
    /// # Safety
    /// The bytes must be registered memory for as long as the piece exists, or the caller makes sure that nobody holds
    /// a reference to them.
    #[inline]
    pub(super) unsafe fn new(address: usize, length: usize, writable: bool) -> Self {
        Self {
            address,
            length,
            writable,
            bytes: PhantomData,
        }
    }

    /// Returns the address of the first byte.
    pub(crate) fn address(&self) -> usize {
        self.address
    }

    /// Returns the number of bytes.
    pub(crate) fn length(&self) -> usize {
        self.length
    }

    /// Returns the number of bytes of all pieces of a list. Most lists have one piece.
    #[inline]
    pub(crate) fn total(list: &[Self]) -> usize {
        match list {
            [only] => only.length,
            list => list.iter().map(Self::length).sum(),
        }
    }

    /// Returns the parts of pieces, one behind the other, that hold the bytes of `range`.
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

    /// Copies the bytes to another piece of the same length. Returns `None` if the lengths differ, or if bytes are missing or may
    /// not be written.
    #[inline]
    pub(crate) fn copy_to(&self, to: &Piece<'_>) -> Option<()> {
        if !to.writable || self.length != to.length {
            return None;
        }
        // SAFETY: the callers that made the pieces keep the bytes for as long as the pieces exist, and nobody holds a reference to
        // them unless it is to atomics; `to` may be written, and both have `length` bytes.
        unsafe { copy::copy(self.address, to.address, self.length).ok() }
    }

    /// Returns whether the bytes may be written.
    pub(crate) fn is_writable(&self) -> bool {
        self.writable
    }

    /// Writes a word to the first eight bytes. `None`: there are fewer, or they may not be written, or are missing.
    pub(crate) fn store(&self, word: u64) -> Option<()> {
        if !self.writable || self.length < size_of::<u64>() {
            return None;
        }
        // SAFETY: the function that made the piece promised it, and the word is inside of the piece.
        unsafe {
            let from = (&raw const word).expose_provenance();
            copy::copy(from, self.address, size_of::<u64>()).ok()
        }
    }
}
