//! The closing report of a test run.

use std::fmt;

use super::libtest::Counts;
use super::program::Outcome;

/// All outcomes of a run.
#[derive(Debug, Default)]
pub(crate) struct Report {
    /// Of the tests that need no device.
    pub(crate) host: Vec<Outcome>,
    /// Of the tests that do, by the device that they ran on.
    pub(crate) devices: Vec<(String, Vec<Outcome>)>,
    /// What else makes the run a failure.
    pub(crate) problems: Vec<String>,
}

impl Report {
    /// The sum of all outcomes; a problem of the run counts as one failed test.
    pub(crate) fn total(&self) -> Counts {
        let mut total = Counts {
            failed: self.problems.len() as u64,
            ..Counts::default()
        };
        for outcome in self.outcomes() {
            total += outcome.counts;
        }
        total
    }

    fn outcomes(&self) -> impl Iterator<Item = &Outcome> {
        let on_devices = self.devices.iter().flat_map(|(_, outcomes)| outcomes);
        self.host.iter().chain(on_devices)
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let width = self
            .outcomes()
            .map(|outcome| outcome.name.len())
            .max()
            .unwrap_or_default()
            .max(12);
        writeln!(f, "{:width$}  passed  failed  ignored  seconds", "")?;
        let host = [("host", &self.host)].into_iter();
        let devices = self.devices.iter();
        let parts = host.chain(devices.map(|(device, outcomes)| (device.as_str(), outcomes)));
        for (part, outcomes) in parts {
            writeln!(f, "{part}")?;
            for Outcome {
                name,
                counts,
                problem,
                seconds,
            } in outcomes
            {
                let Counts {
                    passed,
                    failed,
                    ignored,
                } = counts;
                write!(
                    f,
                    "{name:width$}  {passed:6}  {failed:6}  {ignored:7}  {seconds:7.1}"
                )?;
                match problem {
                    Some(problem) => writeln!(f, "  {problem}")?,
                    None => writeln!(f)?,
                }
            }
        }
        for problem in &self.problems {
            writeln!(f, "{problem}")?;
        }
        let Counts {
            passed,
            failed,
            ignored,
        } = self.total();
        if ignored > 0 {
            writeln!(f, "{ignored} ignored")?;
        }
        write!(f, "{passed} passed, {failed} failed")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_line_counts_everything() {
        let outcome = |passed, ignored| Outcome {
            name: "core".into(),
            counts: Counts {
                passed,
                failed: 0,
                ignored,
            },
            problem: None,
            seconds: 1.0,
        };
        let report = Report {
            host: vec![outcome(3, 0)],
            devices: vec![
                ("softroce".into(), vec![outcome(4, 0)]),
                (
                    "rxe".into(),
                    vec![outcome(4, 2), Outcome::failed("async", "died", 0.0)],
                ),
            ],
            problems: Vec::new(),
        };
        let text = report.to_string();
        let lines: Vec<_> = text.lines().rev().take(2).collect();
        assert_eq!(lines, ["11 passed, 1 failed", "2 ignored"]);
        assert!(text.contains("died"));
    }

    #[test]
    fn a_problem_of_the_run_fails_it() {
        let report = Report {
            problems: vec!["no device test ran".into()],
            ..Report::default()
        };
        assert!(
            report
                .to_string()
                .ends_with("no device test ran\n0 passed, 1 failed")
        );
    }
}
