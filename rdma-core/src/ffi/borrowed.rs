//! Borrowed ranges of registered memory, for the requests of a scope.

use std::marker::PhantomData;
use std::ptr::NonNull;
use std::slice;

use super::elements::LocalKey;

/// A borrowed slice of registered memory, for requests that read the memory. Contains the address
/// and the local key by which requests refer to the bytes.
#[derive(Clone, Copy)]
pub(crate) struct Borrowed<'a> {
    start: NonNull<u8>,
    len: usize,
    /// Address that requests use for the first byte.
    address: u64,
    lkey: LocalKey,
    borrow: PhantomData<&'a [u8]>,
}

// SAFETY: this is a `&[u8]` with the address and key that requests need.
unsafe impl Send for Borrowed<'_> {}
// SAFETY: this is a `&[u8]` with the address and key that requests need.
unsafe impl Sync for Borrowed<'_> {}

/// An exclusively borrowed slice of registered memory, for requests that read or write the memory.
/// Contains the address and the local key by which requests refer to the bytes.
///
/// Stores a raw pointer instead of a `&mut [u8]`: no Rust reference to the bytes may exist while a
/// request contains this value and the device writes to the bytes.
pub(crate) struct BorrowedMut<'a> {
    start: NonNull<u8>,
    len: usize,
    address: u64,
    lkey: LocalKey,
    borrow: PhantomData<&'a mut [u8]>,
}

// SAFETY: this is a `&mut [u8]` with the address and key that requests need.
unsafe impl Send for BorrowedMut<'_> {}
// SAFETY: this is a `&mut [u8]` with the address and key that requests need.
unsafe impl Sync for BorrowedMut<'_> {}

impl<'a> Borrowed<'a> {
    /// Borrows `bytes` for reading. `address` is the address that requests with the local key
    /// `lkey` use for the first byte.
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
        // SAFETY: created from a slice that is borrowed for `'a`.
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

    /// Splits this borrow into two: the bytes `[0, at)` and the bytes `[at, len)`. Panics if `at`
    /// exceeds the length.
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
    /// Borrows `bytes` for writing. `address` is the address that requests with the local key
    /// `lkey` use for the first byte.
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
        // SAFETY: created from a slice that is exclusively borrowed for `'a`, and this value is its
        // only holder. While a device writes, this value is inside a request, where no code can
        // access it.
        unsafe { slice::from_raw_parts(self.start.as_ptr(), self.len) }
    }

    #[inline]
    pub(crate) fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: this value is the only holder of a slice that is exclusively borrowed for `'a`,
        // and `&mut self` makes the borrow exclusive.
        unsafe { slice::from_raw_parts_mut(self.start.as_ptr(), self.len) }
    }

    /// Returns the borrowed bytes as a slice that is valid for the whole lifetime `'a` of the
    /// borrow.
    pub(crate) fn into_bytes(self) -> &'a mut [u8] {
        // SAFETY: this value was the only holder of a slice that is exclusively borrowed for `'a`,
        // and `self` is consumed.
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

    /// Borrows the same bytes again. `self` cannot be used until the returned borrow ends.
    pub(crate) fn reborrow(&mut self) -> BorrowedMut<'_> {
        let (address, lkey) = (self.address, self.lkey);
        BorrowedMut::new(self.bytes_mut(), address, lkey)
    }

    /// Splits this borrow into two: the bytes `[0, at)` and the bytes `[at, len)`. Panics if `at`
    /// exceeds the length.
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
