//! A lock for processes of several hosts, taken by compare-and-swap, with a lease.
//!
//! ```text
//! lock serve --listen 127.0.0.1:7473
//! lock work 127.0.0.1:7473 --id 1 --count 100
//! ```
//!
//! The server only provides the memory of the lock and of a counter. A worker takes the lock, reads
//! the counter, and writes the next number. Without the lock, increments would be lost. If a worker
//! dies while it holds the lock, another worker takes the lock after the end of the lease.

mod lease;
mod server;
mod worker;

use std::process::ExitCode;
use std::time::Duration;

use clap::Parser;

/// A lock for processes of several hosts.
#[derive(Debug, Parser)]
enum CommandLine {
    /// Provides the memory of the lock until standard input ends, and then prints the counter.
    Serve {
        /// Address to listen at.
        #[arg(long, default_value = "127.0.0.1:7473")]
        listen: String,
    },
    /// Increments the counter repeatedly, each time under the lock.
    Work {
        /// Address of the server.
        server: String,
        /// Number of this worker, at least 1. Each worker needs a different number.
        #[arg(long)]
        id: u32,
        /// Number of increments.
        #[arg(long, default_value_t = 100)]
        count: u32,
        /// Duration of the lease, in milliseconds. All workers need an equal duration.
        #[arg(long, default_value_t = 1000)]
        lease: u64,
        /// Take the lock, print `holding`, and keep the lock without renewing its lease.
        #[arg(long)]
        hang: bool,
    },
}

#[tokio::main]
async fn main() -> ExitCode {
    let done = match CommandLine::parse() {
        CommandLine::Serve { listen } => server::serve(&listen).await,
        CommandLine::Work {
            server,
            id,
            count,
            lease,
            hang,
        } => worker::work(&server, id, count, Duration::from_millis(lease), hang).await,
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("lock: {error:#}");
            ExitCode::FAILURE
        }
    }
}
