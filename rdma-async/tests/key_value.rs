//! Checks the example `key_value`: values are read while the server's process is stopped.

#[path = "../examples/key_value/bucket.rs"]
#[allow(dead_code, reason = "the client uses a part of it")]
mod bucket;
#[path = "../examples/key_value/client.rs"]
#[allow(dead_code, reason = "the test uses a part of it")]
mod client;
mod common;
mod example;
#[path = "../examples/key_value/server.rs"]
#[allow(dead_code, reason = "the client uses a part of it")]
mod server;

use std::env;
use std::time::{Duration, Instant};

use client::Values;
use common::{LIMIT, run};
use example::Example;
use rdma_async::Rdma;
use rustix::process::{Pid, Signal, kill_process};
use softroce::path::Way;

const NAME: &str = "key_value";

fn put(address: &str, key: &str, value: &str) {
    let client = Example::start(NAME, &["put", address, key, value]);
    client.finish().expect("the value is set");
}

/// Returns whether the device under test answers reads while the process that owns the memory is
/// stopped: a network card does, and the kernel for Soft-RoCE. softroce does if the processes share
/// memory; packets over UDP, which also go to other hosts, are answered by a thread of the process.
fn answers_for_stopped_processes() -> bool {
    let is_softroce = common::context().name().starts_with("softroce");
    let path = env::var("SOFTROCE_PATH").unwrap_or_default();
    let is_one_host = example::server_host::address() == "127.0.0.1";
    !is_softroce || is_one_host && (path.is_empty() || path == "shared")
}

/// Reads until softroce has replaced packets by memory that the processes share.
async fn wait_for_shared_memory(rdma: &Rdma, values: &mut Values<'_>) {
    if !common::context().name().starts_with("softroce") {
        return;
    }
    let end = Instant::now() + LIMIT;
    loop {
        values.get(b"tree").await.unwrap();
        let way = softroce::path::way(rdma.queue_pair().number());
        if way == Some(Way::Shared) {
            return;
        }
        assert!(Instant::now() < end, "{way:?}");
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

#[test]
fn values_are_read_while_the_server_is_stopped() {
    let (mut server, _output, address) = Example::serve(NAME);
    put(&address, "tree", "oak");
    put(&address, "fruit", "pear");
    put(&address, "tree", "elm");
    let process = Pid::from_child(&server.child);
    run(async {
        // The client is part of this process, so that the test knows the path of its reads.
        let (rdma, tokens) = client::connect(&address).await.unwrap();
        let mut values = Values::new(&rdma, tokens).unwrap();
        let is_stopped = answers_for_stopped_processes();
        if is_stopped {
            wait_for_shared_memory(&rdma, &mut values).await;
        }
        // The first read of a bucket can set up memory that the processes share, for which the
        // server's process must run.
        for key in ["tree", "fruit", "stone"] {
            values.get(key.as_bytes()).await.unwrap();
        }
        if is_stopped {
            kill_process(process, Signal::STOP).expect("the server is stopped");
        }
        for (key, expected) in [
            ("tree", Some("elm")),
            ("fruit", Some("pear")),
            ("stone", None),
        ] {
            let value = values.get(key.as_bytes()).await.unwrap();
            assert_eq!(value, expected.map(str::as_bytes), "{key}");
        }
        if is_stopped {
            kill_process(process, Signal::CONT).expect("the server continues");
        }
        rdma.close().await.unwrap();
    });
    let keys = ["tree", "fruit", "stone"];
    let mut reader = Example::start(NAME, &[&["get", &address], &keys[..]].concat());
    let mut output = reader.output();
    let values = keys.map(|_| example::line(&mut output));
    reader.finish().expect("the client succeeds");
    assert_eq!(values, ["elm", "pear", ""]);
    drop(server.child.stdin.take());
    server.finish().expect("the server ends with its input");
}

#[test]
fn a_full_bucket_refuses_a_value_and_keeps_the_others() {
    let (_server, _output, address) = Example::serve(NAME);
    put(&address, "key", "old");
    let long = "x".repeat(1000);
    let client = Example::start(NAME, &["put", &address, "key", &long]);
    let complaint = client.finish().unwrap_err();
    assert!(
        complaint.contains("the bucket of key is full"),
        "{complaint}"
    );
    let mut client = Example::start(NAME, &["get", &address, "key"]);
    let mut output = client.output();
    assert_eq!(example::line(&mut output), "old");
    client.finish().expect("the client succeeds");
}

#[test]
fn reads_are_measured_beside_raw_reads() {
    for option in [&[][..], &["--raw"]] {
        let (_server, _output, address) = Example::serve_with(NAME, &["--once"]);
        let words = ["measure", &address, "--time", "20"];
        let mut client = Example::start(NAME, &[&words[..], option].concat());
        let mut output = client.output();
        let line = example::line(&mut output);
        client.finish().expect("the client succeeds");
        let rate = line.strip_suffix(" reads/s").expect("a rate");
        assert!(rate.parse::<f64>().expect("a number") > 0.0, "{line}");
    }
}
