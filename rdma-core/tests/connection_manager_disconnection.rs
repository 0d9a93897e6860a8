//! Ends of connections, and the events that report them.

mod common;
#[path = "common/manager.rs"]
mod manager;

use std::thread;
use std::time::Duration;

use manager::{MAX_WAIT, connected, connector, listener};
use rdma_core::cm::ConnectionParameters;
use rdma_core::{Buffer, QueuePairState, WorkStatus};

#[test]
fn a_dropped_end_is_noticed_by_the_other() {
    let Some(address) = manager::address() else {
        return;
    };
    let (client, server) = connected(address);
    assert!(client.is_connected().unwrap() && server.is_connected().unwrap());
    assert!(
        !server
            .wait_disconnected(Some(Duration::from_millis(20)))
            .unwrap()
    );
    let pair = server.queue_pair().clone();
    drop(client);
    assert!(server.wait_disconnected(Some(MAX_WAIT)).unwrap());
    assert!(!server.is_connected().unwrap());
    assert_eq!(pair.state().unwrap(), QueuePairState::Error);
    // A second disconnection has no effect.
    server.disconnect().unwrap();
    drop(server);
    // A clone of the queue pair outlives the connection, in the error state.
    assert_eq!(pair.state().unwrap(), QueuePairState::Error);
}

#[test]
fn receives_of_a_connection_that_ends_are_flushed() {
    let Some(address) = manager::address() else {
        return;
    };
    let (listener, there) = listener(address);
    let peer = connector(there).resolve().unwrap();
    let domain = peer.context().unwrap().protection_domain().unwrap();
    thread::scope(|scope| {
        scope.spawn(|| {
            let incoming = listener.next(Some(MAX_WAIT)).unwrap().unwrap();
            let accepted = incoming.prepare(domain.queue_pair()).unwrap();
            let mut receives = accepted.queue_pair().receive_queue::<Buffer>();
            receives.post(domain.allocate(8).unwrap()).unwrap();
            let server = accepted
                .establish(&ConnectionParameters::default())
                .unwrap();
            assert!(server.wait_disconnected(Some(MAX_WAIT)).unwrap());
            let flushed = common::completion(server.queue_pair().receive_completions());
            assert_eq!(flushed.status(), WorkStatus::Flushed);
            assert!(receives.complete(&flushed).is_some());
        });
        let client = peer.prepare(domain.queue_pair()).unwrap();
        let client = client.establish(&ConnectionParameters::default()).unwrap();
        client.disconnect().unwrap();
        assert!(!client.is_connected().unwrap());
    });
}

#[test]
fn one_disconnection_ends_the_wait_of_all_threads() {
    let Some(address) = manager::address() else {
        return;
    };
    let (client, server) = connected(address);
    thread::scope(|scope| {
        let waiting = || assert!(server.wait_disconnected(Some(MAX_WAIT)).unwrap());
        for _ in 0..3 {
            scope.spawn(waiting);
        }
        drop(client);
    });
    // A thread that disconnects waits for the event for which another thread waits.
    let (client, server) = connected(address);
    thread::scope(|scope| {
        scope.spawn(|| assert!(server.wait_disconnected(Some(MAX_WAIT)).unwrap()));
        scope.spawn(|| assert!(client.wait_disconnected(Some(MAX_WAIT)).unwrap()));
        thread::sleep(Duration::from_millis(20));
        client.disconnect().unwrap();
    });
}

#[test]
fn both_sides_may_disconnect_at_the_same_time() {
    let Some(address) = manager::address() else {
        return;
    };
    for _ in 0..5 {
        let (client, server) = connected(address);
        thread::scope(|scope| {
            scope.spawn(|| client.disconnect().unwrap());
            scope.spawn(|| server.disconnect().unwrap());
        });
        assert!(!client.is_connected().unwrap() && !server.is_connected().unwrap());
    }
}

#[test]
fn parts_of_a_connection_outlive_it() {
    let Some(address) = manager::address() else {
        return;
    };
    let (client, server) = connected(address);
    let (id, pair, peer) = client.into_parts();
    assert_eq!(pair.state().unwrap(), QueuePairState::ReadyToSend);
    assert_eq!(peer.queue_pair, server.queue_pair().number());
    assert!(server.is_connected().unwrap());
    // Dropping the identifier disconnects.
    drop(id);
    assert!(server.wait_disconnected(Some(MAX_WAIT)).unwrap());
    drop(pair);
}
