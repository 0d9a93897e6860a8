//! A notice board: one process publishes notices, and any number of processes read them one-sided.
//!
//! ```text
//! board serve --listen 127.0.0.1:7474
//! board read 127.0.0.1:7474
//! ```
//!
//! The owner publishes each line of its standard input in place of the line before. A reader never
//! sees a part of a notice, and the owner does nothing for a read. Each reader has a right of its
//! own, which ends when the reader has disconnected.

mod owner;
mod reader;

use std::process::ExitCode;
use std::time::Duration;

use clap::{Parser, Subcommand};

/// Maximum number of bytes of a notice: enough for a line of text. The board needs memory for
/// several notices of this length.
const CAPACITY: usize = 256;

/// A notice board.
#[derive(Debug, Parser)]
struct CommandLine {
    #[command(subcommand)]
    role: Role,
}

#[derive(Debug, Subcommand)]
enum Role {
    /// Publishes the lines of standard input until its end.
    Serve {
        /// Address to listen at.
        #[arg(long, default_value = "127.0.0.1:7474")]
        listen: String,
    },
    /// Prints the notices until the board ends.
    Read {
        /// Address of the owner.
        owner: String,
        /// Read again and again, with this pause in milliseconds, instead of waiting until the
        /// owner tells of a change.
        #[arg(long, value_name = "MILLISECONDS")]
        poll: Option<u64>,
    },
}

#[tokio::main]
async fn main() -> ExitCode {
    let done = match CommandLine::parse().role {
        Role::Serve { listen } => owner::serve(&listen).await,
        Role::Read { owner, poll } => reader::read(&owner, poll.map(Duration::from_millis)).await,
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("board: {error:#}");
            ExitCode::FAILURE
        }
    }
}
