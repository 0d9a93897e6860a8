//! Measures what this machine does without RDMA, as yardsticks for the figures of a device.
//!
//! `yardstick NAME` measures one quantity, with two processes on two processors if it needs two, and
//! prints the result as a line of JSON.

#![deny(unsafe_code)]

mod cache_line;
mod copy;
mod eventfd;
mod other;
mod place;
mod remote_copy;
mod result;
mod system;
mod udp;

use std::process::ExitCode;
use std::time::Duration;

use anyhow::bail;
use clap::{Parser, Subcommand, ValueEnum};

use other::Other;
use result::Measured;

/// Measures what this machine does without RDMA.
#[derive(Debug, Parser)]
struct CommandLine {
    #[command(subcommand)]
    what: What,
    /// For how long, about.
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
    /// Copies from private memory into a memfd: each second, or the time of one.
    Memcpy {
        /// The bytes of a copy.
        #[arg(short = 's', long)]
        size: usize,
        /// The time of one.
        #[arg(long)]
        latency: bool,
    },
    /// Writes to another process's memory by `process_vm_writev`: each second, or the time of one.
    VmWrite {
        /// The bytes of a write.
        #[arg(short = 's', long)]
        size: usize,
        /// The time of one.
        #[arg(long)]
        latency: bool,
    },
    /// The round trip of a cache line between two processors.
    CacheLine,
    /// The round trip of a datagram between two sockets, both of which spin.
    UdpPing {
        /// The bytes of a datagram.
        #[arg(short = 's', long)]
        size: usize,
    },
    /// Datagrams each second, one way, at the receiver's pace.
    UdpPump {
        /// The bytes of a datagram.
        #[arg(short = 's', long)]
        size: usize,
        /// How they go through the kernel.
        #[arg(long, value_enum)]
        by: udp::By,
    },
    /// The round trip of a wake-up by eventfds between two processors.
    Eventfd,
    /// The other process of a measurement.
    #[command(hide = true)]
    Other {
        /// Of which.
        #[arg(value_enum)]
        role: Role,
        /// The memory that both have.
        memory: String,
        /// The bytes that it is about.
        size: usize,
    },
}

/// What the other process does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Role {
    /// Answers writes to a cache line.
    Line,
    /// Has memory that is written to.
    Memory,
    /// Answers datagrams.
    Echo,
    /// Takes datagrams one by one.
    Sink,
    /// Takes datagrams many at once.
    GatheringSink,
    /// Answers wake-ups.
    Wake,
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
    place::pin(place::Side::Near)?;
    let measured = match what {
        What::Memcpy { size, latency } => copy::measure(positive(size)?, latency, time)?,
        What::VmWrite { size, latency } => remote_copy::measure(positive(size)?, latency, time)?,
        What::CacheLine => cache_line::measure(time)?,
        What::UdpPing { size } => udp::ping(positive(size)?, time)?,
        What::UdpPump { size, by } => udp::pump(positive(size)?, by, time)?,
        What::Eventfd => eventfd::measure(time)?,
        What::Other { .. } => unreachable!("it was served"),
    };
    println!("{}", measured.line());
    Ok(())
}

fn serve(role: Role, memory: &str, size: usize) -> anyhow::Result<()> {
    place::pin(place::Side::Far)?;
    place::die_with_parent()?;
    let shared = system::Shared::open(memory)?;
    match role {
        Role::Line => cache_line::answer(&shared),
        Role::Memory => remote_copy::offer(&shared, size),
        Role::Echo => udp::echo(&shared, size),
        Role::Sink => udp::sink(&shared, udp::By::Sendto),
        Role::GatheringSink => udp::sink(&shared, udp::By::Gso),
        Role::Wake => eventfd::answer(&shared),
    }
}

fn positive(size: usize) -> anyhow::Result<usize> {
    if size == 0 {
        bail!("there is nothing to measure of 0 bytes");
    }
    Ok(size)
}
