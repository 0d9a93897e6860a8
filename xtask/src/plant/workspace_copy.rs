//! Runs the test of an applied bug, in a copy of the workspace.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::time::Duration;

use anyhow::{Context, bail, ensure};

use super::bug::{Bug, CargoTest, Test};
use super::mirror::mirror;
use crate::limit::{ProcessGroup, exit_code};
use crate::{cargo, environment, project};

/// Names of files and directories that the copy of the workspace leaves out, because the tests do
/// not need them: the git repository and build results.
const LEFT_OUT: &[&str] = &[".git", "target"];

/// Time limit of one run of the simulation. A run that takes longer counts as a detected bug.
const SIMULATION_LIMIT: Duration = Duration::from_secs(1200);

/// Time limit of one test. A test that takes longer counts as a detected bug.
const TEST_LIMIT: Duration = Duration::from_secs(300);

/// Compiler flags that disable all warnings when `cargo xtask plant` builds a copy of the
/// workspace. The command adds a known bug to this copy, to check that the tests detect the bug.
/// The bug can make code unused, which would cause warnings.
const FLAGS: &str = "-Awarnings";

/// The environment variable that gives cargo compiler flags.
const RUSTFLAGS: &str = "RUSTFLAGS";

/// The outcome of a test of code to which a known bug was added: whether the test detected the bug.
pub(super) enum Verdict {
    /// The test failed and so detected the bug. The text is the test's message, or the way it
    /// ended.
    Caught(String),
    /// The test passed and so missed the bug.
    Missed,
}

/// A copy of the workspace, with its build directories. Known bugs are applied to the copy, and
/// tests run in the copy.
pub(super) struct WorkspaceCopy {
    copy: PathBuf,
    build: PathBuf,
    output: PathBuf,
    schedules: String,
}

impl WorkspaceCopy {
    /// Creates the description of a copy of the workspace. Known bugs are later added to this copy,
    /// to check that tests detect them. Copies nothing yet. `schedules` is the number of random
    /// schedules (sequences of events) in a run of the simulation.
    pub(super) fn new(schedules: u64) -> Self {
        let place = project::target().join("planted");
        Self {
            copy: place.join("workspace"),
            build: place.join("build"),
            output: place.join("output"),
            schedules: schedules.to_string(),
        }
    }

    /// Checks that the tests for `bugs` pass while no bug is applied to the code. Runs each test
    /// once.
    pub(super) fn check_tests(&self, bugs: &[Bug]) -> anyhow::Result<()> {
        self.restore()?;
        let mut checked: Vec<&Test> = Vec::new();
        for bug in bugs {
            if checked.contains(&&bug.test) {
                continue;
            }
            if let Verdict::Caught(reason) = self.run(&bug.test)? {
                bail!("a test fails without a bug applied: {}: {reason}", bug.test);
            }
            if let Test::Cargo(_) = bug.test {
                let count = passed(&fs::read_to_string(&self.output)?);
                ensure!(count > 0, "there is no such test: {}", bug.test);
            }
            checked.push(&bug.test);
        }
        Ok(())
    }

    /// Applies `bug` to the copy of the workspace, and runs the test that must detect the bug.
    /// Returns whether the test detected the bug.
    pub(super) fn test_bug(&self, bug: &Bug) -> anyhow::Result<Verdict> {
        self.restore()?;
        bug.apply(&self.copy, false)?;
        self.run(&bug.test)
            .with_context(|| format!("with the bug {}", bug.name))
    }

    /// Makes the copy equal to the workspace, so that the copy has no known bug. Copies each file
    /// that is missing in the copy or differs from the original, and removes files that the
    /// workspace does not have.
    fn restore(&self) -> anyhow::Result<()> {
        mirror(project::root(), &self.copy, LEFT_OUT)
            .with_context(|| format!("copying the workspace to {}", self.copy.display()))
    }

    fn run(&self, test: &Test) -> anyhow::Result<Verdict> {
        match test {
            Test::Simulation => self.simulate(),
            Test::Cargo(test) => self.run_cargo(test),
        }
    }

    /// Builds the copy of the workspace and runs the simulation (softroce's transport on a
    /// simulated network). Returns whether the simulation detected the bug that is applied to the
    /// copy.
    fn simulate(&self) -> anyhow::Result<Verdict> {
        let manifest = self.copy.join("Cargo.toml");
        let arguments = [
            "build",
            "--quiet",
            "--manifest-path",
            utf8(&manifest)?,
            "--target-dir",
            utf8(&self.build)?,
            "--package=softroce",
            "--features=sim",
            "--example=simulate",
        ];
        let built = cargo::build_with(&arguments, &[(RUSTFLAGS, FLAGS)])?;
        let simulate = built
            .iter()
            .find(|executable| executable.target == "simulate")
            .context("cargo built no example `simulate`")?;
        let mut command = Command::new(&simulate.path);
        command
            .args(["--schedules", &self.schedules])
            .env_clear()
            .envs(environment::inherited());
        let Some(status) = self.call(&mut command, SIMULATION_LIMIT)? else {
            return Ok(Verdict::Caught("it does not end".to_owned()));
        };
        if exit_code(status) == 0 {
            return Ok(Verdict::Missed);
        }
        let output = fs::read_to_string(&self.output)?;
        match output.lines().find(|line| line.starts_with("seed ")) {
            Some(line) => Ok(Verdict::Caught(line.to_owned())),
            // The program was aborted: the bug had an effect, but the checks of the simulation did
            // not detect it.
            None => bail!("the simulation ended with {status}, and printed:\n{output}"),
        }
    }

    /// Builds the copy of the workspace and runs `test`. Returns whether the test detected the bug
    /// that is applied to the copy.
    fn run_cargo(&self, test: &CargoTest) -> anyhow::Result<Verdict> {
        let flags = test
            .environment
            .iter()
            .find(|(name, _)| name == RUSTFLAGS)
            .map(|(_, flags)| flags.as_str());
        // A separate build directory: builds with other flags would replace each other's
        // dependencies.
        let build = match flags {
            Some(_) => self.build.with_extension("flags"),
            None => self.build.clone(),
        };
        let flags = format!("{FLAGS} {}", flags.unwrap_or_default());
        let call = |further: &[&str]| {
            let mut arguments = vec!["test"];
            arguments.extend(test.cargo.iter().map(String::as_str));
            arguments.extend(further);
            let mut command = cargo::cargo(&arguments);
            let environment = test.environment.iter();
            command
                .current_dir(&self.copy)
                .env("CARGO_TARGET_DIR", &build)
                .envs(environment.map(|(name, value)| (name, value)))
                .env(RUSTFLAGS, &flags);
            command
        };
        let status = call(&["--quiet", "--no-run"])
            .stdin(Stdio::null())
            .status()
            .context("starting cargo")?;
        ensure!(status.success(), "the build failed");
        let program: Vec<_> = test.program.iter().map(String::as_str).collect();
        let arguments = [&["--quiet", "--"], program.as_slice()].concat();
        let Some(status) = self.call(&mut call(&arguments), TEST_LIMIT)? else {
            let limit = TEST_LIMIT.as_secs();
            return Ok(Verdict::Caught(format!("did not end within {limit} s")));
        };
        if exit_code(status) == 0 {
            return Ok(Verdict::Missed);
        }
        Ok(Verdict::Caught(reason(&fs::read_to_string(&self.output)?)))
    }

    /// Runs `command` and writes its output to the file `self.output`. Returns `None` if the
    /// command was killed at `limit`.
    fn call(&self, command: &mut Command, limit: Duration) -> anyhow::Result<Option<ExitStatus>> {
        let output = File::create(&self.output)
            .with_context(|| format!("creating {}", self.output.display()))?;
        command
            .stdin(Stdio::null())
            .stdout(output.try_clone()?)
            .stderr(output);
        Ok(ProcessGroup::spawn(command)?.wait(Some(limit))?)
    }
}

/// Returns the number of passed tests, according to the summary lines in `output`, the output of
/// `cargo test`.
fn passed(output: &str) -> u64 {
    let counts = output.lines().filter_map(|line| {
        let (_, counts) = line.split_once("test result: ok. ")?;
        counts.split_once(" passed")?.0.parse::<u64>().ok()
    });
    counts.sum()
}

/// Returns the first message of a failed test in `output`, or the last line if there is no message.
fn reason(output: &str) -> String {
    let mut lines = output.lines();
    let panic = lines.by_ref().find(|line| line.contains("panicked at"));
    let line = match panic {
        Some(_) => lines.next(),
        None => output.lines().rfind(|line| !line.trim().is_empty()),
    };
    line.unwrap_or("no message").trim().to_owned()
}

fn utf8(path: &Path) -> anyhow::Result<&str> {
    path.to_str().context("a path is not UTF-8")
}

#[cfg(test)]
mod tests {
    use super::*;

    const FAILED: &str = "\nrunning 1 test\nF\nfailures:\n\n---- a::b stdout ----\n\n\
        thread 'a::b' (7) panicked at tests/a.rs:5:9:\nthe receive was lost\nnote: run with\n\n\
        test result: FAILED. 0 passed; 1 failed; 0 ignored\n";

    #[test]
    fn the_reason_is_the_message_of_the_panic() {
        assert_eq!(reason(FAILED), "the receive was lost");
        assert_eq!(reason("running 1 test\nsignal: 11\n\n"), "signal: 11");
        assert_eq!(reason(""), "no message");
    }

    #[test]
    fn passed_tests_of_all_programs_are_counted() {
        let output = "running 0 tests\ntest result: ok. 0 passed; 0 failed\n\
            running 1 test\n.\ntest result: ok. 1 passed; 0 failed\n";
        assert_eq!(passed(output), 1);
        assert_eq!(passed(FAILED), 0);
    }
}
