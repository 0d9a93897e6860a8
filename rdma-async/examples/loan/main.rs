//! Memory that another process may write for a limited time.
//!
//! ```text
//! loan serve --listen 127.0.0.1:7475 --limit 1000
//! loan fill 127.0.0.1:7475
//! ```
//!
//! The server lends memory to each client. A client fills the memory and returns it. When the
//! client has returned the memory or the time is over, the access ends at the device of the server,
//! and only then the server reads the memory.

mod borrower;
mod owner;

use std::process::ExitCode;
use std::time::Duration;

use clap::{Parser, Subcommand};

/// Number of bytes of the memory that the server lends to a client. Many, so that the loan can end
/// in the middle of a write.
const SIZE: usize = 64 << 10;

/// Memory that another process may write for a limited time.
#[derive(Debug, Parser)]
enum CommandLine {
    /// Lends memory to each client, until standard input ends.
    Serve {
        /// Address to listen at.
        #[arg(long, default_value = "127.0.0.1:7475")]
        listen: String,
        /// Time for which the memory is lent, in milliseconds.
        #[arg(long, default_value_t = 1000)]
        limit: u64,
    },
    #[command(flatten)]
    Client(Request),
}

#[derive(Debug, Subcommand)]
enum Request {
    /// Fills the memory and returns it.
    Fill {
        /// Address of the server.
        server: String,
        /// Byte to write.
        #[arg(long, default_value_t = 1)]
        byte: u8,
    },
    /// Writes to the memory without a pause, and never returns it.
    Keep {
        /// Address of the server.
        server: String,
        /// Ignore that the time is over.
        #[arg(long)]
        ignore_end: bool,
    },
}

#[tokio::main]
async fn main() -> ExitCode {
    let done = match CommandLine::parse() {
        CommandLine::Serve { listen, limit } => {
            owner::serve(&listen, Duration::from_millis(limit)).await
        }
        CommandLine::Client(Request::Fill { server, byte }) => borrower::fill(&server, byte).await,
        CommandLine::Client(Request::Keep { server, ignore_end }) => {
            borrower::keep(&server, ignore_end).await
        }
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("loan: {error:#}");
            ExitCode::FAILURE
        }
    }
}
