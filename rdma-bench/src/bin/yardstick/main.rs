//! Measures operations of this machine without RDMA (copies, system calls, sockets). The results
//! are the yardsticks, the reference values that measurements of an RDMA device are compared with.
//!
//! `yardstick NAME` measures one quantity, with two processes on two processors if the quantity
//! needs them, and prints the result as a line of JSON.

#![deny(unsafe_code)]

mod affinity;
mod all_reduce;
mod cache_line;
mod copy;
mod datagram;
mod eventfd;
mod other;
mod remote_copy;
mod result;
mod ring;
mod system;
mod tcp;
mod udp;

use std::net::Ipv4Addr;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::bail;
use clap::{Parser, Subcommand, ValueEnum};

use other::Other;
use result::Measured;

/// Measures one operation of this machine without RDMA, such as a copy, a system call or a
/// datagram.
#[derive(Debug, Parser)]
struct CommandLine {
    #[command(subcommand)]
    what: What,
    /// The approximate duration of the measurement.
    #[arg(
        long,
        value_name = "MILLISECONDS",
        default_value_t = 500,
        global = true
    )]
    time: u64,
}

#[derive(Debug, Clone, Subcommand)]
enum What {
    /// Copies from private memory into a memfd: copies per second, or the time of a copy.
    Memcpy {
        /// The size of a copy in bytes.
        #[arg(short = 's', long)]
        size: usize,
        /// Report the time of a copy instead of copies per second.
        #[arg(long)]
        latency: bool,
    },
    /// Writes to another process's memory by `process_vm_writev`: writes per second, or the time of
    /// a write.
    VmWrite {
        /// The size of a write in bytes.
        #[arg(short = 's', long)]
        size: usize,
        /// Report the time of a write instead of writes per second.
        #[arg(long)]
        latency: bool,
    },
    /// The round trip of a cache line between two processors.
    CacheLine,
    /// The round trip of a datagram between two sockets; both processes poll without sleeping.
    UdpPing {
        /// The size of a datagram in bytes.
        #[arg(short = 's', long)]
        size: usize,
    },
    /// Datagrams per second in one direction, sent only as fast as the receiver takes them.
    UdpPump {
        /// The size of a datagram in bytes.
        #[arg(short = 's', long)]
        size: usize,
        /// Path of the datagrams through the kernel.
        #[arg(long, value_enum)]
        by: udp::KernelPath,
    },
    /// The round trip of a wakeup by eventfds between two processors.
    Eventfd {
        /// Wait in tasks of a tokio runtime instead of in threads.
        #[arg(long)]
        tasks: bool,
    },
    /// Writes per second through a ring in shared memory, which one process copies into and the
    /// other out of.
    Ring {
        /// The size of a write in bytes.
        #[arg(short = 's', long)]
        size: usize,
    },
    /// The time of the memory copies and additions of a ring all-reduce, in threads that are not
    /// pinned.
    AllReduce {
        /// The size of a vector in bytes.
        #[arg(short = 's', long)]
        size: usize,
        /// The number of vectors.
        #[arg(long)]
        ranks: usize,
    },
    /// Writes per second to a TCP connection. Without a host: the server, which ends after one
    /// connection.
    Tcp {
        /// The size of a write in bytes.
        #[arg(short = 's', long)]
        size: usize,
        /// The port of the server.
        #[arg(short = 'p', long)]
        port: u16,
        /// The address of the server.
        host: Option<Ipv4Addr>,
    },
    /// The round trip of a datagram between two hosts; both processes poll without sleeping.
    /// Without a host: the server, which ends after one client.
    Udp {
        /// The size of a datagram in bytes.
        #[arg(short = 's', long)]
        size: usize,
        /// The TCP and UDP port of the server.
        #[arg(short = 'p', long)]
        port: u16,
        /// The address of the server.
        host: Option<Ipv4Addr>,
    },
    /// Run the other process of a measurement; the measuring process starts it.
    #[command(hide = true)]
    Other {
        /// Task of the other process.
        #[arg(value_enum)]
        role: Role,
        /// The path of the memory that both processes share.
        memory: String,
        /// The size of an operation in bytes.
        size: usize,
    },
}

/// The task of the second process of a measurement. The measuring process starts the second
/// process, and passes it this task as an argument.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Role {
    /// Process that answers writes to a shared cache line.
    Line,
    /// Process that provides the memory that the measuring process writes to.
    Memory,
    /// Process that returns each datagram to its sender.
    Echo,
    /// Process that receives one datagram per system call.
    Sink,
    /// Process that receives many datagrams per system call, merged by the kernel (GRO).
    GatheringSink,
    /// Process that copies out of a ring.
    Ring,
    /// Process that answers each wakeup by an eventfd with a wakeup.
    Wake,
    /// Process in which a task of tokio answers each wakeup by an eventfd with a wakeup.
    WakeTask,
}

fn main() -> ExitCode {
    let line = CommandLine::parse();
    match run(line.what, Duration::from_millis(line.time)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("yardstick: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(what: What, time: Duration) -> anyhow::Result<()> {
    if let What::Other { role, memory, size } = &what {
        return serve(*role, memory, *size);
    }
    match what {
        What::Tcp {
            size,
            port,
            host: None,
        } => {
            affinity::pin(affinity::Side::Answering)?;
            return tcp::serve(port, positive(size)?);
        }
        What::Udp {
            size,
            port,
            host: None,
        } => {
            affinity::pin(affinity::Side::Answering)?;
            return datagram::serve(port, positive(size)?);
        }
        What::AllReduce { size, ranks } => {
            println!("{}", all_reduce::measure(size, ranks, time)?.line());
            return Ok(());
        }
        _ => {}
    }
    affinity::pin(affinity::Side::Measuring)?;
    let measured = match what {
        What::Memcpy { size, latency } => copy::measure(positive(size)?, latency, time)?,
        What::VmWrite { size, latency } => remote_copy::measure(positive(size)?, latency, time)?,
        What::CacheLine => cache_line::measure(time)?,
        What::UdpPing { size } => udp::ping(positive(size)?, time)?,
        What::UdpPump { size, by } => udp::pump(positive(size)?, by, time)?,
        What::Ring { size } => ring::measure(positive(size)?, time)?,
        What::Eventfd { tasks: false } => eventfd::measure(time)?,
        What::Eventfd { tasks: true } => eventfd::measure_tasks(time)?,
        What::Tcp {
            size,
            port,
            host: Some(host),
        } => tcp::measure(host, port, positive(size)?, time)?,
        What::Udp {
            size,
            port,
            host: Some(host),
        } => datagram::measure(host, port, positive(size)?, time)?,
        What::Other { .. } | What::AllReduce { .. } | What::Tcp { .. } | What::Udp { .. } => {
            unreachable!("it was served")
        }
    };
    println!("{}", measured.line());
    Ok(())
}

fn serve(role: Role, memory: &str, size: usize) -> anyhow::Result<()> {
    affinity::pin(affinity::Side::Answering)?;
    affinity::die_with_parent()?;
    let shared = system::Shared::open(memory)?;
    match role {
        Role::Line => cache_line::answer(&shared),
        Role::Memory => remote_copy::offer(&shared, size),
        Role::Echo => udp::echo(&shared, size),
        Role::Sink => udp::sink(&shared, udp::KernelPath::Sendto),
        Role::GatheringSink => udp::sink(&shared, udp::KernelPath::Gso),
        Role::Ring => ring::read(&shared, size),
        Role::Wake => eventfd::answer(&shared),
        Role::WakeTask => eventfd::answer_tasks(&shared),
    }
}

fn positive(size: usize) -> anyhow::Result<usize> {
    if size == 0 {
        bail!("the size must be at least 1 byte");
    }
    Ok(size)
}
