//! Registration of memory with a device.

use std::sync::Arc;

use super::{AccessFlags, Buffer, DetachedMemory, FrozenBuffer, HostMemory};
use crate::error::{Error, Result};
use crate::ffi::{
    Backing, RegionHandle, RegistrationParameters, Span, StableMemory, StableMemoryMut,
};
use crate::protection_domain::ProtectionDomain;
use crate::refused::Refused;

/// A builder that registers memory with the access flags and the address that the program sets,
/// from [`ProtectionDomain::registration`].
///
/// At first only this process and its device can access the registered memory. Peers get access
/// when the program [exposes](Buffer::expose) a part of it or leases a part through a memory
/// window.
#[derive(Debug, Clone)]
#[must_use = "nothing is registered until memory is given"]
pub struct Registration {
    domain: ProtectionDomain,
    how: RegistrationParameters,
}

impl Registration {
    pub(crate) fn new(domain: &ProtectionDomain) -> Self {
        Self {
            domain: domain.clone(),
            how: AccessFlags::LOCAL_WRITE.into(),
        }
    }

    /// Sets additional access flags, for example to bind windows ([`AccessFlags::WINDOW_BIND`]), to
    /// reorder writes ([`AccessFlags::RELAXED_ORDERING`]) or to fault pages in on demand
    /// ([`AccessFlags::ON_DEMAND`]). The device may always read the memory, and may always write to
    /// the memory unless the memory is read-only.
    ///
    /// Registration fails if `access` contains remote rights, because a [`Buffer`] is accessible as
    /// a slice.
    pub fn access(mut self, access: AccessFlags) -> Self {
        self.how.access = access | AccessFlags::LOCAL_WRITE;
        self
    }

    /// Sets the address that requests use for the first byte of the memory. `address` must have the
    /// same offset within a page as the memory. By default requests use the address of the byte in
    /// this process, or 0 if [`AccessFlags::ZERO_BASED`] is set. With that flag, `address` must be
    /// 0.
    #[doc(alias = "ibv_reg_mr_iova")]
    pub fn at(mut self, address: u64) -> Self {
        self.how.first = Some(address);
        self
    }

    /// Registers the memory of `owner`, which must be the only user of that memory.
    /// [`Buffer::into_owner`] gives the owner back.
    ///
    /// # Errors
    ///
    /// Returns the owner, with the error of `ibv_reg_mr` or `ibv_reg_mr_iova2`, or with
    /// [`Error::InvalidArgument`] for 0 bytes or for remote rights. [`AccessFlags::ZERO_BASED`] is
    /// invalid with an [address](Self::at) other than 0, and for memory that does not begin at a
    /// page boundary.
    #[doc(alias = "ibv_reg_mr")]
    #[doc(alias = "ibv_reg_mr_iova2")]
    pub fn register<O: StableMemoryMut>(&self, owner: O) -> Result<Buffer, Refused<O>> {
        self.make(Backing::exclusive(owner), self.how)
            .map_err(given_back)
    }

    /// Registers the memory of `owner` as read-only memory. Other threads may read the memory at
    /// the same time. [`FrozenBuffer::into_owner`] gives the owner back.
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

    /// Allocates and registers `len` zeroed bytes. If the device has a memory allocator
    /// ([`HostMemoryBuilder::domain`](super::HostMemoryBuilder::domain)), the memory comes from
    /// this allocator.
    ///
    /// # Errors
    ///
    /// The errors of [`Self::register`].
    pub fn allocate(&self, len: usize) -> Result<Buffer> {
        let memory = HostMemory::builder(len).domain(&self.domain).build()?;
        Ok(self.register(memory)?)
    }

    /// Registers `memory`, which [`Buffer::detach`] has deregistered before.
    ///
    /// # Errors
    ///
    /// Returns the detached memory, with an error of [`Self::register`].
    pub fn attach(&self, memory: DetachedMemory) -> Result<Buffer, Refused<DetachedMemory>> {
        self.make(memory.into_backing(), self.how)
            .map_err(|refused| refused.map(DetachedMemory::new))
    }

    fn make(
        &self,
        memory: Backing,
        how: RegistrationParameters,
    ) -> Result<Buffer, Refused<Backing>> {
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

/// Converts the error of a failed registration to an error that contains the owner of the memory.
fn given_back<O: 'static>(refused: Refused<Backing>) -> Refused<O> {
    refused.map(|memory| memory.into_owner().expect("it was made of such an owner"))
}

impl ProtectionDomain {
    /// Returns a builder that registers memory in this domain, with chosen access flags and at a
    /// chosen address for requests.
    pub fn registration(&self) -> Registration {
        Registration::new(self)
    }

    /// Registers the memory of `owner`, which must be the only user of that memory. Peers get no
    /// access.
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
    /// Returns the owner, with [`Error::InvalidArgument`] for 0 bytes or with the error of
    /// `ibv_reg_mr`.
    #[doc(alias = "ibv_reg_mr")]
    pub fn register<O: StableMemoryMut>(&self, owner: O) -> Result<Buffer, Refused<O>> {
        self.registration().register(owner)
    }

    /// Registers the memory of `owner` as read-only memory. Other threads may read the memory at
    /// the same time. Requests can use the memory as the source of sends and writes.
    ///
    /// # Errors
    ///
    /// The errors of [`Self::register`].
    #[doc(alias = "ibv_reg_mr")]
    pub fn register_shared<O: StableMemory>(&self, owner: O) -> Result<FrozenBuffer, Refused<O>> {
        self.registration().register_shared(owner)
    }
}
