//! Measures other RPC frameworks, and a plain connection, over TCP.
//!
//! Client and server are built like those of the echo tests of `rdma-bench`: two processes, each
//! with a single-threaded runtime; one connection; one task, in which as many loops make calls as
//! calls are to be in flight. Start the same command in two processes: without HOST as the server,
//! with HOST as the client, which prints the result as a line of JSON.

#![forbid(unsafe_code)]

mod connection;
mod frameworks;
mod load;

use std::process::ExitCode;
use std::time::Duration;

use clap::{Parser, ValueEnum};
use serde_json::json;
use tokio::task::LocalSet;

use frameworks::Framework;
use load::Load;

/// Measures an RPC framework over TCP between two processes.
#[derive(Debug, Parser)]
struct CommandLine {
    /// Framework to measure.
    #[arg(value_enum)]
    framework: Framework,
    /// Quantity to measure.
    #[arg(value_enum)]
    test: Test,
    /// Server to connect to; without HOST this process is the server.
    host: Option<String>,
    /// TCP port of the server.
    #[arg(short = 'p', long, default_value_t = 18516)]
    port: u16,
    /// Bytes in a request and in its response, or in a streamed item.
    #[arg(short = 's', long, default_value_t = 32)]
    size: usize,
    /// Calls in flight for the test `rate`.
    #[arg(short = 't', long, default_value_t = 64)]
    depth: usize,
    /// Approximate duration of the measurement.
    #[arg(long, value_name = "MILLISECONDS", default_value_t = 500)]
    time: u64,
}

/// The quantity that the program measures.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Test {
    /// Time of a call, one at a time.
    Latency,
    /// Calls per second.
    Rate,
    /// Items per second of a stream from the server.
    Items,
}

fn main() -> ExitCode {
    match run(&CommandLine::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("rdma-bench-peers: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(line: &CommandLine) -> anyhow::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    // Cap'n Proto's futures stay on their thread.
    let local = LocalSet::new();
    let Some(host) = &line.host else {
        let serve = async { frameworks::serve(line.framework, line.port).await };
        return local.block_on(&runtime, serve);
    };
    let load = Load {
        size: line.size,
        depth: match line.test {
            Test::Latency => 1,
            Test::Rate | Test::Items => line.depth,
        },
        time: Duration::from_millis(line.time),
    };
    let measured = async {
        let target = (host.as_str(), line.port);
        frameworks::measure(line.framework, line.test, &load, target).await
    };
    let measured = local.block_on(&runtime, measured)?;
    let (unit, figure) = match line.test {
        Test::Latency => ("usec", measured.median.as_secs_f64() * 1e6),
        Test::Rate | Test::Items => ("1/s", measured.rate),
    };
    let document = json!({
        "schema": "rdma-bench/peers/1",
        "unit": unit,
        "figure": figure,
        "count": measured.count,
    });
    println!("{document}");
    Ok(())
}
