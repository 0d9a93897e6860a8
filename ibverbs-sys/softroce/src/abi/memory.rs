//! The verbs on memory regions.

use std::ptr;
use std::slice;
use std::sync::Arc;

use ibverbs_sys::{
    ib_uverbs_advise_mr_advice, ib_uverbs_advise_mr_flag, ibv_mr, ibv_pd, ibv_rereg_mr_err_code,
    ibv_rereg_mr_flags, ibv_sge,
};
use libc::{c_int, c_uint, c_void};
use parking_lot::Mutex;

use super::answer::{handle, into_c_object, pointer, status};
use super::{fail, forward, guard, number, open, pd, set_errno, verb};
use crate::context::{InUse, ProtectionDomain, Refusal};
use crate::fault::Verb;
use crate::memory::{
    Block, DeviceMemory, RegionAttributes, RegionChange, Span, is_mapped, region_access,
};
use crate::nic::Nic;
use crate::object_counts::{Counted, Kind};
use crate::proto::AccessFlags;

/// The C object that registering a memory region returns: the public `ibv_mr`, followed by private
/// data of this device.
#[repr(C)]
struct RegionHandle {
    public: ibv_mr,
    nic: Arc<Nic>,
    region: Arc<Region>,
    _counted: Counted,
}

/// A registered memory region. Several `ibv_mr` can refer to the same region, because
/// `ibv_import_mr` creates another one. Contains `None` after the region was deregistered.
pub(super) struct Region(Mutex<Option<Registered>>);

/// State of a memory region while it is registered: its memory key, its length and memory, and its
/// protection domain. The domain cannot be deallocated while the region is registered.
struct Registered {
    key: u32,
    length: usize,
    memory: Memory,
    domain: InUse<ProtectionDomain>,
}

/// Kind of memory of a region: memory of the program, device memory, or no memory (a null region).
/// Contains the objects that must exist as long as the region.
pub(super) enum Memory {
    Program {
        mapping: Mapping,
        /// Block of the device's arena (shared file) that contains the memory. `None` if the memory
        /// was not allocated from the arena. The region prevents the block from being freed.
        _block: Option<Arc<Block>>,
    },
    Device {
        _memory: InUse<DeviceMemory>,
    },
    Null,
}

/// Range of the program's memory that a memory region covers, and the access flags of the region.
#[derive(Clone, Copy)]
pub(super) struct Mapping {
    address: usize,
    length: u64,
    /// Address by which requests name the first byte of the range, unless the region is zero-based.
    start: u64,
    access: AccessFlags,
}

/// Length in bytes of a page of memory.
const PAGE: u64 = 4096;

/// Registers a memory region (`ibv_reg_mr(3)`).
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_reg_mr(
    pd: *mut ibv_pd,
    addr: *mut c_void,
    length: usize,
    access: c_int,
) -> *mut ibv_mr {
    // SAFETY: the C API requires the caller to pass a valid protection domain.
    unsafe { forward!((*pd).context, ibv_reg_mr(pd, addr, length, access)) };
    verb(Verb::RegMr, fail, || {
        // SAFETY: the domain belongs to this device, as `forward!` has checked. The C API requires
        // the caller to keep the memory valid.
        pointer(|| unsafe {
            register(pd, addr, length, addr.addr() as u64, access.cast_unsigned())
        })
    })
}

/// Registers a memory region (`ibv_reg_mr_iova(3)`). `iova` is the address of its first byte in
/// requests.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_reg_mr_iova(
    pd: *mut ibv_pd,
    addr: *mut c_void,
    length: usize,
    iova: u64,
    access: c_int,
) -> *mut ibv_mr {
    // SAFETY: the C API requires the caller to pass a valid protection domain.
    unsafe {
        forward!(
            (*pd).context,
            ibv_reg_mr_iova(pd, addr, length, iova, access)
        );
    };
    verb(Verb::RegMr, fail, || {
        // SAFETY: the domain belongs to this device, as `forward!` has checked. The C API requires
        // the caller to keep the memory valid.
        pointer(|| unsafe { register(pd, addr, length, iova, access.cast_unsigned()) })
    })
}

/// Registers a memory region with optional access flags (`ibv_reg_mr_iova2`). Newer headers call
/// this function for `ibv_reg_mr` and `ibv_reg_mr_iova`.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_reg_mr_iova2(
    pd: *mut ibv_pd,
    addr: *mut c_void,
    length: usize,
    iova: u64,
    access: c_uint,
) -> *mut ibv_mr {
    // SAFETY: the C API requires the caller to pass a valid protection domain.
    unsafe {
        forward!(
            (*pd).context,
            ibv_reg_mr_iova2(pd, addr, length, iova, access)
        );
    };
    verb(Verb::RegMr, fail, || {
        // SAFETY: the domain belongs to this device, as `forward!` has checked. The C API requires
        // the caller to keep the memory valid.
        pointer(|| unsafe { register(pd, addr, length, iova, access) })
    })
}

/// Registers a dma-buf, which is memory of another device, as a memory region
/// (`ibv_reg_dmabuf_mr(3)`). Always fails for protection domains of this device.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_reg_dmabuf_mr(
    pd: *mut ibv_pd,
    offset: u64,
    length: usize,
    iova: u64,
    fd: c_int,
    access: c_int,
) -> *mut ibv_mr {
    // SAFETY: the C API requires the caller to pass a valid protection domain.
    unsafe {
        forward!(
            (*pd).context,
            ibv_reg_dmabuf_mr(pd, offset, length, iova, fd, access)
        );
    }
    guard(ptr::null_mut(), || pointer(|| Err(Refusal::Unsupported)))
}

/// Changes a memory region (`ibv_rereg_mr(3)`). All checks are made before any change, so after an
/// error the old region is valid.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_rereg_mr(
    mr: *mut ibv_mr,
    flags: c_int,
    pd: *mut ibv_pd,
    addr: *mut c_void,
    length: usize,
    access: c_int,
) -> c_int {
    const REFUSED: c_int = ibv_rereg_mr_err_code::IBV_REREG_MR_ERR_INPUT.0;
    // SAFETY: the C API requires the caller to pass a valid memory region.
    unsafe {
        forward!((*mr).context, ibv_rereg_mr(mr, flags, pd, addr, length, access) else REFUSED);
    }
    verb(
        Verb::ReregMr,
        |_| REFUSED,
        || {
            // SAFETY: the region belongs to this device, as `forward!` has checked. The C API
            // requires the caller to keep the memory valid.
            match unsafe { reregister(mr, flags.cast_unsigned(), pd, addr, length, access) } {
                Ok(()) => 0,
                Err(refusal) => {
                    set_errno(refusal.errno());
                    REFUSED
                }
            }
        },
    )
}

/// Deregisters a memory region (`ibv_dereg_mr(3)`).
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_dereg_mr(mr: *mut ibv_mr) -> c_int {
    // SAFETY: the C API requires the caller to pass a valid memory region.
    unsafe { forward!((*mr).context, ibv_dereg_mr(mr)) };
    verb(Verb::DeregMr, number, || {
        status(|| {
            // SAFETY: the region belongs to this device, and was created by `into_c_object`. The C
            // API forbids its use after this call.
            unsafe {
                let handle = &*mr.cast::<RegionHandle>();
                let mut registered = handle.region.0.lock();
                let key = registered.as_ref().ok_or(Refusal::Absent)?.key;
                handle.nic.memory.deregister(key)?;
                *registered = None;
                drop(registered);
                let file = open::file(handle.public.context);
                file.regions.remove(handle.public.handle);
                drop(Box::from_raw(mr.cast::<RegionHandle>()));
            }
            Ok(())
        })
    })
}

/// Creates another `ibv_mr` for the existing memory region with the handle `mr_handle`
/// (`ibv_import_mr(3)`). The region must belong to the context of `pd`, or to a context that shares
/// its objects with the context of `pd` through `ibv_import_device`. Otherwise the call fails.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_import_mr(pd: *mut ibv_pd, mr_handle: u32) -> *mut ibv_mr {
    // SAFETY: the C API requires the caller to pass a valid protection domain.
    unsafe { forward!((*pd).context, ibv_import_mr(pd, mr_handle)) };
    guard(ptr::null_mut(), || {
        pointer(|| {
            // SAFETY: the domain belongs to this device, as `forward!` has checked, and so does its
            // context.
            let (file, nic) = unsafe { (open::file((*pd).context), open::nic((*pd).context)) };
            let region = file.regions.find(mr_handle)?;
            let (lkey, rkey, length) = {
                let registered = region.0.lock();
                let registered = registered.as_ref().ok_or(Refusal::Absent)?;
                let key = registered.key;
                let is_null = matches!(registered.memory, Memory::Null);
                (key, if is_null { 0 } else { key }, registered.length)
            };
            Ok(into_c_object(RegionHandle {
                public: ibv_mr {
                    // SAFETY: the C API requires the caller to pass a valid protection domain.
                    context: unsafe { (*pd).context },
                    pd,
                    // As the manual page says, the memory may belong to another process.
                    addr: ptr::null_mut(),
                    length,
                    handle: mr_handle,
                    lkey,
                    rkey,
                },
                nic: Arc::clone(nic),
                region,
                _counted: Counted::new(Kind::MemoryRegion),
            }))
        })
    })
}

/// Frees the C object of a memory region without deregistering the region (`ibv_unimport_mr(3)`).
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_unimport_mr(mr: *mut ibv_mr) {
    // SAFETY: the C API requires the caller to pass a valid memory region.
    unsafe { forward!((*mr).context, ibv_unimport_mr(mr)) };
    // SAFETY: the region belongs to this device, and its C object was created by `into_c_object`.
    // The C API forbids its use after this call.
    guard((), || unsafe {
        drop(Box::from_raw(mr.cast::<RegionHandle>()));
    });
}

/// Creates the null memory region, which contains no memory (`ibv_alloc_null_mr(3)`). The region
/// has only a local key: its remote key is 0.
pub(super) unsafe extern "C" fn alloc_null_mr(pd: *mut ibv_pd) -> *mut ibv_mr {
    verb(Verb::AllocNullMr, fail, || {
        // SAFETY: only contexts of this device have this function, so the domain belongs to it.
        pointer(|| unsafe {
            let made = make(
                pd,
                (Span::null(), 0, AccessFlags::LOCAL_WRITE),
                (ptr::null_mut(), usize::MAX),
                Memory::Null,
            );
            made.inspect(|mr| (**mr).rkey = 0)
        })
    })
}

/// Makes the kernel load the pages of ranges of on-demand memory regions in advance
/// (`ibv_advise_mr(3)`). Returns 0 or an error number, for example if a range is outside of its
/// region.
pub(super) unsafe extern "C" fn advise_mr(
    pd: *mut ibv_pd,
    advice: ib_uverbs_advise_mr_advice,
    flags: u32,
    sg_list: *mut ibv_sge,
    num_sge: u32,
) -> c_int {
    const FLUSH: u32 = ib_uverbs_advise_mr_flag::IB_UVERBS_ADVISE_MR_FLAG_FLUSH.0;
    type Advice = ib_uverbs_advise_mr_advice;
    verb(Verb::AdviseMr, number, || {
        status(|| {
            let writes = match advice {
                Advice::IB_UVERBS_ADVISE_MR_ADVICE_PREFETCH
                | Advice::IB_UVERBS_ADVISE_MR_ADVICE_PREFETCH_NO_FAULT => false,
                Advice::IB_UVERBS_ADVISE_MR_ADVICE_PREFETCH_WRITE => true,
                _ => return Err(Refusal::Unsupported),
            };
            if flags & !FLUSH != 0 || num_sge == 0 || sg_list.is_null() {
                return Err(Refusal::Invalid);
            }
            // SAFETY: only contexts of this device have this function, so the domain belongs to it.
            // The C API requires a list of `num_sge` elements.
            let (registry, domain, list) = unsafe {
                let list = slice::from_raw_parts(sg_list, num_sge as usize);
                (&open::nic((*pd).context).memory, pd::domain(pd).id(), list)
            };
            for piece in list {
                let length = u64::from(piece.length);
                let address = registry.advise(domain, piece.lkey, piece.addr, length, writes)?;
                if !is_mapped(address, length, writes) {
                    return Err(Refusal::Fault);
                }
                if advice != Advice::IB_UVERBS_ADVISE_MR_ADVICE_PREFETCH_NO_FAULT {
                    prefetch(address, piece.length as usize, writes);
                }
            }
            Ok(())
        })
    })
}

/// Registers the `length` bytes at `address` of the program's memory as a memory region, and
/// returns its `ibv_mr`. `start` is the address by which requests name the first byte, and may
/// differ from `address`. `access` are the access flags (`ibv_access_flags`).
///
/// # Safety
/// `pd` must belong to this device. The memory must meet the conditions of [`Mapping::span`].
pub(super) unsafe fn register(
    pd: *mut ibv_pd,
    address: *mut c_void,
    length: usize,
    start: u64,
    access: u32,
) -> Result<*mut ibv_mr, Refusal> {
    let mapping = Mapping {
        address: address.expose_provenance(),
        length: length as u64,
        start,
        access: region_access(access)?,
    };
    // SAFETY: the caller guarantees the conditions of this function. The context of the domain
    // belongs to this device, too.
    unsafe {
        let block = mapping.block(open::nic((*pd).context));
        mapping.check(block.as_ref())?;
        let about = (
            mapping.span(block.as_ref()),
            mapping.start(),
            mapping.access,
        );
        let memory = Memory::Program {
            mapping,
            _block: block,
        };
        make(pd, about, (address, length), memory)
    }
}

/// Registers a memory region, and returns its `ibv_mr`.
///
/// * `span`: the memory of the region.
/// * `start`: address by which requests name the first byte.
/// * `access`: access flags of the region.
/// * `addr`, `length`: values of the fields of the `ibv_mr`.
/// * `memory`: objects that must exist as long as the region.
///
/// # Safety
/// `pd` must belong to this device.
pub(super) unsafe fn make(
    pd: *mut ibv_pd,
    (span, start, access): (Span, u64, AccessFlags),
    (addr, length): (*mut c_void, usize),
    memory: Memory,
) -> Result<*mut ibv_mr, Refusal> {
    // SAFETY: the caller guarantees the conditions of this function.
    let (context, domain) = unsafe { ((*pd).context, InUse::new(pd::domain(pd))?) };
    // SAFETY: the context of a domain of this device belongs to this device.
    let nic = Arc::clone(unsafe { open::nic(context) });
    let attributes = RegionAttributes {
        domain: domain.id(),
        span,
        start,
        access,
    };
    let key = nic.memory.register(attributes)?;
    let region = Arc::new(Region(Mutex::new(Some(Registered {
        key,
        length,
        memory,
        domain,
    }))));
    let handle = handle();
    // SAFETY: the context of a domain of this device belongs to this device.
    unsafe { open::file(context) }
        .regions
        .insert(handle, &region);
    Ok(into_c_object(RegionHandle {
        public: ibv_mr {
            context,
            pd,
            addr,
            length,
            handle,
            lkey: key,
            rkey: key,
        },
        nic,
        region,
        _counted: Counted::new(Kind::MemoryRegion),
    }))
}

/// Changes the memory region `mr`. The bits of `flags` select the changes: new memory at `addr`
/// with `length` bytes, the new protection domain `pd`, and the new access flags `access`.
///
/// # Safety
/// `mr` must belong to this device, and must not be used concurrently. The memory must meet the
/// conditions of [`Mapping::span`].
unsafe fn reregister(
    mr: *mut ibv_mr,
    flags: u32,
    pd: *mut ibv_pd,
    addr: *mut c_void,
    length: usize,
    access: c_int,
) -> Result<(), Refusal> {
    const TRANSLATION: u32 = ibv_rereg_mr_flags::IBV_REREG_MR_CHANGE_TRANSLATION.0;
    const DOMAIN: u32 = ibv_rereg_mr_flags::IBV_REREG_MR_CHANGE_PD.0;
    const ACCESS: u32 = ibv_rereg_mr_flags::IBV_REREG_MR_CHANGE_ACCESS.0;
    // SAFETY: the caller guarantees a region of this device without concurrent users.
    let handle = unsafe { &mut *mr.cast::<RegionHandle>() };
    let mut registered = handle.region.0.lock();
    let registered = registered.as_mut().ok_or(Refusal::Absent)?;
    let Memory::Program { mut mapping, .. } = registered.memory else {
        return Err(Refusal::Invalid);
    };
    if flags == 0
        || flags & !(TRANSLATION | DOMAIN | ACCESS) != 0
        || flags & TRANSLATION != 0 && (length == 0 || addr.is_null())
        || flags & ACCESS == 0 && access != 0
    {
        return Err(Refusal::Invalid);
    }
    let mut domain = None;
    if flags & DOMAIN != 0 {
        // SAFETY: the C API requires the domain to be null or valid. A domain of the same context
        // belongs to this device.
        unsafe {
            if pd.is_null() || (*pd).context != handle.public.context {
                return Err(Refusal::Invalid);
            }
            domain = Some(InUse::new(pd::domain(pd))?);
        }
    }
    if flags & ACCESS != 0 {
        mapping.access = region_access(access.cast_unsigned())?;
    }
    let former = (mapping.address, mapping.length, mapping.start);
    if flags & TRANSLATION != 0 {
        mapping.address = addr.expose_provenance();
        mapping.length = length as u64;
        mapping.start = mapping.address as u64;
    }
    let is_same_memory = (mapping.address, mapping.length, mapping.start) == former;
    let id = registered.domain.id();
    let is_same_domain = domain.as_ref().is_none_or(|domain| domain.id() == id);
    let block = mapping.block(&handle.nic);
    mapping.check(block.as_ref())?;
    let change = RegionChange {
        domain: domain.as_ref().map(|domain| domain.id()),
        // SAFETY: the caller guarantees that the memory meets the conditions.
        translation: Some((unsafe { mapping.span(block.as_ref()) }, mapping.start())),
        access: Some(mapping.access),
        // As with NICs and the kernel's device, peers that have the key can go on with the new
        // access.
        keeps_key: is_same_memory && is_same_domain,
    };
    registered.key = handle.nic.memory.reregister(registered.key, change)?;
    registered.memory = Memory::Program {
        mapping,
        _block: block,
    };
    handle.public.lkey = registered.key;
    handle.public.rkey = registered.key;
    if let Some(domain) = domain {
        registered.domain = domain;
        handle.public.pd = pd;
    }
    if flags & TRANSLATION != 0 {
        registered.length = length;
        handle.public.addr = addr;
        handle.public.length = length;
    }
    Ok(())
}

impl Mapping {
    /// Checks that the program's memory may be registered. The range must be valid, and so must the
    /// address by which requests name it. The memory must also be mapped with the protection that
    /// the access flags need, unless the region is on-demand or the memory belongs to `block`.
    /// `block` is the [block](Self::block) of the device's arena that contains the memory, if any.
    fn check(&self, block: Option<&Arc<Block>>) -> Result<(), Refusal> {
        let is_on_demand = self.access.contains(AccessFlags::ON_DEMAND);
        if self.is_implicit() {
            return Ok(());
        }
        if (self.address as u64).checked_add(self.length).is_none()
            // The kernel's rule for every device: both addresses must have the same offset in a
            // page.
            || (self.start ^ self.address as u64) & (PAGE - 1) != 0
        {
            return Err(Refusal::Invalid);
        }
        let writable = self.access.contains(AccessFlags::LOCAL_WRITE);
        // The device maps its blocks itself.
        let may_be_unmapped = block.is_none() && !is_on_demand;
        if may_be_unmapped && !is_mapped(self.address, self.length, writable) {
            return Err(Refusal::Fault);
        }
        Ok(())
    }

    /// Returns whether these are the arguments for the implicit on-demand region, which contains
    /// all present and future memory of the program (`ibv_reg_mr(3)`).
    fn is_implicit(&self) -> bool {
        self.access.contains(AccessFlags::ON_DEMAND)
            && self.address == 0
            && self.length == usize::MAX as u64
    }

    /// Returns the address that requests use for the first byte of the region. The address is 0 if
    /// the region has the flag `IBV_ACCESS_ZERO_BASED`: requests then use offsets instead of
    /// addresses.
    fn start(&self) -> u64 {
        if self.access.contains(AccessFlags::ZERO_BASED) {
            0
        } else {
            self.start
        }
    }

    /// Returns the block of the device's arena (shared file) that contains the memory to register.
    /// Returns `None` if the memory was not allocated from the arena of `nic`. The region keeps the
    /// block allocated, even after the program has freed its buffer.
    fn block(&self, nic: &Nic) -> Option<Arc<Block>> {
        nic.memory.arena()?.find(self.address, self.length)
    }

    /// Returns the [`Span`] by which the device reads and writes the memory. `block` is the block
    /// of the device's arena that contains the memory, if any.
    ///
    /// # Safety
    /// Unless the region is on-demand or the memory belongs to `block`, the memory must stay mapped
    /// until the region is deregistered, with the protection that the access flags need. Other code
    /// must expect that the device reads and writes the memory at any time, as another thread
    /// would. The C API requires this of programs that register memory.
    unsafe fn span(&self, block: Option<&Arc<Block>>) -> Span {
        // SAFETY: the caller guarantees the conditions of this function.
        unsafe {
            let allocated =
                block.and_then(|block| Span::allocated(block, self.address, self.length));
            if let Some(allocated) = allocated {
                allocated
            } else if self.access.contains(AccessFlags::ON_DEMAND) {
                Span::on_demand(self.address, self.length)
            } else {
                Span::mapped(self.address, self.length)
            }
        }
    }
}

/// Requests that the kernel loads the pages of the `length` bytes at `address` in advance, for
/// writing if `writes` is set. Errors are ignored, because the request is only a hint.
fn prefetch(address: usize, length: usize, writes: bool) {
    let offset = address % PAGE as usize;
    let advice = if writes {
        libc::MADV_POPULATE_WRITE
    } else {
        libc::MADV_POPULATE_READ
    };
    let start = ptr::with_exposed_provenance_mut(address - offset);
    // SAFETY: prefetching pages changes no byte.
    unsafe { libc::madvise(start, length + offset, advice) };
}
