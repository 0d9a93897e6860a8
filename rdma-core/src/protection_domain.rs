//! Protection domains, parent domains and thread domains.

#![forbid(unsafe_code)]

use std::alloc::Layout;
use std::sync::Arc;

use crate::address::{AddressHandle, AddressVector};
use crate::context::Context;
use crate::error::{Error, Result};
use crate::ffi::{ProtectionDomainHandle, ThreadDomainHandle};
use crate::memory::{Buffer, HostMemory};
use crate::queue_pair::QueuePairBuilder;
use crate::receive::SharedReceiveQueueBuilder;

/// A protection domain: memory and queue pairs that may be used together. Clones are the same
/// domain.
///
/// A [parent domain](Self::parent) is a protection domain, too. Protection domains are `Send` and
/// `Sync`: verbs are thread-safe on them.
#[doc(alias = "ibv_pd")]
#[derive(Debug, Clone)]
pub struct ProtectionDomain {
    handle: Arc<ProtectionDomainHandle>,
    context: Context,
}

impl ProtectionDomain {
    pub(crate) fn new(context: &Context) -> Result<Self> {
        let handle = ProtectionDomainHandle::allocate(Arc::clone(context.handle()))?;
        Ok(Self::of(context, handle))
    }

    pub(crate) fn of(context: &Context, handle: ProtectionDomainHandle) -> Self {
        Self {
            handle: Arc::new(handle),
            context: context.clone(),
        }
    }

    pub(crate) fn handle(&self) -> &Arc<ProtectionDomainHandle> {
        &self.handle
    }

    /// Returns the open device of the domain.
    pub fn context(&self) -> &Context {
        &self.context
    }

    /// Allocates `len` zeroed bytes, page-aligned, and registers them for local use. They are memory of
    /// the device's choice if it has any ([`HostMemoryBuilder::domain`](crate::HostMemoryBuilder::domain)).
    ///
    /// # Errors
    ///
    /// [`Error::InvalidArgument`](crate::Error::InvalidArgument) for 0 bytes, and the verb's: most
    /// often the locked-memory limit.
    #[doc(alias = "ibv_reg_mr")]
    #[doc(alias = "ibv_alloc_buf")]
    #[doc(alias = "ibv_reg_buf_mr")]
    pub fn allocate(&self, len: usize) -> Result<Buffer> {
        self.registration().allocate(len)
    }

    /// Like [`Self::allocate`], with the size and at least the alignment of `layout`.
    ///
    /// # Errors
    ///
    /// The errors of [`Self::allocate`].
    #[doc(alias = "ibv_reg_mr")]
    pub fn allocate_layout(&self, layout: Layout) -> Result<Buffer> {
        let memory = HostMemory::builder(layout.size())
            .align(layout.align())
            .domain(self)
            .build()?;
        Ok(self.register(memory)?)
    }

    /// Makes a parent domain of this one: objects made in either can be used with objects made in
    /// the other.
    ///
    /// Alone it changes nothing; with a thread domain, [`Self::parent_with`], it does.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidArgument`] if this is a parent domain, and the verb's error.
    #[doc(alias = "ibv_alloc_parent_domain")]
    pub fn parent(&self) -> Result<Self> {
        self.make_parent(None)
    }

    pub(crate) fn make_parent(&self, thread: Option<Arc<ThreadDomainHandle>>) -> Result<Self> {
        if self.handle.is_parent() {
            let reason = "a parent domain has no parent domain";
            return Err(Error::invalid("protection domain", reason));
        }
        let handle = ProtectionDomainHandle::parent(Arc::clone(&self.handle), thread)?;
        Ok(Self::of(&self.context, handle))
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
    /// The errors of [`AddressHandle::new`].
    #[doc(alias = "ibv_create_ah")]
    pub fn address_handle(&self, vector: &AddressVector) -> Result<AddressHandle> {
        AddressHandle::new(self, vector)
    }

    /// Returns the C object, valid for as long as this domain.
    pub fn as_raw(&self) -> *mut ibverbs_sys::ibv_pd {
        self.handle.as_raw()
    }
}

/// A promise to a driver that objects are used by one thread at a time, for
/// [`ProtectionDomain::parent_with`]. Clones are the same promise.
///
/// Thread domains are `Send` and `Sync`, because they are only named.
#[doc(alias = "ibv_td")]
#[derive(Debug, Clone)]
pub struct ThreadDomain {
    handle: Arc<ThreadDomainHandle>,
}

impl ThreadDomain {
    pub(crate) fn of(handle: ThreadDomainHandle) -> Self {
        Self {
            handle: Arc::new(handle),
        }
    }

    pub(crate) fn handle(&self) -> &Arc<ThreadDomainHandle> {
        &self.handle
    }

    /// Returns the C object, valid for as long as this domain.
    pub fn as_raw(&self) -> *mut ibverbs_sys::ibv_td {
        self.handle.as_raw()
    }
}

impl Context {
    /// Allocates a thread domain.
    ///
    /// # Errors
    ///
    /// The verb's; [unsupported](Error::is_unsupported) by most software devices.
    #[doc(alias = "ibv_alloc_td")]
    pub fn thread_domain(&self) -> Result<ThreadDomain> {
        ThreadDomainHandle::allocate(Arc::clone(self.handle())).map(ThreadDomain::of)
    }
}
