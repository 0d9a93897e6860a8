//! The verbs on protection domains, thread domains and parent domains.

use std::ptr;
use std::sync::Arc;

use ibverbs_sys::{
    ibv_context, ibv_parent_domain_init_attr, ibv_parent_domain_init_attr_mask, ibv_pd, ibv_td,
    ibv_td_init_attr,
};
use libc::c_int;

use super::answer::{into_c_object, pointer, status};
use super::{fail, forward, guard, number, open, verb};
use crate::context::{Context, HasUsage, InUse, ProtectionDomain, Refusal, ThreadDomain};
use crate::fault::Verb;
use crate::limits;
use crate::object_counts::{Counted, Kind, objects};

/// The C object that `ibv_alloc_pd` returns: the public structure, followed by the protection
/// domain of this device.
#[repr(C)]
struct ProtectionDomainHandle {
    public: ibv_pd,
    domain: Arc<ProtectionDomain>,
    /// Context to which the domain belongs. The reference keeps the context valid if the program
    /// closes the context before the domain is deallocated.
    _context: Arc<Context>,
    /// For a parent domain: the protection domain and the thread domain that must not be
    /// deallocated before the parent domain.
    _parent: Option<(InUse<ProtectionDomain>, Option<InUse<ThreadDomain>>)>,
    _counted: Counted,
}

/// The C object that `ibv_alloc_td` returns: the public structure, followed by the thread domain of
/// this device.
#[repr(C)]
struct ThreadDomainHandle {
    public: ibv_td,
    domain: Arc<ThreadDomain>,
}

/// Returns the [`ProtectionDomain`] that is stored in the C object `pd`.
///
/// # Safety
/// `pd` must belong to this device, and must not be deallocated while the reference is used.
pub(crate) unsafe fn domain<'a>(pd: *const ibv_pd) -> &'a Arc<ProtectionDomain> {
    // SAFETY: the caller guarantees an object of this device, and each such object is the first
    // field of a `ProtectionDomainHandle`.
    unsafe { &(*pd.cast::<ProtectionDomainHandle>()).domain }
}

/// Allocates a protection domain (`ibv_alloc_pd(3)`).
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_alloc_pd(context: *mut ibv_context) -> *mut ibv_pd {
    // SAFETY: the C API requires the caller to pass an open context.
    unsafe { forward!(context, ibv_alloc_pd(context)) };
    verb(Verb::AllocPd, fail, || {
        pointer(|| {
            // SAFETY: the context belongs to this device, as `forward!` has checked, and the C API
            // requires an open one.
            unsafe {
                let domain = ProtectionDomain::new();
                let pd = make(context, Arc::clone(&domain), None)?;
                open::file(context).domains.insert((*pd).handle, &domain);
                Ok(pd)
            }
        })
    })
}

/// Deallocates a protection domain (`ibv_dealloc_pd(3)`).
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_dealloc_pd(pd: *mut ibv_pd) -> c_int {
    // SAFETY: the C API requires the caller to pass a valid protection domain.
    unsafe { forward!((*pd).context, ibv_dealloc_pd(pd)) };
    verb(Verb::DeallocPd, number, || {
        status(|| {
            // SAFETY: the domain belongs to this device, and was created by `into_c_object`. The C
            // API forbids its use after this call.
            unsafe {
                let domain = domain(pd);
                domain.usage().close()?;
                if !domain.is_parent() {
                    open::file((*pd).context).domains.remove((*pd).handle);
                }
                drop(Box::from_raw(pd.cast::<ProtectionDomainHandle>()));
            }
            Ok(())
        })
    })
}

/// Creates another `ibv_pd` for the existing protection domain with the handle `pd_handle`
/// (`ibv_import_pd(3)`). The domain must belong to `context`, or to a context that shares its
/// objects with `context` through `ibv_import_device`. Otherwise the call fails.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_import_pd(
    context: *mut ibv_context,
    pd_handle: u32,
) -> *mut ibv_pd {
    // SAFETY: the C API requires the caller to pass an open context.
    unsafe { forward!(context, ibv_import_pd(context, pd_handle)) };
    guard(ptr::null_mut(), || {
        // SAFETY: the context belongs to this device, as `forward!` has checked, and the C API
        // requires an open one.
        pointer(|| unsafe {
            let domain = open::file(context).domains.find(pd_handle)?;
            make(context, domain, None)
        })
    })
}

/// Frees an `ibv_pd` that `ibv_import_pd` has returned (`ibv_unimport_pd(3)`). The protection
/// domain stays allocated for the `ibv_pd` from which it was imported.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_unimport_pd(pd: *mut ibv_pd) {
    // SAFETY: the C API requires the caller to pass a valid protection domain.
    unsafe { forward!((*pd).context, ibv_unimport_pd(pd)) };
    // SAFETY: the domain belongs to this device, and was created by `into_c_object`. The C API
    // forbids its use after this call.
    guard((), || unsafe {
        drop(Box::from_raw(pd.cast::<ProtectionDomainHandle>()));
    });
}

/// Allocates a thread domain (`ibv_alloc_td(3)`): a program that creates objects in the domain
/// promises to use them from only one thread at a time. Returns null on failure.
pub(super) unsafe extern "C" fn alloc_td(
    context: *mut ibv_context,
    init_attr: *mut ibv_td_init_attr,
) -> *mut ibv_td {
    verb(Verb::AllocTd, fail, || {
        // SAFETY: the C API requires the caller to pass valid attributes.
        if unsafe { (*init_attr).comp_mask } != 0 {
            return pointer(|| Err(Refusal::Invalid));
        }
        into_c_object(ThreadDomainHandle {
            public: ibv_td { context },
            domain: ThreadDomain::new(),
        })
    })
}

/// Deallocates a thread domain (`ibv_dealloc_td(3)`).
pub(super) unsafe extern "C" fn dealloc_td(td: *mut ibv_td) -> c_int {
    verb(Verb::DeallocTd, number, || {
        status(|| {
            // SAFETY: only contexts of this device have this function, and `into_c_object` created
            // the object. The C API forbids its use after this call.
            unsafe {
                let handle = &*td.cast::<ThreadDomainHandle>();
                handle.domain.usage().close()?;
                drop(Box::from_raw(td.cast::<ThreadDomainHandle>()));
            }
            Ok(())
        })
    })
}

/// Allocates a parent domain (`ibv_alloc_parent_domain(3)`). The allocation functions in `attr` are
/// never called, because this device needs no memory from them. Returns null on failure.
pub(super) unsafe extern "C" fn alloc_parent_domain(
    context: *mut ibv_context,
    attr: *mut ibv_parent_domain_init_attr,
) -> *mut ibv_pd {
    type Mask = ibv_parent_domain_init_attr_mask;
    const ALLOCATORS: u32 = Mask::IBV_PARENT_DOMAIN_INIT_ATTR_ALLOCATORS.0;
    const KNOWN: u32 = ALLOCATORS | Mask::IBV_PARENT_DOMAIN_INIT_ATTR_PD_CONTEXT.0;
    verb(Verb::AllocParentDomain, fail, || {
        pointer(|| {
            // SAFETY: the C API requires valid attributes and valid domains. Domains of the same
            // context belong to this device.
            unsafe {
                let attr = &*attr;
                let half = attr.alloc.is_none() || attr.free.is_none();
                if attr.comp_mask & !KNOWN != 0
                    || attr.comp_mask & ALLOCATORS != 0 && half
                    || attr.pd.is_null()
                    || (*attr.pd).context != context
                    || !attr.td.is_null() && (*attr.td).context != context
                {
                    return Err(Refusal::Invalid);
                }
                let child = domain(attr.pd);
                if child.is_parent() {
                    return Err(Refusal::Invalid);
                }
                let thread = attr.td.cast::<ThreadDomainHandle>().as_ref();
                let thread = thread
                    .map(|thread| InUse::new(&thread.domain))
                    .transpose()?;
                make(
                    context,
                    ProtectionDomain::parent(child),
                    Some((InUse::new(child)?, thread)),
                )
            }
        })
    })
}

/// Creates the `ibv_pd` of the protection domain `domain`. For a parent domain, `parent` contains
/// the protection domain and the thread domain from which the parent domain was made. For any other
/// protection domain, `parent` is `None`.
///
/// # Safety
/// `context` must be an open context of this device.
unsafe fn make(
    context: *mut ibv_context,
    domain: Arc<ProtectionDomain>,
    parent: Option<(InUse<ProtectionDomain>, Option<InUse<ThreadDomain>>)>,
) -> Result<*mut ibv_pd, Refusal> {
    if objects(Kind::ProtectionDomain) >= limits::MAX_PD as u64 {
        return Err(Refusal::Exhausted);
    }
    let handle = domain.id().number() as u32;
    Ok(into_c_object(ProtectionDomainHandle {
        public: ibv_pd { context, handle },
        domain,
        // SAFETY: the caller guarantees an open context of this device.
        _context: Arc::clone(unsafe { open::context(context) }),
        _parent: parent,
        _counted: Counted::new(Kind::ProtectionDomain),
    }))
}
