//! Counters of each path: messages, bytes and copies.

use std::collections::BTreeMap;
use std::thread;
use std::time::{Duration, Instant};

use ibverbs_sys::{ibv_wc_opcode, ibv_wc_status, ibv_wr_opcode};
use softroce::path::Way;

use crate::node::{LIMIT, Node, PATIENT, Request};
use crate::peer::{Peer, Role, message};

/// A message, and the amounts that it adds to the counters of its sender and of its receiver. No
/// other counter of a path may change.
struct Case {
    opcode: ibv_wr_opcode,
    /// Index of the memory that holds the bytes: 0 for the program's own, 1 for the device's.
    memory: usize,
    length: usize,
    sent: &'static [(&'static str, u64)],
    received: &'static [(&'static str, u64)],
}

const SEND: ibv_wr_opcode = ibv_wr_opcode::IBV_WR_SEND;
const WRITE_WITH_IMMEDIATE: ibv_wr_opcode = ibv_wr_opcode::IBV_WR_RDMA_WRITE_WITH_IMM;

/// Messages in the order of their sending. A two-sided message behind one-sided operations would go
/// by packets.
const CASES: [Case; 11] = [
    Case {
        opcode: SEND,
        memory: 0,
        length: 8,
        sent: &[("slot_xmit_messages", 1), ("slot_xmit_bytes", 8)],
        received: &[("slot_rcv_messages", 1), ("slot_rcv_bytes", 8)],
    },
    Case {
        opcode: SEND,
        memory: 0,
        length: 0,
        sent: &[("slot_xmit_messages", 1)],
        received: &[("slot_rcv_messages", 1)],
    },
    Case {
        opcode: SEND,
        memory: 0,
        length: 10_001,
        sent: &[("ring_xmit_messages", 1), ("ring_xmit_bytes", 10_001)],
        received: &[("ring_rcv_messages", 1), ("ring_rcv_bytes", 10_001)],
    },
    Case {
        opcode: SEND,
        memory: 1,
        length: 4096,
        sent: &[
            ("descriptor_xmit_messages", 1),
            ("descriptor_xmit_bytes", 4096),
        ],
        received: &[
            ("descriptor_rcv_messages", 1),
            ("descriptor_rcv_bytes", 4096),
            ("descriptor_rcv_copies", 1),
        ],
    },
    // Only the receiver counts a copy.
    Case {
        opcode: SEND,
        memory: 0,
        length: 64 << 10,
        sent: &[
            ("descriptor_xmit_messages", 1),
            ("descriptor_xmit_bytes", 64 << 10),
        ],
        received: &[
            ("descriptor_rcv_messages", 1),
            ("descriptor_rcv_bytes", 64 << 10),
            ("descriptor_rcv_copies", 1),
        ],
    },
    Case {
        opcode: SEND,
        memory: 0,
        length: 1 << 20,
        sent: &[
            ("descriptor_xmit_messages", 1),
            ("descriptor_xmit_bytes", 1 << 20),
        ],
        received: &[
            ("descriptor_rcv_messages", 1),
            ("descriptor_rcv_bytes", 1 << 20),
            ("descriptor_rcv_copies", 4),
        ],
    },
    Case {
        opcode: WRITE_WITH_IMMEDIATE,
        memory: 0,
        length: 64 << 10,
        sent: &[
            ("written_xmit_messages", 1),
            ("written_xmit_bytes", 64 << 10),
            ("written_xmit_copies", 1),
        ],
        received: &[("written_rcv_messages", 1), ("written_rcv_bytes", 64 << 10)],
    },
    Case {
        opcode: WRITE_WITH_IMMEDIATE,
        memory: 0,
        length: 4096,
        sent: &[("ring_xmit_messages", 1), ("ring_xmit_bytes", 4096)],
        received: &[("ring_rcv_messages", 1), ("ring_rcv_bytes", 4096)],
    },
    Case {
        opcode: ibv_wr_opcode::IBV_WR_RDMA_WRITE,
        memory: 0,
        length: 64 << 10,
        sent: &[
            ("shared_messages", 1),
            ("one_sided_bytes", 64 << 10),
            ("one_sided_copies", 1),
        ],
        received: &[],
    },
    Case {
        opcode: ibv_wr_opcode::IBV_WR_RDMA_READ,
        memory: 0,
        length: 64 << 10,
        sent: &[
            ("shared_messages", 1),
            ("one_sided_bytes", 64 << 10),
            ("one_sided_copies", 1),
        ],
        received: &[],
    },
    Case {
        opcode: ibv_wr_opcode::IBV_WR_ATOMIC_FETCH_AND_ADD,
        memory: 0,
        length: 8,
        sent: &[
            ("shared_messages", 1),
            ("one_sided_bytes", 8),
            ("one_sided_copies", 1),
        ],
        received: &[],
    },
];

/// Values of the counters of paths that are not 0.
type Amounts = BTreeMap<&'static str, u64>;

/// Returns the current amounts of all paths.
fn amounts() -> Amounts {
    let all = softroce::counters().all();
    let of_paths = all.filter(|(name, value)| {
        let is_of_path = ["_messages", "_bytes", "_copies"];
        *value > 0 && is_of_path.iter().any(|end| name.ends_with(end))
    });
    of_paths.collect()
}

/// Adds each of `added` to its counter in `amounts`.
fn add(amounts: &mut Amounts, added: &[(&'static str, u64)]) {
    for &(name, by) in added {
        *amounts.entry(name).or_default() += by;
    }
}

/// Waits until the amounts equal `expected`. The completion of a message may be polled before
/// another thread has counted the message.
fn await_amounts(expected: &Amounts, moment: &str) {
    let deadline = Instant::now() + LIMIT;
    while amounts() != *expected {
        let now = amounts();
        assert!(
            Instant::now() < deadline,
            "{moment}: {now:?} and not {expected:?}"
        );
        thread::sleep(Duration::from_micros(100));
    }
}

/// Returns the cases that need a receive request, with their indices. All of them are before the
/// other cases.
fn two_sided() -> impl Iterator<Item = (usize, &'static Case)> {
    let cases = CASES.iter().enumerate();
    cases.filter(|(_, case)| case.opcode == SEND || case.opcode == WRITE_WITH_IMMEDIATE)
}

/// Waits until a message is received. Returns the `wr_id` of the receive request.
fn received(node: &Node) -> u64 {
    loop {
        let wc = node.complete();
        assert_eq!(wc.status, ibv_wc_status::IBV_WC_SUCCESS);
        if wc.opcode.0 & ibv_wc_opcode::IBV_WC_RECV.0 != 0 {
            return wc.wr_id;
        }
    }
}

/// Posts the receives of all messages.
pub(crate) fn post_receives(node: &Node) {
    for (at, _) in two_sided() {
        node.receive(at as u64, node.memories[1].sge(0, 1 << 20));
    }
}

/// Receives the messages, and answers each message after it was counted. The second call receives
/// nothing and checks that nothing was counted since.
pub(crate) fn take(node: &Node) {
    // The first message may already be received; hence the test for a sent answer.
    let is_first = !amounts().contains_key("slot_xmit_messages");
    let mut expected = Amounts::new();
    for (at, case) in two_sided() {
        add(&mut expected, case.received);
        if is_first {
            assert_eq!(received(node), at as u64);
            await_amounts(&expected, &format!("after message {at}, at the receiver"));
            node.post(&message(node));
        }
        add(&mut expected, CASES[0].sent);
    }
    await_amounts(&expected, "at the end, at the receiver");
}

pub(crate) fn each_path_counts_its_messages_bytes_and_copies() {
    let mut node = Node::new();
    node.timeout = PATIENT;
    let mut peer = Peer::start(Role::Counts);
    peer.meet(&node);
    assert_eq!(node.way(), Some(Way::Shared));
    let place = peer.card.memories[1];
    let post = |at: usize, case: &Case| {
        node.post(&Request {
            id: at as u64,
            opcode: case.opcode,
            sge: node.memories[case.memory].sge(0, case.length),
            remote: place,
            add: 1,
        });
    };
    let mut expected = amounts();
    peer.go();
    for (at, case) in two_sided() {
        node.receive(at as u64, node.memories[0].sge(2 << 20, 8));
        post(at, case);
        assert_eq!(received(&node), at as u64);
        add(&mut expected, case.sent);
        add(&mut expected, CASES[0].received);
        await_amounts(&expected, &format!("after message {at}, at the sender"));
    }
    peer.done();
    // Discards the completions of the answered sends.
    while node.poll().is_some() {}
    for (at, case) in CASES.iter().enumerate().skip(two_sided().count()) {
        post(at, case);
        let wc = node.complete();
        assert_eq!(
            (wc.status, wc.wr_id),
            (ibv_wc_status::IBV_WC_SUCCESS, at as u64)
        );
        add(&mut expected, case.sent);
        await_amounts(&expected, &format!("after message {at}, at the sender"));
    }
    // One-sided work is not counted in the process whose memory is accessed.
    peer.go();
    peer.done();
    assert_eq!(amounts(), expected);
}
