//! Behaviour of softroce's queue pairs alone: functions that the device does not support, and
//! attributes that it refuses. The conformance suite checks everything else.

use std::mem::zeroed;
use std::ptr;

use ibverbs_sys::*;

/// An open device with a completion queue and a protection domain.
struct Device {
    context: *mut ibv_context,
    pd: *mut ibv_pd,
    cq: *mut ibv_cq,
}

impl Device {
    fn open() -> Self {
        softroce::install();
        let mut count = 0;
        // SAFETY: the list has `count` devices until it is freed; softroce's is the last.
        unsafe {
            let list = ibv_get_device_list(&mut count);
            assert!(count > 0);
            let context = ibv_open_device(*list.add(count as usize - 1));
            assert!(!context.is_null());
            ibv_free_device_list(list);
            let pd = ibv_alloc_pd(context);
            let cq = ibv_create_cq(context, 16, ptr::null_mut(), ptr::null_mut(), 0);
            assert!(!pd.is_null() && !cq.is_null());
            Self { context, pd, cq }
        }
    }

    fn attributes(&self, operations: u64) -> ibv_qp_init_attr_ex {
        ibv_qp_init_attr_ex {
            send_cq: self.cq,
            recv_cq: self.cq,
            cap: ibv_qp_cap {
                max_send_wr: 4,
                max_recv_wr: 4,
                max_send_sge: 1,
                max_recv_sge: 1,
                max_inline_data: 16,
            },
            qp_type: ibv_qp_type::IBV_QPT_RC,
            comp_mask: (ibv_qp_init_attr_mask::IBV_QP_INIT_ATTR_PD
                | ibv_qp_init_attr_mask::IBV_QP_INIT_ATTR_SEND_OPS_FLAGS)
                .0,
            pd: self.pd,
            send_ops_flags: operations,
            ..ibv_qp_init_attr_ex::default()
        }
    }

    /// Creates and destroys a queue pair. Returns the errno if it cannot be created, otherwise
    /// `None`.
    fn refused(&self, mut attributes: ibv_qp_init_attr_ex) -> Option<i32> {
        // SAFETY: the attributes refer to valid objects.
        unsafe {
            let qp = ibv_create_qp_ex(self.context, &mut attributes);
            if qp.is_null() {
                return std::io::Error::last_os_error().raw_os_error();
            }
            assert_eq!(ibv_destroy_qp(qp), 0);
        }
        None
    }

    fn queue_pair(&self, operations: u64) -> *mut ibv_qp {
        let mut attributes = self.attributes(operations);
        // SAFETY: the attributes refer to valid objects.
        let qp = unsafe { ibv_create_qp_ex(self.context, &mut attributes) };
        assert!(!qp.is_null());
        qp
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        // SAFETY: all objects that used them are destroyed.
        unsafe {
            assert_eq!(ibv_destroy_cq(self.cq), 0);
            assert_eq!(ibv_dealloc_pd(self.pd), 0);
            assert_eq!(ibv_close_device(self.context), 0);
        }
    }
}

/// Moves a queue pair to ERR, in which requests are accepted and flushed without a peer.
fn fail(qp: *mut ibv_qp) {
    use ibv_qp_attr_mask as Mask;
    let mut attributes = ibv_qp_attr {
        qp_state: ibv_qp_state::IBV_QPS_INIT,
        port_num: 1,
        ..ibv_qp_attr::default()
    };
    let initial = Mask::IBV_QP_STATE
        | Mask::IBV_QP_PKEY_INDEX
        | Mask::IBV_QP_PORT
        | Mask::IBV_QP_ACCESS_FLAGS;
    // SAFETY: the queue pair is valid.
    unsafe {
        assert_eq!(ibv_modify_qp(qp, &mut attributes, initial.0 as i32), 0);
        attributes.qp_state = ibv_qp_state::IBV_QPS_ERR;
        let state = Mask::IBV_QP_STATE.0 as i32;
        assert_eq!(ibv_modify_qp(qp, &mut attributes, state), 0);
        assert_eq!((*qp).state, ibv_qp_state::IBV_QPS_ERR);
    }
}

const SEND: u64 = ibv_qp_create_send_ops_flags::IBV_QP_EX_WITH_SEND.0 as u64;

/// Function that the device does not support, called as C calls it: without checks.
type Call = unsafe fn(*mut ibv_qp_ex);

#[test]
fn a_missing_function_fails_only_its_batch() {
    let tso: Call = |qp| unsafe {
        // SAFETY: the function exists, and takes these arguments.
        (*qp).wr_send_tso.unwrap()(qp, ptr::null_mut(), 0, 0);
    };
    // A function of headers that do not exist yet, with as many arguments.
    type Later = unsafe extern "C" fn(*mut ibv_qp_ex, u32, u64, usize, u8, u8);
    let later: Call = |qp| unsafe {
        // SAFETY: newer headers place `wr_flush` behind the functions of these headers, and later
        // ones behind it.
        (*qp.add(1).cast::<Later>().add(1))(qp, 0, 0, 0, 0, 0);
    };
    let device = Device::open();
    let qp = device.queue_pair(SEND);
    fail(qp);
    for call in [tso, later] {
        // SAFETY: the queue pair has all functions.
        unsafe {
            let extended = ibv_qp_to_qp_ex(qp);
            ibv_wr_start(extended);
            ibv_wr_send(extended);
            call(extended);
            // Setters after a refused request cause no second error.
            ibv_wr_set_sge(extended, 0, 0, 0);
            assert_eq!(ibv_wr_complete(extended), libc::EOPNOTSUPP);
            let mut completion: ibv_wc = zeroed();
            assert_eq!(ibv_poll_cq(device.cq, 1, &mut completion), 0);

            ibv_wr_start(extended);
            (*extended).wr_id = 7;
            ibv_wr_send(extended);
            assert_eq!(ibv_wr_complete(extended), 0);
            assert_eq!(ibv_poll_cq(device.cq, 1, &mut completion), 1);
            assert_eq!(completion.wr_id, 7);
            assert_eq!(completion.status, ibv_wc_status::IBV_WC_WR_FLUSH_ERR);
        }
    }
    // SAFETY: no code uses the object any more.
    assert_eq!(unsafe { ibv_destroy_qp(qp) }, 0);
}

#[test]
fn every_function_exists_for_any_requested_operations() {
    let device = Device::open();
    let mut plain = ibv_qp_init_attr {
        send_cq: device.cq,
        recv_cq: device.cq,
        qp_type: ibv_qp_type::IBV_QPT_UD,
        ..ibv_qp_init_attr::default()
    };
    // SAFETY: the objects are valid, and the struct consists of pointers from the first function
    // on.
    unsafe {
        let plain = ibv_create_qp(device.pd, &mut plain);
        let extended = device.queue_pair(SEND);
        for qp in [plain, extended] {
            let begin = std::mem::offset_of!(ibv_qp_ex, wr_atomic_cmp_swp);
            let functions = (size_of::<ibv_qp_ex>() - begin) / size_of::<usize>();
            let first = qp.byte_add(begin).cast::<usize>();
            // The additional function is that of newer headers.
            for function in 0..=functions {
                assert_ne!(*first.add(function), 0, "function {function}");
            }
            assert_eq!(ibv_qp_to_qp_ex(qp).is_null(), qp == plain);
            assert_eq!(ibv_destroy_qp(qp), 0);
        }
    }
}

#[test]
fn unsupported_attributes_are_refused_at_creation() {
    use ibv_qp_init_attr_mask as Mask;
    let device = Device::open();
    assert_eq!(device.refused(device.attributes(0)), None);
    let unsupported = Some(libc::EOPNOTSUPP);
    for mask in [
        Mask::IBV_QP_INIT_ATTR_MAX_TSO_HEADER.0,
        Mask::IBV_QP_INIT_ATTR_IND_TABLE.0,
        Mask::IBV_QP_INIT_ATTR_RX_HASH.0,
        1 << 7,
        1 << 31,
    ] {
        let mut attributes = device.attributes(SEND);
        attributes.comp_mask |= mask;
        assert_eq!(device.refused(attributes), unsupported, "{mask:#x}");
    }
    for bit in 0..32 {
        let mut attributes = device.attributes(SEND);
        attributes.comp_mask |= Mask::IBV_QP_INIT_ATTR_CREATE_FLAGS.0;
        attributes.create_flags = 1 << bit;
        assert_eq!(device.refused(attributes), unsupported, "flag {bit}");
    }
    for bit in 0..64 {
        let refused = device.refused(device.attributes(1 << bit));
        assert_eq!(
            refused,
            // Segmentation, and what is not known.
            unsupported.filter(|_| bit == 10 || bit >= 13),
            "operation {bit}"
        );
    }
    for (kind, errno) in [
        (8, libc::EOPNOTSUPP),
        (255, libc::EOPNOTSUPP),
        (77, libc::EINVAL),
    ] {
        let mut attributes = device.attributes(SEND);
        attributes.comp_mask = Mask::IBV_QP_INIT_ATTR_PD.0;
        attributes.qp_type = ibv_qp_type(kind);
        assert_eq!(device.refused(attributes), Some(errno), "type {kind}");
    }
}

#[test]
fn a_queue_pair_accepts_only_objects_of_its_own_context() {
    let (one, two) = (Device::open(), Device::open());
    for change in [
        (|a, other| a.pd = other.pd) as fn(&mut ibv_qp_init_attr_ex, &Device),
        |a, other| a.send_cq = other.cq,
        |a, other| a.recv_cq = other.cq,
    ] {
        let mut attributes = one.attributes(SEND);
        change(&mut attributes, &two);
        assert_eq!(one.refused(attributes), Some(libc::EINVAL));
    }
    let mut attributes = one.attributes(SEND);
    attributes.pd = ptr::null_mut();
    assert_eq!(one.refused(attributes), Some(libc::EINVAL));
}

#[test]
fn queue_pair_attributes_are_queried() {
    use ibv_wr_opcode as Opcode;
    let device = Device::open();
    let qp = device.queue_pair(SEND);
    // SAFETY: the queue pair is valid.
    unsafe {
        let mut ece: ibv_ece = zeroed();
        assert_eq!(ibv_set_ece(qp, &mut ece), libc::EOPNOTSUPP);
        assert_eq!(ibv_query_ece(qp, &mut ece), libc::EOPNOTSUPP);
        let in_order = i32::from(cfg!(target_arch = "x86_64"));
        for opcode in [
            Opcode::IBV_WR_SEND,
            Opcode::IBV_WR_RDMA_WRITE,
            Opcode::IBV_WR_RDMA_READ,
        ] {
            assert_eq!(ibv_query_qp_data_in_order(qp, opcode, 0), in_order);
            assert_eq!(ibv_query_qp_data_in_order(qp, opcode, 1), in_order * 3);
        }
        let opcode = Opcode::IBV_WR_ATOMIC_FETCH_AND_ADD;
        assert_eq!(ibv_query_qp_data_in_order(qp, opcode, 0), 0);
        assert_eq!(ibv_destroy_qp(qp), 0);
    }
}

#[test]
fn the_first_invalid_request_of_a_list_is_returned_and_earlier_ones_are_posted() {
    let device = Device::open();
    let qp = device.queue_pair(SEND);
    fail(qp);
    // SAFETY: zeros are a valid request without data.
    let mut requests: [ibv_send_wr; 3] = unsafe { zeroed() };
    // SAFETY: zeros are a valid request without data.
    let mut receives: [ibv_recv_wr; 3] = unsafe { zeroed() };
    for place in 0..3 {
        requests[place].wr_id = place as u64;
        requests[place].opcode = ibv_wr_opcode::IBV_WR_SEND;
        requests[place].send_flags = ibv_send_flags::IBV_SEND_SIGNALED.0;
        receives[place].wr_id = 10 + place as u64;
    }
    requests[0].next = &raw mut requests[1];
    requests[1].next = &raw mut requests[2];
    receives[0].next = &raw mut receives[1];
    receives[1].next = &raw mut receives[2];
    for wrong in [-1, 2, i32::MAX] {
        requests[1].num_sge = wrong;
        receives[1].num_sge = wrong;
        // SAFETY: each list ends with a request whose `next` is null.
        unsafe {
            let mut bad = ptr::null_mut();
            let answer = ibv_post_send(qp, &mut requests[0], &mut bad);
            assert_eq!((answer, bad), (libc::EINVAL, &raw mut requests[1]));
            let mut bad = ptr::null_mut();
            let answer = ibv_post_recv(qp, &mut receives[0], &mut bad);
            assert_eq!((answer, bad), (libc::EINVAL, &raw mut receives[1]));
            let mut completions: [ibv_wc; 4] = zeroed();
            let count = ibv_poll_cq(device.cq, 4, completions.as_mut_ptr());
            let ids = completions.map(|completion| completion.wr_id);
            assert_eq!((count, &ids[..2]), (2, &[0, 10][..]));
        }
    }
    // SAFETY: no code uses the object any more.
    assert_eq!(unsafe { ibv_destroy_qp(qp) }, 0);
}
