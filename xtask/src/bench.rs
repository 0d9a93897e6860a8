//! `cargo xtask bench`: the workspace's benchmarks on a device.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};
use std::{fs, io};

use anyhow::{Context, ensure};
use xshell::Shell;

use crate::cargo::{self, Executable, Kind};
use crate::rxe::{self, Requirements};
use crate::test::Target;
use crate::{environment, packages, project, softroce};

/// The package of the benchmarks.
const PACKAGE: &str = "rdma-bench";
/// What compares with perftest, and the layers.
const VERBS: &str = "verbs";
/// What compares softroce with what the machine does without it.
const LIMITS: &str = "limits";
/// The goal whose rows are about the kernel's device in the guest.
const IN_GUEST: &str = "G11";
/// The kernel's device there.
const KERNELS: &str = "rxe_0";
/// Emulated, a checksum by this instruction takes longer than by a table, as the kernel's does.
const SLOW_WHEN_EMULATED: &str = "pclmulqdq";

/// How to run the benchmarks.
#[derive(Debug)]
pub(crate) struct Choice {
    /// Few sizes and short runs.
    pub(crate) quick: bool,
    /// Only this goal, this row, or the tests with this in their names.
    pub(crate) only: Option<String>,
    /// What to measure.
    pub(crate) device: Target,
    /// How long each program may run; no limit when `None`.
    pub(crate) limit: Option<Duration>,
    /// Arguments of the comparison with perftest, which is then all that is run.
    pub(crate) arguments: Vec<OsString>,
}

/// Builds the benchmarks, runs them where the device is, and leaves their results below the
/// target directory. Returns the first exit status that is not 0.
pub(crate) fn run(shell: &Shell, choice: Choice) -> anyhow::Result<u8> {
    packages::install(shell, packages::BUILD)?;
    packages::install(shell, packages::PERFTEST)?;
    let mut build = vec!["bench", "--package", PACKAGE, "--no-run"];
    let mut preload = Vec::new();
    if choice.device == Target::Softroce {
        // All programs measure the same library, preloaded.
        build.push("--no-default-features");
        preload = softroce::environment(shell)?;
    }
    let results = project::target().join(PACKAGE);
    fs::create_dir_all(&results)?;
    let bench = Bench {
        shell,
        built: cargo::build(&build)?,
        preload,
        results,
        choice: &choice,
    };
    let begin = SystemTime::now();
    let mut status = 0;
    let parts = Part::wanted(&choice);
    ensure!(
        !parts.is_empty(),
        "only softroce is measured against what the machine does without it"
    );
    for part in parts {
        let ended = match part {
            Part::Limits => bench.limits()?,
            Part::LimitsInGuest => bench.limits_in_guest()?,
            Part::Verbs => bench.verbs()?,
        };
        if status == 0 {
            status = ended;
        }
    }
    let results = bench.results.display();
    let written = has_written_since(&bench.results, begin)?;
    ensure!(
        written || status != 0,
        "the benchmarks left no results in {results}"
    );
    if written {
        eprintln!("results: {results}");
    }
    Ok(status)
}

/// What can be run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Part {
    /// The rows on this machine.
    Limits,
    /// The rows in the guest.
    LimitsInGuest,
    /// The comparison with perftest.
    Verbs,
}

impl Part {
    fn wanted(choice: &Choice) -> Vec<Self> {
        let row = choice.only.as_deref().filter(|name| is_row(name));
        if !choice.arguments.is_empty() {
            return vec![Self::Verbs];
        }
        match (row, choice.device == Target::Softroce) {
            (Some(_), false) => Vec::new(),
            (Some(name), true) if name.to_ascii_uppercase().starts_with(IN_GUEST) => {
                vec![Self::LimitsInGuest]
            }
            (Some(_), true) => vec![Self::Limits],
            (None, true) if choice.only.is_none() => {
                vec![Self::Limits, Self::LimitsInGuest, Self::Verbs]
            }
            (None, _) => vec![Self::Verbs],
        }
    }
}

/// Whether it is the name of a goal or of a row: `G8`, `G8a`.
fn is_row(name: &str) -> bool {
    let number = name.strip_prefix(['G', 'g']);
    number.is_some_and(|number| number.starts_with(|c: char| c.is_ascii_digit()))
}

/// The benchmarks, built.
struct Bench<'b> {
    shell: &'b Shell,
    built: Vec<Executable>,
    /// With what programs see softroce.
    preload: Vec<(OsString, OsString)>,
    results: PathBuf,
    choice: &'b Choice,
}

impl Bench<'_> {
    /// Softroce against what this machine does without it.
    fn limits(&self) -> anyhow::Result<u8> {
        packages::install(self.shell, packages::UCX)?;
        let benchmark = self.benchmark(LIMITS)?;
        let command = self.command(benchmark);
        let requirements = self.requirements(benchmark, Requirements::default());
        rxe::run_here(environment::SOFTROCE, &requirements, &command)
    }

    /// Softroce against the kernel's device, both in the guest.
    fn limits_in_guest(&self) -> anyhow::Result<u8> {
        let benchmark = self.benchmark(LIMITS)?;
        let mut command = self.command(benchmark);
        command.extend(["--kernel", KERNELS].map(OsString::from));
        let guest = Requirements {
            guest: true,
            without: vec![SLOW_WHEN_EMULATED],
            ..Requirements::default()
        };
        rxe::run(self.shell, &self.requirements(benchmark, guest), command)
    }

    /// rdma-core and perftest, and the layers.
    fn verbs(&self) -> anyhow::Result<u8> {
        let benchmark = self.benchmark(VERBS)?;
        let mut command = self.command(benchmark);
        if self.choice.device == Target::Softroce {
            // Nothing is emulated: what differs is the programs.
            command.extend(["--goals".into(), "close".into()]);
        }
        command.extend(self.choice.arguments.iter().cloned());
        match self.choice.device.requirements() {
            Some(device) => {
                let requirements = self.requirements(benchmark, device);
                rxe::run(self.shell, &requirements, command)
            }
            None => {
                let requirements = self.requirements(benchmark, Requirements::default());
                rxe::run_here(environment::SOFTROCE, &requirements, &command)
            }
        }
    }

    fn benchmark(&self, target: &str) -> anyhow::Result<&Executable> {
        let mut built = self.built.iter();
        built
            .find(|executable| executable.kind == Kind::Benchmark && executable.target == target)
            .with_context(|| format!("{PACKAGE} has no benchmark `{target}`"))
    }

    fn command(&self, benchmark: &Executable) -> Vec<OsString> {
        let effort = if self.choice.quick {
            "--quick"
        } else {
            "--full"
        };
        let mut command: Vec<OsString> = vec![benchmark.path.clone().into()];
        command.extend(["--bench", effort, "--json"].map(OsString::from));
        command.push(self.results.clone().into());
        if let Some(name) = &self.choice.only {
            command.extend(["--only".into(), name.into()]);
        }
        command
    }

    /// What a benchmark needs, besides what its device does.
    fn requirements(&self, benchmark: &Executable, device: Requirements) -> Requirements {
        let mut environment = self.preload.clone();
        environment.extend(cargo::environment_of(benchmark, &self.built));
        Requirements {
            limit: self.choice.limit,
            shares: vec![self.results.clone()],
            directory: Some(benchmark.package.clone()),
            environment,
            ..device
        }
    }
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

    use super::{Choice, Part, Target, has_written_since};

    fn parts(device: Target, only: Option<&str>, arguments: &[&str]) -> Vec<Part> {
        Part::wanted(&Choice {
            quick: true,
            only: only.map(str::to_owned),
            device,
            limit: None,
            arguments: arguments.iter().map(Into::into).collect(),
        })
    }

    #[test]
    fn softroce_is_measured_against_the_machine() {
        let all = [Part::Limits, Part::LimitsInGuest, Part::Verbs];
        assert_eq!(parts(Target::Softroce, None, &[]), all);
        assert_eq!(parts(Target::Rxe, None, &[]), [Part::Verbs]);
        assert_eq!(parts(Target::Softroce, None, &["--judged"]), [Part::Verbs]);
    }

    #[test]
    fn one_row_is_measured_alone_and_where_it_belongs() {
        let only = |name| parts(Target::Softroce, Some(name), &[]);
        assert_eq!(only("G3"), [Part::Limits]);
        assert_eq!(only("g8a"), [Part::Limits]);
        assert_eq!(only("G1"), [Part::Limits]);
        assert_eq!(only("G11b"), [Part::LimitsInGuest]);
        assert_eq!(only("send_lat_8"), [Part::Verbs]);
        assert!(parts(Target::Rxe, Some("G3"), &[]).is_empty());
    }

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
