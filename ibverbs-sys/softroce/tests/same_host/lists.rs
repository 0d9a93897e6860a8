//! Lists of requests that are posted with one call.

use ibverbs_sys::{
    ibv_qp_state, ibv_send_flags, ibv_sge, ibv_wc_opcode, ibv_wc_status, ibv_wr_opcode,
};

use crate::node::{COMPLETIONS, DEPTH, Node, PATIENT, Request, SIZE};
use crate::peer::{MESSAGE, Peer, Role, message};
use crate::{connected, count, read, write};

const SIGNALED: u32 = ibv_send_flags::IBV_SEND_SIGNALED.0;

/// Checks that each request of a list sees the effects of the requests before it, on every path.
/// Access to memory of the program needs the kernel, and an atomic operation on it needs the peer.
pub(crate) fn a_list_is_executed_in_order() {
    const INLINE: u32 = ibv_send_flags::IBV_SEND_INLINE.0;
    let (node, peer) = connected(Role::Idle);
    for (here, there) in [(0, 0), (1, 0), (0, 1), (1, 1)] {
        let (address, key) = peer.card.memories[there];
        let at = |offset| (address + offset, key);
        let own = &node.memories[here];
        own.write(64, &5_u64.to_ne_bytes());
        own.write(128, &[0; 32]);
        let seven = [7_u8; 16];
        let inline = Request {
            sge: ibv_sge {
                addr: seven.as_ptr().addr() as u64,
                length: 16,
                lkey: 0,
            },
            ..write(&node, here, 0, 16, at(0))
        };
        let add = |id, offset| Request {
            id,
            opcode: ibv_wr_opcode::IBV_WR_ATOMIC_FETCH_AND_ADD,
            add: 3,
            ..write(&node, here, offset, 8, at(16))
        };
        let list = [
            (inline, INLINE),
            (write(&node, here, 64, 8, at(16)), 0),
            (read(&node, here, 128, 24, at(0)), 0),
            (add(1, 160), 0),
            (add(2, 168), SIGNALED | ibv_send_flags::IBV_SEND_FENCE.0),
            (read(&node, here, 176, 8, at(16)), SIGNALED),
        ];
        let list: Vec<_> = list
            .iter()
            .map(|(request, flags)| (request, *flags))
            .collect();
        node.post_list(&list).unwrap();
        for (id, opcode) in [
            (2, ibv_wc_opcode::IBV_WC_FETCH_ADD),
            (7, ibv_wc_opcode::IBV_WC_RDMA_READ),
        ] {
            let wc = node.complete();
            let told = (wc.wr_id, wc.status, wc.opcode);
            assert_eq!(told, (id, ibv_wc_status::IBV_WC_SUCCESS, opcode));
        }
        assert!(node.poll().is_none(), "the others are not signaled");
        let words = |offset, count: usize| -> Vec<u64> {
            let bytes = own.read(offset, 8 * count);
            let words = bytes.chunks_exact(8);
            words
                .map(|word| u64::from_ne_bytes(word.try_into().unwrap()))
                .collect()
        };
        let sevens = u64::from_ne_bytes([7; 8]);
        assert_eq!(words(128, 3), [sevens, sevens, 5]);
        assert_eq!(words(160, 3), [5, 8, 11], "memory {here} to memory {there}");
    }
}

/// Checks that a long write and a long read behind a message wait for its acknowledgement and then
/// need no packets.
pub(crate) fn long_one_sided_work_behind_a_message_needs_no_packets() {
    const EACH: u64 = 8;
    const LENGTH: usize = 64 << 10;
    let mut peer = Peer::start(Role::Receives { times: EACH });
    let mut node = Node::new();
    node.timeout = PATIENT;
    peer.meet(&node);
    let (address, key) = peer.card.memories[1];
    let place = (address + SIZE as u64 / 2, key);
    let own = &node.memories[1];
    let before = ["ring_xmit_messages", "one_sided_bytes"].map(count);
    for id in 0..EACH {
        let at = id as usize * MESSAGE;
        node.memories[0].write(at, &[id as u8; MESSAGE]);
        let sent = Request {
            id,
            sge: node.memories[0].sge(at, MESSAGE),
            ..message(&node)
        };
        own.write(0, &[id as u8 + 1; LENGTH]);
        let written = write(&node, 1, 0, LENGTH, place);
        let read = read(&node, 1, LENGTH, LENGTH, place);
        node.post_list(&[(&sent, 0), (&written, 0), (&read, SIGNALED)])
            .unwrap();
        assert_eq!(node.complete().status, ibv_wc_status::IBV_WC_SUCCESS);
        assert!(own.read(LENGTH, LENGTH) == [id as u8 + 1; LENGTH]);
    }
    let after = ["ring_xmit_messages", "one_sided_bytes"].map(count);
    assert_eq!(after[0] - before[0], EACH, "the messages alone");
    assert_eq!(after[1] - before[1], EACH * 2 * LENGTH as u64);
    peer.go();
    peer.done();
}

/// Checks that the requests before a bad one are executed, the bad one fails, and the requests
/// after it are flushed.
pub(crate) fn a_list_ends_with_the_request_that_fails() {
    let (node, peer) = connected(Role::Idle);
    let (address, key) = peer.card.memories[1];
    node.execute(&write(&node, 1, 0, 8, (address, key)));
    let request = |id, key| Request {
        id,
        ..write(&node, 1, 0, 8, (address, key))
    };
    let requests = [
        request(1, key),
        request(2, key ^ 1),
        request(3, key),
        request(4, key),
    ];
    let list: Vec<_> = requests.iter().map(|request| (request, 0)).collect();
    let before = count("shared_messages");
    node.post_list(&list).unwrap();
    for (id, status) in [
        (2, ibv_wc_status::IBV_WC_REM_ACCESS_ERR),
        (3, ibv_wc_status::IBV_WC_WR_FLUSH_ERR),
        (4, ibv_wc_status::IBV_WC_WR_FLUSH_ERR),
    ] {
        let wc = node.complete();
        assert_eq!((wc.wr_id, wc.status), (id, status));
    }
    assert_eq!(count("shared_messages") - before, 1);
    assert_eq!(node.state(), ibv_qp_state::IBV_QPS_ERR);
}

/// Checks that a list that is longer than the send queue is posted as far as it fits, however soon
/// its requests end.
pub(crate) fn a_list_that_is_too_long_is_posted_as_far_as_it_fits() {
    let (node, peer) = connected(Role::Idle);
    let request = write(&node, 1, 0, 8, peer.card.memories[1]);
    for _ in 0..3 {
        let fits = vec![(&request, 0); DEPTH as usize];
        assert_eq!(node.post_list(&fits), Ok(()));
        let too_long = vec![(&request, 0); DEPTH as usize + 2];
        let refused = Err((libc::ENOMEM, DEPTH as usize));
        assert_eq!(node.post_list(&too_long), refused);
    }
    node.execute(&request);
    assert_eq!(node.state(), ibv_qp_state::IBV_QPS_RTS);
}

/// Checks that the queue pair fails when the completion queue has no room, and that the earlier
/// completions can be polled.
pub(crate) fn completions_without_room_are_the_end() {
    let (node, peer) = connected(Role::Idle);
    let mut request = write(&node, 1, 0, 8, peer.card.memories[1]);
    for id in 0..u64::from(COMPLETIONS) - 3 {
        request.id = id;
        node.post(&request);
    }
    assert_eq!(node.state(), ibv_qp_state::IBV_QPS_RTS);
    let more: Vec<_> = (0..8)
        .map(|more| Request {
            id: u64::from(COMPLETIONS) - 3 + more,
            ..write(&node, 1, 0, 8, peer.card.memories[1])
        })
        .collect();
    let list: Vec<_> = more.iter().map(|request| (request, SIGNALED)).collect();
    node.post_list(&list).unwrap();
    assert_eq!(node.state(), ibv_qp_state::IBV_QPS_ERR);
    for id in 0..u64::from(COMPLETIONS) {
        let wc = node.complete();
        assert_eq!((wc.wr_id, wc.status), (id, ibv_wc_status::IBV_WC_SUCCESS));
    }
}
