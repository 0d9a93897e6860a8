//! Every error status of a request, and its effects.

use std::time::{Duration, Instant};

use ibverbs_sys::ibv_access_flags as Access;
use ibverbs_sys::ibv_qp_state as State;
use ibverbs_sys::ibv_qp_type as Service;
use ibverbs_sys::ibv_wc_status as Status;
use ibverbs_sys::*;

use crate::harness::*;

pub(crate) fn cases() -> Vec<Case> {
    cases![
        local_protection_for_an_unknown_key_of_a_send,
        local_protection_for_an_unknown_key_of_a_write,
        local_protection_for_an_unknown_key_of_a_read,
        local_protection_beyond_the_region_s_end,
        local_protection_before_the_region_s_start,
        local_protection_where_a_read_may_not_write,
        local_protection_where_an_atomic_may_not_write,
        local_protection_in_the_second_element,
        receive_with_an_unknown_key_fails_both,
        receive_that_may_not_be_written_fails_both,
        receive_that_is_too_short_fails_both,
        receive_without_elements_is_too_short,
        message_longer_than_the_port_carries_fails,
        remote_access_for_an_unknown_key_of_a_write,
        remote_access_for_an_unknown_key_of_a_read,
        remote_access_for_an_unknown_key_of_an_atomic,
        remote_access_for_a_key_s_neighbours,
        remote_access_beyond_the_region_s_end,
        remote_access_before_the_region_s_start,
        remote_access_across_the_region_s_end,
        remote_access_that_wraps_around,
        remote_access_to_a_region_without_remote_write,
        remote_access_to_a_region_without_remote_read,
        remote_access_to_a_region_without_remote_atomic,
        remote_access_to_a_region_of_another_domain,
        remote_access_in_the_midst_of_a_long_write,
        queue_pair_without_remote_write_refuses,
        queue_pair_without_remote_read_refuses,
        queue_pair_without_remote_atomic_refuses,
        atomic_that_is_not_aligned_is_refused,
        atomic_beyond_the_region_s_end_is_refused,
        read_at_a_target_that_serves_none_is_refused,
        write_with_immediate_data_to_a_bad_key_succeeds_nowhere,
        rnr_retries_end,
        rnr_retries_of_zero_end_at_once,
        rnr_retry_count_seven_never_expires,
        rnr_retries_end_when_a_receive_is_posted,
        retries_to_a_reset_peer_end,
        retries_to_a_destroyed_peer_end,
        retries_of_zero_end,
        retries_of_seven_end,
        timeout_of_zero_waits_for_ever,
        sends_behind_a_failure_are_flushed,
        receives_of_a_failed_queue_pair_are_flushed,
        unsignaled_request_that_fails_completes,
        unsignaled_requests_behind_a_failure_are_flushed,
        failure_completes_earlier_requests,
        failure_moves_both_ends_to_error,
        a_local_failure_of_the_sender_does_not_affect_the_peer,
        sends_in_error_are_flushed,
        receives_in_error_are_flushed,
        flush_keeps_the_order,
        reset_forgets_without_completions,
        queue_pair_works_again_after_reset,
        failed_completion_names_request_and_queue_pair,
    ]
}

/// Returns a key that no region has.
fn unknown(key: u32) -> u32 {
    key ^ 0x7fff_ff00
}

fn with_key(sge: ibv_sge, lkey: u32) -> ibv_sge {
    ibv_sge { lkey, ..sge }
}

#[track_caller]
fn fails(pair: &Pair, request: Request, status: Status) {
    pair.a.qp.post(request);
    pair.a.cq.expect(1, status);
    pair.a.qp.becomes(State::IBV_QPS_ERR);
}

fn local_protection_for_an_unknown_key_of_a_send(device: &Device) {
    let pair = Pair::rc(device);
    pair.b.receive(1, 0, 64);
    let sge = with_key(pair.a.mr.sge(0, 8), unknown(pair.a.mr.lkey()));
    fails(&pair, Request::send(&[sge]), Status::IBV_WC_LOC_PROT_ERR);
}

fn local_protection_for_an_unknown_key_of_a_write(device: &Device) {
    let pair = Pair::rc(device);
    let sge = with_key(pair.a.mr.sge(0, 8), unknown(pair.a.mr.lkey()));
    let write = Request::write(&[sge], pair.b.mr.at(0), pair.b.mr.rkey());
    fails(&pair, write, Status::IBV_WC_LOC_PROT_ERR);
}

fn local_protection_for_an_unknown_key_of_a_read(device: &Device) {
    let pair = Pair::rc(device);
    let sge = with_key(pair.a.mr.sge(0, 8), unknown(pair.a.mr.lkey()));
    let read = Request::read(&[sge], pair.b.mr.at(0), pair.b.mr.rkey());
    fails(&pair, read, Status::IBV_WC_LOC_PROT_ERR);
}

fn local_protection_beyond_the_region_s_end(device: &Device) {
    let pair = Pair::rc(device);
    pair.b.receive(1, 0, 64);
    fails(
        &pair,
        pair.a.send(SPACE - 7, 8),
        Status::IBV_WC_LOC_PROT_ERR,
    );
}

fn local_protection_before_the_region_s_start(device: &Device) {
    let pair = Pair::rc(device);
    pair.b.receive(1, 0, 64);
    let sge = ibv_sge {
        addr: pair.a.mr.at(0) - 1,
        ..pair.a.mr.sge(0, 8)
    };
    fails(&pair, Request::send(&[sge]), Status::IBV_WC_LOC_PROT_ERR);
}

fn local_protection_where_a_read_may_not_write(device: &Device) {
    let pair = Pair::rc(device);
    let mr = Mr::new(&pair.pd, 4096, Access::IBV_ACCESS_REMOTE_READ);
    let read = Request::read(&[mr.sge(0, 8)], pair.b.mr.at(0), pair.b.mr.rkey());
    fails(&pair, read, Status::IBV_WC_LOC_PROT_ERR);
}

fn local_protection_where_an_atomic_may_not_write(device: &Device) {
    device.needs_atomics();
    let pair = Pair::rc(device);
    let mr = Mr::new(&pair.pd, 4096, Access::IBV_ACCESS_REMOTE_READ);
    let add = Request::fetch_and_add(mr.sge(0, 8), pair.b.mr.at(0), pair.b.mr.rkey(), 1);
    fails(&pair, add, Status::IBV_WC_LOC_PROT_ERR);
}

fn local_protection_in_the_second_element(device: &Device) {
    let pair = Pair::rc(device);
    pair.b.receive(1, 0, 64);
    let bad = with_key(pair.a.mr.sge(0, 8), unknown(pair.a.mr.lkey()));
    let send = Request::send(&[pair.a.mr.sge(0, 8), bad]);
    fails(&pair, send, Status::IBV_WC_LOC_PROT_ERR);
}

/// Posts a send that fails with the status `receiver` at the receiver and `sender` at the sender.
#[track_caller]
fn fails_both(pair: &Pair, receiver: Status, sender: Status) {
    pair.a.qp.post(pair.a.send(0, 8));
    pair.b.cq.expect(2, receiver);
    pair.a.cq.expect(1, sender);
    pair.a.qp.becomes(State::IBV_QPS_ERR);
    pair.b.qp.becomes(State::IBV_QPS_ERR);
}

fn receive_with_an_unknown_key_fails_both(device: &Device) {
    let pair = Pair::rc(device);
    let sge = with_key(pair.b.mr.sge(0, 64), unknown(pair.b.mr.lkey()));
    pair.b.qp.receive(2, &[sge]);
    fails_both(
        &pair,
        Status::IBV_WC_LOC_PROT_ERR,
        Status::IBV_WC_REM_OP_ERR,
    );
}

fn receive_that_may_not_be_written_fails_both(device: &Device) {
    let pair = Pair::rc(device);
    let mr = Mr::new(&pair.pd, 4096, Access::IBV_ACCESS_REMOTE_READ);
    pair.b.qp.receive(2, &[mr.sge(0, 64)]);
    fails_both(
        &pair,
        Status::IBV_WC_LOC_PROT_ERR,
        Status::IBV_WC_REM_OP_ERR,
    );
}

fn receive_that_is_too_short_fails_both(device: &Device) {
    let pair = Pair::rc(device);
    pair.b.receive(2, 0, 7);
    fails_both(
        &pair,
        Status::IBV_WC_LOC_LEN_ERR,
        Status::IBV_WC_REM_INV_REQ_ERR,
    );
}

fn receive_without_elements_is_too_short(device: &Device) {
    let pair = Pair::rc(device);
    pair.b.qp.receive(2, &[]);
    fails_both(
        &pair,
        Status::IBV_WC_LOC_LEN_ERR,
        Status::IBV_WC_REM_INV_REQ_ERR,
    );
}

fn message_longer_than_the_port_carries_fails(device: &Device) {
    // IBTA 11.6.2: the requester's length check; a device may also refuse the request.
    let quarter = device.port().max_msg_sz as usize / 4 + 1;
    let pair = Pair::rc(device);
    // A device that does not pin memory uses none of this address space.
    let mr = Mr::new(&pair.pd, quarter, Access::IBV_ACCESS_LOCAL_WRITE);
    let sges = [0; 4].map(|offset| mr.sge(offset, quarter));
    let write = Request::write(&sges, pair.b.mr.at(0), pair.b.mr.rkey());
    match pair.a.qp.try_post(write) {
        Err(number) => Err::<(), _>(number).fails("ibv_post_send", &[libc::EINVAL, libc::EMSGSIZE]),
        Ok(()) => drop(pair.a.cq.expect(1, Status::IBV_WC_LOC_LEN_ERR)),
    }
}

fn remote_access_for_an_unknown_key_of_a_write(device: &Device) {
    let pair = Pair::rc(device);
    let key = unknown(pair.b.mr.rkey());
    let write = Request::write(&[pair.a.mr.sge(0, 8)], pair.b.mr.at(0), key);
    fails(&pair, write, Status::IBV_WC_REM_ACCESS_ERR);
}

fn remote_access_for_an_unknown_key_of_a_read(device: &Device) {
    let pair = Pair::rc(device);
    let key = unknown(pair.b.mr.rkey());
    let read = Request::read(&[pair.a.mr.sge(0, 8)], pair.b.mr.at(0), key);
    fails(&pair, read, Status::IBV_WC_REM_ACCESS_ERR);
}

fn remote_access_for_an_unknown_key_of_an_atomic(device: &Device) {
    device.needs_atomics();
    let pair = Pair::rc(device);
    let key = unknown(pair.b.mr.rkey());
    let add = Request::fetch_and_add(pair.a.mr.sge(0, 8), pair.b.mr.at(0), key, 1);
    fails(&pair, add, Status::IBV_WC_REM_ACCESS_ERR);
}

fn remote_access_for_a_key_s_neighbours(device: &Device) {
    for bit in [0, 7, 31] {
        let pair = Pair::rc(device);
        let key = pair.b.mr.rkey() ^ (1 << bit);
        if [pair.a.mr.rkey(), pair.b.mr.rkey()].contains(&key) {
            continue;
        }
        let write = Request::write(&[pair.a.mr.sge(0, 8)], pair.b.mr.at(0), key);
        fails(&pair, write, Status::IBV_WC_REM_ACCESS_ERR);
    }
}

#[track_caller]
fn write_at(device: &Device, address: impl Fn(&Mr) -> u64, length: usize) {
    let pair = Pair::rc(device);
    let (address, key) = (address(&pair.b.mr), pair.b.mr.rkey());
    let write = Request::write(&[pair.a.mr.sge(0, length)], address, key);
    fails(&pair, write, Status::IBV_WC_REM_ACCESS_ERR);
}

fn remote_access_beyond_the_region_s_end(device: &Device) {
    write_at(device, |mr| mr.at(SPACE), 1);
}

fn remote_access_before_the_region_s_start(device: &Device) {
    write_at(device, |mr| mr.at(0) - 1, 8);
}

fn remote_access_across_the_region_s_end(device: &Device) {
    write_at(device, |mr| mr.at(SPACE - 7), 8);
}

fn remote_access_that_wraps_around(device: &Device) {
    write_at(device, |_| u64::MAX - 3, 8);
}

/// Creates a pair, and a region of the second end with the access flags `access`.
fn region(device: &Device, access: Access) -> (Pair, Mr) {
    let pair = Pair::rc(device);
    let mr = Mr::new(&pair.pd, 4096, access | Access::IBV_ACCESS_LOCAL_WRITE);
    (pair, mr)
}

fn remote_access_to_a_region_without_remote_write(device: &Device) {
    let access = Access::IBV_ACCESS_REMOTE_READ | Access::IBV_ACCESS_REMOTE_ATOMIC;
    let (pair, mr) = region(device, access);
    let write = Request::write(&[pair.a.mr.sge(0, 8)], mr.at(0), mr.rkey());
    fails(&pair, write, Status::IBV_WC_REM_ACCESS_ERR);
}

fn remote_access_to_a_region_without_remote_read(device: &Device) {
    let access = Access::IBV_ACCESS_REMOTE_WRITE | Access::IBV_ACCESS_REMOTE_ATOMIC;
    let (pair, mr) = region(device, access);
    let read = Request::read(&[pair.a.mr.sge(0, 8)], mr.at(0), mr.rkey());
    fails(&pair, read, Status::IBV_WC_REM_ACCESS_ERR);
}

fn remote_access_to_a_region_without_remote_atomic(device: &Device) {
    device.needs_atomics();
    let access = Access::IBV_ACCESS_REMOTE_WRITE | Access::IBV_ACCESS_REMOTE_READ;
    let (pair, mr) = region(device, access);
    let add = Request::fetch_and_add(pair.a.mr.sge(0, 8), mr.at(0), mr.rkey(), 1);
    fails(&pair, add, Status::IBV_WC_REM_ACCESS_ERR);
    equal("the memory", mr.u64(0), 0);
}

fn remote_access_to_a_region_of_another_domain(device: &Device) {
    let pair = Pair::rc(device);
    let mr = Mr::new(&Pd::new(device), 4096, ALL_ACCESS);
    let write = Request::write(&[pair.a.mr.sge(0, 8)], mr.at(0), mr.rkey());
    fails(&pair, write, Status::IBV_WC_REM_ACCESS_ERR);
}

fn remote_access_in_the_midst_of_a_long_write(device: &Device) {
    // The whole length is in the first packet's header: not a byte may be written.
    let pair = Pair::rc(device);
    let mr = Mr::new(&pair.pd, 16 << 10, ALL_ACCESS);
    pair.a.mr.write(0, &[0xff; 32 << 10]);
    let write = Request::write(&[pair.a.mr.sge(0, 32 << 10)], mr.at(0), mr.rkey());
    fails(&pair, write, Status::IBV_WC_REM_ACCESS_ERR);
    assert!(
        mr.read(0, 16 << 10) == vec![0; 16 << 10],
        "bytes were written"
    );
}

/// Creates a pair whose queue pairs grant only the access `access`.
fn granting(device: &Device, access: Access) -> Pair {
    let mut plan = Plan::new(Service::IBV_QPT_RC);
    plan.access = access;
    Pair::new(device, &plan)
}

// IBTA 11.6.2, Remote Invalid Request Error: the operation is not supported by the queue pair.

fn queue_pair_without_remote_write_refuses(device: &Device) {
    let pair = granting(device, Access::IBV_ACCESS_REMOTE_READ);
    fails(
        &pair,
        pair.a.write(&pair.b, 0, 8),
        Status::IBV_WC_REM_INV_REQ_ERR,
    );
}

fn queue_pair_without_remote_read_refuses(device: &Device) {
    let pair = granting(device, Access::IBV_ACCESS_REMOTE_WRITE);
    fails(
        &pair,
        pair.a.read(&pair.b, 0, 8),
        Status::IBV_WC_REM_INV_REQ_ERR,
    );
}

fn queue_pair_without_remote_atomic_refuses(device: &Device) {
    device.needs_atomics();
    let access = Access::IBV_ACCESS_REMOTE_WRITE | Access::IBV_ACCESS_REMOTE_READ;
    let pair = granting(device, access);
    let (target, key) = (pair.b.mr.at(0), pair.b.mr.rkey());
    let add = Request::fetch_and_add(pair.a.mr.sge(0, 8), target, key, 1);
    fails(&pair, add, Status::IBV_WC_REM_INV_REQ_ERR);
}

fn atomic_that_is_not_aligned_is_refused(device: &Device) {
    // IBTA 9.4.5: an atomic at an address that is not a multiple of eight is an invalid request. A
    // device may check the address before it sends.
    device.needs_atomics();
    let pair = Pair::rc(device);
    let (target, key) = (pair.b.mr.at(4), pair.b.mr.rkey());
    let add = Request::fetch_and_add(pair.a.mr.sge(0, 8), target, key, 1);
    match pair.a.qp.try_post(add) {
        Err(number) => Err::<(), _>(number).fails("ibv_post_send", &[libc::EINVAL]),
        Ok(()) => drop(pair.a.cq.expect(1, Status::IBV_WC_REM_INV_REQ_ERR)),
    }
    equal("the memory", pair.b.mr.read(0, 16), vec![0; 16]);
}

fn atomic_beyond_the_region_s_end_is_refused(device: &Device) {
    device.needs_atomics();
    let pair = Pair::rc(device);
    let (target, key) = (pair.b.mr.at(SPACE), pair.b.mr.rkey());
    let add = Request::fetch_and_add(pair.a.mr.sge(0, 8), target, key, 1);
    fails(&pair, add, Status::IBV_WC_REM_ACCESS_ERR);
}

fn read_at_a_target_that_serves_none_is_refused(device: &Device) {
    // IBTA 11.6.2: insufficient buffering to receive a new RDMA or atomic request.
    let mut plan = Plan::new(Service::IBV_QPT_RC);
    plan.served_reads = 0;
    let pair = Pair::new(device, &plan);
    fails(
        &pair,
        pair.a.read(&pair.b, 0, 8),
        Status::IBV_WC_REM_INV_REQ_ERR,
    );
}

fn write_with_immediate_data_to_a_bad_key_succeeds_nowhere(device: &Device) {
    let pair = Pair::rc(device);
    pair.b.qp.receive(2, &[]);
    let key = unknown(pair.b.mr.rkey());
    let write = Request::write(&[pair.a.mr.sge(0, 8)], pair.b.mr.at(0), key);
    fails(&pair, write.immediate(1), Status::IBV_WC_REM_ACCESS_ERR);
    assert!(
        pair.b.cq.next().status != Status::IBV_WC_SUCCESS,
        "the receive succeeded"
    );
}

/// Creates a pair whose plan `change` modifies, for tests of timeouts and retries.
fn patient(device: &Device, change: impl Fn(&mut Plan)) -> Pair {
    let mut plan = Plan::new(Service::IBV_QPT_RC);
    // 0.26 ms, and an RNR delay of 0.01 ms.
    (plan.timeout, plan.min_rnr_timer) = (6, 1);
    change(&mut plan);
    Pair::new(device, &plan)
}

fn rnr_retries_end(device: &Device) {
    let pair = patient(device, |plan| (plan.rnr_retry, plan.timeout) = (3, 18));
    fails(&pair, pair.a.send(0, 8), Status::IBV_WC_RNR_RETRY_EXC_ERR);
}

fn rnr_retries_of_zero_end_at_once(device: &Device) {
    let pair = patient(device, |plan| (plan.rnr_retry, plan.timeout) = (0, 18));
    fails(&pair, pair.a.send(0, 8), Status::IBV_WC_RNR_RETRY_EXC_ERR);
}

fn rnr_retry_count_seven_never_expires(device: &Device) {
    // IBTA 9.7.5.2.8: seven means without end.
    let pair = patient(device, |plan| (plan.rnr_retry, plan.timeout) = (7, 18));
    pair.a.qp.post(pair.a.send(0, 8));
    assert!(pair.a.cq.within(Duration::from_millis(200)).is_none());
    pair.b.receive(2, 0, 8);
    pair.a.cq.success(1);
    pair.b.cq.success(2);
}

fn rnr_retries_end_when_a_receive_is_posted(device: &Device) {
    // Six retries with an RNR delay of 123 ms: the receive is posted before they end, if this
    // thread is scheduled.
    let change = |plan: &mut Plan| {
        (plan.rnr_retry, plan.min_rnr_timer, plan.timeout) = (6, 27, 18);
    };
    let end = Instant::now() + max_wait();
    while Instant::now() < end {
        let pair = patient(device, change);
        let begin = Instant::now();
        pair.a.qp.post(pair.a.send(0, 8));
        std::thread::sleep(Duration::from_millis(5));
        pair.b.receive(2, 0, 8);
        if begin.elapsed() < Duration::from_millis(400) {
            pair.a.cq.success(1);
            pair.b.cq.success(2);
            return;
        }
    }
    panic!("this thread is not let run");
}

fn retries_to_a_reset_peer_end(device: &Device) {
    let pair = patient(device, |plan| plan.retry_count = 2);
    pair.b.qp.enter(State::IBV_QPS_RESET).succeeds("to RESET");
    fails(&pair, pair.a.send(0, 8), Status::IBV_WC_RETRY_EXC_ERR);
}

fn retries_to_a_destroyed_peer_end(device: &Device) {
    let pair = patient(device, |plan| plan.retry_count = 2);
    let Pair { a, b, pd: _pd } = pair;
    drop(b.qp);
    a.qp.post(Request::write(&[a.mr.sge(0, 8)], b.mr.at(0), b.mr.rkey()));
    a.cq.expect(1, Status::IBV_WC_RETRY_EXC_ERR);
}

fn retries_of_zero_end(device: &Device) {
    let pair = patient(device, |plan| plan.retry_count = 0);
    pair.b.qp.enter(State::IBV_QPS_RESET).succeeds("to RESET");
    fails(&pair, pair.a.send(0, 8), Status::IBV_WC_RETRY_EXC_ERR);
}

fn retries_of_seven_end(device: &Device) {
    // IBTA 9.7.6: only the RNR count has a value that means without end.
    let pair = patient(device, |plan| plan.retry_count = 7);
    pair.b.qp.enter(State::IBV_QPS_RESET).succeeds("to RESET");
    fails(&pair, pair.a.send(0, 8), Status::IBV_WC_RETRY_EXC_ERR);
}

fn timeout_of_zero_waits_for_ever(device: &Device) {
    let pair = patient(device, |plan| (plan.timeout, plan.retry_count) = (0, 1));
    pair.b.qp.enter(State::IBV_QPS_RESET).succeeds("to RESET");
    pair.a.qp.post(pair.a.send(0, 8));
    assert!(pair.a.cq.within(Duration::from_millis(300)).is_none());
}

/// Returns a write that fails at the peer.
fn bad_write(pair: &Pair) -> Request {
    let key = unknown(pair.b.mr.rkey());
    Request::write(&[pair.a.mr.sge(0, 8)], pair.b.mr.at(0), key)
}

fn sends_behind_a_failure_are_flushed(device: &Device) {
    let pair = Pair::rc(device);
    let mut requests = [
        bad_write(&pair).id(1),
        pair.a.write(&pair.b, 0, 8).id(2),
        pair.a.read(&pair.b, 0, 8).id(3),
    ];
    Request::post_all(&pair.a.qp, &mut requests).expect("ibv_post_send");
    pair.a.cq.expect(1, Status::IBV_WC_REM_ACCESS_ERR);
    pair.a.cq.expect(2, Status::IBV_WC_WR_FLUSH_ERR);
    pair.a.cq.expect(3, Status::IBV_WC_WR_FLUSH_ERR);
}

fn receives_of_a_failed_queue_pair_are_flushed(device: &Device) {
    let pair = Pair::rc(device);
    pair.a.receive(10, 0, 8);
    pair.a.receive(11, 0, 8);
    pair.b.receive(12, 0, 8);
    pair.a.qp.post(bad_write(&pair));
    pair.a.cq.expect(1, Status::IBV_WC_REM_ACCESS_ERR);
    pair.a.cq.expect(10, Status::IBV_WC_WR_FLUSH_ERR);
    pair.a.cq.expect(11, Status::IBV_WC_WR_FLUSH_ERR);
    pair.b.cq.expect(12, Status::IBV_WC_WR_FLUSH_ERR);
}

fn unsignaled_request_that_fails_completes(device: &Device) {
    let pair = Pair::rc(device);
    fails(
        &pair,
        bad_write(&pair).unsignaled(),
        Status::IBV_WC_REM_ACCESS_ERR,
    );
}

fn unsignaled_requests_behind_a_failure_are_flushed(device: &Device) {
    let pair = Pair::rc(device);
    let mut requests = [
        bad_write(&pair).unsignaled(),
        pair.a.write(&pair.b, 0, 8).id(2).unsignaled(),
    ];
    Request::post_all(&pair.a.qp, &mut requests).expect("ibv_post_send");
    pair.a.cq.expect(1, Status::IBV_WC_REM_ACCESS_ERR);
    pair.a.cq.expect(2, Status::IBV_WC_WR_FLUSH_ERR);
}

fn failure_completes_earlier_requests(device: &Device) {
    let pair = Pair::rc(device);
    let mut requests = [
        pair.a.write(&pair.b, 0, 8).id(5),
        pair.a.read(&pair.b, 0, 8).id(6),
        bad_write(&pair).id(7),
    ];
    Request::post_all(&pair.a.qp, &mut requests).expect("ibv_post_send");
    pair.a.cq.success(5);
    pair.a.cq.success(6);
    pair.a.cq.expect(7, Status::IBV_WC_REM_ACCESS_ERR);
}

fn failure_moves_both_ends_to_error(device: &Device) {
    let pair = Pair::rc(device);
    fails(&pair, bad_write(&pair), Status::IBV_WC_REM_ACCESS_ERR);
    pair.b.qp.becomes(State::IBV_QPS_ERR);
}

fn a_local_failure_of_the_sender_does_not_affect_the_peer(device: &Device) {
    let pair = Pair::rc(device);
    let sge = with_key(pair.a.mr.sge(0, 8), unknown(pair.a.mr.lkey()));
    fails(&pair, Request::send(&[sge]), Status::IBV_WC_LOC_PROT_ERR);
    equal("the peer's state", pair.b.qp.state(), State::IBV_QPS_RTS);
}

fn sends_in_error_are_flushed(device: &Device) {
    let pair = Pair::rc(device);
    pair.a.qp.enter(State::IBV_QPS_ERR).succeeds("to ERR");
    for id in 0..3 {
        pair.a.qp.post(pair.a.send(0, 8).id(id));
    }
    for id in 0..3 {
        pair.a.cq.expect(id, Status::IBV_WC_WR_FLUSH_ERR);
    }
}

fn receives_in_error_are_flushed(device: &Device) {
    let pair = Pair::rc(device);
    pair.a.qp.enter(State::IBV_QPS_ERR).succeeds("to ERR");
    for id in 0..3 {
        pair.a.receive(id, 0, 8);
    }
    for id in 0..3 {
        pair.a.cq.expect(id, Status::IBV_WC_WR_FLUSH_ERR);
    }
}

fn flush_keeps_the_order(device: &Device) {
    let pair = Pair::rc(device);
    for id in 0..8 {
        pair.a.receive(100 + id, 0, 8);
        // The peer has no receive, so they wait.
        pair.a.qp.post(pair.a.send(0, 8).id(id));
    }
    pair.a.qp.enter(State::IBV_QPS_ERR).succeeds("to ERR");
    let completions: Vec<_> = (0..16).map(|_| pair.a.cq.next()).collect();
    for completion in &completions {
        equal("the status", completion.status, Status::IBV_WC_WR_FLUSH_ERR);
    }
    let ids = |wanted: fn(&u64) -> bool| -> Vec<_> {
        completions
            .iter()
            .map(|wc| wc.wr_id)
            .filter(wanted)
            .collect()
    };
    equal("the sends", ids(|id| *id < 100), (0..8).collect());
    equal("the receives", ids(|id| *id >= 100), (100..108).collect());
}

fn reset_forgets_without_completions(device: &Device) {
    let pair = Pair::rc(device);
    pair.a.receive(1, 0, 8);
    pair.a.qp.post(pair.a.send(0, 8).id(2));
    pair.a.qp.enter(State::IBV_QPS_RESET).succeeds("to RESET");
    pair.a.cq.stays_empty();
}

fn queue_pair_works_again_after_reset(device: &Device) {
    let pair = Pair::rc(device);
    fails(&pair, bad_write(&pair), Status::IBV_WC_REM_ACCESS_ERR);
    for end in [&pair.a, &pair.b] {
        end.qp.enter(State::IBV_QPS_RESET).succeeds("to RESET");
    }
    pair.a.qp.connect(pair.b.qp.number());
    pair.b.qp.connect(pair.a.qp.number());
    pair.exchange(5000);
}

fn failed_completion_names_request_and_queue_pair(device: &Device) {
    let pair = Pair::rc(device);
    pair.a.qp.post(bad_write(&pair).id(u64::MAX));
    let failed = pair.a.cq.expect(u64::MAX, Status::IBV_WC_REM_ACCESS_ERR);
    equal("qp_num", failed.qp_num, pair.a.qp.number());
}
