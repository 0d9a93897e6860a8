//! Runs an example of this package.

use std::env;
use std::io::Read;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

/// Time limit of the program, which suffices on an emulated machine under load.
const LIMIT: Duration = Duration::from_secs(120);

/// Guard that ends the program if the test ends first.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        drop(self.0.kill());
        drop(self.0.wait());
    }
}

/// Runs the example `name` to its end, and returns what it printed.
pub(crate) fn printed_by(name: &str) -> String {
    let test = env::current_exe().expect("this program's path");
    let example = test
        .ancestors()
        .map(|directory| directory.join("examples").join(name))
        .find(|program| program.is_file())
        .unwrap_or_else(|| {
            panic!(
                "no examples/{name} above {}: `cargo test` builds it",
                test.display()
            )
        });
    let child = Command::new(example)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the example can be run");
    let mut program = Running(child);
    let deadline = Instant::now() + LIMIT;
    let status = loop {
        if let Some(status) = program.0.try_wait().expect("its status") {
            break status;
        }
        assert!(Instant::now() < deadline, "not done within {LIMIT:?}");
        thread::sleep(Duration::from_millis(20));
    };
    let (mut printed, mut complaints) = (String::new(), String::new());
    let outcome = (program.0.stdout.take(), program.0.stderr.take());
    let (Some(mut stdout), Some(mut stderr)) = outcome else {
        panic!("both are pipes");
    };
    stdout.read_to_string(&mut printed).expect("its output");
    stderr.read_to_string(&mut complaints).expect("its errors");
    assert!(status.success(), "{status}: {complaints}");
    printed
}
