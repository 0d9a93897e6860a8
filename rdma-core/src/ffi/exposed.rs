//! Memory that peers can reach.

use std::sync::atomic::{AtomicU8, AtomicU64};

use super::access::{copy_in, copy_out};
use super::region::RegionHandle;
use super::span::Span;
use crate::error::Result;

/// A span with a registration of its own that grants remote access.
///
/// The span inside is never borrowed as a slice; all access is by atomic copies. The registration
/// is dropped, and so the grant ended at the device, before the span is given back.
#[derive(Debug)]
pub(crate) struct Exposed {
    lease: RegionHandle,
    span: Span,
}

impl Exposed {
    /// Pairs a span with a lease that covers exactly its range of the same memory.
    pub(crate) fn new(lease: RegionHandle, span: Span) -> Self {
        Self { lease, span }
    }

    /// Deregisters the lease, after which no peer can reach the memory.
    pub(crate) fn end(&mut self) -> Result<()> {
        self.lease.end()
    }

    /// The span. Its grant ends, if it has not.
    pub(crate) fn into_span(self) -> Span {
        self.span
    }

    pub(crate) fn len(&self) -> usize {
        self.span.len()
    }

    /// What requests, a peer's and this side's, call the first byte.
    #[inline]
    pub(crate) fn address(&self) -> u64 {
        self.lease.request_address(self.span.start().as_ptr())
    }

    /// Whether an atomic of `size` bytes, a power of two, can be at `offset`.
    #[inline]
    pub(crate) fn is_aligned(&self, offset: usize, size: usize) -> bool {
        (self.span.start().as_ptr() as usize).wrapping_add(offset) & (size - 1) == 0
    }

    pub(crate) fn lease(&self) -> &RegionHandle {
        &self.lease
    }

    /// Copies out from `offset`; the range must lie inside.
    pub(crate) fn read(&self, offset: usize, to: &mut [u8]) {
        self.check(offset, to.len());
        // SAFETY: the range was checked; no reference to an exposed span exists.
        unsafe { copy_out(self.span.start().as_ptr().add(offset), to) };
    }

    /// Copies in at `offset`; the range must lie inside.
    pub(crate) fn write(&self, offset: usize, from: &[u8]) {
        self.check(offset, from.len());
        // SAFETY: the range was checked; no reference to an exposed span exists.
        unsafe { copy_in(from, self.span.start().as_ptr().add(offset)) };
    }

    /// The eight bytes at `offset` as an atomic word; the offset must be aligned and inside.
    #[inline]
    pub(crate) fn word(&self, offset: usize) -> &AtomicU64 {
        self.check(offset, size_of::<u64>());
        assert!(
            (self.span.address() + offset as u64).is_multiple_of(8),
            "a word at an unaligned address"
        );
        // SAFETY: the word is inside of the span, aligned, initialised, and only ever accessed
        // atomically; the borrow of `self` keeps the memory.
        unsafe { &*self.span.start().as_ptr().add(offset).cast::<AtomicU64>() }
    }

    /// The byte at `offset` as an atomic; the offset must be inside.
    #[inline]
    pub(crate) fn byte(&self, offset: usize) -> &AtomicU8 {
        self.check(offset, 1);
        // SAFETY: the byte is inside of the span, initialised, and only ever accessed atomically;
        // the borrow of `self` keeps the memory.
        unsafe { &*self.span.start().as_ptr().add(offset).cast::<AtomicU8>() }
    }

    #[inline]
    fn check(&self, offset: usize, len: usize) {
        let end = offset.checked_add(len).expect("the range overflows");
        assert!(
            end <= self.span.len(),
            "{offset}..{end} is outside of {} bytes",
            self.span.len()
        );
    }
}
