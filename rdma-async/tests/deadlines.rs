//! Checks operations with a deadline.

mod common;

use std::time::Duration;

use common::hostile::Hostile;
use common::{check, join, layout, listen, one_thread, pattern, run_on, two_threads};
use rdma_async::{Error, Execution, Rdma, RdmaBuilder, RdmaListener, RemoteMr};
use rdma_core::RemoteMemory;

const SHORT: Duration = Duration::from_millis(50);
const LONG: Duration = Duration::from_secs(100);

fn plain(builder: RdmaBuilder) -> RdmaBuilder {
    builder.send_depth(8).receive_depth(4)
}

/// Returns a connection whose peer posts no receives, so that messages stay in flight.
async fn peer_without_receives(listener: &mut RdmaListener) -> (Hostile, Rdma) {
    let address = listener.local_address().unwrap();
    let (hostile, server) = tokio::join!(Hostile::without_receives(address), listener.accept());
    (hostile, server.unwrap())
}

#[track_caller]
fn assert_late<T: std::fmt::Debug>(outcome: Result<T, Error>, expected: Execution) {
    match outcome {
        Err(Error::DeadlineExceeded { limit, execution }) => {
            assert_eq!((limit, execution), (SHORT, expected));
        }
        other => panic!("not a deadline: {other:?}"),
    }
}

#[test]
fn a_late_operation_ends_its_connection_and_returns_its_execution_state() {
    for runtime in [one_thread(), two_threads()] {
        run_on(runtime, async {
            let mut listener = listen(plain).await;
            let (good, good_server) = join(&mut listener, plain).await;
            let (hostile, server) = peer_without_receives(&mut listener).await;
            let message = pattern(&server, 8, 0);
            let mut target = pattern(&server, 8, 0);
            let remote = RemoteMr::from_token(RemoteMemory {
                address: 0x1000,
                len: 8,
                rkey: 1,
            });
            // These operations wait behind eight operations that were posted to the device.
            let (late, waits, receives, ended) = tokio::join!(
                server.within(SHORT, async {
                    let sends = (0..8).map(|_| server.send(&message));
                    futures_util::future::try_join_all(sends).await
                }),
                server.read(&mut target, &remote),
                server.receive(),
                server.ended(),
            );
            assert_late(late, Execution::Unknown);
            assert_late(waits, Execution::NotExecuted);
            assert_late(receives, Execution::NotExecuted);
            assert!(matches!(ended, Error::DeadlineExceeded { .. }), "{ended}");
            assert_late(server.send(&message).await, Execution::NotExecuted);
            check(&good, &good_server).await;
            drop(hostile);
        });
    }
}

#[test]
fn a_delivered_message_or_request_may_have_been_executed() {
    run_on(two_threads(), async {
        let mut listener = listen(plain).await;
        let (client, _server) = join(&mut listener, plain).await;
        // The peer gets the offer of the message, and does not read the message.
        let long = pattern(&client, 100_000, 1);
        assert_late(
            client.within(SHORT, client.send(&long)).await,
            Execution::Unknown,
        );
    });
}

#[test]
fn a_partly_posted_write_may_have_been_executed() {
    run_on(two_threads(), async {
        let mut listener = listen(plain).await;
        let (_hostile, server) = peer_without_receives(&mut listener).await;
        let message = pattern(&server, 8, 0);
        let blocked = server.send(&message);
        let mut remote = RemoteMr::from_token(RemoteMemory {
            address: 0x1000,
            len: 16 * 200,
            rkey: 1,
        });
        // The number of pieces exceeds the capacity of the send queue, which is blocked by a
        // message that the peer's device does not acknowledge.
        let piece = pattern(&server, 200, 0);
        let pieces = [&piece; 16];
        let written = server.within(SHORT, server.write_vectored(&pieces, &mut remote));
        let (sent, written) = tokio::join!(blocked, written);
        assert_late(sent, Execution::Unknown);
        assert_late(written, Execution::Unknown);
    });
}

#[test]
fn a_completed_or_dropped_operation_has_no_deadline() {
    run_on(two_threads(), async {
        let mut listener = listen(plain).await;
        let (client, server) = join(&mut listener, plain).await;
        let message = pattern(&client, 8, 0);
        for _ in 0..50 {
            let (sent, received) = tokio::join!(
                client.within(SHORT * 100, client.send(&message)),
                server.within(SHORT * 100, server.receive()),
            );
            sent.unwrap();
            received.unwrap();
        }
        // The future of this operation is dropped before its deadline.
        let given_up = tokio::time::timeout(SHORT / 5, client.within(SHORT, client.receive()));
        assert!(given_up.await.is_err());
        tokio::time::sleep(SHORT * 2).await;
        assert!(client.failure().is_none());
        check(&client, &server).await;
    });
}

#[test]
fn a_deadline_expires_while_the_driver_sleeps() {
    for runtime in [one_thread(), two_threads()] {
        run_on(runtime, async {
            let mut listener = listen(plain).await;
            let (client, _server) = join(&mut listener, plain).await;
            // The later deadline is added first, so that the driver first sleeps until that time.
            let (later, sooner) = tokio::join!(
                client.within(LONG, client.receive_write_immediate()),
                client.within(SHORT, client.receive()),
            );
            assert_late(later, Execution::NotExecuted);
            assert_late(sooner, Execution::NotExecuted);
            let refused = client.request_remote_mr(layout(8)).await;
            assert_late(refused, Execution::NotExecuted);
        });
    }
}
