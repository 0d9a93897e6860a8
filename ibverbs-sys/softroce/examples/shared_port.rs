//! Measures two ways in which several processes can receive packets at one UDP port: a group of
//! sockets among which the kernel selects by the high bits of the destination queue pair number,
//! and a process that owns the port and forwards each packet to the socket of its destination.
//!
//! ```text
//! cargo run --release -p softroce --example shared_port
//! ```
//!
//! One thread sends datagrams of 1 KiB in turn to eight receivers, each of which has a thread. At
//! most [`WINDOW`] datagrams are in flight. The output has the received datagrams per second, and
//! the processor time per datagram of all threads that receive or forward.

use std::io;
use std::mem;
use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use rustix::net::{AddressFamily, SocketType, bind, socket, sockopt};

/// Number of receivers.
const RECEIVERS: u8 = 8;
/// Number of bytes of a datagram.
const LENGTH: usize = 1024;
/// Offset in the datagram of the byte that names its receiver: the high bits of the destination
/// queue pair number in the BTH.
const SLOT_AT: usize = 5;
/// Maximum number of datagrams in flight, which fit into one receive buffer of [`BUFFER`] bytes.
const WINDOW: u64 = 512;
/// Requested size of a receive buffer in bytes.
const BUFFER: usize = 8 << 20;
/// Duration of each measurement.
const TIME: Duration = Duration::from_secs(3);
/// If no datagram arrives for this time, the datagrams in flight are regarded as lost.
const LOST_TIMEOUT: Duration = Duration::from_millis(10);
/// Number of measurements of each way, which alternate.
const RUNS: usize = 5;

/// Counters of a measurement.
#[derive(Debug, Default)]
struct Shared {
    received: AtomicU64,
    /// Processor time in nanoseconds of the threads that have ended.
    spent: AtomicU64,
    is_over: AtomicBool,
}

fn main() -> io::Result<()> {
    for _ in 0..RUNS {
        println!("group:      {}", measure(group()?)?);
        println!("forwarding: {}", measure(forwarding()?)?);
    }
    Ok(())
}

/// Sockets of one way to share a port.
struct Way {
    port: SocketAddr,
    receivers: Vec<UdpSocket>,
    /// Socket that receives all datagrams, and the addresses to which it forwards them.
    owner: Option<(UdpSocket, Vec<SocketAddr>)>,
}

/// Creates sockets that share a port. The kernel selects the socket of a datagram.
fn group() -> io::Result<Way> {
    let first = open(0)?;
    let port = first.local_addr()?;
    let mut receivers = vec![first];
    for _ in 1..RECEIVERS {
        receivers.push(open(port.port())?);
    }
    select_by_slot(&receivers[0])?;
    Ok(Way {
        port,
        receivers,
        owner: None,
    })
}

/// Creates a socket that owns the port, and the sockets to which it forwards.
fn forwarding() -> io::Result<Way> {
    let owner = open(0)?;
    let receivers: Vec<_> = (0..RECEIVERS).map(|_| open(0)).collect::<io::Result<_>>()?;
    let addresses = receivers.iter().map(UdpSocket::local_addr);
    let addresses = addresses.collect::<io::Result<_>>()?;
    Ok(Way {
        port: owner.local_addr()?,
        receivers,
        owner: Some((owner, addresses)),
    })
}

/// Opens a socket at the port `port`, which other sockets may use, too. The port 0 is any free
/// port.
fn open(port: u16) -> io::Result<UdpSocket> {
    let socket = socket(AddressFamily::INET, SocketType::DGRAM, None)?;
    sockopt::set_socket_reuseport(&socket, true)?;
    if sockopt::set_socket_recv_buffer_size_force(&socket, BUFFER).is_err() {
        sockopt::set_socket_recv_buffer_size(&socket, BUFFER)?;
    }
    bind(&socket, &SocketAddr::from((Ipv4Addr::LOCALHOST, port)))?;
    let socket = UdpSocket::from(socket);
    socket.set_read_timeout(Some(Duration::from_millis(100)))?;
    Ok(socket)
}

/// Attaches a program to the group of `socket` that selects the member by the byte at [`SLOT_AT`].
/// The members are numbered in the order in which they were bound.
fn select_by_slot(socket: &UdpSocket) -> io::Result<()> {
    let instruction = |code: u32, k| libc::sock_filter {
        code: code as u16,
        jt: 0,
        jf: 0,
        k,
    };
    let mut code = [
        instruction(libc::BPF_LD | libc::BPF_B | libc::BPF_ABS, SLOT_AT as u32),
        instruction(libc::BPF_RET | libc::BPF_A, 0),
    ];
    let program = libc::sock_fprog {
        len: code.len() as u16,
        filter: code.as_mut_ptr(),
    };
    // SAFETY: the value of the option is a program with its number of instructions, which are valid
    // for the call. The kernel copies and checks them.
    let result = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_ATTACH_REUSEPORT_CBPF,
            (&raw const program).cast(),
            size_of::<libc::sock_fprog>() as _,
        )
    };
    match result {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Sends for [`TIME`], and returns the result as text.
fn measure(way: Way) -> io::Result<String> {
    let shared = Arc::<Shared>::default();
    let mut threads = Vec::new();
    for (slot, socket) in (0..).zip(way.receivers) {
        let shared = Arc::clone(&shared);
        threads.push(thread::spawn(move || receive(&socket, slot, &shared)));
    }
    if let Some((socket, addresses)) = way.owner {
        let shared = Arc::clone(&shared);
        threads.push(thread::spawn(move || forward(&socket, &addresses, &shared)));
    }
    let begin = Instant::now();
    let lost = send(way.port, &shared)?;
    let received = shared.received.load(Ordering::Relaxed);
    let time = begin.elapsed();
    shared.is_over.store(true, Ordering::Relaxed);
    for thread in threads {
        thread.join().map_err(|_| io::ErrorKind::Other)??;
    }
    Ok(format!(
        "{:.0} datagrams/s, {:.2} us of processor time each, {lost} lost",
        received as f64 / time.as_secs_f64(),
        shared.spent.load(Ordering::Relaxed) as f64 / 1000.0 / received.max(1) as f64
    ))
}

/// Sends datagrams to `port` for [`TIME`]. Returns the number of lost datagrams.
fn send(port: SocketAddr, shared: &Shared) -> io::Result<u64> {
    let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0))?;
    socket.connect(port)?;
    let begin = Instant::now();
    let (mut sent, mut lost) = (0, 0);
    let mut datagram = [0; LENGTH];
    while begin.elapsed() < TIME {
        let arrived = || shared.received.load(Ordering::Relaxed);
        let (mut before, mut since) = (arrived(), Instant::now());
        while sent - lost - arrived() >= WINDOW {
            if arrived() > before {
                (before, since) = (arrived(), Instant::now());
            } else if since.elapsed() > LOST_TIMEOUT {
                lost = sent - arrived();
            }
            thread::yield_now();
        }
        for slot in 0..RECEIVERS {
            datagram[SLOT_AT] = slot;
            socket.send(&datagram)?;
            sent += 1;
        }
    }
    Ok(lost)
}

/// Receives the datagrams for the receiver `slot`.
fn receive(socket: &UdpSocket, slot: u8, shared: &Shared) -> io::Result<()> {
    let mut datagram = [0; LENGTH];
    while !shared.is_over.load(Ordering::Relaxed) {
        if socket.recv(&mut datagram).is_ok() {
            assert_eq!(datagram[SLOT_AT], slot, "the datagram is for another");
            shared.received.fetch_add(1, Ordering::Relaxed);
        }
    }
    add_thread_time(shared)
}

/// Receives all datagrams of the port, and sends each to its receiver.
fn forward(socket: &UdpSocket, addresses: &[SocketAddr], shared: &Shared) -> io::Result<()> {
    let mut datagram = [0; LENGTH];
    while !shared.is_over.load(Ordering::Relaxed) {
        if let Ok(length) = socket.recv(&mut datagram) {
            let to = addresses[usize::from(datagram[SLOT_AT])];
            socket.send_to(&datagram[..length], to)?;
        }
    }
    add_thread_time(shared)
}

/// Adds the processor time of the calling thread to the counters.
fn add_thread_time(shared: &Shared) -> io::Result<()> {
    // SAFETY: the structure has only integers, for which zero is valid.
    let mut usage: libc::rusage = unsafe { mem::zeroed() };
    // SAFETY: the pointer is valid for a write of the structure.
    if unsafe { libc::getrusage(libc::RUSAGE_THREAD, &raw mut usage) } != 0 {
        return Err(io::Error::last_os_error());
    }
    let nanos =
        |time: libc::timeval| 1_000_000_000 * time.tv_sec as u64 + 1000 * time.tv_usec as u64;
    let spent = nanos(usage.ru_utime) + nanos(usage.ru_stime);
    shared.spent.fetch_add(spent, Ordering::Relaxed);
    Ok(())
}
