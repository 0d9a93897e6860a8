//! Registered memory that is no longer accessible, on either side of a connection.

use ibverbs_sys::{ibv_wc_status, ibv_wr_opcode};

use crate::node::{Node, Request, SIZE};
use crate::peer::{Peer, Role};
use crate::{connected, count, read, write};

/// Lengths in bytes of messages that take different paths.
const LENGTHS: [usize; 4] = [8, 100, 4096, 1 << 20];

fn ends(node: &Node, request: &Request, status: ibv_wc_status) {
    node.post(request);
    let wc = node.complete();
    let length = request.sge.length;
    assert_eq!(wc.status, status, "{:?} of {length} bytes", request.opcode);
}

fn again(node: &mut Node, peer: &mut Peer) {
    node.renew();
    peer.meet(node);
    peer.go();
    peer.done();
}

fn add(node: &Node, memory: usize, to: (u64, u32)) -> Request {
    Request {
        add: 1,
        opcode: ibv_wr_opcode::IBV_WR_ATOMIC_FETCH_AND_ADD,
        ..write(node, memory, 0, 8, to)
    }
}

fn send(node: &Node, memory: usize, length: usize) -> Request {
    Request {
        opcode: ibv_wr_opcode::IBV_WR_SEND,
        ..write(node, memory, 0, length, (0, 0))
    }
}

/// Checks a peer that cannot access its own memory any more: the peer lives, and its device's
/// memory remains usable.
pub(crate) fn a_peer_with_unmapped_memory_refuses_requests_and_keeps_running() {
    let (mut node, mut peer) = connected(Role::Loses);
    peer.go();
    peer.done();
    let refused = ibv_wc_status::IBV_WC_REM_ACCESS_ERR;
    for length in LENGTHS {
        for own in 0..2 {
            ends(
                &node,
                &write(&node, own, 0, length, peer.card.memories[0]),
                refused,
            );
            again(&mut node, &mut peer);
            ends(
                &node,
                &read(&node, own, 0, length, peer.card.memories[0]),
                refused,
            );
            again(&mut node, &mut peer);
            // The peer's receive request refers to the lost memory.
            ends(
                &node,
                &send(&node, own, length),
                ibv_wc_status::IBV_WC_REM_OP_ERR,
            );
            again(&mut node, &mut peer);
        }
    }
    ends(&node, &add(&node, 0, peer.card.memories[0]), refused);
    again(&mut node, &mut peer);
    node.execute(&write(&node, 0, 0, SIZE, peer.card.memories[1]));
    assert!(count("shared_messages") > 0);
}

/// Checks a process that cannot access its own memory any more.
pub(crate) fn transfers_from_or_to_unmapped_memory_fail_with_a_protection_error() {
    let (mut node, mut peer) = connected(Role::Idle);
    node.memories[0].lose();
    let refused = ibv_wc_status::IBV_WC_LOC_PROT_ERR;
    for length in LENGTHS {
        for there in 0..2 {
            ends(
                &node,
                &write(&node, 0, 0, length, peer.card.memories[there]),
                refused,
            );
            again(&mut node, &mut peer);
            ends(
                &node,
                &read(&node, 0, 0, length, peer.card.memories[there]),
                refused,
            );
            again(&mut node, &mut peer);
        }
        ends(&node, &send(&node, 0, length), refused);
        again(&mut node, &mut peer);
    }
    // The addition is executed once, whether or not the queue pair already knows its peer.
    for (there, knows) in [(0, false), (1, false), (0, true), (1, true)] {
        let place = peer.card.memories[there];
        if knows {
            node.execute(&read(&node, 1, 0, 8, place));
        }
        ends(&node, &add(&node, 0, place), refused);
        again(&mut node, &mut peer);
        node.execute(&read(&node, 1, 0, 8, place));
        let sum = u64::from_ne_bytes(node.memories[1].read(0, 8).try_into().unwrap());
        assert_eq!(sum, 1 + u64::from(knows), "{there}");
        again(&mut node, &mut peer);
    }
    node.execute(&write(&node, 1, 0, SIZE, peer.card.memories[1]));
}
