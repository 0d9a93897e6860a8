//! Memory of the device.

use std::ptr;
use std::slice;
use std::sync::Arc;

use ibverbs_sys::{ibv_alloc_dm_attr, ibv_context, ibv_dm, ibv_mr, ibv_pd};
use libc::{c_int, c_uint, c_void};

use super::answer::{hand_out, handle, pointer, status};
use super::memory::{Memory, make};
use super::{fail, forward, guard, number, open, verb};
use crate::census::{Counted, Kind};
use crate::context::{Held, Refusal, Shared};
use crate::fault::Verb;
use crate::memory::{DeviceMemory, Span, region_access};
use crate::nic::Nic;
use crate::proto::AccessFlags;

/// Device memory as C knows it.
#[repr(C)]
struct DeviceMemoryHandle {
    public: ibv_dm,
    nic: Arc<Nic>,
    memory: Arc<DeviceMemory>,
    _counted: Counted,
}

/// `ibv_alloc_dm(3)`
pub(super) unsafe extern "C" fn alloc_dm(
    context: *mut ibv_context,
    attr: *mut ibv_alloc_dm_attr,
) -> *mut ibv_dm {
    verb(Verb::AllocDm, fail, || {
        pointer(|| {
            // SAFETY: the caller gives attributes, and the context is ours.
            let (attr, nic) = unsafe { (&*attr, open::nic(context)) };
            if attr.comp_mask != 0
                || attr.length == 0
                || attr.log_align_req > DeviceMemory::ALIGNMENT.trailing_zeros()
            {
                return Err(Refusal::Invalid);
            }
            let memory = nic.memory.allocate(attr.length as u64)?;
            Ok(hand_out(DeviceMemoryHandle {
                public: ibv_dm {
                    context,
                    memcpy_to_dm: Some(memcpy_to_dm),
                    memcpy_from_dm: Some(memcpy_from_dm),
                    comp_mask: 0,
                    handle: handle(),
                },
                nic: Arc::clone(nic),
                memory,
                _counted: Counted::new(Kind::DeviceMemory),
            }))
        })
    })
}

/// `ibv_free_dm(3)`
pub(super) unsafe extern "C" fn free_dm(dm: *mut ibv_dm) -> c_int {
    verb(Verb::FreeDm, number, || {
        status(|| {
            // SAFETY: the memory is ours; after this call the caller does not use it.
            unsafe {
                let handle = &*dm.cast::<DeviceMemoryHandle>();
                handle.memory.usage().close()?;
                handle.nic.memory.give_back(handle.memory.length());
                drop(Box::from_raw(dm.cast::<DeviceMemoryHandle>()));
            }
            Ok(())
        })
    })
}

/// `ibv_memcpy_to_dm(3)`
unsafe extern "C" fn memcpy_to_dm(
    dm: *mut ibv_dm,
    dm_offset: u64,
    host_addr: *const c_void,
    length: usize,
) -> c_int {
    guard(libc::EIO, || {
        // SAFETY: the memory is ours, and the caller gives that many bytes.
        unsafe {
            let memory = &(*dm.cast::<DeviceMemoryHandle>()).memory;
            status(|| match Span::device(memory, dm_offset, length as u64) {
                Some(_) if length == 0 => Ok(()),
                Some(span) => span.copy_in(slice::from_raw_parts(host_addr.cast(), length)),
                None => Err(Refusal::Fault),
            })
        }
    })
}

/// `ibv_memcpy_from_dm(3)`
unsafe extern "C" fn memcpy_from_dm(
    host_addr: *mut c_void,
    dm: *mut ibv_dm,
    dm_offset: u64,
    length: usize,
) -> c_int {
    guard(libc::EIO, || {
        // SAFETY: the memory is ours, and the caller has room for that many bytes, in which anything may be.
        unsafe {
            let memory = &(*dm.cast::<DeviceMemoryHandle>()).memory;
            status(|| match Span::device(memory, dm_offset, length as u64) {
                Some(_) if length == 0 => Ok(()),
                Some(span) => {
                    ptr::write_bytes(host_addr.cast::<u8>(), 0, length);
                    span.copy_out(slice::from_raw_parts_mut(host_addr.cast(), length))
                }
                None => Err(Refusal::Fault),
            })
        }
    })
}

/// `ibv_reg_dm_mr(3)`
pub(super) unsafe extern "C" fn reg_dm_mr(
    pd: *mut ibv_pd,
    dm: *mut ibv_dm,
    dm_offset: u64,
    length: usize,
    access: c_uint,
) -> *mut ibv_mr {
    verb(Verb::RegDmMr, fail, || {
        pointer(|| {
            let access = region_access(access)?;
            // SAFETY: the domain and the memory are of some context; what is of the same one is ours too.
            unsafe {
                if (*dm).context != (*pd).context || !access.contains(AccessFlags::ZERO_BASED) {
                    return Err(Refusal::Invalid);
                }
                let memory = &(*dm.cast::<DeviceMemoryHandle>()).memory;
                let span =
                    Span::device(memory, dm_offset, length as u64).ok_or(Refusal::Invalid)?;
                let held = Memory::Device {
                    _memory: Held::new(memory)?,
                };
                make(pd, (span, 0, access), (ptr::null_mut(), length), held)
            }
        })
    })
}

/// `ibv_import_dm(3)`: there is no handle of the kernel that could name one.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_import_dm(
    context: *mut ibv_context,
    dm_handle: u32,
) -> *mut ibv_dm {
    // SAFETY: the caller gives an open context.
    unsafe { forward!(context, ibv_import_dm(context, dm_handle)) };
    guard(ptr::null_mut(), || pointer(|| Err(Refusal::Unsupported)))
}

/// `ibv_unimport_dm(3)`: ours are never imported.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_unimport_dm(dm: *mut ibv_dm) {
    // SAFETY: the caller gives device memory.
    unsafe { forward!((*dm).context, ibv_unimport_dm(dm)) };
}
