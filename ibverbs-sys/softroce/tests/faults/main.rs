//! What the device does where something goes wrong inside of it or under it: a panic, and memory that is registered and not
//! there any more. Each test runs in a process of its own, for the device of that process fails, or the process is at stake.

mod end;
mod fatal;
mod handlers;
mod missing;

use std::process::{Command, Output, Stdio};
use std::time::Duration;

/// Longer than anything takes.
const LOST: Duration = Duration::from_secs(60);

/// The variable that a test's own process has.
const CHILD: &str = "SOFTROCE_TEST_CHILD";

/// Runs `body` in a process of its own, with these variables, where it has to succeed. Returns what the process wrote to
/// standard error; in that process itself `None`.
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

/// Runs `body` in a process of its own, which calls the same test again, with these variables. Returns how it ended and what
/// it wrote; in that process itself `None`.
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
