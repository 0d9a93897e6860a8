//! Tests of log messages. This test is a separate program, because the log is global to the
//! process.

mod common;

use std::io;
use std::sync::{Mutex, Once, PoisonError};
use std::time::{Duration, Instant};

use common::{connect, listen, over_every_transport, within};
use rdma_rpc::{Address, Server};

over_every_transport! {
    a_handler_that_blocks_its_thread_is_reported;
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
}

/// Returns the number of warnings about a method.
fn reports(method: &str) -> usize {
    let log = LOG.lock().unwrap_or_else(PoisonError::into_inner);
    let lines = log.lines().filter(|line| {
        line.contains("WARN")
            && line.contains("a handler blocks its thread")
            && line.contains(method)
    });
    lines.count()
}

async fn a_handler_that_blocks_its_thread_is_reported(address: Address) {
    // The lock serializes the tests, because the warnings do not name the connection.
    static TURN: tokio::sync::Mutex<()> = tokio::sync::Mutex::const_new(());
    static SET: Once = Once::new();
    SET.call_once(|| {
        tracing_subscriber::fmt()
            .with_ansi(false)
            .with_writer(|| Writer)
            .init();
    });
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
