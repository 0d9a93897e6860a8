//! `cargo xtask plant`: puts known bugs into softroce and rdma-core, one at a time in a copy of the
//! workspace, and checks that the test named by each bug fails. A test that cannot fail proves
//! nothing.

mod bug;
mod judge;
mod mirror;

use xshell::Shell;

use self::judge::{Judge, Verdict};
use crate::packages;

/// The bugs to plant, and the length of the simulation.
#[derive(Debug)]
pub(crate) struct Choice {
    /// Names of the bugs; all bugs when empty.
    pub(crate) bugs: Vec<String>,
    /// Number of schedules that the simulation runs before a bug counts as missed.
    pub(crate) schedules: u64,
}

/// Plants one bug after the other. Returns 1 if a bug was missed, else 0.
///
/// # Errors
///
/// If a test fails without a planted bug, or the patch of a bug cannot be applied.
pub(crate) fn run(shell: &Shell, choice: &Choice) -> anyhow::Result<u8> {
    let bugs = bug::chosen(bug::all()?, &choice.bugs)?;
    packages::install(shell, packages::BUILD)?;
    packages::install(shell, packages::PROGRAMS)?;
    let judge = Judge::new(choice.schedules);
    judge.check_tests(&bugs)?;
    let mut missed = 0;
    let mut report = String::new();
    for bug in &bugs {
        let (word, reason) = match judge.judge(bug)? {
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
