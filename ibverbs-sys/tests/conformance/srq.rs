//! Shared receive queues.

use std::ffi::c_int;
use std::ptr;

use ibverbs_sys::ibv_qp_type as Service;
use ibverbs_sys::*;

use crate::harness::*;

pub(crate) fn cases() -> Vec<Case> {
    cases![
        a_queue_has_at_least_the_requested_capacity,
        a_query_returns_the_capacities,
        queue_beyond_the_limit_is_refused,
        elements_beyond_the_limit_are_refused,
        two_queue_pairs_share_the_queue,
        datagrams_use_it,
        a_queue_pair_with_a_shared_queue_accepts_no_receives,
        an_unreliable_connection_cannot_use_the_queue,
        requests_are_used_in_order,
        list_stops_at_the_first_bad_request,
        full_queue_refuses,
        queue_of_a_queue_pair_is_busy,
        limit_raises_an_event_once,
        limit_of_zero_raises_nothing,
        limit_is_queried,
        limit_beyond_the_queue_is_refused,
        limit_that_is_undercut_raises_with_the_next_request,
        resize_to_more,
        resize_below_the_requests_is_refused,
        requests_survive_a_resize_that_is_refused,
        the_last_wqe_event_is_raised,
        requests_survive_an_error_of_a_queue_pair,
        number_is_only_of_xrc,
        extended_basic_queue_works,
        extended_unknown_mask_is_refused,
        tag_matching_is_refused_or_claimed,
    ]
}

fn a_queue_has_at_least_the_requested_capacity(device: &Device) {
    let pd = Pd::new(device);
    let mut attr = ibv_srq_init_attr {
        attr: ibv_srq_attr {
            max_wr: 33,
            max_sge: 3,
            srq_limit: 0,
        },
        ..Default::default()
    };
    let raw = unsafe { ibv_create_srq(pd.raw(), &mut attr) }.succeeds("ibv_create_srq");
    let _srq = Srq::from_raw(&pd, raw);
    assert!(attr.attr.max_wr >= 33, "max_wr is {}", attr.attr.max_wr);
    assert!(attr.attr.max_sge >= 3, "max_sge is {}", attr.attr.max_sge);
}

fn a_query_returns_the_capacities(device: &Device) {
    let attr = Srq::new(&Pd::new(device), 20).query();
    assert!(attr.max_wr >= 20 && attr.max_sge >= 4);
    equal("srq_limit", attr.srq_limit, 0);
}

fn queue_beyond_the_limit_is_refused(device: &Device) {
    let beyond = device.attr().max_srq_wr as u32 + 1;
    Srq::create(&Pd::new(device), beyond, 1)
        .map(drop)
        .fails("ibv_create_srq", &[libc::EINVAL, libc::ENOMEM]);
}

fn elements_beyond_the_limit_are_refused(device: &Device) {
    let beyond = device.attr().max_srq_sge as u32 + 1;
    Srq::create(&Pd::new(device), 1, beyond)
        .map(drop)
        .fails("ibv_create_srq", &[libc::EINVAL]);
}

/// A shared receive queue, and pairs whose second ends use the queue.
struct Shared {
    pairs: Vec<Pair>,
    mr: Mr,
    srq: Srq,
}

impl Shared {
    fn new(device: &Device, count: usize) -> Self {
        let pd = Pd::new(device);
        let srq = Srq::new(&pd, 16);
        let plan = Plan::new(Service::IBV_QPT_RC);
        let mut sharing = plan.clone();
        sharing.srq = Some(srq.clone());
        let pairs = (0..count)
            .map(|_| {
                let (a, b) = (End::new(&pd, &plan, 4096), End::new(&pd, &sharing, 4096));
                a.qp.connect(b.qp.number());
                b.qp.connect(a.qp.number());
                Pair {
                    a,
                    b,
                    pd: pd.clone(),
                }
            })
            .collect();
        let mr = Mr::new(&pd, 4096, ALL_ACCESS);
        Self { pairs, mr, srq }
    }

    fn receive(&self, id: u64) {
        self.srq.receive(id, &[self.mr.sge(id as usize * 16, 16)]);
    }

    fn send(&self, pair: usize, value: u64) {
        let a = &self.pairs[pair].a;
        a.mr.set_u64(0, value);
        a.qp.post(a.send(0, 8));
        a.cq.success(1);
    }
}

fn two_queue_pairs_share_the_queue(device: &Device) {
    let shared = Shared::new(device, 2);
    (0..4).for_each(|id| shared.receive(id));
    for (id, pair) in [0, 1, 1, 0].into_iter().enumerate() {
        shared.send(pair, 100 + id as u64);
        let received = shared.pairs[pair].b.cq.success(id as u64);
        equal(
            "the queue pair",
            received.qp_num,
            shared.pairs[pair].b.qp.number(),
        );
        equal("the message", shared.mr.u64(id * 16), 100 + id as u64);
    }
}

fn datagrams_use_it(device: &Device) {
    let pd = Pd::new(device);
    let srq = Srq::new(&pd, 4);
    let mut plan = Plan::new(Service::IBV_QPT_UD);
    plan.srq = Some(srq.clone());
    let end = End::new(&pd, &plan, 4096);
    end.qp.connect(0);
    let ah = Ah::own(&pd);
    srq.receive(3, &[end.mr.sge(100, 100)]);
    end.mr.write(0, b"shared");
    end.qp
        .post(end.send(0, 6).to(ah.raw(), end.qp.number(), QKEY));
    let mut ids = [end.cq.next(), end.cq.next()].map(|wc| wc.wr_id);
    ids.sort_unstable();
    equal("the requests", ids, [1, 3]);
    equal("the message", end.mr.read(100 + GRH, 6), b"shared".to_vec());
}

fn a_queue_pair_with_a_shared_queue_accepts_no_receives(device: &Device) {
    // IBTA 11.4.1: Post Receive on a QP with an SRQ is an immediate error.
    let shared = Shared::new(device, 1);
    let posted = shared.pairs[0]
        .b
        .qp
        .try_receive(&[Receive::from((1, &shared.mr, 0, 8))]);
    posted
        .map_err(|(number, _)| number)
        .fails("ibv_post_recv", &[libc::EINVAL]);
}

fn an_unreliable_connection_cannot_use_the_queue(device: &Device) {
    // The manual of ibv_create_qp: only RC and UD.
    let pd = Pd::new(device);
    let mut plan = Plan::new(Service::IBV_QPT_UC);
    plan.srq = Some(Srq::new(&pd, 4));
    let cq = Cq::new(device, 4);
    Qp::create(&pd, &cq, &cq, &plan)
        .map(drop)
        .fails("ibv_create_qp", &[libc::EINVAL]);
}

fn requests_are_used_in_order(device: &Device) {
    let shared = Shared::new(device, 1);
    (0..8).for_each(|id| shared.receive(id));
    for id in 0..8 {
        shared.send(0, id);
        shared.pairs[0].b.cq.success(id);
    }
}

fn list_stops_at_the_first_bad_request(device: &Device) {
    let shared = Shared::new(device, 1);
    let most = shared.srq.query().max_sge as usize;
    let mut requests: Vec<_> = (0..3)
        .map(|id| Receive::from((id, &shared.mr, 0, 8)))
        .collect();
    requests[1].sges = vec![shared.mr.sge(0, 1); most + 1];
    let (number, at) = shared.srq.try_receive(&requests).expect_err("it must fail");
    assert!([libc::EINVAL, libc::ENOMEM].contains(&number), "{number}");
    equal("the bad request", at, 1);
    shared.send(0, 1);
    shared.pairs[0].b.cq.success(0);
}

fn full_queue_refuses(device: &Device) {
    let shared = Shared::new(device, 1);
    let room = shared.srq.query().max_wr as usize;
    let requests = vec![Receive::from((0, &shared.mr, 0, 8)); room + 1];
    let (number, at) = shared.srq.try_receive(&requests).expect_err("it must fail");
    equal("the error", number, libc::ENOMEM);
    equal("the first that does not fit", at, room);
}

fn queue_of_a_queue_pair_is_busy(device: &Device) {
    let shared = Shared::new(device, 1);
    unsafe { ibv_destroy_srq(shared.srq.raw()) }.fails("ibv_destroy_srq", &[libc::EBUSY]);
}

fn limit_raises_an_event_once(device: &Device) {
    let shared = Shared::new(device, 1);
    (0..4).for_each(|id| shared.receive(id));
    shared.srq.arm(3);
    shared.send(0, 0);
    assert!(
        !device.has_event(QUIET),
        "three are left, which is not below the limit"
    );
    shared.send(0, 1);
    let event = device.event_of(ibv_event_type::IBV_EVENT_SRQ_LIMIT_REACHED);
    equal("the queue", unsafe { event.element.srq }, shared.srq.raw());
    shared.send(0, 2);
    assert!(!device.has_event(QUIET), "it was armed for one event");
    equal("srq_limit", shared.srq.query().srq_limit, 0);
}

fn limit_of_zero_raises_nothing(device: &Device) {
    let shared = Shared::new(device, 1);
    (0..4).for_each(|id| shared.receive(id));
    shared.srq.arm(3);
    shared.srq.arm(0);
    (0..4).for_each(|id| shared.send(0, id));
    assert!(!device.has_event(QUIET), "an event came");
}

fn limit_is_queried(device: &Device) {
    let shared = Shared::new(device, 1);
    (0..4).for_each(|id| shared.receive(id));
    shared.srq.arm(2);
    equal("srq_limit", shared.srq.query().srq_limit, 2);
}

fn limit_beyond_the_queue_is_refused(device: &Device) {
    let srq = Srq::new(&Pd::new(device), 4);
    let attr = ibv_srq_attr {
        srq_limit: srq.query().max_wr + 1,
        ..Default::default()
    };
    srq.modify(attr, ibv_srq_attr_mask::IBV_SRQ_LIMIT)
        .fails("ibv_modify_srq", &[libc::EINVAL]);
}

fn limit_that_is_undercut_raises_with_the_next_request(device: &Device) {
    // Immediately, or with the next request that is taken: the limit stays undercut.
    let shared = Shared::new(device, 1);
    shared.receive(0);
    shared.srq.arm(4);
    shared.send(0, 1);
    device.event_of(ibv_event_type::IBV_EVENT_SRQ_LIMIT_REACHED);
}

fn resize(srq: &Srq, max_wr: u32) -> c_int {
    let attr = ibv_srq_attr {
        max_wr,
        ..Default::default()
    };
    srq.modify(attr, ibv_srq_attr_mask::IBV_SRQ_MAX_WR)
}

fn resize_to_more(device: &Device) {
    device.needs(
        ibv_device_cap_flags::IBV_DEVICE_SRQ_RESIZE,
        "IBV_DEVICE_SRQ_RESIZE",
    );
    let shared = Shared::new(device, 1);
    (0..3).for_each(|id| shared.receive(id));
    resize(&shared.srq, 200).succeeds("ibv_modify_srq(MAX_WR)");
    assert!(shared.srq.query().max_wr >= 200);
    (0..3).for_each(|id| {
        shared.send(0, id);
        shared.pairs[0].b.cq.success(id);
    });
}

fn resize_below_the_requests_is_refused(device: &Device) {
    device.needs(
        ibv_device_cap_flags::IBV_DEVICE_SRQ_RESIZE,
        "IBV_DEVICE_SRQ_RESIZE",
    );
    let shared = Shared::new(device, 1);
    (0..10).for_each(|id| shared.receive(id));
    let result = resize(&shared.srq, 2);
    if result != 0 || shared.srq.query().max_wr < 10 {
        result.fails("ibv_modify_srq(MAX_WR)", &[libc::EINVAL, libc::ENOMEM]);
    }
}

fn requests_survive_a_resize_that_is_refused(device: &Device) {
    device.needs(
        ibv_device_cap_flags::IBV_DEVICE_SRQ_RESIZE,
        "IBV_DEVICE_SRQ_RESIZE",
    );
    let shared = Shared::new(device, 1);
    (0..10).for_each(|id| shared.receive(id));
    resize(&shared.srq, 2);
    (0..10).for_each(|id| {
        shared.send(0, id);
        shared.pairs[0].b.cq.success(id);
    });
}

fn the_last_wqe_event_is_raised(device: &Device) {
    // IBTA 11.6.3.1, Last WQE Reached: this event is raised when a QP on an SRQ, in the state ERR,
    // takes no more requests.
    let shared = Shared::new(device, 1);
    shared.receive(0);
    let qp = &shared.pairs[0].b.qp;
    qp.enter(ibv_qp_state::IBV_QPS_ERR).succeeds("to ERR");
    let event = device.event_of(ibv_event_type::IBV_EVENT_QP_LAST_WQE_REACHED);
    equal("the queue pair", unsafe { event.element.qp }, qp.raw());
}

fn requests_survive_an_error_of_a_queue_pair(device: &Device) {
    // IBTA 10.2.9: requests in an SRQ are not flushed when one of its queue pairs fails.
    let shared = Shared::new(device, 2);
    shared.receive(0);
    let qp = &shared.pairs[0].b.qp;
    qp.enter(ibv_qp_state::IBV_QPS_ERR).succeeds("to ERR");
    shared.pairs[0].b.cq.stays_empty();
    shared.send(1, 5);
    shared.pairs[1].b.cq.success(0);
    while device.has_event(QUIET) {
        device.event();
    }
}

fn number_is_only_of_xrc(device: &Device) {
    let srq = Srq::new(&Pd::new(device), 4);
    let mut number = 0;
    let result = unsafe { ibv_get_srq_num(srq.raw(), &mut number) };
    assert!(result != 0, "a basic queue has the number {number}");
}

fn extended(pd: &Pd, srq_type: ibv_srq_type, comp_mask: u32) -> *mut ibv_srq {
    let mut attr = ibv_srq_init_attr_ex {
        attr: ibv_srq_attr {
            max_wr: 4,
            max_sge: 1,
            srq_limit: 0,
        },
        comp_mask,
        srq_type,
        pd: pd.raw(),
        cq: ptr::null_mut(),
        ..Default::default()
    };
    unsafe { ibv_create_srq_ex(pd.device().context(), &mut attr) }
}

fn extended_basic_queue_works(device: &Device) {
    let pd = Pd::new(device);
    let mask = ibv_srq_init_attr_mask::IBV_SRQ_INIT_ATTR_TYPE
        | ibv_srq_init_attr_mask::IBV_SRQ_INIT_ATTR_PD;
    let raw = extended(&pd, ibv_srq_type::IBV_SRQT_BASIC, mask.0);
    let srq = Srq::from_raw(&pd, raw.supported("ibv_create_srq_ex"));
    let mr = Mr::new(&pd, 4096, ALL_ACCESS);
    srq.receive(1, &[mr.sge(0, 8)]);
    assert!(srq.query().max_wr >= 4);
}

fn extended_unknown_mask_is_refused(device: &Device) {
    let pd = Pd::new(device);
    let mask = ibv_srq_init_attr_mask::IBV_SRQ_INIT_ATTR_PD.0 | 1 << 30;
    extended(&pd, ibv_srq_type::IBV_SRQT_BASIC, mask).fails(
        "ibv_create_srq_ex",
        &[libc::EINVAL, libc::EOPNOTSUPP, libc::ENOSYS],
    );
}

fn tag_matching_is_refused_or_claimed(device: &Device) {
    if device.attr_ex().tm_caps.max_num_tags != 0 {
        ignore("the device has tag matching, which is not looked at here");
    }
    let pd = Pd::new(device);
    let mask = ibv_srq_init_attr_mask::IBV_SRQ_INIT_ATTR_TYPE
        | ibv_srq_init_attr_mask::IBV_SRQ_INIT_ATTR_PD;
    extended(&pd, ibv_srq_type::IBV_SRQT_TM, mask.0).fails(
        "ibv_create_srq_ex",
        &[libc::EINVAL, libc::EOPNOTSUPP, libc::ENOSYS],
    );
}
