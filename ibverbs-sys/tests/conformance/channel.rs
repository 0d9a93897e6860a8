//! Completion channels: their events, and arming completion queues.

use std::ptr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use ibverbs_sys::ibv_send_flags as Flag;
use ibverbs_sys::*;

use crate::harness::*;

pub(crate) fn cases() -> Vec<Case> {
    cases![
        armed_queue_raises_one_event,
        queue_that_is_not_armed_raises_none,
        event_names_queue_and_context,
        arming_is_for_one_event,
        arming_precedes_the_completion,
        solicited_only_ignores_other_messages,
        solicited_message_raises_the_event,
        solicited_write_with_immediate_data_raises_the_event,
        solicited_flag_without_a_receive_raises_nothing,
        failure_raises_a_solicited_event,
        armed_for_all_covers_solicited,
        channel_without_events_would_block,
        events_of_two_queues_are_reported_on_one_channel,
        events_may_be_acknowledged_together,
        channel_with_a_queue_is_busy,
        queue_without_a_channel_can_be_armed,
        events_of_a_destroyed_queue_are_discarded,
        destruction_waits_for_the_acknowledgement,
    ]
}

/// Creates a pair whose second end has a completion channel.
fn pair(device: &Device) -> (Pair, Channel) {
    let channel = Channel::new(device);
    let pd = Pd::new(device);
    let plan = Plan::new(ibv_qp_type::IBV_QPT_RC);
    let cq = Cq::on_channel(&channel, 16);
    let a = End::new(&pd, &plan, 4096);
    let b = End {
        qp: Qp::new(&pd, &cq, &plan),
        cq,
        mr: Mr::new(&pd, 4096, ALL_ACCESS),
    };
    a.qp.connect(b.qp.number());
    b.qp.connect(a.qp.number());
    (Pair { a, b, pd }, channel)
}

/// Sends one message to the second end.
fn message(pair: &Pair, solicited: bool) {
    pair.b.receive(1, 0, 64);
    let send = pair.a.send(0, 8).id(2);
    pair.a.qp.post(match solicited {
        true => send.flag(Flag::IBV_SEND_SOLICITED),
        false => send,
    });
    pair.a.cq.success(2);
}

fn armed_queue_raises_one_event(device: &Device) {
    let (pair, channel) = pair(device);
    pair.b.cq.arm(false);
    message(&pair, false);
    equal("the queue", channel.event(), pair.b.cq.raw());
    pair.b.cq.success(1);
    assert!(!channel.has_event(QUIET), "a second event came");
}

fn queue_that_is_not_armed_raises_none(device: &Device) {
    let (pair, channel) = pair(device);
    message(&pair, true);
    pair.b.cq.success(1);
    assert!(!channel.has_event(QUIET), "an event came");
}

fn event_names_queue_and_context(device: &Device) {
    let channel = Channel::new(device);
    let mut own = 1_u8;
    let context = ptr::from_mut(&mut own).cast();
    let raw = unsafe { ibv_create_cq(device.context(), 4, context, channel.raw(), 0) };
    let cq = Cq::from_raw(device, raw.succeeds("ibv_create_cq"), Some(&channel));
    equal("channel", unsafe { (*cq.raw()).channel }, channel.raw());
    let pd = Pd::new(device);
    let qp = Qp::new(&pd, &cq, &Plan::new(ibv_qp_type::IBV_QPT_RC));
    qp.connect(qp.number());
    cq.arm(false);
    qp.post(Request::write(&[], 0, 0));
    assert!(channel.has_event(max_wait()));
    let (mut event_cq, mut event_context) = (ptr::null_mut(), ptr::null_mut());
    unsafe { ibv_get_cq_event(channel.raw(), &mut event_cq, &mut event_context) }
        .succeeds("ibv_get_cq_event");
    unsafe { ibv_ack_cq_events(event_cq, 1) };
    equal("the queue", event_cq, cq.raw());
    equal("the context", event_context, context);
    cq.success(1);
}

fn arming_is_for_one_event(device: &Device) {
    let (pair, channel) = pair(device);
    pair.b.cq.arm(false);
    message(&pair, false);
    channel.event();
    message(&pair, false);
    assert!(
        !channel.has_event(QUIET),
        "an event came that nobody asked for"
    );
    pair.b.cq.success(1);
    pair.b.cq.success(1);
    pair.b.cq.arm(false);
    message(&pair, false);
    channel.event();
}

fn arming_precedes_the_completion(device: &Device) {
    // IBTA 11.4.2.2: the next added completion raises the event, not one that is already in the
    // queue.
    let (pair, channel) = pair(device);
    message(&pair, false);
    assert!(pair.b.cq.within(max_wait()).is_some());
    pair.b.cq.arm(false);
    assert!(
        !channel.has_event(QUIET),
        "an event came for a completion of before"
    );
    message(&pair, false);
    channel.event();
}

fn solicited_only_ignores_other_messages(device: &Device) {
    let (pair, channel) = pair(device);
    pair.b.cq.arm(true);
    message(&pair, false);
    pair.b.cq.success(1);
    assert!(!channel.has_event(QUIET), "an event came");
}

fn solicited_message_raises_the_event(device: &Device) {
    let (pair, channel) = pair(device);
    pair.b.cq.arm(true);
    message(&pair, false);
    message(&pair, true);
    channel.event();
}

fn solicited_write_with_immediate_data_raises_the_event(device: &Device) {
    let (pair, channel) = pair(device);
    pair.b.cq.arm(true);
    pair.b.qp.receive(1, &[]);
    let write = pair.a.write(&pair.b, 0, 8).immediate(5);
    pair.a.qp.post(write.flag(Flag::IBV_SEND_SOLICITED));
    channel.event();
    equal("the data", immediate(&pair.b.cq.success(1)), 5);
}

fn solicited_flag_without_a_receive_raises_nothing(device: &Device) {
    let (pair, channel) = pair(device);
    pair.b.cq.arm(true);
    pair.a
        .qp
        .post(pair.a.write(&pair.b, 0, 8).flag(Flag::IBV_SEND_SOLICITED));
    pair.a.cq.success(1);
    assert!(!channel.has_event(QUIET), "an event came");
}

fn failure_raises_a_solicited_event(device: &Device) {
    // IBTA 11.4.2.2: a completion in error counts as solicited.
    let (pair, channel) = pair(device);
    pair.b.receive(1, 0, 64);
    pair.b.cq.arm(true);
    pair.b
        .qp
        .enter(ibv_qp_state::IBV_QPS_ERR)
        .succeeds("to ERR");
    channel.event();
    pair.b.cq.expect(1, ibv_wc_status::IBV_WC_WR_FLUSH_ERR);
}

fn armed_for_all_covers_solicited(device: &Device) {
    // IBTA 11.4.2.2: a request for solicited completions does not replace an earlier request for
    // all.
    let (pair, channel) = pair(device);
    pair.b.cq.arm(false);
    pair.b.cq.arm(true);
    message(&pair, false);
    channel.event();
}

fn channel_without_events_would_block(device: &Device) {
    let channel = Channel::new(device);
    let flags = unsafe { libc::fcntl(channel.fd(), libc::F_GETFL) };
    unsafe { libc::fcntl(channel.fd(), libc::F_SETFL, flags | libc::O_NONBLOCK) }.succeeds("fcntl");
    let (mut cq, mut context) = (ptr::null_mut(), ptr::null_mut());
    let result = unsafe { ibv_get_cq_event(channel.raw(), &mut cq, &mut context) };
    equal("the result", result, -1);
    equal("errno", errno(), libc::EAGAIN);
}

fn events_of_two_queues_are_reported_on_one_channel(device: &Device) {
    let channel = Channel::new(device);
    let pd = Pd::new(device);
    let plan = Plan::new(ibv_qp_type::IBV_QPT_RC);
    let ends: Vec<_> = (0..2)
        .map(|_| {
            let cq = Cq::on_channel(&channel, 4);
            let qp = Qp::new(&pd, &cq, &plan);
            qp.connect(qp.number());
            cq.arm(false);
            qp.post(Request::write(&[], 0, 0));
            (cq, qp)
        })
        .collect();
    let mut queues = [channel.event(), channel.event()];
    queues.sort_unstable();
    let mut expected = [ends[0].0.raw(), ends[1].0.raw()];
    expected.sort_unstable();
    equal("the queues", queues, expected);
}

fn events_may_be_acknowledged_together(device: &Device) {
    let (pair, channel) = pair(device);
    for _ in 0..5 {
        pair.b.cq.arm(false);
        message(&pair, false);
        channel.unacknowledged_event();
        pair.b.cq.success(1);
    }
    // The queue could not be destroyed before this.
    unsafe { ibv_ack_cq_events(pair.b.cq.raw(), 5) };
}

fn channel_with_a_queue_is_busy(device: &Device) {
    let channel = Channel::new(device);
    let _cq = Cq::on_channel(&channel, 4);
    unsafe { ibv_destroy_comp_channel(channel.raw()) }
        .fails("ibv_destroy_comp_channel", &[libc::EBUSY]);
}

fn queue_without_a_channel_can_be_armed(device: &Device) {
    let pair = Pair::rc(device);
    pair.b.cq.arm(false);
    pair.exchange(8);
}

fn events_of_a_destroyed_queue_are_discarded(device: &Device) {
    // A pending event must not name a destroyed queue.
    let channel = Channel::new(device);
    let pd = Pd::new(device);
    let cq = Cq::on_channel(&channel, 4);
    let qp = Qp::new(&pd, &cq, &Plan::new(ibv_qp_type::IBV_QPT_RC));
    qp.connect(qp.number());
    cq.arm(false);
    qp.post(Request::write(&[], 0, 0));
    assert!(channel.has_event(max_wait()));
    drop(qp);
    cq.destroy().succeeds("ibv_destroy_cq");
    assert!(!channel.has_event(QUIET), "the event is still there");
}

fn destruction_waits_for_the_acknowledgement(device: &Device) {
    // The manual of ibv_get_cq_event: ibv_destroy_cq waits for the acknowledgement of all events.
    let channel = Channel::new(device);
    let pd = Pd::new(device);
    let cq = Cq::on_channel(&channel, 4);
    let qp = Qp::new(&pd, &cq, &Plan::new(ibv_qp_type::IBV_QPT_RC));
    qp.connect(qp.number());
    cq.arm(false);
    qp.post(Request::write(&[], 0, 0));
    let event = channel.unacknowledged_event() as usize;
    drop(qp);
    let begun = Arc::new(AtomicBool::new(false));
    let acknowledge = std::thread::spawn({
        let begun = Arc::clone(&begun);
        move || {
            std::thread::sleep(QUIET);
            begun.store(true, Ordering::SeqCst);
            unsafe { ibv_ack_cq_events(event as *mut ibv_cq, 1) };
        }
    });
    cq.destroy().succeeds("ibv_destroy_cq");
    assert!(begun.load(Ordering::SeqCst), "it did not wait");
    acknowledge.join().expect("the thread ends");
}
