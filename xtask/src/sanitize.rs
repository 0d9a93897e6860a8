//! `cargo xtask sanitize`: runs tests of rdma-core and rdma-async on softroce under
//! AddressSanitizer and LeakSanitizer, without a nightly compiler.

use std::process::Command;
use std::time::Duration;

use anyhow::ensure;
use xshell::Shell;

use crate::cargo::{self, Executable};
use crate::limit::{ProcessGroup, TIMED_OUT, exit_code};
use crate::{environment, packages, project};

/// The test programs that run by default: programs of rdma-core that create, fail and drop many
/// objects, and a program of rdma-async that drops many futures.
const TESTS: &[&str] = &["random_rounds", "holes", "scope", "dropped_futures"];

/// The test programs that are checked for memory leaks. The other programs leak values on purpose
/// (`mem::forget`), to show that forgetting them is safe.
const LEAK_CHECKED: &[&str] = &["random_rounds", "dropped_futures"];

/// The value of the environment variable `ROUNDS`: the number of repetitions of each test with
/// random inputs. The number is low, because each repetition is much slower under AddressSanitizer.
const ROUNDS: &str = "100";

/// The value of the environment variable `OPERATIONS`: the number of operations that the test of
/// dropped futures performs on each async runtime. The number is low, because operations are much
/// slower under AddressSanitizer.
const OPERATIONS: &str = "10000";

/// Time limit of a test program. A program that takes longer counts as failed.
const LIMIT: Duration = Duration::from_secs(1200);

/// Builds test programs with AddressSanitizer, and runs all of them: the programs `tests`, or the
/// default programs if `tests` is empty. Returns the exit status of the first program that failed,
/// else 0.
pub(crate) fn run(shell: &Shell, tests: &[String]) -> anyhow::Result<u8> {
    packages::install(shell, packages::BUILD)?;
    let usual: Vec<String>;
    let tests = if tests.is_empty() {
        usual = TESTS.iter().map(|&name| name.to_owned()).collect();
        &usual
    } else {
        tests
    };
    let programs = build(shell, tests)?;
    ensure!(!programs.is_empty(), "no test program was built");
    let mut failure = 0;
    for program in &programs {
        let status = call(program, &programs)?;
        eprintln!("{}: exit status {status}", program.target);
        if failure == 0 {
            failure = status;
        }
    }
    Ok(failure)
}

fn build(shell: &Shell, tests: &[String]) -> anyhow::Result<Vec<Executable>> {
    let host = cargo::host_triple(shell)?;
    let directory = project::target().join("sanitize");
    let directory = directory.display().to_string();
    // The target triple is named, although it is this machine's, so that cargo builds build scripts
    // without these flags.
    let mut arguments = vec!["test", "--no-run", "--locked"];
    arguments.extend(["--package", "rdma-core", "--package", "rdma-async"]);
    arguments.extend(["--target", &host, "--target-dir", &directory]);
    for test in tests {
        arguments.extend(["--test", test]);
    }
    // The sanitizer's option is not stable, but its runtime comes with every compiler.
    let environment = [
        // `sanitized` makes the device copy memory by code that the sanitizer checks.
        ("RUSTFLAGS", "-Zsanitizer=address --cfg sanitized"),
        ("RUSTC_BOOTSTRAP", "1"),
    ];
    cargo::build_with(&arguments, &environment)
}

fn call(program: &Executable, all: &[Executable]) -> anyhow::Result<u8> {
    let leaks = u8::from(LEAK_CHECKED.contains(&program.target.as_str()));
    let options = format!("detect_leaks={leaks}");
    let mut command = Command::new(&program.path);
    command
        .current_dir(&program.package)
        .env_clear()
        .envs(environment::inherited())
        .envs(cargo::environment_of(program, all))
        .env(environment::DEVICE, environment::SOFTROCE)
        .env("ROUNDS", ROUNDS)
        .env("OPERATIONS", OPERATIONS)
        .env("ASAN_OPTIONS", options)
        .env("RUST_BACKTRACE", "1");
    eprintln!("$ {}", program.path.display());
    let ended = ProcessGroup::spawn(&mut command)?.wait(Some(LIMIT))?;
    Ok(ended.map_or(TIMED_OUT, exit_code))
}
