//! Memory that peers may read while this process reads it too.

use super::{AccessFlags, ReadClaim, RemoteMemory};
use crate::error::{Error, Result};
use crate::ffi::RegionHandle;

/// A [`ReadClaim`] that peers may read by RDMA, until this is dropped.
///
/// Nobody writes to the memory meanwhile, this process or a peer. The grant is a registration of
/// its own, of these bytes alone, and ends at the device.
#[derive(Debug)]
pub struct LentMemory {
    /// Before the claim: the grant ends before the memory can be written again.
    lease: RegionHandle,
    claim: ReadClaim,
}

impl LentMemory {
    /// Lets peers read what `claim` covers.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidArgument`] for no bytes, and the verb's.
    #[doc(alias = "ibv_reg_mr")]
    pub fn new(claim: ReadClaim) -> Result<Self> {
        if claim.is_empty() {
            return Err(Error::invalid(
                "memory to lend",
                "0 bytes cannot be registered",
            ));
        }
        let (region, range) = claim.place();
        let (domain, memory) = (region.domain().clone(), region.memory().clone());
        let lease = RegionHandle::register(domain, memory, range, AccessFlags::REMOTE_READ)?;
        Ok(Self { lease, claim })
    }

    /// What a peer needs to read it.
    pub fn remote(&self) -> RemoteMemory {
        RemoteMemory {
            address: self.lease.request_address(self.claim.as_ptr()),
            len: self.claim.len() as u64,
            rkey: self.lease.rkey(),
        }
    }
}
