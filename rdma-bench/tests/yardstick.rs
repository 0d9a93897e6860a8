//! Short runs of every measurement of the program `yardstick`: each must print a figure.

#![forbid(unsafe_code)]

use std::process::{Command, Stdio};

use serde_json::Value;

/// Runs the program and returns the line that it prints.
fn measured(words: &str) -> Value {
    let output = Command::new(env!("CARGO_BIN_EXE_yardstick"))
        .args(words.split_whitespace())
        .args(["--time", "20"])
        .stdin(Stdio::null())
        .output()
        .expect("the program starts");
    let complaint = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{words}: {complaint}");
    let line: Value = serde_json::from_slice(&output.stdout).expect("a line of JSON");
    assert!(line["figure"].as_f64().unwrap() > 0.0, "{words}: {line}");
    assert!(line["count"].as_u64().unwrap() > 0, "{words}: {line}");
    line
}

#[test]
fn rates_are_each_second() {
    for words in [
        "memcpy -s 1048576",
        "memcpy -s 8",
        "vm-write -s 65536",
        "vm-write -s 8",
        "udp-pump -s 1040 --by gso",
        "udp-pump -s 4112 --by gso",
        "udp-pump -s 1040 --by sendto",
        "udp-pump -s 4112 --by sendto",
    ] {
        assert_eq!(measured(words)["unit"], "1/s", "{words}");
    }
}

#[test]
fn times_are_in_microseconds() {
    for words in [
        "cache-line",
        "memcpy -s 65536 --latency",
        "memcpy -s 8 --latency",
        "vm-write -s 8 --latency",
        "udp-ping -s 8",
        "eventfd",
        "eventfd --tasks",
        "all-reduce --size 4194304 --ranks 3",
    ] {
        let line = measured(words);
        assert_eq!(line["unit"], "usec", "{words}");
        let figure = |name: &str| line[name].as_f64().unwrap();
        assert!(figure("min") <= figure("figure"), "{words}: {line}");
        assert!(
            figure("figure") <= figure("percentile_90"),
            "{words}: {line}"
        );
    }
}

#[test]
fn what_cannot_be_measured_is_refused() {
    for words in [
        "memcpy -s 0",
        "udp-ping -s 70000",
        "udp-pump -s 70000 --by gso",
    ] {
        let output = Command::new(env!("CARGO_BIN_EXE_yardstick"))
            .args(words.split_whitespace())
            .output()
            .expect("the program starts");
        assert!(!output.status.success(), "{words}");
    }
}
