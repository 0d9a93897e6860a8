//! Processes of a test in separate namespaces: the test program starts itself again, with a role.

use std::env;
use std::io::{BufRead, BufReader};
use std::net::IpAddr;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use super::LIMIT;

/// Environment variable with the role of a process. Each test defines its own roles.
pub(crate) const ROLE: &str = "RDMA_TEST_ROLE";

/// Returns whether a test must be skipped, and prints the reason: the device under test is not
/// softroce, or the system does not permit `command`, which creates namespaces.
pub(crate) fn must_skip(command: &[&str]) -> bool {
    if env::var_os("RDMA_DEVICE").is_some_and(|device| device != "softroce0") {
        eprintln!("skipped: only softroce has the addresses of a namespace");
        return true;
    }
    let allowed = Command::new(command[0])
        .args(&command[1..])
        .stderr(Stdio::null())
        .status();
    if !allowed.is_ok_and(|status| status.success()) {
        eprintln!(
            "skipped: this system does not allow `{}`",
            command.join(" ")
        );
        return true;
    }
    false
}

/// Returns a command that runs the test `test` again in the given role, without any setting of
/// softroce. The command runs under the program `by` with its arguments, such as `unshare`.
pub(crate) fn again(test: &str, role: &str, by: &[&str]) -> Command {
    let mut command = Command::new(by[0]);
    command
        .args(&by[1..])
        .arg(env::current_exe().unwrap())
        .args(["--exact", test, "--nocapture"])
        .env(ROLE, role)
        .stdout(Stdio::piped());
    for variable in ["ADDRESS", "NETDEV", "PATH", "PORT"] {
        command.env_remove(format!("SOFTROCE_{variable}"));
    }
    command.env_remove("RDMA_GID_INDEX");
    command
}

/// Prints a line, for which [`wait_until_ready`] waits in another process.
pub(crate) fn report_ready() {
    println!("ready");
}

/// Waits until a process has called [`report_ready`]. Returns its output, which must be kept open.
pub(crate) fn wait_until_ready(process: &mut Child) -> BufReader<ChildStdout> {
    let mut output = BufReader::new(process.stdout.take().unwrap());
    let mut line = String::new();
    while !line.ends_with("ready\n") {
        line.clear();
        let length = output.read_line(&mut line).unwrap();
        assert!(length > 0, "the process has ended");
    }
    output
}

/// Waits until `has_changed`, which examines an interface, returns `true`.
pub(crate) fn wait_until(mut has_changed: impl FnMut() -> bool) {
    let end = Instant::now() + LIMIT;
    while !has_changed() {
        assert!(Instant::now() < end, "the interface has not changed");
        thread::sleep(Duration::from_millis(10));
    }
}

pub(crate) fn parsed(address: &str) -> IpAddr {
    address.parse().unwrap()
}

pub(crate) fn add_address(address: &str, interface: &str) {
    let (length, flag) = match parsed(address) {
        IpAddr::V4(_) => (24, ""),
        IpAddr::V6(_) => (64, " nodad"),
    };
    ip(&format!(
        "address add {address}/{length} dev {interface}{flag}"
    ));
}

/// Runs `ip` with the words of `command`. Panics if the command fails.
pub(crate) fn ip(command: &str) {
    assert!(succeeds(command), "ip {command}");
}

/// Runs `ip` with the words of `command`. Returns whether the command succeeded.
pub(crate) fn succeeds(command: &str) -> bool {
    let output = Command::new("ip")
        .args(command.split(' '))
        .output()
        .unwrap();
    output.status.success()
}
