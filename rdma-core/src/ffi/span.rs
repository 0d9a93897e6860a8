//! Spans: ranges of registered memory with exclusive ownership.
//!
//! A span is the basis of the crate's buffers. A span can be split, joined and moved into a
//! request.

use std::fmt;
use std::ops::Range;
use std::ptr::NonNull;
use std::slice;
use std::sync::Arc;

use super::region::RegionHandle;

/// The exclusive right to use a range of a memory region.
///
/// Invariant: no two live spans overlap, and peers have no access through the region. Only a span
/// inside an [`Exposed`](super::Exposed) may belong to a region that grants peers access. A span is
/// created for the whole of a new region, and can then be divided.
pub(crate) struct Span {
    start: NonNull<u8>,
    len: usize,
    region: Arc<RegionHandle>,
}

// SAFETY: a span owns its bytes as a `Box<[u8]>` does.
unsafe impl Send for Span {}
// SAFETY: a shared span gives only shared access to its bytes, as a `Box<[u8]>` does.
unsafe impl Sync for Span {}

impl fmt::Debug for Span {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Span")
            .field("start", &self.start)
            .field("len", &self.len)
            .finish()
    }
}

impl Span {
    /// Creates a span of a whole memory region. The handle of the region is taken by value, so no
    /// other span of the region exists.
    pub(crate) fn whole(region: RegionHandle) -> Self {
        let (start, len) = (region.memory().start(), region.memory().len());
        Self {
            start,
            len,
            region: Arc::new(region),
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Returns the address that requests with the region's local key use for the first byte.
    #[inline]
    pub(crate) fn address(&self) -> u64 {
        self.region.request_address(self.start.as_ptr())
    }

    pub(crate) fn start(&self) -> NonNull<u8> {
        self.start
    }

    pub(crate) fn region(&self) -> &Arc<RegionHandle> {
        &self.region
    }

    /// Returns the range of this span in the memory of its region, in bytes.
    pub(crate) fn range(&self) -> Range<usize> {
        let start = self.start.as_ptr() as usize - self.region.memory().start().as_ptr() as usize;
        start..start + self.len
    }

    #[inline]
    pub(crate) fn bytes(&self) -> &[u8] {
        // SAFETY: the memory is initialised and lives as long as the region, as its owner promised.
        // This span is the only access to the memory, or nothing writes to it. A device writes to
        // the memory only while the span is in an in-flight slot, where no code can borrow it.
        unsafe { slice::from_raw_parts(self.start.as_ptr(), self.len) }
    }

    #[inline]
    pub(crate) fn bytes_mut(&mut self) -> &mut [u8] {
        debug_assert!(self.region.memory().is_writable());
        // SAFETY: the memory is initialised, lives as long as the region, and is accessed by this
        // span alone. Read-only memory is in a `FrozenBuffer` or `SharedFrozenBuffer`, which give
        // no exclusive borrow of their span. `&mut self` makes the borrow exclusive.
        unsafe { slice::from_raw_parts_mut(self.start.as_ptr(), self.len) }
    }

    /// Returns the memory region of this span, for example to deregister the region. Returns the
    /// span unchanged if the span does not cover the whole region, or if the region has another
    /// user.
    pub(crate) fn into_region(self) -> Result<RegionHandle, Self> {
        let Self { start, len, region } = self;
        let again = |region| Self { start, len, region };
        if len != region.memory().len() {
            return Err(again(region));
        }
        Arc::try_unwrap(region).map_err(again)
    }

    /// Divides the span into two spans: the bytes `[0, at)` and the bytes `[at, len)`. `at` must be
    /// at most the length of this span.
    pub(crate) fn split_at(self, at: usize) -> (Self, Self) {
        assert!(at <= self.len, "split at {at} of {} bytes", self.len);
        // SAFETY: `at` is inside the span or one past its end.
        let middle = unsafe { self.start.add(at) };
        let right = Self {
            start: middle,
            len: self.len - at,
            region: Arc::clone(&self.region),
        };
        (Self { len: at, ..self }, right)
    }

    /// Joins this span with the span `right`, which must begin where this span ends. Returns both
    /// spans unchanged if they are not adjacent or belong to different regions.
    pub(crate) fn join(self, right: Self) -> Result<Self, (Self, Self)> {
        // SAFETY: the end of the span is inside its allocation or one past its end.
        let end = unsafe { self.start.add(self.len) };
        if Arc::ptr_eq(&self.region, &right.region) && end == right.start {
            Ok(Self {
                len: self.len + right.len,
                ..self
            })
        } else {
            Err((self, right))
        }
    }
}
