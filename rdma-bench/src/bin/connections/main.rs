//! Measures connections whose two ends are in this process and on one thread.
//!
//! `connections NAME` measures one thing, and prints it as a line of JSON.

#![forbid(unsafe_code)]

mod establish;
mod idle;
mod operations;
mod result;

use std::process::ExitCode;
use std::time::Duration;

use clap::{Parser, Subcommand, ValueEnum};

/// Measures connections within one process.
#[derive(Debug, Parser)]
struct CommandLine {
    #[command(subcommand)]
    what: What,
    /// Duration of the measurement, about.
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
    /// The time of a write of 8 bytes that has completed when its completion is looked for first.
    Write {
        /// The layer that posts and polls.
        #[arg(long, value_enum)]
        layer: Layer,
    },
    /// Writes of 8 bytes each second on one connection of rdma-async.
    WriteRate {
        /// The number of idle connections beside it.
        #[arg(long, default_value_t = 0)]
        idle: usize,
    },
    /// The memory and the descriptors of one end of an idle connection of rdma-async.
    Idle {
        /// The number of connections.
        #[arg(long, default_value_t = 1000)]
        connections: usize,
    },
    /// The time from connecting to the first message.
    Connect {
        /// How to connect.
        #[arg(long, value_enum)]
        by: Way,
    },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Layer {
    Core,
    Async,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Way {
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
        What::Idle { connections } => idle::measure(connections)?,
        What::Connect { by: Way::Rdma } => establish::rdma(time)?,
        What::Connect { by: Way::Tcp } => establish::tcp(time)?,
    };
    println!("{document}");
    Ok(())
}
