//! Tables of the environment variables, in the source and in the book, which must agree.

use std::fs;
use std::path::Path;

fn rows(file: &str, prefix: &str) -> Vec<String> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(file);
    let text = fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    let lines = text.lines().filter_map(|line| line.strip_prefix(prefix));
    lines
        .filter(|line| line.starts_with("| `SOFTROCE_"))
        .map(str::to_owned)
        .collect()
}

#[test]
fn the_book_lists_the_variables_of_the_crate() {
    let of_crate = rows("src/config.rs", "//! ");
    assert!(of_crate.len() > 10, "{of_crate:?}");
    assert_eq!(rows("../../docs/src/softroce.md", ""), of_crate);
}

/// Checks that each variable that the crate reads is in the table.
#[test]
fn every_variable_is_documented() {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/config.rs");
    let source = fs::read_to_string(source).expect("the source");
    let table = rows("src/config.rs", "//! ").join("\n");
    let read: Vec<&str> = source
        .split("\"SOFTROCE_")
        .skip(1)
        .filter_map(|rest| rest.split('"').next())
        .collect();
    assert!(read.len() > 10, "{read:?}");
    for name in read {
        assert!(table.contains(&format!("`SOFTROCE_{name}`")), "{name}");
    }
}
