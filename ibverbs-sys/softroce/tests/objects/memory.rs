//! Memory regions, windows and device memory.

use super::*;

#[test]
fn regions_are_registered_with_rights_that_fit() {
    with_domain(|_, pd| {
        let mut page = Page::new();
        let addr = page.start();
        // SAFETY: the page outlives its regions.
        unsafe {
            for access in [
                REMOTE_WRITE,
                REMOTE_ATOMIC,
                REMOTE_WRITE | REMOTE_READ,
                1 << 10,
                1 << 30,
            ] {
                refused(ibv_reg_mr(pd, addr, 4096, access), EINVAL);
            }
            for access in [
                0,
                LOCAL_WRITE,
                REMOTE_READ,
                LOCAL_WRITE | 0x1e,
                1 << 20 | 1 << 29,
                ON_DEMAND,
            ] {
                let mr = ibv_reg_mr(pd, addr, 4096, access);
                assert!(
                    !mr.is_null(),
                    "access {access:#x}: {}",
                    io::Error::last_os_error()
                );
                assert_eq!(((*mr).addr, (*mr).length, (*mr).pd), (addr, 4096, pd));
                assert_eq!((*mr).lkey, (*mr).rkey);
                assert_ne!((*mr).lkey, 0);
                assert_eq!(ibv_dealloc_pd(pd), EBUSY);
                assert_eq!(ibv_dereg_mr(mr), 0);
            }
        }
    });
}

#[test]
fn regions_are_registered_where_there_is_memory() {
    static CONSTANT: [u8; 64] = [7; 64];
    with_domain(|_, pd| {
        let mut page = Page::new();
        let addr = page.start();
        // SAFETY: registered memory is mapped, or is never accessed.
        unsafe {
            let nowhere = without_provenance_mut(64);
            refused(ibv_reg_mr(pd, nowhere, 64, LOCAL_WRITE), EFAULT);
            refused(ibv_reg_mr(pd, null_mut(), 64, 0), EFAULT);
            refused(ibv_reg_mr(pd, addr, usize::MAX, LOCAL_WRITE), EINVAL);
            refused(ibv_reg_mr(pd, null_mut(), usize::MAX, LOCAL_WRITE), EFAULT);
            let constant = CONSTANT.as_ptr().cast_mut().cast();
            refused(ibv_reg_mr(pd, constant, 64, LOCAL_WRITE), EFAULT);
            for mr in [
                ibv_reg_mr(pd, constant, 64, REMOTE_READ),
                ibv_reg_mr(pd, addr, 0, LOCAL_WRITE),
                // On-demand memory may be mapped later, and may be the whole address space.
                ibv_reg_mr(pd, nowhere, 64, LOCAL_WRITE | ON_DEMAND),
                ibv_reg_mr(pd, null_mut(), usize::MAX, LOCAL_WRITE | ON_DEMAND),
                ibv_reg_mr(pd, addr.byte_add(1), 5, LOCAL_WRITE | ZERO_BASED),
            ] {
                assert!(!mr.is_null(), "{}", io::Error::last_os_error());
                assert_eq!(ibv_dereg_mr(mr), 0);
            }
        }
    });
}

#[test]
fn an_iova_lies_in_its_page_where_the_memory_does() {
    with_domain(|_, pd| {
        let mut page = Page::new();
        let addr = page.start();
        // SAFETY: the page outlives its regions.
        unsafe {
            for iova in [0, 4096, 1 << 40] {
                let mr = ibv_reg_mr_iova(pd, addr, 64, iova, LOCAL_WRITE);
                assert!(!mr.is_null(), "{}", io::Error::last_os_error());
                assert_eq!(ibv_dereg_mr(mr), 0);
                refused(ibv_reg_mr_iova(pd, addr, 64, iova + 8, LOCAL_WRITE), EINVAL);
                refused(
                    ibv_reg_mr_iova(pd, addr.byte_add(8), 64, iova, LOCAL_WRITE),
                    EINVAL,
                );
            }
            refused(
                ibv_reg_mr_iova(pd, addr, 4096, 0_u64.wrapping_sub(4096), LOCAL_WRITE),
                EINVAL,
            );
        }
    });
}

#[test]
fn unavailable_features_are_unsupported() {
    with_domain(|_, pd| {
        // SAFETY: the domain is valid.
        unsafe {
            refused(
                ibv_reg_dmabuf_mr(pd, 0, 4096, 0, 0, LOCAL_WRITE),
                EOPNOTSUPP,
            );
        }
    });
}

#[test]
fn a_region_is_registered_again() {
    const TRANSLATION: i32 = 1;
    const DOMAIN: i32 = 2;
    const ACCESS: i32 = 4;
    with_domain(|context, pd| {
        let (mut page, mut other) = (Page::new(), Page::new());
        // SAFETY: the pages outlive the region.
        unsafe {
            let second = ibv_alloc_pd(context);
            let mr = ibv_reg_mr(pd, page.start(), 4096, LOCAL_WRITE);
            let key = (*mr).lkey;
            let addr = other.start();
            let refused = ibv_rereg_mr_err_code::IBV_REREG_MR_ERR_INPUT.0;
            for (flags, pd, addr, length, access) in [
                (0, null_mut(), null_mut(), 0, 0),
                (8, null_mut(), null_mut(), 0, 0),
                (TRANSLATION, null_mut(), null_mut(), 64, 0),
                (TRANSLATION, null_mut(), addr, 0, 0),
                (TRANSLATION, null_mut(), addr, usize::MAX, 0),
                (TRANSLATION, null_mut(), addr, 64, LOCAL_WRITE),
                (DOMAIN, null_mut(), null_mut(), 0, 0),
                (ACCESS, null_mut(), null_mut(), 0, REMOTE_WRITE),
                (ACCESS, null_mut(), null_mut(), 0, 1 << 10),
            ] {
                assert_eq!(ibv_rereg_mr(mr, flags, pd, addr, length, access), refused);
                assert_eq!(errno(), EINVAL);
                assert_eq!(
                    ((*mr).lkey, (*mr).length),
                    (key, 4096),
                    "nothing has changed"
                );
            }
            let same = page.start();
            for (flags, pd, addr, length) in [
                (ACCESS, null_mut(), null_mut(), 0),
                (TRANSLATION | ACCESS, null_mut(), same, 4096),
                (DOMAIN | ACCESS, pd, null_mut(), 0),
            ] {
                for access in [REMOTE_READ, LOCAL_WRITE] {
                    assert_eq!(ibv_rereg_mr(mr, flags, pd, addr, length, access), 0);
                    assert_eq!(((*mr).lkey, (*mr).rkey), (key, key), "flags {flags}");
                }
            }
            assert_eq!(ibv_rereg_mr(mr, TRANSLATION, null_mut(), addr, 64, 0), 0);
            assert_eq!(((*mr).addr, (*mr).length, (*mr).pd), (addr, 64, pd));
            assert_ne!((*mr).lkey, key, "who had the old key has nothing");
            assert_eq!((*mr).lkey, (*mr).rkey);
            assert_eq!(
                ibv_rereg_mr(mr, DOMAIN | ACCESS, second, null_mut(), 0, REMOTE_READ),
                0
            );
            assert_eq!((*mr).pd, second);
            assert_eq!(ibv_dealloc_pd(second), EBUSY);
            assert_eq!(ibv_dereg_mr(mr), 0);
            assert_eq!(ibv_dealloc_pd(second), 0);
        }
    });
}

#[test]
fn the_null_region_is_for_this_side() {
    with_domain(|_, pd| {
        // SAFETY: the domain is valid.
        unsafe {
            let mr = ibv_alloc_null_mr(pd);
            assert!(!mr.is_null());
            assert_ne!((*mr).lkey, 0);
            assert_eq!(((*mr).rkey, (*mr).length), (0, usize::MAX));
            let error = ibv_rereg_mr_err_code::IBV_REREG_MR_ERR_INPUT.0;
            assert_eq!(
                ibv_rereg_mr(mr, 4, null_mut(), null_mut(), 0, REMOTE_READ),
                error
            );
            assert_eq!(ibv_dereg_mr(mr), 0);
        }
    });
}

#[test]
fn advice_is_for_on_demand_regions() {
    type Advice = ibv_advise_mr_advice;
    let read = Advice::IBV_ADVISE_MR_ADVICE_PREFETCH;
    let write = Advice::IBV_ADVISE_MR_ADVICE_PREFETCH_WRITE;
    with_domain(|context, pd| {
        let mut page = Page::new();
        let addr = page.start();
        // SAFETY: the page outlives its regions.
        unsafe {
            let other = ibv_alloc_pd(context);
            let pinned = ibv_reg_mr(pd, addr, 4096, LOCAL_WRITE);
            let mr = ibv_reg_mr(pd, addr, 4096, LOCAL_WRITE | ON_DEMAND);
            let constant = ibv_reg_mr(pd, addr, 4096, ON_DEMAND);
            let mw = ibv_alloc_mw(pd, ibv_mw_type::IBV_MW_TYPE_1);
            let at = |lkey, offset, length| ibv_sge {
                addr: addr.addr() as u64 + offset,
                length,
                lkey,
            };
            let advise = |pd, advice, flags, mut sge: ibv_sge| {
                ibv_advise_mr(pd, advice, flags, &raw mut sge, 1)
            };
            let key = (*mr).lkey;
            for advice in [read, write, Advice::IBV_ADVISE_MR_ADVICE_PREFETCH_NO_FAULT] {
                assert_eq!(advise(pd, advice, 0, at(key, 5, 100)), 0);
                assert_eq!(advise(pd, advice, 1, at(key, 0, 4096)), 0);
            }
            assert_eq!(
                advise(pd, ib_uverbs_advise_mr_advice(77), 0, at(key, 0, 8)),
                EOPNOTSUPP
            );
            assert_eq!(advise(pd, read, 2, at(key, 0, 8)), EINVAL);
            assert_eq!(ibv_advise_mr(pd, read, 0, null_mut(), 0), EINVAL);
            assert_eq!(
                advise(pd, read, 0, at(key, 1, 4096)),
                EFAULT,
                "out of bounds"
            );
            assert_eq!(advise(pd, read, 0, at(u32::MAX, 0, 8)), EFAULT, "no key");
            assert_eq!(
                advise(pd, read, 0, at(key ^ 1, 0, 8)),
                ENOENT,
                "another region's time"
            );
            assert_eq!(
                advise(pd, read, 0, at((*mw).rkey, 0, 8)),
                EINVAL,
                "a window"
            );
            assert_eq!(
                advise(pd, read, 0, at((*pinned).lkey, 0, 8)),
                ENOENT,
                "not on demand"
            );
            assert_eq!(advise(other, read, 0, at(key, 0, 8)), EPERM);
            assert_eq!(advise(pd, write, 0, at((*constant).lkey, 0, 8)), EPERM);
            assert_eq!(ibv_dealloc_mw(mw), 0);
            for mr in [pinned, mr, constant] {
                assert_eq!(ibv_dereg_mr(mr), 0);
            }
            assert_eq!(ibv_dealloc_pd(other), 0);
        }
    });
}

#[test]
fn windows_are_of_two_types() {
    with_domain(|_, pd| {
        // SAFETY: the domain is valid.
        unsafe {
            refused(ibv_alloc_mw(pd, ibv_mw_type(0)), EINVAL);
            refused(ibv_alloc_mw(pd, ibv_mw_type(3)), EINVAL);
            for kind in [ibv_mw_type::IBV_MW_TYPE_1, ibv_mw_type::IBV_MW_TYPE_2] {
                let mw = ibv_alloc_mw(pd, kind);
                assert!(!mw.is_null());
                assert_eq!(((*mw).pd, (*mw).type_), (pd, kind));
                assert_eq!(ibv_dealloc_pd(pd), EBUSY);
                assert_eq!(ibv_dealloc_mw(mw), 0);
            }
        }
    });
}

#[test]
fn device_memory_is_copied_to_and_from_and_registered() {
    with_domain(|context, pd| {
        let mut attr = ibv_alloc_dm_attr {
            length: 100,
            log_align_req: 12,
            comp_mask: 0,
        };
        // SAFETY: all objects are valid until they are destroyed.
        unsafe {
            let dm = ibv_alloc_dm(context, &raw mut attr);
            assert!(!dm.is_null());
            let mut data = *b"nothing is lost.";
            let length = data.len();
            assert_eq!(
                ibv_memcpy_to_dm(dm, 84, data.as_mut_ptr().cast(), length),
                0
            );
            let mut back = [0_u8; 16];
            assert_eq!(
                ibv_memcpy_from_dm(back.as_mut_ptr().cast(), dm, 84, length),
                0
            );
            assert_eq!(back, data);
            assert_eq!(
                ibv_memcpy_to_dm(dm, 88, data.as_mut_ptr().cast(), length),
                EFAULT
            );
            assert_eq!(
                ibv_memcpy_from_dm(back.as_mut_ptr().cast(), dm, u64::MAX, length),
                EFAULT
            );
            // Words are copied, of four bytes.
            for (offset, length) in [(84, 15), (82, 8), (81, 3)] {
                let data = data.as_mut_ptr().cast();
                assert_eq!(ibv_memcpy_to_dm(dm, offset, data, length), EINVAL);
                assert_eq!(ibv_memcpy_from_dm(data, dm, offset, length), EINVAL);
            }

            let access = (LOCAL_WRITE | ZERO_BASED) as u32;
            refused(ibv_reg_dm_mr(pd, dm, 0, 100, LOCAL_WRITE as u32), EINVAL);
            refused(ibv_reg_dm_mr(pd, dm, 1, 100, access), EINVAL);
            refused(ibv_reg_dm_mr(pd, dm, u64::MAX, 100, access), EINVAL);
            let mr = ibv_reg_dm_mr(pd, dm, 1, 99, access);
            assert!(!mr.is_null());
            let error = ibv_rereg_mr_err_code::IBV_REREG_MR_ERR_INPUT.0;
            assert_eq!(ibv_rereg_mr(mr, 4, null_mut(), null_mut(), 0, 0), error);
            assert_eq!(ibv_free_dm(dm), EBUSY);
            assert_eq!(ibv_dereg_mr(mr), 0);
            assert_eq!(ibv_free_dm(dm), 0);

            let wrong = |length, log_align_req, comp_mask, expected| {
                let mut attr = ibv_alloc_dm_attr {
                    length,
                    log_align_req,
                    comp_mask,
                };
                refused(ibv_alloc_dm(context, &raw mut attr), expected);
            };
            wrong(0, 0, 0, EINVAL);
            wrong(8, 13, 0, EINVAL);
            wrong(8, 0, 1, EINVAL);
            wrong(usize::MAX, 0, 0, ENOMEM);
        }
    });
}
