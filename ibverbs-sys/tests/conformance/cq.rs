//! Completion queues.

use std::ffi::c_int;
use std::ptr;

use ibverbs_sys::*;

use crate::harness::*;

pub(crate) fn cases() -> Vec<Case> {
    cases![
        a_queue_has_at_least_the_requested_capacity,
        queue_remembers_its_context,
        queue_without_entries_is_refused,
        queue_of_negative_size_is_refused,
        queue_beyond_the_limit_is_refused,
        a_queue_of_the_maximum_size_is_created,
        vector_beyond_the_last_is_refused,
        negative_vector_is_refused,
        every_vector_works,
        many_queues_exist_at_once,
        empty_queue_polls_nothing,
        a_poll_for_no_completion_removes_none,
        a_poll_returns_several_completions,
        a_poll_returns_no_more_than_requested,
        queue_of_a_queue_pair_is_busy,
        a_queue_used_only_for_receives_is_busy,
        send_and_receive_queues_may_differ,
        entries_of_a_destroyed_queue_pair_can_be_read,
        resize_to_more,
        resize_to_less,
        resize_keeps_the_entries,
        resize_below_the_entries_is_refused,
        resize_to_nothing_is_refused,
        resize_beyond_the_limit_is_refused,
        overflow_raises_an_event,
        moderation_is_supported_as_reported,
        exactly_as_many_completions_as_entries_fit,
    ]
}

fn a_queue_has_at_least_the_requested_capacity(device: &Device) {
    for entries in [1, 2, 3, 100, 1000] {
        let cq = Cq::new(device, entries);
        assert!(
            cq.capacity() >= entries as usize,
            "{} of {entries}",
            cq.capacity()
        );
    }
}

fn queue_remembers_its_context(device: &Device) {
    let mut own = 7_u32;
    let cq_context = ptr::from_mut(&mut own).cast();
    let raw = unsafe { ibv_create_cq(device.context(), 4, cq_context, ptr::null_mut(), 0) };
    let cq = Cq::from_raw(device, raw.succeeds("ibv_create_cq"), None);
    let raw = unsafe { &*cq.raw() };
    equal("cq_context", raw.cq_context, cq_context);
    equal("context", raw.context, device.context());
    equal("channel", raw.channel, ptr::null_mut());
}

#[track_caller]
fn refused(device: &Device, entries: c_int, vector: c_int) {
    Cq::create(device, entries, None, vector)
        .map(drop)
        .fails("ibv_create_cq", &[libc::EINVAL]);
}

fn queue_without_entries_is_refused(device: &Device) {
    refused(device, 0, 0);
}

fn queue_of_negative_size_is_refused(device: &Device) {
    refused(device, -1, 0);
}

fn queue_beyond_the_limit_is_refused(device: &Device) {
    refused(device, device.attr().max_cqe + 1, 0);
}

fn a_queue_of_the_maximum_size_is_created(device: &Device) {
    let most = device.attr().max_cqe;
    if most > 1 << 20 {
        ignore(format!("{most} entries are too many to try (max_cqe)"));
    }
    assert!(Cq::new(device, most).capacity() >= most as usize);
}

fn vector_beyond_the_last_is_refused(device: &Device) {
    refused(device, 4, unsafe { (*device.context()).num_comp_vectors });
}

fn negative_vector_is_refused(device: &Device) {
    refused(device, 4, -1);
}

fn every_vector_works(device: &Device) {
    for vector in 0..unsafe { (*device.context()).num_comp_vectors } {
        Cq::create(device, 4, None, vector).succeeds("ibv_create_cq");
    }
}

fn many_queues_exist_at_once(device: &Device) {
    let queues: Vec<_> = (0..50).map(|_| Cq::new(device, 4)).collect();
    let mut handles: Vec<_> = queues
        .iter()
        .map(|cq| unsafe { (*cq.raw()).handle })
        .collect();
    handles.sort_unstable();
    handles.dedup();
    equal(
        "the number of different handles",
        handles.len(),
        queues.len(),
    );
}

fn empty_queue_polls_nothing(device: &Device) {
    let cq = Cq::new(device, 4);
    assert!(cq.poll(4).is_empty());
    cq.stays_empty();
}

fn a_poll_for_no_completion_removes_none(device: &Device) {
    let pair = Pair::rc(device);
    pair.a.qp.post(pair.a.write(&pair.b, 0, 8));
    assert!(pair.a.cq.poll(0).is_empty());
    pair.a.cq.success(1);
}

/// Creates a pair in which one end has `count` completions to poll.
fn completed(device: &Device, count: u64) -> Pair {
    let pair = Pair::rc(device);
    for id in 0..count - 1 {
        pair.a.qp.post(pair.a.write(&pair.b, 0, 8).id(id));
    }
    // Completions are reported in order: when the peer receives the last message, all others have
    // arrived.
    pair.b.receive(1, 100, 8);
    pair.a.qp.post(pair.a.send(0, 8).id(count - 1));
    pair.b.cq.success(1);
    // The acknowledgement has arrived when this read completes.
    pair.b.qp.post(pair.b.read(&pair.a, 0, 8));
    pair.b.cq.success(1);
    std::thread::sleep(QUIET);
    pair
}

fn a_poll_returns_several_completions(device: &Device) {
    let pair = completed(device, 10);
    let ids: Vec<_> = pair.a.cq.poll(32).iter().map(|wc| wc.wr_id).collect();
    equal("the completions", ids, (0..10).collect());
}

fn a_poll_returns_no_more_than_requested(device: &Device) {
    let pair = completed(device, 10);
    let ids = |room| -> Vec<_> { pair.a.cq.poll(room).iter().map(|wc| wc.wr_id).collect() };
    equal("the first", ids(3), (0..3).collect());
    equal("the next", ids(3), (3..6).collect());
    equal("the rest", ids(30), (6..10).collect());
}

fn queue_of_a_queue_pair_is_busy(device: &Device) {
    let pair = Pair::rc(device);
    unsafe { ibv_destroy_cq(pair.a.cq.raw()) }.fails("ibv_destroy_cq", &[libc::EBUSY]);
    pair.exchange(8);
}

fn a_queue_used_only_for_receives_is_busy(device: &Device) {
    let pd = Pd::new(device);
    let (send, receive) = (Cq::new(device, 4), Cq::new(device, 4));
    let plan = Plan::new(ibv_qp_type::IBV_QPT_RC);
    let _qp = Qp::create(&pd, &send, &receive, &plan).succeeds("ibv_create_qp");
    for cq in [&send, &receive] {
        unsafe { ibv_destroy_cq(cq.raw()) }.fails("ibv_destroy_cq", &[libc::EBUSY]);
    }
}

fn send_and_receive_queues_may_differ(device: &Device) {
    let pd = Pd::new(device);
    let (sends, receives) = (Cq::new(device, 4), Cq::new(device, 4));
    let plan = Plan::new(ibv_qp_type::IBV_QPT_RC);
    let qp = Qp::create(&pd, &sends, &receives, &plan).succeeds("ibv_create_qp");
    qp.connect(qp.number());
    qp.receive(1, &[]);
    qp.post(Request::send(&[]).id(2));
    sends.success(2);
    receives.success(1);
    sends.stays_empty();
    receives.stays_empty();
}

fn entries_of_a_destroyed_queue_pair_can_be_read(device: &Device) {
    // IBTA 11.2 permits the completions to be kept or lost. Polled completions must be complete,
    // and polling must work.
    let pair = completed(device, 3);
    let Pair { a, b, pd: _pd } = pair;
    let End { qp, cq, mr: _mr } = a;
    drop(qp);
    for completion in cq.poll(16) {
        assert!(
            completion.wr_id < 3,
            "a completion of request {}",
            completion.wr_id
        );
    }
    drop(b);
}

fn resize(cq: &Cq, entries: c_int) -> c_int {
    unsafe { ibv_resize_cq(cq.raw(), entries) }
}

fn resize_to_more(device: &Device) {
    let cq = Cq::new(device, 4);
    resize(&cq, 400).supported("ibv_resize_cq");
    assert!(cq.capacity() >= 400, "{}", cq.capacity());
}

fn resize_to_less(device: &Device) {
    let cq = Cq::new(device, 400);
    resize(&cq, 4).supported("ibv_resize_cq");
    assert!(cq.capacity() >= 4, "{}", cq.capacity());
}

fn resize_keeps_the_entries(device: &Device) {
    let pair = completed(device, 10);
    resize(&pair.a.cq, 500).supported("ibv_resize_cq");
    let ids: Vec<_> = pair.a.cq.poll(32).iter().map(|wc| wc.wr_id).collect();
    equal("the completions", ids, (0..10).collect());
    pair.exchange(8);
}

fn resize_below_the_entries_is_refused(device: &Device) {
    let pair = completed(device, 10);
    let capacity = pair.a.cq.capacity();
    let result = resize(&pair.a.cq, 1);
    if result == 0 && pair.a.cq.capacity() >= 10 {
        // The capacity is at least the requested one, so the queue may be larger.
    } else {
        result.fails("ibv_resize_cq", &[libc::EINVAL]);
        equal("the capacity", pair.a.cq.capacity(), capacity);
    }
    let ids: Vec<_> = pair.a.cq.poll(32).iter().map(|wc| wc.wr_id).collect();
    equal("the completions", ids, (0..10).collect());
}

fn resize_to_nothing_is_refused(device: &Device) {
    let cq = Cq::new(device, 4);
    resize(&cq, 0).fails("ibv_resize_cq(0)", &[libc::EINVAL]);
}

fn resize_beyond_the_limit_is_refused(device: &Device) {
    let cq = Cq::new(device, 4);
    resize(&cq, device.attr().max_cqe + 1).fails("ibv_resize_cq", &[libc::EINVAL]);
}

/// Creates a pair whose first end has a completion queue of the minimum size.
fn small(device: &Device) -> (Pair, usize) {
    let pd = Pd::new(device);
    let cq = Cq::new(device, 1);
    let capacity = cq.capacity();
    let mut plan = Plan::new(ibv_qp_type::IBV_QPT_RC);
    plan.cap.max_send_wr = capacity as u32 + 2;
    let a = End {
        qp: Qp::new(&pd, &cq, &plan),
        cq,
        mr: Mr::new(&pd, 4096, ALL_ACCESS),
    };
    let b = End::new(&pd, &plan, 4096);
    a.qp.connect(b.qp.number());
    b.qp.connect(a.qp.number());
    (Pair { a, b, pd }, capacity)
}

fn overflow_raises_an_event(device: &Device) {
    // IBTA 11.6.3.2: a CQ overrun is an affiliated asynchronous error of the CQ.
    let (pair, capacity) = small(device);
    for id in 0..capacity as u64 + 2 {
        pair.a.qp.post(pair.a.write(&pair.b, 0, 8).id(id));
    }
    let event = device.event_of(ibv_event_type::IBV_EVENT_CQ_ERR);
    equal("the queue", unsafe { event.element.cq }, pair.a.cq.raw());
}

fn exactly_as_many_completions_as_entries_fit(device: &Device) {
    let (pair, capacity) = small(device);
    for id in 0..capacity as u64 {
        pair.a.qp.post(pair.a.write(&pair.b, 0, 8).id(id));
    }
    std::thread::sleep(QUIET);
    for id in 0..capacity as u64 {
        pair.a.cq.success(id);
    }
    assert!(!device.has_event(QUIET), "an event came");
}

fn moderation_is_supported_as_reported(device: &Device) {
    let caps = &device.attr_ex().cq_mod_caps;
    let pair = Pair::rc(device);
    let mut attr = ibv_modify_cq_attr {
        attr_mask: ibv_cq_attr_mask::IBV_CQ_ATTR_MODERATE.0,
        moderate: ibv_moderate_cq {
            cq_count: 2,
            cq_period: 10,
        },
    };
    let result = unsafe { ibv_modify_cq(pair.a.cq.raw(), &mut attr) };
    if caps.max_cq_count == 0 {
        return result.fails(
            "ibv_modify_cq",
            &[libc::EOPNOTSUPP, libc::ENOSYS, libc::EINVAL],
        );
    }
    result.succeeds("ibv_modify_cq");
    pair.exchange(8);
}
