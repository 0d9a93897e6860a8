//! Runs the commands and the Rust programs of the README and of the book, exactly as they are
//! written.

#![forbid(unsafe_code)]

mod commands;
mod examples;
mod markdown;
mod process;

use std::path::{Path, PathBuf};

/// Returns the root of the workspace, in which all commands of the documentation run.
fn workspace() -> PathBuf {
    let package = Path::new(env!("CARGO_MANIFEST_DIR"));
    let root = package
        .parent()
        .expect("xtask is a directory of the workspace");
    root.to_owned()
}

/// Returns the paths and the texts of all pages, the README first.
fn pages() -> Vec<(PathBuf, String)> {
    let root = workspace();
    let mut paths: Vec<PathBuf> = std::fs::read_dir(root.join("docs/src"))
        .expect("the book is in docs/src")
        .map(|entry| entry.expect("an entry of docs/src").path())
        .filter(|path| path.extension().is_some_and(|extension| extension == "md"))
        .collect();
    paths.sort();
    paths.insert(0, root.join("README.md"));
    let page = |path: PathBuf| {
        let text = std::fs::read_to_string(&path);
        let text = text.unwrap_or_else(|error| panic!("reading {}: {error}", path.display()));
        (path, text)
    };
    paths.into_iter().map(page).collect()
}
