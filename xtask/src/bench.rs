//! `cargo xtask bench`: the workspace's benchmarks on a device.

use std::ffi::OsString;
use std::fs;
use std::time::Duration;

use anyhow::Context;
use xshell::Shell;

use crate::cargo::{self, Kind};
use crate::rxe::{self, Requirements};
use crate::{packages, project};

/// The package of the benchmarks, and its executable.
const PACKAGE: &str = "rdma-bench";
const TARGET: &str = "verbs";

/// How to run the benchmarks.
#[derive(Debug)]
pub(crate) struct Choice {
    /// Few sizes and short runs.
    pub(crate) quick: bool,
    /// An RDMA device of this machine to measure, instead of Soft-RoCE.
    pub(crate) device: Option<String>,
    /// How long all of them may run; no limit when `None`.
    pub(crate) limit: Option<Duration>,
    /// Further arguments of the benchmark program.
    pub(crate) arguments: Vec<OsString>,
}

/// Builds the benchmarks, runs them where the device is, and leaves their results below the
/// target directory. Returns the exit status.
pub(crate) fn run(shell: &Shell, choice: Choice) -> anyhow::Result<u8> {
    packages::install(shell, packages::BUILD)?;
    packages::install(shell, packages::PERFTEST)?;
    let built = cargo::build(&["bench", "--package", PACKAGE, "--no-run"])?;
    let benchmark = built
        .iter()
        .find(|executable| executable.kind == Kind::Benchmark && executable.target == TARGET)
        .with_context(|| format!("{PACKAGE} has no benchmark `{TARGET}`"))?;

    let results = project::target().join(PACKAGE);
    fs::create_dir_all(&results)?;
    let mut command: Vec<OsString> = vec![benchmark.path.clone().into(), "--bench".into()];
    if choice.quick {
        command.push("--quick".into());
    }
    command.extend(["--json".into(), results.clone().into()]);
    command.extend(choice.arguments);
    let requirements = Requirements {
        device: choice.device,
        limit: choice.limit,
        shares: vec![results.clone()],
        directory: Some(benchmark.package.clone()),
        environment: cargo::environment_of(benchmark, &built),
        ..Requirements::default()
    };
    let status = rxe::run(shell, &requirements, command)?;
    if status == 0 {
        eprintln!("results: {}", results.display());
    }
    Ok(status)
}
