//! Two simulated hosts on one network: network namespaces joined by a veth pair.

use std::ffi::OsString;
use std::process::{self, Command};
use std::sync::atomic::{AtomicU32, Ordering};

use crate::error::{Error, Result};

/// Two simulated hosts: network namespaces joined by a veth pair. Dropping this value deletes the
/// namespaces.
#[derive(Debug)]
pub(super) struct Hosts {
    names: [String; 2],
}

/// One of the two simulated hosts of [`Hosts`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Host {
    /// The host of the servers.
    Server,
    /// The host of the client.
    Client,
}

impl Host {
    const ALL: [Self; 2] = [Self::Server, Self::Client];

    /// Returns the IPv4 address of this simulated host. Programs on the other simulated host
    /// connect to this address.
    pub(super) const fn address(self) -> &'static str {
        match self {
            Self::Server => "10.79.0.1",
            Self::Client => "10.79.0.2",
        }
    }
}

impl Hosts {
    /// Creates two hosts that are joined by a network with an MTU of `mtu` bytes.
    ///
    /// # Errors
    ///
    /// [`Error::NoNamespaces`] if the system does not allow network namespaces, for example because
    /// the process is not root. [`Error::Program`] if the program `ip` fails later.
    pub(super) fn create(mtu: usize) -> Result<Self> {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let name = |host: &Host| format!("rdma-bench-{}-{number}-{host:?}", process::id());
        let hosts = Self {
            names: Host::ALL.each_ref().map(name),
        };
        let [server, client] = &hosts.names;
        let mtu = mtu.to_string();
        ip(&["netns", "add", server]).map_err(|error| Error::NoNamespaces(error.to_string()))?;
        ip(&["netns", "add", client])?;
        let pair = ["type", "veth", "peer", "name", "veth", "netns", client];
        ip(&[
            &["-n", server, "link", "add", "veth", "mtu", &mtu],
            &pair[..],
        ]
        .concat())?;
        for (host, name) in Host::ALL.into_iter().zip(&hosts.names) {
            let address = format!("{}/24", host.address());
            ip(&["-n", name, "address", "add", &address, "dev", "veth"])?;
            ip(&["-n", name, "link", "set", "veth", "mtu", &mtu, "up"])?;
            ip(&["-n", name, "link", "set", "lo", "up"])?;
        }
        Ok(hosts)
    }

    /// Returns the words that precede a program on its command line (`ip netns exec` and more), so
    /// that the program runs on the simulated host `host`. The program's softroce device then uses
    /// the address of that host.
    pub(super) fn prefix(&self, host: Host) -> Vec<OsString> {
        let name = &self.names[host as usize];
        let address = format!("SOFTROCE_ADDRESS={}", host.address());
        ["ip", "netns", "exec", name, "env", &address]
            .map(OsString::from)
            .to_vec()
    }
}

impl Drop for Hosts {
    fn drop(&mut self) {
        for name in &self.names {
            // Fails if the namespace was not created.
            let _ = ip(&["netns", "delete", name]);
        }
    }
}

fn ip(args: &[&str]) -> Result<()> {
    let refuse = |reason: String| Error::Program {
        program: format!("ip {}", args.join(" ")),
        reason,
    };
    let output = Command::new("ip").args(args).output();
    let output = output.map_err(|error| refuse(error.to_string()))?;
    if output.status.success() {
        return Ok(());
    }
    Err(refuse(
        String::from_utf8_lossy(&output.stderr).trim().into(),
    ))
}
