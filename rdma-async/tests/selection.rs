//! Checks the choice of the device and the GID, and the log of the choice with its reason: the
//! builder decides before the environment, and the environment before the crate.
//!
//! The test program starts itself again for each choice, with another environment.

mod common;

use std::env;
use std::process::Command;

use rdma_async::RdmaBuilder;
use rdma_core::{AddressChoice, Endpoint};
use tracing_subscriber::filter::LevelFilter;

const TEST: &str = "the_builder_decides_before_the_environment_with_the_reason_in_the_log";
/// Environment variable of a process that makes a choice: the settings of its builder, the name of
/// a device and a GID index, each empty if the builder does not set it.
const SETTINGS: &str = "RDMA_TEST_SETTINGS";
/// Line before the choice in the output of such a process.
const CHOSEN: &str = "chosen GID: ";

#[test]
fn the_builder_decides_before_the_environment_with_the_reason_in_the_log() {
    if let Ok(settings) = env::var(SETTINGS) {
        return choose(&settings);
    }
    let context = common::context();
    let address = context.address(AddressChoice::default()).unwrap();
    let gids = context.gids().unwrap();
    let mut on_port = gids.iter().filter(|entry| entry.port == address.port);
    // Another GID than the crate chooses, if the port has several.
    let other = on_port.find(|entry| entry.index != address.gid_index);
    let index = other.map_or(address.gid_index, |other| other.index);
    let index = index.to_string();

    let (device, index) = (context.name(), index.as_str());
    let wrong = ["no_such_device", "9999"];
    let by_builder = choice([device, index], wrong);
    assert_device(&by_builder, device, "opened by its name");
    assert_gid(&by_builder, index, "the index that the program set");

    let by_environment = choice(["", ""], [device, index]);
    assert_device(&by_environment, device, "RDMA_DEVICE");
    assert_gid(&by_environment, index, "the index in RDMA_GID_INDEX");

    // The index of the builder decides although the device is that of the environment.
    let mixed = choice(["", index], [device, wrong[1]]);
    assert_gid(&mixed, index, "the index that the program set");

    let automatic = choice(["", ""], ["", "auto"]);
    assert_has(&automatic, &["device chosen", "with a usable port"]);
    assert_has(&automatic, &["address chosen", "reason="]);
    assert!(!automatic.contains("the index"), "{automatic}");

    let refused = choice([device, ""], ["", wrong[1]]);
    assert_has(&refused, &["refused", "GID", wrong[1]]);
}

/// Asserts that the log in `text` contains the choice of the device with its reason.
#[track_caller]
fn assert_device(text: &str, device: &str, reason: &str) {
    let (device, reason) = (format!("device={device} "), format!("reason=\"{reason}\""));
    assert_has(text, &["device chosen", &device, &reason]);
}

/// Asserts that the log in `text` contains the choice of this GID index with its reason, and that
/// the queue pair has the GID.
#[track_caller]
fn assert_gid(text: &str, index: &str, reason: &str) {
    let gid = text.lines().find_map(|line| line.strip_prefix(CHOSEN));
    let gid = format!("gid={} ", gid.expect("a GID"));
    let (index, reason) = (
        format!("gid_index={index} "),
        format!("reason=\"{reason}\""),
    );
    assert_has(text, &["address chosen", &index, &gid, &reason]);
}

/// Runs the test again in a process with this device and GID index in its builder and in its
/// environment, and returns its output.
fn choice([device, index]: [&str; 2], environment: [&str; 2]) -> String {
    let mut command = Command::new(env::current_exe().unwrap());
    command
        .args(["--exact", TEST, "--nocapture"])
        .env(SETTINGS, format!("{device} {index}"));
    for (variable, value) in ["RDMA_DEVICE", AddressChoice::GID_INDEX_VARIABLE]
        .into_iter()
        .zip(environment)
    {
        match value {
            "" => command.env_remove(variable),
            value => command.env(variable, value),
        };
    }
    let output = command.output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{text}\n{errors}");
    text
}

/// Makes a choice with these settings of the builder, and prints the choice and its log.
fn choose(settings: &str) {
    let subscriber = tracing_subscriber::fmt()
        .with_max_level(LevelFilter::INFO)
        .with_ansi(false)
        .finish();
    let _subscribed = tracing::subscriber::set_default(subscriber);
    let (device, index) = settings.split_once(' ').unwrap();
    let mut builder = RdmaBuilder::default();
    if !device.is_empty() {
        builder = builder.device(device);
    }
    if !index.is_empty() {
        builder = builder.gid_index(index.parse().unwrap());
    }
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let _entered = runtime.enter();
    match builder.prepare() {
        Ok(prepared) => {
            let hello = prepared.hello();
            let endpoint = hello[hello.len() - Endpoint::ENCODED_LEN..].try_into();
            let endpoint = Endpoint::from_bytes(endpoint.unwrap()).unwrap();
            println!("{CHOSEN}{}", endpoint.gid);
        }
        Err(error) => println!("refused: {error}"),
    }
}

/// Asserts that one line of `text` contains all of `words`.
#[track_caller]
fn assert_has(text: &str, words: &[&str]) {
    let has_all = |line: &str| words.iter().all(|word| line.contains(word));
    assert!(text.lines().any(has_all), "no {words:?} in:\n{text}");
}
