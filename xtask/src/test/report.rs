//! The report at the end of a test run.

use std::collections::BTreeMap;
use std::fmt;

use super::libtest::Counts;
use super::program::Outcome;
use super::selection::DOC_TESTS;

/// The outcomes of all test programs that ran at one place (on the host or on a device).
#[derive(Debug)]
pub(crate) struct PlaceResults {
    /// The name of the place: the host or a device.
    pub(crate) name: String,
    /// The options of `cargo xtask test` that select the place.
    pub(crate) options: String,
    /// The outcomes of the test programs that ran at this place.
    pub(crate) outcomes: Vec<Outcome>,
}

impl PlaceResults {
    /// Returns the numbers of tests that passed, failed and were ignored at this place (the host or
    /// a device), summed over all programs.
    pub(crate) fn total(&self) -> Counts {
        let mut total = Counts::default();
        for outcome in &self.outcomes {
            total += outcome.counts;
        }
        total
    }

    /// Returns whether at least one test at this place (the host or a device) passed or failed,
    /// rather than being ignored.
    pub(crate) fn has_run(&self) -> bool {
        let total = self.total();
        total.passed + total.failed > 0
    }

    /// Returns whether at least one test, even an ignored one, belongs to this place (the host or a
    /// device). If no place has a test, the user selected a test that does not exist.
    pub(crate) fn has_tests(&self) -> bool {
        self.has_run() || self.total().ignored > 0
    }

    /// Returns the `cargo xtask test` command that repeats the test program of `outcome` at this
    /// place (the host or a device). If `test` is given, the command repeats only this test.
    fn repeat(&self, outcome: &Outcome, test: Option<&str>) -> String {
        let (package, program) = outcome.package_and_program();
        let mut command = "cargo xtask test".to_owned();
        // The examples in the documentation are one program for all packages together.
        if program != DOC_TESTS {
            command += &format!(" --package {package}");
        }
        command += &format!(" --program {program}");
        if let Some(test) = test {
            command += &format!(" --filter {} --exact", quoted(test));
        }
        command + " " + &self.options
    }
}

/// Returns `word`, quoted so that a shell reads it as one word.
fn quoted(word: &str) -> String {
    format!("'{}'", word.replace('\'', r"'\''"))
}

/// The results of a test run, which are printed at its end.
#[derive(Debug, Default)]
pub(crate) struct Report {
    /// The outcomes of each place: the host or a device.
    pub(crate) places: Vec<PlaceResults>,
    /// Descriptions of the tests that a quick run left out.
    pub(crate) left_out: Vec<&'static str>,
    /// Failures of the run other than failed tests, such as a device that could not be tested. Each
    /// failure counts as one failed test.
    pub(crate) problems: Vec<String>,
}

impl Report {
    /// Returns the numbers of passed, failed and ignored tests of the whole run. Each problem
    /// counts as a failed test.
    pub(crate) fn total(&self) -> Counts {
        let mut total = Counts {
            failed: self.problems.len() as u64,
            ..Counts::default()
        };
        for place in &self.places {
            total += place.total();
        }
        total
    }

    fn write_table(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names = self.places.iter().map(|place| place.name.len());
        let width = names.max().unwrap_or_default();
        writeln!(
            f,
            "{:width$}  programs  passed  failed  ignored  seconds",
            ""
        )?;
        for place in &self.places {
            let Counts {
                passed,
                failed,
                ignored,
            } = place.total();
            let programs = place.outcomes.len();
            let seconds: f64 = place.outcomes.iter().map(|outcome| outcome.seconds).sum();
            writeln!(
                f,
                "{:width$}  {programs:8}  {passed:6}  {failed:6}  {ignored:7}  {seconds:7.1}",
                place.name
            )?;
        }
        Ok(())
    }

    fn write_ignored(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut reasons: BTreeMap<(&str, &str), u64> = BTreeMap::new();
        for place in &self.places {
            for (reason, count) in place.outcomes.iter().flat_map(|outcome| &outcome.ignored) {
                *reasons.entry((&place.name, reason)).or_default() += count;
            }
        }
        if !reasons.is_empty() {
            writeln!(f, "\nignored:")?;
        }
        for ((place, reason), count) in reasons {
            writeln!(f, "{count:5}  {place}: {reason}")?;
        }
        Ok(())
    }

    fn write_left_out(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !self.left_out.is_empty() {
            writeln!(f, "\nleft out by --quick:")?;
        }
        for words in &self.left_out {
            writeln!(f, "    {words}")?;
        }
        Ok(())
    }

    fn write_failures(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.total().failed > 0 {
            writeln!(f, "\nfailed:")?;
        }
        for place in &self.places {
            for outcome in &place.outcomes {
                let Outcome { name, failed, .. } = outcome;
                for test in failed {
                    writeln!(f, "    {}: {name}: {test}", place.name)?;
                    writeln!(f, "        {}", place.repeat(outcome, Some(test)))?;
                }
                let unnamed = match &outcome.problem {
                    Some(problem) => Some(problem.as_str()),
                    None if outcome.counts.failed > 0 && failed.is_empty() => {
                        Some("tests failed and were not named")
                    }
                    None => None,
                };
                if let Some(problem) = unnamed {
                    writeln!(f, "    {}: {name}: {problem}", place.name)?;
                    writeln!(f, "        {}", place.repeat(outcome, None))?;
                }
            }
        }
        for problem in &self.problems {
            writeln!(f, "    {}", problem.replace('\n', "\n    "))?;
        }
        Ok(())
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.write_table(f)?;
        self.write_ignored(f)?;
        self.write_left_out(f)?;
        self.write_failures(f)?;
        let Counts {
            passed,
            failed,
            ignored,
        } = self.total();
        writeln!(f)?;
        if ignored > 0 {
            writeln!(f, "{ignored} ignored")?;
        }
        write!(f, "{passed} passed, {failed} failed")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn outcome(name: &str, passed: u64) -> Outcome {
        Outcome {
            name: name.into(),
            counts: Counts {
                passed,
                ..Counts::default()
            },
            problem: None,
            failed: Vec::new(),
            ignored: BTreeMap::new(),
            seconds: 1.0,
        }
    }

    fn place(name: &str, options: &str, outcomes: Vec<Outcome>) -> PlaceResults {
        PlaceResults {
            name: name.into(),
            options: options.into(),
            outcomes,
        }
    }

    fn report() -> Report {
        let mut core = outcome("rdma-core holes", 3);
        core.counts.failed = 1;
        core.failed = vec!["a::bad".into()];
        let mut ignoring = outcome("rdma-core memory", 4);
        ignoring.counts.ignored = 2;
        ignoring.ignored = [("no device memory".to_owned(), 2)].into();
        let mut documentation = outcome("workspace doc-tests", 4);
        documentation.counts.failed = 1;
        documentation.failed = vec!["src/lib.rs - it's (line 3)".into()];
        let died = Outcome::failed("rdma-async leaks", "died: signal: 11", 0.0);
        Report {
            places: vec![
                place("host", "--host-only", vec![documentation]),
                place("rxe", "--device rxe", vec![core, ignoring, died]),
            ],
            ..Report::default()
        }
    }

    #[test]
    fn the_last_line_counts_everything() {
        let text = report().to_string();
        let lines: Vec<_> = text.lines().rev().take(2).collect();
        assert_eq!(lines, ["11 passed, 3 failed", "2 ignored"]);
    }

    #[test]
    fn each_failure_has_the_command_that_repeats_it() {
        let text = report().to_string();
        for line in [
            "cargo xtask test --package rdma-core --program holes --filter 'a::bad' --exact --device rxe",
            "rxe: rdma-async leaks: died: signal: 11",
            "cargo xtask test --package rdma-async --program leaks --device rxe",
            r"cargo xtask test --program doc-tests --filter 'src/lib.rs - it'\''s (line 3)' --exact --host-only",
        ] {
            assert!(text.lines().any(|other| other.trim() == line), "{text}");
        }
    }

    #[test]
    fn reasons_of_ignored_tests_are_counted_by_place() {
        let text = report().to_string();
        assert!(text.contains("    2  rxe: no device memory\n"), "{text}");
    }

    #[test]
    fn a_quick_run_says_what_it_left_out() {
        let report = Report {
            left_out: vec!["the guest"],
            ..Report::default()
        };
        let text = report.to_string();
        assert!(
            text.contains("left out by --quick:\n    the guest\n"),
            "{text}"
        );
        assert!(text.ends_with("\n0 passed, 0 failed"), "{text}");
    }

    #[test]
    fn a_problem_of_the_run_fails_it() {
        let report = Report {
            problems: vec!["no device test ran".into()],
            ..Report::default()
        };
        let text = report.to_string();
        assert!(text.contains("failed:\n    no device test ran\n"), "{text}");
        assert!(text.ends_with("\n0 passed, 1 failed"), "{text}");
    }
}
