//! Runs a test program with a time limit, and determines its outcome.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs::File;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::{Command, ExitStatus, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};

use super::libtest::{Counts, Results, listed};
use crate::environment;
use crate::limit::ProcessGroup;

/// Maximum wait for the end of a test program's output, after the program has ended and its
/// children were killed. If the output is still open after this time, the program counts as failed.
const DRAIN_LIMIT: Duration = Duration::from_secs(10);

/// Time limit for listing the tests of a program. Listing does not run tests.
const LIST_LIMIT: Duration = Duration::from_secs(60);

/// A test program, whose output has the format of libtest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Program {
    /// The names of the package and of the cargo target, separated by a space.
    pub(crate) name: String,
    /// Path and arguments of the program.
    pub(crate) command: Vec<OsString>,
    /// Working directory of the program.
    pub(crate) directory: PathBuf,
    /// Environment variables in addition to the inherited variables.
    pub(crate) environment: Vec<(OsString, OsString)>,
    /// Time limit of the program.
    pub(crate) limit: Duration,
}

/// The outcome of running a test program once.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Outcome {
    /// The name of the program in the report, as in [`Program::name`].
    pub(crate) name: String,
    /// Numbers of tests that passed, failed and were ignored. A `problem` counts as one more failed
    /// test.
    pub(crate) counts: Counts,
    /// A failure of the program other than failed tests, such as a crash.
    pub(crate) problem: Option<String>,
    /// Names of the failed tests.
    pub(crate) failed: Vec<String>,
    /// Reasons of ignored tests, each with the number of tests that it applies to.
    pub(crate) ignored: BTreeMap<String, u64>,
    /// Duration of the program's run in seconds.
    pub(crate) seconds: f64,
}

impl Outcome {
    /// Creates the outcome of the test program `name`, which failed without reporting results. The
    /// program ran for `seconds`. `problem` is the reason for the failure.
    pub(crate) fn failed(name: &str, problem: impl Into<String>, seconds: f64) -> Self {
        let counts = Counts {
            failed: 1,
            ..Counts::default()
        };
        Self {
            name: name.to_owned(),
            counts,
            problem: Some(problem.into()),
            failed: Vec::new(),
            ignored: BTreeMap::new(),
            seconds,
        }
    }

    /// Returns the names of the package and of the cargo target of the test program. [`Self::name`]
    /// contains both, separated by a space.
    pub(crate) fn package_and_program(&self) -> (&str, &str) {
        self.name.split_once(' ').unwrap_or(("", &self.name))
    }

    /// Returns this outcome as one line of text, without the name of the program. The line is
    /// printed when the program has ended.
    pub(crate) fn summary(&self) -> String {
        let Counts {
            passed,
            failed,
            ignored,
        } = self.counts;
        let mut words = format!("{passed} passed");
        if failed > 0 {
            words += &format!(", {failed} FAILED");
        }
        if ignored > 0 {
            words += &format!(", {ignored} ignored");
        }
        if let Some(problem) = &self.problem {
            words += &format!(" ({problem})");
        }
        format!("{words:32} {:6.1} s", self.seconds)
    }
}

impl Program {
    /// Runs the program to its end or its time limit, and returns its outcome. Everything that the
    /// program prints goes to `log`.
    pub(crate) fn run(&self, log: File) -> Outcome {
        let begin = Instant::now();
        let (ended, results) = match self.observe(log) {
            Ok(observed) => observed,
            Err(error) => return Outcome::failed(&self.name, format!("{error:#}"), 0.0),
        };
        let seconds = begin.elapsed().as_secs_f64();
        judge(&self.name, ended, results, seconds)
    }

    /// Returns whether the program has a test that its arguments select. Runs the program to list
    /// these tests, but runs none of them.
    pub(crate) fn has_selected_tests(&self) -> anyhow::Result<bool> {
        let mut command = self.prepare()?;
        command.arg("--list").stderr(Stdio::null());
        let mut group =
            ProcessGroup::spawn(&mut command).with_context(|| format!("starting {}", self.name))?;
        let mut stdout = group.child().stdout.take().context("no pipe")?;
        let reader = thread::spawn(move || {
            let mut text = String::new();
            stdout.read_to_string(&mut text).map(|_| text)
        });
        let ended = group.wait(Some(LIST_LIMIT))?;
        ensure!(
            ended.is_some_and(|status| status.success()),
            "{} does not list its tests",
            self.name
        );
        let text = reader.join().ok().context("the reader panicked")??;
        Ok(listed(&text).next().is_some())
    }

    /// Returns the command that starts this test program, to run or to list its tests. Standard
    /// output is a pipe, from which xtask reads.
    fn prepare(&self) -> anyhow::Result<Command> {
        let (file, arguments) = self.command.split_first().context("no command")?;
        let mut command = Command::new(file);
        command
            .args(arguments)
            .current_dir(&self.directory)
            .env_clear()
            .envs(environment::inherited())
            .envs(self.environment.iter().map(|(name, value)| (name, value)))
            .stdin(Stdio::null())
            .stdout(Stdio::piped());
        Ok(command)
    }

    /// Runs the program, and writes its output to the file `log`. Returns its exit status and its
    /// results. The exit status is `None` if the program was killed at its time limit. The results
    /// are `None` if the output was still open after [`DRAIN_LIMIT`].
    fn observe(&self, log: File) -> anyhow::Result<(Option<ExitStatus>, Option<Results>)> {
        let mut command = self.prepare()?;
        // Standard error goes directly to the log: in the pipe, it could split the lines with
        // results.
        command.stderr(log.try_clone()?);
        let mut group =
            ProcessGroup::spawn(&mut command).with_context(|| format!("starting {}", self.name))?;
        let stdout = group.child().stdout.take().context("no pipe")?;
        let reader = thread::spawn(move || read_results(stdout, log));
        let ended = group.wait(Some(self.limit))?;
        let end = Instant::now() + DRAIN_LIMIT;
        while !reader.is_finished() && Instant::now() < end {
            thread::sleep(Duration::from_millis(1));
        }
        let results = if reader.is_finished() {
            reader.join().ok()
        } else {
            None
        };
        Ok((ended, results))
    }
}

/// Copies the lines of `from`, the output of a test program, to the file `log`. Returns the results
/// of the tests that the lines report.
fn read_results(from: impl Read, mut log: File) -> Results {
    let mut results = Results::default();
    let mut from = BufReader::new(from);
    let mut line = Vec::new();
    while from
        .read_until(b'\n', &mut line)
        .is_ok_and(|count| count > 0)
    {
        // The results must be read even if the disk is full.
        let _ = log.write_all(&line);
        results.read(&String::from_utf8_lossy(&line));
        line.clear();
    }
    results.complete();
    results
}

fn judge(name: &str, ended: Option<ExitStatus>, results: Option<Results>, seconds: f64) -> Outcome {
    let results = results.unwrap_or_default();
    let problem = match (ended, results.counts) {
        (None, _) => Some("stopped at its time limit".to_owned()),
        (Some(status), _) if status.signal().is_some() => Some(format!("died: {status}")),
        (Some(status), None) => Some(format!("no closing line; {status}")),
        (Some(status), Some(counts)) if counts.failed == 0 && !status.success() => {
            Some(format!("no test failed, but {status}"))
        }
        (Some(_), Some(_)) => None,
    };
    let mut counts = results.counts.unwrap_or_default();
    counts.failed += u64::from(problem.is_some());
    Outcome {
        name: name.to_owned(),
        counts,
        problem,
        failed: results.failed,
        ignored: results.ignored,
        seconds,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OK: &str = "test result: ok. 2 passed; 0 failed; 1 ignored; 0 measured; 0 filtered out";

    /// Runs the shell script `script` as a test program, and returns the outcome. The script must
    /// end before the time limit, which is long enough for slow machines.
    fn outcome(script: &str) -> Outcome {
        outcome_within(Duration::from_secs(60), script)
    }

    fn outcome_within(limit: Duration, script: &str) -> Outcome {
        let program = Program {
            name: "p".into(),
            command: ["sh", "-c", script].map(OsString::from).to_vec(),
            directory: "/".into(),
            environment: vec![("OK".into(), OK.into())],
            limit,
        };
        program.run(sink())
    }

    fn sink() -> File {
        File::options().append(true).open("/dev/null").unwrap()
    }

    #[test]
    fn closing_lines_are_summed() {
        let outcome = outcome("echo $OK; echo $OK");
        assert_eq!(
            outcome.counts,
            Counts {
                passed: 4,
                failed: 0,
                ignored: 2
            }
        );
        assert_eq!(outcome.problem, None);
    }

    #[test]
    fn failures_are_read_beside_words_on_standard_error() {
        let outcome = outcome(
            "printf 'test a ... '; printf 'words' >&2; echo 'FAILED'; \
             echo 'test result: FAILED. 0 passed; 1 failed; 0 ignored; 0 measured'; exit 101",
        );
        assert_eq!(outcome.failed, ["a"]);
        assert_eq!(outcome.problem, None);
    }

    #[test]
    fn a_program_lists_its_selected_tests() {
        let program = |script: &str| Program {
            name: "p".into(),
            command: ["sh", "-c", script].map(OsString::from).to_vec(),
            directory: "/".into(),
            environment: Vec::new(),
            limit: Duration::from_secs(60),
        };
        let lists = |script| program(script).has_selected_tests();
        assert!(lists("echo 'a: test'").unwrap());
        assert!(!lists("echo; echo '0 tests, 0 benchmarks'").unwrap());
        assert!(lists("exit 1").is_err());
    }

    #[test]
    fn a_program_without_a_clean_end_has_failed() {
        for (script, problem) in [
            ("true", "no closing line"),
            ("echo $OK; exit 3", "no test failed, but exit status: 3"),
            ("echo $OK; kill -SEGV $$", "died: signal: 11"),
        ] {
            assert_failed(&outcome(script), problem);
        }
        let hung = outcome_within(Duration::from_millis(500), "echo $OK; sleep 600");
        assert_failed(&hung, "stopped at its time limit");
    }

    #[track_caller]
    fn assert_failed(outcome: &Outcome, problem: &str) {
        assert_eq!(outcome.counts.failed, 1, "{outcome:?}");
        let told = outcome.problem.as_ref();
        assert!(
            told.is_some_and(|told| told.contains(problem)),
            "{outcome:?}"
        );
    }

    #[test]
    fn a_missing_program_has_failed() {
        let program = Program {
            name: "p".into(),
            command: vec!["/nonexistent/program".into()],
            directory: "/".into(),
            environment: Vec::new(),
            limit: Duration::from_secs(1),
        };
        assert_eq!(program.run(sink()).counts.failed, 1);
    }
}
