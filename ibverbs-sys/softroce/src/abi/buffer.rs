//! Buffers for memory regions that the device allocates (`ibv_alloc_buf`).

use std::collections::BTreeMap;
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use ibverbs_sys::{ibv_buf, ibv_mr, ibv_pd};
use libc::{c_int, c_void};
use parking_lot::Mutex;

use super::answer::pointer;
use super::memory::register;
use super::real::call;
use super::{fail, forward, guard, open, pd, set_errno, verb};
use crate::context::{InUse, ProtectionDomain, Refusal};
use crate::fault::Verb;
use crate::memory::Block;
use crate::object_counts::{Counted, Kind};
use crate::per_process::PerProcess;

/// A buffer that the program has allocated with `ibv_alloc_buf`. The `ibv_buf` pointer that the
/// program gets is not an address, but a number that is never used again. So a second
/// `ibv_free_buf` of a buffer cannot free a newer buffer by mistake.
struct Buffer {
    /// Address of the protection domain's C object. Used only to check that a region is registered
    /// in the domain of the buffer.
    pd: usize,
    block: Arc<Block>,
    length: u64,
    /// Keeps the protection domain from being deallocated before the buffer is freed.
    _domain: InUse<ProtectionDomain>,
    _counted: Counted,
}

static BUFFERS: PerProcess<Mutex<BTreeMap<usize, Buffer>>> = PerProcess::new(Mutex::default);

/// In a child of `fork`, discards the buffers that the parent process allocated by `ibv_alloc_buf`.
/// The memory of these buffers is not freed, because it is not mapped in the child.
pub(super) fn reset_in_child() {
    BUFFERS.reset_in_child();
}

/// Bit that is set in the `ibv_buf` pointers of this device, which are numbers and not addresses.
/// No address of user space has this bit, so a pointer without the bit is a buffer of another
/// device.
const NUMBER_BIT: usize = 1 << (usize::BITS - 1);

/// Allocates a buffer for memory regions (`ibv_alloc_buf(3)`). The buffer is zeroed, its pages are
/// allocated, and peer processes of the same host can map it.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_alloc_buf(
    pd: *mut ibv_pd,
    size: usize,
    buf: *mut *mut ibv_buf,
) -> *mut c_void {
    // SAFETY: the C API requires the caller to pass a valid protection domain.
    unsafe { forward!((*pd).context, ibv_alloc_buf(pd, size, buf)) };
    verb(Verb::AllocBuf, fail, || {
        pointer(|| {
            static NEXT: AtomicUsize = AtomicUsize::new(1);
            // SAFETY: the domain belongs to this device, as `forward!` has checked, and so does its
            // context.
            let (domain, nic) = unsafe { (InUse::new(pd::domain(pd))?, open::nic((*pd).context)) };
            let arena = nic.memory.arena().ok_or(Refusal::Unsupported)?;
            let block = arena.allocate(size)?;
            let start = ptr::with_exposed_provenance_mut(block.address());
            let number = NUMBER_BIT | NEXT.fetch_add(1, Ordering::Relaxed);
            let buffer = Buffer {
                pd: pd.addr(),
                block,
                length: size as u64,
                _domain: domain,
                _counted: Counted::new(Kind::Buffer),
            };
            BUFFERS.get().lock().insert(number, buffer);
            // SAFETY: the C API requires `buf` to be valid for writes.
            unsafe { *buf = ptr::without_provenance_mut(number) };
            Ok(start)
        })
    })
}

/// Frees a buffer (`ibv_free_buf(3)`). The memory remains until the last region in it is
/// deregistered. Does nothing if the buffer was freed before.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_free_buf(buf: *mut ibv_buf) {
    if buf.addr() & NUMBER_BIT == 0 {
        // SAFETY: the buffer is not of this device, so it must be a valid one of the real library.
        return unsafe { call!(ibv_free_buf(buf)) };
    }
    guard((), || {
        let freed = BUFFERS.get().lock().remove(&buf.addr());
        // The block is dropped after the lock is released, because the system takes long to free
        // pages.
        drop(freed);
    });
}

/// Registers the `length` bytes at `addr` as a memory region (`ibv_reg_buf_mr(3)`). The bytes must
/// be part of the buffer `buf`, which `ibv_alloc_buf` has allocated in the same protection domain.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_reg_buf_mr(
    pd: *mut ibv_pd,
    buf: *mut ibv_buf,
    addr: *mut c_void,
    length: usize,
    access: c_int,
) -> *mut ibv_mr {
    // SAFETY: the C API requires the caller to pass a valid protection domain.
    unsafe {
        forward!((*pd).context, ibv_reg_buf_mr(pd, buf, addr, length, access));
    };
    verb(Verb::RegMr, fail, || {
        pointer(|| {
            let buffers = BUFFERS.get().lock();
            let buffer = buffers.get(&buf.addr()).ok_or(Refusal::Invalid)?;
            let start = addr.addr().checked_sub(buffer.block.address());
            let start = start.ok_or(Refusal::Invalid)? as u64;
            let inside = start <= buffer.length && length as u64 <= buffer.length - start;
            if buffer.pd != pd.addr() || !inside {
                return Err(Refusal::Invalid);
            }
            // Keeps the memory allocated if another thread frees the buffer meanwhile.
            let _block = Arc::clone(&buffer.block);
            drop(buffers);
            // SAFETY: the domain belongs to this device, as `forward!` has checked. The memory is
            // inside a block, which the region keeps.
            unsafe { register(pd, addr, length, addr.addr() as u64, access.cast_unsigned()) }
        })
    })
}

/// Exports a buffer as a dma-buf descriptor (`ibv_export_buf_dmabuf_fd(3)`). Always fails with
/// `ENODATA` for buffers of this device.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_export_buf_dmabuf_fd(buf: *mut ibv_buf) -> c_int {
    let failed = |errno| {
        set_errno(errno);
        -1
    };
    if buf.addr() & NUMBER_BIT == 0 {
        // SAFETY: the buffer is not of this device, so it must be a valid one of the real library.
        return unsafe { call!(ibv_export_buf_dmabuf_fd(buf) else failed(libc::EOPNOTSUPP)) };
    }
    guard(-1, || failed(libc::ENODATA))
}
