//! Checks the example `loan`: memory that other processes write for a limited time, and owners and
//! borrowers that die meanwhile.

mod example;

use std::io::BufReader;
use std::process::ChildStdout;

use example::Example;

const NAME: &str = "loan";
/// Time limits of loans in milliseconds: one that passes, and one that does not.
const SHORT: &str = "200";
const LONG: &str = "120000";
/// Line that a borrower prints whose write was refused.
const REFUSED: &str = "the device of the server refuses the access";

fn serve(limit: &str) -> (Example, BufReader<ChildStdout>, String) {
    Example::serve_with(NAME, &["--limit", limit])
}

/// Starts a client that never returns the memory, and waits until it writes.
fn keep(address: &str, more: &[&str]) -> (Example, BufReader<ChildStdout>) {
    let mut client = Example::start(NAME, &[&["keep", address], more].concat());
    let mut output = client.output();
    assert_eq!(example::line(&mut output), "writing");
    (client, output)
}

/// Lends memory once more, which the client fills and returns.
fn check(address: &str, output: &mut BufReader<ChildStdout>) {
    let client = Example::start(NAME, &["fill", address, "--byte", "7"]);
    client.finish().expect("the client succeeds");
    let returned = "returned, unchanged, full: true, byte 7";
    assert_eq!(example::line(output), returned);
}

#[test]
fn memory_that_was_returned_is_full() {
    let (_server, mut output, address) = serve(LONG);
    check(&address, &mut output);
    check(&address, &mut output);
}

#[test]
fn the_access_of_a_borrower_that_keeps_the_memory_ends_at_the_device() {
    let (_server, mut output, address) = serve(SHORT);
    let ends = [
        (&[][..], "the loan has ended"),
        (&["--ignore-end"], REFUSED),
    ];
    for (option, end) in ends {
        let (client, mut client_output) = keep(&address, option);
        assert_eq!(example::line(&mut output), "the time is over, unchanged");
        let found = example::line(&mut client_output);
        // The refusal can be faster than the message of the end.
        assert!(found == end || found == REFUSED, "{found}");
        client.finish().expect("the client ends");
    }
}

#[test]
fn memory_comes_back_although_its_borrower_was_killed_while_writing() {
    let (_server, mut output, address) = serve("1000");
    let (mut client, _client_output) = keep(&address, &[]);
    client.child.kill().expect("the client is killed");
    assert_eq!(example::line(&mut output), "the time is over, unchanged");
    check(&address, &mut output);
}

#[test]
fn a_borrower_learns_that_the_owner_was_killed_while_it_was_writing() {
    let (mut server, _output, address) = serve(LONG);
    let (client, mut client_output) = keep(&address, &[]);
    server.child.kill().expect("the server is killed");
    match client.finish() {
        // The error of the write, or of the connection.
        Err(complaint) => assert!(complaint.starts_with("loan: "), "{complaint}"),
        // The kernel frees the objects of a process one by one, its memory regions first.
        Ok(()) => assert_eq!(example::line(&mut client_output), REFUSED),
    }
}
