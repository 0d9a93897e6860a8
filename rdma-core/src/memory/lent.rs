//! Memory that peers may read while this process reads it too.

use std::ops::{Deref, Range};

use super::{AccessFlags, FrozenBuffer, ReadClaim, RemoteMemory};
use crate::error::{Error, Result};
use crate::ffi::RegionHandle;

/// A [`ReadClaim`] or [`FrozenBuffer`] that peers may read by RDMA, until this is dropped.
///
/// Nobody writes to the memory meanwhile, this process or a peer, so it derefs to `[u8]`. The grant is
/// a registration of its own, of these bytes alone, and ends at the device. It is `Send` and `Sync`.
#[derive(Debug)]
pub struct LentMemory {
    /// Before the source: the grant ends before the memory can be written again.
    lease: RegionHandle,
    source: Source,
}

/// What keeps others from writing.
#[derive(Debug)]
enum Source {
    Claim(ReadClaim),
    Frozen(FrozenBuffer),
}

impl LentMemory {
    /// Lets peers read what `claim` covers.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidArgument`] for no bytes, and the verb's.
    #[doc(alias = "ibv_reg_mr")]
    pub fn new(claim: ReadClaim) -> Result<Self> {
        let lease = register(claim.place())?;
        let source = Source::Claim(claim);
        Ok(Self { lease, source })
    }

    /// What a peer needs to read it.
    pub fn remote(&self) -> RemoteMemory {
        RemoteMemory {
            address: self.lease.request_address(self.as_ptr()),
            len: self.len() as u64,
            rkey: self.lease.rkey(),
        }
    }

    /// The C object of the registration that grants it, valid for as long as this.
    pub fn as_raw(&self) -> *mut ibverbs_sys::ibv_mr {
        self.lease.as_raw()
    }
}

impl FrozenBuffer {
    /// Lets peers read it, or this part of it.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidArgument`] for no bytes, and the verb's.
    #[doc(alias = "ibv_reg_mr")]
    pub fn lend(&self) -> Result<LentMemory> {
        let span = self.buffer().span();
        let (start, range) = (span.range().start, self.range());
        let range = start + range.start..start + range.end;
        Ok(LentMemory {
            lease: register((span.region(), range))?,
            source: Source::Frozen(self.clone()),
        })
    }
}

fn register((region, range): (&RegionHandle, Range<usize>)) -> Result<RegionHandle> {
    if range.is_empty() {
        let reason = "0 bytes cannot be registered";
        return Err(Error::invalid("memory to lend", reason));
    }
    let (domain, memory) = (region.domain().clone(), region.memory().clone());
    RegionHandle::register(domain, memory, range, AccessFlags::REMOTE_READ)
}

impl Deref for LentMemory {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match &self.source {
            Source::Claim(claim) => claim,
            Source::Frozen(frozen) => frozen,
        }
    }
}
