//! Establishes the control connection: the TCP connection on which server and client agree about a
//! test.

use std::io;
use std::net::{Ipv6Addr, SocketAddr, TcpListener, TcpStream, ToSocketAddrs};
use std::thread;
use std::time::{Duration, Instant};

use super::{Control, Message};
use crate::error::{Error, Result};
use crate::plan::Plan;

/// Maximum time for which a client repeats connection attempts while the server does not yet
/// listen. Server and client can thus be started at the same time.
const CONNECT_RETRY_TIME: Duration = Duration::from_secs(5);
/// Maximum wait for the first message on a new connection. A program that connects and sends
/// nothing thus does not block the server for long.
const HELLO_TIMEOUT: Duration = Duration::from_secs(5);

/// Listens for control connections on `port`, on all local addresses.
///
/// # Errors
///
/// [`Error::Control`], most often because the port is in use.
pub fn listen(port: u16) -> Result<TcpListener> {
    let anywhere = SocketAddr::from((Ipv6Addr::UNSPECIFIED, port));
    let listener = TcpListener::bind(anywhere)
        .or_else(|_| TcpListener::bind(SocketAddr::from(([0, 0, 0, 0], port))));
    listener.map_err(Error::control(format!(
        "listening on port {port} (`-p` selects another port)"
    )))
}

/// Waits for a client with the same plan (parameters of the test) as `plan`. Refuses a client with
/// another plan, and fails. Closes the connections of other programs, and reports them on standard
/// error. `timeout` limits the wait for the client, and later each wait for a message of the
/// client.
pub fn accept(listener: &TcpListener, plan: &Plan, timeout: Duration) -> Result<Control> {
    let what = "waiting for the client";
    listener
        .set_nonblocking(true)
        .map_err(Error::control(what))?;
    let deadline = Instant::now() + timeout;
    loop {
        match listener.accept() {
            Ok((stream, address)) => {
                stream
                    .set_nonblocking(false)
                    .map_err(Error::control(what))?;
                match greet(stream, plan, timeout) {
                    Ok((mut control, theirs)) => {
                        return match Plan::check_equal(plan, &theirs) {
                            Ok(()) => Ok(control),
                            Err(error) => {
                                control.fail(&error);
                                Err(error)
                            }
                        };
                    }
                    Err(error) => eprintln!("closed a connection from {address}: {error}"),
                }
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                if Instant::now() > deadline {
                    return Err(Error::TimedOut {
                        what: "client",
                        limit: timeout,
                    });
                }
                thread::sleep(Duration::from_millis(5));
            }
            Err(error) => return Err(Error::control(what)(error)),
        }
    }
}

fn greet(stream: TcpStream, plan: &Plan, timeout: Duration) -> Result<(Control, Plan)> {
    let mut control = Control::new(stream, HELLO_TIMEOUT.min(timeout))?;
    let theirs = expect_greeting(&mut control)?;
    control.timeout = timeout;
    control.send(&greeting(plan))?;
    Ok((control, theirs))
}

/// Connects to the server on `host`, and sends it `plan`, the parameters of the test. The server
/// checks that they equal its own. `timeout` limits each wait for the server.
pub fn connect(host: &str, port: u16, plan: &Plan, timeout: Duration) -> Result<Control> {
    let what = format!("connecting to {host} port {port}");
    let addresses: Vec<_> = (host, port)
        .to_socket_addrs()
        .map_err(Error::control(&*what))?
        .collect();
    let deadline = Instant::now() + CONNECT_RETRY_TIME.min(timeout);
    let stream = loop {
        let mut failure = io::Error::other("the host name has no address");
        let connected = addresses.iter().find_map(|address| {
            TcpStream::connect_timeout(address, timeout)
                .map_err(|error| failure = error)
                .ok()
        });
        match connected {
            Some(stream) => break stream,
            None if failure.kind() == io::ErrorKind::ConnectionRefused
                && Instant::now() < deadline =>
            {
                thread::sleep(Duration::from_millis(50));
            }
            None => return Err(Error::control(what)(failure)),
        }
    };
    let mut control = Control::new(stream, timeout)?;
    control.send(&greeting(plan))?;
    expect_greeting(&mut control)?;
    Ok(control)
}

fn greeting(plan: &Plan) -> Message {
    Message::Hello {
        version: Message::VERSION,
        plan: plan.clone(),
    }
}

fn expect_greeting(control: &mut Control) -> Result<Plan> {
    match control.receive()? {
        Message::Hello { version, plan } if version == Message::VERSION => Ok(plan),
        Message::Hello { version, .. } => Err(Error::Protocol(format!(
            "the peer has protocol version {version}, this process has version {}",
            Message::VERSION
        ))),
        other => Err(super::unexpected("a greeting", &other)),
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;
    use crate::plan::Length;
    use crate::test::{Metric, Test, Verb};

    fn plan(size: usize) -> Plan {
        let test = Test {
            verb: Verb::Send,
            metric: Metric::Latency,
        };
        Plan::new(test, vec![size], Length::Iterations(10))
    }

    const WAIT: Duration = Duration::from_secs(5);

    #[test]
    fn a_stranger_does_not_end_the_server() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let server = thread::spawn(move || accept(&listener, &plan(8), WAIT).map(drop));
        let mut stranger = TcpStream::connect(address).unwrap();
        stranger.write_all(&[0xff; 64]).unwrap();
        drop(stranger);
        connect("127.0.0.1", address.port(), &plan(8), WAIT).unwrap();
        server.join().unwrap().unwrap();
    }

    #[test]
    fn both_sides_report_a_difference() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let server = thread::spawn(move || accept(&listener, &plan(8), WAIT).map(drop));
        let mut client = connect("127.0.0.1", port, &plan(16), WAIT).unwrap();
        let text = "the two ends differ in size: -s 8 at the server, -s 16 at the client";
        assert_eq!(server.join().unwrap().unwrap_err().to_string(), text);
        let error = client.receive().unwrap_err().to_string();
        assert_eq!(error, format!("the peer failed: {text}"));
    }

    #[test]
    fn waiting_without_a_client_times_out() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let error = accept(&listener, &plan(8), Duration::from_millis(50)).unwrap_err();
        assert!(error.to_string().starts_with("no client for 0.05 s"));
    }
}
