//! The verbs on device memory.

use std::ptr;
use std::slice;
use std::sync::Arc;

use ibverbs_sys::{ibv_alloc_dm_attr, ibv_context, ibv_dm, ibv_mr, ibv_pd};
use libc::{c_int, c_uint, c_void};

use super::answer::{handle, into_c_object, pointer, status};
use super::memory::{self, Memory};
use super::{fail, forward, guard, number, open, verb};
use crate::context::{HasUsage, InUse, Refusal};
use crate::fault::Verb;
use crate::memory::{DeviceMemory, Span, region_access};
use crate::nic::Nic;
use crate::object_counts::{Counted, Kind};
use crate::proto::AccessFlags;

/// The C object that `ibv_alloc_dm` returns: the public structure, followed by the device memory
/// itself.
#[repr(C)]
struct DeviceMemoryHandle {
    public: ibv_dm,
    nic: Arc<Nic>,
    memory: Arc<DeviceMemory>,
    _counted: Counted,
}

/// Allocates device memory (`ibv_alloc_dm(3)`).
pub(super) unsafe extern "C" fn alloc_dm(
    context: *mut ibv_context,
    attr: *mut ibv_alloc_dm_attr,
) -> *mut ibv_dm {
    verb(Verb::AllocDm, fail, || {
        pointer(|| {
            // SAFETY: the C API requires valid attributes. Only contexts of this device have this
            // function.
            let (attr, nic) = unsafe { (&*attr, open::nic(context)) };
            if attr.comp_mask != 0
                || attr.length == 0
                || attr.log_align_req > DeviceMemory::ALIGNMENT.trailing_zeros()
            {
                return Err(Refusal::Invalid);
            }
            let memory = nic.memory.allocate(attr.length as u64)?;
            let handle = handle();
            // SAFETY: only contexts of this device have this function.
            unsafe {
                open::file(context).device_memory.insert(handle, &memory);
                Ok(make(context, memory, handle))
            }
        })
    })
}

/// Creates the `ibv_dm` for the device memory `memory`. The program can import the memory into
/// another context by the number `handle`.
///
/// # Safety
/// `context` must be an open context of this device.
unsafe fn make(context: *mut ibv_context, memory: Arc<DeviceMemory>, handle: u32) -> *mut ibv_dm {
    into_c_object(DeviceMemoryHandle {
        public: ibv_dm {
            context,
            memcpy_to_dm: Some(memcpy_to_dm),
            memcpy_from_dm: Some(memcpy_from_dm),
            comp_mask: 0,
            handle,
        },
        // SAFETY: the caller guarantees an open context of this device.
        nic: Arc::clone(unsafe { open::nic(context) }),
        memory,
        _counted: Counted::new(Kind::DeviceMemory),
    })
}

/// Frees device memory (`ibv_free_dm(3)`).
pub(super) unsafe extern "C" fn free_dm(dm: *mut ibv_dm) -> c_int {
    verb(Verb::FreeDm, number, || {
        status(|| {
            // SAFETY: only contexts of this device have this function, and `into_c_object` created
            // the object. The C API forbids its use after this call.
            unsafe {
                let handle = &*dm.cast::<DeviceMemoryHandle>();
                handle.memory.usage().close()?;
                handle.nic.memory.deallocate(handle.memory.length());
                open::file((*dm).context)
                    .device_memory
                    .remove(handle.public.handle);
                drop(Box::from_raw(dm.cast::<DeviceMemoryHandle>()));
            }
            Ok(())
        })
    })
}

/// Copies bytes to device memory (`ibv_memcpy_to_dm(3)`).
unsafe extern "C" fn memcpy_to_dm(
    dm: *mut ibv_dm,
    dm_offset: u64,
    host_addr: *const c_void,
    length: usize,
) -> c_int {
    guard(libc::EIO, || {
        // SAFETY: only memory of this device has this function. The C API requires `length` bytes
        // that are valid for reads.
        unsafe {
            let memory = &(*dm.cast::<DeviceMemoryHandle>()).memory;
            status(|| match copied(memory, dm_offset, length)? {
                _ if length == 0 => Ok(()),
                span => span.copy_in(slice::from_raw_parts(host_addr.cast(), length)),
            })
        }
    })
}

/// Copies bytes from device memory (`ibv_memcpy_from_dm(3)`).
unsafe extern "C" fn memcpy_from_dm(
    host_addr: *mut c_void,
    dm: *mut ibv_dm,
    dm_offset: u64,
    length: usize,
) -> c_int {
    guard(libc::EIO, || {
        // SAFETY: only memory of this device has this function. The C API requires room for
        // `length` bytes, which are initialized before a reference to them is made.
        unsafe {
            let memory = &(*dm.cast::<DeviceMemoryHandle>()).memory;
            status(|| match copied(memory, dm_offset, length)? {
                _ if length == 0 => Ok(()),
                span => {
                    ptr::write_bytes(host_addr.cast::<u8>(), 0, length);
                    span.copy_out(slice::from_raw_parts_mut(host_addr.cast(), length))
                }
            })
        }
    })
}

/// Returns the range of the device memory `memory` that the program copies from or to. The range
/// has `length` bytes and begins at `offset`.
///
/// # Errors
/// Returns [`Refusal::Fault`] if the range is not inside of the memory. Returns
/// [`Refusal::Invalid`] if the offset or the length of the range is not a multiple of 4 bytes.
/// Network cards copy only words of 4 bytes, and programs for this device must also run on network
/// cards.
fn copied(memory: &Arc<DeviceMemory>, offset: u64, length: usize) -> Result<Span, Refusal> {
    const WORD: u64 = 4;
    let span = Span::device(memory, offset, length as u64).ok_or(Refusal::Fault)?;
    if !offset.is_multiple_of(WORD) || !(length as u64).is_multiple_of(WORD) {
        return Err(Refusal::Invalid);
    }
    Ok(span)
}

/// Registers a memory region in device memory (`ibv_reg_dm_mr(3)`).
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
            // SAFETY: the C API requires a valid domain and valid memory. Only contexts of this
            // device have this function, so the domain belongs to it, and so does memory of the
            // same file.
            unsafe {
                let is_shared = Arc::ptr_eq(open::file((*dm).context), open::file((*pd).context));
                if !is_shared || !access.contains(AccessFlags::ZERO_BASED) {
                    return Err(Refusal::Invalid);
                }
                let held = &(*dm.cast::<DeviceMemoryHandle>()).memory;
                let span = Span::device(held, dm_offset, length as u64).ok_or(Refusal::Invalid)?;
                let held = Memory::Device {
                    _memory: InUse::new(held)?,
                };
                memory::make(pd, (span, 0, access), (ptr::null_mut(), length), held)
            }
        })
    })
}

/// Creates a further C object of the device memory with the handle `dm_handle`
/// (`ibv_import_dm(3)`). Fails unless the memory belongs to `context`, or to a context with which
/// `context` shares objects.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_import_dm(
    context: *mut ibv_context,
    dm_handle: u32,
) -> *mut ibv_dm {
    // SAFETY: the C API requires the caller to pass an open context.
    unsafe { forward!(context, ibv_import_dm(context, dm_handle)) };
    guard(ptr::null_mut(), || {
        // SAFETY: the context belongs to this device, as `forward!` has checked, and the C API
        // requires an open one.
        pointer(|| unsafe {
            let memory = open::file(context).device_memory.find(dm_handle)?;
            Ok(make(context, memory, dm_handle))
        })
    })
}

/// Frees an `ibv_dm` that `ibv_import_dm` has returned (`ibv_unimport_dm(3)`). The device memory
/// stays allocated for the `ibv_dm` from which it was imported.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_unimport_dm(dm: *mut ibv_dm) {
    // SAFETY: the C API requires the caller to pass valid device memory.
    unsafe { forward!((*dm).context, ibv_unimport_dm(dm)) };
    // SAFETY: the memory belongs to this device, and its C object was created by `into_c_object`.
    // The C API forbids its use after this call.
    guard((), || unsafe {
        drop(Box::from_raw(dm.cast::<DeviceMemoryHandle>()));
    });
}
