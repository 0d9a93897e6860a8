//! Checks the example `ring_all_reduce`: several processes add their vectors. If the test runs
//! between two hosts, the ranks alternate between the hosts.

mod example;

use std::io::Write;
use std::net::UdpSocket;

use example::{Example, server_host};

const NAME: &str = "ring_all_reduce";

/// Returns the address of this host from which the host of the servers is reached.
fn own_address() -> String {
    // Chooses the address, and sends nothing.
    let socket = UdpSocket::bind("0.0.0.0:0").expect("a socket");
    let server = (&*server_host::address(), 9);
    socket.connect(server).expect("a route");
    let own = socket.local_addr().expect("its address");
    own.ip().to_string()
}

/// Runs the example with `ranks` processes and the arguments `more`, and checks that each process
/// has the correct sum.
fn reduce(ranks: usize, elements: usize, more: &[&str]) {
    let mut programs = Vec::new();
    for rank in 0..ranks {
        let is_on_servers_host = rank % 2 == 0;
        let (rank, ranks) = (rank.to_string(), ranks.to_string());
        let elements = elements.to_string();
        let words = ["--rank", &rank, "--ranks", &ranks, "--elements", &elements];
        let own_place = format!("{}:0", own_address());
        let mut program = match is_on_servers_host {
            true => {
                let listen = ["--listen", "127.0.0.1:0"];
                Example::start_server(NAME, &[&words[..], &listen, more].concat())
            }
            false => {
                let listen = ["--listen", &own_place];
                Example::start(NAME, &[&words[..], &listen, more].concat())
            }
        };
        let mut output = program.output();
        let line = example::line(&mut output);
        let address = line.strip_prefix("listening at ").expect("its address");
        programs.push((program, output, address.to_owned()));
    }
    for rank in 0..ranks {
        let next = programs[(rank + 1) % ranks].2.clone();
        let mut input = programs[rank].0.child.stdin.take().expect("a pipe");
        writeln!(input, "{next}").expect("the program reads a line");
    }
    for (program, mut output, _) in programs {
        let line = example::line(&mut output);
        if !line.starts_with(&format!("{elements} elements are right")) {
            panic!("{line:?}, {:?}", program.finish());
        }
        program.finish().expect("the program succeeds");
    }
}

#[test]
fn four_processes_add_their_vectors() {
    // Each chunk has two pieces, the second of which is shorter.
    reduce(4, 4 * 70_000, &["--rounds", "3"]);
}

#[test]
fn two_and_three_processes_add_their_vectors() {
    reduce(2, 2, &[]);
    reduce(3, 3000, &[]);
}

#[test]
fn pieces_that_wait_for_credits_are_added_at_their_index() {
    // Pieces longer than one message, and more of them than an end accepts at the same time.
    reduce(3, 3 * 300 * 1100, &["--piece", "1100"]);
    // Pieces of one message.
    reduce(2, 2 * 300 * 10, &["--piece", "10"]);
}
