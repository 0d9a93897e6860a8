//! Errors inside of the device or below it: a panic, and registered memory that is no longer
//! mapped. Each test runs in a process of its own, because its device fails or the process may end.

mod end;
mod fatal;
mod handlers;
mod missing;

use std::process::{Command, Output, Stdio};
use std::time::Duration;

/// Time limit of every operation, which is longer than any operation takes.
const LOST: Duration = Duration::from_secs(60);

/// Variable that is set in a test's own process.
const CHILD: &str = "SOFTROCE_TEST_CHILD";

/// Runs `body` in a process of its own, which has these variables and must succeed. Returns the
/// standard error of that process, or `None` in that process itself.
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

/// Runs `body` in a process of its own, which calls the same test again with these variables.
/// Returns the status and output of that process, or `None` in that process itself.
fn process(test: &str, variables: &[(&str, &str)], body: impl FnOnce()) -> Option<Output> {
    if std::env::var_os(CHILD).is_some() {
        // SIGALRM ends a process that hangs.
        // SAFETY: the call has no preconditions.
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
