//! Checks that the example `first_program` prints the expected line, in one process and in two.

mod example;

use std::io::Read;
use std::net::TcpListener;
use std::time::{Duration, Instant};

use example::Example;

const NAME: &str = "first_program";
const PRINTED: &str = "Received data: [0, 0, 0, 0, 1, 1, 1, 1]\n";

#[test]
fn the_program_prints_the_bytes_that_the_client_wrote() {
    assert_eq!(example::printed_by(NAME), PRINTED);
}

#[test]
fn the_server_prints_the_bytes_that_a_client_in_another_process_wrote() {
    let free = TcpListener::bind("127.0.0.1:0").and_then(|free| free.local_addr());
    let port = free.expect("a free port").port();
    let address = format!("{}:{port}", example::server_host::address());
    let mut server = Example::start_server(NAME, &["server", &address]);
    let mut output = server.output();
    let latest = Instant::now() + Duration::from_secs(120);
    while let Err(complaint) = Example::start(NAME, &["client", &address]).finish() {
        let is_early = complaint.contains("refused") && Instant::now() < latest;
        assert!(is_early, "{complaint}");
    }
    server.finish().expect("the server succeeds");
    let mut printed = String::new();
    output.read_to_string(&mut printed).expect("its output");
    assert_eq!(printed, PRINTED);
}
