//! `cargo xtask bench`: the workspace's benchmarks on a device.

use std::ffi::OsString;
use std::path::Path;
use std::time::{Duration, SystemTime};
use std::{fs, io};

use anyhow::{Context, ensure};
use xshell::Shell;

use crate::cargo::{self, Kind};
use crate::rxe::{self, Requirements};
use crate::test::Target;
use crate::{environment, packages, project, softroce};

/// The package of the benchmarks, and its executable.
const PACKAGE: &str = "rdma-bench";
const TARGET: &str = "verbs";

/// How to run the benchmarks.
#[derive(Debug)]
pub(crate) struct Choice {
    /// Few sizes and short runs.
    pub(crate) quick: bool,
    /// What to measure.
    pub(crate) device: Target,
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
    let mut build = vec!["bench", "--package", PACKAGE, "--no-run"];
    let mut environment = Vec::new();
    if choice.device == Target::Softroce {
        // All programs measure the same library, preloaded.
        build.push("--no-default-features");
        environment = softroce::environment(shell)?;
    }
    let built = cargo::build(&build)?;
    let benchmark = built
        .iter()
        .find(|executable| executable.kind == Kind::Benchmark && executable.target == TARGET)
        .with_context(|| format!("{PACKAGE} has no benchmark `{TARGET}`"))?;

    let results = project::target().join(PACKAGE);
    fs::create_dir_all(&results)?;
    let mut command: Vec<OsString> = vec![benchmark.path.clone().into(), "--bench".into()];
    // Without it the program runs its short set.
    if !choice.quick {
        command.push("--full".into());
    }
    if choice.device == Target::Softroce {
        // Nothing is emulated: what differs is the programs.
        command.extend(["--goals".into(), "close".into()]);
    }
    command.extend(["--json".into(), results.clone().into()]);
    command.extend(choice.arguments);
    environment.extend(cargo::environment_of(benchmark, &built));
    let device = choice.device.requirements();
    let requirements = Requirements {
        limit: choice.limit,
        shares: vec![results.clone()],
        directory: Some(benchmark.package.clone()),
        environment,
        ..device.clone().unwrap_or_default()
    };
    let begin = SystemTime::now();
    let status = match device {
        Some(_) => rxe::run(shell, &requirements, command)?,
        None => rxe::run_here(environment::SOFTROCE, &requirements, &command)?,
    };
    if status == 0 {
        ensure!(
            has_written_since(&results, begin)?,
            "the benchmarks left no results in {}",
            results.display()
        );
        eprintln!("results: {}", results.display());
    }
    Ok(status)
}

/// Whether a file in `directory` was written at `begin` or later.
fn has_written_since(directory: &Path, begin: SystemTime) -> io::Result<bool> {
    for entry in fs::read_dir(directory)? {
        // File systems keep coarser times than the clock tells.
        if entry?.metadata()?.modified()? + Duration::from_secs(2) >= begin {
            return Ok(true);
        }
    }
    Ok(false)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::time::{Duration, SystemTime};

    use super::has_written_since;

    #[test]
    fn old_results_are_not_new_ones() {
        let directory = std::env::temp_dir().join(format!("xtask-bench-{}", std::process::id()));
        fs::create_dir_all(&directory).unwrap();
        let now = SystemTime::now();
        assert!(!has_written_since(&directory, now).unwrap());
        fs::write(directory.join("results.json"), "{}").unwrap();
        assert!(has_written_since(&directory, now).unwrap());
        assert!(!has_written_since(&directory, now + Duration::from_secs(60)).unwrap());
        fs::remove_dir_all(&directory).unwrap();
    }
}
