//! Measures writes to a TCP connection. Server and client are separate command lines, so that they
//! can run in different network namespaces.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::time::{Duration, Instant};

use anyhow::Context;

use super::Measured;

/// Accepts one connection on `port`, reads from it until its end in reads of up to `size` bytes,
/// and then sends one byte.
pub(crate) fn serve(port: u16, size: usize) -> anyhow::Result<()> {
    let listener = TcpListener::bind((Ipv4Addr::UNSPECIFIED, port)).context("listening")?;
    let (mut stream, _) = listener.accept().context("accepting")?;
    let mut room = vec![0_u8; size];
    while stream.read(&mut room).context("receiving")? > 0 {}
    stream.write_all(&[0]).context("confirming")
}

/// Writes `size` bytes at a time over a TCP connection to the server on `host` for about `time`.
/// Returns the number of writes per second, counted until the server has received everything.
pub(crate) fn measure(
    host: Ipv4Addr,
    port: u16,
    size: usize,
    time: Duration,
) -> anyhow::Result<Measured> {
    let mut stream = TcpStream::connect((host, port)).context("connecting")?;
    let message = vec![0x5a_u8; size];
    let (begun, mut writes) = (Instant::now(), 0);
    while begun.elapsed() < time {
        stream.write_all(&message).context("sending")?;
        writes += 1;
    }
    stream.shutdown(std::net::Shutdown::Write)?;
    stream.read_exact(&mut [0]).context("waiting for the end")?;
    Ok(Measured::rate(writes, begun.elapsed().as_secs_f64()))
}
