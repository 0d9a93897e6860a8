//! Open devices and queue pairs, which are used as a C program uses them.

use std::mem::zeroed;
use std::ptr;
use std::time::Instant;

use ibverbs_sys::*;

use super::LOST;

type Mask = ibv_qp_attr_mask;
type Access = ibv_access_flags;

/// An open device with a protection domain.
pub(super) struct Device {
    pub(super) context: *mut ibv_context,
    pub(super) pd: *mut ibv_pd,
}

/// A queue pair with its completion queue.
pub(super) struct End<'a> {
    device: &'a Device,
    pub(super) channel: *mut ibv_comp_channel,
    pub(super) cq: *mut ibv_cq,
    pub(super) qp: *mut ibv_qp,
}

// SAFETY: verbs may be called by any thread.
unsafe impl Send for End<'_> {}
// SAFETY: verbs may be called by any thread.
unsafe impl Sync for End<'_> {}
// SAFETY: verbs may be called by any thread.
unsafe impl Sync for Device {}

/// Bytes of this process or of its peer, with the key of their region.
#[derive(Clone, Copy)]
pub(super) struct Bytes {
    pub(super) address: u64,
    pub(super) length: u32,
    pub(super) key: u32,
}

/// Opens the process's device. Returns null if it cannot be opened.
pub(super) fn open() -> *mut ibv_context {
    let mut count = 0;
    // SAFETY: the list has that many devices until it is freed; softroce's is the last.
    unsafe {
        let list = ibv_get_device_list(&mut count);
        assert!(count > 0, "no device");
        let context = ibv_open_device(*list.add(count as usize - 1));
        ibv_free_device_list(list);
        context
    }
}

/// Runs `test` on two queue pairs that are connected to each other, and destroys them.
pub(super) fn with_pair(test: impl FnOnce(&Device, &End<'_>, &End<'_>)) {
    let context = open();
    assert!(!context.is_null());
    // SAFETY: the device is open.
    let pd = unsafe { ibv_alloc_pd(context) };
    assert!(!pd.is_null());
    let device = Device { context, pd };
    {
        let ends = [End::new(&device), End::new(&device)];
        ends[0].connect(&ends[1]);
        ends[1].connect(&ends[0]);
        test(&device, &ends[0], &ends[1]);
    }
    // SAFETY: all objects that used them are destroyed.
    unsafe {
        assert_eq!(ibv_dealloc_pd(pd), 0);
        assert_eq!(ibv_close_device(context), 0);
    }
}

impl Device {
    /// Registers memory with all access rights for peers.
    pub(super) fn register(&self, address: *mut libc::c_void, length: usize) -> *mut ibv_mr {
        let access = Access::IBV_ACCESS_LOCAL_WRITE
            | Access::IBV_ACCESS_REMOTE_WRITE
            | Access::IBV_ACCESS_REMOTE_READ
            | Access::IBV_ACCESS_REMOTE_ATOMIC;
        // SAFETY: the memory is mapped.
        unsafe { ibv_reg_mr(self.pd, address, length, access.0 as i32) }
    }
}

impl<'a> End<'a> {
    fn new(device: &'a Device) -> Self {
        // SAFETY: the device is open.
        unsafe {
            let channel = ibv_create_comp_channel(device.context);
            assert!(!channel.is_null());
            let cq = ibv_create_cq(device.context, 64, ptr::null_mut(), channel, 0);
            assert!(!cq.is_null());
            let mut attributes = ibv_qp_init_attr {
                send_cq: cq,
                recv_cq: cq,
                cap: ibv_qp_cap {
                    max_send_wr: 16,
                    max_recv_wr: 16,
                    max_send_sge: 1,
                    max_recv_sge: 1,
                    max_inline_data: 0,
                },
                qp_type: ibv_qp_type::IBV_QPT_RC,
                sq_sig_all: 1,
                ..ibv_qp_init_attr::default()
            };
            let qp = ibv_create_qp(device.pd, &mut attributes);
            assert!(!qp.is_null());
            Self {
                device,
                channel,
                cq,
                qp,
            }
        }
    }

    /// Sets attributes. Returns the errno, or 0.
    pub(super) fn modify(&self, mut attributes: ibv_qp_attr, mask: Mask) -> i32 {
        // SAFETY: the queue pair is valid.
        unsafe { ibv_modify_qp(self.qp, &mut attributes, mask.0 as i32) }
    }

    /// Enters a state that needs no other attribute. Returns the errno, or 0.
    pub(super) fn enter(&self, state: ibv_qp_state) -> i32 {
        let attributes = ibv_qp_attr {
            qp_state: state,
            ..ibv_qp_attr::default()
        };
        self.modify(attributes, Mask::IBV_QP_STATE)
    }

    pub(super) fn state(&self) -> ibv_qp_state {
        let (mut attributes, mut initial) = Default::default();
        let mask = Mask::IBV_QP_STATE.0 as i32;
        // SAFETY: the queue pair is valid, and there is room for the answers.
        let answer = unsafe { ibv_query_qp(self.qp, &mut attributes, mask, &mut initial) };
        assert_eq!(answer, 0);
        attributes.qp_state
    }

    /// Moves the queue pair from RESET to INIT. Returns the errno, or 0.
    pub(super) fn initialize(&self) -> i32 {
        let attributes = ibv_qp_attr {
            qp_state: ibv_qp_state::IBV_QPS_INIT,
            port_num: 1,
            qp_access_flags: (Access::IBV_ACCESS_REMOTE_WRITE
                | Access::IBV_ACCESS_REMOTE_READ
                | Access::IBV_ACCESS_REMOTE_ATOMIC)
                .0,
            ..ibv_qp_attr::default()
        };
        let mask = Mask::IBV_QP_STATE
            | Mask::IBV_QP_PKEY_INDEX
            | Mask::IBV_QP_PORT
            | Mask::IBV_QP_ACCESS_FLAGS;
        self.modify(attributes, mask)
    }

    /// Moves the queue pair from RESET to RTS.
    pub(super) fn connect(&self, peer: &Self) {
        assert_eq!(self.initialize(), 0);
        let mut attributes = ibv_qp_attr {
            qp_state: ibv_qp_state::IBV_QPS_RTR,
            path_mtu: ibv_mtu::IBV_MTU_1024,
            // SAFETY: the queue pair is valid.
            dest_qp_num: unsafe { (*peer.qp).qp_num },
            max_dest_rd_atomic: 4,
            min_rnr_timer: 1,
            ..ibv_qp_attr::default()
        };
        attributes.ah_attr.is_global = 1;
        attributes.ah_attr.port_num = 1;
        attributes.ah_attr.grh.hop_limit = 64;
        // SAFETY: the device is open, and there is room for a GID.
        let answer =
            unsafe { ibv_query_gid(self.device.context, 1, 0, &mut attributes.ah_attr.grh.dgid) };
        assert_eq!(answer, 0);
        let mask = Mask::IBV_QP_STATE
            | Mask::IBV_QP_AV
            | Mask::IBV_QP_PATH_MTU
            | Mask::IBV_QP_DEST_QPN
            | Mask::IBV_QP_RQ_PSN
            | Mask::IBV_QP_MAX_DEST_RD_ATOMIC
            | Mask::IBV_QP_MIN_RNR_TIMER;
        assert_eq!(self.modify(attributes, mask), 0);
        let attributes = ibv_qp_attr {
            qp_state: ibv_qp_state::IBV_QPS_RTS,
            // 134 ms, eight times: longer than a thread waits for a processor on a busy machine.
            timeout: 15,
            retry_cnt: 7,
            rnr_retry: 7,
            max_rd_atomic: 4,
            ..ibv_qp_attr::default()
        };
        let mask = Mask::IBV_QP_STATE
            | Mask::IBV_QP_TIMEOUT
            | Mask::IBV_QP_RETRY_CNT
            | Mask::IBV_QP_RNR_RETRY
            | Mask::IBV_QP_SQ_PSN
            | Mask::IBV_QP_MAX_QP_RD_ATOMIC;
        assert_eq!(self.modify(attributes, mask), 0);
    }

    /// Posts a request. Returns the errno, or 0.
    pub(super) fn post(&self, id: u64, opcode: ibv_wr_opcode, local: Bytes, remote: Bytes) -> i32 {
        let mut piece = local.piece();
        // SAFETY: plain data that is all zeroes for a request without data.
        let mut request: ibv_send_wr = unsafe { zeroed() };
        request.wr_id = id;
        request.sg_list = &raw mut piece;
        request.num_sge = i32::from(local.length > 0);
        request.opcode = opcode;
        if opcode == ibv_wr_opcode::IBV_WR_ATOMIC_FETCH_AND_ADD
            || opcode == ibv_wr_opcode::IBV_WR_ATOMIC_CMP_AND_SWP
        {
            request.wr.atomic.remote_addr = remote.address;
            request.wr.atomic.rkey = remote.key;
            request.wr.atomic.compare_add = 1;
        } else {
            request.wr.rdma.remote_addr = remote.address;
            request.wr.rdma.rkey = remote.key;
        }
        let mut bad = ptr::null_mut();
        // SAFETY: the request and what it points to are valid during the call.
        unsafe { ibv_post_send(self.qp, &mut request, &mut bad) }
    }

    /// Posts a receive request. Returns the errno, or 0.
    pub(super) fn post_receive(&self, id: u64, local: Bytes) -> i32 {
        let mut piece = local.piece();
        // SAFETY: zeros are a valid value.
        let mut request: ibv_recv_wr = unsafe { zeroed() };
        request.wr_id = id;
        request.sg_list = &raw mut piece;
        request.num_sge = i32::from(local.length > 0);
        let mut bad = ptr::null_mut();
        // SAFETY: the request and what it points to are valid during the call.
        unsafe { ibv_post_recv(self.qp, &mut request, &mut bad) }
    }

    /// Takes the next completion if there is one. Returns the result of `ibv_poll_cq` if it is an
    /// error.
    pub(super) fn poll(&self) -> Result<Option<ibv_wc>, i32> {
        // SAFETY: zeros are a valid completion, and there is room for one.
        unsafe {
            let mut completion: ibv_wc = zeroed();
            match ibv_poll_cq(self.cq, 1, &mut completion) {
                0 => Ok(None),
                1 => Ok(Some(completion)),
                other => Err(other),
            }
        }
    }

    /// Waits for the next completion. Returns the `wr_id` and the status of its request.
    #[track_caller]
    pub(super) fn complete(&self) -> (u64, ibv_wc_status) {
        let end = Instant::now() + LOST;
        loop {
            if let Some(completion) = self.poll().expect("a completion or none") {
                return (completion.wr_id, completion.status);
            }
            assert!(Instant::now() < end, "no completion came");
        }
    }
}

impl Drop for End<'_> {
    fn drop(&mut self) {
        // SAFETY: no code uses these objects any more.
        unsafe {
            assert_eq!(ibv_destroy_qp(self.qp), 0);
            assert_eq!(ibv_destroy_cq(self.cq), 0);
            assert_eq!(ibv_destroy_comp_channel(self.channel), 0);
        }
    }
}

impl Bytes {
    /// Zero bytes.
    pub(super) const NONE: Self = Self {
        address: 0,
        length: 0,
        key: 0,
    };

    fn piece(self) -> ibv_sge {
        ibv_sge {
            addr: self.address,
            length: self.length,
            lkey: self.key,
        }
    }
}
