//! Measures the round trip of a datagram between two hosts. Server and client have separate command
//! lines, so that they can run in different network namespaces.
//!
//! The client also opens a TCP connection to the same port. The end of this connection tells the
//! server that the client has ended.

use std::io::{ErrorKind, Read};
use std::net::{Ipv4Addr, TcpListener, TcpStream, UdpSocket};
use std::time::Duration;

use anyhow::Context;

use super::Measured;
use super::udp::round_trips;

/// Number of empty polls (polls that return no datagram) between two checks whether the client has
/// ended. The number is large, so that the checks hardly delay the polls.
const POLLS_PER_CHECK: u32 = 1024;

/// Runs the server of the measurement. First waits for the client's TCP connection on the TCP port
/// `port`. Then receives datagrams of up to `size` bytes on the UDP port `port`, and sends each
/// datagram back. Returns when the client closes its TCP connection.
pub(crate) fn serve(port: u16, size: usize) -> anyhow::Result<()> {
    let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, port)).context("binding the socket")?;
    socket.set_nonblocking(true)?;
    let listener = TcpListener::bind((Ipv4Addr::UNSPECIFIED, port)).context("listening")?;
    let (mut client, _) = listener.accept().context("accepting")?;
    client.set_nonblocking(true)?;
    let mut room = vec![0_u8; size];
    let mut polls = 0_u32;
    loop {
        match socket.recv_from(&mut room) {
            Ok((length, from)) => {
                socket.send_to(&room[..length], from).context("answering")?;
                continue;
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            Err(error) => return Err(error).context("receiving"),
        }
        polls = polls.wrapping_add(1);
        if polls.is_multiple_of(POLLS_PER_CHECK) {
            match client.read(&mut [0]) {
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                _ => return Ok(()),
            }
        }
    }
}

/// Measures the round trip of a datagram of `size` bytes from this process to the server on `host`
/// and back, for about `time`.
pub(crate) fn measure(
    host: Ipv4Addr,
    port: u16,
    size: usize,
    time: Duration,
) -> anyhow::Result<Measured> {
    let _connection = TcpStream::connect((host, port)).context("connecting")?;
    let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0)).context("a socket")?;
    socket.connect((host, port))?;
    socket.set_nonblocking(true)?;
    round_trips(&socket, size, time)
}
