//! Common parts of the ping-pong examples.
//!
//! The examples use the protocol of the programs of the same names in rdma-core's `ibverbs-utils`
//! (`ibv_rc_pingpong` ...), so that either end can be in C.

#![allow(dead_code, unused_imports, reason = "each example uses a part of it")]

mod completions;
mod handshake;
mod options;
mod turns;

use std::error::Error;
use std::process::ExitCode;
use std::time::Duration;

pub(crate) use completions::Completions;
pub(crate) use handshake::{Line, Table};
pub(crate) use options::{Options, Program};
pub(crate) use turns::{Ball, Player, Report, balls, play};

/// Result of an example.
pub(crate) type Outcome<T> = Result<T, Box<dyn Error + Send + Sync>>;

/// Maximum time without a completion.
const MAX_WAIT: Duration = Duration::from_secs(60);

/// Runs an example with the options of the command line, and prints its report.
pub(crate) fn main(program: &Program, run: fn(&Options) -> Outcome<Report>) -> ExitCode {
    let options = Options::parse(program, std::env::args().skip(1));
    match options.and_then(|options| run(&options)) {
        Ok(report) => {
            println!("{report}");
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("{}: {error}", program.name);
            ExitCode::FAILURE
        }
    }
}
