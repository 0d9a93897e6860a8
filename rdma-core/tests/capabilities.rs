//! Checks the table of capabilities in the book: every capability names tests, and these tests
//! exist.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

/// The numbers of the capabilities that this crate does not have: interfaces of vendors, and
/// futures.
const ELSEWHERE: [u32; 4] = [19, 34, 35, 54];

struct Row {
    number: u32,
    /// The tests that the row names, each as `crate/tests/file.rs::function`.
    tests: Vec<String>,
    devices: String,
}

fn workspace() -> PathBuf {
    let package = Path::new(env!("CARGO_MANIFEST_DIR"));
    package.parent().expect("a workspace around").to_owned()
}

fn rows() -> Vec<Row> {
    let page = workspace().join("docs/src/capabilities.md");
    let text = fs::read_to_string(&page).unwrap_or_else(|e| panic!("{}: {e}", page.display()));
    let cells = |line: &str| -> Vec<String> {
        let line = line.trim_matches('|');
        line.split('|').map(|cell| cell.trim().to_owned()).collect()
    };
    let rows = text.lines().filter(|line| line.starts_with('|'));
    rows.filter_map(|line| {
        let cells = cells(line);
        Some(Row {
            number: cells[0].parse().ok()?,
            tests: quoted(&cells[3]),
            devices: cells[4].clone(),
        })
    })
    .collect()
}

/// Returns the texts between backticks.
fn quoted(text: &str) -> Vec<String> {
    let parts = text.split('`').skip(1).step_by(2);
    parts.map(str::to_owned).collect()
}

#[test]
fn every_capability_has_a_row() {
    let mut count = BTreeMap::<u32, usize>::new();
    for row in rows() {
        *count.entry(row.number).or_default() += 1;
    }
    let all = (1..=57).filter(|number| !ELSEWHERE.contains(number));
    for number in all {
        assert_eq!(count.get(&number), Some(&1), "rows of capability {number}");
    }
}

#[test]
fn every_named_test_exists() {
    let mut sources = BTreeMap::new();
    for row in rows() {
        assert!(
            !row.tests.is_empty(),
            "capability {} has no test",
            row.number
        );
        for test in &row.tests {
            let (file, function) = test
                .split_once("::")
                .unwrap_or_else(|| panic!("{test} is no file::function"));
            let source = sources.entry(file.to_owned()).or_insert_with(|| {
                let path = workspace().join(file);
                fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
            });
            assert!(is_test(source, function), "{file} has no test `{function}`");
        }
    }
}

/// Returns whether `source` has a function of this name directly below an attribute `test`.
fn is_test(source: &str, function: &str) -> bool {
    let signature = format!("fn {function}(");
    let lines: Vec<&str> = source.lines().map(str::trim).collect();
    lines.iter().enumerate().any(|(at, line)| {
        let is_function = line.trim_start_matches("async ").starts_with(&signature);
        let above = lines[..at].iter().rev();
        is_function
            && above
                .take_while(|line| line.starts_with('#') || line.ends_with(']'))
                .any(|line| line.starts_with("#[test]") || line.starts_with("#[tokio::test"))
    })
}

#[test]
fn every_row_says_where_it_succeeds() {
    for row in rows() {
        let known = ["softroce", "rxe", "typed error", "no device"];
        assert!(
            known.iter().any(|device| row.devices.contains(device)),
            "capability {}: {:?}",
            row.number,
            row.devices
        );
    }
}

#[test]
fn tests_are_distinguished_from_other_functions() {
    let source = "#[test]\nfn one() {}\nfn two() {}\n    #[tokio::test]\n    async fn three() {}\n";
    assert!(is_test(source, "one") && is_test(source, "three"));
    assert!(!is_test(source, "two") && !is_test(source, "on"));
}
