//! Measures datagrams between two sockets on the loopback interface. Both processes poll without
//! sleeping.

use std::io::ErrorKind;
use std::net::{Ipv4Addr, UdpSocket};
use std::process::Stdio;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use clap::ValueEnum;
use socket2::SockRef;

use super::other::{spin, word};
use super::system::{self, Shared, UdpOption};
use super::{Measured, Other, Role};

/// Size, in bytes, of the receive buffer that the program requests for a UDP socket. The kernel may
/// grant less. A larger buffer allows more datagrams in flight.
const BUFFER: usize = 8 << 20;
/// Maximum payload in bytes of a datagram, and of all segments that one system call sends together:
/// 65,535 bytes less the IPv4 and UDP headers.
const MAX_LEN: usize = 65_507;
/// Maximum number of segments (datagrams) that one system call sends together. Older kernels allow
/// no more.
const MAX_SEGMENTS: usize = 64;

/// The way in which datagrams pass between a process and the kernel: one or many per system call.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum KernelPath {
    /// A single datagram per system call, on both sides.
    Sendto,
    /// Many datagrams per system call: the kernel splits and merges them (GSO and GRO).
    Gso,
}

/// Measures the time that a datagram of `size` bytes takes to a second process and back. The
/// measurement lasts for about `time`.
pub(crate) fn ping(size: usize, time: Duration) -> anyhow::Result<Measured> {
    ensure!(size <= MAX_LEN, "a datagram has at most {MAX_LEN} bytes");
    let (_other, socket) = connected(Role::Echo, size)?;
    round_trips(&socket, size, time)
}

/// Measures the round trip of a datagram of `size` bytes to the peer of a connected socket, which
/// returns each datagram, for about `time`.
pub(crate) fn round_trips(
    socket: &UdpSocket,
    size: usize,
    time: Duration,
) -> anyhow::Result<Measured> {
    let message = vec![0x5a_u8; size];
    let mut room = vec![0_u8; size];
    let mut samples = Vec::new();
    let begun = Instant::now();
    while begun.elapsed() < time {
        let sent = Instant::now();
        socket.send(&message).context("sending")?;
        spin(|| receive(socket, &mut room))?;
        samples.push(sent.elapsed().as_nanos() as f64);
    }
    Measured::time(samples)
}

/// Runs the second process of [`ping`], which sends each datagram of `size` bytes back. The two
/// processes exchange their UDP ports through the shared memory `shared`.
pub(crate) fn echo(shared: &Shared, size: usize) -> anyhow::Result<()> {
    let socket = answering(shared, KernelPath::Sendto)?;
    let mut room = vec![0_u8; size];
    loop {
        let count = spin(|| receive(&socket, &mut room))?;
        socket.send(&room[..count]).context("answering")?;
    }
}

/// Measures for about `time` the rate at which a second process receives datagrams of `size` bytes.
/// `by` selects one or many datagrams per system call. Limits the datagrams in flight to the size
/// of the receive buffer, so no datagram is lost.
pub(crate) fn pump(size: usize, by: KernelPath, time: Duration) -> anyhow::Result<Measured> {
    ensure!(size <= MAX_LEN, "a datagram has at most {MAX_LEN} bytes");
    let role = match by {
        KernelPath::Sendto => Role::Sink,
        KernelPath::Gso => Role::GatheringSink,
    };
    let (other, socket) = connected(role, size)?;
    let shared = other.shared();
    let room = SockRef::from(&socket).recv_buffer_size()?;
    let batch = match by {
        KernelPath::Sendto => 1,
        KernelPath::Gso => (MAX_LEN / size).min(MAX_SEGMENTS),
    };
    if by == KernelPath::Gso {
        let segment = i32::try_from(size)?;
        system::set_udp_option(&socket, UdpOption::Segment, segment)
            .context("enabling segmentation (UDP_SEGMENT)")?;
    }
    let window = window(by, size, room) as u64;
    let message = vec![0x5a_u8; size * batch];
    let (begun, mut sent) = (Instant::now(), 0);
    while begun.elapsed() < time {
        // Several sends per check of the clock, which takes long compared with one send.
        for _ in 0..16 {
            spin(|| Ok((sent + batch as u64 - received(shared, size) <= window).then_some(())))?;
            socket.send(&message).context("sending")?;
            sent += batch as u64;
        }
    }
    spin(|| Ok((received(shared, size) == sent).then_some(())))
        .context("datagrams were lost although the receive buffer had room")?;
    Ok(Measured::rate(sent, begun.elapsed().as_secs_f64()))
}

/// Returns the number of datagrams of `size` bytes that the receiving process has received,
/// computed from its count of bytes in the shared memory `shared`.
#[inline]
fn received(shared: &Shared, size: usize) -> u64 {
    shared.load(word::LINE) / size as u64
}

/// Returns the maximum number of datagrams of `size` bytes in flight, such that a quarter of the
/// receive buffer stays free. `room` is the size of this buffer in bytes. Counts the memory that
/// the kernel uses for a datagram. This memory is larger than the payload, and depends on the
/// number of datagrams in one system call (`by`).
fn window(by: KernelPath, size: usize, room: usize) -> usize {
    let room = room / 4 * 3;
    match by {
        KernelPath::Sendto => {
            let taken = (size + 512).next_power_of_two() + 256;
            (room / taken).max(1)
        }
        KernelPath::Gso => {
            let batch = (MAX_LEN / size).min(MAX_SEGMENTS);
            let taken = size * batch + (8 << 10);
            (room / taken).max(1) * batch
        }
    }
}

/// Runs the second process of [`pump`], which receives datagrams and counts their bytes in the
/// shared memory `shared`. `by` selects one or many datagrams per system call.
pub(crate) fn sink(shared: &Shared, by: KernelPath) -> anyhow::Result<()> {
    let socket = answering(shared, by)?;
    let mut room = vec![0_u8; 1 << 16];
    let mut total = 0;
    loop {
        total += spin(|| receive(&socket, &mut room))? as u64;
        shared.store(word::LINE, total);
    }
}

/// Receives a datagram from `socket` into `room`, without waiting. Returns the length of the
/// datagram in bytes, or `None` if no datagram has arrived.
#[inline]
fn receive(socket: &UdpSocket, room: &mut [u8]) -> anyhow::Result<Option<usize>> {
    match socket.recv(room) {
        Ok(count) => Ok(Some(count)),
        Err(error) if error.kind() == ErrorKind::WouldBlock => Ok(None),
        Err(error) => Err(error).context("receiving"),
    }
}

fn socket() -> anyhow::Result<UdpSocket> {
    let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).context("creating a UDP socket")?;
    socket.set_nonblocking(true)?;
    SockRef::from(&socket).set_recv_buffer_size(BUFFER)?;
    Ok(socket)
}

/// Starts the second process with the task `role`, for datagrams of `size` bytes. Returns a handle
/// to the process, and a UDP socket that is connected to the socket of that process.
fn connected(role: Role, size: usize) -> anyhow::Result<(Other, UdpSocket)> {
    let socket = socket()?;
    let mut other = Other::start(role, size, [Stdio::null(), Stdio::inherit()])?;
    let port = u16::try_from(other.ready()?)?;
    socket.connect((Ipv4Addr::LOCALHOST, port))?;
    let own = socket.local_addr()?.port();
    other.shared().store(word::PORT, u64::from(own));
    Ok((other, socket))
}

/// Creates the UDP socket of the second process of a measurement, and connects it to the socket of
/// the first process. The two processes exchange their ports through the shared memory `shared`.
/// `by` selects one or many datagrams per system call.
fn answering(shared: &Shared, by: KernelPath) -> anyhow::Result<UdpSocket> {
    let socket = socket()?;
    if by == KernelPath::Gso {
        // Set before any datagram arrives: datagrams that are not merged occupy more memory.
        system::set_udp_option(&socket, UdpOption::Gather, 1)
            .context("enabling receive offload (UDP_GRO)")?;
    }
    shared.store(word::READY, u64::from(socket.local_addr()?.port()));
    let port = spin(|| Ok(Some(shared.load(word::PORT)).filter(|port| *port != 0)))?;
    socket.connect((Ipv4Addr::LOCALHOST, u16::try_from(port)?))?;
    Ok(socket)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_window_fits_into_the_usual_buffer() {
        let usual = 425_984;
        assert_eq!(window(KernelPath::Sendto, 1040, usual), 138);
        assert_eq!(window(KernelPath::Sendto, 4112, usual), 37);
        assert_eq!(window(KernelPath::Gso, 1040, usual), 4 * 62);
        assert!(window(KernelPath::Gso, 4112, usual) * 4112 < usual);
        assert_eq!(window(KernelPath::Sendto, 4112, 1), 1);
    }
}
