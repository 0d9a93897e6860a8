//! Asynchronous events.

use std::mem::MaybeUninit;

use ibverbs_sys::ibv_event_type as Event;
use ibverbs_sys::ibv_qp_state as State;
use ibverbs_sys::ibv_qp_type as Service;
use ibverbs_sys::ibv_wc_status as Status;
use ibverbs_sys::*;

use crate::harness::*;

pub(crate) fn cases() -> Vec<Case> {
    cases![
        context_without_events_would_block,
        remote_access_raises_an_access_error,
        invalid_request_raises_a_request_error,
        receive_that_fails_raises_nothing_at_the_sender,
        message_before_ready_to_send_establishes,
        program_s_own_error_raises_nothing,
        an_event_is_reported_only_to_its_context,
        events_of_a_destroyed_object_are_discarded,
        events_of_a_destroyed_queue_pair_are_discarded,
        destruction_waits_for_the_acknowledgement,
        descriptor_becomes_readable,
    ]
}

fn context_without_events_would_block(device: &Device) {
    let fd = unsafe { (*device.context()).async_fd };
    let flags = unsafe { libc::fcntl(fd, libc::F_GETFL) };
    unsafe { libc::fcntl(fd, libc::F_SETFL, flags | libc::O_NONBLOCK) }.succeeds("fcntl");
    let mut event = MaybeUninit::uninit();
    let result = unsafe { ibv_get_async_event(device.context(), event.as_mut_ptr()) };
    equal("the result", result, -1);
    equal("errno", errno(), libc::EAGAIN);
}

fn bad_write(pair: &Pair) {
    let key = pair.b.mr.rkey() ^ 0x7fff_ff00;
    pair.a
        .qp
        .post(Request::write(&[pair.a.mr.sge(0, 8)], pair.b.mr.at(0), key));
    pair.a.cq.expect(1, Status::IBV_WC_REM_ACCESS_ERR);
}

fn remote_access_raises_an_access_error(device: &Device) {
    // IBTA 11.6.3.2: Local Access Violation Work Queue Error, at the responder.
    let pair = Pair::rc(device);
    bad_write(&pair);
    let event = device.event_of(Event::IBV_EVENT_QP_ACCESS_ERR);
    equal(
        "the queue pair",
        unsafe { event.element.qp },
        pair.b.qp.raw(),
    );
}

fn invalid_request_raises_a_request_error(device: &Device) {
    // IBTA 11.6.3.2: Invalid Request Local Work Queue Error, at the responder.
    let mut plan = Plan::new(Service::IBV_QPT_RC);
    plan.access = NO_ACCESS;
    let pair = Pair::new(device, &plan);
    pair.a.qp.post(pair.a.write(&pair.b, 0, 8));
    pair.a.cq.expect(1, Status::IBV_WC_REM_INV_REQ_ERR);
    let event = device.event_of(Event::IBV_EVENT_QP_REQ_ERR);
    equal(
        "the queue pair",
        unsafe { event.element.qp },
        pair.b.qp.raw(),
    );
}

fn receive_that_fails_raises_nothing_at_the_sender(device: &Device) {
    // The receive completes with an error, so the device may or may not raise an event for the
    // receiver, but must raise none for the sender.
    let pair = Pair::rc(device);
    pair.b.receive(2, 0, 4);
    pair.a.qp.post(pair.a.send(0, 8));
    assert!(pair.a.cq.next().status != Status::IBV_WC_SUCCESS);
    while device.has_event(QUIET) {
        let event = device.event();
        assert!(
            unsafe { event.element.qp } != pair.a.qp.raw(),
            "{:?}",
            event.event_type
        );
    }
}

fn message_before_ready_to_send_establishes(device: &Device) {
    // IBTA 11.6.3.1, Communication Established: the first packet in RTR.
    let pd = Pd::new(device);
    let plan = Plan::new(Service::IBV_QPT_RC);
    let (a, b) = (End::new(&pd, &plan, 4096), End::new(&pd, &plan, 4096));
    b.qp.to_init();
    b.receive(2, 0, 64);
    b.qp.to_rtr(a.qp.number());
    a.qp.connect(b.qp.number());
    a.qp.post(a.send(0, 8));
    a.cq.success(1);
    let event = device.event_of(Event::IBV_EVENT_COMM_EST);
    equal("the queue pair", unsafe { event.element.qp }, b.qp.raw());
}

fn program_s_own_error_raises_nothing(device: &Device) {
    let pair = Pair::rc(device);
    pair.a.qp.enter(State::IBV_QPS_ERR).succeeds("to ERR");
    assert!(!device.has_event(QUIET), "an event came");
}

/// Creates a shared receive queue whose limit event was raised.
fn limit_reached(device: &Device) -> Srq {
    let pd = Pd::new(device);
    let (srq, cq) = (Srq::new(&pd, 4), Cq::new(device, 4));
    let mut plan = Plan::new(Service::IBV_QPT_RC);
    plan.srq = Some(srq.clone());
    let qp = Qp::new(&pd, &cq, &plan);
    qp.connect(qp.number());
    srq.receive(2, &[]);
    srq.arm(1);
    qp.post(Request::send(&[]));
    let mut ids = [cq.next(), cq.next()].map(|wc| wc.wr_id);
    ids.sort_unstable();
    equal("the requests", ids, [1, 2]);
    srq
}

fn an_event_is_reported_only_to_its_context(device: &Device) {
    let other = device.reopened();
    let _srq = limit_reached(device);
    device.event_of(Event::IBV_EVENT_SRQ_LIMIT_REACHED);
    assert!(!other.has_event(QUIET), "an event came to another context");
}

fn events_of_a_destroyed_object_are_discarded(device: &Device) {
    // A pending event must not name a destroyed object.
    let srq = limit_reached(device);
    assert!(device.has_event(max_wait()), "no event came");
    drop(srq);
    assert!(!device.has_event(QUIET), "the event is still there");
}

fn events_of_a_destroyed_queue_pair_are_discarded(device: &Device) {
    let pair = Pair::rc(device);
    bad_write(&pair);
    assert!(device.has_event(max_wait()), "no event came");
    drop(pair);
    assert!(!device.has_event(QUIET), "the event is still there");
}

fn destruction_waits_for_the_acknowledgement(device: &Device) {
    // The manual of ibv_get_async_event: destroying an object waits for its events'
    // acknowledgements.
    let srq = limit_reached(device);
    let event = device.unacknowledged_event();
    let raw = srq.raw() as usize;
    let destroyer = std::thread::spawn(move || unsafe { ibv_destroy_srq(raw as *mut ibv_srq) });
    std::thread::sleep(QUIET);
    let waited = !destroyer.is_finished();
    unsafe { ibv_ack_async_event(&mut { event }) };
    let destroyed = destroyer.join().expect("the thread ends");
    srq.forget();
    destroyed.succeeds("ibv_destroy_srq");
    assert!(waited, "it did not wait");
}

fn descriptor_becomes_readable(device: &Device) {
    assert!(
        !device.has_event(QUIET),
        "there is an event before anything happened"
    );
    let _srq = limit_reached(device);
    assert!(device.has_event(max_wait()), "no event came");
    device.event();
    assert!(
        !device.has_event(QUIET),
        "there is an event after all were taken"
    );
}
