//! The summary of a run of the judge: how many comparisons had which verdict, and whether the run
//! succeeded.

use std::fmt;

use super::goal::Verdict;
use super::row::Row;

/// The outcomes of all comparisons of a run. Displays as the number of comparisons with each
/// verdict, and the commands that repeat the comparisons that did not meet their goals.
#[derive(Debug, Default)]
pub struct Summary {
    outcomes: Vec<(Row, Outcome)>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Outcome {
    /// The verdict of a comparison that was measured; `None` if there were too few pairs for a
    /// verdict.
    Measured(Option<Verdict>),
    NotMeasured,
    /// The system lacks something that the comparison needs, such as a program.
    Impossible,
}

impl Summary {
    /// Adds the comparison `row` to the summary as a measured comparison. `verdict` is `None` if
    /// too few pairs were measured for a verdict.
    pub fn measured(&mut self, row: &Row, verdict: Option<Verdict>) {
        self.outcomes.push((*row, Outcome::Measured(verdict)));
    }

    /// Adds the comparison `row` to the summary as a comparison whose measurement failed. The whole
    /// run of comparisons then counts as failed.
    pub fn not_measured(&mut self, row: &Row) {
        self.outcomes.push((*row, Outcome::NotMeasured));
    }

    /// Adds the comparison `row` to the summary as impossible on this system, because the system
    /// lacks something that the comparison needs. Such comparisons do not make the run fail.
    pub fn impossible(&mut self, row: &Row) {
        self.outcomes.push((*row, Outcome::Impossible));
    }

    /// Returns whether the run of comparisons succeeded: no measurement failed, and no comparison
    /// missed its goal. Comparisons that this system cannot measure do not matter.
    pub fn is_success(&self) -> bool {
        let failures = [
            Outcome::Measured(Some(Verdict::Missed)),
            Outcome::NotMeasured,
        ];
        failures.iter().all(|failure| self.count(*failure) == 0)
    }

    fn count(&self, wanted: Outcome) -> usize {
        let outcomes = self.outcomes.iter();
        outcomes.filter(|(_, outcome)| *outcome == wanted).count()
    }
}

impl fmt::Display for Summary {
    /// Writes this summary to `f`, beginning with the number of comparisons with each verdict. For
    /// each comparison that failed or did not meet its goal, also writes the command that repeats
    /// the comparison.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let not_measured = self.count(Outcome::NotMeasured);
        let without_verdict = self.count(Outcome::Measured(None));
        let impossible = self.count(Outcome::Impossible);
        write!(f, "rows: {}", self.outcomes.len() - impossible)?;
        if without_verdict > 0 {
            write!(f, ", measured {without_verdict}")?;
        } else {
            for verdict in [Verdict::Met, Verdict::Missed, Verdict::Undecided] {
                let count = self.count(Outcome::Measured(Some(verdict)));
                write!(f, ", {} {count}", verdict.word())?;
            }
        }
        writeln!(f, ", not measured {not_measured}")?;
        if impossible > 0 {
            writeln!(f, "impossible on this system and not counted: {impossible}")?;
        }
        if without_verdict > 0 {
            writeln!(f, "too few pairs for verdicts: run without --quick")?;
        }
        for (row, outcome) in &self.outcomes {
            let is_final = matches!(
                outcome,
                Outcome::Measured(Some(Verdict::Met) | None) | Outcome::Impossible
            );
            if !is_final {
                writeln!(f, "{:<6}run again: {}", row.id, row.command())?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::super::outcome::tests::row;
    use super::*;

    fn summary(verdicts: &[Option<Verdict>]) -> Summary {
        let mut summary = Summary::default();
        for verdict in verdicts {
            summary.measured(&row("G3"), *verdict);
        }
        summary
    }

    #[test]
    fn undecided_rows_do_not_fail_a_run() {
        let (met, missed) = (Some(Verdict::Met), Some(Verdict::Missed));
        assert!(summary(&[met, Some(Verdict::Undecided)]).is_success());
        assert!(!summary(&[met, missed]).is_success());
        assert!(summary(&[None]).is_success());
        let mut broken = summary(&[met]);
        broken.not_measured(&row("G1"));
        assert!(!broken.is_success());
    }

    #[test]
    fn rows_that_are_impossible_on_the_system_are_not_counted() {
        let mut all = summary(&[Some(Verdict::Met)]);
        all.impossible(&row("J1"));
        assert!(all.is_success());
        assert_eq!(
            all.to_string(),
            "\
rows: 1, met 1, missed 0, undecided 0, not measured 0
impossible on this system and not counted: 1
"
        );
    }

    #[test]
    fn rows_are_counted_and_those_without_success_are_named() {
        let mut all = summary(&[Some(Verdict::Met), Some(Verdict::Undecided)]);
        all.not_measured(&row("G1"));
        assert_eq!(
            all.to_string(),
            "\
rows: 3, met 1, missed 0, undecided 1, not measured 1
G3    run again: cargo xtask bench --device softroce --only G3
G1    run again: cargo xtask bench --device softroce --only G1
"
        );
        let quick = summary(&[None, None]).to_string();
        assert!(
            quick.starts_with("rows: 2, measured 2, not measured 0\n"),
            "{quick}"
        );
        assert!(!quick.contains("run again"), "{quick}");
    }
}
