//! Checks the example `key_value`: values are read while the server's process is stopped.

mod example;

use std::io::{BufRead, Write};

use example::Example;
use rustix::process::{Pid, Signal, kill_process};

const NAME: &str = "key_value";

fn put(address: &str, key: &str, value: &str) {
    let client = Example::start(NAME, &["put", address, key, value]);
    client.finish().expect("the value is set");
}

#[test]
fn values_are_read_while_the_server_is_stopped() {
    let (mut server, _output, address) = Example::serve(NAME);
    put(&address, "tree", "oak");
    put(&address, "fruit", "pear");
    put(&address, "tree", "elm");
    let keys = ["tree", "fruit", "stone"];
    let words = [&["get", "--wait", &address], &keys[..]].concat();
    let mut client = Example::start(NAME, &words);
    let mut output = client.output();
    assert_eq!(example::line(&mut output), "connected");
    let is_direct =
        std::env::var_os("RDMA_DEVICE").is_none() && std::env::var_os("SOFTROCE_PATH").is_none();
    let process = Pid::from_child(&server.child);
    // Over UDP, a thread of softroce in the server's process must answer the reads.
    if is_direct {
        kill_process(process, Signal::STOP).expect("the server is stopped");
    }
    let mut input = client.child.stdin.take().expect("a pipe");
    input.write_all(b"\n").expect("the client reads a line");
    let values: Vec<String> = output.lines().map(|line| line.expect("a line")).collect();
    if is_direct {
        kill_process(process, Signal::CONT).expect("the server goes on");
    }
    client.finish().expect("the client succeeds");
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
