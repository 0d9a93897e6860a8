//! The unreliable connection.

use ibverbs_sys::ibv_qp_type as Service;
use ibverbs_sys::ibv_wc_opcode as Opcode;
use ibverbs_sys::*;

use crate::harness::*;

pub(crate) fn cases() -> Vec<Case> {
    cases![
        send_arrives,
        long_send_arrives,
        send_with_immediate_data_arrives,
        inline_send_arrives,
        write_arrives,
        long_write_arrives,
        write_with_immediate_data_arrives,
        send_without_a_receive_is_lost_silently,
        connection_works_after_a_lost_message,
        write_to_a_bad_key_is_lost_silently,
        send_to_a_dead_peer_succeeds,
        read_is_refused,
        atomic_is_refused,
        sequence_numbers_wrap,
        message_longer_than_its_receive_fails_there,
    ]
}

fn send_arrives(device: &Device) {
    Pair::uc(device).exchange(100);
}

fn long_send_arrives(device: &Device) {
    Pair::uc(device).exchange(50_001);
}

fn send_with_immediate_data_arrives(device: &Device) {
    let pair = Pair::uc(device);
    pair.b.receive(1, 0, 64);
    pair.a.qp.post(pair.a.send(0, 8).immediate(4711));
    equal("the data", immediate(&pair.b.cq.success(1)), 4711);
    pair.a.cq.success(1);
}

fn inline_send_arrives(device: &Device) {
    let pair = Pair::uc(device);
    pair.a.mr.write(0, b"inline");
    pair.b.receive(1, 0, 64);
    pair.a
        .qp
        .post(pair.a.send(0, 6).flag(ibv_send_flags::IBV_SEND_INLINE));
    pair.b.cq.success(1);
    equal("the message", pair.b.mr.read(0, 6), b"inline".to_vec());
}

/// Waits until the peer has received all earlier messages, by a message after them.
fn flush(pair: &Pair) {
    pair.b.qp.receive(90, &[]);
    pair.a.qp.post(Request::send(&[]).id(91));
    pair.b.cq.success(90);
    pair.a.cq.success(91);
}

fn write_arrives(device: &Device) {
    let pair = Pair::uc(device);
    pair.a.mr.write(0, b"written");
    pair.a.qp.post(pair.a.write(&pair.b, 0, 7));
    equal(
        "the opcode",
        pair.a.cq.success(1).opcode,
        Opcode::IBV_WC_RDMA_WRITE,
    );
    flush(&pair);
    equal("the bytes", pair.b.mr.read(0, 7), b"written".to_vec());
}

fn long_write_arrives(device: &Device) {
    let pair = Pair::uc(device);
    let sent = pattern(50_001, 3);
    pair.a.mr.write(0, &sent);
    pair.a.qp.post(pair.a.write(&pair.b, 0, 50_001));
    pair.a.cq.success(1);
    flush(&pair);
    assert!(pair.b.mr.read(0, 50_001) == sent);
}

fn write_with_immediate_data_arrives(device: &Device) {
    let pair = Pair::uc(device);
    pair.a.mr.write(0, b"written");
    pair.b.qp.receive(1, &[]);
    pair.a.qp.post(pair.a.write(&pair.b, 0, 7).immediate(3));
    let received = pair.b.cq.success(1);
    equal(
        "the opcode",
        received.opcode,
        Opcode::IBV_WC_RECV_RDMA_WITH_IMM,
    );
    equal("the data", immediate(&received), 3);
    equal("the length", received.byte_len, 7);
    equal("the bytes", pair.b.mr.read(0, 7), b"written".to_vec());
}

fn send_without_a_receive_is_lost_silently(device: &Device) {
    // IBTA 9.8.2: the responder drops the message, and the requester gets no error.
    let pair = Pair::uc(device);
    pair.a.qp.post(pair.a.send(0, 8));
    pair.a.cq.success(1);
    pair.b.cq.stays_empty();
    equal(
        "the peer's state",
        pair.b.qp.state(),
        ibv_qp_state::IBV_QPS_RTS,
    );
}

fn connection_works_after_a_lost_message(device: &Device) {
    // IBTA 9.8.2: the next first or only packet starts a message, with any sequence number.
    let pair = Pair::uc(device);
    pair.a.qp.post(pair.a.send(0, 20_000).id(5));
    pair.a.cq.success(5);
    // The message is lost if a later message has arrived and it has not.
    pair.a.mr.set_u64(0, 1);
    pair.a.qp.post(pair.a.write(&pair.b, 0, 8).id(6));
    pair.a.cq.success(6);
    let end = std::time::Instant::now() + max_wait();
    while pair.b.mr.u64(0) == 0 {
        assert!(
            std::time::Instant::now() < end,
            "the write behind it did not arrive"
        );
    }
    pair.exchange(100);
    pair.exchange(20_000);
}

fn write_to_a_bad_key_is_lost_silently(device: &Device) {
    let pair = Pair::uc(device);
    pair.b.mr.write(0, b"untouched");
    pair.a.qp.post(Request::write(
        &[pair.a.mr.sge(0, 9)],
        pair.b.mr.at(0),
        pair.b.mr.rkey() ^ 1,
    ));
    pair.a.cq.success(1);
    std::thread::sleep(QUIET);
    equal("the bytes", pair.b.mr.read(0, 9), b"untouched".to_vec());
}

fn send_to_a_dead_peer_succeeds(device: &Device) {
    let pair = Pair::uc(device);
    pair.b
        .qp
        .enter(ibv_qp_state::IBV_QPS_RESET)
        .succeeds("to RESET");
    pair.a.qp.post(pair.a.send(0, 8));
    pair.a.cq.success(1);
}

/// Checks that a request that the service does not support fails: when it is posted, or when it is
/// executed.
#[track_caller]
pub(crate) fn refused(end: &End, request: Request) {
    match end.qp.try_post(request) {
        Err(number) => {
            Err::<(), _>(number).fails("ibv_post_send", &[libc::EINVAL, libc::EOPNOTSUPP]);
        }
        Ok(()) => drop(end.cq.expect(1, ibv_wc_status::IBV_WC_LOC_QP_OP_ERR)),
    }
}

fn read_is_refused(device: &Device) {
    let pair = Pair::uc(device);
    refused(&pair.a, pair.a.read(&pair.b, 0, 8));
}

fn atomic_is_refused(device: &Device) {
    let pair = Pair::uc(device);
    let (target, rkey) = (pair.b.mr.at(0), pair.b.mr.rkey());
    refused(
        &pair.a,
        Request::fetch_and_add(pair.a.mr.sge(0, 8), target, rkey, 1),
    );
}

fn sequence_numbers_wrap(device: &Device) {
    let mut plan = Plan::new(Service::IBV_QPT_UC);
    (plan.send_psn, plan.receive_psn) = (0x00ff_fffe, 0x00ff_fffe);
    plan.mtu = Some(ibv_mtu::IBV_MTU_256);
    let pair = Pair::new(device, &plan);
    for _ in 0..5 {
        pair.exchange(1500);
    }
}

fn message_longer_than_its_receive_fails_there(device: &Device) {
    // IBTA 9.9.3: local length error at the responder, nothing at the requester.
    let pair = Pair::uc(device);
    pair.b.receive(2, 0, 8);
    pair.a.qp.post(pair.a.send(0, 9));
    pair.a.cq.success(1);
    pair.b.cq.expect(2, ibv_wc_status::IBV_WC_LOC_LEN_ERR);
}
