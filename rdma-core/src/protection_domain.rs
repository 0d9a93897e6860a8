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

/// A protection domain: a set of memory regions, queue pairs and other objects that may be used
/// together. Clones refer to the same domain.
///
/// A [parent domain](Self::parent) is also a protection domain. Protection domains are `Send` and
/// `Sync`, because verbs are thread-safe on them.
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

    /// Returns the context (open device) to which the protection domain belongs.
    pub fn context(&self) -> &Context {
        &self.context
    }

    /// Allocates `len` zeroed, page-aligned bytes of memory, and registers the memory for local
    /// use. If the device has its own allocator, the memory comes from that allocator: see
    /// [`HostMemoryBuilder::domain`](crate::memory::HostMemoryBuilder::domain).
    ///
    /// # Errors
    ///
    /// [`Error::InvalidArgument`](crate::Error::InvalidArgument) for 0 bytes, and the error of the
    /// allocation or of the registration, most often because the locked-memory limit was reached.
    #[doc(alias = "ibv_reg_mr")]
    #[doc(alias = "ibv_alloc_buf")]
    #[doc(alias = "ibv_reg_buf_mr")]
    pub fn allocate(&self, len: usize) -> Result<Buffer> {
        self.registration().allocate(len)
    }

    /// Allocates zeroed memory with the size and at least the alignment of `layout`, and registers
    /// the memory for local use. Otherwise works like [`Self::allocate`].
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

    /// Creates a parent domain (`ibv_alloc_parent_domain`): a protection domain that extends this
    /// domain with settings for the driver. Objects of this domain and of the parent domain can be
    /// used together.
    ///
    /// This method adds no settings, so the parent domain behaves like this domain.
    /// [`Self::parent_with`] creates a parent domain with a [`ThreadDomain`]: only one thread at a
    /// time uses objects of that parent domain, and the driver can omit locks.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidArgument`] if this domain is itself a parent domain, and the error of
    /// `ibv_alloc_parent_domain`.
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

    /// Returns a builder for a queue pair. The default transport type is reliable connected (RC).
    #[doc(alias = "ibv_create_qp")]
    pub fn queue_pair(&self) -> QueuePairBuilder {
        QueuePairBuilder::new(self.clone())
    }

    /// Returns a builder for a shared receive queue that can hold at least `requests` receives.
    /// Several queue pairs can use the queue.
    #[doc(alias = "ibv_create_srq")]
    pub fn shared_receive_queue(&self, requests: u32) -> SharedReceiveQueueBuilder {
        SharedReceiveQueueBuilder::new(self.clone(), requests)
    }

    /// Creates an address handle, by which datagrams can be sent. `vector` describes the path to
    /// the destination port.
    ///
    /// # Errors
    ///
    /// The errors of [`AddressHandle::new`].
    #[doc(alias = "ibv_create_ah")]
    pub fn address_handle(&self, vector: &AddressVector) -> Result<AddressHandle> {
        AddressHandle::new(self, vector)
    }

    /// Returns the underlying `ibv_pd`. The pointer is valid as long as this domain exists.
    pub fn as_raw(&self) -> *mut ibverbs_sys::ibv_pd {
        self.handle.as_raw()
    }
}

/// A declaration to the driver that only one thread at a time uses a set of objects. The driver can
/// then omit locks. The program passes a thread domain to [`ProtectionDomain::parent_with`]. Clones
/// refer to the same thread domain.
///
/// Thread domains are `Send` and `Sync`: the handle itself may be used from any thread.
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

    /// Returns the underlying `ibv_td`. The pointer is valid as long as this domain exists.
    pub fn as_raw(&self) -> *mut ibverbs_sys::ibv_td {
        self.handle.as_raw()
    }
}

impl Context {
    /// Allocates a thread domain: a declaration to the driver that only one thread at a time uses a
    /// set of objects. The driver can then omit locks. The program passes the thread domain to
    /// [`ProtectionDomain::parent_with`].
    ///
    /// # Errors
    ///
    /// The error of `ibv_alloc_td`. Most software devices do [not support](Error::is_unsupported)
    /// thread domains.
    #[doc(alias = "ibv_alloc_td")]
    pub fn thread_domain(&self) -> Result<ThreadDomain> {
        ThreadDomainHandle::allocate(Arc::clone(self.handle())).map(ThreadDomain::of)
    }
}
