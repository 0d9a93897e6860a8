//! Checks that pending operations fail when the peer disconnects.

mod common;

use std::sync::Arc;

use common::{assert_disconnected, assert_gone, bytes, layout, pair, pair_with, pattern, run};
use rdma_async::{Error, LocalMrReadAccess, RemoteMr};

#[test]
fn all_waiting_operations_fail() {
    run(async {
        let (client, server) = pair_with(|builder| builder.receive_depth(2)).await;
        let client = Arc::new(client);
        let message = pattern(&client, 8, 0);
        // Sends until no credits are left.
        client.send(&message).await.unwrap();
        client.send(&message).await.unwrap();
        let remote = client.request_remote_mr(layout(8)).await.unwrap();
        let mut target = RemoteMr::from_token(remote.token());
        let long = pattern(&client, 100_000, 0);
        let waiting = async {
            tokio::join!(
                client.receive(),
                client.receive_local_mr(),
                client.receive_remote_mr(),
                client.receive_write_immediate(),
                client.send(&message),
                client.send(&long),
                client.write_with_immediate(&message, &mut target, 1),
                client.ended(),
            )
        };
        let leaving = async {
            tokio::task::yield_now().await;
            drop(server);
        };
        let (outcomes, ()) = tokio::join!(waiting, leaving);
        assert_disconnected(outcomes.0);
        assert_disconnected(outcomes.1);
        assert_disconnected(outcomes.2);
        assert_disconnected(outcomes.3);
        assert_disconnected(outcomes.4);
        assert_disconnected(outcomes.5);
        assert_disconnected(outcomes.6);
        assert!(matches!(outcomes.7, Error::Disconnected { .. }));
        // Later operations fail too.
        assert_disconnected(client.receive().await);
        assert_disconnected(client.send(&message).await);
        assert_disconnected(client.request_remote_mr(layout(8)).await);
        assert_disconnected(client.send_remote_mr(remote).await);
        assert_disconnected(client.send_local_mr(message).await);
    });
}

#[test]
fn a_rendezvous_that_the_peer_has_not_read_fails() {
    run(async {
        for _ in 0..20 {
            let (client, server) = pair().await;
            let mut long = pattern(&client, 100_000, 0);
            let (sent, ()) = tokio::join!(client.send(&long), async {
                // The answer shows that the message before the request has arrived.
                drop(server.request_remote_mr(layout(8)).await.unwrap());
                drop(server);
            });
            assert_disconnected(sent);
            use rdma_async::LocalMrWriteAccess;
            assert!(long.try_as_mut_slice().is_ok(), "the grant has ended");
        }
    });
}

#[test]
fn an_unanswered_request_fails() {
    run(async {
        for _ in 0..20 {
            let (client, server) = pair().await;
            let (outcome, ()) = tokio::join!(
                async {
                    loop {
                        if let Err(error) = client.request_remote_mr(layout(8)).await {
                            return error;
                        }
                    }
                },
                async {
                    tokio::task::yield_now().await;
                    drop(server);
                }
            );
            assert_gone(&outcome);
        }
    });
}

#[test]
fn operations_in_flight_fail_with_the_connection() {
    run(async {
        for _ in 0..3 {
            let (client, server) = pair().await;
            let remote = client.request_remote_mr(layout(1 << 20)).await.unwrap();
            let mut target = client.alloc_local_mr(layout(1 << 20)).unwrap();
            let reading = async {
                loop {
                    if let Err(error) = client.read(&mut target, &remote).await {
                        return error;
                    }
                }
            };
            let leaving = async {
                tokio::task::yield_now().await;
                drop(server);
            };
            // The cause is a device that stopped answering, a refused access or a closed
            // connection. Any of them can be detected first.
            let (error, ()) = tokio::join!(reading, leaving);
            let is_expected = matches!(error, Error::Disconnected { .. } | Error::Work(_));
            assert!(is_expected, "{error:?}");
            assert!(client.failure().is_some());
        }
    });
}

#[test]
fn messages_from_before_the_end_are_received() {
    run(async {
        let (client, server) = pair().await;
        for seed in 0..30 {
            client.send(&pattern(&client, 50, seed)).await.unwrap();
        }
        let mut remote = server.request_remote_mr(layout(8)).await.unwrap();
        server
            .write(&pattern(&server, 8, 1), &mut remote)
            .await
            .unwrap();
        client.send_local_mr(pattern(&client, 8, 2)).await.unwrap();
        drop(client);
        assert!(matches!(server.ended().await, Error::Disconnected { .. }));
        for seed in 0..30 {
            let message = server.receive().await.unwrap();
            assert_eq!(message.as_slice(), bytes(50, seed));
        }
        assert_disconnected(server.receive().await);
        let offered = server.receive_remote_mr().await.unwrap();
        let mut local = server.alloc_local_mr(layout(8)).unwrap();
        assert_disconnected(server.read(&mut local, &offered).await);
    });
}

#[test]
fn memory_returned_before_the_end_is_received() {
    run(async {
        let (client, server) = pair().await;
        let mut remote = client.request_remote_mr(layout(8)).await.unwrap();
        client
            .write(&pattern(&client, 8, 3), &mut remote)
            .await
            .unwrap();
        client.send_remote_mr(remote).await.unwrap();
        drop(client);
        assert!(matches!(server.ended().await, Error::Disconnected { .. }));
        let region = server.receive_local_mr().await.unwrap();
        assert_eq!(region.as_slice(), bytes(8, 3));
        assert_disconnected(server.receive_local_mr().await);
    });
}
