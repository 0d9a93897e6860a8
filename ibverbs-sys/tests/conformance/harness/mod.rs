//! The runner of the cases, and the types with which they are written.

mod arguments;
mod case;
mod check;
mod completion;
mod device;
mod memory;
mod pair;
mod queue_pair;
mod report;
mod request;
mod runner;
mod srq;
mod worker;

use std::process::ExitCode;

pub(crate) use case::{Case, cases};
pub(crate) use check::*;
pub(crate) use completion::*;
pub(crate) use device::*;
pub(crate) use memory::*;
pub(crate) use pair::*;
pub(crate) use queue_pair::*;
pub(crate) use report::Verdict;
pub(crate) use request::*;
pub(crate) use srq::*;

/// Runs the cases that the command line selects.
pub(crate) fn main(cases: &[Case]) -> ExitCode {
    let arguments = match arguments::Arguments::from_command_line() {
        Ok(arguments) => arguments,
        Err(error) => {
            eprintln!("error: {error}");
            return ExitCode::from(2);
        }
    };
    if arguments.worker {
        worker::run(cases, &arguments)
    } else {
        runner::run(cases, &arguments)
    }
}
