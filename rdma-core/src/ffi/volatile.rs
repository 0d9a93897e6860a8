//! Memory that peers or devices may write to while the program reads it.

use std::sync::atomic::{AtomicU8, AtomicU32, AtomicU64};

use super::access::{copy_in, copy_out};
use super::span::Span;

/// An owned range of registered memory that the program accesses only by atomic operations. Peers
/// or the device may change the bytes at any time, which would be undefined behavior for bytes
/// behind a Rust reference. Therefore no Rust reference to the bytes exists while this value
/// exists.
#[derive(Debug)]
pub(crate) struct Volatile {
    span: Span,
}

impl Volatile {
    /// Wraps registered memory. As long as this value exists, no code can borrow the bytes as a
    /// slice.
    pub(super) fn new(span: Span) -> Self {
        Self { span }
    }

    /// Returns the range of registered memory, whose bytes can then be borrowed again. The caller
    /// must ensure that no peer or device writes to the bytes any more.
    pub(super) fn into_span(self) -> Span {
        self.span
    }

    pub(super) fn span(&self) -> &Span {
        &self.span
    }

    pub(crate) fn len(&self) -> usize {
        self.span.len()
    }

    /// Returns whether the byte at `offset` is aligned for an atomic access of `size` bytes, a
    /// power of two.
    #[inline]
    pub(crate) fn is_aligned(&self, offset: usize, size: usize) -> bool {
        (self.span.start().as_ptr() as usize).wrapping_add(offset) & (size - 1) == 0
    }

    /// Copies `to.len()` bytes of the span, beginning at `offset`, into `to`. The range must lie
    /// inside the span.
    pub(crate) fn read(&self, offset: usize, to: &mut [u8]) {
        let start = self.place(offset, to.len());
        // SAFETY: the range was checked; by the invariant no reference to it exists.
        unsafe { copy_out(start, to) };
    }

    /// Copies `from` into the span at `offset`. The range must lie inside the span.
    pub(crate) fn write(&self, offset: usize, from: &[u8]) {
        let start = self.place(offset, from.len());
        // SAFETY: the range was checked; by the invariant no reference to it exists.
        unsafe { copy_in(from, start) };
    }

    /// Returns the eight bytes at `offset`, which must be aligned and inside the span, as an
    /// atomic.
    #[inline]
    pub(crate) fn u64(&self, offset: usize) -> &AtomicU64 {
        let start = self.aligned(offset, size_of::<u64>());
        // SAFETY: the word is inside the span, aligned, initialised, and only ever accessed
        // atomically; the borrow of `self` keeps the memory alive.
        unsafe { &*start.cast::<AtomicU64>() }
    }

    /// Returns the four bytes at `offset`, which must be aligned and inside the span, as an atomic.
    #[inline]
    pub(crate) fn u32(&self, offset: usize) -> &AtomicU32 {
        let start = self.aligned(offset, size_of::<u32>());
        // SAFETY: the word is inside the span, aligned, initialised, and only ever accessed
        // atomically; the borrow of `self` keeps the memory alive.
        unsafe { &*start.cast::<AtomicU32>() }
    }

    /// Returns the byte at `offset`, which must be inside the span, as an atomic.
    #[inline]
    pub(crate) fn u8(&self, offset: usize) -> &AtomicU8 {
        let start = self.place(offset, 1);
        // SAFETY: the byte is inside the span, initialised, and only ever accessed atomically; the
        // borrow of `self` keeps the memory alive.
        unsafe { &*start.cast::<AtomicU8>() }
    }

    #[inline]
    fn aligned(&self, offset: usize, size: usize) -> *mut u8 {
        assert!(self.is_aligned(offset, size), "{offset} is not aligned");
        self.place(offset, size)
    }

    /// Returns the address of the byte at `offset`. The `len` bytes from there on must lie inside
    /// the span.
    #[inline]
    fn place(&self, offset: usize, len: usize) -> *mut u8 {
        let end = offset.checked_add(len).expect("the range overflows");
        assert!(
            end <= self.span.len(),
            "{offset}..{end} is outside of {} bytes",
            self.span.len()
        );
        // SAFETY: the address is inside the span, or one past its end.
        unsafe { self.span.start().as_ptr().add(offset) }
    }
}
