//! Bringing on-demand memory in before it is needed.

use std::ops::RangeBounds;

use super::buffer::resolve;
use super::{Buffer, ExposedMemory};
use crate::error::Result;
use crate::ffi::advise;

/// How pages of an [on-demand](super::AccessFlags::ON_DEMAND) region are brought in.
#[doc(alias = "ibv_advise_mr_advice")]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Prefetch {
    /// For the device to read.
    #[doc(alias = "IBV_ADVISE_MR_ADVICE_PREFETCH")]
    Read,
    /// For the device to write as well.
    #[doc(alias = "IBV_ADVISE_MR_ADVICE_PREFETCH_WRITE")]
    Write,
    /// Only those that the process has in memory already.
    #[doc(alias = "IBV_ADVISE_MR_ADVICE_PREFETCH_NO_FAULT")]
    Present,
}

impl Buffer {
    /// Has the device get ready for a range of an on-demand region, and waits until it is. An advice:
    /// pages may go again.
    ///
    /// # Errors
    ///
    /// [`Error::OutOfRange`](crate::Error::OutOfRange) if the range is not inside, and the verb's: for
    /// memory that is not on demand, and [unsupported](crate::Error::is_unsupported) where there is
    /// no such memory.
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
    /// As [`Buffer::prefetch`], for the registration that grants remote access.
    ///
    /// # Errors
    ///
    /// As [`Buffer::prefetch`].
    #[doc(alias = "ibv_advise_mr")]
    pub fn prefetch(&self, range: impl RangeBounds<usize>, how: Prefetch) -> Result<()> {
        let part = self.slice(range)?;
        let lease = part.lease();
        let place = (part.remote().address, part.len());
        advise(lease.domain(), lease.lkey().number(), place, how)
    }
}
