//! Protection domains, parent domains and thread domains.

use std::ptr::{self, NonNull};
use std::sync::Arc;

use ibverbs_sys as sys;

use super::context::{ContextHandle, positive};
use crate::error::{Errno, Error, Result};

/// The owner of a protection domain (`ibv_pd`). Dropping this value frees the domain.
#[derive(Debug)]
pub(crate) struct ProtectionDomainHandle {
    raw: NonNull<sys::ibv_pd>,
    context: Arc<ContextHandle>,
    /// The domains from which this parent domain was created, which must outlive this domain.
    /// `None` if this is not a parent domain.
    parts: Option<Parts>,
    /// Set for an imported domain, which belongs to another object. That object frees the domain.
    is_imported: bool,
}

/// The domains from which a parent domain was created: a protection domain and, optionally, a
/// thread domain.
#[derive(Debug)]
struct Parts {
    domain: Arc<ProtectionDomainHandle>,
    _thread: Option<Arc<ThreadDomainHandle>>,
}

// SAFETY: verbs are thread-safe on a protection domain. A thread domain makes the driver rely on
// its user for synchronization; the types of this crate provide it for objects of a parent domain
// with a thread domain: see `ThreadDomain`.
unsafe impl Send for ProtectionDomainHandle {}
// SAFETY: verbs are thread-safe on a protection domain, or, with a thread domain, the types of this
// crate synchronize its objects.
unsafe impl Sync for ProtectionDomainHandle {}

impl ProtectionDomainHandle {
    pub(crate) fn allocate(context: Arc<ContextHandle>) -> Result<Self> {
        // SAFETY: the handle of the context keeps it open.
        let raw = unsafe { sys::ibv_alloc_pd(context.as_raw()) };
        let Some(raw) = NonNull::new(raw) else {
            let errno = Errno::last();
            return Err(Error::verb("ibv_alloc_pd", context.describe(), errno));
        };
        Ok(Self::adopt(context, raw))
    }

    /// Takes ownership of a protection domain, which must belong to `context`.
    pub(super) fn adopt(context: Arc<ContextHandle>, raw: NonNull<sys::ibv_pd>) -> Self {
        Self {
            raw,
            context,
            parts: None,
            is_imported: false,
        }
    }

    /// Takes ownership of an imported protection domain, which must belong to `context`. Dropping
    /// the handle unimports the domain instead of freeing it.
    pub(super) fn import(context: Arc<ContextHandle>, raw: NonNull<sys::ibv_pd>) -> Self {
        Self {
            raw,
            context,
            parts: None,
            is_imported: true,
        }
    }

    /// Creates a parent domain from `domain`, and from the thread domain `thread` if present.
    pub(crate) fn parent(
        domain: Arc<Self>,
        thread: Option<Arc<ThreadDomainHandle>>,
    ) -> Result<Self> {
        let context = Arc::clone(&domain.context);
        let mut attributes = sys::ibv_parent_domain_init_attr {
            pd: domain.as_raw(),
            td: thread
                .as_ref()
                .map_or(ptr::null_mut(), |thread| thread.as_raw()),
            ..Default::default()
        };
        // SAFETY: the context is open, and the new handle keeps the handles of both domains.
        let raw = unsafe { sys::ibv_alloc_parent_domain(context.as_raw(), &mut attributes) };
        let Some(raw) = NonNull::new(raw) else {
            let errno = Errno::last();
            let object = context.describe();
            return Err(Error::verb("ibv_alloc_parent_domain", object, errno));
        };
        let parts = Parts {
            domain,
            _thread: thread,
        };
        Ok(Self {
            raw,
            context,
            parts: Some(parts),
            is_imported: false,
        })
    }

    pub(crate) fn as_raw(&self) -> *mut sys::ibv_pd {
        self.raw.as_ptr()
    }

    pub(crate) fn context(&self) -> &Arc<ContextHandle> {
        &self.context
    }

    /// Returns whether this is a parent domain.
    pub(crate) fn is_parent(&self) -> bool {
        self.parts.is_some()
    }

    /// Returns whether objects of this domain can be used together with objects of `other`. Both
    /// domains must be the same protection domain, or parent domains of the same protection domain,
    /// or a parent domain and the protection domain from which it was created.
    pub(crate) fn is_same(&self, other: &Self) -> bool {
        self.innermost().raw == other.innermost().raw
    }

    /// Records that a peer's Send with Invalidate has invalidated `key`, the remote key of a memory
    /// window. Peers then have no access through the window. Must be called once for each such
    /// message, when the completion of its receive is processed. The window may belong to any
    /// protection domain of the same context.
    #[inline(never)]
    pub(crate) fn ended_by_peer(&self, key: u32) {
        self.context.leases().ended_by_peer(key);
    }

    /// Returns the protection domain from which this parent domain was created, or this domain if
    /// it is not a parent domain.
    fn innermost(&self) -> &Self {
        let Some(Parts { domain, .. }) = &self.parts else {
            return self;
        };
        domain
    }
}

impl Drop for ProtectionDomainHandle {
    fn drop(&mut self) {
        if self.is_imported {
            // SAFETY: the domain is imported and unimported once, here; every object in it that was
            // created by this handle holds an `Arc` of the handle, so no such object is left.
            return unsafe { sys::ibv_unimport_pd(self.raw.as_ptr()) };
        }
        // SAFETY: the domain is allocated and freed once, here; every object in it holds an `Arc`
        // of this handle, so no such object is left.
        let errno = unsafe { sys::ibv_dealloc_pd(self.raw.as_ptr()) };
        if errno != 0 {
            tracing::error!(device = %self.context.name(), errno = %positive(errno), "ibv_dealloc_pd failed");
        }
    }
}

/// The owner of a thread domain (`ibv_td`). Dropping this value frees the domain.
#[derive(Debug)]
pub(crate) struct ThreadDomainHandle {
    raw: NonNull<sys::ibv_td>,
    context: Arc<ContextHandle>,
}

// SAFETY: verbs only read a thread domain, when a parent domain is created from it.
unsafe impl Send for ThreadDomainHandle {}
// SAFETY: verbs only read a thread domain, when a parent domain is created from it.
unsafe impl Sync for ThreadDomainHandle {}

impl ThreadDomainHandle {
    pub(crate) fn allocate(context: Arc<ContextHandle>) -> Result<Self> {
        let mut attributes = sys::ibv_td_init_attr::default();
        // SAFETY: the handle of the context keeps it open.
        let raw = unsafe { sys::ibv_alloc_td(context.as_raw(), &mut attributes) };
        let Some(raw) = NonNull::new(raw) else {
            let errno = Errno::last();
            return Err(Error::verb("ibv_alloc_td", context.describe(), errno));
        };
        Ok(Self::adopt(context, raw))
    }

    /// Takes ownership of a thread domain, which must belong to `context`.
    pub(super) fn adopt(context: Arc<ContextHandle>, raw: NonNull<sys::ibv_td>) -> Self {
        Self { raw, context }
    }

    pub(crate) fn as_raw(&self) -> *mut sys::ibv_td {
        self.raw.as_ptr()
    }

    pub(crate) fn context(&self) -> &Arc<ContextHandle> {
        &self.context
    }
}

impl Drop for ThreadDomainHandle {
    fn drop(&mut self) {
        // SAFETY: the thread domain is allocated and freed once, here; a parent domain that uses it
        // holds an `Arc` of this handle, so no such domain is left.
        let errno = unsafe { sys::ibv_dealloc_td(self.raw.as_ptr()) };
        if errno != 0 {
            tracing::error!(device = %self.context.name(), errno = %positive(errno), "ibv_dealloc_td failed");
        }
    }
}
