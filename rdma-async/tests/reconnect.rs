//! Checks that connections are replaced after their end, and that no operation is performed twice
//! or lost without an error.

mod common;

use std::future::pending;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use common::{builder, context, pattern, run};
use rdma_async::{
    Backoff, Error, Execution, Rdma, RdmaDevice, RdmaListener, Reconnect, RemoteMr, TcpConnector,
};
use rdma_core::{AccessFlags, ExposedMemory, RemoteMemory};
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};
use tokio::task::JoinHandle;

fn quick() -> Backoff {
    let ms = Duration::from_millis;
    let backoff = Backoff::default().first(ms(1)).longest(ms(20));
    backoff.limit(Some(Duration::from_secs(60)))
}

fn device() -> RdmaDevice {
    RdmaDevice::new(&context()).expect("a device")
}

async fn listener(device: &RdmaDevice) -> (RdmaListener, SocketAddr) {
    let listener = builder().on(device).bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_address().unwrap();
    (listener, address)
}

fn connector(device: &RdmaDevice, address: SocketAddr) -> TcpConnector<SocketAddr> {
    builder().on(device).connector(address)
}

/// Accepts every peer in a task, and returns a channel of the connections.
fn accept_all(mut listener: RdmaListener) -> (UnboundedReceiver<Rdma>, JoinHandle<()>) {
    let (accepted, connections) = unbounded_channel();
    let task = tokio::spawn(async move {
        while let Ok(rdma) = listener.accept().await {
            if accepted.send(rdma).is_err() {
                return;
            }
        }
    });
    (connections, task)
}

/// A counter in memory of a server, which every connection of its device can increment.
fn counter(device: &RdmaDevice) -> (ExposedMemory, RemoteMemory) {
    let memory = device.protection_domain().allocate(8).unwrap();
    let memory = memory.expose(AccessFlags::REMOTE).unwrap();
    let token = memory.remote();
    (memory, token)
}

async fn increment(rdma: &Rdma, token: RemoteMemory) -> Result<u64, Error> {
    let mut remote = RemoteMr::from_token(token);
    rdma.fetch_and_add(&mut remote, 1).await
}

/// Checks that each successful operation was performed once, and each failed operation at most
/// once, while the server ends connections at random times.
#[test]
fn each_operation_is_performed_once_or_its_execution_is_unknown() {
    /// Connections that the server ends.
    const ENDS: u32 = 40;
    run(async {
        let device = device();
        let (memory, token) = counter(&device);
        let (listener, address) = listener(&device).await;
        let (mut connections, _accepting) = accept_all(listener);
        let peer = Arc::new(Reconnect::new(connector(&device, address), quick()));
        let (succeeded, unknown) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
        let is_over = Arc::new(AtomicBool::new(false));
        let clients: Vec<_> = (0..4)
            .map(|_| {
                let (peer, succeeded, unknown, is_over) = (
                    Arc::clone(&peer),
                    Arc::clone(&succeeded),
                    Arc::clone(&unknown),
                    Arc::clone(&is_over),
                );
                tokio::spawn(async move {
                    while !is_over.load(Ordering::Relaxed) {
                        let outcome = peer
                            .perform(|rdma| async move { increment(&rdma, token).await })
                            .await;
                        match outcome {
                            Ok(_) => succeeded.fetch_add(1, Ordering::Relaxed),
                            Err(error) => {
                                assert_eq!(error.execution(), Execution::Unknown, "{error}");
                                unknown.fetch_add(1, Ordering::Relaxed)
                            }
                        };
                    }
                })
            })
            .collect();
        for ended in 0..ENDS {
            let connection = connections.recv().await.unwrap();
            // The connection ends after a short time, during operations.
            let moment = Duration::from_micros(u64::from(ended % 7) * 700);
            tokio::time::sleep(moment).await;
            drop(connection);
        }
        is_over.store(true, Ordering::Relaxed);
        for client in clients {
            client.await.unwrap();
        }
        let succeeded = succeeded.load(Ordering::Relaxed);
        let unknown = unknown.load(Ordering::Relaxed);
        let performed = memory.load_u64(0).unwrap();
        assert!(
            (succeeded..=succeeded + unknown).contains(&performed),
            "{performed} performed, {succeeded} succeeded, {unknown} unknown"
        );
        assert!(peer.connections_made() >= u64::from(ENDS));
    });
}

#[test]
fn operations_that_were_not_executed_are_repeated() {
    run(async {
        let device = device();
        let mut listener = {
            let builder = builder().on(&device).receive_depth(2);
            builder.bind("127.0.0.1:0").await.unwrap()
        };
        let address = listener.local_address().unwrap();
        let peer = Arc::new(Reconnect::new(connector(&device, address), quick()));
        let (first, connected) = tokio::join!(listener.accept(), peer.connection());
        let (first, connected) = (first.unwrap(), connected.unwrap());
        // The server receives no message, so the third message waits for a credit.
        let message = pattern(&connected, 100, 1);
        for _ in 0..2 {
            connected.send(&message).await.unwrap();
        }
        let waiting = {
            let peer = Arc::clone(&peer);
            tokio::spawn(async move {
                let message = &pattern(&peer.connection().await.unwrap(), 100, 2);
                peer.perform(|rdma| async move { rdma.send(message).await })
                    .await
            })
        };
        tokio::time::sleep(Duration::from_millis(50)).await;
        drop(first);
        let second = listener.accept().await.unwrap();
        waiting.await.unwrap().unwrap();
        second.receive().await.unwrap();
        assert_eq!(peer.connections_made(), 2);
    });
}

#[test]
fn possibly_executed_operations_are_repeated_only_if_idempotent() {
    run(async {
        let device = device();
        let (mut listener, address) = listener(&device).await;
        let peer = Reconnect::new(connector(&device, address), quick());
        let attempts = AtomicU32::new(0);
        // The server receives this request for memory, but its answer is lost.
        let request = async |rdma: Arc<Rdma>| {
            attempts.fetch_add(1, Ordering::Relaxed);
            let message = pattern(&rdma, 8, 1);
            rdma.send(&message).await?;
            // This error reports that the request was sent.
            let limit = Duration::ZERO;
            let what = "an answer";
            rdma.receive()
                .await
                .map_err(|_| Error::Timeout { what, limit })
        };
        let serving = async {
            let rdma = listener.accept().await.unwrap();
            rdma.receive().await.unwrap();
        };
        let (outcome, ()) = tokio::join!(peer.perform(&request), serving);
        assert_eq!(outcome.unwrap_err().execution(), Execution::Unknown);
        assert_eq!(attempts.load(Ordering::Relaxed), 1);
        let serving = async {
            let rdma = listener.accept().await.unwrap();
            rdma.receive().await.unwrap();
            drop(rdma);
            let rdma = listener.accept().await.unwrap();
            let request = rdma.receive().await.unwrap();
            rdma.send(&request).await.unwrap();
            rdma
        };
        let (outcome, _rdma) = tokio::join!(peer.perform_idempotent(&request), serving);
        outcome.unwrap();
        assert_eq!(attempts.load(Ordering::Relaxed), 3);
    });
}

#[test]
fn connections_over_several_paths_are_used_in_turn_and_one_may_end() {
    run(async {
        let device = device();
        let (memory, token) = counter(&device);
        let (one, one_address) = listener(&device).await;
        let (other, other_address) = listener(&device).await;
        let (mut at_one, _accepting_one) = accept_all(one);
        let (mut at_other, accepting_other) = accept_all(other);
        let connectors = [one_address, other_address].map(|address| connector(&device, address));
        let peer = Arc::new(Reconnect::over(connectors, quick()));
        let maintaining = {
            let peer = Arc::clone(&peer);
            tokio::spawn(async move { peer.maintain().await })
        };
        let (first, second) = tokio::join!(at_one.recv(), at_other.recv());
        let (first, second) = (first.unwrap(), second.unwrap());
        while peer.open_connections() < 2 {
            tokio::task::yield_now().await;
        }
        let mut ports = [0; 2];
        for _ in 0..100 {
            let rdma = peer.connection().await.unwrap();
            ports[usize::from(rdma.peer_address() == other_address)] += 1;
        }
        assert_eq!(ports, [50, 50]);
        // One path fails permanently, because its listener is dropped too.
        accepting_other.abort();
        drop(at_other);
        drop(second);
        while peer.open_connections() > 1 {
            let outcome = peer
                .perform(|rdma| async move { increment(&rdma, token).await })
                .await;
            if let Err(error) = outcome {
                // This operation was in flight when the path failed.
                assert_eq!(error.execution(), Execution::Unknown, "{error}");
            }
        }
        let before = memory.load_u64(0).unwrap();
        for _ in 0..100 {
            peer.perform(|rdma| async move { increment(&rdma, token).await })
                .await
                .unwrap();
        }
        assert_eq!(memory.load_u64(0).unwrap(), before + 100);
        // The remaining connection ends, and is replaced without any operation.
        drop(first);
        let third = at_one.recv().await.unwrap();
        peer.perform(|rdma| async move { increment(&rdma, token).await })
            .await
            .unwrap();
        maintaining.abort();
        drop(third);
    });
}

#[test]
fn an_absent_peer_is_an_error_after_the_limit() {
    run(async {
        let device = device();
        let (gone, address) = listener(&device).await;
        drop(gone);
        let backoff = quick().limit(Some(Duration::from_millis(100)));
        let peer = Reconnect::new(connector(&device, address), backoff);
        let outcome = peer.connection().await;
        assert!(matches!(outcome, Err(Error::Tcp { .. })), "{outcome:?}");
        let outcome = peer
            .perform(|rdma| async move { rdma.receive().await })
            .await;
        assert!(matches!(outcome, Err(Error::Tcp { .. })), "{outcome:?}");
        // A waiting future can be dropped without affecting the others.
        let (_listener, address) = listener(&device).await;
        let peer = Reconnect::new(connector(&device, address), quick());
        let waiting = tokio::time::timeout(Duration::from_millis(20), async {
            let _held = peer.connection();
            pending::<()>().await;
        });
        assert!(waiting.await.is_err());
        assert_eq!(peer.open_connections(), 0);
    });
}
