//! Copies a file to another host over RDMA, or over TCP for comparison.
//!
//! ```text
//! rdma_cp receive DIRECTORY --listen 0.0.0.0:7471        # on one host
//! rdma_cp send FILE HOST:7471                            # on the other host
//! ```
//!
//! The receiver writes the received bytes to `NAME.part`. If a copy is interrupted, the next copy
//! of the file continues after these bytes, if their checksums are equal at both ends. When all
//! bytes have arrived and their checksum is correct, the receiver renames the file to `NAME`.

mod file;
mod link;
mod progress;
mod receive;
mod send;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// Copies a file to another host.
#[derive(Debug, Parser)]
struct CommandLine {
    #[command(subcommand)]
    role: Role,
    /// Use TCP instead of RDMA.
    #[arg(long, global = true)]
    tcp: bool,
    /// Print no progress.
    #[arg(long, global = true)]
    quiet: bool,
}

#[derive(Debug, Subcommand)]
enum Role {
    /// Sends a file.
    Send {
        /// File to send.
        file: PathBuf,
        /// Address of the receiver, as HOST:PORT.
        receiver: String,
    },
    /// Receives files.
    Receive {
        /// Directory for the received files.
        directory: PathBuf,
        /// Address to listen at.
        #[arg(long, default_value = "127.0.0.1:7471")]
        listen: String,
        /// Exit after one file.
        #[arg(long)]
        once: bool,
    },
}

// One thread for the connection. Blocking threads read and write the file and compute its checksum.
#[tokio::main(flavor = "current_thread")]
async fn main() -> ExitCode {
    let line = CommandLine::parse();
    let shows_progress = !line.quiet;
    let done = match line.role {
        Role::Send { file, receiver } => {
            send::send(&file, &receiver, line.tcp, shows_progress).await
        }
        Role::Receive {
            directory,
            listen,
            once,
        } => receive::serve(&directory, &listen, line.tcp, once, shows_progress).await,
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("rdma_cp: {error:#}");
            ExitCode::FAILURE
        }
    }
}
