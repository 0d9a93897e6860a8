//! Common parts of the tests: connected pairs within one process, over loopback, and time limits of
//! tests.
//!
//! The environment variable `RDMA_DEVICE` names the device under test. The default is softroce.

#![allow(dead_code, reason = "each test binary uses only some of the functions")]

pub(crate) mod faulty_handshake;
pub(crate) mod held;
pub(crate) mod hostile;
pub(crate) mod namespace;
pub(crate) mod second_host;

use std::alloc::Layout;
use std::future::Future;
use std::io::Write;
use std::pin::pin;
use std::process::Command;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::task::{Context, Poll, Waker};
use std::thread;
use std::time::Duration;

use rdma_async::{Error, LocalMr, LocalMrWriteAccess, Rdma, RdmaBuilder, RdmaListener, Result};
use rdma_core::{WorkError, WorkStatus};
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::{Builder, Runtime};

/// Time limit of a test, long enough on an emulated machine under load.
pub(crate) const LIMIT: Duration = Duration::from_secs(180);

/// Runs a test on a runtime with two threads.
pub(crate) fn run(test: impl Future<Output = ()>) {
    run_on(two_threads(), test);
}

/// Runs a test on `runtime`. Ends the process if the test exceeds [`LIMIT`].
pub(crate) fn run_on(runtime: Runtime, test: impl Future<Output = ()>) {
    run_within(LIMIT, runtime, test);
}

/// Runs a test like [`run_on`], with the time limit `limit`.
pub(crate) fn run_within(limit: Duration, runtime: Runtime, test: impl Future<Output = ()>) {
    let (done, watch) = channel::<()>();
    let name = thread::current().name().unwrap_or("a test").to_owned();
    let watchdog = thread::spawn(move || {
        if watch.recv_timeout(limit) == Err(RecvTimeoutError::Timeout) {
            // The test harness would capture the output of `eprintln!`.
            let message = format!("{name} hangs: not done within {limit:?}\n");
            drop(std::io::stderr().write_all(message.as_bytes()));
            std::process::exit(101);
        }
    });
    runtime.block_on(test);
    drop(runtime);
    drop(done);
    watchdog.join().expect("the watchdog does not panic");
}

pub(crate) fn two_threads() -> Runtime {
    let mut builder = Builder::new_multi_thread();
    let built = builder.worker_threads(2).enable_all().build();
    built.expect("a runtime")
}

pub(crate) fn one_thread() -> Runtime {
    let built = Builder::new_current_thread().enable_all().build();
    built.expect("a runtime")
}

/// Returns the builder for all connections of the tests: the device under test, default settings,
/// and long timeouts.
pub(crate) fn builder() -> RdmaBuilder {
    let ample = Duration::from_secs(60);
    let builder = RdmaBuilder::default();
    let builder = builder.connect_timeout(ample).response_timeout(ample);
    match std::env::var_os("RDMA_DEVICE") {
        Some(_) => builder,
        None => builder.device("softroce0"),
    }
}

/// Returns the context of the device under test.
pub(crate) fn context() -> rdma_core::Context {
    let context = match std::env::var_os("RDMA_DEVICE") {
        Some(_) => rdma_core::Context::open_default(),
        None => rdma_core::Context::open("softroce0"),
    };
    context.expect("a device")
}

/// Creates a connection, and returns the connecting end and the accepting end.
pub(crate) async fn pair() -> (Rdma, Rdma) {
    pair_with(|builder| builder).await
}

/// Creates a connection like [`pair`], with the settings of `configure`.
pub(crate) async fn pair_with(configure: impl Fn(RdmaBuilder) -> RdmaBuilder) -> (Rdma, Rdma) {
    let mut listener = listen(&configure).await;
    join(&mut listener, configure).await
}

pub(crate) async fn listen(configure: impl Fn(RdmaBuilder) -> RdmaBuilder) -> RdmaListener {
    let builder = configure(builder());
    builder.bind("127.0.0.1:0").await.expect("a listener")
}

/// Creates a connection like [`pair_with`], through an existing listener.
pub(crate) async fn join(
    listener: &mut RdmaListener,
    configure: impl Fn(RdmaBuilder) -> RdmaBuilder,
) -> (Rdma, Rdma) {
    let address = listener.local_address().expect("its address");
    let builder = configure(builder());
    let (client, server) = tokio::join!(builder.connect(address), listener.accept());
    (client.expect("a client"), server.expect("a server"))
}

/// Creates a TCP connection over loopback, and returns the connecting end and the accepting end.
pub(crate) async fn tcp_pair() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a listener");
    let address = listener.local_addr().expect("its address");
    let (client, server) = tokio::join!(TcpStream::connect(address), listener.accept());
    (client.expect("a client"), server.expect("a server").0)
}

/// Runs the test `name` of this program again in a process whose device sends packets over UDP, of
/// which 1 % are lost. Returns `true` in that process, so that the caller performs the test there.
/// Does nothing if the device is not softroce.
pub(crate) fn loses_packets(name: &str) -> bool {
    if std::env::var_os("SOFTROCE_LOSS").is_some() {
        return true;
    }
    if context().device().is_emulated() {
        let status = Command::new(std::env::current_exe().expect("this program"))
            .args(["--exact", name, "--nocapture"])
            .envs([("SOFTROCE_PATH", "udp"), ("SOFTROCE_LOSS", "0.01")])
            .status()
            .expect("the test runs again");
        assert!(status.success(), "with lost packets: {status}");
    }
    false
}

/// Returns `len` bytes, each of which depends on `seed` and its index.
pub(crate) fn bytes(len: usize, seed: u8) -> Vec<u8> {
    (0..len)
        .map(|at| (at as u8).wrapping_mul(31) ^ (at >> 8) as u8 ^ seed)
        .collect()
}

/// Returns local memory that is filled with [`bytes`].
pub(crate) fn pattern(rdma: &Rdma, len: usize, seed: u8) -> LocalMr {
    let mut region = rdma.alloc_local_mr(layout(len)).expect("local memory");
    region.as_mut_slice().copy_from_slice(&bytes(len, seed));
    region
}

pub(crate) fn layout(len: usize) -> Layout {
    Layout::from_size_align(len, 8).expect("a layout")
}

/// Polls a future once, and drops it. Returns its output if the future was ready.
pub(crate) fn poll_and_drop<T>(future: impl Future<Output = T>) -> Option<T> {
    let mut future = pin!(future);
    match future
        .as_mut()
        .poll(&mut Context::from_waker(Waker::noop()))
    {
        Poll::Ready(outcome) => Some(outcome),
        Poll::Pending => None,
    }
}

/// Returns the number in an environment variable, or `default` if the variable is not set.
pub(crate) fn variable(name: &str, default: u64) -> u64 {
    match std::env::var(name) {
        Ok(text) => text.parse().expect("a number"),
        Err(_) => default,
    }
}

/// Repeats `attempt` until it returns a value, within the time limit of the test.
pub(crate) async fn eventually<T>(mut attempt: impl FnMut() -> Option<T>) -> T {
    loop {
        if let Some(outcome) = attempt() {
            return outcome;
        }
        tokio::task::yield_now().await;
    }
}

/// Checks that a connection works: a message, a request for memory, a write and a read.
pub(crate) async fn check(left: &Rdma, right: &Rdma) {
    let message = pattern(left, 100, 1);
    let (sent, received) = tokio::join!(left.send(&message), right.receive());
    sent.expect("sending");
    let received = received.expect("receiving");
    assert_eq!(
        rdma_async::LocalMrReadAccess::as_slice(&received),
        bytes(100, 1)
    );
    let mut remote = left.request_remote_mr(layout(64)).await.expect("memory");
    let source = pattern(left, 64, 2);
    left.write(&source, &mut remote).await.expect("writing");
    let mut target = left.alloc_local_mr(layout(64)).expect("memory");
    left.read(&mut target, &remote).await.expect("reading");
    assert_eq!(
        rdma_async::LocalMrReadAccess::as_slice(&target),
        bytes(64, 2)
    );
}

/// Asserts that a result is the error of an ended connection, [`Error::Disconnected`].
#[track_caller]
pub(crate) fn assert_disconnected<T: std::fmt::Debug>(outcome: Result<T>) {
    match outcome {
        Err(Error::Disconnected { .. }) => {}
        other => panic!("not a disconnection: {other:?}"),
    }
}

/// Asserts that an operation in flight failed because the peer has closed the connection or because
/// the peer's device stopped answering. Either can be detected first.
#[track_caller]
pub(crate) fn assert_gone(error: &Error) {
    let silence = |work: &WorkError| work.status == WorkStatus::RetryExceeded;
    match error {
        Error::Disconnected { .. } => {}
        Error::Work(work) if silence(work) => {}
        other => panic!("not the error of a lost peer: {other:?}"),
    }
}
