//! The verbs on memory windows.

use std::sync::Arc;

use ibverbs_sys::{ibv_mw, ibv_mw_type, ibv_pd};
use libc::c_int;

use super::answer::{into_c_object, pointer, status};
use super::{fail, number, open, pd, verb};
use crate::context::{InUse, ProtectionDomain, Refusal};
use crate::fault::Verb;
use crate::memory::WindowKind;
use crate::nic::Nic;
use crate::object_counts::{Counted, Kind};

/// The C object that `ibv_alloc_mw` returns: the public structure, followed by private data of this
/// device.
#[repr(C)]
struct WindowHandle {
    public: ibv_mw,
    nic: Arc<Nic>,
    /// Key that the window got when it was allocated. The device finds the window by this key. The
    /// key in the public structure changes with every binding.
    key: u32,
    _domain: InUse<ProtectionDomain>,
    _counted: Counted,
}

/// Allocates a memory window, by which peers get access to a part of a memory region
/// (`ibv_alloc_mw(3)`). `kind` is the window type 1 or 2.
pub(super) unsafe extern "C" fn alloc_mw(pd: *mut ibv_pd, kind: ibv_mw_type) -> *mut ibv_mw {
    verb(Verb::AllocMw, fail, || {
        pointer(|| {
            let window = match kind {
                ibv_mw_type::IBV_MW_TYPE_1 => WindowKind::Type1,
                ibv_mw_type::IBV_MW_TYPE_2 => WindowKind::Type2,
                _ => return Err(Refusal::Invalid),
            };
            // SAFETY: only contexts of this device have this function, so the domain belongs to it.
            let (context, domain) = unsafe { ((*pd).context, InUse::new(pd::domain(pd))?) };
            // SAFETY: only contexts of this device have this function.
            let nic = Arc::clone(unsafe { open::nic(context) });
            let key = nic.memory.allocate_window(domain.id(), window)?;
            Ok(into_c_object(WindowHandle {
                public: ibv_mw {
                    context,
                    pd,
                    rkey: key,
                    handle: key >> 8,
                    type_: kind,
                },
                nic,
                key,
                _domain: domain,
                _counted: Counted::new(Kind::MemoryWindow),
            }))
        })
    })
}

/// Deallocates a memory window (`ibv_dealloc_mw(3)`).
pub(super) unsafe extern "C" fn dealloc_mw(mw: *mut ibv_mw) -> c_int {
    verb(Verb::DeallocMw, number, || {
        status(|| {
            // SAFETY: only contexts of this device have this function, and `into_c_object` created
            // the object. The C API forbids its use after this call.
            unsafe {
                let handle = &*mw.cast::<WindowHandle>();
                handle.nic.memory.deallocate_window(handle.key)?;
                drop(Box::from_raw(mw.cast::<WindowHandle>()));
            }
            Ok(())
        })
    })
}
