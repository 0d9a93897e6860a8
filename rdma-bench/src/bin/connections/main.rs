//! Measures RDMA connections whose two sides are in this process and on one thread.
//!
//! `connections NAME` measures one quantity, and prints the result as a line of JSON.

#![forbid(unsafe_code)]

mod establish;
mod idle;
mod operations;
mod result;
mod shared;

use std::process::ExitCode;
use std::time::Duration;

use clap::{Parser, Subcommand, ValueEnum};

/// Measures RDMA connections within one process.
#[derive(Debug, Parser)]
struct CommandLine {
    #[command(subcommand)]
    what: What,
    /// Approximate duration of the measurement.
    #[arg(
        long,
        value_name = "MILLISECONDS",
        default_value_t = 500,
        global = true
    )]
    time: u64,
}

#[derive(Debug, Clone, Copy, Subcommand)]
enum What {
    /// Time to post a write of 8 bytes and to poll for its completion.
    Write {
        /// Layer that posts and polls.
        #[arg(long, value_enum)]
        layer: Layer,
    },
    /// Number of writes of 8 bytes per second on one connection of rdma-async.
    WriteRate {
        /// Number of idle connections in addition to the measured one.
        #[arg(long, default_value_t = 0)]
        idle: usize,
    },
    /// Number of reads per second of a value of 64 bytes by rdma-async.
    Reads {
        /// Read a published value, and check it.
        #[arg(long)]
        published: bool,
        /// Update the value without pause in another thread.
        #[arg(long, requires = "published")]
        updated: bool,
    },
    /// Time to grant a peer access to 4 KiB of memory and to end the access.
    Grant {
        /// Layer that grants and ends the access.
        #[arg(long, value_enum)]
        layer: Layer,
    },
    /// Number of writes of 8 bytes per second on one connection of rdma-async while other
    /// connections fail.
    BesideFailures {
        /// Number of other connections of the same runtime that fail, at times evenly spread over
        /// the measurement.
        #[arg(long, default_value_t = 0)]
        failures: u32,
    },
    /// Memory and file descriptors of one side of an idle connection of rdma-async.
    Idle {
        /// Number of idle connections to create.
        #[arg(long, default_value_t = 1000)]
        connections: usize,
    },
    /// Time from connecting until the first message has arrived.
    Connect {
        /// Protocol of the connections.
        #[arg(long, value_enum)]
        by: Protocol,
    },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Layer {
    Core,
    Async,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Protocol {
    Rdma,
    Tcp,
}

fn main() -> ExitCode {
    let line = CommandLine::parse();
    match run(line.what, Duration::from_millis(line.time)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("connections: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(what: What, time: Duration) -> anyhow::Result<()> {
    let document = match what {
        What::Write { layer: Layer::Core } => operations::core_write(time)?,
        What::Write {
            layer: Layer::Async,
        } => operations::async_write(time)?,
        What::WriteRate { idle } => operations::async_rate(idle, time)?,
        What::Reads {
            published: false, ..
        } => shared::raw_reads(time)?,
        What::Reads {
            published: true,
            updated,
        } => shared::published_reads(updated, time)?,
        What::Grant { layer: Layer::Core } => shared::core_grant(time)?,
        What::Grant {
            layer: Layer::Async,
        } => shared::async_grant(time)?,
        What::BesideFailures { failures } => operations::beside_failures(failures, time)?,
        What::Idle { connections } => idle::measure(connections)?,
        What::Connect { by: Protocol::Rdma } => establish::rdma(time)?,
        What::Connect { by: Protocol::Tcp } => establish::tcp(time)?,
    };
    println!("{document}");
    Ok(())
}
