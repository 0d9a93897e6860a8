//! Two network namespaces that are joined by a veth pair, as two hosts: the servers of tests run on
//! one, and the tests and their clients on the other.

use std::ffi::OsString;
use std::process::{self, Command, Stdio};

use anyhow::{Context, ensure};

use super::program::Program;

/// The name of the environment variable from which tests read the IP address of the host on which
/// their servers run.
const SERVER_ADDRESS: &str = "RDMA_TEST_SERVER_ADDRESS";
/// The name of the environment variable from which tests read the name of a network namespace. The
/// tests must start their servers in this namespace.
const SERVER_NAMESPACE: &str = "RDMA_TEST_SERVER_NAMESPACE";
/// The IP addresses of the two simulated hosts (network namespaces): first the host of the servers,
/// then the host of the clients.
const ADDRESSES: [&str; 2] = ["10.84.0.1", "10.84.0.2"];

/// Two simulated hosts, one for servers and one for clients: network namespaces joined by a veth
/// pair. Dropping this value deletes the namespaces.
#[derive(Debug)]
pub(super) struct Hosts {
    /// The names of the two network namespaces: first that of the servers, then that of the
    /// clients.
    names: [String; 2],
}

impl Hosts {
    /// Creates the two network namespaces and joins them by interfaces with the MTU of Ethernet.
    /// Returns `None` if the system does not allow namespaces, for example because this process is
    /// not root.
    pub(super) fn create() -> anyhow::Result<Option<Self>> {
        let hosts = Self {
            names: ["server", "client"].map(|host| format!("rdma-test-{}-{host}", process::id())),
        };
        let [server, client] = &hosts.names;
        if !succeeds(&format!("netns add {server}")) {
            return Ok(None);
        }
        ip(&format!("netns add {client}"))?;
        ip(&format!(
            "-n {server} link add veth0 type veth peer name veth0 netns {client}"
        ))?;
        for (name, address) in hosts.names.iter().zip(ADDRESSES) {
            ip(&format!("-n {name} address add {address}/24 dev veth0"))?;
            ip(&format!("-n {name} link set veth0 up"))?;
            ip(&format!("-n {name} link set lo up"))?;
        }
        Ok(Some(hosts))
    }

    /// Returns a copy of the test program `program` that runs in the network namespace of the
    /// clients. The tests of the copy start their servers in the namespace of the servers.
    pub(super) fn place(&self, program: &Program) -> Program {
        let [server, client] = &self.names;
        let mut placed = program.clone();
        let prefix = ["ip", "netns", "exec", client].map(OsString::from);
        placed.command.splice(0..0, prefix);
        placed.environment.extend([
            (SERVER_ADDRESS.into(), ADDRESSES[0].into()),
            (SERVER_NAMESPACE.into(), server.into()),
        ]);
        placed
    }
}

impl Drop for Hosts {
    fn drop(&mut self) {
        for name in &self.names {
            // Fails if the namespace was not created.
            succeeds(&format!("netns delete {name}"));
        }
    }
}

/// Runs the program `ip` with the arguments in `command`, separated by spaces. Fails, with the
/// output of `ip`, if `ip` fails.
fn ip(command: &str) -> anyhow::Result<()> {
    let output = Command::new("ip").args(command.split(' ')).output();
    let output = output.with_context(|| format!("running ip {command}"))?;
    ensure!(
        output.status.success(),
        "ip {command}: {}",
        String::from_utf8_lossy(&output.stderr).trim()
    );
    Ok(())
}

/// Runs the program `ip` with the arguments in `command`, separated by spaces. Returns whether `ip`
/// succeeded.
fn succeeds(command: &str) -> bool {
    let status = Command::new("ip")
        .args(command.split(' '))
        .stderr(Stdio::null())
        .status();
    status.is_ok_and(|status| status.success())
}
