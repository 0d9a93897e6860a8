//! One-sided operations between two processes that share memory.

use ibverbs_sys::{ibv_send_flags, ibv_wc_status, ibv_wr_opcode};
use softroce::fault::NetworkFaults;
use softroce::path::Way;

use crate::node::{Node, Request, SIZE};
use crate::peer::{MESSAGE, Peer, Role, message};
use crate::{connected, count, read, write};

pub(crate) fn messages_are_sent_through_shared_memory() {
    let (node, peer) = connected(Role::Idle);
    assert_eq!(node.way(), Some(Way::Shared));
    let (messages, packets) = (count("shared_messages"), count("port_xmit_packets"));
    for memory in peer.card.memories {
        for _ in 0..100 {
            node.execute(&write(&node, 0, 0, 4096, memory));
        }
    }
    assert_eq!(count("shared_messages") - messages, 200);
    assert_eq!(count("port_xmit_packets"), packets, "without packets");
}

pub(crate) fn bytes_arrive_in_every_length() {
    let (node, peer) = connected(Role::Idle);
    let lengths = [
        0,
        1,
        7,
        8,
        9,
        63,
        64,
        65,
        4095,
        4096,
        100_000,
        (1 << 20) + 5,
        SIZE / 2,
    ];
    for (round, &length) in lengths.iter().cycle().take(4 * lengths.len()).enumerate() {
        let (here, there) = (round / lengths.len() % 2, round / lengths.len() / 2);
        let offset = round % 9;
        let bytes: Vec<u8> = (0..length).map(|at| (at * 31 + round) as u8).collect();
        node.memories[here].write(offset, &bytes);
        let (address, key) = peer.card.memories[there];
        let place = (address + (round % 5) as u64, key);
        node.execute(&write(&node, here, offset, length, place));
        // Reads the bytes back into the second half of the memory.
        node.memories[here].write(SIZE / 2, &vec![0; length]);
        node.execute(&read(&node, here, SIZE / 2, length, place));
        assert!(
            node.memories[here].read(SIZE / 2, length) == bytes,
            "{length} bytes"
        );
    }
}

pub(crate) fn atomics_count_from_both_sides() {
    const EACH: u64 = 500;
    let (node, mut peer) = connected(Role::Adds { times: EACH });
    peer.go();
    for _ in 0..EACH {
        for memory in peer.card.memories {
            node.execute(&Request {
                id: 1,
                opcode: ibv_wr_opcode::IBV_WR_ATOMIC_FETCH_AND_ADD,
                sge: node.memories[0].sge(8, 8),
                remote: memory,
                add: 1,
            });
        }
    }
    peer.done();
    for memory in peer.card.memories {
        node.execute(&read(&node, 0, 0, 8, memory));
        let counted = u64::from_ne_bytes(node.memories[0].read(0, 8).try_into().unwrap());
        // The peer has made half of the additions, with instructions of its processor.
        assert_eq!(counted, 2 * EACH);
    }
}

/// Checks that the peer counts the sequence numbers of one-sided operations before it accepts the
/// next packets, which come by sockets, where packets are lost and duplicated.
pub(crate) fn skipped_sequence_numbers_are_announced_despite_packet_loss() {
    const EACH: u64 = 32;
    let (mut node, mut peer) = (Node::new(), Peer::start(Role::Receives { times: EACH }));
    node.timeout = 10;
    peer.meet(&node);
    for id in 0..EACH {
        node.memories[0].write(id as usize * MESSAGE, &[id as u8; MESSAGE]);
    }
    let messages = count("shared_messages");
    for id in 0..EACH {
        softroce::faults().set_network(NetworkFaults::default());
        node.execute(&write(&node, 0, SIZE / 2, 64, peer.card.memories[1]));
        softroce::faults().set_network(NetworkFaults {
            loss: 0.1,
            duplicate: 0.1,
            seed: id,
            ..NetworkFaults::default()
        });
        node.execute(&Request {
            sge: node.memories[0].sge(id as usize * MESSAGE, MESSAGE),
            id,
            ..message(&node)
        });
    }
    softroce::faults().set_network(NetworkFaults::default());
    assert_eq!(count("shared_messages") - messages, EACH);
    peer.go();
    peer.done();
}

/// Checks that a long write with immediate data and a wrong key ends with an error, also directly
/// after a request that needed no packets.
pub(crate) fn a_long_write_that_the_peer_refuses_ends_after_a_write() {
    let (node, peer) = connected(Role::Idle);
    let (address, key) = peer.card.memories[1];
    let writes = [
        write(&node, 0, 0, 64, (address, key)),
        Request {
            opcode: ibv_wr_opcode::IBV_WR_RDMA_WRITE_WITH_IMM,
            ..write(&node, 0, 0, 64 << 10, (address, key ^ 0xff))
        },
    ];
    let signaled = ibv_send_flags::IBV_SEND_SIGNALED.0;
    let posted = node.post_list(&writes.each_ref().map(|write| (write, signaled)));
    assert_eq!(posted, Ok(()));
    assert_eq!(node.complete().status, ibv_wc_status::IBV_WC_SUCCESS);
    assert_eq!(node.complete().status, ibv_wc_status::IBV_WC_REM_ACCESS_ERR);
}
