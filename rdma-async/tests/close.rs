//! Checks that closing a connection waits until the peer has received everything.

mod common;

use std::time::Duration;

use common::hostile::Hostile;
use common::{
    assert_disconnected, assert_gone, bytes, check, layout, listen, one_thread, pair, pair_with,
    pattern, poll_and_drop, run, run_on, two_threads,
};
use rdma_async::{Error, LocalMrReadAccess, RdmaDevice};

#[test]
fn posted_messages_have_arrived_when_close_returns() {
    for runtime in [one_thread(), two_threads()] {
        run_on(runtime, async {
            for _ in 0..10 {
                let (client, server) = pair().await;
                for seed in 0..50 {
                    client.post(&pattern(&client, 100, seed)).await.unwrap();
                }
                client.close().await.unwrap();
                // After `close`, the peer does not depend on the runtime of this end.
                for seed in 0..50 {
                    let message = server.receive().await.unwrap();
                    assert_eq!(message.as_slice(), bytes(100, seed));
                }
                assert_disconnected(server.receive().await);
            }
        });
    }
}

#[test]
fn after_close_the_peer_does_not_need_the_runtime_of_this_end() {
    const LIMIT: Duration = Duration::from_secs(60);
    let (clients, servers) = (one_thread(), two_threads());
    let mut listener = servers.block_on(listen(|builder| builder));
    let address = listener.local_address().unwrap();
    let accepting = servers.spawn(async move { listener.accept().await });
    clients.block_on(async {
        let client = common::builder().connect(address).await.unwrap();
        for seed in 0..50 {
            client.post(&pattern(&client, 100, seed)).await.unwrap();
        }
        client.close().await.unwrap();
    });
    // From here on, the client's runtime runs no task.
    servers.block_on(async {
        let received = tokio::time::timeout(LIMIT, async {
            let server = accepting.await.unwrap().unwrap();
            for seed in 0..50 {
                let message = server.receive().await.unwrap();
                assert_eq!(message.as_slice(), bytes(100, seed));
            }
        });
        received.await.expect("all messages within the limit");
    });
}

#[test]
fn close_waits_for_a_long_message_whose_future_was_dropped() {
    run(async {
        let (client, server) = pair().await;
        let long = pattern(&client, 100_000, 3);
        assert!(poll_and_drop(client.send(&long)).is_none());
        let (closed, received) = tokio::join!(client.close(), server.receive());
        closed.unwrap();
        assert!(received.unwrap().as_slice() == bytes(100_000, 3));
    });
}

#[test]
fn close_returns_an_error_at_the_time_limit() {
    run(async {
        let limit = Duration::from_millis(200);
        let mut listener = listen(|builder| builder.response_timeout(limit)).await;
        let address = listener.local_address().unwrap();
        let (hostile, server) = tokio::join!(Hostile::without_receives(address), listener.accept());
        let server = server.unwrap();
        server.post(&pattern(&server, 8, 0)).await.unwrap();
        let outcome = server.close().await;
        assert!(matches!(outcome, Err(Error::Timeout { .. })), "{outcome:?}");
        drop(hostile);
    });
}

#[test]
fn close_reports_that_the_peer_has_disconnected() {
    run(async {
        let (client, server) = pair().await;
        drop(server);
        client.ended().await;
        assert_gone(&client.close().await.unwrap_err());
    });
}

#[test]
fn connections_of_one_device_share_memory_and_outlive_its_handle() {
    run(async {
        let device = RdmaDevice::new(&common::context()).unwrap();
        let mut listener = device.builder().bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_address().unwrap();
        let mut pairs = Vec::new();
        for _ in 0..5 {
            let (client, server) =
                tokio::join!(device.builder().connect(address), listener.accept());
            pairs.push((client.unwrap(), server.unwrap()));
        }
        let message = device.alloc_local_mr(layout(16)).unwrap();
        drop((device, listener));
        for (client, server) in &pairs {
            let (sent, received) = tokio::join!(client.send(&message), server.receive());
            sent.unwrap();
            assert_eq!(received.unwrap().as_slice(), [0; 16]);
        }
        // The end of one connection does not end the others.
        let (first, _peer) = pairs.swap_remove(2);
        drop(first);
        for (client, server) in &pairs {
            check(client, server).await;
        }
    });
}

#[test]
fn an_idle_connection_with_a_short_keep_alive_stays_open() {
    run(async {
        let short = Duration::from_secs(1);
        let (client, server) = pair_with(|builder| builder.keep_alive(short)).await;
        tokio::time::sleep(Duration::from_millis(100)).await;
        check(&client, &server).await;
    });
}
