//! Shared receive queues.

use super::*;

#[test]
fn shared_receive_queues_are_made_within_bounds() {
    with_domain(|context, pd| {
        // SAFETY: all objects are valid until they are destroyed.
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
        // SAFETY: all objects are valid until they are destroyed.
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
        // SAFETY: the requests and the queue are valid, and no message is received.
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
fn extended_shared_receive_queues_report_their_type() {
    type Mask = ibv_srq_init_attr_mask;
    const TYPE: u32 = Mask::IBV_SRQ_INIT_ATTR_TYPE.0;
    const DOMAIN: u32 = Mask::IBV_SRQ_INIT_ATTR_PD.0;
    const XRCD: u32 = Mask::IBV_SRQ_INIT_ATTR_XRCD.0;
    const CQ: u32 = Mask::IBV_SRQ_INIT_ATTR_CQ.0;
    with_domain(|context, pd| {
        // SAFETY: all objects are valid until they are destroyed.
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
fn an_xrc_queue_has_a_number_and_keeps_its_domain() {
    type Mask = ibv_srq_init_attr_mask;
    const ALL: u32 = Mask::IBV_SRQ_INIT_ATTR_TYPE.0
        | Mask::IBV_SRQ_INIT_ATTR_PD.0
        | Mask::IBV_SRQ_INIT_ATTR_XRCD.0
        | Mask::IBV_SRQ_INIT_ATTR_CQ.0;
    with_domain(|context, pd| {
        // SAFETY: all objects are valid until they are destroyed.
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
