//! Reading what a test executable prints.

/// Tests by their outcome.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Counts {
    /// Passed.
    pub(crate) passed: u64,
    /// Failed.
    pub(crate) failed: u64,
    /// Not run because they are marked so.
    pub(crate) ignored: u64,
}

impl std::ops::AddAssign for Counts {
    fn add_assign(&mut self, other: Self) {
        self.passed += other.passed;
        self.failed += other.failed;
        self.ignored += other.ignored;
    }
}

/// The counts of a closing line, `test result: ok. 5 passed; 0 failed; 1 ignored; ...`; `None`
/// for every other line.
pub(crate) fn closing_line(line: &str) -> Option<Counts> {
    let (_verdict, fields) = line
        .trim()
        .strip_prefix("test result: ")?
        .split_once(". ")?;
    let mut counts = Counts::default();
    let mut seen = 0;
    for field in fields.split(';') {
        let Some((number, what)) = field.trim().split_once(' ') else {
            continue;
        };
        let count = match what {
            "passed" => &mut counts.passed,
            "failed" => &mut counts.failed,
            "ignored" => &mut counts.ignored,
            _ => continue,
        };
        *count = number.parse().ok()?;
        seen += 1;
    }
    (seen == 3).then_some(counts)
}

#[cfg(test)]
mod tests {
    use super::{Counts, closing_line};

    #[test]
    fn closing_lines_are_counted() {
        let ok = "test result: ok. 5 passed; 0 failed; 1 ignored; 0 measured; 2 filtered out; \
                  finished in 0.07s";
        let counts = |passed, failed, ignored| {
            Some(Counts {
                passed,
                failed,
                ignored,
            })
        };
        assert_eq!(closing_line(ok), counts(5, 0, 1));
        let failed = "test result: FAILED. 1 passed; 3 failed; 0 ignored; 0 measured; \
                      0 filtered out; finished in 1.00s\n";
        assert_eq!(closing_line(failed), counts(1, 3, 0));
    }

    #[test]
    fn other_lines_are_not() {
        for line in [
            "",
            "test a ... ok",
            "test result: ",
            "test result: ok. x passed; 0 failed; 0 ignored",
        ] {
            assert_eq!(closing_line(line), None, "{line}");
        }
    }
}
