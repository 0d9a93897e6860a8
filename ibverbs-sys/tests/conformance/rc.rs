//! The reliable connection: every operation, in every shape.

use ibverbs_sys::ibv_send_flags as Flag;
use ibverbs_sys::ibv_wc_opcode as Opcode;
use ibverbs_sys::*;

use crate::harness::*;

pub(crate) fn cases() -> Vec<Case> {
    let mut cases = cases![
        send_arrives,
        send_completion_describes_the_message,
        receive_completions_have_the_flags_of_the_kernel_s_device,
        send_of_nothing_arrives,
        send_without_elements_arrives,
        send_with_immediate_data_arrives,
        send_with_immediate_data_of_nothing_arrives,
        a_send_writes_only_its_own_length,
        sends_arrive_in_order,
        send_gathers,
        receive_scatters,
        send_inline_needs_no_region_and_no_memory,
        send_inline_gathers,
        send_inline_of_the_whole_capacity,
        unsignaled_sends_complete_silently,
        all_signaled_queue_pair_signals,
        write_arrives_without_a_receive,
        write_of_nothing_checks_no_key,
        write_inline_arrives,
        a_write_with_immediate_data_consumes_a_receive,
        write_with_immediate_data_of_nothing,
        write_touches_nothing_else,
        write_gathers,
        read_brings_bytes,
        read_of_nothing_checks_no_key,
        read_scatters,
        reads_complete_in_order,
        more_reads_than_the_limit_wait,
        compare_and_swap_that_matches,
        compare_and_swap_that_does_not_match,
        fetch_and_add,
        fetch_and_add_wraps,
        atomics_of_both_ends_add_up,
        fence_waits_for_reads,
        a_read_after_a_write_returns_the_written_bytes,
        both_directions_at_once,
        one_completion_queue_for_both_ends,
        queue_pair_talks_to_itself,
        many_messages_wrap_the_queues,
        list_of_requests_is_posted_whole,
        queues_refill_after_completions,
        packet_sequence_numbers_wrap_for_sends,
        packet_sequence_numbers_wrap_for_reads,
        packet_sequence_numbers_of_both_ends_differ,
        requests_before_the_peer_is_ready_arrive,
        receives_may_be_posted_in_init,
        big_write,
        big_read,
    ];
    for (row, length) in LENGTHS.iter().enumerate() {
        cases.push(Case::row(format!("rc::send_of_{length}_bytes"), sends, row));
        cases.push(Case::row(
            format!("rc::write_of_{length}_bytes"),
            writes,
            row,
        ));
        cases.push(Case::row(format!("rc::read_of_{length}_bytes"), reads, row));
    }
    for (row, bytes) in MTUS.iter().enumerate() {
        cases.push(Case::row(format!("rc::path_mtu_of_{bytes}"), path_mtu, row));
    }
    cases.push(Case::new("rc", "gibibyte_write", gibibyte_write).long(10));
    cases.push(Case::new("rc", "gibibyte_read", gibibyte_read).long(10));
    cases
}

/// Lengths near a packet's payload size, and long ones.
const LENGTHS: [usize; 10] = [1, 3, 255, 256, 1024, 4095, 4096, 4097, 65_537, 1 << 20];

const MTUS: [usize; 5] = [256, 512, 1024, 2048, 4096];

fn send_arrives(device: &Device) {
    Pair::rc(device).exchange(100);
}

fn send_completion_describes_the_message(device: &Device) {
    let pair = Pair::rc(device);
    pair.b.receive(5, 0, 100);
    pair.a.qp.post(pair.a.send(0, 60).id(6));
    let sent = pair.a.cq.success(6);
    equal("the sender's opcode", sent.opcode, Opcode::IBV_WC_SEND);
    equal("the sender's queue pair", sent.qp_num, pair.a.qp.number());
    let received = pair.b.cq.success(5);
    equal(
        "the receiver's opcode",
        received.opcode,
        Opcode::IBV_WC_RECV,
    );
    equal(
        "the receiver's queue pair",
        received.qp_num,
        pair.b.qp.number(),
    );
    equal("the length", received.byte_len, 60);
    equal(
        "the flags",
        received.wc_flags & ibv_wc_flags::IBV_WC_WITH_IMM.0,
        0,
    );
}

/// The kernel's device sets `IBV_WC_GRH` in the completion of every received message, because each
/// of its packets has a network header. The specification has the flag for datagrams only (IBTA
/// 11.4.2.1), so network cards may leave it out.
fn receive_completions_have_the_flags_of_the_kernel_s_device(device: &Device) {
    // Devices without hardware have no vendor identifier that was assigned to an organization.
    const LOCALLY_ADMINISTERED: u32 = 0x02_00_00;
    if device.attr().vendor_id & LOCALLY_ADMINISTERED == 0 {
        ignore("the device is a network card");
    }
    let pair = Pair::rc(device);
    let header = ibv_wc_flags::IBV_WC_GRH.0;
    let immediate = ibv_wc_flags::IBV_WC_WITH_IMM.0;
    for (request, flags) in [
        (pair.a.send(0, 8), header),
        (pair.a.send(0, 8).immediate(7), header | immediate),
        (pair.a.write(&pair.b, 0, 8).immediate(7), header | immediate),
    ] {
        pair.b.receive(5, 0, 100);
        pair.a.qp.post(request);
        let sent = pair.a.cq.success(1).wc_flags;
        equal("the sender's flag", sent & header, 0);
        equal("the flags", pair.b.cq.success(5).wc_flags, flags);
    }
}

fn send_of_nothing_arrives(device: &Device) {
    let pair = Pair::rc(device);
    pair.b.receive(1, 0, 16);
    pair.a.qp.post(pair.a.send(0, 0));
    pair.a.cq.success(1);
    equal("the length", pair.b.cq.success(1).byte_len, 0);
}

fn send_without_elements_arrives(device: &Device) {
    let pair = Pair::rc(device);
    pair.b.qp.receive(1, &[]);
    pair.a.qp.post(Request::send(&[]));
    pair.a.cq.success(1);
    equal("the length", pair.b.cq.success(1).byte_len, 0);
}

fn send_with_immediate_data_arrives(device: &Device) {
    let pair = Pair::rc(device);
    pair.b.receive(1, 0, 64);
    pair.a.qp.post(pair.a.send(0, 10).immediate(0x0102_0304));
    pair.a.cq.success(1);
    let received = pair.b.cq.success(1);
    equal("the opcode", received.opcode, Opcode::IBV_WC_RECV);
    equal("the data", immediate(&received), 0x0102_0304);
    equal("the length", received.byte_len, 10);
}

fn send_with_immediate_data_of_nothing_arrives(device: &Device) {
    let pair = Pair::rc(device);
    pair.b.qp.receive(1, &[]);
    pair.a.qp.post(Request::send(&[]).immediate(u32::MAX));
    pair.a.cq.success(1);
    let received = pair.b.cq.success(1);
    equal("the data", immediate(&received), u32::MAX);
    equal("the length", received.byte_len, 0);
}

fn a_send_writes_only_its_own_length(device: &Device) {
    let pair = Pair::rc(device);
    pair.b.mr.write(0, &[0xee; 64]);
    pair.a.mr.write(0, &[0x11; 10]);
    pair.b.receive(1, 0, 64);
    pair.a.qp.post(pair.a.send(0, 10));
    pair.a.cq.success(1);
    pair.b.cq.success(1);
    equal("the message", pair.b.mr.read(0, 10), vec![0x11; 10]);
    equal("what is behind", pair.b.mr.read(10, 54), vec![0xee; 54]);
}

fn sends_arrive_in_order(device: &Device) {
    let pair = Pair::rc(device);
    for at in 0..10 {
        pair.b.receive(at, at as usize * 8, 8);
        pair.a.mr.set_u64(at as usize * 8, at * 1000);
    }
    for at in 0..10 {
        pair.a.qp.post(pair.a.send(at as usize * 8, 8).id(at));
    }
    for at in 0..10 {
        pair.a.cq.success(at);
        pair.b.cq.success(at);
        equal("the message", pair.b.mr.u64(at as usize * 8), at * 1000);
    }
}

fn send_gathers(device: &Device) {
    let pair = Pair::rc(device);
    pair.a.mr.write(0, b"one two three four");
    let mr = &pair.a.mr;
    let sges = [mr.sge(14, 4), mr.sge(8, 0), mr.sge(4, 3), mr.sge(0, 3)];
    pair.b.receive(1, 0, 64);
    pair.a.qp.post(Request::send(&sges));
    pair.a.cq.success(1);
    equal("the length", pair.b.cq.success(1).byte_len, 10);
    equal("the message", pair.b.mr.read(0, 10), b"fourtwoone".to_vec());
}

fn receive_scatters(device: &Device) {
    let pair = Pair::rc(device);
    let sent = pattern(9000, 1);
    pair.a.mr.write(0, &sent);
    let mr = &pair.b.mr;
    pair.b.qp.receive(
        1,
        &[mr.sge(20_000, 5), mr.sge(0, 6000), mr.sge(10_000, 4000)],
    );
    pair.a.qp.post(pair.a.send(0, 9000));
    pair.a.cq.success(1);
    pair.b.cq.success(1);
    let received = [mr.read(20_000, 5), mr.read(0, 6000), mr.read(10_000, 2995)].concat();
    assert!(received == sent, "the bytes are not those sent");
}

fn send_inline_needs_no_region_and_no_memory(device: &Device) {
    let pair = Pair::rc(device);
    pair.b.receive(1, 0, 64);
    let mut bytes = *b"inline";
    let sge = ibv_sge {
        addr: bytes.as_ptr() as u64,
        length: 6,
        lkey: 0,
    };
    pair.a
        .qp
        .post(Request::send(&[sge]).flag(Flag::IBV_SEND_INLINE));
    // The manual: the buffer can be reused when the call returns.
    bytes.fill(0);
    std::hint::black_box(&bytes);
    pair.a.cq.success(1);
    pair.b.cq.success(1);
    equal("the message", pair.b.mr.read(0, 6), b"inline".to_vec());
}

fn send_inline_gathers(device: &Device) {
    let pair = Pair::rc(device);
    pair.a.mr.write(0, b"abcdef");
    pair.b.receive(1, 0, 64);
    let sges = [pair.a.mr.sge(3, 3), pair.a.mr.sge(0, 3)];
    pair.a
        .qp
        .post(Request::send(&sges).flag(Flag::IBV_SEND_INLINE));
    pair.a.cq.success(1);
    pair.b.cq.success(1);
    equal("the message", pair.b.mr.read(0, 6), b"defabc".to_vec());
}

fn send_inline_of_the_whole_capacity(device: &Device) {
    let pair = Pair::rc(device);
    let length = pair.a.qp.cap().max_inline_data as usize;
    let sent = pattern(length, 3);
    pair.a.mr.write(0, &sent);
    pair.b.receive(1, 0, length);
    pair.a
        .qp
        .post(pair.a.send(0, length).flag(Flag::IBV_SEND_INLINE));
    pair.a.cq.success(1);
    pair.b.cq.success(1);
    equal("the message", pair.b.mr.read(0, length), sent);
}

fn unsignaled_sends_complete_silently(device: &Device) {
    let pair = Pair::rc(device);
    for at in 0..4 {
        pair.b.receive(at, 0, 8);
    }
    for at in 0..3 {
        pair.a.qp.post(pair.a.send(0, 8).id(at).unsignaled());
    }
    pair.a.qp.post(pair.a.send(0, 8).id(3));
    pair.a.cq.success(3);
    pair.a.cq.stays_empty();
}

fn all_signaled_queue_pair_signals(device: &Device) {
    let mut plan = Plan::new(ibv_qp_type::IBV_QPT_RC);
    plan.all_signaled = true;
    let pair = Pair::new(device, &plan);
    pair.b.receive(1, 0, 8);
    pair.a.qp.post(pair.a.send(0, 8).unsignaled());
    pair.a.cq.success(1);
}

fn write_arrives_without_a_receive(device: &Device) {
    let pair = Pair::rc(device);
    pair.a.mr.write(0, b"written");
    pair.a.qp.post(pair.a.write(&pair.b, 0, 7));
    let done = pair.a.cq.success(1);
    equal("the opcode", done.opcode, Opcode::IBV_WC_RDMA_WRITE);
    equal("the bytes", pair.b.mr.read(0, 7), b"written".to_vec());
    pair.b.cq.stays_empty();
}

fn write_of_nothing_checks_no_key(device: &Device) {
    // IBTA C9-88: the R_Key is not checked if the length is zero.
    let pair = Pair::rc(device);
    pair.a.qp.post(Request::write(&[], 0x1234, 0x00ba_dbad));
    pair.a.cq.success(1);
}

fn write_inline_arrives(device: &Device) {
    let pair = Pair::rc(device);
    pair.a.mr.write(0, b"written");
    pair.a
        .qp
        .post(pair.a.write(&pair.b, 0, 7).flag(Flag::IBV_SEND_INLINE));
    pair.a.mr.write(0, b"changed");
    pair.a.cq.success(1);
    equal("the bytes", pair.b.mr.read(0, 7), b"written".to_vec());
}

fn a_write_with_immediate_data_consumes_a_receive(device: &Device) {
    let pair = Pair::rc(device);
    pair.a.mr.write(0, b"written");
    pair.b.receive(4, 1000, 8);
    pair.a.qp.post(pair.a.write(&pair.b, 0, 7).immediate(77));
    pair.a.cq.success(1);
    let received = pair.b.cq.success(4);
    equal(
        "the opcode",
        received.opcode,
        Opcode::IBV_WC_RECV_RDMA_WITH_IMM,
    );
    equal("the data", immediate(&received), 77);
    equal("the length", received.byte_len, 7);
    equal("the bytes", pair.b.mr.read(0, 7), b"written".to_vec());
    equal("the receive's memory", pair.b.mr.read(1000, 8), vec![0; 8]);
}

fn write_with_immediate_data_of_nothing(device: &Device) {
    let pair = Pair::rc(device);
    pair.b.qp.receive(4, &[]);
    pair.a.qp.post(Request::write(&[], 0, 0).immediate(78));
    pair.a.cq.success(1);
    let received = pair.b.cq.success(4);
    equal("the data", immediate(&received), 78);
    equal("the length", received.byte_len, 0);
}

fn write_touches_nothing_else(device: &Device) {
    let pair = Pair::rc(device);
    pair.b.mr.write(0, &[0xee; 8192]);
    pair.a.mr.write(0, &[0x11; 8192]);
    pair.a.qp.post(pair.a.write(&pair.b, 101, 5003));
    pair.a.cq.success(1);
    equal("what is before", pair.b.mr.read(0, 101), vec![0xee; 101]);
    assert!(pair.b.mr.read(101, 5003) == vec![0x11; 5003]);
    assert!(
        pair.b.mr.read(5104, 3088) == vec![0xee; 3088],
        "bytes behind the end were written"
    );
}

fn write_gathers(device: &Device) {
    let pair = Pair::rc(device);
    let sent = pattern(6000, 9);
    pair.a.mr.write(100, &sent[..2500]);
    pair.a.mr.write(9001, &sent[2500..]);
    let sges = [pair.a.mr.sge(100, 2500), pair.a.mr.sge(9001, 3500)];
    pair.a
        .qp
        .post(Request::write(&sges, pair.b.mr.at(7), pair.b.mr.rkey()));
    pair.a.cq.success(1);
    assert!(pair.b.mr.read(7, 6000) == sent);
}

fn read_brings_bytes(device: &Device) {
    let pair = Pair::rc(device);
    pair.b.mr.write(0, b"remote");
    pair.a.qp.post(pair.a.read(&pair.b, 0, 6));
    let done = pair.a.cq.success(1);
    equal("the opcode", done.opcode, Opcode::IBV_WC_RDMA_READ);
    equal("the length", done.byte_len, 6);
    equal("the bytes", pair.a.mr.read(0, 6), b"remote".to_vec());
    pair.b.cq.stays_empty();
}

fn read_of_nothing_checks_no_key(device: &Device) {
    // IBTA C9-88: the R_Key is not checked if the length is zero.
    let pair = Pair::rc(device);
    pair.a.qp.post(Request::read(&[], 0x1234, 0x00ba_dbad));
    pair.a.cq.success(1);
}

fn read_scatters(device: &Device) {
    let pair = Pair::rc(device);
    let there = pattern(9000, 4);
    pair.b.mr.write(0, &there);
    let mr = &pair.a.mr;
    let sges = [mr.sge(30_000, 1), mr.sge(0, 5000), mr.sge(10_000, 3999)];
    pair.a
        .qp
        .post(Request::read(&sges, pair.b.mr.at(0), pair.b.mr.rkey()));
    pair.a.cq.success(1);
    let read = [mr.read(30_000, 1), mr.read(0, 5000), mr.read(10_000, 3999)].concat();
    assert!(read == there, "the bytes are not those at the peer");
}

fn reads_complete_in_order(device: &Device) {
    let pair = Pair::rc(device);
    let there = pattern(4 * 5000, 4);
    pair.b.mr.write(0, &there);
    for at in 0..4 {
        pair.a
            .qp
            .post(pair.a.read(&pair.b, at * 5000, 5000).id(at as u64));
    }
    for at in 0..4 {
        pair.a.cq.success(at);
    }
    assert!(pair.a.mr.read(0, there.len()) == there);
}

fn more_reads_than_the_limit_wait(device: &Device) {
    let mut plan = Plan::new(ibv_qp_type::IBV_QPT_RC);
    (plan.reads, plan.served_reads) = (1, 1);
    let pair = Pair::new(device, &plan);
    let there = pattern(8 * 3000, 8);
    pair.b.mr.write(0, &there);
    for at in 0..8 {
        pair.a
            .qp
            .post(pair.a.read(&pair.b, at * 3000, 3000).id(at as u64));
    }
    for at in 0..8 {
        pair.a.cq.success(at);
    }
    assert!(pair.a.mr.read(0, there.len()) == there);
}

fn compare_and_swap_that_matches(device: &Device) {
    device.needs_atomics();
    let pair = Pair::rc(device);
    pair.b.mr.set_u64(64, 5);
    let (target, rkey) = (pair.b.mr.at(64), pair.b.mr.rkey());
    pair.a.qp.post(Request::compare_and_swap(
        pair.a.mr.sge(8, 8),
        target,
        rkey,
        5,
        9,
    ));
    let done = pair.a.cq.success(1);
    equal("the opcode", done.opcode, Opcode::IBV_WC_COMP_SWAP);
    equal("the length", done.byte_len, 8);
    equal("what was there", pair.a.mr.u64(8), 5);
    equal("what is there", pair.b.mr.u64(64), 9);
}

fn compare_and_swap_that_does_not_match(device: &Device) {
    device.needs_atomics();
    let pair = Pair::rc(device);
    pair.b.mr.set_u64(64, 6);
    let (target, rkey) = (pair.b.mr.at(64), pair.b.mr.rkey());
    pair.a.qp.post(Request::compare_and_swap(
        pair.a.mr.sge(8, 8),
        target,
        rkey,
        5,
        9,
    ));
    pair.a.cq.success(1);
    equal("what was there", pair.a.mr.u64(8), 6);
    equal("what is there", pair.b.mr.u64(64), 6);
}

fn fetch_and_add(device: &Device) {
    device.needs_atomics();
    let pair = Pair::rc(device);
    pair.b.mr.set_u64(0, 100);
    let (target, rkey) = (pair.b.mr.at(0), pair.b.mr.rkey());
    pair.a.qp.post(Request::fetch_and_add(
        pair.a.mr.sge(8, 8),
        target,
        rkey,
        11,
    ));
    let done = pair.a.cq.success(1);
    equal("the opcode", done.opcode, Opcode::IBV_WC_FETCH_ADD);
    equal("what was there", pair.a.mr.u64(8), 100);
    equal("what is there", pair.b.mr.u64(0), 111);
}

fn fetch_and_add_wraps(device: &Device) {
    device.needs_atomics();
    let pair = Pair::rc(device);
    pair.b.mr.set_u64(0, u64::MAX);
    let (target, rkey) = (pair.b.mr.at(0), pair.b.mr.rkey());
    pair.a
        .qp
        .post(Request::fetch_and_add(pair.a.mr.sge(8, 8), target, rkey, 3));
    pair.a.cq.success(1);
    equal("what was there", pair.a.mr.u64(8), u64::MAX);
    equal("what is there", pair.b.mr.u64(0), 2);
}

fn atomics_of_both_ends_add_up(device: &Device) {
    device.needs_atomics();
    let pair = Pair::rc(device);
    let counter = Mr::new(&pair.pd, 4096, ALL_ACCESS);
    let add =
        |end: &End| Request::fetch_and_add(end.mr.sge(0, 8), counter.at(0), counter.rkey(), 1);
    for _ in 0..50 {
        for _ in 0..4 {
            pair.a.qp.post(add(&pair.a));
            pair.b.qp.post(add(&pair.b));
        }
        for _ in 0..4 {
            pair.a.cq.success(1);
            pair.b.cq.success(1);
        }
    }
    equal("the counter", counter.u64(0), 400);
}

fn fence_waits_for_reads(device: &Device) {
    let pair = Pair::rc(device);
    let there = pattern(SPACE / 2, 6);
    pair.b.mr.write(0, &there);
    // The fenced write sends the bytes that the read has fetched.
    let half = SPACE / 2;
    pair.a.qp.post(pair.a.read(&pair.b, 0, half).id(1));
    let back = Request::write(
        &[pair.a.mr.sge(0, half)],
        pair.b.mr.at(half),
        pair.b.mr.rkey(),
    );
    pair.a.qp.post(back.id(2).flag(Flag::IBV_SEND_FENCE));
    pair.a.cq.success(1);
    pair.a.cq.success(2);
    assert!(
        pair.b.mr.read(half, half) == there,
        "the write went before the read was done"
    );
}

fn a_read_after_a_write_returns_the_written_bytes(device: &Device) {
    // IBTA 10.8.3.3: the target executes an RDMA READ after an earlier RDMA WRITE.
    let pair = Pair::rc(device);
    let sent = pattern(20_000, 6);
    pair.a.mr.write(0, &sent);
    pair.a.qp.post(pair.a.write(&pair.b, 0, 20_000).id(1));
    let (from, rkey) = (pair.b.mr.at(0), pair.b.mr.rkey());
    pair.a
        .qp
        .post(Request::read(&[pair.a.mr.sge(30_000, 20_000)], from, rkey).id(2));
    pair.a.cq.success(1);
    pair.a.cq.success(2);
    assert!(pair.a.mr.read(30_000, 20_000) == sent);
}

fn both_directions_at_once(device: &Device) {
    let pair = Pair::rc(device);
    for at in 0..8 {
        pair.a.receive(at, 0, 4096);
        pair.b.receive(at, 0, 4096);
    }
    for at in 0..8 {
        pair.a.qp.post(pair.a.send(8192, 4096).id(100 + at));
        pair.b.qp.post(pair.b.send(8192, 4096).id(100 + at));
    }
    for end in [&pair.a, &pair.b] {
        let mut ids: Vec<_> = (0..16)
            .map(|_| {
                let completion = end.cq.next();
                equal(
                    "the status",
                    completion.status,
                    ibv_wc_status::IBV_WC_SUCCESS,
                );
                completion.wr_id
            })
            .collect();
        ids.sort_unstable();
        equal("the requests", ids, (0..8).chain(100..108).collect());
    }
}

fn one_completion_queue_for_both_ends(device: &Device) {
    let pd = Pd::new(device);
    let cq = Cq::new(device, 16);
    let plan = Plan::new(ibv_qp_type::IBV_QPT_RC);
    let (a, b) = (Qp::new(&pd, &cq, &plan), Qp::new(&pd, &cq, &plan));
    a.connect(b.number());
    b.connect(a.number());
    b.receive(2, &[]);
    a.post(Request::send(&[]));
    let mut seen = [cq.next(), cq.next()].map(|wc| (wc.wr_id, wc.qp_num));
    seen.sort_unstable();
    equal("the completions", seen, [(1, a.number()), (2, b.number())]);
}

fn queue_pair_talks_to_itself(device: &Device) {
    let pd = Pd::new(device);
    let end = End::new(&pd, &Plan::new(ibv_qp_type::IBV_QPT_RC), SPACE);
    end.qp.connect(end.qp.number());
    end.mr.write(0, b"myself");
    end.receive(2, 100, 8);
    end.qp.post(end.send(0, 6));
    let mut ids = [end.cq.next(), end.cq.next()].map(|wc| {
        equal("the status", wc.status, ibv_wc_status::IBV_WC_SUCCESS);
        wc.wr_id
    });
    ids.sort_unstable();
    equal("the requests", ids, [1, 2]);
    equal("the message", end.mr.read(100, 6), b"myself".to_vec());
    end.qp.post(Request::read(
        &[end.mr.sge(200, 6)],
        end.mr.at(0),
        end.mr.rkey(),
    ));
    end.cq.success(1);
    equal("what was read", end.mr.read(200, 6), b"myself".to_vec());
}

fn many_messages_wrap_the_queues(device: &Device) {
    let pair = Pair::rc(device);
    for at in 0..200_u64 {
        pair.a.mr.set_u64(0, at);
        pair.b.receive(at, 0, 8);
        pair.a.qp.post(pair.a.send(0, 8).id(at));
        pair.a.cq.success(at);
        pair.b.cq.success(at);
        equal("the message", pair.b.mr.u64(0), at);
    }
}

fn list_of_requests_is_posted_whole(device: &Device) {
    let pair = Pair::rc(device);
    let receives: Vec<_> = (0..5)
        .map(|at| Receive::from((at, &pair.b.mr, 0, 8)))
        .collect();
    let posted = pair.b.qp.try_receive(&receives);
    posted
        .map_err(|(number, _)| number)
        .succeeds("ibv_post_recv");
    let mut sends: Vec<_> = (0..5).map(|at| pair.a.send(0, 8).id(at)).collect();
    let posted = Request::post_all(&pair.a.qp, &mut sends);
    posted
        .map_err(|(number, _)| number)
        .succeeds("ibv_post_send");
    for at in 0..5 {
        pair.a.cq.success(at);
        pair.b.cq.success(at);
    }
}

fn queues_refill_after_completions(device: &Device) {
    let mut plan = Plan::new(ibv_qp_type::IBV_QPT_RC);
    (plan.cap.max_send_wr, plan.cap.max_recv_wr) = (1, 1);
    let pair = Pair::new(device, &plan);
    for _ in 0..10 {
        pair.exchange(32);
    }
}

fn wrapping(device: &Device) -> Pair {
    let mut plan = Plan::new(ibv_qp_type::IBV_QPT_RC);
    (plan.send_psn, plan.receive_psn) = (0x00ff_fffd, 0x00ff_fffd);
    plan.mtu = Some(ibv_mtu::IBV_MTU_256);
    Pair::new(device, &plan)
}

fn packet_sequence_numbers_wrap_for_sends(device: &Device) {
    let pair = wrapping(device);
    for _ in 0..6 {
        pair.exchange(1000);
    }
}

fn packet_sequence_numbers_wrap_for_reads(device: &Device) {
    let pair = wrapping(device);
    let there = pattern(5000, 2);
    pair.b.mr.write(0, &there);
    for id in 0..3 {
        pair.a.mr.write(0, &[0; 5000]);
        pair.a.qp.post(pair.a.read(&pair.b, 0, 5000).id(id));
        pair.a.cq.success(id);
        assert!(pair.a.mr.read(0, 5000) == there);
    }
}

fn packet_sequence_numbers_of_both_ends_differ(device: &Device) {
    let mut a = Plan::new(ibv_qp_type::IBV_QPT_RC);
    (a.send_psn, a.receive_psn) = (1, 0x0080_0000);
    let mut b = a.clone();
    (b.send_psn, b.receive_psn) = (0x0080_0000, 1);
    let pair = Pair::with(device, &a, &b, SPACE);
    pair.exchange(5000);
    pair.a.receive(1, 0, 5000);
    pair.b.qp.post(pair.b.send(0, 5000).id(2));
    pair.b.cq.success(2);
    pair.a.cq.success(1);
}

fn requests_before_the_peer_is_ready_arrive(device: &Device) {
    // The peer is in INIT and drops packets. Retries deliver the request later.
    let pd = Pd::new(device);
    let plan = Plan::new(ibv_qp_type::IBV_QPT_RC);
    let (a, b) = (End::new(&pd, &plan, SPACE), End::new(&pd, &plan, SPACE));
    a.qp.connect(b.qp.number());
    b.qp.to_init();
    b.receive(1, 0, 64);
    a.qp.post(a.send(0, 64));
    std::thread::sleep(std::time::Duration::from_millis(20));
    b.qp.to_rtr(a.qp.number());
    a.cq.success(1);
    b.cq.success(1);
}

fn receives_may_be_posted_in_init(device: &Device) {
    let pd = Pd::new(device);
    let plan = Plan::new(ibv_qp_type::IBV_QPT_RC);
    let (a, b) = (End::new(&pd, &plan, SPACE), End::new(&pd, &plan, SPACE));
    b.qp.to_init();
    b.receive(1, 0, 64);
    b.qp.to_rtr(a.qp.number());
    a.qp.connect(b.qp.number());
    a.qp.post(a.send(0, 64));
    a.cq.success(1);
    b.cq.success(1);
}

fn pair_with_space(device: &Device, space: usize) -> Pair {
    let plan = Plan::new(ibv_qp_type::IBV_QPT_RC);
    Pair::with(device, &plan, &plan, space)
}

fn fits(device: &Device, length: usize) {
    let most = device.port().max_msg_sz as usize;
    if length > most {
        ignore(format!(
            "the port carries messages of {most} bytes (max_msg_sz)"
        ));
    }
}

fn big_write(device: &Device) {
    let length = 16 << 20;
    let length = length.min(device.port().max_msg_sz as usize);
    written(&pair_with_space(device, length), length);
}

fn big_read(device: &Device) {
    let length = 16 << 20;
    let length = length.min(device.port().max_msg_sz as usize);
    read(&pair_with_space(device, length), length);
}

fn gibibyte_write(device: &Device) {
    fits(device, 1 << 30);
    written(&pair_with_space(device, 1 << 30), 1 << 30);
}

fn gibibyte_read(device: &Device) {
    fits(device, 1 << 30);
    read(&pair_with_space(device, 1 << 30), 1 << 30);
}

/// Waits for the success of a request that may take longer.
#[track_caller]
fn slowly(cq: &Cq) {
    let limit = std::time::Duration::from_secs(500);
    let completion = cq.within(limit).expect("no completion came");
    equal(
        "the status",
        completion.status,
        ibv_wc_status::IBV_WC_SUCCESS,
    );
}

fn written(pair: &Pair, length: usize) {
    pair.a.mr.write(0, &pattern(length, 1));
    pair.a.qp.post(pair.a.write(&pair.b, 0, length));
    slowly(&pair.a.cq);
    assert!(
        pair.b.mr.memory().equals(pair.a.mr.memory()),
        "the bytes differ"
    );
}

fn read(pair: &Pair, length: usize) {
    pair.b.mr.write(0, &pattern(length, 1));
    pair.a.qp.post(pair.a.read(&pair.b, 0, length));
    slowly(&pair.a.cq);
    assert!(
        pair.b.mr.memory().equals(pair.a.mr.memory()),
        "the bytes differ"
    );
}

fn sends(device: &Device, row: usize) {
    pair_with_space(device, LENGTHS[row]).exchange(LENGTHS[row]);
}

fn writes(device: &Device, row: usize) {
    written(&pair_with_space(device, LENGTHS[row]), LENGTHS[row]);
}

fn reads(device: &Device, row: usize) {
    read(&pair_with_space(device, LENGTHS[row]), LENGTHS[row]);
}

fn path_mtu(device: &Device, row: usize) {
    let mtu = ibv_mtu(row as u32 + 1);
    if mtu.0 > device.port().active_mtu.0 {
        ignore("the port's MTU is smaller (active_mtu)");
    }
    let mut plan = Plan::new(ibv_qp_type::IBV_QPT_RC);
    plan.mtu = Some(mtu);
    let pair = Pair::new(device, &plan);
    for length in [
        MTUS[row] - 1,
        MTUS[row],
        MTUS[row] + 1,
        3 * MTUS[row],
        10_001,
    ] {
        pair.exchange(length);
    }
    let there = pattern(10_001, 7);
    pair.b.mr.write(0, &there);
    pair.a.qp.post(pair.a.read(&pair.b, 0, 10_001));
    pair.a.cq.success(1);
    assert!(pair.a.mr.read(0, 10_001) == there);
}
