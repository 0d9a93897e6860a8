//! Borrowed ranges of registered memory.

use std::marker::PhantomData;
use std::ptr::NonNull;
use std::slice;

use super::elements::LocalKey;

/// Bytes that are borrowed for reading.
#[derive(Clone, Copy)]
pub(crate) struct Borrowed<'a> {
    start: NonNull<u8>,
    len: usize,
    /// The first byte, as requests call it.
    address: u64,
    lkey: LocalKey,
    borrow: PhantomData<&'a [u8]>,
}

// SAFETY: it is a `&[u8]` with the numbers that requests need.
unsafe impl Send for Borrowed<'_> {}
// SAFETY: as above.
unsafe impl Sync for Borrowed<'_> {}

/// Bytes that are borrowed for reading and writing.
///
/// It is no `&mut [u8]`, so that it claims nothing while it is in a request and the device writes.
pub(crate) struct BorrowedMut<'a> {
    start: NonNull<u8>,
    len: usize,
    address: u64,
    lkey: LocalKey,
    borrow: PhantomData<&'a mut [u8]>,
}

// SAFETY: it is a `&mut [u8]` with the numbers that requests need.
unsafe impl Send for BorrowedMut<'_> {}
// SAFETY: as above.
unsafe impl Sync for BorrowedMut<'_> {}

impl<'a> Borrowed<'a> {
    /// `bytes`, which requests with `lkey` find at `address`.
    pub(crate) fn new(bytes: &'a [u8], address: u64, lkey: LocalKey) -> Self {
        Self {
            start: NonNull::from(bytes).cast(),
            len: bytes.len(),
            address,
            lkey,
            borrow: PhantomData,
        }
    }

    #[inline]
    pub(crate) fn bytes(&self) -> &'a [u8] {
        // SAFETY: made of a slice that is borrowed for `'a`.
        unsafe { slice::from_raw_parts(self.start.as_ptr(), self.len) }
    }

    #[inline]
    pub(crate) fn address(&self) -> u64 {
        self.address
    }

    #[inline]
    pub(crate) fn lkey(&self) -> LocalKey {
        self.lkey
    }

    /// `[0, at)` and `[at, len)`; `at` is at most the length.
    pub(crate) fn split_at(self, at: usize) -> (Self, Self) {
        let (left, right) = self.bytes().split_at(at);
        let place = self.address.wrapping_add(at as u64);
        (
            Self::new(left, self.address, self.lkey),
            Self::new(right, place, self.lkey),
        )
    }
}

impl<'a> BorrowedMut<'a> {
    /// `bytes`, which requests with `lkey` find at `address`.
    pub(crate) fn new(bytes: &'a mut [u8], address: u64, lkey: LocalKey) -> Self {
        Self {
            len: bytes.len(),
            start: NonNull::from(bytes).cast(),
            address,
            lkey,
            borrow: PhantomData,
        }
    }

    #[inline]
    pub(crate) fn bytes(&self) -> &[u8] {
        // SAFETY: made of a slice that is exclusively borrowed for `'a`, of which this is the only
        // holder; while a device writes, this is inside of a request, where nobody reaches it.
        unsafe { slice::from_raw_parts(self.start.as_ptr(), self.len) }
    }

    #[inline]
    pub(crate) fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above, and `&mut self` makes the borrow exclusive.
        unsafe { slice::from_raw_parts_mut(self.start.as_ptr(), self.len) }
    }

    /// The same bytes for the whole time of the borrow.
    pub(crate) fn into_bytes(self) -> &'a mut [u8] {
        // SAFETY: as above, and `self` is gone.
        unsafe { slice::from_raw_parts_mut(self.start.as_ptr(), self.len) }
    }

    #[inline]
    pub(crate) fn address(&self) -> u64 {
        self.address
    }

    #[inline]
    pub(crate) fn lkey(&self) -> LocalKey {
        self.lkey
    }

    /// The same bytes, for as long as this is not used.
    pub(crate) fn reborrow(&mut self) -> BorrowedMut<'_> {
        let (address, lkey) = (self.address, self.lkey);
        BorrowedMut::new(self.bytes_mut(), address, lkey)
    }

    /// `[0, at)` and `[at, len)`; `at` is at most the length.
    pub(crate) fn split_at(self, at: usize) -> (Self, Self) {
        let (address, lkey) = (self.address, self.lkey);
        let (left, right) = self.into_bytes().split_at_mut(at);
        let place = address.wrapping_add(at as u64);
        (
            Self::new(left, address, lkey),
            Self::new(right, place, lkey),
        )
    }
}
