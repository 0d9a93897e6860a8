//! What the verbs of memory, completions, shared receive queues, domains and addresses check, and
//! what they answer: the rules of the manual pages, one by one, as a C program sees them.

use std::mem::zeroed;
use std::os::fd::BorrowedFd;
use std::ptr::{null_mut, without_provenance_mut};
use std::{io, thread};

use ibverbs_sys::*;
use libc::{EAGAIN, EBUSY, EFAULT, EINVAL, ENOENT, ENOMEM, EOPNOTSUPP, EPERM};

const LOCAL_WRITE: i32 = 1;
const REMOTE_WRITE: i32 = 1 << 1;
const REMOTE_READ: i32 = 1 << 2;
const REMOTE_ATOMIC: i32 = 1 << 3;
const ZERO_BASED: i32 = 1 << 5;
const ON_DEMAND: i32 = 1 << 6;

/// A page of memory at the beginning of a page.
#[repr(align(4096))]
struct Page([u8; 4096]);

impl Page {
    fn new() -> Box<Self> {
        Box::new(Self([0; 4096]))
    }

    fn start(&mut self) -> *mut libc::c_void {
        self.0.as_mut_ptr().cast()
    }
}

/// Runs `test` on a context of the device.
fn with_context(test: impl FnOnce(*mut ibv_context)) {
    softroce::install();
    let mut count = 0;
    // SAFETY: the list has that many devices until it is freed, and the last is ours.
    unsafe {
        let list = ibv_get_device_list(&mut count);
        let context = ibv_open_device(*list.add(count as usize - 1));
        ibv_free_device_list(list);
        assert!(!context.is_null(), "{}", io::Error::last_os_error());
        test(context);
        assert_eq!(ibv_close_device(context), 0);
    }
}

/// Runs `test` on a protection domain, which nothing uses afterwards.
fn with_domain(test: impl FnOnce(*mut ibv_context, *mut ibv_pd)) {
    with_context(|context| {
        // SAFETY: the context is open.
        unsafe {
            let pd = ibv_alloc_pd(context);
            assert!(!pd.is_null());
            test(context, pd);
            assert_eq!(ibv_dealloc_pd(pd), 0);
        }
    });
}

fn errno() -> i32 {
    io::Error::last_os_error().raw_os_error().unwrap()
}

/// A verb made no object, and said why.
#[track_caller]
fn refused<T>(object: *mut T, expected: i32) {
    assert!(
        object.is_null(),
        "an object where errno {expected} was expected"
    );
    assert_eq!(errno(), expected);
}

fn set_nonblocking(descriptor: i32) {
    // SAFETY: the descriptor is open; flags are a number.
    unsafe {
        let flags = libc::fcntl(descriptor, libc::F_GETFL);
        assert_eq!(
            libc::fcntl(descriptor, libc::F_SETFL, flags | libc::O_NONBLOCK),
            0
        );
    }
}

fn is_readable(descriptor: i32) -> bool {
    let mut about = libc::pollfd {
        fd: descriptor,
        events: libc::POLLIN,
        revents: 0,
    };
    // SAFETY: one descriptor.
    unsafe { libc::poll(&raw mut about, 1, 0) == 1 }
}

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
        // SAFETY: what is registered is there until its region's end, or never used.
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
                // On demand means that the memory may come later, and all of it can be had.
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
fn what_the_device_cannot_have_is_not_supported() {
    with_domain(|context, pd| {
        // SAFETY: the domain is there.
        unsafe {
            refused(
                ibv_reg_dmabuf_mr(pd, 0, 4096, 0, 0, LOCAL_WRITE),
                EOPNOTSUPP,
            );
            refused(ibv_import_pd(context, 1), EOPNOTSUPP);
            refused(ibv_import_mr(pd, 1), EOPNOTSUPP);
            refused(ibv_import_dm(context, 1), EOPNOTSUPP);
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
        // SAFETY: the domain is there.
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
        // SAFETY: the domain is there.
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
        // SAFETY: all objects are there until they are destroyed.
        unsafe {
            let dm = ibv_alloc_dm(context, &raw mut attr);
            assert!(!dm.is_null());
            let mut data = *b"nothing is lost";
            let length = data.len();
            assert_eq!(
                ibv_memcpy_to_dm(dm, 85, data.as_mut_ptr().cast(), length),
                0
            );
            let mut back = [0_u8; 15];
            assert_eq!(
                ibv_memcpy_from_dm(back.as_mut_ptr().cast(), dm, 85, length),
                0
            );
            assert_eq!(back, data);
            assert_eq!(
                ibv_memcpy_to_dm(dm, 86, data.as_mut_ptr().cast(), length),
                EFAULT
            );
            assert_eq!(
                ibv_memcpy_from_dm(back.as_mut_ptr().cast(), dm, u64::MAX, length),
                EFAULT
            );

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

#[test]
fn domains_in_use_stay() {
    with_domain(|context, pd| {
        // SAFETY: all objects are there until they are destroyed.
        unsafe {
            let mut init = ibv_td_init_attr { comp_mask: 0 };
            let td = ibv_alloc_td(context, &raw mut init);
            assert!(!td.is_null());
            let mut wrong = ibv_td_init_attr { comp_mask: 1 };
            refused(ibv_alloc_td(context, &raw mut wrong), EINVAL);

            let mut attr: ibv_parent_domain_init_attr = zeroed();
            refused(ibv_alloc_parent_domain(context, &raw mut attr), EINVAL);
            attr.pd = pd;
            attr.td = td;
            attr.comp_mask = 1 << 9;
            refused(ibv_alloc_parent_domain(context, &raw mut attr), EINVAL);
            attr.comp_mask =
                ibv_parent_domain_init_attr_mask::IBV_PARENT_DOMAIN_INIT_ATTR_ALLOCATORS.0;
            refused(ibv_alloc_parent_domain(context, &raw mut attr), EINVAL);
            attr.comp_mask = 0;
            let parent = ibv_alloc_parent_domain(context, &raw mut attr);
            assert!(!parent.is_null());
            assert_eq!(ibv_dealloc_td(td), EBUSY);
            assert_eq!(ibv_dealloc_pd(pd), EBUSY);

            let mut page = Page::new();
            let mr = ibv_reg_mr(parent, page.start(), 64, LOCAL_WRITE);
            assert!(!mr.is_null());
            assert_eq!(ibv_dealloc_pd(parent), EBUSY);
            assert_eq!(ibv_dereg_mr(mr), 0);

            attr.pd = parent;
            refused(ibv_alloc_parent_domain(context, &raw mut attr), EINVAL);
            assert_eq!(ibv_dealloc_pd(parent), 0);
            assert_eq!(ibv_dealloc_td(td), 0);
        }
    });
}

#[test]
fn objects_of_another_context_do_not_mix() {
    with_domain(|context, pd| {
        with_domain(|other, other_pd| {
            // SAFETY: all objects are there until they are destroyed.
            unsafe {
                let channel = ibv_create_comp_channel(other);
                refused(ibv_create_cq(context, 1, null_mut(), channel, 0), EINVAL);
                assert_eq!(ibv_destroy_comp_channel(channel), 0);
                let mut attr: ibv_parent_domain_init_attr = zeroed();
                attr.pd = other_pd;
                refused(ibv_alloc_parent_domain(context, &raw mut attr), EINVAL);
                let mut page = Page::new();
                let mr = ibv_reg_mr(pd, page.start(), 64, LOCAL_WRITE);
                let error = ibv_rereg_mr_err_code::IBV_REREG_MR_ERR_INPUT.0;
                assert_eq!(ibv_rereg_mr(mr, 2, other_pd, null_mut(), 0, 0), error);
                assert_eq!(ibv_dereg_mr(mr), 0);
            }
        });
    });
}

#[test]
fn completion_queues_are_made_and_resized_within_bounds() {
    with_context(|context| {
        // SAFETY: all objects are there until they are destroyed.
        unsafe {
            let mut device: ibv_device_attr = zeroed();
            assert_eq!(ibv_query_device(context, &raw mut device), 0);
            for cqe in [0, -1, i32::MIN, device.max_cqe + 1] {
                refused(
                    ibv_create_cq(context, cqe, null_mut(), null_mut(), 0),
                    EINVAL,
                );
            }
            for vector in [-1, (*context).num_comp_vectors] {
                refused(
                    ibv_create_cq(context, 1, null_mut(), null_mut(), vector),
                    EINVAL,
                );
            }
            let mark = without_provenance_mut(0x77);
            let cq = ibv_create_cq(context, 10, mark, null_mut(), 0);
            assert!((*cq).cqe >= 10);
            assert_eq!((*cq).cq_context, mark);
            assert_eq!(ibv_resize_cq(cq, device.max_cqe), 0);
            assert_eq!((*cq).cqe, device.max_cqe);
            for cqe in [0, -1, device.max_cqe + 1] {
                assert_eq!(ibv_resize_cq(cq, cqe), EINVAL);
            }
            let mut wc: [ibv_wc; 2] = zeroed();
            assert_eq!(ibv_poll_cq(cq, 2, wc.as_mut_ptr()), 0);
            assert_eq!(ibv_poll_cq(cq, 0, wc.as_mut_ptr()), 0);
            assert!(ibv_poll_cq(cq, -1, wc.as_mut_ptr()) < 0);
            assert_eq!(
                ibv_req_notify_cq(cq, 0),
                0,
                "without a channel nobody is told"
            );
            let moderate = ibv_moderate_cq {
                cq_count: 4,
                cq_period: 100,
            };
            let mut attr = ibv_modify_cq_attr {
                attr_mask: 1,
                moderate,
            };
            assert_eq!(ibv_modify_cq(cq, &raw mut attr), 0);
            attr.attr_mask = 2;
            assert_eq!(ibv_modify_cq(cq, &raw mut attr), EINVAL);
            assert_eq!(ibv_destroy_cq(cq), 0);
        }
    });
}

#[test]
fn extended_completion_queues_tell_what_they_can() {
    with_domain(|context, pd| {
        // SAFETY: all objects are there until they are destroyed.
        unsafe {
            let make = |change: &dyn Fn(&mut ibv_cq_init_attr_ex)| {
                let mut attr: ibv_cq_init_attr_ex = zeroed();
                attr.cqe = 4;
                change(&mut attr);
                ibv_create_cq_ex(context, &raw mut attr)
            };
            refused(make(&|attr| attr.cqe = 0), EINVAL);
            refused(make(&|attr| attr.comp_vector = 99), EINVAL);
            refused(make(&|attr| attr.comp_mask = 4), EINVAL);
            refused(make(&|attr| (attr.comp_mask, attr.flags) = (1, 4)), EINVAL);
            refused(make(&|attr| attr.comp_mask = 2), EINVAL);
            for field in [8, 9, 10, 12, 63] {
                refused(make(&|attr| attr.wc_flags = 1 << field), EOPNOTSUPP);
            }
            let all = 0x7f | 1 << 7 | 1 << 11;
            let cq = make(&|attr| {
                attr.wc_flags = all;
                (attr.comp_mask, attr.flags) = (3, 3);
                attr.parent_domain = pd;
            });
            assert!(!cq.is_null(), "{}", io::Error::last_os_error());
            assert_eq!(ibv_dealloc_pd(pd), EBUSY);
            let mut attr = ibv_poll_cq_attr { comp_mask: 0 };
            assert_eq!(ibv_start_poll(cq, &raw mut attr), ENOENT);
            assert_eq!(
                ibv_start_poll(cq, &raw mut attr),
                ENOENT,
                "and so nobody has to end it"
            );
            attr.comp_mask = 1;
            assert_eq!(ibv_start_poll(cq, &raw mut attr), EINVAL);
            assert_eq!(ibv_destroy_cq(ibv_cq_ex_to_cq(cq)), 0);
            // Without the bit that says that there are flags, there are none.
            let cq = make(&|attr| attr.flags = 0xff);
            assert_eq!(ibv_destroy_cq(ibv_cq_ex_to_cq(cq)), 0);
        }
    });
}

#[test]
fn a_channel_in_use_stays_and_does_not_block_if_told_so() {
    with_context(|context| {
        // SAFETY: all objects are there until they are destroyed.
        unsafe {
            let channel = ibv_create_comp_channel(context);
            assert!(!channel.is_null());
            let cq = ibv_create_cq(context, 1, null_mut(), channel, 0);
            assert_eq!((*cq).channel, channel);
            assert_eq!(ibv_destroy_comp_channel(channel), EBUSY);
            set_nonblocking((*channel).fd);
            assert!(!is_readable((*channel).fd));
            let (mut which, mut mark) = (null_mut(), null_mut());
            assert_eq!(ibv_get_cq_event(channel, &raw mut which, &raw mut mark), -1);
            assert_eq!(errno(), EAGAIN);
            ibv_ack_cq_events(cq, 0);
            assert_eq!(ibv_destroy_cq(cq), 0);
            assert_eq!(ibv_destroy_comp_channel(channel), 0);
        }
    });
}

#[test]
fn asynchronous_events_can_be_polled_for() {
    with_context(|context| {
        // SAFETY: the context is open.
        unsafe {
            set_nonblocking((*context).async_fd);
            assert!(!is_readable((*context).async_fd));
            let mut event: ibv_async_event = zeroed();
            assert_eq!(ibv_get_async_event(context, &raw mut event), -1);
            assert_eq!(errno(), EAGAIN);
            assert!(
                BorrowedFd::borrow_raw((*context).async_fd)
                    .try_clone_to_owned()
                    .is_ok()
            );
        }
    });
}

fn srq_attr(max_wr: u32, max_sge: u32) -> ibv_srq_init_attr {
    ibv_srq_init_attr {
        srq_context: without_provenance_mut(0x55),
        attr: ibv_srq_attr {
            max_wr,
            max_sge,
            srq_limit: 0,
        },
    }
}

#[test]
fn shared_receive_queues_are_made_within_bounds() {
    with_domain(|context, pd| {
        // SAFETY: all objects are there until they are destroyed.
        unsafe {
            let mut device: ibv_device_attr = zeroed();
            assert_eq!(ibv_query_device(context, &raw mut device), 0);
            let (most_wr, most_sge) = (device.max_srq_wr as u32, device.max_srq_sge as u32);
            for (max_wr, max_sge) in [(0, 1), (most_wr + 1, 1), (1, most_sge + 1)] {
                refused(ibv_create_srq(pd, &mut srq_attr(max_wr, max_sge)), EINVAL);
            }
            let mut init = srq_attr(most_wr, most_sge);
            let srq = ibv_create_srq(pd, &raw mut init);
            assert!(!srq.is_null());
            assert!(init.attr.max_wr >= most_wr && init.attr.max_sge >= most_sge);
            assert_eq!(((*srq).pd, (*srq).srq_context), (pd, init.srq_context));
            assert_eq!(ibv_dealloc_pd(pd), EBUSY);
            let mut number = 0;
            assert_eq!(
                ibv_get_srq_num(srq, &raw mut number),
                EOPNOTSUPP,
                "for XRC alone"
            );
            assert_eq!(ibv_destroy_srq(srq), 0);
        }
    });
}

#[test]
fn shared_receive_queues_are_modified_and_queried() {
    const MAX_WR: i32 = 1;
    const LIMIT: i32 = 2;
    with_domain(|_, pd| {
        // SAFETY: all objects are there until they are destroyed.
        unsafe {
            let srq = ibv_create_srq(pd, &mut srq_attr(10, 3));
            let query = || {
                let mut attr: ibv_srq_attr = zeroed();
                assert_eq!(ibv_query_srq(srq, &raw mut attr), 0);
                (attr.max_wr, attr.max_sge, attr.srq_limit)
            };
            let modify = |mask, max_wr, srq_limit| {
                let mut attr = ibv_srq_attr {
                    max_wr,
                    max_sge: 99,
                    srq_limit,
                };
                ibv_modify_srq(srq, &raw mut attr, mask)
            };
            assert_eq!(query(), (10, 3, 0));
            assert_eq!(modify(4, 20, 5), EINVAL);
            assert_eq!(modify(LIMIT, 20, 11), EINVAL);
            assert_eq!(modify(MAX_WR | LIMIT, 0, 5), EINVAL);
            assert_eq!(query(), (10, 3, 0));
            assert_eq!(modify(0, 20, 5), 0);
            assert_eq!(query(), (10, 3, 0));
            assert_eq!(modify(MAX_WR | LIMIT, 20, 15), 0);
            assert_eq!(query(), (20, 3, 15));
            assert_eq!(modify(MAX_WR, 14, 0), EINVAL, "below the limit");
            assert_eq!(ibv_destroy_srq(srq), 0);
        }
    });
}

#[test]
fn the_first_receive_that_is_refused_is_named() {
    with_domain(|_, pd| {
        // SAFETY: the requests and the queue are there; nothing is received.
        unsafe {
            let srq = ibv_create_srq(pd, &mut srq_attr(3, 2));
            let mut list: [ibv_sge; 3] = zeroed();
            let mut requests: [ibv_recv_wr; 5] = zeroed();
            for request in &mut requests {
                request.sg_list = list.as_mut_ptr();
                request.num_sge = 2;
            }
            let first = requests.as_mut_ptr();
            for place in 0..4 {
                (*first.add(place)).next = first.add(place + 1);
            }
            let mut bad = null_mut();
            (*first.add(1)).num_sge = 3;
            assert_eq!(ibv_post_srq_recv(srq, first, &raw mut bad), EINVAL);
            assert_eq!(bad, first.add(1), "the first was posted");
            (*first.add(1)).num_sge = -1;
            assert_eq!(ibv_post_srq_recv(srq, first.add(1), &raw mut bad), EINVAL);
            (*first.add(1)).num_sge = 1;
            (*first.add(1)).sg_list = null_mut();
            assert_eq!(ibv_post_srq_recv(srq, first.add(1), &raw mut bad), EINVAL);
            (*first.add(1)).num_sge = 0;
            assert_eq!(ibv_post_srq_recv(srq, first.add(1), &raw mut bad), ENOMEM);
            assert_eq!(bad, first.add(3), "three fit");
            assert_eq!(ibv_post_srq_recv(srq, null_mut(), &raw mut bad), 0);
            assert_eq!(ibv_destroy_srq(srq), 0);
        }
    });
}

#[test]
fn extended_shared_receive_queues_say_of_which_type_they_are() {
    type Mask = ibv_srq_init_attr_mask;
    const TYPE: u32 = Mask::IBV_SRQ_INIT_ATTR_TYPE.0;
    const DOMAIN: u32 = Mask::IBV_SRQ_INIT_ATTR_PD.0;
    const XRCD: u32 = Mask::IBV_SRQ_INIT_ATTR_XRCD.0;
    const CQ: u32 = Mask::IBV_SRQ_INIT_ATTR_CQ.0;
    with_domain(|context, pd| {
        // SAFETY: all objects are there until they are destroyed.
        unsafe {
            let make = |comp_mask, srq_type| {
                let mut init: ibv_srq_init_attr_ex = zeroed();
                init.attr = ibv_srq_attr {
                    max_wr: 4,
                    max_sge: 1,
                    srq_limit: 0,
                };
                (init.comp_mask, init.srq_type, init.pd) = (comp_mask, srq_type, pd);
                ibv_create_srq_ex(context, &raw mut init)
            };
            refused(make(0, ibv_srq_type::IBV_SRQT_BASIC), EINVAL);
            refused(make(TYPE, ibv_srq_type::IBV_SRQT_BASIC), EINVAL);
            refused(
                make(TYPE | DOMAIN | 1 << 9, ibv_srq_type::IBV_SRQT_BASIC),
                EINVAL,
            );
            refused(make(TYPE | DOMAIN, ibv_srq_type(9)), EINVAL);
            refused(make(TYPE | DOMAIN, ibv_srq_type::IBV_SRQT_TM), EOPNOTSUPP);
            refused(make(TYPE | DOMAIN, ibv_srq_type::IBV_SRQT_XRC), EINVAL);
            refused(
                make(TYPE | DOMAIN | XRCD, ibv_srq_type::IBV_SRQT_XRC),
                EINVAL,
            );
            refused(make(TYPE | DOMAIN | CQ, ibv_srq_type::IBV_SRQT_XRC), EINVAL);
            refused(
                make(TYPE | DOMAIN | XRCD | CQ, ibv_srq_type::IBV_SRQT_XRC),
                EINVAL,
            );
            for mask in [DOMAIN, TYPE | DOMAIN] {
                let srq = make(mask, ibv_srq_type::IBV_SRQT_BASIC);
                assert!(!srq.is_null());
                assert_eq!(ibv_destroy_srq(srq), 0);
            }
        }
    });
}

#[test]
fn an_xrc_queue_has_a_number_and_keeps_what_it_stands_on() {
    type Mask = ibv_srq_init_attr_mask;
    const ALL: u32 = Mask::IBV_SRQ_INIT_ATTR_TYPE.0
        | Mask::IBV_SRQ_INIT_ATTR_PD.0
        | Mask::IBV_SRQ_INIT_ATTR_XRCD.0
        | Mask::IBV_SRQ_INIT_ATTR_CQ.0;
    with_domain(|context, pd| {
        // SAFETY: all objects are there until they are destroyed.
        unsafe {
            let mut attr = ibv_xrcd_init_attr {
                comp_mask: 3,
                fd: -1,
                oflags: libc::O_CREAT,
            };
            let xrcd = ibv_open_xrcd(context, &raw mut attr);
            let cq = ibv_create_cq(context, 4, null_mut(), null_mut(), 0);
            let mut init: ibv_srq_init_attr_ex = zeroed();
            init.attr = ibv_srq_attr {
                max_wr: 4,
                max_sge: 1,
                srq_limit: 0,
            };
            (init.comp_mask, init.srq_type) = (ALL, ibv_srq_type::IBV_SRQT_XRC);
            (init.pd, init.cq) = (pd, cq);
            refused(ibv_create_srq_ex(context, &raw mut init), EINVAL);
            init.xrcd = xrcd;
            let queues = [(); 2].map(|()| ibv_create_srq_ex(context, &raw mut init));
            let numbers = queues.map(|srq| {
                assert!(!srq.is_null(), "{}", io::Error::last_os_error());
                let mut number = 0;
                assert_eq!(ibv_get_srq_num(srq, &raw mut number), 0);
                number
            });
            assert_ne!(numbers[0], numbers[1]);
            assert_eq!(ibv_destroy_cq(cq), EBUSY);
            assert_eq!(ibv_close_xrcd(xrcd), EBUSY);
            for srq in queues {
                assert_eq!(ibv_destroy_srq(srq), 0);
            }
            assert_eq!(ibv_destroy_cq(cq), 0);
            assert_eq!(ibv_close_xrcd(xrcd), 0);
        }
    });
}

fn address_of(context: *mut ibv_context, index: u8) -> ibv_ah_attr {
    // SAFETY: the context is open; zeroes are an address.
    unsafe {
        let mut attr: ibv_ah_attr = zeroed();
        assert_eq!(
            ibv_query_gid(context, 1, index.into(), &raw mut attr.grh.dgid),
            0
        );
        (attr.is_global, attr.port_num, attr.grh.sgid_index) = (1, 1, index);
        attr.grh.hop_limit = 64;
        attr
    }
}

#[test]
fn address_handles_have_a_route_that_fits() {
    with_domain(|context, pd| {
        // SAFETY: all objects are there until they are destroyed.
        unsafe {
            let good = address_of(context, 0);
            let make = |change: &dyn Fn(&mut ibv_ah_attr)| {
                let mut attr = good;
                change(&mut attr);
                ibv_create_ah(pd, &raw mut attr)
            };
            refused(make(&|attr| attr.is_global = 0), EINVAL);
            refused(make(&|attr| attr.port_num = 0), EINVAL);
            refused(make(&|attr| attr.port_num = 2), EINVAL);
            refused(make(&|attr| attr.grh.sgid_index = 255), EINVAL);
            refused(make(&|attr| attr.grh.dgid.raw = [0; 16]), EINVAL);
            let mut ipv6 = [0; 16];
            ipv6[0] = 0xfd;
            refused(make(&|attr| attr.grh.dgid.raw = ipv6), EINVAL);
            let ah = make(&|_| ());
            assert!(!ah.is_null());
            assert_eq!((*ah).pd, pd);
            assert_eq!(ibv_dealloc_pd(pd), EBUSY);
            assert_eq!(ibv_destroy_ah(ah), 0);
            let mut group = [0; 16];
            group[10..].copy_from_slice(&[0xff, 0xff, 239, 1, 2, 3]);
            let ah = make(&|attr| attr.grh.dgid.raw = group);
            assert!(!ah.is_null());
            assert_eq!(ibv_destroy_ah(ah), 0);

            let (mut mac, mut vlan, mut attr) = ([0xff_u8; 6], 0, good);
            let answer = ibv_resolve_eth_l2_from_gid(
                context,
                &raw mut attr,
                mac.as_mut_ptr(),
                &raw mut vlan,
            );
            assert_eq!((answer, mac, vlan), (0, [0; 6], 0xffff));
            attr.grh.sgid_index = 255;
            let answer = ibv_resolve_eth_l2_from_gid(
                context,
                &raw mut attr,
                mac.as_mut_ptr(),
                &raw mut vlan,
            );
            assert_eq!(answer, -EINVAL);
        }
    });
}

/// The header that a datagram from `from` to `to` leaves in front of its data.
fn header(from: [u8; 16], to: [u8; 16]) -> ibv_grh {
    let mut bytes = [0_u8; 40];
    bytes[20..32].copy_from_slice(&[0x45, 3, 0, 60, 0, 0, 0x40, 0, 61, 17, 0, 0]);
    bytes[32..36].copy_from_slice(&from[12..]);
    bytes[36..].copy_from_slice(&to[12..]);
    // SAFETY: any forty bytes are such a header.
    unsafe { bytes.as_ptr().cast::<ibv_grh>().read_unaligned() }
}

#[test]
fn an_answer_goes_back_to_the_sender() {
    with_domain(|context, pd| {
        // SAFETY: all objects are there until they are destroyed.
        unsafe {
            let local = address_of(context, 0).grh.dgid.raw;
            let mut remote = local;
            remote[15] ^= 1;
            let mut wc: ibv_wc = zeroed();
            wc.wc_flags = ibv_wc_flags::IBV_WC_GRH.0;
            let mut grh = header(remote, local);
            let mut attr: ibv_ah_attr = zeroed();
            let init = |wc: &mut ibv_wc, grh: &mut ibv_grh, attr: &mut ibv_ah_attr| {
                ibv_init_ah_from_wc(context, 1, wc, grh, attr)
            };
            assert_eq!(init(&mut wc, &mut grh, &mut attr), 0);
            assert_eq!(attr.grh.dgid.raw, remote);
            assert_eq!(
                (attr.is_global, attr.port_num, attr.grh.sgid_index),
                (1, 1, 0)
            );
            assert_eq!((attr.grh.hop_limit, attr.grh.traffic_class), (61, 3));
            let ah = ibv_create_ah_from_wc(pd, &raw mut wc, &raw mut grh, 1);
            assert!(!ah.is_null());
            assert_eq!(ibv_destroy_ah(ah), 0);

            let mut stray = header(remote, remote);
            assert_eq!(init(&mut wc, &mut stray, &mut attr), -1, "not sent to us");
            let mut neither: ibv_grh = zeroed();
            assert_eq!(init(&mut wc, &mut neither, &mut attr), -1);
            assert_eq!(errno(), libc::EPROTONOSUPPORT);
            wc.wc_flags = 0;
            assert_eq!(init(&mut wc, &mut neither, &mut attr), 0);
            assert_eq!(attr.is_global, 0);
            refused(
                ibv_create_ah_from_wc(pd, &raw mut wc, &raw mut grh, 1),
                EINVAL,
            );
        }
    });
}

/// Objects are made and destroyed by many threads at once.
#[test]
fn threads_do_not_get_into_each_others_way() {
    struct Shared(*mut ibv_context);
    // SAFETY: verbs may be called from any thread.
    unsafe impl Sync for Shared {}
    with_context(|context| {
        let shared = &Shared(context);
        thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(move || {
                    let context = shared.0;
                    let mut page = Page::new();
                    for _ in 0..50 {
                        // SAFETY: all objects are there until they are destroyed.
                        unsafe {
                            let pd = ibv_alloc_pd(context);
                            let mr = ibv_reg_mr(pd, page.start(), 4096, LOCAL_WRITE);
                            let channel = ibv_create_comp_channel(context);
                            let cq = ibv_create_cq(context, 4, null_mut(), channel, 0);
                            let srq = ibv_create_srq(pd, &mut srq_attr(4, 1));
                            let objects = [mr.is_null(), cq.is_null(), srq.is_null()];
                            assert_eq!(objects, [false; 3]);
                            assert_eq!(ibv_destroy_srq(srq), 0);
                            assert_eq!(ibv_destroy_cq(cq), 0);
                            assert_eq!(ibv_destroy_comp_channel(channel), 0);
                            assert_eq!(ibv_dereg_mr(mr), 0);
                            assert_eq!(ibv_dealloc_pd(pd), 0);
                        }
                    }
                });
            }
        });
    });
}
