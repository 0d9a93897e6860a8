//! Bytes whose owner is known.

use std::marker::PhantomData;

use super::copy;

/// Bytes that are registered for as long as this is around: an access to some that are not there is an error.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Piece<'a> {
    address: usize,
    length: usize,
    writable: bool,
    bytes: PhantomData<&'a [u8]>,
}

impl<'a> Piece<'a> {
    /// Bytes of this process's own, to be read.
    pub(crate) fn of(bytes: &'a [u8]) -> Self {
        Self {
            address: bytes.as_ptr().expose_provenance(),
            length: bytes.len(),
            writable: false,
            bytes: PhantomData,
        }
    }

    /// Bytes of this process's own, to be read and written.
    #[cfg(any(test, fuzzing))]
    pub(crate) fn of_mut(bytes: &'a mut [u8]) -> Self {
        // SAFETY: whoever has borrowed them alone may write them.
        unsafe { Self::new(bytes.as_mut_ptr().expose_provenance(), bytes.len(), true) }
    }

    /// Bytes that may be read and, if they are `writable`, written.
    ///
    /// # Safety
    /// For as long as the piece is around they are registered memory, or nobody holds a reference to them.
    #[inline]
    pub(super) unsafe fn new(address: usize, length: usize, writable: bool) -> Self {
        Self {
            address,
            length,
            writable,
            bytes: PhantomData,
        }
    }

    /// Where they begin.
    pub(crate) fn address(&self) -> usize {
        self.address
    }

    /// How many they are.
    pub(crate) fn length(&self) -> usize {
        self.length
    }

    /// How many those of a list are. Most lists have one.
    #[inline]
    pub(crate) fn total(list: &[Self]) -> usize {
        match list {
            [only] => only.length,
            list => list.iter().map(Self::length).sum(),
        }
    }

    /// Whether they may be written.
    pub(crate) fn is_writable(&self) -> bool {
        self.writable
    }

    /// Writes a word to the first eight of them. None: they are less, or may not be written, or are not there.
    pub(crate) fn store(&self, word: u64) -> Option<()> {
        if !self.writable || self.length < size_of::<u64>() {
            return None;
        }
        // SAFETY: as whoever made the piece promised; and the word is here.
        unsafe {
            let from = (&raw const word).expose_provenance();
            copy::copy(from, self.address, size_of::<u64>()).ok()
        }
    }
}
