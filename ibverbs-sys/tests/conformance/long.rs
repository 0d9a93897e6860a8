//! Long messages that take a receive. A device may transfer them in other ways than short ones, and
//! in parts, so the requirements on messages of any length are checked here once more.

use std::time::Duration;

use ibverbs_sys::ibv_qp_state as State;
use ibverbs_sys::ibv_qp_type as Service;
use ibverbs_sys::ibv_wc_opcode as Opcode;
use ibverbs_sys::ibv_wc_status as Status;
use ibverbs_sys::*;

use crate::harness::*;

pub(crate) fn cases() -> Vec<Case> {
    let mut cases = cases![
        a_send_gathers_and_scatters_lists,
        write_with_immediate_data_gathers,
        write_with_immediate_data_of_an_unreliable_connection_arrives,
        messages_keep_their_order_with_other_work,
        short_writes_with_immediate_data_keep_their_order,
        a_shared_receive_queue_receives_long_messages,
        message_without_a_receive_waits,
        other_queue_pairs_work_while_one_waits_for_a_receive,
        receive_that_is_too_short_fails_both,
        receive_that_may_not_be_written_fails_both,
        write_with_immediate_data_to_a_bad_key_succeeds_nowhere,
        write_with_immediate_data_needs_the_queue_pair_s_permission,
        message_to_a_destroyed_peer_ends,
    ];
    for (row, length) in LENGTHS.iter().enumerate() {
        let name = format!("long::write_with_immediate_data_of_{length}_bytes");
        cases.push(Case::row(name, writes_with_immediate_data, row));
    }
    cases
}

/// Length of the messages in bytes, not a multiple of any path MTU.
const LONG: usize = 300_001;

/// Length of the memory of each end in bytes.
const ROOM: usize = 2 << 20;

/// Place of the second message in a memory.
const SECOND: usize = 1 << 20;

/// Lengths of writes with immediate data in bytes, from the shortest to long ones.
const LENGTHS: [usize; 10] = [
    0,
    1,
    33,
    4096,
    4097,
    16 << 10,
    (16 << 10) + 1,
    32 << 10,
    65_537,
    LONG,
];

fn pair(device: &Device, plan: &Plan) -> Pair {
    Pair::with(device, plan, plan, ROOM)
}

fn reliable(device: &Device) -> Pair {
    pair(device, &Plan::new(Service::IBV_QPT_RC))
}

fn a_send_gathers_and_scatters_lists(device: &Device) {
    let Pair { a, b, pd: _pd } = &reliable(device);
    let sent = pattern(LONG, 5);
    // The parts are in memory in another order than in the message, with gaps in between.
    let from = [(SECOND, 100_001), (0, 0), (7, 3), (500_000, 199_997)];
    let to = [
        (900_000, 12_345),
        (11, 250_000),
        (SECOND, 1),
        (SECOND + 9, LONG),
    ];
    let mut done = 0;
    for (offset, length) in from {
        a.mr.write(offset, &sent[done..done + length]);
        done += length;
    }
    b.qp.receive(2, &to.map(|(offset, length)| b.mr.sge(offset, length)));
    let list = from.map(|(offset, length)| a.mr.sge(offset, length));
    a.qp.post(Request::send(&list).immediate(0x0708_090a));
    a.cq.success(1);
    let received = b.cq.success(2);
    equal("the length", received.byte_len as usize, LONG);
    equal("the data", immediate(&received), 0x0708_090a);
    let mut came = Vec::new();
    for (offset, length) in to {
        came.extend(b.mr.read(offset, length.min(LONG - came.len())));
    }
    assert!(came == sent, "the bytes are not those sent");
    let last = SECOND + 9 + LONG - 12_345 - 250_000 - 1;
    assert!(b.mr.read(last, 64) == [0; 64], "more was written than sent");
}

fn write_with_immediate_data_gathers(device: &Device) {
    let Pair { a, b, pd: _pd } = &reliable(device);
    let sent = pattern(LONG, 6);
    a.mr.write(SECOND, &sent[..1000]);
    a.mr.write(0, &sent[1000..]);
    b.qp.receive(2, &[]);
    let list = [a.mr.sge(SECOND, 1000), a.mr.sge(0, LONG - 1000)];
    a.qp.post(Request::write(&list, b.mr.at(77), b.mr.rkey()).immediate(9));
    a.cq.success(1);
    expect_write(b, 2, LONG, 9);
    assert!(b.mr.read(77, LONG) == sent, "the bytes are not those sent");
}

/// Takes the completion of a receive that a write with immediate data has taken.
#[track_caller]
fn expect_write(end: &End, id: u64, length: usize, data: u32) {
    let received = end.cq.success(id);
    let opcode = Opcode::IBV_WC_RECV_RDMA_WITH_IMM;
    equal("the opcode", received.opcode, opcode);
    equal("the length", received.byte_len as usize, length);
    equal("the data", immediate(&received), data);
}

fn writes_with_immediate_data(device: &Device, row: usize) {
    let length = LENGTHS[row];
    let Pair { a, b, pd: _pd } = &reliable(device);
    let sent = pattern(length, 7);
    a.mr.write(0, &sent);
    b.receive(2, SECOND, 64);
    a.qp.post(a.write(b, 0, length).immediate(8));
    a.cq.success(1);
    expect_write(b, 2, length, 8);
    assert!(b.mr.read(0, length) == sent, "the bytes are not those sent");
    assert!(b.mr.read(length, 64) == [0; 64], "too much was written");
    assert!(
        b.mr.read(SECOND, 64) == [0; 64],
        "the receive's memory changed"
    );
}

fn write_with_immediate_data_of_an_unreliable_connection_arrives(device: &Device) {
    let Pair { a, b, pd: _pd } = &pair(device, &Plan::new(Service::IBV_QPT_UC));
    for (id, length) in LENGTHS.into_iter().enumerate() {
        let (id, sent) = (id as u64, pattern(length, id as u8));
        a.mr.write(0, &sent);
        b.qp.receive(id, &[]);
        a.qp.post(a.write(b, 0, length).immediate(8).id(id));
        a.cq.success(id);
        expect_write(b, id, length, 8);
        assert!(b.mr.read(0, length) == sent, "the bytes are not those sent");
    }
}

/// Makes a write wait for the reads and atomics before it: otherwise they may still read what it
/// writes (IBTA 10.8.3.3).
fn fenced(request: Request) -> Request {
    request.flag(ibv_send_flags::IBV_SEND_FENCE)
}

/// Posts messages among writes, reads and atomics to the same memory, with one call.
fn messages_keep_their_order_with_other_work(device: &Device) {
    device.needs_atomics();
    let Pair { a, b, pd: _pd } = &reliable(device);
    // At `WORD` of the peer there is a counter; the writes end before it, and the receives begin
    // behind it.
    const WORD: usize = 512 << 10;
    let (first, second) = (pattern(LONG, 1), pattern(LONG, 2));
    a.mr.write(0, &first);
    a.mr.write(WORD, &second);
    b.qp.receive(10, &[b.mr.sge(SECOND, LONG)]);
    b.qp.receive(11, &[]);
    let (there, key) = (b.mr.at(0), b.mr.rkey());
    let (word, back) = (b.mr.at(WORD), SECOND);
    let all = |offset| [a.mr.sge(offset, LONG)];
    let add = |offset| Request::fetch_and_add(a.mr.sge(offset, 8), word, key, 5);
    let eight = [a.mr.sge(0, 8)];
    let mut requests = [
        Request::write(&all(0), there, key),
        add(WORD + LONG + 7),
        Request::send(&all(WORD)),
        Request::read(&all(back), there, key),
        fenced(Request::write(&all(WORD), there, key).immediate(3)),
        add(WORD + LONG + 15),
        Request::read(&all(back + LONG + 7), there, key),
        fenced(Request::write(&eight, word, key)),
        Request::read(&[a.mr.sge(WORD + LONG + 23, 8)], word, key),
    ];
    for (id, request) in requests.iter_mut().enumerate() {
        *request = request.clone().id(id as u64);
    }
    let posted = Request::post_all(&a.qp, &mut requests);
    posted
        .map_err(|(number, _)| number)
        .succeeds("ibv_post_send");
    for id in 0..requests.len() as u64 {
        a.cq.success(id);
    }
    let received = b.cq.success(10);
    equal("the length", received.byte_len as usize, LONG);
    expect_write(b, 11, LONG, 3);
    assert!(b.mr.read(SECOND, LONG) == second, "the message");
    assert!(a.mr.read(back, LONG) == first, "the first read");
    assert!(
        a.mr.read(back + LONG + 7, LONG) == second,
        "the second read"
    );
    let words = [7, 15].map(|at| a.mr.u64(WORD + LONG + at));
    equal("the counter", words, [0, 5]);
    let last = a.mr.read(WORD + LONG + 23, 8);
    assert!(last == first[..8], "the last read");
}

/// Posts short writes with immediate data to one place with one call, among sends and reads of that
/// place.
fn short_writes_with_immediate_data_keep_their_order(device: &Device) {
    const LENGTH: usize = 1000;
    let Pair { a, b, pd: _pd } = &reliable(device);
    for round in 0..4 {
        let mut requests = Vec::new();
        for at in 0..3 {
            a.mr.write(at * LENGTH, &[(3 * round + at) as u8 + 1; LENGTH]);
            let to = (b.mr.at(0), b.mr.rkey());
            let from = [a.mr.sge(at * LENGTH, LENGTH)];
            b.receive(2 * at as u64, SECOND, LENGTH);
            b.receive(2 * at as u64 + 1, SECOND, LENGTH);
            let write = Request::write(&from, to.0, to.1).immediate(at as u32);
            requests.push(fenced(write));
            requests.push(Request::send(&from));
            let back = [a.mr.sge(SECOND + at * LENGTH, LENGTH)];
            requests.push(Request::read(&back, to.0, to.1));
        }
        let posted = Request::post_all(&a.qp, &mut requests);
        posted
            .map_err(|(number, _)| number)
            .succeeds("ibv_post_send");
        for _ in &requests {
            a.cq.success(1);
        }
        for at in 0..3 {
            expect_write(b, 2 * at, LENGTH, at as u32);
            equal(
                "the opcode",
                b.cq.success(2 * at + 1).opcode,
                Opcode::IBV_WC_RECV,
            );
            let expected = [(3 * round + at as usize) as u8 + 1; LENGTH];
            let place = SECOND + at as usize * LENGTH;
            assert!(a.mr.read(place, LENGTH) == expected, "read {at}");
        }
    }
}

fn a_shared_receive_queue_receives_long_messages(device: &Device) {
    let pd = Pd::new(device);
    let srq = Srq::new(&pd, 4);
    let plan = Plan::new(Service::IBV_QPT_RC);
    let shared = Plan {
        srq: Some(srq.clone()),
        ..plan.clone()
    };
    let ends = |plan: &Plan| [(); 2].map(|()| End::new(&pd, plan, ROOM));
    let (senders, receivers) = (ends(&plan), ends(&shared));
    for (a, b) in senders.iter().zip(&receivers) {
        a.qp.connect(b.qp.number());
        b.qp.connect(a.qp.number());
    }
    let target = &receivers[0].mr;
    for (at, (a, b)) in senders.iter().zip(&receivers).enumerate() {
        let sent = pattern(LONG, at as u8);
        a.mr.write(0, &sent);
        for id in 0..2 {
            srq.receive(id, &[target.sge(id as usize * SECOND, LONG)]);
        }
        a.qp.post(a.send(0, LONG).id(5));
        a.qp.post(a.write(b, 0, LONG).immediate(4).id(6));
        a.cq.success(5);
        a.cq.success(6);
        equal("the length", b.cq.success(0).byte_len as usize, LONG);
        assert!(target.read(0, LONG) == sent, "the message");
        expect_write(b, 1, LONG, 4);
        assert!(b.mr.read(0, LONG) == sent, "the written bytes");
    }
}

fn message_without_a_receive_waits(device: &Device) {
    let Pair { a, b, pd: _pd } = &reliable(device);
    let sent = pattern(LONG, 3);
    a.mr.write(0, &sent);
    for request in [a.send(0, LONG), a.write(b, 0, LONG).immediate(1)] {
        a.qp.post(request);
        assert!(a.cq.within(Duration::from_millis(100)).is_none());
        b.receive(2, 0, LONG);
        a.cq.success(1);
        equal("the length", b.cq.success(2).byte_len as usize, LONG);
        assert!(b.mr.read(0, LONG) == sent, "the bytes are not those sent");
        b.mr.write(0, &vec![0; LONG]);
    }
}

fn other_queue_pairs_work_while_one_waits_for_a_receive(device: &Device) {
    let pd = Pd::new(device);
    let plan = Plan::new(Service::IBV_QPT_RC);
    let pairs = [(); 2].map(|()| {
        let (a, b) = (End::new(&pd, &plan, ROOM), End::new(&pd, &plan, ROOM));
        a.qp.connect(b.qp.number());
        b.qp.connect(a.qp.number());
        (a, b)
    });
    let [(waiting, deaf), (a, b)] = &pairs;
    for id in 0..8 {
        waiting.qp.post(waiting.send(0, LONG).id(id));
    }
    for id in 0..20 {
        let sent = pattern(LONG, id as u8);
        a.mr.write(0, &sent);
        b.receive(id, 0, LONG);
        a.qp.post(a.send(0, LONG).id(id));
        a.cq.success(id);
        b.cq.success(id);
        assert!(b.mr.read(0, LONG) == sent, "the bytes are not those sent");
    }
    assert!(waiting.cq.poll(1).is_empty(), "a send without a receive");
    for id in 0..8 {
        deaf.receive(id, 0, LONG);
    }
    for id in 0..8 {
        waiting.cq.success(id);
        deaf.cq.success(id);
    }
}

/// Sends a long message, which fails at both ends.
#[track_caller]
fn fails_both(pair: &Pair, receiver: Status, sender: Status) {
    pair.a.qp.post(pair.a.send(0, LONG));
    pair.b.cq.expect(2, receiver);
    pair.a.cq.expect(1, sender);
    pair.a.qp.becomes(State::IBV_QPS_ERR);
    pair.b.qp.becomes(State::IBV_QPS_ERR);
}

fn receive_that_is_too_short_fails_both(device: &Device) {
    for room in [0, 1, LONG - 1] {
        let pair = reliable(device);
        pair.b.receive(2, 0, room);
        fails_both(
            &pair,
            Status::IBV_WC_LOC_LEN_ERR,
            Status::IBV_WC_REM_INV_REQ_ERR,
        );
    }
}

fn receive_that_may_not_be_written_fails_both(device: &Device) {
    let pair = reliable(device);
    let access = ibv_access_flags::IBV_ACCESS_REMOTE_READ;
    let mr = Mr::new(&pair.pd, ROOM, access);
    // The beginning of the message finds room that may be written.
    let sges = [pair.b.mr.sge(0, LONG - 8), mr.sge(0, 64)];
    pair.b.qp.receive(2, &sges);
    fails_both(
        &pair,
        Status::IBV_WC_LOC_PROT_ERR,
        Status::IBV_WC_REM_OP_ERR,
    );
    assert!(
        mr.read(0, 64) == [0; 64],
        "memory without the right changed"
    );
}

/// Posts writes of all lengths with immediate data to an end that refuses them.
fn is_refused(device: &Device, plan: &Plan, status: Status, key: impl Fn(&Mr) -> u32) {
    for length in LENGTHS.into_iter().filter(|&length| length > 0) {
        let Pair { a, b, pd: _pd } =
            &Pair::with(device, &Plan::new(Service::IBV_QPT_RC), plan, ROOM);
        a.mr.write(0, &pattern(length, 1));
        b.qp.receive(2, &[]);
        let from = [a.mr.sge(0, length)];
        a.qp.post(Request::write(&from, b.mr.at(0), key(&b.mr)).immediate(1));
        a.cq.expect(1, status);
        assert!(
            b.cq.next().status != Status::IBV_WC_SUCCESS,
            "the receive succeeded"
        );
        assert!(b.mr.read(0, length) == vec![0; length], "{length} bytes");
    }
}

fn write_with_immediate_data_to_a_bad_key_succeeds_nowhere(device: &Device) {
    let status = Status::IBV_WC_REM_ACCESS_ERR;
    let plan = Plan::new(Service::IBV_QPT_RC);
    is_refused(device, &plan, status, |mr| mr.rkey() ^ 0xff);
}

fn write_with_immediate_data_needs_the_queue_pair_s_permission(device: &Device) {
    let plan = Plan {
        access: ibv_access_flags::IBV_ACCESS_REMOTE_READ,
        ..Plan::new(Service::IBV_QPT_RC)
    };
    is_refused(device, &plan, Status::IBV_WC_REM_INV_REQ_ERR, Mr::rkey);
}

fn message_to_a_destroyed_peer_ends(device: &Device) {
    let mut plan = Plan::new(Service::IBV_QPT_RC);
    // 1 ms, twice.
    (plan.timeout, plan.retry_count) = (8, 1);
    let Pair { a, b, pd: _pd } = pair(device, &plan);
    a.mr.write(0, &pattern(LONG, 1));
    b.receive(2, 0, LONG);
    a.qp.post(a.send(0, LONG));
    a.cq.success(1);
    let End { qp, cq, mr } = b;
    drop(qp);
    for id in 0..4 {
        a.qp.post(a.send(0, LONG).id(id));
    }
    a.cq.expect(0, Status::IBV_WC_RETRY_EXC_ERR);
    for id in 1..4 {
        a.cq.expect(id, Status::IBV_WC_WR_FLUSH_ERR);
    }
    drop((cq, mr));
}
