//! `cargo xtask fuzz`: runs libFuzzer on the targets of softroce and of rdma-rpc. The packages of
//! these targets have the layout of `cargo fuzz`, but need neither that tool nor a nightly
//! compiler.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;
use std::{fs, str};

use anyhow::{Context, bail, ensure};
use xshell::Shell;

use crate::cargo::{self, Executable};
use crate::limit::{ProcessGroup, TIMED_OUT, exit_code};
use crate::{environment, packages, project};

/// The directories of the packages with fuzz targets, relative to the root of the workspace. Two
/// packages must not have a target of the same name.
const PACKAGES: [&str; 2] = ["ibverbs-sys/softroce/fuzz", "rdma-rpc/fuzz"];

/// A map from the name of each fuzz target to the directory of its package.
type Targets = BTreeMap<String, &'static str>;

/// The compiler flags for fuzzing: coverage and comparison counters, which guide libFuzzer, and
/// checks of every memory access.
const FLAGS: &[&str] = &[
    "--cfg=fuzzing",
    "-Ccodegen-units=1",
    "-Cpasses=sancov-module",
    "-Cllvm-args=-sanitizer-coverage-level=4",
    "-Cllvm-args=-sanitizer-coverage-inline-8bit-counters",
    "-Cllvm-args=-sanitizer-coverage-pc-table",
    "-Cllvm-args=-sanitizer-coverage-trace-compares",
    "-Cllvm-args=-simplifycfg-branch-fold-threshold=0",
    "-Zsanitizer=address",
];

/// Maximum time that the target may take for a single input, in seconds. libFuzzer reports an input
/// that takes longer as a failure.
const INPUT_SECONDS: u64 = 10;

/// Time for which a fuzzer may run beyond the requested time before it is killed as hung. A fuzzer
/// checks the clock only between inputs, so it always ends a little late.
const MAX_OVERRUN: Duration = Duration::from_secs(120);

/// The options of `cargo xtask fuzz`.
#[derive(Debug)]
pub(crate) struct Options {
    /// The names of the targets to run. Empty for all targets.
    pub(crate) targets: Vec<String>,
    /// Time to fuzz each target.
    pub(crate) time: Duration,
    /// An input on which the one chosen target runs once, instead of being fuzzed.
    pub(crate) replay: Option<PathBuf>,
    /// Set to add inputs that reach new code to the checked-in corpus.
    pub(crate) keep: bool,
}

/// Fuzzes all targets, each for an equal part of `time`. The time for building the targets is not
/// included. Returns the exit status of the first target that failed, else 0.
pub(crate) fn run_for(shell: &Shell, time: Duration) -> anyhow::Result<u8> {
    let count = targets()?.len();
    let options = Options {
        targets: Vec::new(),
        // libFuzzer takes whole seconds, and treats 0 as no limit.
        time: Duration::from_secs((time.as_secs() / count as u64).max(1)),
        replay: None,
        keep: false,
    };
    run(shell, &options)
}

/// Builds the chosen fuzz targets and runs them one after the other. Returns the exit status of the
/// first target that failed, else 0.
pub(crate) fn run(shell: &Shell, options: &Options) -> anyhow::Result<u8> {
    let targets = chosen(targets()?, &options.targets)?;
    if options.replay.is_some() {
        ensure!(targets.len() == 1, "--replay needs one --target");
    }
    packages::install(shell, packages::BUILD)?;
    let built = build(shell, &targets)?;

    let mut failure = 0;
    for (target, package) in &targets {
        let executable = built
            .iter()
            .find(|executable| executable.target == *target)
            .with_context(|| format!("{package}/Cargo.toml has no [[bin]] `{target}`"))?;
        let fuzzer = Fuzzer::new(target, &project::root().join(package), &executable.path)?;
        let status = match &options.replay {
            Some(input) => fuzzer.replay(input)?,
            None => fuzzer.fuzz(options.time)?,
        };
        if status == 0 && options.keep && options.replay.is_none() {
            fuzzer.keep()?;
        }
        if failure == 0 {
            failure = status;
        }
    }
    Ok(failure)
}

/// Returns all fuzz targets of the workspace, found in the directories of [`PACKAGES`].
fn targets() -> anyhow::Result<Targets> {
    let mut targets = Targets::new();
    for package in PACKAGES {
        let directory = project::root().join(package).join("fuzz_targets");
        for entry in fs::read_dir(&directory).with_context(|| directory.display().to_string())? {
            let path = entry?.path();
            if path.extension().is_some_and(|extension| extension == "rs") {
                let stem = path.file_stem();
                targets.extend(stem.map(|stem| (stem.to_string_lossy().into_owned(), package)));
            }
        }
    }
    Ok(targets)
}

/// Returns the fuzz targets named by `names`, or all targets if `names` is empty. Fails if a name
/// is unknown.
fn chosen(mut all: Targets, names: &[String]) -> anyhow::Result<Targets> {
    if let Some(unknown) = names.iter().find(|name| !all.contains_key(*name)) {
        let names: Vec<_> = all.keys().map(String::as_str).collect();
        bail!("no fuzz target `{unknown}`; there are: {}", names.join(" "));
    }
    all.retain(|name, _| names.is_empty() || names.contains(name));
    Ok(all)
}

/// Builds the fuzz targets `targets`, package by package, and returns their executables.
fn build(shell: &Shell, targets: &Targets) -> anyhow::Result<Vec<Executable>> {
    let mut built = Vec::new();
    for package in PACKAGES {
        let mut names = targets.iter().filter(|(_, of)| **of == package).peekable();
        if names.peek().is_some() {
            built.extend(build_package(shell, package, names.map(|(name, _)| name))?);
        }
    }
    Ok(built)
}

fn build_package<'a>(
    shell: &Shell,
    package: &str,
    targets: impl Iterator<Item = &'a String>,
) -> anyhow::Result<Vec<Executable>> {
    let host = cargo::host_triple(shell)?;
    let manifest = project::root().join(package).join("Cargo.toml");
    let manifest = manifest.to_str().context("a path is not UTF-8")?;
    let directory = directory();
    let directory = directory.to_str().context("a path is not UTF-8")?;
    // The target triple is named, although it is this machine's, so that cargo builds build scripts
    // without these flags.
    let mut arguments = vec![
        "build",
        "--release",
        "--manifest-path",
        manifest,
        "--target",
        &host,
    ];
    arguments.extend(["--target-dir", directory]);
    for target in targets {
        arguments.extend(["--bin", target]);
    }
    let flags = FLAGS.join(" ");
    // The sanitizer's option is not stable, but its runtime comes with every compiler.
    cargo::build_with(
        &arguments,
        &[("RUSTFLAGS", &flags), ("RUSTC_BOOTSTRAP", "1")],
    )
}

/// Returns the directory for files of the fuzzers that are not checked in: executables, found
/// inputs and failing inputs.
fn directory() -> PathBuf {
    project::target().join("fuzz")
}

/// A built fuzz target, with its directories for inputs.
struct Fuzzer<'a> {
    target: &'a str,
    executable: &'a Path,
    /// The directory with the checked-in corpus of inputs, which a run only reads.
    corpus: PathBuf,
    /// The directory for inputs that reached new code in earlier runs on this machine.
    found: PathBuf,
    /// The directory for inputs that made the target fail.
    artifacts: PathBuf,
}

impl<'a> Fuzzer<'a> {
    fn new(target: &'a str, package: &Path, executable: &'a Path) -> anyhow::Result<Self> {
        let fuzzer = Self {
            target,
            executable,
            corpus: package.join("corpus").join(target),
            found: directory().join("corpus").join(target),
            artifacts: directory().join("artifacts").join(target),
        };
        ensure!(
            fs::read_dir(&fuzzer.corpus).is_ok_and(|mut files| files.next().is_some()),
            "{} has no seeds",
            fuzzer.corpus.display()
        );
        fs::create_dir_all(&fuzzer.found)?;
        fs::create_dir_all(&fuzzer.artifacts)?;
        Ok(fuzzer)
    }

    fn fuzz(&self, time: Duration) -> anyhow::Result<u8> {
        let mut prefix = OsString::from("-artifact_prefix=");
        prefix.push(self.artifacts.join(""));
        let arguments = [
            format!("-max_total_time={}", time.as_secs()).into(),
            format!("-timeout={INPUT_SECONDS}").into(),
            "-print_final_stats=1".into(),
            "-verbosity=1".into(),
            prefix,
            // libFuzzer writes new inputs to the first directory.
            self.found.clone().into(),
            self.corpus.clone().into(),
        ];
        let before = self.failing()?;
        let status = self.call(&arguments, Some(time + MAX_OVERRUN))?;
        for input in self.failing()?.difference(&before) {
            eprintln!(
                "again: cargo xtask fuzz --target {} --replay {}",
                self.target,
                input.display()
            );
        }
        Ok(status)
    }

    fn replay(&self, input: &Path) -> anyhow::Result<u8> {
        ensure!(input.is_file(), "{} is not a file", input.display());
        self.call(&[input.into()], Some(MAX_OVERRUN))
    }

    fn keep(&self) -> anyhow::Result<()> {
        let arguments = [
            "-merge=1".into(),
            self.corpus.clone().into(),
            self.found.clone().into(),
        ];
        let status = self.call(&arguments, Some(MAX_OVERRUN))?;
        ensure!(
            status == 0,
            "the corpora of {} could not be merged",
            self.target
        );
        Ok(())
    }

    fn failing(&self) -> anyhow::Result<BTreeSet<PathBuf>> {
        let entries = fs::read_dir(&self.artifacts)?;
        Ok(entries
            .map(|entry| entry.map(|entry| entry.path()))
            .collect::<Result<_, _>>()?)
    }

    fn call(&self, arguments: &[OsString], limit: Option<Duration>) -> anyhow::Result<u8> {
        let mut command = Command::new(self.executable);
        command
            .args(arguments)
            .env_clear()
            .envs(environment::inherited())
            .env("RUST_BACKTRACE", "1");
        eprintln!("$ {command:?}");
        let ended = ProcessGroup::spawn(&mut command)?.wait(limit)?;
        Ok(ended.map_or(TIMED_OUT, exit_code))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(names: &[&str]) -> Vec<String> {
        names.iter().map(|&name| name.to_owned()).collect()
    }

    #[test]
    fn every_target_is_built_and_has_seeds() {
        let targets = targets().unwrap();
        for package in PACKAGES {
            assert!(targets.values().any(|of| *of == package), "{package}");
        }
        for (target, package) in targets {
            let package = project::root().join(package);
            let manifest = fs::read_to_string(package.join("Cargo.toml")).unwrap();
            assert!(
                manifest.contains(&format!("name = \"{target}\"")),
                "{target}"
            );
            let seeds = fs::read_dir(package.join("corpus").join(&target)).unwrap();
            assert!(seeds.count() > 0, "{target}");
        }
    }

    #[test]
    fn targets_are_chosen_by_name() {
        let both = names(&["packet", "attributes"]);
        let all: Targets = both.into_iter().map(|name| (name, PACKAGES[0])).collect();
        assert_eq!(chosen(all.clone(), &[]).unwrap(), all);
        let one = chosen(all.clone(), &names(&["packet"])).unwrap();
        assert_eq!(one.into_keys().collect::<Vec<_>>(), ["packet"]);
        let error = chosen(all, &names(&["paket"])).unwrap_err().to_string();
        assert_eq!(
            error,
            "no fuzz target `paket`; there are: attributes packet"
        );
    }
}
