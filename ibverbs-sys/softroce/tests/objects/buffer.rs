//! Memory that the device allocates for regions.

use std::ptr::without_provenance_mut;
use std::sync::{Mutex, MutexGuard};

use softroce::{Kind, objects};

use super::*;

/// Locks out the other tests of this module, because each of them counts the buffers of the
/// process.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(|broken| broken.into_inner())
}

/// Allocates a buffer. Returns its handle and its memory.
///
/// # Safety
/// `pd` must be a valid protection domain.
unsafe fn allocate(pd: *mut ibv_pd, size: usize) -> (*mut ibv_buf, *mut u8) {
    let mut buf = null_mut();
    // SAFETY: the caller guarantees that the domain is valid.
    let start = unsafe { ibv_alloc_buf(pd, size, &raw mut buf) };
    assert!(!start.is_null(), "{}", io::Error::last_os_error());
    (buf, start.cast())
}

#[test]
fn a_buffer_is_an_object_of_its_domain() {
    let _alone = alone();
    with_domain(|_, pd| {
        // SAFETY: the buffers are valid until they are freed.
        unsafe {
            let before = objects(Kind::Buffer);
            let (buf, start) = allocate(pd, 10_000);
            assert_eq!(objects(Kind::Buffer), before + 1);
            assert!(start.addr().is_multiple_of(4096));
            assert!((0..10_000).all(|at| start.add(at).read_volatile() == 0));
            start.write_bytes(7, 10_000);
            assert_eq!(ibv_dealloc_pd(pd), EBUSY);
            ibv_free_buf(buf);
            assert_eq!(objects(Kind::Buffer), before);
            // A new buffer gets the same place, with zeroed memory.
            let (buf, again) = allocate(pd, 10_000);
            assert_eq!(again.addr(), start.addr());
            assert!((0..10_000).all(|at| again.add(at).read_volatile() == 0));
            ibv_free_buf(buf);
        }
    });
}

#[test]
fn an_impossible_allocation_is_refused() {
    let _alone = alone();
    with_domain(|_, pd| {
        let mut buf = without_provenance_mut(5);
        for (size, errno) in [(0, EINVAL), (usize::MAX, ENOMEM), (1 << 50, ENOMEM)] {
            // SAFETY: `buf` has room for the handle.
            refused(unsafe { ibv_alloc_buf(pd, size, &raw mut buf) }, errno);
        }
        assert_eq!(buf.addr(), 5, "nothing was allocated, so nothing is said");
    });
}

#[test]
fn a_part_of_a_buffer_is_registered_with_its_own_domain() {
    let _alone = alone();
    with_domain(|context, pd| {
        // SAFETY: all objects are valid until they are destroyed.
        unsafe {
            let (buf, start) = allocate(pd, 10_000);
            let at = |offset: usize| start.wrapping_add(offset).cast();
            for (offset, length) in [(0, 10_000), (0, 1), (9_999, 1), (10_000, 0), (123, 4_567)] {
                let mr = ibv_reg_buf_mr(pd, buf, at(offset), length, LOCAL_WRITE);
                assert!(!mr.is_null(), "{}", io::Error::last_os_error());
                assert_eq!(((*mr).addr, (*mr).length), (at(offset), length));
                assert_eq!(((*mr).pd, (*mr).context), (pd, context));
                assert_eq!(ibv_dereg_mr(mr), 0);
            }
            for (offset, length) in [(0, 10_001), (1, 10_000), (10_001, 0), (0, usize::MAX)] {
                let mr = ibv_reg_buf_mr(pd, buf, at(offset), length, LOCAL_WRITE);
                refused(mr, EINVAL);
            }
            let before = start.wrapping_sub(1).cast();
            refused(ibv_reg_buf_mr(pd, buf, before, 2, LOCAL_WRITE), EINVAL);
            refused(ibv_reg_buf_mr(pd, buf, at(0), 8, REMOTE_WRITE), EINVAL);
            let other = ibv_alloc_pd(context);
            refused(ibv_reg_buf_mr(other, buf, at(0), 8, LOCAL_WRITE), EINVAL);
            // Any domain can register the memory as it registers other memory.
            let mr = ibv_reg_mr(other, at(0), 10_000, LOCAL_WRITE);
            assert_eq!(ibv_dereg_mr(mr), 0);
            assert_eq!(ibv_dealloc_pd(other), 0);
            ibv_free_buf(buf);
        }
    });
}

#[test]
fn memory_freed_while_registered_is_kept_for_the_region() {
    let _alone = alone();
    with_domain(|_, pd| {
        // SAFETY: the bytes are registered.
        unsafe {
            let (buf, start) = allocate(pd, 4096);
            start.write_bytes(7, 4096);
            let first = ibv_reg_buf_mr(pd, buf, start.cast(), 4096, LOCAL_WRITE);
            // The second region is registered like other memory.
            let second = ibv_reg_mr(pd, start.add(100).cast(), 100, REMOTE_READ);
            ibv_free_buf(buf);
            refused(
                ibv_reg_buf_mr(pd, buf, start.cast(), 8, LOCAL_WRITE),
                EINVAL,
            );
            let (other, elsewhere) = allocate(pd, 4096);
            assert_ne!(elsewhere.addr(), start.addr());
            assert_eq!(ibv_dereg_mr(first), 0);
            assert!((0..4096).all(|at| start.add(at).read_volatile() == 7));
            assert_eq!(ibv_dereg_mr(second), 0);
            // The memory is free now.
            let (third, same) = allocate(pd, 4096);
            assert_eq!((same.addr(), same.read_volatile()), (start.addr(), 0));
            ibv_free_buf(third);
            ibv_free_buf(other);
        }
    });
}

#[test]
fn freeing_a_buffer_twice_frees_the_memory_once() {
    let _alone = alone();
    with_domain(|_, pd| {
        // SAFETY: a freed handle is only compared.
        unsafe {
            let (buf, start) = allocate(pd, 4096);
            ibv_free_buf(buf);
            ibv_free_buf(buf);
            let (other, again) = allocate(pd, 4096);
            assert_eq!(again.addr(), start.addr());
            assert_ne!(other.addr(), buf.addr(), "handles are not used again");
            ibv_free_buf(buf);
            again.write_volatile(7);
            assert_eq!(ibv_dealloc_pd(pd), EBUSY, "the other one is still there");
            ibv_free_buf(other);
        }
    });
}

#[test]
fn a_region_moves_into_a_buffer_and_out_of_it() {
    const TRANSLATION: i32 = 1;
    let _alone = alone();
    with_domain(|_, pd| {
        let mut page = Page::new();
        // SAFETY: all memory is valid until its region is deregistered.
        unsafe {
            let mr = ibv_reg_mr(pd, page.start(), 4096, LOCAL_WRITE);
            let (buf, start) = allocate(pd, 4096);
            start.write_volatile(7);
            let moved = ibv_rereg_mr(mr, TRANSLATION, null_mut(), start.cast(), 4096, 0);
            assert_eq!(moved, 0);
            ibv_free_buf(buf);
            assert_eq!(start.read_volatile(), 7);
            let moved = ibv_rereg_mr(mr, TRANSLATION, null_mut(), page.start(), 4096, 0);
            assert_eq!(moved, 0);
            let (buf, again) = allocate(pd, 4096);
            assert_eq!((again.addr(), again.read_volatile()), (start.addr(), 0));
            ibv_free_buf(buf);
            assert_eq!(ibv_dereg_mr(mr), 0);
        }
    });
}
