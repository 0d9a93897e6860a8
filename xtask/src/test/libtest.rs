//! Parses the output of a test program in the format of libtest, which libtest-mimic and the
//! conformance suite also use.

use std::collections::BTreeMap;

/// The numbers of tests with each outcome: passed, failed or ignored.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Counts {
    /// Tests that passed.
    pub(crate) passed: u64,
    /// Tests that failed.
    pub(crate) failed: u64,
    /// Tests that did not run, because they are marked as ignored or found that they cannot run.
    pub(crate) ignored: u64,
}

impl std::ops::AddAssign for Counts {
    fn add_assign(&mut self, other: Self) {
        self.passed += other.passed;
        self.failed += other.failed;
        self.ignored += other.ignored;
    }
}

/// The text that the report shows as the reason for tests that were ignored without a reason.
const NO_REASON: &str = "no reason given";

/// Suffixes that libtest adds to a test's name in the line with the result, but not in the list of
/// failures.
const SUFFIXES: [&str; 3] = [" - should panic", " - compile fail", " - compile"];

/// The results of a test program, collected from its output line by line.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Results {
    /// The sum of the counts in all closing lines (`test result: ...`), or `None` before the first
    /// closing line.
    pub(crate) counts: Option<Counts>,
    /// Names of the failed tests.
    pub(crate) failed: Vec<String>,
    /// Reasons of ignored tests, each with the number of tests that it applies to.
    pub(crate) ignored: BTreeMap<String, u64>,
    /// Set if the previous line was part of the list of failures.
    in_failures: bool,
}

impl Results {
    /// Parses the next line of the output. Names of failed tests are also taken from the list of
    /// failures at the end, because other output of a test can stand between its name and its
    /// result.
    pub(crate) fn read(&mut self, line: &str) {
        let line = line.trim_end();
        if let Some(counts) = closing_line(line) {
            *self.counts.get_or_insert_default() += counts;
        } else if let Some((name, result)) = result_line(line) {
            match result {
                "ignored" => self.ignore(NO_REASON),
                _ => {
                    if let Some(reason) = result.strip_prefix("ignored, ") {
                        self.ignore(reason);
                    } else if result.ends_with("FAILED") {
                        self.fail(name);
                    }
                }
            }
        } else if self.in_failures
            && let Some(name) = line.strip_prefix("    ")
        {
            self.fail(name);
            return;
        }
        self.in_failures = line == "failures:";
    }

    /// Completes the counts of ignored tests after the last line of the output. If the output's
    /// summary counts more ignored tests than the output lists, adds the difference to
    /// [`ignored`](Self::ignored) with the reason [`NO_REASON`].
    pub(crate) fn complete(&mut self) {
        let known: u64 = self.ignored.values().sum();
        let all = self.counts.map_or(0, |counts| counts.ignored);
        if all > known {
            *self.ignored.entry(NO_REASON.to_owned()).or_default() += all - known;
        }
    }

    fn ignore(&mut self, reason: &str) {
        *self.ignored.entry(reason.to_owned()).or_default() += 1;
    }

    fn fail(&mut self, name: &str) {
        let marked = SUFFIXES.iter().find_map(|mark| name.strip_suffix(mark));
        let name = marked.unwrap_or(name).trim();
        if !self.failed.iter().any(|known| known == name) {
            self.failed.push(name.to_owned());
        }
    }
}

/// Returns the names of the tests in `text`, which a test program printed for the argument
/// `--list`.
pub(crate) fn listed(text: &str) -> impl Iterator<Item = &str> {
    text.lines().filter_map(|line| line.strip_suffix(": test"))
}

/// Splits the line of one test, `test NAME ... RESULT`, into name and result. Returns `None`
/// for any other line.
fn result_line(line: &str) -> Option<(&str, &str)> {
    let (name, result) = line.strip_prefix("test ")?.split_once(" ... ")?;
    Some((name.trim(), result))
}

/// Parses the counts of a closing line, `test result: ok. 5 passed; 0 failed; 1 ignored; ...`.
/// Returns `None` for any other line.
fn closing_line(line: &str) -> Option<Counts> {
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
    use super::*;

    fn results(text: &str) -> Results {
        let mut results = Results::default();
        text.lines().for_each(|line| results.read(line));
        results.complete();
        results
    }

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

    #[test]
    fn failed_tests_are_named_once() {
        let results = results(
            "running 4 tests\n\
             test a::good ... ok\n\
             test a::panics - should panic ... FAILED\n\
             test a::bad      ... FAILED\n\
             test torn ... a child's words\n\
             FAILED\n\
             \n\
             failures:\n\
             \n\
             ---- a::bad stdout ----\n\
             \x20   indented words of the test\n\
             \n\
             failures:\n\
             \x20   a::bad\n\
             \x20   a::panics\n\
             \x20   torn\n\
             \n\
             test result: FAILED. 1 passed; 3 failed; 0 ignored; 0 measured; 0 filtered out\n",
        );
        assert_eq!(results.failed, ["a::panics", "a::bad", "torn"]);
        assert_eq!(results.counts.unwrap().failed, 3);
    }

    #[test]
    fn ignored_tests_are_counted_by_reason() {
        let results = results(
            "test a ... ignored, no device memory\n\
             test b ... ignored\n\
             test c ... ignored, no device memory\n\
             test d ... words that hide the result\n\
             test result: ok. 0 passed; 0 failed; 4 ignored; 0 measured; 0 filtered out\n",
        );
        let expected = [
            ("no device memory".to_owned(), 2),
            (NO_REASON.to_owned(), 2),
        ];
        assert_eq!(results.ignored, BTreeMap::from(expected));
    }

    #[test]
    fn names_are_read_from_a_list() {
        let text = "a::b: test\nrc_mtu: test\nslow: benchmark\n\n2 tests, 1 benchmarks\n";
        assert_eq!(listed(text).collect::<Vec<_>>(), ["a::b", "rc_mtu"]);
    }
}
