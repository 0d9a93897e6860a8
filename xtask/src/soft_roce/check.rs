//! `cargo xtask softroce-setup --check`: reports what is present, what is missing, and how to fix
//! it.

use std::fmt;
use std::fs::OpenOptions;
use std::net::UdpSocket;
use std::time::Duration;

use rustix::process::{Resource, getrlimit};
use xshell::{Shell, cmd};

use super::device::{self, Device};
use super::{gid, kernel_module};
use crate::guest::kernel::Kernel;
use crate::packages;

/// The minimum limit of locked memory, in bytes, that `cargo xtask softroce-setup --check` accepts.
/// All registered memory counts towards the limit.
const ENOUGH_MEMLOCK: u64 = 64 << 20;

/// A line of the report: one requirement, and whether the machine meets it.
#[derive(Debug)]
struct Finding {
    what: &'static str,
    /// Text that names the found part (`Ok`) or the missing part (`Err`).
    state: Result<String, String>,
    /// Command or change that provides the missing part.
    fix: String,
}

impl Finding {
    fn new(what: &'static str, state: Result<String, String>, fix: impl Into<String>) -> Self {
        Self {
            what,
            state,
            fix: fix.into(),
        }
    }

    fn is_ok(&self) -> bool {
        self.state.is_ok()
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.state {
            Ok(found) => write!(f, "{:14} ok       {found}", self.what),
            Err(missing) => {
                write!(
                    f,
                    "{:14} missing  {missing}\n{:23} fix: {}",
                    self.what, "", self.fix
                )
            }
        }
    }
}

/// Checks this machine and prints the report. Returns the exit status: 0 if at least one device can
/// be used, else 1. The devices are softroce, the kernel's device on this machine, and the kernel's
/// device in the guest.
pub(crate) fn check(shell: &Shell) -> anyhow::Result<u8> {
    let devices = device::list();
    let here = [
        module(shell),
        link(&devices),
        gids(&devices),
        nodes(&devices),
    ];
    let guest = [emulator(shell), kernel()?];
    let usable_here = here[1..].iter().all(Finding::is_ok);
    let usable_in_guest = guest.iter().all(Finding::is_ok);

    let headers = headers(shell);
    let softroce = softroce();
    let in_user_space = headers.is_ok() && softroce.is_ok();
    for finding in [&headers, &softroce]
        .into_iter()
        .chain(&here)
        .chain([&memlock()])
        .chain(&guest)
    {
        println!("{finding}");
    }
    if in_user_space {
        println!("softroce, in user space, can be used on this machine: cargo xtask on softroce");
    }
    let (verdict, of_kernel) = match (usable_here, usable_in_guest) {
        (true, _) => ("the kernel's Soft-RoCE can be used on this machine", true),
        (false, true) => (
            "the kernel's Soft-RoCE can be used in the guest: cargo xtask on rxe",
            true,
        ),
        (false, false) => (
            "the kernel's Soft-RoCE cannot be used: run `cargo xtask softroce-setup`",
            false,
        ),
    };
    println!("{verdict}");
    Ok(u8::from(!in_user_space && !of_kernel))
}

/// Checks that UDP works on the loopback interface, which softroce needs. Returns the result as a
/// line of the report.
fn softroce() -> Finding {
    let state = match UdpSocket::bind(("127.0.0.1", 0)) {
        Ok(_) => Ok("UDP on the loopback network".to_owned()),
        Err(error) => Err(format!("UDP on the loopback network: {error}")),
    };
    Finding::new("softroce", state, "sudo ip link set lo up")
}

fn module(shell: &Shell) -> Finding {
    let kernel = kernel_module::running_kernel();
    let state = match kernel_module::state(shell) {
        kernel_module::State::Loaded => Ok("rdma_rxe is loaded".to_owned()),
        kernel_module::State::Available => Err("rdma_rxe is not loaded".to_owned()),
        kernel_module::State::Absent => Err(format!("kernel {kernel} has no rdma_rxe")),
    };
    let fix = match kernel_module::state(shell) {
        kernel_module::State::Absent => "a kernel that has it, or the guest",
        _ => "cargo xtask softroce-setup",
    };
    Finding::new("kernel module", state, fix)
}

fn link(devices: &[Device]) -> Finding {
    let (up, down): (Vec<_>, Vec<_>) = devices
        .iter()
        .partition(|device| device::port_is_active(&device.name));
    let names = |devices: &[&Device]| {
        let names = devices
            .iter()
            .map(|device| format!("{} on {}", device.name, device.netdev));
        names.collect::<Vec<_>>().join(", ")
    };
    let (state, fix) = match (up.is_empty(), down.first()) {
        (false, _) => (Ok(names(&up)), String::new()),
        (true, Some(device)) => {
            let fix = format!("sudo ip link set {} up", device.netdev);
            (Err(format!("the port is down: {}", names(&down))), fix)
        }
        (true, None) => (
            Err("no Soft-RoCE device".to_owned()),
            "cargo xtask softroce-setup".to_owned(),
        ),
    };
    Finding::new("link", state, fix)
}

fn gids(devices: &[Device]) -> Finding {
    let mut found = Vec::new();
    let mut without = Vec::new();
    for Device { name, netdev } in devices {
        match gid::wait_usable(name, netdev, Duration::ZERO) {
            Some(gid) => found.push(format!("{name}: {gid}")),
            None => without.push(netdev.as_str()),
        }
    }
    let state = match found.is_empty() {
        false => Ok(found.join(", ")),
        true => Err("no usable GID".to_owned()),
    };
    let netdev = without.first().unwrap_or(&"IF");
    let fix = format!("sudo ip address add ADDRESS/LENGTH dev {netdev}");
    Finding::new(
        "GID",
        state,
        if devices.is_empty() {
            "a link first".to_owned()
        } else {
            fix
        },
    )
}

/// Checks that this user may open the device nodes in `/dev/infiniband`, through which programs use
/// the RDMA devices `devices`. Returns the result as a line of the report. Checks all nodes,
/// because the number of a node does not identify its device.
fn nodes(devices: &[Device]) -> Finding {
    let nodes = std::fs::read_dir("/dev/infiniband")
        .into_iter()
        .flatten()
        .flatten();
    let nodes: Vec<_> = nodes
        .map(|entry| entry.path())
        .filter(|path| {
            let name = path
                .file_name()
                .and_then(|name| name.to_str())
                .unwrap_or_default();
            name.starts_with("uverbs") || name == "rdma_cm"
        })
        .collect();
    let closed: Vec<String> = nodes
        .iter()
        .filter(|path| {
            OpenOptions::new()
                .read(true)
                .write(true)
                .open(path)
                .is_err()
        })
        .map(|path| path.display().to_string())
        .collect();
    let (state, fix) = if nodes.is_empty() {
        let fix = if devices.is_empty() {
            "a link first"
        } else {
            "cargo xtask softroce-setup"
        };
        (
            Err("no nodes in /dev/infiniband".to_owned()),
            fix.to_owned(),
        )
    } else if closed.is_empty() {
        (
            Ok(format!("{} in /dev/infiniband", nodes.len())),
            String::new(),
        )
    } else {
        let closed = closed.join(" ");
        (
            Err(format!("may not open {closed}")),
            format!("sudo chmod a+rw {closed}"),
        )
    };
    Finding::new("device nodes", state, fix)
}

fn memlock() -> Finding {
    let state = if rustix::process::geteuid().is_root() {
        Ok("does not bind root".to_owned())
    } else {
        match getrlimit(Resource::Memlock).current {
            None => Ok("unlimited".to_owned()),
            Some(limit) if limit >= ENOUGH_MEMLOCK => Ok(format!("{} MiB", limit >> 20)),
            Some(limit) => Err(format!(
                "{} KiB, which bounds all registered memory",
                limit >> 10
            )),
        }
    };
    let fix = "`* - memlock unlimited` in /etc/security/limits.d/rdma.conf, and log in again";
    Finding::new("memlock limit", state, fix)
}

fn headers(shell: &Shell) -> Finding {
    let versions = cmd!(shell, "pkg-config --modversion libibverbs librdmacm").quiet();
    let state = match versions.ignore_stderr().read() {
        Ok(versions) => {
            let versions: Vec<&str> = versions.split_whitespace().collect();
            Ok(format!(
                "libibverbs and librdmacm {}",
                versions.join(" and ")
            ))
        }
        Err(_) => Err("libibverbs and librdmacm".to_owned()),
    };
    Finding::new(
        "headers",
        state,
        packages::install_line(packages::BUILD.names),
    )
}

fn emulator(shell: &Shell) -> Finding {
    let missing = packages::missing(shell, packages::GUEST.names);
    let state = match missing.is_empty() {
        true => Ok("packages of the guest".to_owned()),
        false => Err(missing.join(" ")),
    };
    Finding::new("guest", state, packages::install_line(&missing))
}

fn kernel() -> anyhow::Result<Finding> {
    let state = match Kernel::cached()? {
        Some(kernel) => Ok(kernel.release().to_owned()),
        None => Err("not downloaded".to_owned()),
    };
    Ok(Finding::new(
        "guest's kernel",
        state,
        "cargo xtask on rxe -- true",
    ))
}
