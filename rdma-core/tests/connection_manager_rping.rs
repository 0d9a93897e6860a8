//! The example `rping` with itself and with the C program `rping`, in both roles; and the death of
//! the C program.

mod common;
#[path = "common/manager.rs"]
mod manager;
#[path = "../examples/rping.rs"]
#[allow(dead_code, reason = "its main is not called")]
mod rping;

use std::io::Read;
use std::net::{IpAddr, SocketAddr};
use std::process::{Child, Command, Stdio};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use common::eventually;
use manager::{MAX_WAIT, connection_error, connector, listener};
use rdma_core::cm::{Connection, ConnectionError, ConnectionParameters, RejectReason};
use rdma_core::{Error, QueuePairState};
use rping::Options;

const PINGS: u32 = 20;

fn options(line: &str) -> Options {
    Options::parse(line.split_whitespace().map(str::to_owned)).unwrap()
}

/// The C program, which is killed when this value is dropped, and the thread that reads its output.
struct Rping(Child, Option<JoinHandle<String>>);

impl Rping {
    #[track_caller]
    fn start(line: &str) -> Self {
        let mut command = Command::new("rping");
        command.args(line.split_whitespace()).stdin(Stdio::null());
        let child = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn();
        let mut child = child.expect("rping of the package rdmacm-utils");
        let mut output = child.stdout.take().unwrap();
        let reading = thread::spawn(move || {
            let mut text = String::new();
            output.read_to_string(&mut text).unwrap();
            text
        });
        Self(child, Some(reading))
    }

    /// Waits until the program has ended successfully, and returns its output.
    #[track_caller]
    fn ended(mut self) -> String {
        let status = eventually("the end of rping", || {
            thread::sleep(Duration::from_millis(5));
            self.0.try_wait().unwrap()
        });
        let text = self.1.take().unwrap().join().unwrap();
        assert!(status.success(), "{status}: {text}");
        text
    }
}

impl Drop for Rping {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Returns a port at which no program listens.
fn free_port(address: IpAddr) -> u16 {
    listener(address).1.port()
}

/// Connects to the server of the C program, as soon as the server listens.
#[track_caller]
fn connect_to(there: SocketAddr) -> Connection {
    eventually("a server", || {
        let connected =
            connector(there).connect(|context| Ok(context.protection_domain()?.queue_pair()));
        match connected {
            Err(Error::Connection(ConnectionError::Rejected {
                reason: RejectReason::NobodyListens,
                ..
            })) => None,
            other => Some(other.unwrap()),
        }
    })
}

/// Runs the client of this crate against a server that may not listen yet.
#[track_caller]
fn client(options: &Options) -> u32 {
    eventually("a server", || match rping::run(options) {
        Err(error) if error.to_string().contains("nobody listens") => None,
        outcome => Some(outcome.unwrap()),
    })
}

#[test]
fn the_command_line_is_that_of_c() {
    let parsed = options("-cvV -a 10.77.0.1 -p7175 -S 1000 -C5");
    assert!(!parsed.server && parsed.verbose && parsed.validate && !parsed.debug);
    assert_eq!((parsed.port, parsed.size, parsed.count), (7175, 1000, 5));
    assert_eq!(parsed.address, IpAddr::from([10, 77, 0, 1]));
    assert!(options("-s -P").server && options("-s -P").persistent);
    for wrong in [
        "",
        "-x",
        "-s -S 10",
        "-c -S 65536",
        "-c -a",
        "-c -p 70000",
        "server",
    ] {
        let words = wrong.split_whitespace().map(str::to_owned);
        assert!(Options::parse(words).is_err(), "{wrong:?}");
    }
    if manager::address().is_none() {
        // The error that a user without a connection manager sees.
        let error = rping::run(&options("-c -a 127.0.0.1 -C 1")).unwrap_err();
        assert!(error.downcast_ref::<Error>().is_some(), "{error}");
    }
}

#[test]
fn our_client_pings_our_server() {
    let Some(address) = manager::address() else {
        return;
    };
    for size in [28, 64, 4097, 65535] {
        let (listener, there) = listener(address);
        let line = format!("-a {address} -p {} -S {size} -C {PINGS}", there.port());
        thread::scope(|scope| {
            let serving = scope.spawn(|| rping::serve(&listener, &options(&format!("-s {line}"))));
            assert_eq!(
                rping::run(&options(&format!("-c -V {line}"))).unwrap(),
                PINGS
            );
            assert_eq!(serving.join().unwrap().unwrap(), PINGS);
        });
    }
}

#[test]
fn our_client_pings_the_server_of_c() {
    let Some(address) = manager::address() else {
        return;
    };
    for size in [64, 3000, 65535] {
        let port = free_port(address);
        let line = format!("-a {address} -p {port} -S {size} -C {PINGS}");
        let server = Rping::start(&format!("-s -v {line}"));
        assert_eq!(client(&options(&format!("-c -V {line}"))), PINGS);
        let text = server.ended();
        for ping in 0..PINGS {
            let said = format!("server ping data: rdma-ping-{ping}: ");
            assert!(text.contains(&said), "{text}");
        }
    }
}

#[test]
fn the_client_of_c_pings_our_server() {
    let Some(address) = manager::address() else {
        return;
    };
    for size in [64, 3000, 65535] {
        let (listener, there) = listener(address);
        let line = format!("-a {address} -p {} -S {size} -C {PINGS}", there.port());
        let client = Rping::start(&format!("-c -v -V {line}"));
        let served = rping::serve(&listener, &options(&format!("-s {line}"))).unwrap();
        assert_eq!(served, PINGS);
        let text = client.ended();
        let last = format!("ping data: rdma-ping-{}: ", PINGS - 1);
        assert!(text.contains(&last), "{text}");
    }
}

#[test]
fn the_c_program_can_create_its_own_queue_pairs() {
    let Some(address) = manager::address() else {
        return;
    };
    let (listener, there) = listener(address);
    let line = format!("-a {address} -p {} -C {PINGS}", there.port());
    let client = Rping::start(&format!("-c -q -V {line}"));
    let served = rping::serve(&listener, &options(&format!("-s {line}")));
    assert_eq!(served.unwrap(), PINGS);
    client.ended();
}

#[test]
fn the_persistent_c_server_serves_several_of_our_clients() {
    let Some(address) = manager::address() else {
        return;
    };
    let line = format!("-a {address} -p {} -C {PINGS}", free_port(address));
    let server = Rping::start(&format!("-s -P {line}"));
    // The clients connect one after the other: the C server may ignore one of several clients that
    // connect at the same time, even C clients.
    for _ in 0..3 {
        assert_eq!(client(&options(&format!("-c -V {line}"))), PINGS);
    }
    drop(server);
}

#[test]
fn our_persistent_server_serves_several_c_clients_at_once() {
    let Some(address) = manager::address() else {
        return;
    };
    let (listener, there) = listener(address);
    let line = format!("-a {address} -p {} -C {PINGS}", there.port());
    let persistent = options(&format!("-s -P {line}"));
    // The server runs until the process ends.
    thread::spawn(move || rping::serve(&listener, &persistent));
    let clients = [(); 4].map(|()| Rping::start(&format!("-c -V {line}")));
    for client in clients {
        client.ended();
    }
}

#[test]
fn the_death_of_the_peers_process_is_noticed() {
    let Some(address) = manager::address() else {
        return;
    };
    let there = SocketAddr::new(address, free_port(address));
    let server = Rping::start(&format!("-s -P -a {address} -p {}", there.port()));
    let connection = connect_to(there);
    assert!(connection.is_connected().unwrap());
    // The server is killed, so the kernel disconnects.
    drop(server);
    assert!(connection.wait_disconnected(Some(MAX_WAIT)).unwrap());
    let state = connection.queue_pair().state().unwrap();
    assert_eq!(state, QueuePairState::Error);
    // A later connection is rejected, because no server listens.
    let again = connector(there).connect(|context| Ok(context.protection_domain()?.queue_pair()));
    let error = connection_error(again);
    let ConnectionError::Rejected { reason, .. } = &error else {
        panic!("{error:?}");
    };
    assert_eq!(*reason, RejectReason::NobodyListens);
}

#[test]
fn the_death_of_a_client_in_the_middle_ends_the_server() {
    let Some(address) = manager::address() else {
        return;
    };
    let (listener, there) = listener(address);
    let line = format!("-a {address} -p {}", there.port());
    // Without a count the client sends pings for ever.
    let client = Rping::start(&format!("-c {line}"));
    let incoming = listener.next(Some(MAX_WAIT)).unwrap().unwrap();
    let options = options(&format!("-s {line}"));
    thread::scope(|scope| {
        let serving = scope.spawn(|| rping::server(incoming, &options));
        thread::sleep(Duration::from_millis(500));
        drop(client);
        // If the client dies between two pings, the server sees a disconnection, otherwise an
        // error. In both cases the server ends.
        match serving.join().unwrap() {
            Ok(pings) => println!("{pings} pings"),
            Err(error) => println!("{error}"),
        }
    });
}

#[test]
fn a_client_that_dies_before_it_is_accepted_does_not_hold_up_the_listener() {
    let Some(address) = manager::address() else {
        return;
    };
    let (listener, there) = listener(address);
    let client = Rping::start(&format!("-c -a {address} -p {} -C 1", there.port()));
    let incoming = listener.next(Some(MAX_WAIT)).unwrap().unwrap();
    drop(client);
    let domain = incoming.context().unwrap().protection_domain().unwrap();
    let outcome = incoming.accept(domain.queue_pair(), &ConnectionParameters::default());
    println!("{}", outcome.expect_err("nobody is there any more"));
    let line = format!("-a {address} -p {} -C {PINGS}", there.port());
    let client = Rping::start(&format!("-c {line}"));
    let served = rping::serve(&listener, &options(&format!("-s {line}")));
    assert_eq!(served.unwrap(), PINGS);
    client.ended();
}
