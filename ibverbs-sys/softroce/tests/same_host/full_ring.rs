//! Messages to peers whose ring has no space.

use std::thread;
use std::time::Duration;

use ibverbs_sys::{ibv_wc_status, ibv_wr_opcode};

use crate::count;
use crate::node::{Node, PATIENT, Request};
use crate::peer::{MESSAGE, Peer, Role};

/// Checks that messages for which a stopped peer has no room are sent later, and that each is sent
/// once.
pub(crate) fn messages_wait_for_space_in_the_ring_and_are_not_lost() {
    const EACH: u64 = 24;
    let mut peer = Peer::start(Role::Receives { times: EACH });
    let nodes: Vec<Node> = (0..12)
        .map(|_| {
            let mut node = Node::new();
            node.timeout = PATIENT;
            peer.meet(&node);
            for id in 0..EACH {
                let at = id as usize * MESSAGE;
                node.memories[0].write(at, &[id as u8; MESSAGE]);
            }
            node
        })
        .collect();
    let again = [
        "retry_exceeded_err",
        "local_ack_timeout_err",
        "packet_seq_err",
        "out_of_sequence",
    ];
    let counts = || {
        again
            .iter()
            .chain(&["port_xmit_discards"])
            .map(|name| count(name))
            .collect::<Vec<_>>()
    };
    peer.stop();
    let (before, packets) = (counts(), count("port_xmit_packets"));
    for id in 0..EACH {
        for node in &nodes {
            let at = id as usize * MESSAGE;
            node.post(&Request {
                id,
                opcode: ibv_wr_opcode::IBV_WR_SEND,
                sge: node.memories[0].sge(at, MESSAGE),
                remote: (0, 0),
                add: 0,
            });
        }
    }
    thread::sleep(Duration::from_millis(20));
    let went = count("port_xmit_packets") - packets;
    let all = EACH * nodes.len() as u64;
    assert!(went > 0 && went < all, "{went} of {all} found room");
    peer.signal(libc::SIGCONT);
    peer.go();
    for node in &nodes {
        for id in 0..EACH {
            let wc = node.complete();
            assert_eq!((wc.status, wc.wr_id), (ibv_wc_status::IBV_WC_SUCCESS, id));
        }
    }
    peer.done();
    assert_eq!(counts(), before, "{again:?}, discarded");
    // A queue pair that gets no acknowledgement for a while sends a packet as a probe, up to three
    // times.
    let (sent, probes) = (count("port_xmit_packets") - packets, 3 * nodes.len() as u64);
    let once = all..=all + probes;
    assert!(once.contains(&sent), "{sent} packets of {all}");
}

/// Checks that requests fail if there never was space to send them: to a stopped peer, to a
/// killed peer while the program polls, and to a killed peer while only the engine runs.
pub(crate) fn requests_to_a_peer_with_a_full_ring_fail_in_time() {
    const EACH: u64 = 24;
    for (ends, looks) in [(false, true), (true, true), (true, false)] {
        let mut peer = Peer::start(Role::Receives { times: EACH });
        let nodes: Vec<Node> = (0..12)
            .map(|_| {
                let node = Node::new();
                peer.meet(&node);
                node
            })
            .collect();
        peer.stop();
        for id in 0..EACH {
            for node in &nodes {
                node.post(&Request {
                    id,
                    opcode: ibv_wr_opcode::IBV_WR_SEND,
                    sge: node.memories[0].sge(0, MESSAGE),
                    remote: (0, 0),
                    add: 0,
                });
            }
        }
        let mut first = vec![None; nodes.len()];
        if ends {
            // Longer than the first timeout of an acknowledgement.
            thread::sleep(Duration::from_millis(200));
            if looks {
                first[0] = nodes[0].poll();
            }
            peer.kill();
            if !looks {
                thread::sleep(Duration::from_millis(200));
            }
        }
        for (node, first) in nodes.iter().zip(first) {
            for id in 0..EACH {
                let wc = match first {
                    Some(wc) if id == 0 => wc,
                    _ => node.complete(),
                };
                let expected = match id {
                    0 => ibv_wc_status::IBV_WC_RETRY_EXC_ERR,
                    _ => ibv_wc_status::IBV_WC_WR_FLUSH_ERR,
                };
                assert_eq!((wc.status, wc.wr_id), (expected, id), "{ends} {looks}");
            }
        }
    }
}
