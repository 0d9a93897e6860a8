//! The examples as processes.

#[path = "../../../rdma-async/tests/common/server_host.rs"]
mod server_host;

use std::env;
use std::ffi::OsStr;
use std::fmt::Debug;
use std::io::{BufRead, BufReader, Read};
use std::net::TcpListener;
use std::path::PathBuf;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

/// Time limit of a program, which suffices on an emulated device under load.
const LIMIT: Duration = Duration::from_secs(60);

/// Returns the path of an example, which `cargo test` builds.
pub(crate) fn program(name: &str) -> PathBuf {
    let test = env::current_exe().expect("this program's path");
    test.ancestors()
        .map(|directory| directory.join("examples").join(name))
        .find(|program| program.is_file())
        .unwrap_or_else(|| panic!("no examples/{name}: `cargo test` builds it"))
}

/// A running program, which is killed at the end of the test.
pub(crate) struct Program {
    child: Child,
    _output: Option<BufReader<ChildStdout>>,
}

impl Drop for Program {
    fn drop(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

fn start(mut command: Command, words: &[impl AsRef<OsStr>]) -> Child {
    command
        .args(words)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the example runs")
}

/// Starts a server, on the host of the servers if the test runs between two hosts, and returns its
/// address. The address 127.0.0.1 in `words` stands for that host.
pub(crate) fn serve(name: &str, words: &[&str]) -> (Program, String) {
    let command = server_host::command(program(name));
    serve_by(command, &server_host::with_address(words))
}

/// Starts a server by `command`, with the arguments `words`, and returns its address.
pub(crate) fn serve_by(command: Command, words: &[impl AsRef<OsStr>]) -> (Program, String) {
    let mut child = start(command, words);
    let mut output = BufReader::new(child.stdout.take().expect("a pipe"));
    let mut line = String::new();
    output.read_line(&mut line).expect("its first line");
    let address = line.trim_end().strip_prefix("serving at ");
    let address = address.and_then(|address| address.split(';').next());
    let address = address.unwrap_or_else(|| {
        let mut stderr = String::new();
        drop(
            child
                .stderr
                .take()
                .map(|mut errors| errors.read_to_string(&mut stderr)),
        );
        panic!("{line:?} {stderr}")
    });
    let address = address.to_owned();
    let output = Some(output);
    (
        Program {
            child,
            _output: output,
        },
        address,
    )
}

/// Runs a program to its end, and returns what it printed.
pub(crate) fn run(name: &str, words: &[&str]) -> String {
    run_by(Command::new(program(name)), words)
}

/// Runs `command`, which runs an example, with the arguments `words` to its end, and returns what
/// it printed.
pub(crate) fn run_by(command: Command, words: &[impl AsRef<OsStr> + Debug]) -> String {
    let name = format!("{command:?}");
    let mut program = Program {
        child: start(command, words),
        _output: None,
    };
    let latest = Instant::now() + LIMIT;
    while program.child.try_wait().expect("its status").is_none() {
        assert!(
            Instant::now() < latest,
            "{name} {words:?} takes longer than {LIMIT:?}"
        );
        thread::sleep(Duration::from_millis(5));
    }
    let (mut printed, mut errors) = (String::new(), String::new());
    drop(
        program
            .child
            .stdout
            .take()
            .map(|mut out| out.read_to_string(&mut printed)),
    );
    drop(
        program
            .child
            .stderr
            .take()
            .map(|mut err| err.read_to_string(&mut errors)),
    );
    let status = program.child.wait().expect("its status");
    assert!(status.success(), "{name} {words:?}: {errors}");
    printed.trim_end().to_owned()
}

/// Returns addresses of the host of the servers, with ports that are free on this host now.
pub(crate) fn free(scheme: &str, count: usize) -> Vec<String> {
    let listeners = (0..count).map(|_| TcpListener::bind("127.0.0.1:0").unwrap());
    let listeners: Vec<_> = listeners.collect();
    let address = |listener: &TcpListener| {
        let port = listener.local_addr().unwrap().port();
        format!("{scheme}://{}:{port}", server_host::address())
    };
    listeners.iter().map(address).collect()
}
