//! Time limits of tests.

use std::future::Future;
use std::io::Write;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::thread;
use std::time::Duration;

use tokio::runtime::Builder;
use tokio::time::timeout;

/// Time limit of a test, long enough on a machine under load.
pub const LIMIT: Duration = Duration::from_secs(180);

/// Time limit of a single wait, shorter than [`LIMIT`] so that the failed wait is reported.
const WAIT: Duration = Duration::from_secs(60);

/// Runs a test on a runtime with two threads. Ends the process if the test exceeds [`LIMIT`].
pub fn run(test: impl Future<Output = ()>) {
    run_within(LIMIT, test);
}

/// Runs a test like [`run`], with the time limit `limit`.
///
/// # Panics
///
/// If the test panics.
pub fn run_within(limit: Duration, test: impl Future<Output = ()>) {
    let (done, watch) = channel::<()>();
    let name = thread::current().name().unwrap_or("a test").to_owned();
    let watchdog = thread::spawn(move || {
        if watch.recv_timeout(limit) == Err(RecvTimeoutError::Timeout) {
            // The test harness would capture the output of `eprintln!`.
            let message = format!("{name} hangs: not completed within {limit:?}\n");
            drop(std::io::stderr().write_all(message.as_bytes()));
            std::process::exit(101);
        }
    });
    let mut builder = Builder::new_multi_thread();
    let runtime = builder.worker_threads(2).enable_all().build();
    let runtime = runtime.expect("a runtime");
    runtime.block_on(test);
    drop(runtime);
    drop(done);
    watchdog.join().expect("the watchdog does not panic");
}

/// Waits for a future for at most a minute. `what` names the operation for the panic message.
///
/// # Panics
///
/// If the future does not complete within a minute.
pub async fn in_time<T>(what: &str, future: impl Future<Output = T>) -> T {
    match timeout(WAIT, future).await {
        Ok(output) => output,
        Err(_) => panic!("{what}: not completed within {WAIT:?}"),
    }
}
