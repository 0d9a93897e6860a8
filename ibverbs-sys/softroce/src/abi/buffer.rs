//! Memory that the device hands out for regions.

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
use crate::census::{Counted, Kind};
use crate::context::{Held, ProtectionDomain, Refusal};
use crate::fault::Verb;
use crate::memory::Block;
use crate::per_process::PerProcess;

/// A buffer. C gets a number in the place of a pointer to it, which none that is allocated later gets:
/// so one that is freed already is known.
struct Buffer {
    /// C's, of which only the address is looked at.
    pd: usize,
    block: Arc<Block>,
    length: u64,
    /// A domain stays until its buffers are freed.
    _domain: Held<ProtectionDomain>,
    _counted: Counted,
}

static BUFFERS: PerProcess<Mutex<BTreeMap<usize, Buffer>>> = PerProcess::new(Mutex::default);

/// Leaves the parent's buffers alone, in a child of `fork`: they are not mapped there.
pub(super) fn forget() {
    BUFFERS.forget();
}

/// Set in all of our numbers, and in no address of a program.
const OURS: usize = 1 << (usize::BITS - 1);

/// `ibv_alloc_buf(3)`. The buffer is zeroed, its pages are there, and peers of the same host can map it.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_alloc_buf(
    pd: *mut ibv_pd,
    size: usize,
    buf: *mut *mut ibv_buf,
) -> *mut c_void {
    // SAFETY: the caller gives a protection domain.
    unsafe { forward!((*pd).context, ibv_alloc_buf(pd, size, buf)) };
    verb(Verb::AllocBuf, fail, || {
        pointer(|| {
            static NEXT: AtomicUsize = AtomicUsize::new(1);
            // SAFETY: the domain is ours, and so is its context.
            let (domain, nic) = unsafe { (Held::new(pd::domain(pd))?, open::nic((*pd).context)) };
            let arena = nic.memory.arena().ok_or(Refusal::Unsupported)?;
            let block = arena.allocate(size)?;
            let start = ptr::with_exposed_provenance_mut(block.address());
            let number = OURS | NEXT.fetch_add(1, Ordering::Relaxed);
            let buffer = Buffer {
                pd: pd.addr(),
                block,
                length: size as u64,
                _domain: domain,
                _counted: Counted::new(Kind::Buffer),
            };
            BUFFERS.get().lock().insert(number, buffer);
            // SAFETY: the caller gives a place for it.
            unsafe { *buf = ptr::without_provenance_mut(number) };
            Ok(start)
        })
    })
}

/// `ibv_free_buf(3)`. The bytes stay until the last region of them is deregistered. Nothing happens to
/// what is freed already.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_free_buf(buf: *mut ibv_buf) {
    if buf.addr() & OURS == 0 {
        // SAFETY: the caller gives a buffer, which is not ours.
        return unsafe { call!(ibv_free_buf(buf)) };
    }
    guard((), || {
        let freed = BUFFERS.get().lock().remove(&buf.addr());
        // Not under the lock: the system takes its time to take pages back.
        drop(freed);
    });
}

/// `ibv_reg_buf_mr(3)`
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_reg_buf_mr(
    pd: *mut ibv_pd,
    buf: *mut ibv_buf,
    addr: *mut c_void,
    length: usize,
    access: c_int,
) -> *mut ibv_mr {
    // SAFETY: the caller gives a protection domain.
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
            // Keeps the bytes when the buffer is freed meanwhile.
            let _block = Arc::clone(&buffer.block);
            drop(buffers);
            // SAFETY: the domain is ours, and the memory is a block's.
            unsafe { register(pd, addr, length, addr.addr() as u64, access.cast_unsigned()) }
        })
    })
}

/// `ibv_export_buf_dmabuf_fd(3)`: ours are no memory of another device.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_export_buf_dmabuf_fd(buf: *mut ibv_buf) -> c_int {
    let failed = |errno| {
        set_errno(errno);
        -1
    };
    if buf.addr() & OURS == 0 {
        // SAFETY: the caller gives a buffer, which is not ours.
        return unsafe { call!(ibv_export_buf_dmabuf_fd(buf) else failed(libc::EOPNOTSUPP)) };
    }
    guard(-1, || failed(libc::ENODATA))
}
