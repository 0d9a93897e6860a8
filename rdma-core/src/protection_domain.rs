//! Protection domains.

#![forbid(unsafe_code)]

use std::alloc::Layout;
use std::sync::Arc;

use crate::address::{AddressHandle, AddressVector};
use crate::context::Context;
use crate::error::Result;
use crate::ffi::{Allocation, ProtectionDomainHandle, RegionHandle, Span};
use crate::memory::{AccessFlags, Buffer};
use crate::queue_pair::QueuePairBuilder;
use crate::receive::SharedReceiveQueueBuilder;

/// A protection domain: memory and queue pairs that may be used together. Clones are the same one.
#[doc(alias = "ibv_pd")]
#[derive(Debug, Clone)]
pub struct ProtectionDomain {
    handle: Arc<ProtectionDomainHandle>,
    context: Context,
}

impl ProtectionDomain {
    pub(crate) fn new(context: &Context) -> Result<Self> {
        let handle = ProtectionDomainHandle::allocate(Arc::clone(context.handle()))?;
        Ok(Self {
            handle: Arc::new(handle),
            context: context.clone(),
        })
    }

    pub(crate) fn handle(&self) -> &Arc<ProtectionDomainHandle> {
        &self.handle
    }

    /// The device that it is of.
    pub fn context(&self) -> &Context {
        &self.context
    }

    /// Allocates `len` zeroed bytes, page-aligned, and registers them for local use.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidArgument`](crate::Error::InvalidArgument) for 0 bytes, and the verb's: most
    /// often the locked-memory limit.
    #[doc(alias = "ibv_reg_mr")]
    pub fn allocate(&self, len: usize) -> Result<Buffer> {
        self.register(Allocation::zeroed(len, 1)?)
    }

    /// Like [`Self::allocate`], with the size and at least the alignment of `layout`.
    ///
    /// # Errors
    ///
    /// As [`Self::allocate`].
    #[doc(alias = "ibv_reg_mr")]
    pub fn allocate_layout(&self, layout: Layout) -> Result<Buffer> {
        self.register(Allocation::zeroed(layout.size(), layout.align())?)
    }

    fn register(&self, memory: Allocation) -> Result<Buffer> {
        let whole = 0..memory.len();
        let handle = Arc::clone(&self.handle);
        let access = AccessFlags::LOCAL_WRITE;
        let region = RegionHandle::register(handle, Arc::new(memory), whole, access)?;
        Ok(Buffer::new(Span::whole(region)))
    }

    /// Begins a reliable connected queue pair.
    #[doc(alias = "ibv_create_qp")]
    pub fn queue_pair(&self) -> QueuePairBuilder {
        QueuePairBuilder::new(self.clone())
    }

    /// Begins a receive queue for any number of queue pairs, with room for at least `requests`
    /// receives.
    #[doc(alias = "ibv_create_srq")]
    pub fn shared_receive_queue(&self, requests: u32) -> SharedReceiveQueueBuilder {
        SharedReceiveQueueBuilder::new(self.clone(), requests)
    }

    /// Makes an address handle: the way to a port, for datagrams.
    ///
    /// # Errors
    ///
    /// As [`AddressHandle::new`].
    #[doc(alias = "ibv_create_ah")]
    pub fn address_handle(&self, vector: &AddressVector) -> Result<AddressHandle> {
        AddressHandle::new(self, vector)
    }

    /// The C object, valid for as long as this domain.
    pub fn as_raw(&self) -> *mut ibverbs_sys::ibv_pd {
        self.handle.as_raw()
    }
}
