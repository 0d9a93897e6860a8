//! Wakeups of the threads and of the engine of a process by its peer.

use std::mem::ManuallyDrop;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::Duration;

use ibverbs_sys::{ibv_wc_opcode, ibv_wc_status};
use softroce::path::Way;

use crate::node::{Node, PATIENT};
use crate::peer::{Peer, Role, hear, message};
use crate::{connected, count, read, write};

/// Checks that one-sided operations do not wake the peer's engine, which is asleep all the time.
pub(crate) fn one_sided_operations_do_not_wake_the_peer() {
    let (node, peer) = connected(Role::Idle);
    node.execute(&write(&node, 0, 0, 8, peer.card.memories[0]));
    let before = count("shared_wakings");
    for memory in peer.card.memories {
        for _ in 0..1000 {
            node.execute(&write(&node, 0, 0, 64, memory));
            node.execute(&read(&node, 0, 0, 64, memory));
        }
    }
    assert_eq!(count("shared_wakings"), before);
}

/// Checks that a message wakes the peer's thread that waits for the event, and not the engine,
/// which would have to wake the thread.
pub(crate) fn a_thread_waiting_for_an_event_is_woken_by_the_peer() {
    const ROUNDS: u64 = 50;
    let (channel, all) = wake_for_each_of(ROUNDS, Role::Echoes { times: ROUNDS });
    assert!(
        channel >= ROUNDS,
        "{channel} of {all} for {ROUNDS} messages"
    );
}

/// Checks the same for a thread that waits until a non-blocking channel is readable.
pub(crate) fn an_event_loop_is_woken_by_the_peer() {
    const ROUNDS: u64 = 50;
    let (channel, all) = wake_for_each_of(ROUNDS, Role::EchoesByEvents { times: ROUNDS });
    // If the test is delayed by some milliseconds, the next message wakes the engine.
    assert!(channel > 0, "0 of {all} for {ROUNDS} messages");
}

/// Sends messages to a peer that plays `role` and sleeps before each. Returns the number of wakeups
/// of the peer's thread, and of all wakeups.
fn wake_for_each_of(rounds: u64, role: Role) -> (u64, u64) {
    let mut node = Node::new();
    node.timeout = PATIENT;
    let mut peer = Peer::start(role);
    peer.meet(&node);
    let wakings = || (count("shared_channel_wakings"), count("shared_wakings"));
    let before = wakings();
    peer.go();
    for _ in 0..rounds {
        node.receive(0, node.memories[0].sge(0, 8));
        peer.wait_until_asleep();
        node.post(&message(&node));
        hear(&node);
    }
    peer.done();
    let (channel, all) = (wakings().0 - before.0, wakings().1 - before.1);
    // The acknowledgement of an answer goes with the next message, or alone after half a
    // millisecond.
    assert!(all <= 2 * rounds + 1, "{all} for {rounds} messages");
    (channel, all)
}

/// Checks that the engine receives a message if the thread that was woken for the message does not.
pub(crate) fn a_message_to_an_event_loop_that_is_busy_is_received() {
    let mut node = Node::new();
    // Nothing is retransmitted, so the acknowledgement of the message itself is required.
    node.timeout = 0;
    let mut peer = Peer::start(Role::Arms);
    peer.meet(&node);
    assert_eq!(node.way(), Some(Way::Shared));
    for _ in 0..10 {
        peer.go();
        peer.done();
        let before = count("shared_channel_wakings");
        node.execute(&message(&node));
        assert_eq!(count("shared_channel_wakings"), before + 1);
    }
}

/// Checks that messages are received when several threads wait at one channel and the peer's wakeup
/// goes to any one of them.
pub(crate) fn all_threads_that_wait_at_a_channel_are_served() {
    const ROUNDS: u64 = 2000;
    const THREADS: usize = 3;
    // If a thread is not woken, the test fails while the thread still waits at the channel, which
    // must not be destroyed then.
    let mut node = ManuallyDrop::new(Node::new());
    // No timer, because a timeout would make the engine process a message for which a thread was
    // woken in vain.
    node.timeout = 0;
    let mut peer = Peer::start(Role::Echoes { times: ROUNDS });
    peer.meet(&node);
    assert_eq!(node.way(), Some(Way::Shared));
    peer.go();
    let (fetched, events) = mpsc::channel();
    let is_over = Arc::new(AtomicBool::new(false));
    let threads = [(); THREADS].map(|()| {
        let (channel, fetched) = (node.channel(), fetched.clone());
        let is_over = Arc::clone(&is_over);
        thread::spawn(move || {
            while !is_over.load(Ordering::SeqCst) {
                channel.next_event();
                // Fails only if the test has failed and dropped the receiver.
                let _ = fetched.send(());
            }
        })
    });
    let mut received = 0;
    for round in 0..ROUNDS {
        node.receive(0, node.memories[0].sge(0, 8));
        node.post(&message(&node));
        loop {
            node.arm();
            // Polls after arming: completions that arrive from here on raise an event.
            while let Some(wc) = node.poll() {
                assert_eq!(wc.status, ibv_wc_status::IBV_WC_SUCCESS);
                received += u64::from(wc.opcode.0 & ibv_wc_opcode::IBV_WC_RECV.0 != 0);
            }
            if received > round {
                break;
            }
            let event = events.recv_timeout(Duration::from_secs(10));
            event.expect("a thread is woken for the answer");
        }
    }
    peer.done();
    // Raises an event for each thread, so that all threads end.
    is_over.store(true, Ordering::SeqCst);
    node.fail();
    while !threads.iter().all(|thread| thread.is_finished()) {
        node.arm();
        node.receive(0, node.memories[0].sge(0, 8));
        while node.poll().is_some() {}
        let _ = events.recv_timeout(Duration::from_millis(10));
    }
    drop(ManuallyDrop::into_inner(node));
}
