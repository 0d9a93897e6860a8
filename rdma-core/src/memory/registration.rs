//! Registering memory with a device.

use std::sync::Arc;

use super::{AccessFlags, Buffer, DetachedMemory, FrozenBuffer, HostMemory};
use crate::error::{Error, Result};
use crate::ffi::{Backing, RegionHandle, Registering, Span, StableMemory, StableMemoryMut};
use crate::protection_domain::ProtectionDomain;
use crate::refused::Refused;

/// Options for registering memory of the program: see [`ProtectionDomain::registration`].
///
/// Registered memory is for this process and its device. Peers cannot reach it until a part is
/// [exposed](Buffer::expose) or leased through a window.
#[derive(Debug, Clone)]
#[must_use = "nothing is registered until memory is given"]
pub struct Registration {
    domain: ProtectionDomain,
    how: Registering,
}

impl Registration {
    pub(crate) fn new(domain: &ProtectionDomain) -> Self {
        Self {
            domain: domain.clone(),
            how: AccessFlags::LOCAL_WRITE.into(),
        }
    }

    /// Sets the access of the device besides reading and, where the memory allows it, writing:
    /// binding windows ([`AccessFlags::WINDOW_BIND`]), reordering
    /// ([`AccessFlags::RELAXED_ORDERING`]), faulting pages in ([`AccessFlags::ON_DEMAND`]) ...
    ///
    /// Remote rights are refused at registration: the memory would be a slice that peers write to.
    pub fn access(mut self, access: AccessFlags) -> Self {
        self.how.access = access | AccessFlags::LOCAL_WRITE;
        self
    }

    /// Requests address the first byte by `address`, which must have the same offset in a page as the
    /// memory. Without this they use its address in the process, or 0 with
    /// [`AccessFlags::ZERO_BASED`], which allows no other `address`.
    #[doc(alias = "ibv_reg_mr_iova")]
    pub fn at(mut self, address: u64) -> Self {
        self.how.first = Some(address);
        self
    }

    /// Registers memory that is its owner's alone; [`Buffer::into_owner`] gives the owner back.
    ///
    /// # Errors
    ///
    /// The owner, and [`Error::InvalidArgument`] for no bytes, for remote rights, or for
    /// [`AccessFlags::ZERO_BASED`] with another [address](Self::at) or with memory that begins inside
    /// of a page; or the verb's error.
    #[doc(alias = "ibv_reg_mr")]
    #[doc(alias = "ibv_reg_mr_iova2")]
    pub fn register<O: StableMemoryMut>(&self, owner: O) -> Result<Buffer, Refused<O>> {
        self.make(Backing::exclusive(owner), self.how)
            .map_err(given_back)
    }

    /// Registers memory that others may be reading and nobody writes;
    /// [`FrozenBuffer::into_owner`] gives the owner back.
    ///
    /// # Errors
    ///
    /// The errors of [`Self::register`].
    #[doc(alias = "ibv_reg_mr")]
    pub fn register_shared<O: StableMemory>(&self, owner: O) -> Result<FrozenBuffer, Refused<O>> {
        let mut how = self.how;
        how.access.remove(AccessFlags::LOCAL_WRITE);
        self.make(Backing::shared(owner), how)
            .map(Buffer::freeze)
            .map_err(given_back)
    }

    /// Registers `len` bytes of new memory, zeroed: the device's own if it has any
    /// ([`HostMemoryBuilder::domain`](super::HostMemoryBuilder::domain)).
    ///
    /// # Errors
    ///
    /// The errors of [`Self::register`].
    pub fn allocate(&self, len: usize) -> Result<Buffer> {
        let memory = HostMemory::builder(len).domain(&self.domain).build()?;
        Ok(self.register(memory)?)
    }

    /// Registers memory again that a buffer was detached from.
    ///
    /// # Errors
    ///
    /// The memory, with the errors of [`Self::register`].
    pub fn attach(&self, memory: DetachedMemory) -> Result<Buffer, Refused<DetachedMemory>> {
        self.make(memory.into_backing(), self.how)
            .map_err(|refused| refused.map(DetachedMemory::new))
    }

    fn make(&self, memory: Backing, how: Registering) -> Result<Buffer, Refused<Backing>> {
        if how.access.intersects(AccessFlags::REMOTE) {
            let reason = "a buffer is this process's alone; expose it to grant remote access";
            let error = Error::invalid("access of a buffer", reason);
            return Err(Refused::new(memory, error));
        }
        let memory = Arc::new(memory);
        let whole = 0..memory.len();
        let domain = Arc::clone(self.domain.handle());
        match RegionHandle::register(domain, Arc::clone(&memory), whole, how) {
            Ok(region) => Ok(Buffer::new(Span::whole(region))),
            Err(error) => {
                let memory = Arc::into_inner(memory).expect("no region took it");
                Err(Refused::new(memory, error))
            }
        }
    }
}

/// Returns the owner of memory that was not registered.
fn given_back<O: 'static>(refused: Refused<Backing>) -> Refused<O> {
    refused.map(|memory| memory.into_owner().expect("it was made of such an owner"))
}

impl ProtectionDomain {
    /// Returns options for registering memory: access, addresses.
    pub fn registration(&self) -> Registration {
        Registration::new(self)
    }

    /// Registers memory that only its owner uses, for local use.
    ///
    /// ```
    /// let domain = rdma_core::Context::open_default()?.protection_domain()?;
    /// let buffer = domain.register(vec![7; 64])?;
    /// assert_eq!(buffer[63], 7);
    /// let vector: Vec<u8> = buffer.into_owner()?;
    /// assert_eq!(vector.len(), 64);
    /// # Ok::<(), rdma_core::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// The owner, with [`Error::InvalidArgument`] for no bytes or with the verb's error.
    #[doc(alias = "ibv_reg_mr")]
    pub fn register<O: StableMemoryMut>(&self, owner: O) -> Result<Buffer, Refused<O>> {
        self.registration().register(owner)
    }

    /// Registers memory that others may be reading and nobody writes: a source of sends and writes.
    ///
    /// # Errors
    ///
    /// The errors of [`Self::register`].
    #[doc(alias = "ibv_reg_mr")]
    pub fn register_shared<O: StableMemory>(&self, owner: O) -> Result<FrozenBuffer, Refused<O>> {
        self.registration().register_shared(owner)
    }
}
