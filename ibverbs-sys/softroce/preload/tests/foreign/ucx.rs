//! The programs of UCX.

use std::env;
use std::fs;
use std::net::TcpListener;
use std::thread;
use std::time::{Duration, Instant};

use crate::program::{Ended, Running};

/// Sizes of messages in bytes.
pub(crate) const SIZES: [usize; 4] = [8, 4 << 10, 64 << 10, 1 << 20];

/// Tests of `ucx_perftest` with messages of all sizes.
const TESTS: [&str; 7] = [
    "tag_lat",
    "tag_bw",
    "ucp_put_lat",
    "ucp_put_bw",
    "ucp_get",
    "ucp_am_lat",
    "ucp_am_bw",
];

/// Tests of `ucx_perftest` with atomics, which have 8 bytes.
const ATOMICS: [&str; 4] = ["ucp_add", "ucp_fadd", "ucp_swap", "ucp_cswap"];

/// Time in which the server begins to listen.
const LISTEN: Duration = Duration::from_secs(60);

/// Checks that `ucx_info` lists both transports of the device.
pub(crate) fn info() -> Result<(), String> {
    let ended = Running::start(&["ucx_info", "-d"], &[])?.wait();
    let found = ended.output.replace(' ', "");
    for transport in ["rc_verbs", "ud_verbs"] {
        let text = format!("Transport:{transport}\n#Device:softroce0:1\n");
        if !found.contains(&text) {
            return Err(format!("{transport} is not listed: {ended}"));
        }
    }
    ended.judge(&[])
}

/// Runs all tests with messages of a size between two processes, which use only `transport`.
pub(crate) fn perftest(transport: &str, size: usize) -> Result<(), String> {
    let mut tests = TESTS.to_vec();
    if size == size_of::<u64>() {
        tests.extend(ATOMICS);
    }
    let iterations = if size > 64 << 10 { 5 } else { 50 };
    batch(
        &tests,
        iterations,
        &format!("-s {size}"),
        &[("UCX_TLS", transport)],
    )
}

/// Runs the tests with the atomics of the device itself. In the tests of [`ATOMICS`], UCX replaces
/// those that a transport lacks by messages.
pub(crate) fn atomics_of_the_device() -> Result<(), String> {
    let options = "-d softroce0:1 -x rc_verbs -s 8";
    batch(&["add_mr", "fadd", "cswap"], 50, options, &[])
}

/// Runs tests of `ucx_perftest` between two processes, and checks that each has a result.
fn batch(
    tests: &[&str],
    iterations: u32,
    options: &str,
    variables: &[(&str, &str)],
) -> Result<(), String> {
    let lines = tests
        .iter()
        .map(|test| format!("{test} -t {test} -n {iterations} -w 2 {options}\n"));
    let batch = env::temp_dir().join(format!("softroce-ucx-{}", std::process::id()));
    fs::write(&batch, lines.collect::<String>()).map_err(|error| format!("writing: {error}"))?;
    let path = batch.to_str().ok_or("a path in UTF-8")?;
    let ended = server_and_client(path, variables);
    // Fails only if the file was removed already.
    let _ = fs::remove_file(&batch);
    let (server, client) = ended?;
    server.judge(&[])?;
    // The client succeeds even if a test fails, but then it does not print the result.
    let printed = client.output.replace(' ', "");
    for test in tests {
        let result = format!("{test},{iterations},");
        if !printed.contains(&result) {
            return Err(format!("no line {result:?}: {client}"));
        }
    }
    for ended in [&server, &client] {
        if ended.output.contains("ERROR") || ended.output.contains("WARN") {
            return Err(format!("a message: {ended}"));
        }
    }
    client.judge(&[])
}

/// Runs a server, and starts a client again and again until the server listens.
fn server_and_client(batch: &str, variables: &[(&str, &str)]) -> Result<(Ended, Ended), String> {
    let port = TcpListener::bind("127.0.0.1:0").and_then(|listener| listener.local_addr());
    let port = port
        .map_err(|error| format!("a free port: {error}"))?
        .port();
    let port = port.to_string();
    let server = ["ucx_perftest", "-p", &port, "-b", batch, "-v"];
    let client = [&server[..], &["127.0.0.1"]].concat();
    let mut server = Running::start(&server, variables)?;
    let deadline = Instant::now() + LISTEN;
    loop {
        let client = Running::start(&client, variables)?.wait();
        let is_refused = client.output.contains("Connection refused");
        if !is_refused || server.has_ended() || Instant::now() >= deadline {
            return Ok((server.wait(), client));
        }
        thread::sleep(Duration::from_millis(20));
    }
}
