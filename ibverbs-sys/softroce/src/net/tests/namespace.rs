//! Tests in a network namespace of their own, with interfaces and addresses that they choose.

use std::env;
use std::process::Command;

/// Variable that is set in the process within the namespace.
const VARIABLE: &str = "SOFTROCE_TEST_IN_NAMESPACE";

/// Runs the test with the path `test` once more, in a process with a network namespace of its own,
/// and fails if it fails there. Returns `true` in that process. Prints a message if the system
/// allows no such namespace.
pub(crate) fn is_inside(test: &str) -> bool {
    if env::var_os(VARIABLE).is_some() {
        return true;
    }
    let unshare = || {
        let mut command = Command::new("unshare");
        command.args(["--net", "--map-root-user"]);
        command
    };
    if !unshare()
        .arg("true")
        .status()
        .is_ok_and(|status| status.success())
    {
        eprintln!("skipped: this system allows no network namespace");
        return false;
    }
    let output = unshare()
        .arg(env::current_exe().unwrap())
        .args(["--exact", test, "--nocapture"])
        .env(VARIABLE, "1")
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stderr);
    let ran = String::from_utf8_lossy(&output.stdout).contains("1 passed");
    assert!(output.status.success() && ran, "{test}: {text}");
    false
}

/// Runs `ip` with the words of `command`.
pub(crate) fn ip(command: &str) {
    let output = Command::new("ip")
        .args(command.split(' '))
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "ip {command}: {text}");
}

/// Creates the interface `veth0`, which is up and has the IPv4 address 10.81.0.1 and the IPv6
/// address fd81::1, but no link-local address.
pub(crate) fn add_interface() {
    ip("link set lo up");
    ip("link add veth0 type veth peer name veth1");
    for end in ["veth0", "veth1"] {
        ip(&format!("link set {end} addrgenmode none"));
        ip(&format!("link set {end} up"));
    }
    ip("address add 10.81.0.1/24 dev veth0");
    ip("address add fd81::1/64 dev veth0 nodad");
}
