//! Runs the commands of the README for two hosts, which are two network namespaces.

mod common;
mod example;

use std::io::Read;
use std::process::Command;
use std::time::Instant;

use common::LIMIT;
use common::second_host::{arguments_in_readme, with_two_hosts, without_settings};
use example::Example;

const NAME: &str = "first_program";

#[test]
fn the_first_program_runs_between_two_hosts_without_settings() {
    const TEST: &str = "the_first_program_runs_between_two_hosts_without_settings";
    let Some(second) = with_two_hosts(TEST, ["10.77.0.1", "10.77.0.2"]) else {
        return;
    };
    let [server, client] = arguments_in_readme("rdma-async", NAME);
    let program = example::program(NAME);
    let mut server = Example::spawn(without_settings(Command::new(&program)), &server);
    let mut output = server.output();
    let latest = Instant::now() + LIMIT;
    while let Err(complaint) = Example::spawn(second.command(&program), &client).finish() {
        let is_early = complaint.contains("refused") && Instant::now() < latest;
        assert!(is_early, "{complaint}");
    }
    server.finish().expect("the server succeeds");
    let mut printed = String::new();
    output.read_to_string(&mut printed).expect("its output");
    assert_eq!(printed, "Received data: [0, 0, 0, 0, 1, 1, 1, 1]\n");
}
