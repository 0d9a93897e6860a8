//! Peers that end by themselves, or are killed under traffic of all kinds.

use std::thread;
use std::time::{Duration, Instant};

use ibverbs_sys::ibv_wc_status;
use softroce::path::Way;

use crate::node::LIMIT;
use crate::peer::{Role, message};
use crate::resources::{await_resources, resources};
use crate::traffic::{LONG, Traffic};
use crate::{connected, number};

/// Checks that the last acknowledgement of a peer that ends immediately is processed, although no
/// thread of this process is polling.
pub(crate) fn messages_of_an_ended_peer_are_received() {
    for _ in 0..10 {
        let (node, mut peer) = connected(Role::Leaves);
        assert_eq!(node.way(), Some(Way::Shared));
        peer.go();
        node.post(&message(&node));
        peer.leave();
        // Gives the engine time to notice that the peer has ended.
        thread::sleep(Duration::from_millis(20));
        let wc = node.complete();
        assert_eq!(wc.status, ibv_wc_status::IBV_WC_SUCCESS);
    }
}

pub(crate) fn the_links_of_killed_peers_are_removed() {
    let kills = number("SOFTROCE_TEST_KILLS", 25);
    let first = number("SOFTROCE_TEST_SEED", 0);
    let mut before = None;
    let mut longest = Duration::ZERO;
    let mut under_way = [0; LONG.len()];
    for round in (0..kills).map(|number| first.wrapping_add(number)) {
        let (node, mut peer) = connected(Role::Traffic { seed: round });
        let mut traffic = Traffic::new(round, &peer.card);
        traffic.prepare(&node);
        peer.go();
        let end = Instant::now() + Duration::from_micros(round.wrapping_mul(7919) % 12_000);
        while Instant::now() < end {
            assert_eq!(traffic.go_on(&node), Ok(()), "before the end");
        }
        peer.kill();
        let killed = Instant::now();
        for (all, now) in under_way.iter_mut().zip(traffic.long_under_way()) {
            *all += now;
        }
        // All requests end with errors, the first of them because the peer does not answer.
        let failed = loop {
            match traffic.go_on(&node) {
                Ok(()) => assert!(
                    killed.elapsed() < LIMIT,
                    "a request does not end, {round}: {traffic:?}"
                ),
                Err(status) => break status,
            }
        };
        assert_eq!(failed, ibv_wc_status::IBV_WC_RETRY_EXC_ERR);
        traffic.drain(&node);
        longest = longest.max(killed.elapsed());
        traffic.check_guards(&node);
        drop(node);
        // Gives the engine time to notice the end of the peer by itself.
        let expected = *before.get_or_insert_with(|| {
            thread::sleep(Duration::from_millis(200));
            resources()
        });
        await_resources(expected);
    }
    let is_enough = kills < 25 || under_way.iter().all(|&count| count > 0);
    assert!(
        is_enough,
        "not all were under way: {under_way:?} of {LONG:?}"
    );
    println!(
        "{kills} peers were killed; the longest end took {longest:?}; under way were {under_way:?}"
    );
}
