//! Long messages: the receiver copies their bytes from the memory of the sender.

use std::thread;
use std::time::{Duration, Instant};

use ibverbs_sys::{ibv_wc_opcode, ibv_wc_status, ibv_wr_opcode};
use softroce::path::Way;

use crate::node::{LIMIT, Node, Request, SIZE};
use crate::peer::{Peer, Role};
use crate::{connected, count};

/// Lengths of the messages in bytes, used in turn.
const LENGTHS: [usize; 10] = [
    511,
    512,
    4096,
    4097,
    (64 << 10) - 1,
    64 << 10,
    (64 << 10) + 1,
    100_000,
    (1 << 20) - 3,
    1 << 20,
];

/// Length in bytes of the memory for a receive. The other half of each memory is the target of
/// writes.
const ROOM: usize = SIZE / 2;

/// Number of messages: each kind in each length, from each memory to each memory.
const ALL: u64 = 3 * 4 * LENGTHS.len() as u64;

/// Returns the opcode, the sender's memory and the bytes of message `id`.
fn make(id: u64) -> (ibv_wr_opcode, usize, Vec<u8>) {
    use ibv_wr_opcode as O;
    let number = id as usize;
    let kinds = [
        O::IBV_WR_SEND,
        O::IBV_WR_SEND_WITH_IMM,
        O::IBV_WR_RDMA_WRITE_WITH_IMM,
    ];
    let kind = kinds[number / LENGTHS.len() / 4 % 3];
    let length = length(id);
    let bytes = (0..length).map(|at| (at * 31 + at / 4096 + number) as u8);
    (kind, number / LENGTHS.len() % 2, bytes.collect())
}

/// Returns the length of message `id` in bytes.
pub(crate) fn length(id: u64) -> usize {
    LENGTHS[id as usize % LENGTHS.len()]
}

/// Returns whether message `id` is a send, and not a write.
pub(crate) fn is_send(id: u64) -> bool {
    make(id).0 != ibv_wr_opcode::IBV_WR_RDMA_WRITE_WITH_IMM
}

/// Returns whether message `id` is sent from memory of the device.
pub(crate) fn is_of_device(id: u64) -> bool {
    make(id).1 == 1
}

/// Returns the index of the memory that message `id` is received or written to.
fn target(id: u64) -> usize {
    id as usize / LENGTHS.len() / 2 % 2
}

/// Returns the offset that message `id` is written to. Two offsets take turns, because the next
/// message may arrive before the receiver has read this one.
fn written_at(id: u64) -> usize {
    ROOM + (id as usize % 2) * (1 << 20)
}

fn post_receive(node: &Node, id: u64) {
    node.receive(id, node.memories[target(id)].sge(0, ROOM));
}

/// Posts the receive of the first message. [`take`] posts each further receive after the message
/// before it has arrived.
pub(crate) fn post_receives(node: &Node, times: u64) {
    if times > 0 {
        post_receive(node, 0);
    }
}

/// Receives messages and checks their bytes. Stops when no message arrives for half a second, or
/// when the connection fails.
pub(crate) fn take(node: &Node, times: u64) {
    for id in 0..times {
        let end = Instant::now() + Duration::from_millis(500);
        let wc = loop {
            match node.poll() {
                Some(wc) => break wc,
                None if Instant::now() > end => return,
                None => {}
            }
        };
        if wc.status != ibv_wc_status::IBV_WC_SUCCESS {
            return;
        }
        let (kind, _, bytes) = make(id);
        let is_write = kind == ibv_wr_opcode::IBV_WR_RDMA_WRITE_WITH_IMM;
        let opcode = if is_write {
            ibv_wc_opcode::IBV_WC_RECV_RDMA_WITH_IMM
        } else {
            ibv_wc_opcode::IBV_WC_RECV
        };
        assert_eq!(
            (wc.wr_id, wc.opcode, wc.byte_len),
            (id, opcode, bytes.len() as u32)
        );
        let offset = if is_write { written_at(id) } else { 0 };
        let came = node.memories[target(id)].read(offset, bytes.len());
        assert!(came == bytes, "message {id}");
        if id + 1 < times {
            post_receive(node, id + 1);
        }
    }
}

/// Posts message `id` from `offset` of the sender's memory.
pub(crate) fn post(node: &Node, id: u64, offset: usize, peer: Option<[(u64, u32); 2]>) {
    let (opcode, memory, bytes) = make(id);
    node.memories[memory].write(offset, &bytes);
    let (address, key) = peer.map_or((0, 0), |memories| memories[target(id)]);
    node.post(&Request {
        id,
        opcode,
        sge: node.memories[memory].sge(offset, bytes.len()),
        remote: (address + written_at(id) as u64, key),
        add: 0,
    });
}

/// Sends messages, each after the completion of the one before.
pub(crate) fn send(node: &Node, times: u64) {
    for id in 0..times {
        post(node, id, 0, None);
        assert_eq!(node.complete().status, ibv_wc_status::IBV_WC_SUCCESS);
    }
}

pub(crate) fn long_messages_of_all_kinds_are_fetched_whole() {
    let (node, mut peer) = connected(Role::Takes { times: ALL });
    assert_eq!(node.way(), Some(Way::Shared));
    // A packet for which the peer has no receive is sent again, and is not counted here.
    let packets = || count("port_xmit_packets") - count("rnr_nak_retry_err");
    let before = packets();
    peer.go();
    let mut parts = 0;
    for id in 0..ALL {
        post(&node, id, 0, Some(peer.card.memories));
        let wc = node.complete();
        assert_eq!((wc.status, wc.wr_id), (ibv_wc_status::IBV_WC_SUCCESS, id));
        parts += make(id).2.len().div_ceil(64 << 10) as u64;
    }
    peer.done();
    // Without copies most messages would take hundreds of packets. On a busy machine, parts are
    // repeated while the peer does not run.
    let went = packets() - before;
    assert!(went <= 4 * parts, "{went} packets for {parts} parts");
}

/// Checks that messages are received while their sender is stopped: the ring holds the messages,
/// and the sender's memory holds the bytes.
pub(crate) fn the_messages_of_a_stopped_sender_are_fetched() {
    for round in 0..20 {
        let (node, mut peer) = connected(Role::Sends { times: 8 });
        post_receives(&node, 8);
        peer.go();
        thread::sleep(Duration::from_micros(300 * round));
        peer.signal(libc::SIGSTOP);
        thread::sleep(Duration::from_millis(2));
        peer.signal(libc::SIGCONT);
        let begin = Instant::now();
        take(&node, 8);
        assert!(begin.elapsed() < LIMIT);
        peer.done();
        let (_, _, bytes) = make(7);
        assert!(node.memories[target(7)].read(0, bytes.len()) == bytes);
    }
}

/// Checks that no bytes of a request are copied after it has ended with an error, because the
/// program may then reuse the memory.
pub(crate) fn a_message_that_has_failed_is_not_copied() {
    const EACH: usize = 128 << 10;
    for round in 0..10 {
        let (node, mut peer) = (Node::new(), Peer::start(Role::Takes { times: 8 }));
        peer.meet(&node);
        peer.go();
        if round % 2 > 0 {
            // Stops the peer in the middle of a message.
            thread::sleep(Duration::from_millis(20));
            (0..6).for_each(|id| post(&node, id, id as usize * EACH, None));
            thread::sleep(Duration::from_micros(100 * round));
        }
        peer.stop();
        if round % 2 == 0 {
            (0..6).for_each(|id| post(&node, id, id as usize * EACH, None));
        }
        node.fail();
        for memory in &node.memories {
            memory.write(0, &vec![0xee; 1 << 20]);
        }
        peer.signal(libc::SIGCONT);
        // The peer checks the bytes that it receives.
        peer.done();
    }
}
