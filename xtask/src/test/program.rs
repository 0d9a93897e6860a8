//! One test executable: running it under a limit, and what came of it.

use std::ffi::OsString;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::{Command, ExitStatus, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Context;

use super::libtest::{Counts, closing_line};
use crate::environment;
use crate::limit::Group;

/// How long the output may stay open after the program has ended and its children were killed.
const DRAIN_LIMIT: Duration = Duration::from_secs(10);

/// A program whose output is libtest's.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Program {
    /// What the report calls it.
    pub(crate) name: String,
    /// The file and its arguments.
    pub(crate) command: Vec<OsString>,
    /// Working directory.
    pub(crate) directory: PathBuf,
    /// Variables besides the inherited ones.
    pub(crate) environment: Vec<(OsString, OsString)>,
    /// How long it may run.
    pub(crate) limit: Duration,
}

/// What came of a program.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Outcome {
    /// What the report calls the program.
    pub(crate) name: String,
    /// Its tests. A problem counts as one more failed test.
    pub(crate) counts: Counts,
    /// What went wrong besides failed tests.
    pub(crate) problem: Option<String>,
    /// How long it ran.
    pub(crate) seconds: f64,
}

impl Outcome {
    /// The outcome of a program that came to no proper end.
    pub(crate) fn failed(name: &str, problem: impl Into<String>, seconds: f64) -> Self {
        let counts = Counts {
            failed: 1,
            ..Counts::default()
        };
        Self {
            name: name.to_owned(),
            counts,
            problem: Some(problem.into()),
            seconds,
        }
    }
}

impl Program {
    /// The two words of its name.
    pub(crate) fn package_and_test(&self) -> (&str, &str) {
        self.name.split_once(' ').unwrap_or((&self.name, ""))
    }

    /// Runs the program, with its standard output passed on to `out`.
    pub(crate) fn run(&self, out: impl Write + Send + 'static) -> Outcome {
        let begin = Instant::now();
        let (ended, counts) = match self.observe(out) {
            Ok(observed) => observed,
            Err(error) => return Outcome::failed(&self.name, format!("{error:#}"), 0.0),
        };
        let seconds = begin.elapsed().as_secs_f64();
        let mut outcome = judge(ended, counts);
        outcome.name.clone_from(&self.name);
        outcome.seconds = seconds;
        outcome
    }

    /// How the program ended, `None` for at its limit, and the sum of its closing lines.
    fn observe(
        &self,
        out: impl Write + Send + 'static,
    ) -> anyhow::Result<(Option<ExitStatus>, Option<Counts>)> {
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
        let mut group =
            Group::spawn(&mut command).with_context(|| format!("starting {}", file.display()))?;
        let stdout = group.child().stdout.take().context("no pipe")?;
        let reader = thread::spawn(move || pass_on(stdout, out));
        let ended = group.wait(Some(self.limit))?;
        let end = Instant::now() + DRAIN_LIMIT;
        while !reader.is_finished() && Instant::now() < end {
            thread::sleep(Duration::from_millis(1));
        }
        let counts = if reader.is_finished() {
            reader.join().ok().flatten()
        } else {
            None
        };
        Ok((ended, counts))
    }
}

/// Copies lines and sums the closing ones.
fn pass_on(from: impl Read, mut out: impl Write) -> Option<Counts> {
    let mut total = None;
    let mut from = BufReader::new(from);
    let mut line = Vec::new();
    while from
        .read_until(b'\n', &mut line)
        .is_ok_and(|count| count > 0)
    {
        // Nobody may be reading any more; the counts are still worth having.
        let _ = out.write_all(&line).and_then(|()| out.flush());
        if let Some(counts) = closing_line(&String::from_utf8_lossy(&line)) {
            *total.get_or_insert_default() += counts;
        }
        line.clear();
    }
    total
}

fn judge(ended: Option<ExitStatus>, counts: Option<Counts>) -> Outcome {
    let mut outcome = Outcome {
        name: String::new(),
        counts: counts.unwrap_or_default(),
        problem: None,
        seconds: 0.0,
    };
    outcome.problem = match (ended, counts) {
        (None, _) => Some("stopped at its time limit".to_owned()),
        (Some(status), _) if status.signal().is_some() => Some(format!("died: {status}")),
        (Some(status), None) => Some(format!("no closing line; {status}")),
        (Some(status), Some(counts)) if counts.failed == 0 && !status.success() => {
            Some(format!("no test failed, but {status}"))
        }
        (Some(_), Some(_)) => None,
    };
    if outcome.problem.is_some() {
        outcome.counts.failed += 1;
    }
    outcome
}

#[cfg(test)]
mod tests {
    use std::io;

    use super::*;

    const OK: &str = "test result: ok. 2 passed; 0 failed; 1 ignored; 0 measured; 0 filtered out";

    /// Of a program that ends by itself, however long the machine takes for it.
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
        program.run(io::sink())
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
    fn what_does_not_end_well_has_failed() {
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
        assert_eq!(program.run(io::sink()).counts.failed, 1);
    }
}
