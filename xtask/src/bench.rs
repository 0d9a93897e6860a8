//! `cargo xtask bench`: runs the workspace's benchmarks on a device.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, SystemTime};
use std::{fs, io};

use anyhow::{Context, bail, ensure};
use xshell::Shell;

use crate::cargo::{self, Executable, Kind};
use crate::rxe::{self, Requirements};
use crate::test::Target;
use crate::{environment, packages, project, softroce};

/// The name of the package that contains the benchmarks.
const PACKAGE: &str = "rdma-bench";
/// The name of the benchmark that prints the results of all layers (rdma-core, rdma-async,
/// rdma-rpc) as one table, without goals.
const OVERVIEW: &str = "overview";
/// The name of the benchmark that compares rdma-core with perftest.
const VERBS: &str = "verbs";
/// The name of the benchmark that compares softroce with copies, system calls, sockets and other
/// programs on the same machine, and checks that the results meet their goals.
const LIMITS: &str = "limits";
/// The name of the kernel's Soft-RoCE device in the virtual machine. The benchmark [`LIMITS`]
/// compares softroce with this device.
const KERNEL_DEVICE: &str = "rxe_0";
/// The name of a processor feature that the virtual machine must not offer: an instruction for
/// checksums. A kernel that finds this feature uses the instruction, which is slow under emulation.
/// Without the feature, the kernel uses a table, which is faster there.
const SLOW_WHEN_EMULATED: &str = "pclmulqdq";

/// The name of the environment variable that contains the path of the program `attacker`. The
/// program sends forged packets to softroce. The benchmark [`LIMITS`] reads the variable and starts
/// the program.
const ATTACKER: &str = "RDMA_BENCH_ATTACKER";

/// The name of the environment variable that contains the path of the program `rdma-bench-peers`.
/// The program measures other RPC frameworks. The benchmark [`LIMITS`] reads the variable and
/// starts the program.
const PEERS: &str = "RDMA_BENCH_PEERS";
/// The path of the manifest (`Cargo.toml`) of the program that measures other RPC frameworks. The
/// program is in a workspace of its own.
const PEERS_MANIFEST: &str = "rdma-bench/peers/Cargo.toml";

/// The name of the environment variable that contains the directory of rdma-async's built example
/// programs. The benchmark [`LIMITS`] reads the variable and runs the programs.
const EXAMPLES: &str = "RDMA_BENCH_EXAMPLES";
/// The name of the environment variable that contains the path of a program. The program measures
/// web servers over streams of rdma-async. The benchmark [`LIMITS`] reads the variable and starts
/// the program.
const WEB: &str = "RDMA_BENCH_WEB";
/// The path of the manifest (`Cargo.toml`) of the program that measures web servers. The program is
/// in a workspace of its own.
const WEB_MANIFEST: &str = "rdma-async/interop/Cargo.toml";

/// The options of `cargo xtask bench`, which runs the workspace's benchmarks on an RDMA device.
#[derive(Debug)]
pub(crate) struct Options {
    /// Set for short runs in which no goal is judged. Without `only`, only the overview runs.
    pub(crate) quick: bool,
    /// The name of a comparison of the benchmark [`LIMITS`], the name of a goal with all its
    /// comparisons, or a text that the names of perftest's tests must contain.
    pub(crate) only: Option<String>,
    /// The RDMA device to measure.
    pub(crate) device: Target,
    /// Time limit of each program, or `None` for no limit.
    pub(crate) limit: Option<Duration>,
    /// Arguments for the benchmark that compares rdma-core with perftest. If there are any, only
    /// this benchmark runs.
    pub(crate) arguments: Vec<OsString>,
}

impl Options {
    /// Returns whether the options select comparisons of rdma-rpc with other RPC frameworks. The
    /// names of these comparisons are F1, F2 and so on, and J7. The program that measures the other
    /// frameworks must then be built.
    fn compares_frameworks(&self) -> bool {
        let only = self.only.as_deref().unwrap_or_default();
        self.includes_rows(['F', 'f'])
            || ["J", "J7"].iter().any(|row| row.eq_ignore_ascii_case(only))
    }

    /// Returns whether the options select comparisons of rdma-async, whose names are E1, E2 and so
    /// on. These comparisons need the examples of rdma-async and the program that measures web
    /// servers.
    fn measures_streams(&self) -> bool {
        self.includes_rows(['E', 'e'])
    }

    fn includes_rows(&self, letters: [char; 2]) -> bool {
        match &self.only {
            None => !self.quick && self.arguments.is_empty(),
            Some(name) => is_row(name) && name.starts_with(letters),
        }
    }
}

/// Builds all benchmarks, and runs the parts that `options` select, each on the machine that has
/// its device: this machine or the virtual machine. The results are written below the target
/// directory. Returns the first exit status that is not 0, else 0.
pub(crate) fn run(shell: &Shell, options: Options) -> anyhow::Result<u8> {
    packages::install(shell, packages::BUILD)?;
    if let Err(error) = packages::install(shell, packages::PERFTEST) {
        eprintln!("perftest is left out: {error:#}");
    }
    let mut build = vec!["bench", "--package", PACKAGE, "--no-run"];
    let mut preload = Vec::new();
    if options.device == Target::Softroce {
        // All programs preload the same library of softroce, so that they measure the same code.
        build.push("--no-default-features");
        preload = softroce::environment(shell)?;
        preload.push((ATTACKER.into(), build_attacker()?.into()));
        if options.compares_frameworks() {
            match build_peers(shell) {
                Ok(path) => preload.push((PEERS.into(), path.into())),
                Err(error) => eprintln!("other RPC frameworks are left out: {error:#}"),
            }
        }
        if options.measures_streams() {
            preload.push((EXAMPLES.into(), build_examples()?.into()));
            match build_web() {
                Ok(path) => preload.push((WEB.into(), path.into())),
                Err(error) => eprintln!("web servers are left out: {error:#}"),
            }
        }
    }
    let results = project::target().join(PACKAGE);
    fs::create_dir_all(&results)?;
    let bench = Bench {
        shell,
        built: cargo::build(&build)?,
        preload,
        results,
        options: &options,
    };
    let begin = SystemTime::now();
    let mut status = 0;
    let parts = Part::selected(&options, |name| bench.parts_of_rows(name))?;
    for part in parts {
        let ended = match part {
            Part::Limits => bench.limits(),
            Part::LimitsInGuest => bench.limits_in_guest(),
            // The goals of softroce are those of the benchmark [`LIMITS`], some of which are
            // relative to perftest.
            Part::Verbs if options.device == Target::Softroce && options.arguments.is_empty() => {
                bench.on_device(VERBS, vec!["--unjudged".into()])
            }
            Part::Verbs => bench.on_device(VERBS, options.arguments.clone()),
            Part::Overview => bench.on_device(OVERVIEW, Vec::new()),
        };
        let ended = ended.unwrap_or_else(|error| {
            // Continues after a failure, because the other benchmarks may succeed.
            eprintln!("{part:?}: {error:#}");
            1
        });
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

/// Builds the program `attacker`, which sends forged packets to softroce, and returns its path.
fn build_attacker() -> anyhow::Result<PathBuf> {
    let build = [
        "build",
        "--release",
        "--package=softroce",
        "--example=attacker",
    ];
    let built = cargo::build(&build)?;
    let attacker = built.into_iter().find(|built| built.target == "attacker");
    Ok(attacker.context("cargo built no example `attacker`")?.path)
}

/// Builds the example programs of rdma-async that the benchmark [`LIMITS`] measures, and returns
/// their directory.
fn build_examples() -> anyhow::Result<PathBuf> {
    let build = [
        "build",
        "--release",
        "--package=rdma-async",
        "--example=key_value",
        "--example=rdma_cp",
        "--example=ring_all_reduce",
    ];
    let built = cargo::build(&build)?;
    let copier = built.into_iter().find(|built| built.target == "rdma_cp");
    let mut path = copier.context("cargo built no example `rdma_cp`")?.path;
    path.pop();
    Ok(path)
}

/// Builds the program that measures other RPC frameworks, with which the benchmark [`LIMITS`]
/// compares rdma-rpc. Returns the path of the program.
fn build_peers(shell: &Shell) -> anyhow::Result<PathBuf> {
    packages::install(shell, packages::PEERS)?;
    build_nested(PEERS_MANIFEST, "peers")
}

/// Builds the program that measures web servers over streams of rdma-async and over TCP for the
/// benchmark [`LIMITS`], and returns the path of the program.
fn build_web() -> anyhow::Result<PathBuf> {
    build_nested(WEB_MANIFEST, "interop")
}

/// Builds the program of a package that is in a workspace of its own, and returns the path of the
/// program. `manifest` is the path of the package's `Cargo.toml`, and `directory` is the name of
/// the build directory.
fn build_nested(manifest: &str, directory: &str) -> anyhow::Result<PathBuf> {
    let directory = project::target().join(directory);
    let build = [
        "build",
        "--release",
        "--locked",
        "--bins",
        "--manifest-path",
        manifest,
        "--target-dir",
        directory
            .to_str()
            .context("the target directory is not UTF-8")?,
    ];
    let built = cargo::build(&build)?;
    let program = built.into_iter().find(|built| built.kind == Kind::Program);
    let program = program.with_context(|| format!("cargo built no program of {manifest}"))?;
    Ok(program.path)
}

/// A part of the benchmarks that can be run without the others. The options of `cargo xtask bench`
/// select the parts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Part {
    /// The comparisons of the benchmark [`LIMITS`] that are measured on this machine.
    Limits,
    /// The comparisons of the benchmark [`LIMITS`] that are measured in the virtual machine.
    LimitsInGuest,
    /// The comparison of rdma-core with perftest.
    Verbs,
    /// The table with the results of every layer.
    Overview,
}

impl Part {
    /// Returns the parts of the benchmarks, such as the overview table, that the options select. If
    /// the options name comparisons of the benchmark [`LIMITS`], such as `F1`, calls `of_rows` with
    /// this name. `of_rows` must return the parts that measure these comparisons: [`Self::Limits`],
    /// [`Self::LimitsInGuest`] or both.
    fn selected(
        options: &Options,
        of_rows: impl FnOnce(&str) -> anyhow::Result<Vec<Self>>,
    ) -> anyhow::Result<Vec<Self>> {
        if !options.arguments.is_empty() {
            return Ok(vec![Self::Verbs]);
        }
        let is_softroce = options.device == Target::Softroce;
        match options.only.as_deref() {
            None if options.quick => Ok(vec![Self::Overview]),
            Some(name) if is_row(name) => {
                ensure!(
                    is_softroce,
                    "{name} is a row of the judge, which needs `--device softroce`"
                );
                of_rows(name)
            }
            None if is_softroce => Ok(vec![Self::Limits, Self::LimitsInGuest, Self::Verbs]),
            _ => Ok(vec![Self::Verbs]),
        }
    }

    /// Returns the parts that measure the comparisons in `listing`: [`Self::Limits`] for
    /// comparisons on this machine, and [`Self::LimitsInGuest`] for comparisons in the virtual
    /// machine. Each line of `listing` has the name of a comparison, and `host` or `guest` for the
    /// machine. The benchmark [`LIMITS`] prints such a list.
    fn from_listing(listing: &str) -> anyhow::Result<Vec<Self>> {
        let mut parts = Vec::new();
        for line in listing.lines() {
            let part = match line.split_whitespace().nth(1) {
                Some("host") => Self::Limits,
                Some("guest") => Self::LimitsInGuest,
                _ => bail!("the list has a comparison without a machine: {line}"),
            };
            if !parts.contains(&part) {
                parts.push(part);
            }
        }
        Ok(parts)
    }
}

/// Returns whether `name` has the form of a name that the benchmark [`LIMITS`] accepts. Such a name
/// selects a comparison (`G8a`), all comparisons of a goal (`G8`), or all goals of a letter (`G`).
fn is_row(name: &str) -> bool {
    let Some(rest) = name.strip_prefix(|c: char| c.is_ascii_alphabetic()) else {
        return false;
    };
    let suffix = rest.trim_start_matches(|c: char| c.is_ascii_digit());
    let has_number = suffix.len() < rest.len();
    rest.is_empty() || has_number && suffix.chars().all(|c| c.is_ascii_alphabetic())
}

/// The built benchmarks, with the environment and the options for running them, and the directory
/// for their results.
struct Bench<'b> {
    shell: &'b Shell,
    built: Vec<Executable>,
    /// The environment variables that make a program preload softroce.
    preload: Vec<(OsString, OsString)>,
    results: PathBuf,
    options: &'b Options,
}

impl Bench<'_> {
    /// Runs the benchmark [`LIMITS`], which compares the crates of this workspace with copies,
    /// sockets and other programs, on this machine and softroce. Leaves out the comparisons that
    /// [`Self::limits_in_guest`] measures in the virtual machine. Returns the exit status of the
    /// benchmark.
    fn limits(&self) -> anyhow::Result<u8> {
        if let Err(error) = packages::install(self.shell, packages::UCX) {
            eprintln!("UCX is left out: {error:#}");
        }
        let benchmark = self.benchmark(LIMITS)?;
        let command = self.command(benchmark);
        let requirements = self.requirements(benchmark, Requirements::default());
        rxe::run_here(environment::SOFTROCE, &requirements, &command)
    }

    /// Runs the comparisons of softroce with the kernel's Soft-RoCE device, in the virtual machine,
    /// which has such a device. The comparisons are a part of the benchmark [`LIMITS`]. Returns the
    /// exit status of the benchmark.
    fn limits_in_guest(&self) -> anyhow::Result<u8> {
        let benchmark = self.benchmark(LIMITS)?;
        let mut command = self.command(benchmark);
        command.extend(["--kernel", KERNEL_DEVICE].map(OsString::from));
        let guest = Requirements {
            guest: true,
            without: vec![SLOW_WHEN_EMULATED],
            ..Requirements::default()
        };
        rxe::run(self.shell, &self.requirements(benchmark, guest), command)
    }

    /// Runs the benchmark with the name `target` with `arguments` on the machine that has the
    /// device: this machine or the virtual machine. Returns the exit status of the benchmark.
    fn on_device(&self, target: &str, arguments: Vec<OsString>) -> anyhow::Result<u8> {
        let benchmark = self.benchmark(target)?;
        let mut command = self.command(benchmark);
        command.extend(arguments);
        match self.options.device.requirements() {
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

    /// Returns the parts of the benchmarks that measure the comparisons called `name`. Takes the
    /// parts from the list of all comparisons, which the built benchmark [`LIMITS`] prints.
    fn parts_of_rows(&self, name: &str) -> anyhow::Result<Vec<Part>> {
        let benchmark = self.benchmark(LIMITS)?;
        let listed = Command::new(&benchmark.path)
            .args(["--list", "--only", name])
            .envs(cargo::environment_of(benchmark, &self.built))
            .stdin(Stdio::null())
            .output()
            .with_context(|| format!("starting {}", benchmark.path.display()))?;
        let complaint = String::from_utf8_lossy(&listed.stderr);
        ensure!(listed.status.success(), "{}", complaint.trim());
        Part::from_listing(&String::from_utf8_lossy(&listed.stdout))
    }

    fn benchmark(&self, target: &str) -> anyhow::Result<&Executable> {
        let mut built = self.built.iter();
        built
            .find(|executable| executable.kind == Kind::Benchmark && executable.target == target)
            .with_context(|| format!("{PACKAGE} has no benchmark `{target}`"))
    }

    fn command(&self, benchmark: &Executable) -> Vec<OsString> {
        let effort = if self.options.quick {
            "--quick"
        } else {
            "--full"
        };
        let mut command: Vec<OsString> = vec![benchmark.path.clone().into()];
        command.extend(["--bench", effort, "--json"].map(OsString::from));
        command.push(self.results.clone().into());
        if let Some(name) = &self.options.only {
            command.extend(["--only".into(), name.into()]);
        }
        command
    }

    /// Returns the requirements for running `benchmark`. `device` has the requirements for the
    /// machine and its device. This function adds the time limit, the directories and the
    /// environment variables of the benchmark.
    fn requirements(&self, benchmark: &Executable, device: Requirements) -> Requirements {
        let mut environment = self.preload.clone();
        environment.extend(cargo::environment_of(benchmark, &self.built));
        Requirements {
            limit: self.options.limit,
            shares: vec![self.results.clone()],
            directory: Some(benchmark.package.clone()),
            environment,
            ..device
        }
    }
}

/// Returns whether a file in `directory` was written at the time `begin` or later. If so, a run
/// that began at that time has left results.
fn has_written_since(directory: &Path, begin: SystemTime) -> io::Result<bool> {
    for entry in fs::read_dir(directory)? {
        // File systems store times with a coarser resolution than the clock's.
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

    use super::{Options, Part, Target, has_written_since, is_row};

    /// Returns the parts of the benchmarks, such as the overview table, that [`Part::selected`]
    /// chooses for the options `device`, `only` and `arguments`. `listing` replaces the list of
    /// comparisons that the benchmark [`LIMITS`] would print, so that the test runs no benchmark.
    fn parts(
        device: Target,
        (only, listing): (Option<&str>, &str),
        arguments: &[&str],
    ) -> anyhow::Result<Vec<Part>> {
        let options = Options {
            quick: false,
            only: only.map(str::to_owned),
            device,
            limit: None,
            arguments: arguments.iter().map(Into::into).collect(),
        };
        Part::selected(&options, |name| {
            assert_eq!(Some(name), only);
            Part::from_listing(listing)
        })
    }

    #[test]
    fn softroce_is_measured_against_the_machine() {
        let all = |device, arguments: &[&str]| parts(device, (None, ""), arguments).unwrap();
        let every = [Part::Limits, Part::LimitsInGuest, Part::Verbs];
        assert_eq!(all(Target::Softroce, &[]), every);
        assert_eq!(all(Target::Rxe, &[]), [Part::Verbs]);
        assert_eq!(all(Target::Softroce, &["--judged"]), [Part::Verbs]);
    }

    #[test]
    fn quick_is_one_table_unless_a_row_is_named() {
        let wanted = |only: Option<&str>| {
            let options = Options {
                quick: true,
                only: only.map(str::to_owned),
                device: Target::Softroce,
                limit: None,
                arguments: Vec::new(),
            };
            Part::selected(&options, |_| Ok(vec![Part::Limits])).unwrap()
        };
        assert_eq!(wanted(None), [Part::Overview]);
        assert_eq!(wanted(Some("G3")), [Part::Limits]);
        assert_eq!(wanted(Some("send_lat_8")), [Part::Verbs]);
    }

    #[test]
    fn other_frameworks_are_built_for_the_rows_that_need_them() {
        let compares = |quick, only: Option<&str>| {
            let options = Options {
                quick,
                only: only.map(str::to_owned),
                device: Target::Softroce,
                limit: None,
                arguments: Vec::new(),
            };
            options.compares_frameworks()
        };
        assert!(compares(false, None) && compares(true, Some("F2")) && compares(true, Some("f")));
        assert!(!compares(true, None) && !compares(false, Some("G7")));
        assert!(!compares(false, Some("fetch")));
    }

    #[test]
    fn rows_are_measured_where_they_belong() {
        let host = "G3    host   write_lat 8 B\nG5    host   ib_send_lat\n";
        let guest = "G11b  guest  ib_write_bw 64 KiB\n";
        let only = |name, listing| parts(Target::Softroce, (Some(name), listing), &[]);
        assert_eq!(only("G3", host).unwrap(), [Part::Limits]);
        assert_eq!(only("G11b", guest).unwrap(), [Part::LimitsInGuest]);
        let all = [host, guest].concat();
        let both = [Part::Limits, Part::LimitsInGuest];
        assert_eq!(only("G", &all).unwrap(), both);
        assert!(only("G3", "G3 elsewhere").is_err());
        assert_eq!(only("send_lat_8", "").unwrap(), [Part::Verbs]);
        let refused = parts(Target::Rxe, (Some("E3"), host), &[]).unwrap_err();
        assert!(
            refused.to_string().contains("--device softroce"),
            "{refused}"
        );
    }

    #[test]
    fn rows_have_a_letter_a_number_and_perhaps_a_suffix() {
        for name in ["G", "e", "G13", "g8a", "E3", "X9", "G12ab"] {
            assert!(is_row(name), "{name}");
        }
        for name in ["", "8", "send", "send_lat_8", "GG1", "G8_", "8a", "bw"] {
            assert!(!is_row(name), "{name}");
        }
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
