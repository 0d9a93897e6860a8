//! Protection domains, and thread domains.

use std::ptr::{self, NonNull};
use std::sync::Arc;

use ibverbs_sys as sys;

use super::context::{ContextHandle, positive};
use crate::error::{Errno, Error, Result};

/// Owner of an `ibv_pd`.
#[derive(Debug)]
pub(crate) struct ProtectionDomainHandle {
    raw: NonNull<sys::ibv_pd>,
    context: Arc<ContextHandle>,
    /// What a parent domain is made of, and outlived by.
    parts: Option<Parts>,
}

/// The protection domain that a parent domain stands for, and the thread domain that it adds.
#[derive(Debug)]
struct Parts {
    domain: Arc<ProtectionDomainHandle>,
    _thread: Option<Arc<ThreadDomainHandle>>,
}

// SAFETY: verbs are thread-safe on a protection domain. A thread domain tells the driver that its
// user takes care of that, so what is made in a parent domain with one is used as the types of this
// crate allow it: see `ThreadDomain`.
unsafe impl Send for ProtectionDomainHandle {}
// SAFETY: as above.
unsafe impl Sync for ProtectionDomainHandle {}

impl ProtectionDomainHandle {
    pub(crate) fn allocate(context: Arc<ContextHandle>) -> Result<Self> {
        // SAFETY: the context is open for as long as its handle.
        let raw = unsafe { sys::ibv_alloc_pd(context.as_raw()) };
        match NonNull::new(raw) {
            Some(raw) => Ok(Self::adopt(context, raw)),
            None => Err(Error::verb(
                "ibv_alloc_pd",
                context.describe(),
                Errno::last(),
            )),
        }
    }

    /// Takes over a domain of `context`, which the caller vouches for.
    pub(super) fn adopt(context: Arc<ContextHandle>, raw: NonNull<sys::ibv_pd>) -> Self {
        Self {
            raw,
            context,
            parts: None,
        }
    }

    /// A parent domain of `domain`.
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
        // SAFETY: the context is open, and the domains are valid for as long as their handles, which
        // the new handle keeps.
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
        })
    }

    pub(crate) fn as_raw(&self) -> *mut sys::ibv_pd {
        self.raw.as_ptr()
    }

    pub(crate) fn context(&self) -> &Arc<ContextHandle> {
        &self.context
    }

    /// Whether it is a parent domain.
    pub(crate) fn is_parent(&self) -> bool {
        self.parts.is_some()
    }

    /// Whether what is made in the one can be used with what is made in the other.
    pub(crate) fn is_same(&self, other: &Self) -> bool {
        self.innermost().raw == other.innermost().raw
    }

    /// Says that a message of a peer, whose receive was in flight until now, has ended the access
    /// that a key gave: of this domain, or of that of a queue pair which takes its receives here.
    #[inline(never)]
    pub(crate) fn ended_by_peer(&self, key: u32) {
        self.context.leases().ended_by_peer(key);
    }

    /// The protection domain itself, of a parent domain that which it stands for.
    fn innermost(&self) -> &Self {
        let Some(Parts { domain, .. }) = &self.parts else {
            return self;
        };
        domain
    }
}

impl Drop for ProtectionDomainHandle {
    fn drop(&mut self) {
        // SAFETY: the domain is allocated and freed once, here; every object in it holds an `Arc`
        // of this handle, so none is left.
        let errno = unsafe { sys::ibv_dealloc_pd(self.raw.as_ptr()) };
        if errno != 0 {
            tracing::error!(device = %self.context.name(), errno = %positive(errno), "ibv_dealloc_pd failed");
        }
    }
}

/// Owner of an `ibv_td`.
#[derive(Debug)]
pub(crate) struct ThreadDomainHandle {
    raw: NonNull<sys::ibv_td>,
    context: Arc<ContextHandle>,
}

// SAFETY: a thread domain is only named, when a parent domain is made.
unsafe impl Send for ThreadDomainHandle {}
// SAFETY: as above.
unsafe impl Sync for ThreadDomainHandle {}

impl ThreadDomainHandle {
    pub(crate) fn allocate(context: Arc<ContextHandle>) -> Result<Self> {
        let mut attributes = sys::ibv_td_init_attr::default();
        // SAFETY: the context is open for as long as its handle.
        let raw = unsafe { sys::ibv_alloc_td(context.as_raw(), &mut attributes) };
        match NonNull::new(raw) {
            Some(raw) => Ok(Self::adopt(context, raw)),
            None => Err(Error::verb(
                "ibv_alloc_td",
                context.describe(),
                Errno::last(),
            )),
        }
    }

    /// Takes over a thread domain of `context`, which the caller vouches for.
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
        // SAFETY: the thread domain is allocated and freed once, here; a parent domain with it
        // holds an `Arc` of this handle, so none is left.
        let errno = unsafe { sys::ibv_dealloc_td(self.raw.as_ptr()) };
        if errno != 0 {
            tracing::error!(device = %self.context.name(), errno = %positive(errno), "ibv_dealloc_td failed");
        }
    }
}
