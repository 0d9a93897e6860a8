//! Queue pairs: making them, asking them, filling their queues.

use ibverbs_sys::ibv_qp_attr_mask as Mask;
use ibverbs_sys::ibv_qp_state as State;
use ibverbs_sys::ibv_qp_type as Service;
use ibverbs_sys::*;

use crate::harness::*;

pub(crate) fn cases() -> Vec<Case> {
    cases![
        capacities_are_at_least_the_requested_ones,
        queue_pair_starts_in_reset,
        a_queue_pair_contains_its_creation_attributes,
        numbers_differ_and_have_24_bits,
        many_queue_pairs_exist_at_once,
        requests_beyond_the_limit_are_refused,
        receives_beyond_the_limit_are_refused,
        elements_beyond_the_limit_are_refused,
        unknown_service_is_refused,
        a_queue_pair_without_queues_is_created,
        a_query_returns_the_capacities,
        a_query_returns_the_connection,
        a_query_returns_the_creation_attributes,
        query_of_every_state,
        full_send_queue_refuses,
        full_receive_queue_refuses,
        send_with_too_many_elements_is_refused,
        receive_with_too_many_elements_is_refused,
        inline_data_beyond_the_capacity_is_refused,
        unknown_opcode_is_refused,
        list_stops_at_the_first_bad_send,
        list_stops_at_the_first_bad_receive,
        send_in_reset_is_refused,
        send_in_init_is_refused,
        send_in_ready_to_receive_is_refused,
        receive_in_reset_is_refused,
        queue_pair_with_requests_can_be_destroyed,
        queue_pair_of_a_busy_peer_can_be_destroyed,
        extended_creation_creates_a_plain_queue_pair,
        extended_creation_needs_a_domain,
        extended_creation_refuses_an_unknown_mask,
        data_order_can_be_queried,
        enhanced_connection_options_can_be_queried,
        rate_limit_as_claimed,
    ]
}

fn rc() -> Plan {
    Plan::new(Service::IBV_QPT_RC)
}

fn end(device: &Device, plan: &Plan) -> End {
    End::new(&Pd::new(device), plan, 4096)
}

fn capacities_are_at_least_the_requested_ones(device: &Device) {
    let plan = rc();
    let (asked, granted) = (plan.cap, end(device, &plan).qp.cap());
    assert!(granted.max_send_wr >= asked.max_send_wr);
    assert!(granted.max_recv_wr >= asked.max_recv_wr);
    assert!(granted.max_send_sge >= asked.max_send_sge);
    assert!(granted.max_recv_sge >= asked.max_recv_sge);
    assert!(granted.max_inline_data >= asked.max_inline_data);
}

fn queue_pair_starts_in_reset(device: &Device) {
    let end = end(device, &rc());
    equal("the state", end.qp.state(), State::IBV_QPS_RESET);
    equal(
        "the state",
        unsafe { (*end.qp.raw()).state },
        State::IBV_QPS_RESET,
    );
}

fn a_queue_pair_contains_its_creation_attributes(device: &Device) {
    let pd = Pd::new(device);
    let (sends, receives) = (Cq::new(device, 4), Cq::new(device, 4));
    let qp = Qp::create(&pd, &sends, &receives, &rc()).succeeds("ibv_create_qp");
    let raw = unsafe { &*qp.raw() };
    equal("context", raw.context, device.context());
    equal("pd", raw.pd, pd.raw());
    equal("send_cq", raw.send_cq, sends.raw());
    equal("recv_cq", raw.recv_cq, receives.raw());
    assert!(raw.srq.is_null());
    equal("qp_type", raw.qp_type, Service::IBV_QPT_RC);
}

fn numbers_differ_and_have_24_bits(device: &Device) {
    let (pd, cq) = (Pd::new(device), Cq::new(device, 4));
    let pairs: Vec<_> = (0..40).map(|_| Qp::new(&pd, &cq, &rc())).collect();
    let mut numbers: Vec<_> = pairs.iter().map(Qp::number).collect();
    // 0 and 1 are the management's, 0xffffff is multicast.
    assert!(
        numbers
            .iter()
            .all(|number| (2..0x00ff_ffff).contains(number)),
        "{numbers:x?}"
    );
    numbers.sort_unstable();
    numbers.dedup();
    equal(
        "the number of different numbers",
        numbers.len(),
        pairs.len(),
    );
}

fn many_queue_pairs_exist_at_once(device: &Device) {
    let (pd, cq) = (Pd::new(device), Cq::new(device, 4));
    let pairs: Vec<_> = (0..200).map(|_| Qp::new(&pd, &cq, &rc())).collect();
    for qp in &pairs {
        qp.to_init();
    }
}

#[track_caller]
fn refused(device: &Device, change: impl Fn(&mut ibv_qp_cap)) {
    let (pd, cq) = (Pd::new(device), Cq::new(device, 4));
    let mut plan = rc();
    change(&mut plan.cap);
    let result = Qp::create(&pd, &cq, &cq, &plan).map(drop);
    result.fails("ibv_create_qp", &[libc::EINVAL, libc::ENOMEM]);
}

fn requests_beyond_the_limit_are_refused(device: &Device) {
    refused(device, |cap| {
        cap.max_send_wr = device.attr().max_qp_wr as u32 + 1;
    });
}

fn receives_beyond_the_limit_are_refused(device: &Device) {
    refused(device, |cap| {
        cap.max_recv_wr = device.attr().max_qp_wr as u32 + 1;
    });
}

fn elements_beyond_the_limit_are_refused(device: &Device) {
    refused(device, |cap| {
        cap.max_send_sge = device.attr().max_sge as u32 + 1;
    });
    refused(device, |cap| {
        cap.max_recv_sge = device.attr().max_sge as u32 + 1;
    });
}

fn unknown_service_is_refused(device: &Device) {
    let (pd, cq) = (Pd::new(device), Cq::new(device, 4));
    let plan = Plan::new(ibv_qp_type(77));
    Qp::create(&pd, &cq, &cq, &plan).map(drop).fails(
        "ibv_create_qp",
        &[libc::EINVAL, libc::EOPNOTSUPP, libc::ENOSYS],
    );
}

fn a_queue_pair_without_queues_is_created(device: &Device) {
    // A queue pair that only executes the peer's RDMA operations: no request is posted.
    let mut plan = rc();
    plan.cap = ibv_qp_cap::default();
    let passive = plan.clone();
    let pair = Pair::with(device, &rc(), &passive, 4096);
    pair.a.qp.post(pair.a.write(&pair.b, 0, 8));
    pair.a.cq.success(1);
}

fn a_query_returns_the_capacities(device: &Device) {
    let end = end(device, &rc());
    let (attr, init) = end.qp.query();
    let granted = end.qp.cap();
    for cap in [attr.cap, init.cap] {
        equal("max_send_wr", cap.max_send_wr, granted.max_send_wr);
        equal("max_recv_wr", cap.max_recv_wr, granted.max_recv_wr);
        equal("max_send_sge", cap.max_send_sge, granted.max_send_sge);
        equal("max_recv_sge", cap.max_recv_sge, granted.max_recv_sge);
        equal(
            "max_inline_data",
            cap.max_inline_data,
            granted.max_inline_data,
        );
    }
}

fn a_query_returns_the_connection(device: &Device) {
    let mut plan = rc();
    (plan.send_psn, plan.receive_psn) = (0x11_2233, 0x44_5566);
    (
        plan.timeout,
        plan.retry_count,
        plan.rnr_retry,
        plan.min_rnr_timer,
    ) = (15, 5, 4, 13);
    (plan.reads, plan.served_reads) = (2, 4);
    let end = end(device, &plan);
    end.qp.connect(0x00ab_cdef);
    let (attr, _) = end.qp.query();
    equal("qp_state", attr.qp_state, State::IBV_QPS_RTS);
    equal("path_mtu", attr.path_mtu, device.port().active_mtu);
    equal("dest_qp_num", attr.dest_qp_num, 0x00ab_cdef);
    equal("sq_psn", attr.sq_psn, 0x11_2233);
    equal("rq_psn", attr.rq_psn, 0x44_5566);
    equal("timeout", attr.timeout, 15);
    equal("retry_cnt", attr.retry_cnt, 5);
    equal("rnr_retry", attr.rnr_retry, 4);
    equal("min_rnr_timer", attr.min_rnr_timer, 13);
    equal("max_rd_atomic", attr.max_rd_atomic, 2);
    equal("max_dest_rd_atomic", attr.max_dest_rd_atomic, 4);
    equal(
        "qp_access_flags",
        attr.qp_access_flags & ALL_ACCESS.0 & !1,
        ALL_ACCESS.0 & !1,
    );
    equal("pkey_index", attr.pkey_index, 0);
    equal("port_num", attr.port_num, PORT);
    let (found, given) = (attr.ah_attr, path(device));
    equal("is_global", found.is_global, 1);
    equal("the GID", unsafe { found.grh.dgid.raw }, unsafe {
        given.grh.dgid.raw
    });
    equal("sgid_index", found.grh.sgid_index, given.grh.sgid_index);
    equal("hop_limit", found.grh.hop_limit, given.grh.hop_limit);
    equal("the handle's port", found.port_num, PORT);
}

fn a_query_returns_the_creation_attributes(device: &Device) {
    let mut plan = rc();
    plan.all_signaled = true;
    let end = end(device, &plan);
    let (_, init) = end.qp.query();
    equal("qp_type", init.qp_type, Service::IBV_QPT_RC);
    equal("send_cq", init.send_cq, end.cq.raw());
    equal("recv_cq", init.recv_cq, end.cq.raw());
    equal("sq_sig_all", init.sq_sig_all, 1);
    assert!(init.srq.is_null());
}

fn query_of_every_state(device: &Device) {
    let end = end(device, &rc());
    equal("the state", end.qp.state(), State::IBV_QPS_RESET);
    end.qp.to_init();
    equal("the state", end.qp.state(), State::IBV_QPS_INIT);
    end.qp.to_rtr(end.qp.number());
    equal("the state", end.qp.state(), State::IBV_QPS_RTR);
    end.qp.to_rts();
    equal("the state", end.qp.state(), State::IBV_QPS_RTS);
    equal(
        "the state",
        unsafe { (*end.qp.raw()).state },
        State::IBV_QPS_RTS,
    );
    end.qp.enter(State::IBV_QPS_ERR).succeeds("to ERR");
    equal("the state", end.qp.state(), State::IBV_QPS_ERR);
    end.qp.enter(State::IBV_QPS_RESET).succeeds("to RESET");
    equal("the state", end.qp.state(), State::IBV_QPS_RESET);
}

fn full_send_queue_refuses(device: &Device) {
    // Without a receive at the peer, nothing completes.
    let pair = Pair::rc(device);
    let room = pair.a.qp.query().0.cap.max_send_wr as usize;
    let mut requests = vec![pair.a.send(0, 8); room + 1];
    let (number, at) = Request::post_all(&pair.a.qp, &mut requests).expect_err("it must fail");
    equal("the error", number, libc::ENOMEM);
    equal("the first that does not fit", at, room);
}

fn full_receive_queue_refuses(device: &Device) {
    let pair = Pair::rc(device);
    let room = pair.a.qp.query().0.cap.max_recv_wr as usize;
    let requests = vec![Receive::from((0, &pair.a.mr, 0, 8)); room + 1];
    let (number, at) = pair.a.qp.try_receive(&requests).expect_err("it must fail");
    equal("the error", number, libc::ENOMEM);
    equal("the first that does not fit", at, room);
}

fn send_with_too_many_elements_is_refused(device: &Device) {
    let pair = Pair::rc(device);
    let sges = vec![pair.a.mr.sge(0, 1); pair.a.qp.cap().max_send_sge as usize + 1];
    pair.a
        .qp
        .try_post(Request::send(&sges))
        .fails("ibv_post_send", &[libc::EINVAL, libc::ENOMEM]);
}

fn receive_with_too_many_elements_is_refused(device: &Device) {
    let pair = Pair::rc(device);
    let sges = vec![pair.a.mr.sge(0, 1); pair.a.qp.cap().max_recv_sge as usize + 1];
    let result = pair.a.qp.try_receive(&[Receive::new(1, &sges)]);
    result
        .map_err(|(number, _)| number)
        .fails("ibv_post_recv", &[libc::EINVAL, libc::ENOMEM]);
}

fn inline_data_beyond_the_capacity_is_refused(device: &Device) {
    let pair = Pair::rc(device);
    let length = pair.a.qp.cap().max_inline_data as usize + 1;
    let send = pair.a.send(0, length).flag(ibv_send_flags::IBV_SEND_INLINE);
    pair.a
        .qp
        .try_post(send)
        .fails("ibv_post_send", &[libc::EINVAL, libc::ENOMEM]);
}

fn unknown_opcode_is_refused(device: &Device) {
    let pair = Pair::rc(device);
    let send = pair.a.send(0, 8).opcode(ibv_wr_opcode(99));
    pair.a
        .qp
        .try_post(send)
        .fails("ibv_post_send", &[libc::EINVAL, libc::EOPNOTSUPP]);
}

fn list_stops_at_the_first_bad_send(device: &Device) {
    let pair = Pair::rc(device);
    let sges = vec![pair.a.mr.sge(0, 1); pair.a.qp.cap().max_send_sge as usize + 1];
    let mut requests = [
        pair.a.write(&pair.b, 0, 8).id(1),
        Request::send(&sges).id(2),
        pair.a.write(&pair.b, 0, 8).id(3),
    ];
    let (_, at) = Request::post_all(&pair.a.qp, &mut requests).expect_err("it must fail");
    equal("the bad request", at, 1);
    pair.a.cq.success(1);
    pair.a.cq.stays_empty();
}

fn list_stops_at_the_first_bad_receive(device: &Device) {
    let pair = Pair::rc(device);
    let sges = vec![pair.b.mr.sge(0, 1); pair.b.qp.cap().max_recv_sge as usize + 1];
    let good = |id| Receive::from((id, &pair.b.mr, 0, 8));
    let requests = [good(1), Receive::new(2, &sges), good(3)];
    let (_, at) = pair.b.qp.try_receive(&requests).expect_err("it must fail");
    equal("the bad request", at, 1);
    pair.a.qp.post(pair.a.send(0, 8));
    pair.b.cq.success(1);
}

fn send_in_reset_is_refused(device: &Device) {
    // IBTA 10.8.2, 11.4.1.1: an immediate error outside RTS, SQD, SQE and ERR.
    let end = end(device, &rc());
    end.qp
        .try_post(end.send(0, 8))
        .fails("ibv_post_send", &[libc::EINVAL]);
}

fn send_in_init_is_refused(device: &Device) {
    let end = end(device, &rc());
    end.qp.to_init();
    end.qp
        .try_post(end.send(0, 8))
        .fails("ibv_post_send", &[libc::EINVAL]);
}

fn send_in_ready_to_receive_is_refused(device: &Device) {
    let end = end(device, &rc());
    end.qp.to_init();
    end.qp.to_rtr(end.qp.number());
    end.qp
        .try_post(end.send(0, 8))
        .fails("ibv_post_send", &[libc::EINVAL]);
}

fn receive_in_reset_is_refused(device: &Device) {
    let end = end(device, &rc());
    let result = end.qp.try_receive(&[Receive::from((1, &end.mr, 0, 8))]);
    result
        .map_err(|(number, _)| number)
        .fails("ibv_post_recv", &[libc::EINVAL]);
}

fn queue_pair_with_requests_can_be_destroyed(device: &Device) {
    let pair = Pair::rc(device);
    for id in 0..5 {
        pair.a.receive(id, 0, 8);
        pair.a.qp.post(pair.a.send(0, 8).id(id));
    }
    // `Pair` destroys them, and every destruction must succeed.
}

fn queue_pair_of_a_busy_peer_can_be_destroyed(device: &Device) {
    let pair = Pair::rc(device);
    for id in 0..8 {
        pair.a.qp.post(pair.a.read(&pair.b, 0, SPACE).id(id));
    }
    let Pair { a, b, pd: _pd } = pair;
    drop(b);
    drop(a);
}

fn extended(pd: *mut ibv_pd, cq: &Cq, comp_mask: u32) -> (*mut ibv_qp, ibv_qp_cap) {
    let mut attr = ibv_qp_init_attr_ex {
        send_cq: cq.raw(),
        recv_cq: cq.raw(),
        cap: rc().cap,
        qp_type: Service::IBV_QPT_RC,
        comp_mask,
        pd,
        ..Default::default()
    };
    let qp = unsafe { ibv_create_qp_ex(cq.device().context(), &mut attr) };
    (qp, attr.cap)
}

fn extended_creation_creates_a_plain_queue_pair(device: &Device) {
    let (pd, cq) = (Pd::new(device), Cq::new(device, 16));
    let mask = ibv_qp_init_attr_mask::IBV_QP_INIT_ATTR_PD.0;
    let (raw, cap) = extended(pd.raw(), &cq, mask);
    let qp = Qp::from_raw(&pd, &cq, &cq, &rc(), raw.succeeds("ibv_create_qp_ex"), cap);
    qp.connect(qp.number());
    qp.post(Request::write(&[], 0, 0));
    cq.success(1);
}

fn extended_creation_needs_a_domain(device: &Device) {
    let cq = Cq::new(device, 16);
    extended(std::ptr::null_mut(), &cq, 0)
        .0
        .fails("ibv_create_qp_ex", &[libc::EINVAL]);
}

fn extended_creation_refuses_an_unknown_mask(device: &Device) {
    let (pd, cq) = (Pd::new(device), Cq::new(device, 16));
    let mask = ibv_qp_init_attr_mask::IBV_QP_INIT_ATTR_PD.0 | 1 << 30;
    extended(pd.raw(), &cq, mask).0.fails(
        "ibv_create_qp_ex",
        &[libc::EINVAL, libc::EOPNOTSUPP, libc::ENOSYS],
    );
}

fn data_order_can_be_queried(device: &Device) {
    let pair = Pair::rc(device);
    let opcode = ibv_wr_opcode::IBV_WR_RDMA_WRITE;
    let answer = unsafe { ibv_query_qp_data_in_order(pair.a.qp.raw(), opcode, 0) };
    assert!((0..=1).contains(&answer), "the answer is {answer}");
}

fn enhanced_connection_options_can_be_queried(device: &Device) {
    let pair = Pair::rc(device);
    let mut options = ibv_ece::default();
    let result = unsafe { ibv_query_ece(pair.a.qp.raw(), &mut options) };
    // The manual: ENOSYS or EOPNOTSUPP if the device has no such options.
    result.supported("ibv_query_ece");
}

fn rate_limit_as_claimed(device: &Device) {
    let pair = Pair::rc(device);
    let attr = ibv_qp_attr {
        rate_limit: 1000,
        ..Default::default()
    };
    let result = pair.a.qp.modify(&attr, Mask::IBV_QP_RATE_LIMIT);
    let caps = &device.attr_ex().packet_pacing_caps;
    if caps.supported_qpts & (1 << Service::IBV_QPT_RC.0) == 0 {
        let refusals = [libc::EINVAL, libc::EOPNOTSUPP, libc::ENOSYS];
        result.fails("ibv_modify_qp(RATE_LIMIT)", &refusals);
    } else {
        result.succeeds("ibv_modify_qp(RATE_LIMIT)");
    }
}
