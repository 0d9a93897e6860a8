//! Tests of log messages. This test is a separate program, because the log is global to the
//! process.

mod common;

use std::io;
use std::sync::{Mutex, Once, PoisonError};
use std::time::{Duration, Instant};

use common::{client, connect, listen, over_every_transport, transport, within};
use rdma_rpc::{Address, Endpoint, Metadata, Server, TraceContext};

over_every_transport! {
    a_handler_that_blocks_its_thread_is_reported;
    an_event_within_a_handler_has_the_trace_of_its_call;
}

static LOG: Mutex<String> = Mutex::new(String::new());

struct Writer;

impl io::Write for Writer {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let mut log = LOG.lock().unwrap_or_else(PoisonError::into_inner);
        log.push_str(&String::from_utf8_lossy(bytes));
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[rdma_rpc::service]
trait Blocking {
    /// Blocks before its first `await`.
    async fn at_once(&self) -> Result<(), ()>;
    /// Blocks after an `await`.
    async fn later(&self) -> Result<(), ()>;
    /// Logs events with this text before and after an `await`.
    async fn log(&self, text: String) -> Result<(), ()>;
}

struct Computing;

/// Blocks the thread without an `await`.
fn block() {
    let begun = Instant::now();
    while begun.elapsed() < Duration::from_millis(20) {
        std::hint::spin_loop();
    }
}

impl Blocking for Computing {
    async fn at_once(&self) -> Result<(), ()> {
        block();
        Ok(())
    }

    async fn later(&self) -> Result<(), ()> {
        tokio::task::yield_now().await;
        block();
        tokio::task::yield_now().await;
        Ok(())
    }

    async fn log(&self, text: String) -> Result<(), ()> {
        tracing::info!("before {text}");
        tokio::task::yield_now().await;
        tracing::info!("after {text}");
        Ok(())
    }
}

/// Sets the log of this process, once.
fn set_log() {
    static SET: Once = Once::new();
    SET.call_once(|| {
        tracing_subscriber::fmt()
            .with_ansi(false)
            .with_writer(|| Writer)
            .init();
    });
}

/// Returns the lines of the log that contain all `parts`.
fn lines(parts: &[&str]) -> Vec<String> {
    let log = LOG.lock().unwrap_or_else(PoisonError::into_inner);
    let lines = log
        .lines()
        .filter(|line| parts.iter().all(|part| line.contains(part)));
    lines.map(str::to_owned).collect()
}

/// Returns the number of warnings about a method.
fn reports(method: &str) -> usize {
    lines(&["WARN", "a handler blocks its thread", method]).len()
}

async fn a_handler_that_blocks_its_thread_is_reported(address: Address) {
    // The lock serializes the tests, because the warnings do not name the connection.
    static TURN: tokio::sync::Mutex<()> = tokio::sync::Mutex::const_new(());
    set_log();
    let _turn = within("the other tests", TURN.lock()).await;
    let server = listen(Server::new(BlockingServer::new(Computing)), address).await;
    let client = BlockingClient::new(connect(&server).await);
    for round in 1..=2 {
        let before = reports("Blocking.at_once");
        within("the answer", client.at_once()).await.unwrap();
        assert_eq!(reports("Blocking.at_once"), before + 1, "round {round}");
        let before = reports("Blocking.later");
        within("the answer", client.later()).await.unwrap();
        assert!(reports("Blocking.later") > before, "round {round}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_use_of_an_alternative_address_is_logged_once() {
    set_log();
    let serve = async |address| listen(Server::new(BlockingServer::new(Computing)), address).await;
    let server = serve(common::tcp()).await;
    let address = server.address().clone();
    // The device does not exist, as on a host without an RDMA device.
    let builder = client()
        .transport(transport().device("no_such_device"))
        .backoff(Duration::from_millis(5), Duration::from_millis(20));
    let endpoint = Endpoint::new("rdma://127.0.0.1:9").unwrap();
    let endpoint = endpoint.or(&address).unwrap();
    let client = within("connecting", builder.connect_any([endpoint])).await;
    let client = BlockingClient::new(client.unwrap());
    within("a call", client.log("first".to_owned()))
        .await
        .unwrap();
    within("the end of the server", server.shutdown()).await;
    let _server = serve(address.clone()).await;
    // A call that begins before the end of the first connection may fail.
    within("a call after a reconnect", async {
        while client.log("second".to_owned()).await.is_err() {
            tokio::task::yield_now().await;
        }
    })
    .await;
    let warning = "connected to an alternative address";
    let found = lines(&["WARN", warning, &address.to_string()]);
    assert_eq!(found.len(), 1, "{found:?}");
}

async fn an_event_within_a_handler_has_the_trace_of_its_call(address: Address) {
    set_log();
    let server = listen(
        Server::new(BlockingServer::new(Computing)).traces(),
        address,
    )
    .await;
    let caller = TraceContext::new();
    let metadata = Metadata::default().with("traceparent", caller.to_string());
    let client = BlockingClient::new(connect(&server).await).with_metadata(metadata);
    let text = format!("the await in the call of {:016x}", caller.span_id());
    within("the answer", client.log(text.clone()))
        .await
        .unwrap();
    let trace = format!("trace_id={:032x}", caller.trace_id());
    let parent = format!("parent_id={:016x}", caller.span_id());
    for event in ["before", "after"] {
        let found = lines(&[&format!("{event} {text}"), "Blocking.log", &trace, &parent]);
        assert_eq!(found.len(), 1, "{event}");
    }
}
