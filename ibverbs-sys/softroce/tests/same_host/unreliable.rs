//! Unreliable connections and datagrams between two processes.

use std::mem::zeroed;
use std::ptr::null_mut;
use std::time::Instant;

use ibverbs_sys::*;

use crate::count;
use crate::node::{Card, LIMIT, Node, QUEUE_KEY, Request};
use crate::peer::{Peer, Role};

/// Offset and length of the place for messages, which is written to after each message.
const PLACE: usize = 4096;
const LENGTH: usize = 4000;

/// Value of the bytes of a message, and of the bytes that are written after it.
const SENT: u8 = 0x11;
const WRITTEN: u8 = 0x22;

/// Length in bytes of a datagram, and of the GRH in front of it.
const DATAGRAM: usize = 1000;
const ROUTE: usize = 40;

/// Maximum number of datagrams in flight.
const DATAGRAMS: u64 = 16;

/// Traffic class of the datagrams.
const CLASS: u8 = 0x28;

fn connected(kind: ibv_qp_type, role: Role) -> (Node, Peer) {
    let node = Node::of(kind);
    let mut peer = Peer::start(role);
    peer.meet(&node);
    (node, peer)
}

/// Returns a request for the first memory.
fn request(node: &Node, opcode: ibv_wr_opcode, offset: usize, to: (u64, u32)) -> Request {
    Request {
        id: 1,
        opcode,
        sge: node.memories[0].sge(offset, LENGTH),
        remote: to,
        add: 0,
    }
}

/// Waits for the completion of a receive. Panics on an error.
#[track_caller]
fn received(node: &Node) -> ibv_wc {
    loop {
        let wc = node.complete();
        assert_eq!(wc.status, ibv_wc_status::IBV_WC_SUCCESS);
        if wc.opcode.0 & ibv_wc_opcode::IBV_WC_RECV.0 != 0 {
            return wc;
        }
    }
}

/// Posts the receive of the next message.
pub(crate) fn post_receive(node: &Node) {
    node.receive(0, node.memories[0].sge(PLACE, LENGTH));
}

/// Receives messages, and answers each after the write behind it has arrived.
pub(crate) fn take(node: &Node, times: u64) {
    for round in 0..times {
        received(node);
        let deadline = Instant::now() + LIMIT;
        while node.memories[0].read(PLACE, LENGTH) != [WRITTEN; LENGTH] {
            assert!(Instant::now() < deadline, "round {round}: no write");
            node.poll();
        }
        post_receive(node);
        node.post(&request(node, ibv_wr_opcode::IBV_WR_SEND, 0, (0, 0)));
    }
}

pub(crate) fn unreliable_writes_need_no_packets() {
    let (node, peer) = connected(ibv_qp_type::IBV_QPT_UC, Role::Unreliable { times: 0 });
    let (messages, packets) = (count("shared_messages"), count("port_xmit_packets"));
    for memory in peer.card.memories {
        for _ in 0..100 {
            node.execute(&request(&node, ibv_wr_opcode::IBV_WR_RDMA_WRITE, 0, memory));
        }
    }
    assert_eq!(count("shared_messages") - messages, 200);
    assert_eq!(count("port_xmit_packets"), packets, "without packets");
}

/// Checks that a message of several packets goes through the ring in one piece, and is complete
/// although the peer has only one receive and does not poll.
pub(crate) fn unreliable_messages_need_no_packets() {
    const TIMES: u64 = 10;
    let (node, _peer) = connected(ibv_qp_type::IBV_QPT_UC, Role::Unreliable { times: 0 });
    let names = ["ring_xmit_messages", "port_xmit_packets"];
    let before = names.map(count);
    for _ in 0..TIMES {
        node.execute(&request(&node, ibv_wr_opcode::IBV_WR_SEND, 0, (0, 0)));
    }
    let after = names.map(count);
    let sent: [u64; 2] = std::array::from_fn(|at| after[at] - before[at]);
    assert_eq!(sent, [TIMES; 2], "{names:?}");
}

/// Checks that a write does not overtake the message before it. Both go to the same memory.
pub(crate) fn an_unreliable_write_does_not_overtake_a_message() {
    const TIMES: u64 = 200;
    let (node, mut peer) = connected(ibv_qp_type::IBV_QPT_UC, Role::Unreliable { times: TIMES });
    let (address, key) = peer.card.memories[0];
    let (sent, written) = (0, LENGTH);
    node.memories[0].write(sent, &[SENT; LENGTH]);
    node.memories[0].write(written, &[WRITTEN; LENGTH]);
    let write = |to| request(&node, ibv_wr_opcode::IBV_WR_RDMA_WRITE, written, to);
    peer.go();
    for _ in 0..TIMES {
        node.receive(0, node.memories[0].sge(2 * LENGTH, LENGTH));
        node.post(&request(&node, ibv_wr_opcode::IBV_WR_SEND, sent, (0, 0)));
        node.post(&write((address + PLACE as u64, key)));
        received(&node);
    }
    peer.done();
    while node.poll().is_some() {}
    // Writes go without packets again as soon as the peer has confirmed the arrival of all packets.
    let before = count("shared_messages");
    let deadline = Instant::now() + LIMIT;
    while count("shared_messages") == before {
        assert!(Instant::now() < deadline, "all writes go by packets");
        node.execute(&write((address, key)));
    }
}

/// Posts receives for all datagrams that can be in flight.
pub(crate) fn post_datagram_receives(node: &Node) {
    for id in 0..DATAGRAMS {
        post_datagram_receive(node, id);
    }
}

fn post_datagram_receive(node: &Node, id: u64) {
    let place = PLACE + id as usize * 2048;
    node.receive(id, node.memories[0].sge(place, ROUTE + DATAGRAM));
}

fn send_datagram(node: &Node, handle: *mut ibv_ah, to: u32, fill: u8) {
    node.memories[0].write(0, &[fill; DATAGRAM]);
    let mut sge = node.memories[0].sge(0, DATAGRAM);
    // SAFETY: the queue pair and the handle are valid, and the verb reads the request before it
    // returns.
    unsafe {
        let mut wr: ibv_send_wr = zeroed();
        (wr.sg_list, wr.num_sge) = (&raw mut sge, 1);
        wr.opcode = ibv_wr_opcode::IBV_WR_SEND;
        wr.send_flags = ibv_send_flags::IBV_SEND_SIGNALED.0;
        (wr.wr.ud.ah, wr.wr.ud.remote_qpn, wr.wr.ud.remote_qkey) = (handle, to, QUEUE_KEY);
        let mut bad = null_mut();
        assert_eq!(ibv_post_send(node.qp, &raw mut wr, &raw mut bad), 0);
    }
    // The send must complete, because the next datagram is written to the same memory.
    loop {
        let wc = node.complete();
        assert_eq!(wc.status, ibv_wc_status::IBV_WC_SUCCESS);
        if wc.opcode == ibv_wc_opcode::IBV_WC_SEND {
            return;
        }
    }
}

/// Receives datagrams, and sends each of them back.
pub(crate) fn answer(node: &Node, peer: &Card, times: u64) {
    let handle = peer.address_handle(node.pd, CLASS);
    for _ in 0..times {
        let wc = received(node);
        let bytes = node.memories[0].read(PLACE + wc.wr_id as usize * 2048, ROUTE + DATAGRAM);
        check_route(&bytes, peer.address());
        post_datagram_receive(node, wc.wr_id);
        send_datagram(node, handle, wc.src_qp, bytes[ROUTE]);
    }
    // SAFETY: nothing is sent with the handle any more.
    assert_eq!(unsafe { ibv_destroy_ah(handle) }, 0);
}

/// Checks the IPv4 header in front of a datagram from this address.
#[track_caller]
fn check_route(bytes: &[u8], source: u32) {
    let ip = &bytes[20..ROUTE];
    assert_eq!(
        (ip[0], ip[1], ip[8], ip[9]),
        (0x45, CLASS, 77, 17),
        "{ip:x?}"
    );
    assert_eq!(ip[12..16], source.to_be_bytes(), "{ip:x?}");
}

/// Waits for the next datagram. Returns its bytes with the GRH.
#[track_caller]
fn next_datagram(node: &Node) -> Vec<u8> {
    let wc = received(node);
    assert_eq!(wc.byte_len as usize, ROUTE + DATAGRAM);
    node.memories[0].read(PLACE + wc.wr_id as usize * 2048, ROUTE + DATAGRAM)
}

pub(crate) fn datagrams_are_sent_through_shared_memory() {
    const TIMES: u64 = 200;
    let (node, mut peer) = connected(ibv_qp_type::IBV_QPT_UD, Role::Datagrams { times: TIMES });
    let handle = peer.card.address_handle(node.pd, CLASS);
    peer.go();
    let counters = || {
        [
            "port_xmit_packets",
            "shared_xmit_packets",
            "shared_rcv_packets",
        ]
        .map(count)
    };
    let mut before = counters();
    for round in 0..TIMES {
        if round == 1 {
            // The first datagram begins the handshake, and goes by a socket.
            before = counters();
        }
        post_datagram_receive(&node, 0);
        send_datagram(&node, handle, peer.card.number, round as u8);
        let bytes = next_datagram(&node);
        check_route(&bytes, peer.card.address());
        assert_eq!(bytes[ROUTE..], [round as u8; DATAGRAM]);
    }
    peer.done();
    let [all, sent, received] = std::array::from_fn(|at| counters()[at] - before[at]);
    assert_eq!(sent, all, "all of them through shared memory");
    assert!(received >= TIMES - 1, "{received} of {TIMES}");
    // SAFETY: nothing is sent with the handle any more.
    assert_eq!(unsafe { ibv_destroy_ah(handle) }, 0);
}

/// Checks that a queue pair can send to a process while another process, to which it also sends, is
/// stopped.
pub(crate) fn datagrams_to_a_stopped_process_do_not_stop_others() {
    const TIMES: u64 = 4;
    let (node, stopped) = connected(ibv_qp_type::IBV_QPT_UD, Role::Datagrams { times: 0 });
    let mut other = Peer::start(Role::Datagrams { times: TIMES });
    other.introduce(&node);
    other.await_ready();
    let handles = [&stopped, &other].map(|peer| peer.card.address_handle(node.pd, CLASS));
    stopped.stop();
    other.go();
    for round in 0..TIMES {
        // More datagrams than the ring has room for.
        for _ in 0..1500 {
            send_datagram(&node, handles[0], stopped.card.number, 0);
        }
        post_datagram_receive(&node, 0);
        send_datagram(&node, handles[1], other.card.number, round as u8);
        assert_eq!(next_datagram(&node)[ROUTE..], [round as u8; DATAGRAM]);
    }
    other.done();
    stopped.signal(libc::SIGCONT);
    for handle in handles {
        // SAFETY: nothing is sent with the handle any more.
        assert_eq!(unsafe { ibv_destroy_ah(handle) }, 0);
    }
}
