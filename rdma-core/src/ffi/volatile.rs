//! Memory that others write to at the same time.

use std::sync::atomic::{AtomicU8, AtomicU32, AtomicU64};

use super::access::{copy_in, copy_out};
use super::span::Span;

/// A span that is never borrowed as a slice: all access is by atomic copies.
///
/// Invariant: for as long as this exists, nobody has or makes a reference to the bytes.
#[derive(Debug)]
pub(crate) struct Volatile {
    span: Span,
}

impl Volatile {
    /// Gives up references to the span's bytes.
    pub(super) fn new(span: Span) -> Self {
        Self { span }
    }

    /// The span. Whoever takes it knows that nobody writes to it any more.
    pub(super) fn into_span(self) -> Span {
        self.span
    }

    pub(super) fn span(&self) -> &Span {
        &self.span
    }

    pub(crate) fn len(&self) -> usize {
        self.span.len()
    }

    /// Whether an atomic of `size` bytes, a power of two, can be at `offset`.
    #[inline]
    pub(crate) fn is_aligned(&self, offset: usize, size: usize) -> bool {
        (self.span.start().as_ptr() as usize).wrapping_add(offset) & (size - 1) == 0
    }

    /// Copies out from `offset`; the range must lie inside.
    pub(crate) fn read(&self, offset: usize, to: &mut [u8]) {
        let start = self.place(offset, to.len());
        // SAFETY: the range was checked; by the invariant there is no reference to it.
        unsafe { copy_out(start, to) };
    }

    /// Copies in at `offset`; the range must lie inside.
    pub(crate) fn write(&self, offset: usize, from: &[u8]) {
        let start = self.place(offset, from.len());
        // SAFETY: the range was checked; by the invariant there is no reference to it.
        unsafe { copy_in(from, start) };
    }

    /// The eight bytes at `offset` as an atomic; the offset must be aligned and inside.
    #[inline]
    pub(crate) fn u64(&self, offset: usize) -> &AtomicU64 {
        let start = self.aligned(offset, size_of::<u64>());
        // SAFETY: the word is inside of the span, aligned, initialised, and only ever accessed
        // atomically; the borrow of `self` keeps the memory.
        unsafe { &*start.cast::<AtomicU64>() }
    }

    /// The four bytes at `offset` as an atomic; the offset must be aligned and inside.
    #[inline]
    pub(crate) fn u32(&self, offset: usize) -> &AtomicU32 {
        let start = self.aligned(offset, size_of::<u32>());
        // SAFETY: as in `u64`.
        unsafe { &*start.cast::<AtomicU32>() }
    }

    /// The byte at `offset` as an atomic; the offset must be inside.
    #[inline]
    pub(crate) fn u8(&self, offset: usize) -> &AtomicU8 {
        let start = self.place(offset, 1);
        // SAFETY: as in `u64`.
        unsafe { &*start.cast::<AtomicU8>() }
    }

    #[inline]
    fn aligned(&self, offset: usize, size: usize) -> *mut u8 {
        assert!(self.is_aligned(offset, size), "{offset} is not aligned");
        self.place(offset, size)
    }

    /// The address of `len` bytes at `offset`, which must lie inside.
    #[inline]
    fn place(&self, offset: usize, len: usize) -> *mut u8 {
        let end = offset.checked_add(len).expect("the range overflows");
        assert!(
            end <= self.span.len(),
            "{offset}..{end} is outside of {} bytes",
            self.span.len()
        );
        // SAFETY: inside of the span, or one past its end.
        unsafe { self.span.start().as_ptr().add(offset) }
    }
}
