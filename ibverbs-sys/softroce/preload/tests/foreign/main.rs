//! Programs of other projects, unmodified, on the device: UCX with both of its transports over
//! verbs, a program for Open MPI over UCX, and programs of uDAPL.
//!
//! A program that is not installed is reported as ignored, with its package; `cargo xtask test`
//! installs all packages.

mod dapl;
#[path = "../../../tests/library/mod.rs"]
mod library;
mod mpi;
mod program;
mod ucx;

use std::process::ExitCode;

use libtest_mimic::{Arguments, Completion, Failed, Trial};

/// Packages of UCX's programs, of Open MPI with its compiler, and of uDAPL's programs.
const UCX: &str = "ucx-utils";
const OPEN_MPI: &str = "openmpi-bin libopenmpi-dev";
const DAPL: &str = "dapl2-utils";

/// The transports of UCX over verbs, as the values of `UCX_TLS` that select each of them alone.
/// `rc_v` stands for `rc_verbs` with the part of `ud_verbs` by which it connects: UCX can use
/// `rc_verbs` only with such a part.
const TRANSPORTS: [&str; 2] = ["rc_v", "ud_v"];

fn main() -> ExitCode {
    let mut arguments = Arguments::from_args();
    // Each trial has several processes, and each of them needs a processor.
    arguments.test_threads = Some(1);
    let mut trials = vec![
        trial("ucx_info", UCX, "ucx_info", ucx::info),
        trial(
            "ucx_perftest_atomics",
            UCX,
            "ucx_perftest",
            ucx::atomics_of_the_device,
        ),
    ];
    for program in [dapl::SHARED_RECEIVE_QUEUE, dapl::MESSAGES, dapl::ATOMICS] {
        let run = move || program.twice();
        trials.push(trial(program.name, DAPL, program.name, run));
    }
    for (program, message) in [
        (dapl::MESSAGES, "Error with CONNECT REQUEST private data"),
        (dapl::ATOMICS, "ACCEPT_RTU: rcv ERR"),
    ] {
        let name = format!("{}_refused_at_first", program.name);
        let run = move || program.refused_at_first(message);
        trials.push(trial(&name, DAPL, program.name, run));
    }
    for transport in TRANSPORTS {
        for size in ucx::SIZES {
            let name = format!("ucx_perftest_{transport}_{size}");
            trials.push(trial(&name, UCX, "ucx_perftest", move || {
                ucx::perftest(transport, size)
            }));
        }
        for ranks in [2, 4] {
            let name = format!("mpirun_{transport}_{ranks}");
            trials.push(trial(&name, OPEN_MPI, "mpicc", move || {
                mpi::ranks(transport, ranks)
            }));
        }
    }
    libtest_mimic::run(&arguments, trials).exit_code()
}

/// Returns a trial that needs `program` of `package`.
fn trial(
    name: &str,
    package: &'static str,
    program: &'static str,
    run: impl FnOnce() -> Result<(), String> + Send + 'static,
) -> Trial {
    Trial::ignorable_test(name, move || {
        if !program::is_installed(program) {
            return Ok(Completion::ignored_with(format!("install {package}")));
        }
        run().map_err(Failed::from)?;
        Ok(Completion::Completed)
    })
}
