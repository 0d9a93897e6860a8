//! Runs the examples of this crate as processes.

#![allow(dead_code, reason = "each test binary uses a part of it")]

#[path = "../common/server_host.rs"]
pub(crate) mod server_host;

use std::env;
use std::ffi::OsStr;
use std::io::{BufRead, BufReader, Read};
use std::path::PathBuf;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

/// Time limit of a program, long enough on an emulated machine under load.
const LIMIT: Duration = Duration::from_secs(120);

/// A running example. Dropping the value kills the process.
pub(crate) struct Example {
    pub(crate) child: Child,
}

impl Drop for Example {
    fn drop(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

impl Example {
    /// Starts the example `name`, with pipes as its standard input, output and error.
    pub(crate) fn start(name: &str, words: &[&str]) -> Self {
        Self::spawn(Command::new(program(name)), words)
    }

    /// Starts the server of an example like [`Self::start`], on the host of the servers if the test
    /// runs between two hosts. The address 127.0.0.1 in `words` then stands for that host.
    pub(crate) fn start_server(name: &str, words: &[&str]) -> Self {
        let command = server_host::command(program(name));
        Self::spawn(command, &server_host::with_address(words))
    }

    /// Starts `command`, which runs an example, with the arguments `words`.
    pub(crate) fn spawn(mut command: Command, words: &[impl AsRef<OsStr>]) -> Self {
        let child = command
            .args(words)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn();
        Self {
            child: child.expect("the example can be run"),
        }
    }

    /// Starts the server of the example `name`. Returns the server, its standard output, which must
    /// be kept open, and its address.
    pub(crate) fn serve(name: &str) -> (Self, BufReader<ChildStdout>, String) {
        Self::serve_with(name, &[])
    }

    /// Starts the server of the example like [`Self::serve`], with more options.
    pub(crate) fn serve_with(name: &str, more: &[&str]) -> (Self, BufReader<ChildStdout>, String) {
        let words = [&["serve", "--listen", "127.0.0.1:0"], more].concat();
        let mut server = Self::start_server(name, &words);
        let mut output = server.output();
        let line = line(&mut output);
        let address = line.strip_prefix("listening at ").expect("its address");
        let address = address.to_owned();
        (server, output, address)
    }

    /// Takes the standard output, which must be kept open while the example prints.
    pub(crate) fn output(&mut self) -> BufReader<ChildStdout> {
        BufReader::new(self.child.stdout.take().expect("a pipe"))
    }

    /// Waits for the end of the example. Returns its standard error if the example failed.
    pub(crate) fn finish(mut self) -> Result<(), String> {
        let deadline = Instant::now() + LIMIT;
        let status = loop {
            if let Some(status) = self.child.try_wait().expect("its status") {
                break status;
            }
            assert!(Instant::now() < deadline, "not completed within {LIMIT:?}");
            thread::sleep(Duration::from_millis(10));
        };
        let mut complaints = String::new();
        let mut stderr = self.child.stderr.take().expect("a pipe");
        stderr.read_to_string(&mut complaints).expect("its errors");
        match status.success() {
            true => Ok(()),
            false => Err(complaints),
        }
    }
}

/// Runs an example to its end, and returns its standard output.
pub(crate) fn printed_by(name: &str) -> String {
    let mut example = Example::start(name, &[]);
    let mut output = example.output();
    example.finish().expect("the example succeeds");
    let mut printed = String::new();
    output.read_to_string(&mut printed).expect("its output");
    printed
}

/// Reads a line, and returns the line without its line break.
pub(crate) fn line(output: &mut impl BufRead) -> String {
    let mut line = String::new();
    output.read_line(&mut line).expect("a line");
    line.trim_end().to_owned()
}

/// Returns the path of the example `name`, which `cargo test` builds.
pub(crate) fn program(name: &str) -> PathBuf {
    let test = env::current_exe().expect("this program's path");
    test.ancestors()
        .map(|directory| directory.join("examples").join(name))
        .find(|program| program.is_file())
        .unwrap_or_else(|| panic!("no examples/{name}: `cargo test` builds it"))
}
