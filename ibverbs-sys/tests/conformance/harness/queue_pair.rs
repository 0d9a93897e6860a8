//! Queue pairs and their way through the states.

use std::ffi::c_int;
use std::rc::Rc;
use std::time::Instant;

use ibverbs_sys::ibv_qp_attr_mask as Mask;
use ibverbs_sys::ibv_qp_state as State;
use ibverbs_sys::ibv_qp_type as Service;
use ibverbs_sys::*;

use super::check::{Outcome, pointer, status};
use super::completion::Cq;
use super::device::{Device, PORT, max_wait, must};
use super::memory::{ALL_ACCESS, Pd};
use super::request::{Receive, Request};
use super::srq::Srq;

/// The Q_Key of datagram queue pairs here.
pub(crate) const QKEY: u32 = 0x1111_1111;

/// The attributes with which a queue pair is created and connected.
#[derive(Clone)]
pub(crate) struct Plan {
    pub(crate) service: Service,
    pub(crate) cap: ibv_qp_cap,
    pub(crate) all_signaled: bool,
    pub(crate) srq: Option<Srq>,
    pub(crate) access: ibv_access_flags,
    /// `None` stands for the value of the port.
    pub(crate) mtu: Option<ibv_mtu>,
    pub(crate) send_psn: u32,
    pub(crate) receive_psn: u32,
    pub(crate) timeout: u8,
    pub(crate) retry_count: u8,
    pub(crate) rnr_retry: u8,
    pub(crate) min_rnr_timer: u8,
    /// As initiator.
    pub(crate) reads: u8,
    /// As target.
    pub(crate) served_reads: u8,
    pub(crate) qkey: u32,
}

impl Plan {
    pub(crate) fn new(service: Service) -> Self {
        Self {
            service,
            cap: ibv_qp_cap {
                max_send_wr: 16,
                max_recv_wr: 16,
                max_send_sge: 4,
                max_recv_sge: 4,
                max_inline_data: 64,
            },
            all_signaled: false,
            srq: None,
            access: ALL_ACCESS,
            mtu: None,
            send_psn: 0x0012_3456,
            receive_psn: 0x0012_3456,
            // 0.27 s: a machine may have other things to do.
            timeout: 16,
            retry_count: 7,
            rnr_retry: 7,
            min_rnr_timer: 1,
            reads: 4,
            served_reads: 4,
            qkey: QKEY,
        }
    }

    /// Returns the access flags that the service supports.
    fn access(&self) -> ibv_access_flags {
        match self.service {
            Service::IBV_QPT_UC => self.access & ibv_access_flags::IBV_ACCESS_REMOTE_WRITE,
            _ => self.access,
        }
    }

    /// Attributes of the transition from RESET to INIT.
    pub(crate) fn init(&self) -> (ibv_qp_attr, Mask) {
        let attr = ibv_qp_attr {
            qp_state: State::IBV_QPS_INIT,
            port_num: PORT,
            qkey: self.qkey,
            qp_access_flags: self.access().0,
            ..Default::default()
        };
        let own = match self.service {
            Service::IBV_QPT_UD => Mask::IBV_QP_QKEY,
            _ => Mask::IBV_QP_ACCESS_FLAGS,
        };
        (
            attr,
            Mask::IBV_QP_STATE | Mask::IBV_QP_PKEY_INDEX | Mask::IBV_QP_PORT | own,
        )
    }

    /// Attributes of the transition from INIT to RTR.
    pub(crate) fn ready_to_receive(&self, device: &Device, peer: u32) -> (ibv_qp_attr, Mask) {
        let attr = ibv_qp_attr {
            qp_state: State::IBV_QPS_RTR,
            path_mtu: self.mtu.unwrap_or(device.port().active_mtu),
            dest_qp_num: peer,
            rq_psn: self.receive_psn,
            max_dest_rd_atomic: self.served_reads,
            min_rnr_timer: self.min_rnr_timer,
            ah_attr: path(device),
            ..Default::default()
        };
        let mut mask = Mask::IBV_QP_STATE;
        if self.service != Service::IBV_QPT_UD {
            mask |= Mask::IBV_QP_AV
                | Mask::IBV_QP_PATH_MTU
                | Mask::IBV_QP_DEST_QPN
                | Mask::IBV_QP_RQ_PSN;
        }
        if matches!(
            self.service,
            Service::IBV_QPT_RC | Service::IBV_QPT_XRC_RECV
        ) {
            mask |= Mask::IBV_QP_MAX_DEST_RD_ATOMIC | Mask::IBV_QP_MIN_RNR_TIMER;
        }
        (attr, mask)
    }

    /// Attributes of the transition from RTR to RTS.
    pub(crate) fn ready_to_send(&self) -> (ibv_qp_attr, Mask) {
        let attr = ibv_qp_attr {
            qp_state: State::IBV_QPS_RTS,
            sq_psn: self.send_psn,
            timeout: self.timeout,
            retry_cnt: self.retry_count,
            rnr_retry: self.rnr_retry,
            max_rd_atomic: self.reads,
            ..Default::default()
        };
        let mut mask = Mask::IBV_QP_STATE | Mask::IBV_QP_SQ_PSN;
        if matches!(
            self.service,
            Service::IBV_QPT_RC | Service::IBV_QPT_XRC_SEND | Service::IBV_QPT_XRC_RECV
        ) {
            mask |= Mask::IBV_QP_TIMEOUT;
        }
        if matches!(
            self.service,
            Service::IBV_QPT_RC | Service::IBV_QPT_XRC_SEND
        ) {
            mask |= Mask::IBV_QP_RETRY_CNT | Mask::IBV_QP_RNR_RETRY | Mask::IBV_QP_MAX_QP_RD_ATOMIC;
        }
        (attr, mask)
    }
}

/// Returns the address vector of the device itself.
pub(crate) fn path(device: &Device) -> ibv_ah_attr {
    let gid = device.gid();
    ibv_ah_attr {
        grh: ibv_global_route {
            dgid: gid.gid,
            sgid_index: gid.gid_index as u8,
            hop_limit: 64,
            ..Default::default()
        },
        is_global: 1,
        dlid: device.port().lid,
        port_num: PORT,
        ..Default::default()
    }
}

/// A queue pair. Clones refer to the same queue pair.
#[derive(Clone)]
pub(crate) struct Qp(Rc<QpHandle>);

struct QpHandle {
    raw: *mut ibv_qp,
    device: Device,
    plan: Plan,
    // The objects of the queue pair, which are destroyed after the queue pair.
    _pd: Pd,
    _queues: [Cq; 2],
}

impl Qp {
    pub(crate) fn new(pd: &Pd, cq: &Cq, plan: &Plan) -> Self {
        Self::create(pd, cq, cq, plan).succeeds("ibv_create_qp")
    }

    pub(crate) fn create(pd: &Pd, send: &Cq, receive: &Cq, plan: &Plan) -> Result<Self, c_int> {
        let mut attr = init_attr(send, receive, plan);
        let raw = pointer(unsafe { ibv_create_qp(pd.raw(), &mut attr) })?;
        Ok(Self::from_raw(pd, send, receive, plan, raw, attr.cap))
    }

    /// Takes over a queue pair that got these capacities.
    pub(crate) fn from_raw(
        pd: &Pd,
        send: &Cq,
        receive: &Cq,
        plan: &Plan,
        raw: *mut ibv_qp,
        cap: ibv_qp_cap,
    ) -> Self {
        Self(Rc::new(QpHandle {
            raw,
            device: pd.device().clone(),
            plan: Plan {
                cap,
                ..plan.clone()
            },
            _pd: pd.clone(),
            _queues: [send.clone(), receive.clone()],
        }))
    }

    pub(crate) fn raw(&self) -> *mut ibv_qp {
        self.0.raw
    }

    pub(crate) fn number(&self) -> u32 {
        unsafe { (*self.raw()).qp_num }
    }

    /// Returns the capacities that the device granted.
    pub(crate) fn cap(&self) -> ibv_qp_cap {
        self.0.plan.cap
    }

    pub(crate) fn plan(&self) -> &Plan {
        &self.0.plan
    }

    pub(crate) fn modify(&self, attr: &ibv_qp_attr, mask: Mask) -> Result<(), c_int> {
        status(unsafe { ibv_modify_qp(self.raw(), &mut { *attr }, mask.0 as c_int) })
    }

    /// Moves the queue pair to the state `state` without other attributes.
    pub(crate) fn enter(&self, state: State) -> Result<(), c_int> {
        let attr = ibv_qp_attr {
            qp_state: state,
            ..Default::default()
        };
        self.modify(&attr, Mask::IBV_QP_STATE)
    }

    #[track_caller]
    pub(crate) fn to_init(&self) {
        let (attr, mask) = self.plan().init();
        self.modify(&attr, mask).succeeds("RESET to INIT");
    }

    #[track_caller]
    pub(crate) fn to_rtr(&self, peer: u32) {
        let (attr, mask) = self.plan().ready_to_receive(&self.0.device, peer);
        self.modify(&attr, mask).succeeds("INIT to RTR");
    }

    #[track_caller]
    pub(crate) fn to_rts(&self) {
        let (attr, mask) = self.plan().ready_to_send();
        self.modify(&attr, mask).succeeds("RTR to RTS");
    }

    /// Moves the queue pair from RESET to RTS, connected to `peer`.
    #[track_caller]
    pub(crate) fn connect(&self, peer: u32) {
        self.connect_by(self.plan(), peer);
    }

    /// Moves the queue pair from RESET to RTS with the attributes of `plan`.
    #[track_caller]
    pub(crate) fn connect_by(&self, plan: &Plan, peer: u32) {
        let (attr, mask) = plan.init();
        self.modify(&attr, mask).succeeds("RESET to INIT");
        let (attr, mask) = plan.ready_to_receive(&self.0.device, peer);
        self.modify(&attr, mask).succeeds("INIT to RTR");
        let (attr, mask) = plan.ready_to_send();
        self.modify(&attr, mask).succeeds("RTR to RTS");
    }

    #[track_caller]
    pub(crate) fn query(&self) -> (ibv_qp_attr, ibv_qp_init_attr) {
        let (mut attr, mut init) = (ibv_qp_attr::default(), ibv_qp_init_attr::default());
        let everything = (Mask::IBV_QP_RATE_LIMIT.0 - 1) & 0x001f_ffff;
        unsafe { ibv_query_qp(self.raw(), &mut attr, everything as c_int, &mut init) }
            .succeeds("ibv_query_qp");
        (attr, init)
    }

    #[track_caller]
    pub(crate) fn state(&self) -> State {
        self.query().0.qp_state
    }

    /// Waits until the queue pair is in the state `state`. Fails the case after the maximum wait.
    #[track_caller]
    pub(crate) fn becomes(&self, state: State) {
        let end = Instant::now() + max_wait();
        let mut found = self.state();
        while found != state && Instant::now() < end {
            std::thread::sleep(std::time::Duration::from_millis(1));
            found = self.state();
        }
        assert!(
            found == state,
            "the queue pair is in {found:?}, not in {state:?}"
        );
    }

    pub(crate) fn try_post(&self, request: Request) -> Result<(), c_int> {
        Request::post_all(self, &mut [request]).map_err(|(number, _)| number)
    }

    #[track_caller]
    pub(crate) fn post(&self, request: Request) {
        self.try_post(request).succeeds("ibv_post_send");
    }

    /// Posts receives. An error contains the error number and the index of the refused request.
    pub(crate) fn try_receive(&self, requests: &[Receive]) -> Result<(), (c_int, usize)> {
        let mut requests = requests.to_vec();
        let mut list = Receive::chain(&mut requests);
        let mut bad = std::ptr::null_mut();
        let result = unsafe { ibv_post_recv(self.raw(), list.as_mut_ptr(), &mut bad) };
        status(result).map_err(|number| {
            let at = list.iter().position(|wr| std::ptr::eq(wr, bad));
            (number, at.unwrap_or(usize::MAX))
        })
    }

    #[track_caller]
    pub(crate) fn receive(&self, id: u64, sges: &[ibv_sge]) {
        self.try_receive(&[Receive::new(id, sges)])
            .map_err(|(number, _)| number)
            .succeeds("ibv_post_recv");
    }
}

impl Drop for QpHandle {
    fn drop(&mut self) {
        must("ibv_destroy_qp", unsafe { ibv_destroy_qp(self.raw) });
    }
}

/// Returns the attributes with which a queue pair of the plan is created.
pub(crate) fn init_attr(send: &Cq, receive: &Cq, plan: &Plan) -> ibv_qp_init_attr {
    ibv_qp_init_attr {
        send_cq: send.raw(),
        recv_cq: receive.raw(),
        srq: plan.srq.as_ref().map_or(std::ptr::null_mut(), Srq::raw),
        cap: plan.cap,
        qp_type: plan.service,
        sq_sig_all: plan.all_signaled.into(),
        ..Default::default()
    }
}
