//! The states of a queue pair: every transition that there is and every one that there is not, the
//! attributes that each takes, and what each does.
//!
//! The tables are IBTA 10.3.1 (which transitions there are) and 11.2.5.2, "QP state transition
//! properties" (which attributes they take), which the manual of ibv_modify_qp repeats in part.

use std::time::Duration;

use ibverbs_sys::ibv_qp_attr_mask as Mask;
use ibverbs_sys::ibv_qp_state as State;
use ibverbs_sys::ibv_qp_type as Service;
use ibverbs_sys::ibv_wc_status as Status;
use ibverbs_sys::*;

use crate::harness::*;

const SERVICES: [(Service, &str); 3] = [
    (Service::IBV_QPT_RC, "rc"),
    (Service::IBV_QPT_UC, "uc"),
    (Service::IBV_QPT_UD, "ud"),
];

const STATES: [(State, &str); 7] = [
    (State::IBV_QPS_RESET, "reset"),
    (State::IBV_QPS_INIT, "init"),
    (State::IBV_QPS_RTR, "rtr"),
    (State::IBV_QPS_RTS, "rts"),
    (State::IBV_QPS_SQD, "sqd"),
    (State::IBV_QPS_SQE, "sqe"),
    (State::IBV_QPS_ERR, "err"),
];

/// The transitions between these states that a program may ask for; RESET and ERR can be reached
/// from everywhere.
const LEGAL: [(State, State); 9] = [
    (State::IBV_QPS_RESET, State::IBV_QPS_INIT),
    (State::IBV_QPS_INIT, State::IBV_QPS_INIT),
    (State::IBV_QPS_INIT, State::IBV_QPS_RTR),
    (State::IBV_QPS_RTR, State::IBV_QPS_RTS),
    (State::IBV_QPS_RTS, State::IBV_QPS_RTS),
    (State::IBV_QPS_RTS, State::IBV_QPS_SQD),
    (State::IBV_QPS_SQD, State::IBV_QPS_RTS),
    (State::IBV_QPS_SQD, State::IBV_QPS_SQD),
    (State::IBV_QPS_SQE, State::IBV_QPS_RTS),
];

pub(crate) fn cases() -> Vec<Case> {
    let mut cases = cases![
        unreliable_connection_s_failure_stops_the_send_queue,
        datagram_s_failure_stops_the_send_queue,
        stopped_send_queue_flushes_and_still_receives,
        stopped_send_queue_starts_again,
        drained_send_queue_raises_an_event,
        drained_send_queue_holds_requests,
        a_draining_send_queue_finishes_started_requests,
        refused_transition_changes_nothing,
        current_state_that_is_wrong_is_refused,
        an_unknown_port_is_refused,
        partition_index_beyond_the_table_is_refused,
        an_unknown_source_address_is_refused,
        path_mtu_beyond_the_port_s_is_refused,
        an_invalid_path_mtu_is_refused,
        path_of_roce_without_a_route_is_refused,
        retry_counts_beyond_seven_are_refused,
        timers_beyond_31_are_refused,
        reads_beyond_the_limit_are_refused,
        served_reads_beyond_the_limit_are_refused,
        unknown_access_flags_are_refused,
        capacities_change_as_claimed,
        alternate_path_as_claimed,
        access_can_be_changed_while_running,
        rnr_timer_can_be_changed_while_running,
        nothing_to_modify_is_no_error,
        the_handle_contains_the_state,
        receive_is_answered_only_from_ready_to_receive,
        reset_and_reconnect_to_another_peer,
        reset_in_the_midst_of_traffic,
    ];
    for (row, (service, from, to)) in transitions().into_iter().enumerate() {
        let verdict = match (from, to) {
            (State::IBV_QPS_RESET, State::IBV_QPS_ERR) => "to_or_not_to",
            _ if legal(from, to) => "to",
            _ => "not_to",
        };
        let name = format!(
            "state::{}_{}_{verdict}_{}",
            name(service),
            state(from),
            state(to)
        );
        cases.push(Case::row(name, transition, row));
    }
    for (row, (service, from, to)) in settings().into_iter().enumerate() {
        let name = format!("state::{}_{}_to_{}", name(service), state(from), state(to));
        if required(service, from, to) != Mask(0) {
            cases.push(Case::row(
                format!("{name}_needs_its_attributes"),
                needs,
                row,
            ));
        }
        if optional(service, from, to) != Mask(0) {
            cases.push(Case::row(
                format!("{name}_takes_what_is_optional"),
                takes,
                row,
            ));
        }
        cases.push(Case::row(
            format!("{name}_refuses_what_is_not_its"),
            refuses,
            row,
        ));
    }
    cases
}

fn name(service: Service) -> &'static str {
    let of = SERVICES.iter().find(|(known, _)| *known == service);
    of.map_or("unknown", |(_, name)| name)
}

fn state(state: State) -> &'static str {
    STATES[state.0 as usize].1
}

fn legal(from: State, to: State) -> bool {
    LEGAL.contains(&(from, to)) || matches!(to, State::IBV_QPS_RESET | State::IBV_QPS_ERR)
}

/// Returns all combinations of a service and two states.
fn transitions() -> Vec<(Service, State, State)> {
    let mut all = Vec::new();
    for (service, _) in SERVICES {
        for (from, _) in STATES {
            // IBTA 10.3.1: only the unreliable services have SQE.
            if (service, from) == (Service::IBV_QPT_RC, State::IBV_QPS_SQE) {
                continue;
            }
            all.extend(STATES.map(|(to, _)| (service, from, to)));
        }
    }
    all
}

/// Returns all combinations of a service and a transition with attributes.
fn settings() -> Vec<(Service, State, State)> {
    let all = transitions().into_iter();
    all.filter(|(_, from, to)| LEGAL.contains(&(*from, *to)))
        .collect()
}

fn required(service: Service, from: State, to: State) -> Mask {
    let connected = service != Service::IBV_QPT_UD;
    let reliable = service == Service::IBV_QPT_RC;
    let when = |condition: bool, mask: Mask| if condition { mask } else { Mask(0) };
    match (from, to) {
        (State::IBV_QPS_RESET, State::IBV_QPS_INIT) => {
            Mask::IBV_QP_PKEY_INDEX
                | Mask::IBV_QP_PORT
                | when(connected, Mask::IBV_QP_ACCESS_FLAGS)
                | when(!connected, Mask::IBV_QP_QKEY)
        }
        (State::IBV_QPS_INIT, State::IBV_QPS_RTR) => {
            when(
                connected,
                Mask::IBV_QP_AV
                    | Mask::IBV_QP_PATH_MTU
                    | Mask::IBV_QP_DEST_QPN
                    | Mask::IBV_QP_RQ_PSN,
            ) | when(
                reliable,
                Mask::IBV_QP_MAX_DEST_RD_ATOMIC | Mask::IBV_QP_MIN_RNR_TIMER,
            )
        }
        (State::IBV_QPS_RTR, State::IBV_QPS_RTS) => {
            Mask::IBV_QP_SQ_PSN
                | when(
                    reliable,
                    Mask::IBV_QP_TIMEOUT
                        | Mask::IBV_QP_RETRY_CNT
                        | Mask::IBV_QP_RNR_RETRY
                        | Mask::IBV_QP_MAX_QP_RD_ATOMIC,
                )
        }
        _ => Mask(0),
    }
}

/// Returns the optional attributes of a transition. Alternate paths and changes of capacities are
/// tested by cases of their own, because not every device supports them.
fn optional(service: Service, from: State, to: State) -> Mask {
    let connected = service != Service::IBV_QPT_UD;
    let reliable = service == Service::IBV_QPT_RC;
    let when = |condition: bool, mask: Mask| if condition { mask } else { Mask(0) };
    let own = when(connected, Mask::IBV_QP_ACCESS_FLAGS) | when(!connected, Mask::IBV_QP_QKEY);
    match (from, to) {
        (State::IBV_QPS_INIT, State::IBV_QPS_INIT) => {
            own | Mask::IBV_QP_PKEY_INDEX | Mask::IBV_QP_PORT
        }
        (State::IBV_QPS_INIT, State::IBV_QPS_RTR) => own | Mask::IBV_QP_PKEY_INDEX,
        (State::IBV_QPS_RTS, State::IBV_QPS_SQD) => Mask::IBV_QP_EN_SQD_ASYNC_NOTIFY,
        (State::IBV_QPS_RTR | State::IBV_QPS_RTS | State::IBV_QPS_SQD, State::IBV_QPS_RTS) => {
            own | Mask::IBV_QP_CUR_STATE | when(reliable, Mask::IBV_QP_MIN_RNR_TIMER)
        }
        (State::IBV_QPS_SQE, State::IBV_QPS_RTS) => own | Mask::IBV_QP_CUR_STATE,
        (State::IBV_QPS_SQD, State::IBV_QPS_SQD) => {
            own | Mask::IBV_QP_PKEY_INDEX
                | when(
                    reliable,
                    Mask::IBV_QP_AV
                        | Mask::IBV_QP_TIMEOUT
                        | Mask::IBV_QP_RETRY_CNT
                        | Mask::IBV_QP_RNR_RETRY
                        | Mask::IBV_QP_MAX_QP_RD_ATOMIC
                        | Mask::IBV_QP_MAX_DEST_RD_ATOMIC
                        | Mask::IBV_QP_MIN_RNR_TIMER,
                )
        }
        _ => Mask(0),
    }
}

/// All attributes but those of capabilities: alternate paths, capacities, another port.
const SETTABLE: [Mask; 16] = [
    Mask::IBV_QP_EN_SQD_ASYNC_NOTIFY,
    Mask::IBV_QP_ACCESS_FLAGS,
    Mask::IBV_QP_PKEY_INDEX,
    Mask::IBV_QP_PORT,
    Mask::IBV_QP_QKEY,
    Mask::IBV_QP_AV,
    Mask::IBV_QP_PATH_MTU,
    Mask::IBV_QP_TIMEOUT,
    Mask::IBV_QP_RETRY_CNT,
    Mask::IBV_QP_RNR_RETRY,
    Mask::IBV_QP_RQ_PSN,
    Mask::IBV_QP_MAX_QP_RD_ATOMIC,
    Mask::IBV_QP_MIN_RNR_TIMER,
    Mask::IBV_QP_SQ_PSN,
    Mask::IBV_QP_MAX_DEST_RD_ATOMIC,
    Mask::IBV_QP_DEST_QPN,
];

fn bits(mask: Mask) -> impl Iterator<Item = Mask> {
    (0..32)
        .map(|bit| Mask(1 << bit))
        .filter(move |bit| mask & *bit == *bit)
}

/// A queue pair in a state, and the objects that were needed to reach the state.
struct Subject {
    end: End,
    ah: Ah,
}

impl Subject {
    /// Ignores the case if the device does not reach SQE, which other cases check.
    fn new(device: &Device, service: Service, state: State) -> Self {
        let pd = Pd::new(device);
        let end = End::new(&pd, &Plan::new(service), 4096);
        let subject = Self {
            ah: Ah::own(&pd),
            end,
        };
        let qp = &subject.end.qp;
        let rank = |state: State| match state {
            State::IBV_QPS_RESET => 0,
            State::IBV_QPS_INIT | State::IBV_QPS_ERR => 1,
            State::IBV_QPS_RTR => 2,
            _ => 3,
        };
        if rank(state) > 0 {
            qp.to_init();
        }
        if rank(state) > 1 {
            qp.to_rtr(qp.number());
        }
        if rank(state) > 2 {
            qp.to_rts();
        }
        match state {
            State::IBV_QPS_ERR => qp.enter(state).succeeds("INIT to ERR"),
            State::IBV_QPS_SQD => {
                qp.enter(state).succeeds("RTS to SQD");
                drained(qp);
            }
            State::IBV_QPS_SQE => subject.stop(),
            _ => {}
        }
        equal("the state", qp.state(), state);
        subject
    }

    /// Fails a send.
    fn fail(&self) -> ibv_wc {
        let end = &self.end;
        let sge = ibv_sge {
            lkey: end.mr.lkey() ^ 0x7fff_ff00,
            ..end.mr.sge(0, 8)
        };
        let send = Request::send(&[sge]).to(self.ah.raw(), end.qp.number(), QKEY);
        end.qp.post(send);
        end.cq.next()
    }

    fn stop(&self) {
        self.fail();
        let found = self.end.qp.state();
        if found != State::IBV_QPS_SQE {
            ignore(
                "a failed send leads the queue pair elsewhere than to SQE, see state::*_stops_*",
            );
        }
    }
}

/// Returns attributes with a legal value for each attribute of a transition.
fn attributes(device: &Device, qp: &Qp, to: State) -> ibv_qp_attr {
    let plan = qp.plan();
    let (init, _) = plan.init();
    let (rtr, _) = plan.ready_to_receive(device, qp.number());
    let (rts, _) = plan.ready_to_send();
    ibv_qp_attr {
        qp_state: to,
        cur_qp_state: qp.state(),
        port_num: init.port_num,
        qkey: init.qkey,
        qp_access_flags: init.qp_access_flags,
        sq_psn: rts.sq_psn,
        timeout: rts.timeout,
        retry_cnt: rts.retry_cnt,
        rnr_retry: rts.rnr_retry,
        max_rd_atomic: rts.max_rd_atomic,
        en_sqd_async_notify: 1,
        ..rtr
    }
}

fn transition(device: &Device, row: usize) {
    let (service, from, to) = transitions()[row];
    let subject = Subject::new(device, service, from);
    let qp = &subject.end.qp;
    let attr = attributes(device, qp, to);
    if (from, to) == (State::IBV_QPS_RESET, State::IBV_QPS_ERR) {
        // IBTA 10.3.1 has ERR come from any state, while the kernel's table has no such transition
        // from RESET, where nothing is that could fail. Either is right, and no third.
        let expected = match qp.modify(&attr, Mask::IBV_QP_STATE) {
            Ok(()) => to,
            Err(number) => {
                equal("the error", number, libc::EINVAL);
                from
            }
        };
        return equal("the state", qp.state(), expected);
    }
    if legal(from, to) {
        qp.modify(&attr, Mask::IBV_QP_STATE | required(service, from, to))
            .succeeds("ibv_modify_qp");
        equal("the state", qp.state(), to);
        equal("the handle's state", unsafe { (*qp.raw()).state }, to);
        return;
    }
    // The transition is tried without other attributes, and with the attributes of each legal
    // transition to the state.
    let usual = LEGAL.iter().filter(|(_, end)| *end == to);
    let sets = usual.map(|(start, end)| required(service, *start, *end));
    for set in sets.chain([Mask(0)]) {
        let result = qp.modify(&attr, Mask::IBV_QP_STATE | set);
        result.fails("ibv_modify_qp", &[libc::EINVAL]);
        equal("the state", qp.state(), from);
    }
}

fn needs(device: &Device, row: usize) {
    let (service, from, to) = settings()[row];
    let subject = Subject::new(device, service, from);
    let qp = &subject.end.qp;
    let attr = attributes(device, qp, to);
    let all = required(service, from, to);
    for bit in bits(all) {
        let result = qp.modify(&attr, Mask::IBV_QP_STATE | Mask(all.0 & !bit.0));
        result.fails(&format!("ibv_modify_qp without {bit:?}"), &[libc::EINVAL]);
    }
    equal("the state", qp.state(), from);
    qp.modify(&attr, Mask::IBV_QP_STATE | all)
        .succeeds("ibv_modify_qp with all of them");
}

fn takes(device: &Device, row: usize) {
    let (service, from, to) = settings()[row];
    for bit in bits(optional(service, from, to)) {
        let subject = Subject::new(device, service, from);
        let qp = &subject.end.qp;
        let attr = attributes(device, qp, to);
        qp.modify(
            &attr,
            Mask::IBV_QP_STATE | required(service, from, to) | bit,
        )
        .succeeds(&format!("ibv_modify_qp with {bit:?}"));
        equal("the state", qp.state(), to);
    }
    // And all at the same time.
    let subject = Subject::new(device, service, from);
    let qp = &subject.end.qp;
    let all = required(service, from, to) | optional(service, from, to);
    qp.modify(&attributes(device, qp, to), Mask::IBV_QP_STATE | all)
        .succeeds("ibv_modify_qp with all of them");
}

fn refuses(device: &Device, row: usize) {
    let (service, from, to) = settings()[row];
    let subject = Subject::new(device, service, from);
    let qp = &subject.end.qp;
    let attr = attributes(device, qp, to);
    let own = required(service, from, to);
    let allowed = own | optional(service, from, to);
    for bit in SETTABLE {
        // Changing the port in SQD is a capability, and so is changing the path.
        let capability = bit == Mask::IBV_QP_PORT || bit == Mask::IBV_QP_AV;
        if allowed & bit == bit || (from == State::IBV_QPS_SQD && capability) {
            continue;
        }
        qp.modify(&attr, Mask::IBV_QP_STATE | own | bit)
            .fails(&format!("ibv_modify_qp with {bit:?}"), &[libc::EINVAL]);
        equal("the state", qp.state(), from);
    }
}

// IBTA 10.3.1.5 (SQE): a completion error of a send leads there in the unreliable services.

fn stops(device: &Device, service: Service) {
    let subject = Subject::new(device, service, State::IBV_QPS_RTS);
    let failed = subject.fail();
    assert!(failed.status != Status::IBV_WC_SUCCESS);
    subject.end.qp.becomes(State::IBV_QPS_SQE);
}

fn unreliable_connection_s_failure_stops_the_send_queue(device: &Device) {
    stops(device, Service::IBV_QPT_UC);
}

fn datagram_s_failure_stops_the_send_queue(device: &Device) {
    stops(device, Service::IBV_QPT_UD);
}

fn stopped_send_queue_flushes_and_still_receives(device: &Device) {
    let pair = Datagrams::new(device);
    let subject = Subject::new(device, Service::IBV_QPT_UD, State::IBV_QPS_SQE);
    let end = &subject.end;
    end.qp.post(
        end.send(0, 8)
            .to(subject.ah.raw(), end.qp.number(), QKEY)
            .id(5),
    );
    end.cq.expect(5, Status::IBV_WC_WR_FLUSH_ERR);
    end.receive(6, 0, 64);
    pair.a
        .qp
        .post(pair.a.send(0, 8).to(pair.ah.raw(), end.qp.number(), QKEY));
    end.cq.success(6);
}

fn stopped_send_queue_starts_again(device: &Device) {
    let subject = Subject::new(device, Service::IBV_QPT_UD, State::IBV_QPS_SQE);
    let end = &subject.end;
    end.qp.enter(State::IBV_QPS_RTS).succeeds("SQE to RTS");
    end.qp.post(
        end.send(0, 8)
            .to(subject.ah.raw(), end.qp.number(), QKEY)
            .id(5),
    );
    end.cq.success(5);
}

/// Waits until the send queue is drained.
fn drained(qp: &Qp) {
    let end = std::time::Instant::now() + max_wait();
    while qp.query().0.sq_draining != 0 {
        assert!(
            std::time::Instant::now() < end,
            "the send queue does not drain"
        );
        std::thread::sleep(Duration::from_millis(1));
    }
}

fn drain(qp: &Qp, notify: bool) {
    let attr = ibv_qp_attr {
        qp_state: State::IBV_QPS_SQD,
        en_sqd_async_notify: notify.into(),
        ..Default::default()
    };
    let mask = Mask::IBV_QP_STATE | Mask::IBV_QP_EN_SQD_ASYNC_NOTIFY;
    qp.modify(&attr, mask).succeeds("RTS to SQD");
}

fn drained_send_queue_raises_an_event(device: &Device) {
    // IBTA 11.6.3.1, Send Queue Drained.
    let pair = Pair::rc(device);
    drain(&pair.a.qp, true);
    let event = device.event_of(ibv_event_type::IBV_EVENT_SQ_DRAINED);
    equal(
        "the queue pair",
        unsafe { event.element.qp },
        pair.a.qp.raw(),
    );
    equal("sq_draining", pair.a.qp.query().0.sq_draining, 0);
}

fn drained_send_queue_holds_requests(device: &Device) {
    // IBTA 10.3.1.4 (SQD): requests are accepted, and start after the transition to RTS.
    let pair = Pair::rc(device);
    drain(&pair.a.qp, false);
    drained(&pair.a.qp);
    pair.a.mr.write(0, b"held");
    pair.a.qp.post(pair.a.write(&pair.b, 0, 4));
    pair.a.cq.stays_empty();
    equal("the bytes", pair.b.mr.read(0, 4), vec![0; 4]);
    pair.a.qp.enter(State::IBV_QPS_RTS).succeeds("SQD to RTS");
    pair.a.cq.success(1);
    equal("the bytes", pair.b.mr.read(0, 4), b"held".to_vec());
}

fn a_draining_send_queue_finishes_started_requests(device: &Device) {
    let mut plan = Plan::new(Service::IBV_QPT_RC);
    plan.mtu = Some(ibv_mtu::IBV_MTU_256);
    let pair = Pair::new(device, &plan);
    // The end of the write waits for a receive; the write has begun when its first bytes are there.
    // A device may keep the bytes of a shorter write until there is a receive.
    pair.a.mr.set_u64(0, 1);
    let write = pair.a.write(&pair.b, 0, 40 << 10);
    pair.a.qp.post(write.immediate(0));
    let end = std::time::Instant::now() + max_wait();
    while pair.b.mr.u64(0) == 0 {
        assert!(std::time::Instant::now() < end, "the write does not begin");
        std::thread::yield_now();
    }
    drain(&pair.a.qp, true);
    pair.b.receive(2, 0, 8);
    pair.a.cq.success(1);
    device.event_of(ibv_event_type::IBV_EVENT_SQ_DRAINED);
}

/// Creates a queue pair in INIT.
fn initialised(device: &Device) -> End {
    let end = End::new(&Pd::new(device), &Plan::new(Service::IBV_QPT_RC), 4096);
    end.qp.to_init();
    end
}

fn refused_transition_changes_nothing(device: &Device) {
    // The manual: if an attribute is invalid, none is modified.
    let end = initialised(device);
    let (mut attr, mask) = end.qp.plan().ready_to_receive(device, 77);
    attr.path_mtu = ibv_mtu(9);
    end.qp
        .modify(&attr, mask)
        .fails("ibv_modify_qp", &[libc::EINVAL]);
    let (found, _) = end.qp.query();
    equal("the state", found.qp_state, State::IBV_QPS_INIT);
    equal(
        "the handle's state",
        unsafe { (*end.qp.raw()).state },
        State::IBV_QPS_INIT,
    );
    equal("dest_qp_num", found.dest_qp_num, 0);
    equal("rq_psn", found.rq_psn, 0);
}

fn current_state_that_is_wrong_is_refused(device: &Device) {
    let pair = Pair::rc(device);
    let attr = ibv_qp_attr {
        qp_state: State::IBV_QPS_RTS,
        cur_qp_state: State::IBV_QPS_SQD,
        ..Default::default()
    };
    let mask = Mask::IBV_QP_STATE | Mask::IBV_QP_CUR_STATE;
    pair.a
        .qp
        .modify(&attr, mask)
        .fails("ibv_modify_qp", &[libc::EINVAL]);
    equal("the state", pair.a.qp.state(), State::IBV_QPS_RTS);
}

#[track_caller]
fn init_refused(device: &Device, change: impl Fn(&mut ibv_qp_attr)) {
    let end = End::new(&Pd::new(device), &Plan::new(Service::IBV_QPT_RC), 4096);
    let (mut attr, mask) = end.qp.plan().init();
    change(&mut attr);
    end.qp
        .modify(&attr, mask)
        .fails("RESET to INIT", &[libc::EINVAL]);
    equal("the state", end.qp.state(), State::IBV_QPS_RESET);
}

#[track_caller]
fn rtr_refused(device: &Device, change: impl Fn(&mut ibv_qp_attr)) {
    let end = initialised(device);
    let (mut attr, mask) = end.qp.plan().ready_to_receive(device, 77);
    change(&mut attr);
    let refusals = [libc::EINVAL, libc::ENOENT, libc::ENODATA];
    end.qp.modify(&attr, mask).fails("INIT to RTR", &refusals);
    equal("the state", end.qp.state(), State::IBV_QPS_INIT);
}

#[track_caller]
fn rts_refused(device: &Device, change: impl Fn(&mut ibv_qp_attr)) {
    let end = initialised(device);
    end.qp.to_rtr(77);
    let (mut attr, mask) = end.qp.plan().ready_to_send();
    change(&mut attr);
    end.qp
        .modify(&attr, mask)
        .fails("RTR to RTS", &[libc::EINVAL]);
    equal("the state", end.qp.state(), State::IBV_QPS_RTR);
}

fn an_unknown_port_is_refused(device: &Device) {
    init_refused(device, |attr| attr.port_num = 0);
    init_refused(device, |attr| {
        attr.port_num = device.attr().phys_port_cnt + 1;
    });
}

fn partition_index_beyond_the_table_is_refused(device: &Device) {
    init_refused(device, |attr| attr.pkey_index = device.port().pkey_tbl_len);
}

fn an_unknown_source_address_is_refused(device: &Device) {
    let used: Vec<_> = gid_table(device.context())
        .iter()
        .map(|gid| gid.gid_index)
        .collect();
    let Some(unused) = (0..=255).find(|index| !used.contains(index)) else {
        ignore("every index that a path can name is in use");
    };
    rtr_refused(device, |attr| attr.ah_attr.grh.sgid_index = unused as u8);
}

fn path_mtu_beyond_the_port_s_is_refused(device: &Device) {
    let mtu = device.port().active_mtu;
    if mtu == ibv_mtu::IBV_MTU_4096 {
        ignore("the port has the largest MTU there is (active_mtu)");
    }
    rtr_refused(device, |attr| attr.path_mtu = ibv_mtu(mtu.0 + 1));
}

fn an_invalid_path_mtu_is_refused(device: &Device) {
    rtr_refused(device, |attr| attr.path_mtu = ibv_mtu(0));
    rtr_refused(device, |attr| attr.path_mtu = ibv_mtu(6));
}

fn path_of_roce_without_a_route_is_refused(device: &Device) {
    if u32::from(device.port().link_layer) != IBV_LINK_LAYER_ETHERNET {
        ignore("the port is not of Ethernet");
    }
    // IBTA annex A16: a RoCE packet always has a GRH.
    rtr_refused(device, |attr| attr.ah_attr.is_global = 0);
}

fn retry_counts_beyond_seven_are_refused(device: &Device) {
    rts_refused(device, |attr| attr.retry_cnt = 8);
    rts_refused(device, |attr| attr.rnr_retry = 8);
}

fn timers_beyond_31_are_refused(device: &Device) {
    rts_refused(device, |attr| attr.timeout = 32);
    rtr_refused(device, |attr| attr.min_rnr_timer = 32);
}

fn reads_beyond_the_limit_are_refused(device: &Device) {
    let Ok(beyond) = u8::try_from(device.attr().max_qp_init_rd_atom + 1) else {
        ignore("the limit is as large as the field (max_qp_init_rd_atom)");
    };
    rts_refused(device, |attr| attr.max_rd_atomic = beyond);
}

fn served_reads_beyond_the_limit_are_refused(device: &Device) {
    let Ok(beyond) = u8::try_from(device.attr().max_qp_rd_atom + 1) else {
        ignore("the limit is as large as the field (max_qp_rd_atom)");
    };
    rtr_refused(device, |attr| attr.max_dest_rd_atomic = beyond);
}

fn unknown_access_flags_are_refused(device: &Device) {
    init_refused(device, |attr| attr.qp_access_flags = 1 << 18);
}

fn capacities_change_as_claimed(device: &Device) {
    let end = initialised(device);
    let attr = ibv_qp_attr {
        cap: ibv_qp_cap {
            max_send_wr: 100,
            ..end.qp.cap()
        },
        ..Default::default()
    };
    let result = end.qp.modify(&attr, Mask::IBV_QP_CAP);
    if device.has(ibv_device_cap_flags::IBV_DEVICE_RESIZE_MAX_WR) {
        result.succeeds("ibv_modify_qp(CAP)");
        assert!(end.qp.query().0.cap.max_send_wr >= 100);
    } else {
        result.fails(
            "ibv_modify_qp(CAP)",
            &[libc::EINVAL, libc::EOPNOTSUPP, libc::ENOSYS],
        );
    }
}

fn alternate_path_as_claimed(device: &Device) {
    let pair = Pair::rc(device);
    let attr = ibv_qp_attr {
        alt_ah_attr: path(device),
        alt_port_num: PORT,
        alt_timeout: 14,
        path_mig_state: ibv_mig_state::IBV_MIG_REARM,
        ..Default::default()
    };
    let result = pair
        .a
        .qp
        .modify(&attr, Mask::IBV_QP_ALT_PATH | Mask::IBV_QP_PATH_MIG_STATE);
    if device.has(ibv_device_cap_flags::IBV_DEVICE_AUTO_PATH_MIG) {
        result.succeeds("ibv_modify_qp(ALT_PATH)");
        equal("alt_port_num", pair.a.qp.query().0.alt_port_num, PORT);
    } else {
        result.fails(
            "ibv_modify_qp(ALT_PATH)",
            &[libc::EINVAL, libc::EOPNOTSUPP, libc::ENOSYS],
        );
    }
}

fn access_can_be_changed_while_running(device: &Device) {
    let pair = Pair::rc(device);
    pair.a.qp.post(pair.a.write(&pair.b, 0, 8));
    pair.a.cq.success(1);
    let attr = ibv_qp_attr {
        qp_access_flags: 0,
        ..Default::default()
    };
    pair.b
        .qp
        .modify(&attr, Mask::IBV_QP_ACCESS_FLAGS)
        .succeeds("ibv_modify_qp(ACCESS_FLAGS)");
    pair.a.qp.post(pair.a.write(&pair.b, 0, 8));
    pair.a.cq.expect(1, Status::IBV_WC_REM_INV_REQ_ERR);
}

fn rnr_timer_can_be_changed_while_running(device: &Device) {
    let pair = Pair::rc(device);
    let attr = ibv_qp_attr {
        min_rnr_timer: 9,
        ..Default::default()
    };
    pair.b
        .qp
        .modify(&attr, Mask::IBV_QP_MIN_RNR_TIMER)
        .succeeds("ibv_modify_qp(MIN_RNR_TIMER)");
    equal("min_rnr_timer", pair.b.qp.query().0.min_rnr_timer, 9);
}

fn nothing_to_modify_is_no_error(device: &Device) {
    // The manual: the mask is "either 0 or the bitwise OR of one or more".
    let pair = Pair::rc(device);
    pair.a
        .qp
        .modify(&ibv_qp_attr::default(), Mask(0))
        .succeeds("ibv_modify_qp(0)");
    equal("the state", pair.a.qp.state(), State::IBV_QPS_RTS);
}

fn the_handle_contains_the_state(device: &Device) {
    let end = initialised(device);
    let seen = || unsafe { (*end.qp.raw()).state };
    equal("the state", seen(), State::IBV_QPS_INIT);
    end.qp.to_rtr(end.qp.number());
    equal("the state", seen(), State::IBV_QPS_RTR);
    end.qp.to_rts();
    equal("the state", seen(), State::IBV_QPS_RTS);
    end.qp.enter(State::IBV_QPS_RESET).succeeds("to RESET");
    equal("the state", seen(), State::IBV_QPS_RESET);
}

fn receive_is_answered_only_from_ready_to_receive(device: &Device) {
    let pd = Pd::new(device);
    let mut plan = Plan::new(Service::IBV_QPT_RC);
    (plan.timeout, plan.retry_count) = (8, 1);
    let (a, b) = (End::new(&pd, &plan, 4096), End::new(&pd, &plan, 4096));
    a.qp.connect(b.qp.number());
    b.qp.to_init();
    b.receive(1, 0, 64);
    a.qp.post(a.send(0, 8));
    a.cq.expect(1, Status::IBV_WC_RETRY_EXC_ERR);
    b.cq.stays_empty();
}

fn reset_and_reconnect_to_another_peer(device: &Device) {
    let pair = Pair::rc(device);
    pair.exchange(100);
    let other = End::new(&pair.pd, &Plan::new(Service::IBV_QPT_RC), SPACE);
    pair.a.qp.enter(State::IBV_QPS_RESET).succeeds("to RESET");
    pair.a.qp.connect(other.qp.number());
    other.qp.connect(pair.a.qp.number());
    let Pair { a, b: _b, pd } = pair;
    Pair { a, b: other, pd }.exchange(5000);
}

fn reset_in_the_midst_of_traffic(device: &Device) {
    let pair = Pair::rc(device);
    for round in 0..10 {
        for id in 0..8 {
            pair.a.qp.post(pair.a.write(&pair.b, 0, SPACE).id(id));
        }
        std::thread::sleep(Duration::from_micros(300 * round));
        pair.a.qp.enter(State::IBV_QPS_RESET).succeeds("to RESET");
        pair.b.qp.enter(State::IBV_QPS_RESET).succeeds("to RESET");
        // Only completions of this round may be pending.
        while pair.a.cq.within(Duration::ZERO).is_some() {}
        // Packets of before may still be under way, so a new connection begins at another number.
        let mut plan = Plan::new(Service::IBV_QPT_RC);
        plan.send_psn = 0x1000 * (round as u32 + 1);
        plan.receive_psn = plan.send_psn;
        pair.a.qp.connect_by(&plan, pair.b.qp.number());
        pair.b.qp.connect_by(&plan, pair.a.qp.number());
    }
    pair.exchange(5000);
}
