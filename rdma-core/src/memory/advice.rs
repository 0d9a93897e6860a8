//! Prefetching the pages of on-demand memory.

use std::ops::RangeBounds;

use super::buffer::resolve;
use super::{Buffer, ExposedMemory};
use crate::error::Result;
use crate::ffi::advise;

/// The kind of access for which [`Buffer::prefetch`] prepares pages of an
/// [on-demand](super::AccessFlags::ON_DEMAND) region. The pages of such a region are not pinned in
/// memory.
#[doc(alias = "ibv_advise_mr_advice")]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Prefetch {
    /// A prefetch of pages that the device will only read.
    #[doc(alias = "IBV_ADVISE_MR_ADVICE_PREFETCH")]
    Read,
    /// A prefetch of pages that the device will read and write.
    #[doc(alias = "IBV_ADVISE_MR_ADVICE_PREFETCH_WRITE")]
    Write,
    /// A prefetch of only the pages that are already present in the page tables of the process.
    #[doc(alias = "IBV_ADVISE_MR_ADVICE_PREFETCH_NO_FAULT")]
    Present,
}

impl Buffer {
    /// Prefetches the pages of `range`, a byte range of this on-demand buffer, into the device's
    /// translation tables, and waits until the pages are present. The prefetch is only advice: the
    /// kernel may evict the pages again.
    ///
    /// # Errors
    ///
    /// [`Error::OutOfRange`](crate::Error::OutOfRange) if the range is not inside of the buffer,
    /// and the error of `ibv_advise_mr`, for example if the memory is not on-demand, or if the
    /// device does [not support](crate::Error::is_unsupported) on-demand paging.
    #[doc(alias = "ibv_advise_mr")]
    pub fn prefetch(&self, range: impl RangeBounds<usize>, how: Prefetch) -> Result<()> {
        let range = resolve(range, self.len())?;
        let (span, start) = (self.span(), range.start as u64);
        let domain = span.region().domain();
        let place = (span.address().wrapping_add(start), range.len());
        advise(domain, span.region().lkey().number(), place, how)
    }
}

impl ExposedMemory {
    /// Prefetches the pages of `range`, a byte range of this on-demand memory, into the device's
    /// translation tables for accesses by peers. Waits until the pages are present, like
    /// [`Buffer::prefetch`].
    ///
    /// # Errors
    ///
    /// The errors of [`Buffer::prefetch`].
    #[doc(alias = "ibv_advise_mr")]
    pub fn prefetch(&self, range: impl RangeBounds<usize>, how: Prefetch) -> Result<()> {
        let part = self.slice(range)?;
        let lease = part.lease();
        let place = (part.remote().address, part.len());
        advise(lease.domain(), lease.lkey().number(), place, how)
    }
}
