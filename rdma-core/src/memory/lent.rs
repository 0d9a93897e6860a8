//! Memory that this process and peers may read, and neither can write.

use std::ops::{Deref, Range};

use super::{AccessFlags, FrozenBuffer, ReadClaim, RemoteMemory};
use crate::error::{Error, Result};
use crate::ffi::RegionHandle;

/// Read-only memory that peers may read by RDMA until this value is dropped. The memory comes from
/// a [`ReadClaim`] or a [`FrozenBuffer`].
///
/// While this value exists, neither this process nor a peer can write to the memory. `LentMemory`
/// therefore dereferences to `[u8]`. Peers get the access through a separate registration of only
/// these bytes. Dropping this value ends that registration, and so the access. If the
/// deregistration fails, peers may still read, so the memory is never freed and can never be
/// written again. `LentMemory` is `Send` and `Sync`.
#[derive(Debug)]
pub struct LentMemory {
    /// The registration that grants peers access.
    lease: RegionHandle,
    /// Dropped only after the registration has ended, because the memory can be written afterwards.
    /// `None` only during the drop of this value.
    source: Option<Source>,
}

/// The value that keeps the memory of a [`LentMemory`] alive and read-only.
#[derive(Debug)]
enum Source {
    /// The right to read a shared buffer, which excludes writers while it exists.
    Claim(ReadClaim),
    /// A buffer that is read-only.
    Frozen(FrozenBuffer),
}

impl LentMemory {
    /// Grants peers RDMA read access to the bytes of `claim`, a right to read a range of a shared
    /// buffer. The access ends when the returned value is dropped.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidArgument`] for 0 bytes, and the error of `ibv_reg_mr`.
    #[doc(alias = "ibv_reg_mr")]
    pub fn new(claim: ReadClaim) -> Result<Self> {
        let lease = register(claim.place())?;
        let source = Some(Source::Claim(claim));
        Ok(Self { lease, source })
    }

    /// Returns the address, length and key that a peer needs to read the memory.
    pub fn remote(&self) -> RemoteMemory {
        RemoteMemory {
            address: self.lease.request_address(self.as_ptr()),
            len: self.len() as u64,
            rkey: self.lease.rkey(),
        }
    }

    /// Returns the `ibv_mr` of the registration that grants peers access. The pointer is valid as
    /// long as this value exists.
    pub fn as_raw(&self) -> *mut ibverbs_sys::ibv_mr {
        self.lease.as_raw()
    }
}

impl FrozenBuffer {
    /// Grants peers RDMA read access to the bytes of this frozen buffer. The access ends when the
    /// returned value is dropped.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidArgument`] for 0 bytes, and the error of `ibv_reg_mr`.
    #[doc(alias = "ibv_reg_mr")]
    pub fn lend(&self) -> Result<LentMemory> {
        let span = self.buffer().span();
        let (start, range) = (span.range().start, self.range());
        let range = start + range.start..start + range.end;
        Ok(LentMemory {
            lease: register((span.region(), range))?,
            source: Some(Source::Frozen(self.clone())),
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

impl Drop for LentMemory {
    fn drop(&mut self) {
        if self.lease.end().is_err() {
            // Peers may still read the memory, so it must never be written again.
            std::mem::forget(self.source.take());
        }
    }
}

impl Deref for LentMemory {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match self.source.as_ref().expect("the value exists") {
            Source::Claim(claim) => claim,
            Source::Frozen(frozen) => frozen,
        }
    }
}
