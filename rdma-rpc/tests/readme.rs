//! Runs the commands of the README for two hosts, which are two network namespaces.

mod common;

use std::process::Command;

use common::program::{program, run_by, serve_by};
use common::second_host::{arguments_in_readme, with_two_hosts, without_settings};

const NAME: &str = "echo";

#[test]
fn a_client_calls_a_service_of_another_host_without_settings() {
    const TEST: &str = "a_client_calls_a_service_of_another_host_without_settings";
    let Some(second) = with_two_hosts(TEST, ["10.77.0.1", "10.77.0.2"]) else {
        return;
    };
    let [server, client] = arguments_in_readme("rdma-rpc", NAME);
    let command = without_settings(Command::new(program(NAME)));
    let (_server, address) = serve_by(command, &server);
    assert_eq!(address, "rdma://10.77.0.1:7471");
    let printed = run_by(second.command(program(NAME)), &client);
    assert_eq!(printed, "hello");
}
