//! Advice to the device about memory regions: prefetching the pages of on-demand regions.

use ibverbs_sys as sys;
use sys::{ib_uverbs_advise_mr_advice as Advice, ib_uverbs_advise_mr_flag as Flag};

use super::context::positive;
use super::protection_domain::ProtectionDomainHandle;
use crate::error::{Error, Result};
use crate::memory::Prefetch;

/// Maximum number of bytes that one call of `ibv_advise_mr` covers. [`advise`] splits a larger
/// range into several calls. The value fits into the 32-bit length field of the call, and is a
/// whole number of pages.
const PIECE: usize = 1 << 30;

/// Prefetches the pages of an on-demand memory region that contain the `len` bytes at `address`.
/// `address` is the address that requests use for the first of these bytes.
pub(crate) fn advise(
    domain: &ProtectionDomainHandle,
    lkey: u32,
    (address, len): (u64, usize),
    how: Prefetch,
) -> Result<()> {
    let advice = match how {
        Prefetch::Read => Advice::IB_UVERBS_ADVISE_MR_ADVICE_PREFETCH,
        Prefetch::Write => Advice::IB_UVERBS_ADVISE_MR_ADVICE_PREFETCH_WRITE,
        Prefetch::Present => Advice::IB_UVERBS_ADVISE_MR_ADVICE_PREFETCH_NO_FAULT,
    };
    let flags = Flag::IB_UVERBS_ADVISE_MR_FLAG_FLUSH.0;
    let mut start = 0;
    while start < len {
        let piece = PIECE.min(len - start);
        let mut element = sys::ibv_sge {
            addr: address.wrapping_add(start as u64),
            length: piece as u32,
            lkey,
        };
        // SAFETY: the handle of the domain keeps it valid, and the list has one element. The advice
        // changes no byte of memory.
        let errno =
            unsafe { sys::ibv_advise_mr(domain.as_raw(), advice, flags as _, &mut element, 1) };
        if errno != 0 {
            let errno = positive(errno);
            let device = domain.context().describe();
            let object = format!("{piece} bytes of a memory region of {device}");
            return Err(Error::verb("ibv_advise_mr", object, errno));
        }
        start += piece;
    }
    Ok(())
}
