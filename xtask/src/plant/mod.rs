//! `cargo xtask plant`: applies known bugs to softroce and rdma-core, one at a time in a copy of
//! the workspace, and checks that the test named by each bug fails. A test that cannot fail proves
//! nothing.

mod bug;
mod mirror;
mod workspace_copy;

use xshell::Shell;

use self::workspace_copy::{Verdict, WorkspaceCopy};
use crate::packages;

/// The options of `cargo xtask plant`, which applies known bugs to the code, and checks that tests
/// detect them.
#[derive(Debug)]
pub(crate) struct Options {
    /// The names of the bugs to apply. Empty for all bugs.
    pub(crate) bugs: Vec<String>,
    /// Number of random schedules that the simulation runs before a bug counts as missed.
    pub(crate) schedules: u64,
}

/// Applies the chosen bugs, one after the other, and runs their tests. Returns 1 if a test missed
/// its bug, else 0.
///
/// # Errors
///
/// An error if a test fails without a bug applied, or if the patch of a bug cannot be applied.
pub(crate) fn run(shell: &Shell, options: &Options) -> anyhow::Result<u8> {
    let bugs = bug::chosen(bug::all()?, &options.bugs)?;
    packages::install(shell, packages::BUILD)?;
    packages::install(shell, packages::PROGRAMS)?;
    let copy = WorkspaceCopy::new(options.schedules);
    copy.check_tests(&bugs)?;
    let mut missed = 0;
    let mut report = String::new();
    for bug in &bugs {
        let (word, reason) = match copy.test_bug(bug)? {
            Verdict::Caught(reason) => ("caught", reason),
            Verdict::Missed => {
                missed += 1;
                ("MISSED", bug.test.to_string())
            }
        };
        let line = format!("{word}  {:<40} {reason}\n", bug.name);
        eprint!("{line}");
        report.push_str(&line);
    }
    print!("\n{report}");
    println!("{} of {} bugs caught", bugs.len() - missed, bugs.len());
    Ok(u8::from(missed > 0))
}
