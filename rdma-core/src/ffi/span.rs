//! Exclusive ownership of a range of registered memory.

use std::fmt;
use std::ops::Range;
use std::ptr::NonNull;
use std::slice;
use std::sync::Arc;

use super::region::RegionHandle;

/// The sole right to a range of a region that no peer can reach.
///
/// Invariant: no two live spans overlap, and the region grants no remote access while its span is
/// not inside of an [`super::Exposed`]. It is made for a whole new region only, and divided.
pub(crate) struct Span {
    start: NonNull<u8>,
    len: usize,
    region: Arc<RegionHandle>,
}

// SAFETY: a span owns its bytes as a `Box<[u8]>` does.
unsafe impl Send for Span {}
// SAFETY: as above.
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
    /// The whole of a region. Takes the handle by value: nobody else has a span of it.
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

    /// What requests that use the region's local key call the first byte.
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

    /// The range of the region's memory that this is.
    pub(crate) fn range(&self) -> Range<usize> {
        let start = self.start.as_ptr() as usize - self.region.memory().start().as_ptr() as usize;
        start..start + self.len
    }

    #[inline]
    pub(crate) fn bytes(&self) -> &[u8] {
        // SAFETY: the memory is initialised and lives as long as the region, as its owner promised,
        // and this span is the only access to it, or nobody writes to it. A device writes to it
        // only while the span is inside of an in-flight slot, where nobody can borrow it.
        unsafe { slice::from_raw_parts(self.start.as_ptr(), self.len) }
    }

    #[inline]
    pub(crate) fn bytes_mut(&mut self) -> &mut [u8] {
        debug_assert!(self.region.memory().is_writable());
        // SAFETY: as in `bytes`; memory that may not be written is in a `FrozenBuffer`, which gives
        // no exclusive borrow of its span. `&mut self` makes the borrow exclusive.
        unsafe { slice::from_raw_parts_mut(self.start.as_ptr(), self.len) }
    }

    /// The region, if this is all of it.
    pub(crate) fn into_region(self) -> Result<RegionHandle, Self> {
        let Self { start, len, region } = self;
        let again = |region| Self { start, len, region };
        if len != region.memory().len() {
            return Err(again(region));
        }
        Arc::try_unwrap(region).map_err(again)
    }

    /// Divides it at `at`, which is at most its length.
    pub(crate) fn split_at(self, at: usize) -> (Self, Self) {
        assert!(at <= self.len, "split at {at} of {} bytes", self.len);
        // SAFETY: `at` is inside of the span or one past its end.
        let middle = unsafe { self.start.add(at) };
        let right = Self {
            start: middle,
            len: self.len - at,
            region: Arc::clone(&self.region),
        };
        (Self { len: at, ..self }, right)
    }

    /// Puts two neighbours together again; gives them back when they are none.
    pub(crate) fn join(self, right: Self) -> Result<Self, (Self, Self)> {
        // SAFETY: one past the end of the span is still part of, or one past, its allocation.
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
