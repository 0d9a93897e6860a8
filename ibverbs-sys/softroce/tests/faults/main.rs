//! The device after an error inside of it or below it: a panic, and registered memory that is no longer there. Each
//! test runs in a process of its own, because the device of that process fails, or the process may end.

mod end;
mod fatal;
mod handlers;
mod missing;

use std::process::{Command, Output, Stdio};
use std::time::Duration;

/// Deadline of every operation: longer than any takes.
const LOST: Duration = Duration::from_secs(60);

/// The variable that marks a test's own process.
const CHILD: &str = "SOFTROCE_TEST_CHILD";

/// Runs `body` in a process of its own, with these variables, which must succeed. Returns the standard error of that
/// process; in that process itself `None`.
fn alone(test: &str, variables: &[(&str, &str)], body: impl FnOnce()) -> Option<String> {
    let output = process(test, variables, body)?;
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(
        output.status.success(),
        "the process of the test ended with {}\n{said}\n{errors}",
        output.status
    );
    assert!(said.contains("1 passed"), "no such test: {test}\n{said}");
    Some(errors)
}

/// Runs `body` in a process of its own, which calls the same test again, with these variables. Returns the status and
/// output of that process; in that process itself `None`.
fn process(test: &str, variables: &[(&str, &str)], body: impl FnOnce()) -> Option<Output> {
    if std::env::var_os(CHILD).is_some() {
        // A process that hangs ends with SIGALRM.
        // SAFETY: the call has no conditions.
        unsafe { libc::alarm(5 * LOST.as_secs() as u32) };
        softroce::install();
        body();
        return None;
    }
    let program = std::env::current_exe().expect("the path of this program");
    let output = Command::new(program)
        .args([test, "--exact", "--nocapture", "--test-threads=1"])
        .env(CHILD, "1")
        .envs(variables.iter().copied())
        .stdin(Stdio::null())
        .output();
    Some(output.expect("a process for the test"))
}
