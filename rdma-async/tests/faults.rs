//! Checks operations on a device that loses packets or is out of resources. The device is softroce,
//! whose injected faults apply to the whole process.

mod common;

use std::future::Future;
use std::pin::pin;
use std::sync::Mutex;
use std::time::Duration;

use common::{
    assert_disconnected, assert_gone, builder, bytes, check, layout, one_thread, pattern,
    poll_and_drop, run_on, two_threads,
};
use rdma_async::{
    Error, LocalMrReadAccess, LocalMrWriteAccess, PublishedReader, Rdma, RdmaBuilder, RemoteMr,
};
use softroce::fault::{Errno, Failure, NetworkFaults, Verb};
use tokio::runtime::Runtime;
use tokio::time::timeout;

const LENGTH: usize = 1 << 20;
/// Time limit until an operation fails. The device retries seven times, which takes some seconds.
const BOUND: Duration = Duration::from_secs(90);

/// Lock of the running test. The tests run one at a time, because faults apply to the whole
/// process.
static TEST_LOCK: Mutex<()> = Mutex::new(());

/// Runs a test while no other test runs, and ends the faults afterwards.
fn run_alone(runtime: Runtime, test: impl Future<Output = ()>) {
    struct NoFaults;

    impl Drop for NoFaults {
        fn drop(&mut self) {
            softroce::faults().set_network(NetworkFaults::default());
            softroce::faults().forget_failures();
        }
    }

    let _lock = TEST_LOCK
        .lock()
        .unwrap_or_else(|poisoned| poisoned.into_inner());
    let _no_faults = NoFaults;
    run_on(runtime, test);
}

fn lossy(loss: f64) -> NetworkFaults {
    NetworkFaults {
        loss,
        ..NetworkFaults::default()
    }
}

async fn softroce_pair(configure: impl Fn(RdmaBuilder) -> RdmaBuilder) -> (Rdma, Rdma) {
    common::pair_with(|builder| configure(builder.device("softroce0"))).await
}

async fn in_time<T>(what: &str, operation: impl Future<Output = T>) -> T {
    timeout(BOUND, operation)
        .await
        .unwrap_or_else(|_| panic!("{what} took longer than {BOUND:?}"))
}

#[track_caller]
fn assert_failed<T: std::fmt::Debug>(outcome: Result<T, Error>) {
    assert_gone(&outcome.unwrap_err());
}

#[test]
fn operations_in_flight_fail_when_all_packets_are_lost() {
    for runtime in [one_thread(), two_threads()] {
        run_alone(runtime, async {
            let (client, server) = softroce_pair(|builder| builder).await;
            let mut remote = client.request_remote_mr(layout(LENGTH)).await.unwrap();
            let mut counter = client.request_remote_mr(layout(8)).await.unwrap();
            let readable = RemoteMr::from_token(remote.token());
            let source = pattern(&client, LENGTH, 1);
            let message = pattern(&client, 100, 1);
            let mut target = client.alloc_local_mr(layout(LENGTH)).unwrap();
            softroce::faults().set_network(lossy(1.0));
            let operations = async {
                tokio::join!(
                    client.write(&source, &mut remote),
                    client.read(&mut target, &readable),
                    client.fetch_and_add(&mut counter, 1),
                    client.send(&message),
                    client.send(&source),
                    client.request_remote_mr(layout(8)),
                    client.receive(),
                    client.receive_remote_mr(),
                )
            };
            let outcomes = in_time("an operation", operations).await;
            assert_failed(outcomes.0);
            assert_failed(outcomes.1);
            assert_failed(outcomes.2);
            assert_failed(outcomes.3);
            assert_failed(outcomes.4);
            assert_failed(outcomes.5);
            assert_failed(outcomes.6);
            assert_failed(outcomes.7);
            assert_gone(&in_time("the end", client.ended()).await);
            // The device no longer uses the memory of any operation.
            assert!(target.try_as_mut_slice().is_ok());
            // The peer, which only waited, detects the end of the TCP connection.
            assert_disconnected(in_time("a receive", server.receive()).await);
        });
    }
}

#[test]
fn temporary_packet_loss_ends_no_connection() {
    run_alone(two_threads(), async {
        let (client, server) = softroce_pair(|builder| builder).await;
        softroce::faults().set_network(lossy(1.0));
        let message = pattern(&client, 100, 1);
        let (sent, received, ()) = tokio::join!(client.send(&message), server.receive(), async {
            tokio::time::sleep(Duration::from_millis(100)).await;
            softroce::faults().set_network(lossy(0.0));
        });
        sent.unwrap();
        assert_eq!(received.unwrap().as_slice(), bytes(100, 1));
        check(&client, &server).await;
    });
}

/// Makes the next calls of these verbs fail. Several calls fail, because the crate retries a failed
/// call in a different way.
fn fail(verbs: &[Verb]) {
    fail_calls(verbs, 8);
}

/// Makes the next `calls` calls of each verb fail for lack of memory.
fn fail_calls(verbs: &[Verb], calls: u64) {
    for &verb in verbs {
        for call in 1..=calls {
            softroce::faults().fail(Failure {
                verb,
                call,
                errno: Errno(12),
            });
        }
    }
}

const MEMORY: &[Verb] = &[Verb::AllocBuf, Verb::RegMr];

#[test]
fn receives_are_posted_once_memory_can_be_allocated_again() {
    run_alone(two_threads(), async {
        let (client, server) = softroce_pair(|builder| builder.receive_depth(2)).await;
        let message = pattern(&client, 8, 1);
        fail_calls(MEMORY, 2000);
        let mut held = Vec::new();
        // The server holds each message, and so needs further memory, until no receive is posted.
        loop {
            assert!(
                held.len() < 100_000,
                "the server has memory for all messages"
            );
            let mut sending = pin!(client.send(&message));
            match timeout(Duration::from_millis(300), sending.as_mut()).await {
                Ok(sent) => sent.unwrap(),
                Err(_) => {
                    softroce::faults().forget_failures();
                    in_time("the send", sending).await.unwrap();
                    break;
                }
            }
            held.push(in_time("the message", server.receive()).await.unwrap());
        }
        drop(held);
        in_time("the last message", server.receive()).await.unwrap();
        check(&client, &server).await;
    });
}

#[test]
fn a_dropped_read_of_a_published_value_does_not_prevent_the_next_read() {
    run_alone(two_threads(), async {
        let (client, server) = softroce_pair(|builder| builder).await;
        let mut board = server.device().publish(8).unwrap();
        board.update(&bytes(8, 1)).unwrap();
        let mut reader = PublishedReader::new(&client, board.token()).unwrap();
        softroce::faults().set_network(NetworkFaults {
            latency: Duration::from_millis(20),
            ..NetworkFaults::default()
        });
        let dropped = poll_and_drop(async { reader.read().await.map(drop) });
        assert!(dropped.is_none(), "the read is in flight: {dropped:?}");
        let read = in_time("the next read", reader.read()).await.unwrap();
        assert_eq!(read, bytes(8, 1));
    });
}

#[test]
fn a_failed_registration_fails_only_its_operation() {
    run_alone(two_threads(), async {
        let (client, server) = softroce_pair(|builder| builder).await;
        // This region is longer than the pieces of the pool.
        let long = layout(65 << 20);
        fail(MEMORY);
        let outcome = client.alloc_local_mr(long);
        assert!(matches!(outcome, Err(Error::Verbs(_))), "{outcome:?}");
        softroce::faults().forget_failures();

        fail(MEMORY);
        let outcome = client.request_remote_mr(long).await;
        assert!(matches!(outcome, Err(Error::Refused { .. })), "{outcome:?}");
        softroce::faults().forget_failures();

        // The receiver of a long message cannot allocate memory for the message.
        let message = pattern(&client, 65 << 20, 1);
        let (sent, received) = tokio::join!(client.send(&message), async {
            fail(MEMORY);
            let received = server.receive().await;
            softroce::faults().forget_failures();
            received
        });
        assert!(matches!(sent, Err(Error::Refused { .. })), "{sent:?}");
        assert!(matches!(received, Err(Error::Verbs(_))), "{received:?}");
        assert!(client.failure().is_none() && server.failure().is_none());
        check(&client, &server).await;
        drop(client.request_remote_mr(long).await.unwrap());
    });
}

#[test]
fn connecting_without_resources_is_an_error() {
    run_alone(two_threads(), async {
        let mut listener = common::listen(|builder| builder.device("softroce0")).await;
        let address = listener.local_address().unwrap();
        for verb in [Verb::CreateQp, Verb::CreateCq, Verb::CreateSrq] {
            fail(&[verb]);
            let connecting = builder().device("softroce0").connect(address);
            let outcome = in_time("connecting", async {
                tokio::join!(connecting, listener.accept())
            })
            .await;
            assert!(outcome.0.is_err() && outcome.1.is_err(), "{verb:?}");
            let (connected, accepted) = (outcome.0.unwrap_err(), outcome.1.unwrap_err());
            // The connecting end calls the verbs first.
            assert!(
                matches!(connected, Error::Verbs(_)),
                "{verb:?}: {connected}"
            );
            assert!(
                matches!(accepted, Error::Verbs(_) | Error::Handshake { .. }),
                "{verb:?}: {accepted}"
            );
            softroce::faults().forget_failures();
        }
        let builder = |builder: RdmaBuilder| builder.device("softroce0");
        let (client, server) = common::join(&mut listener, builder).await;
        check(&client, &server).await;
    });
}
