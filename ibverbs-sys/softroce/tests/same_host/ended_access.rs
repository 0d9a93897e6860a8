//! Memory whose deregistration, or whose queue pair's destruction, ends the access of a peer.

use std::thread;
use std::time::{Duration, Instant};

use crate::node::{LIMIT, SIZE};
use crate::peer::Role;
use crate::{connected, number};

/// Checks that memory cannot be deregistered while a stopped peer is in the middle of a copy to it.
pub(crate) fn memory_that_a_stopped_peer_copies_to_stays_registered() {
    let (mut node, mut peer) = connected(Role::Writes);
    let mut was_busy = false;
    for round in 0..100 {
        if round > 0 {
            node.renew();
            peer.meet(&node);
        }
        peer.go();
        thread::sleep(Duration::from_millis(5));
        peer.signal(libc::SIGSTOP);
        let (begin, pd) = (Instant::now(), node.pd);
        let memory = &mut node.memories[round % 2];
        let answer = memory.try_deregister();
        if answer != 0 {
            assert_eq!(answer, libc::EBUSY);
            assert!(
                begin.elapsed() < LIMIT,
                "the answer took {:?}",
                begin.elapsed()
            );
            was_busy = true;
        }
        peer.signal(libc::SIGCONT);
        if answer != 0 {
            // The memory is still registered, and can be deregistered when the peer goes on.
            memory.deregister();
        }
        memory.register(pd);
        peer.done();
        if was_busy {
            return;
        }
    }
    panic!("the peer was never stopped in the middle of a copy");
}

/// Checks that a region does not change after its deregistration while a peer writes without end.
pub(crate) fn deregistered_memory_is_not_accessed() {
    let (mut node, mut peer) = connected(Role::Writes);
    let mut touched = 0;
    for round in 0..60 {
        if round > 0 {
            node.renew();
            peer.meet(&node);
        }
        peer.go();
        thread::sleep(Duration::from_micros(200 * (round % 10)));
        let memory = &mut node.memories[round as usize % 2];
        memory.deregister();
        let before = memory.read(0, SIZE / 4);
        touched += usize::from(before.iter().any(|&byte| byte != 0));
        thread::sleep(Duration::from_millis(1));
        assert!(memory.read(0, SIZE / 4) == before, "touched after its end");
        memory.write(0, &vec![0; SIZE / 4]);
        let pd = node.pd;
        node.memories[round as usize % 2].register(pd);
        peer.done();
    }
    assert!(touched > 0, "the peer never wrote anything");
}

/// Checks that no memory changes after the queue pair was destroyed while a peer writes without
/// end.
pub(crate) fn a_destroyed_queue_pair_receives_nothing() {
    let (mut node, mut peer) = connected(Role::Writes);
    for round in 0..number("SOFTROCE_TEST_STORMS", 40) {
        if round > 0 {
            peer.meet(&node);
        }
        peer.go();
        thread::sleep(Duration::from_micros(300 * (round % 7)));
        node.renew();
        for memory in &node.memories {
            let before = memory.read(0, SIZE / 4);
            thread::sleep(Duration::from_micros(500));
            assert!(memory.read(0, SIZE / 4) == before, "touched after its end");
        }
        peer.done();
    }
}
