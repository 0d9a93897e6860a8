//! Short runs of every measurement of the program `connections`: each must print a figure.

#![forbid(unsafe_code)]

use std::process::{Command, Stdio};

use serde_json::Value;

/// Runs the program and returns the line that it prints.
fn measured(words: &str) -> Value {
    let output = Command::new(env!("CARGO_BIN_EXE_connections"))
        .args(words.split_whitespace())
        .args(["--time", "20"])
        .stdin(Stdio::null())
        .output()
        .expect("the program starts");
    let complaint = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{words}: {complaint}");
    serde_json::from_slice(&output.stdout).expect("a line of JSON")
}

#[test]
fn times_and_rates_are_positive() {
    for words in [
        "write --layer core",
        "write --layer async",
        "write-rate",
        "write-rate --idle 20",
        "beside-failures",
        "beside-failures --failures 5",
        "connect --by rdma",
        "connect --by tcp",
    ] {
        let line = measured(words);
        assert!(line["figure"].as_f64().unwrap() > 0.0, "{words}: {line}");
        assert!(line["count"].as_u64().unwrap() > 0, "{words}: {line}");
    }
}

#[test]
fn an_end_of_an_idle_connection_has_one_descriptor() {
    let line = measured("idle --connections 100");
    assert_eq!(line["descriptors"], 1.0, "{line}");
    assert!(line["memory"].as_f64().unwrap() >= 0.0, "{line}");
}
