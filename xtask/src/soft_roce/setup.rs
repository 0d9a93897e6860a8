//! Sets up a Soft-RoCE device of the kernel: on this machine if its kernel has the module, else in
//! the guest.

use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use xshell::Shell;

use super::device::{self, Device};
use super::{gid, kernel_module, netdev};
use crate::packages::{self, Privilege};
use crate::rxe::{self, Requirements};

/// Maximum wait until a device has a usable GID. Duplicate address detection alone takes two
/// seconds.
const GID_LIMIT: Duration = Duration::from_secs(10);

/// The options of `cargo xtask softroce-setup`, which describe the kernel's Soft-RoCE device that
/// the command must provide.
#[derive(Debug, Default)]
pub(crate) struct Request {
    /// The network device that the Soft-RoCE device uses; `None` for the network device of the
    /// default route, or else a new dummy device.
    pub(crate) netdev: Option<String>,
    /// The device's name; `None` for any existing device, else the first free name of `rxe_0`,
    /// `rxe_1` and so on.
    pub(crate) name: Option<String>,
}

/// Sets up the Soft-RoCE device that `request` describes, on this machine or else in the guest.
/// Skips steps that are already done.
pub(crate) fn setup(shell: &Shell, request: &Request) -> anyhow::Result<()> {
    packages::install(shell, packages::BUILD)?;
    packages::install(shell, packages::DEVICE)?;
    if kernel_module::state(shell) == kernel_module::State::Absent {
        kernel_module::install_extra(shell)?;
    }
    match kernel_module::state(shell) {
        kernel_module::State::Loaded | kernel_module::State::Available => here(shell, request),
        kernel_module::State::Absent => guest(shell, request),
    }
}

fn here(shell: &Shell, request: &Request) -> anyhow::Result<()> {
    // Loaded even if rdma_rxe is loaded: the interfaces by which programs use the device are
    // separate modules.
    kernel_module::load(shell)?;
    let device = match plan(&device::list(), request)? {
        Plan::Use(device) => {
            eprintln!("{} is on {} already", device.name, device.netdev);
            device
        }
        Plan::Add(name) => add(shell, name, request)?,
    };
    let Device { name, netdev } = &device;
    let deadline = Instant::now() + GID_LIMIT;
    while !device::port_is_active(name) {
        ensure!(
            Instant::now() < deadline,
            "the port of {name} is down, because {netdev} is down or has no carrier. Run\n    \
             sudo ip link set {netdev} up\nand this command again"
        );
        thread::sleep(Duration::from_millis(20));
    }
    let Some(gid) = gid::wait_usable(name, netdev, GID_LIMIT) else {
        bail!(
            "{name} on {netdev} has no usable GID after {} s. A GID comes from an address of the \
             network device: give it one with\n    \
             sudo ip address add ADDRESS/LENGTH dev {netdev}\nand run this command again",
            GID_LIMIT.as_secs()
        );
    };
    println!("{name} on {netdev} is ready: {gid}");
    println!("try: ibv_devinfo -v -d {name}");
    Ok(())
}

fn add(shell: &Shell, name: String, request: &Request) -> anyhow::Result<Device> {
    let netdev = match request.netdev.clone().or_else(netdev::of_default_route) {
        Some(netdev) => netdev,
        None => netdev::dummy(shell)?,
    };
    ensure!(
        netdev::exists(&netdev),
        "no network device `{netdev}`; `ip link` lists them"
    );
    // The network device of the default route may already have a Soft-RoCE device.
    if let Some(device) = device::list()
        .into_iter()
        .find(|device| device.netdev == netdev)
    {
        eprintln!("{} is on {netdev} already", device.name);
        return Ok(device);
    }
    let line = [
        "rdma", "link", "add", &name, "type", "rxe", "netdev", &netdev,
    ];
    let Some(privilege) = Privilege::acquire(shell) else {
        bail!(
            "adding the link takes root. Run\n    sudo {}",
            line.join(" ")
        );
    };
    privilege.run(shell, &line).with_context(|| {
        format!("could not add {name} on {netdev}: the kernel's log (`dmesg`) has the reason")
    })?;
    Ok(Device { name, netdev })
}

/// The action by which `cargo xtask softroce-setup` provides the requested Soft-RoCE device.
#[derive(Debug, PartialEq, Eq)]
enum Plan {
    /// Uses this existing device.
    Use(Device),
    /// Adds a device with this name.
    Add(String),
}

/// Decides how to provide the Soft-RoCE device that `request` describes: by one of the existing
/// devices `present`, or by a new device. Fails if the network device already has a Soft-RoCE
/// device with another name, or if the requested name belongs to a device on another network
/// device.
fn plan(present: &[Device], request: &Request) -> anyhow::Result<Plan> {
    let on_netdev = present
        .iter()
        .find(|device| Some(&device.netdev) == request.netdev.as_ref());
    let named = present
        .iter()
        .find(|device| Some(&device.name) == request.name.as_ref());
    let found = match (&request.netdev, &request.name) {
        (None, None) => present.first(),
        (None, Some(_)) => named,
        (Some(_), None) => on_netdev,
        (Some(netdev), Some(name)) => {
            if let Some(device) = on_netdev.filter(|device| device.name != *name) {
                bail!(
                    "{netdev} carries {} already, and can carry no other",
                    device.name
                );
            }
            if let Some(device) = named.filter(|device| device.netdev != *netdev) {
                bail!(
                    "{name} is on {} already: choose another --name",
                    device.netdev
                );
            }
            on_netdev
        }
    };
    if let Some(device) = found {
        return Ok(Plan::Use(device.clone()));
    }
    let free = |name: &String| !present.iter().any(|device| device.name == *name);
    let name = match &request.name {
        Some(name) => name.clone(),
        None => (0..)
            .map(|number| format!("rxe_{number}"))
            .find(free)
            .expect("numbers do not end"),
    };
    Ok(Plan::Add(name))
}

fn guest(shell: &Shell, request: &Request) -> anyhow::Result<()> {
    let kernel = kernel_module::running_kernel();
    if let Some(netdev) = &request.netdev {
        bail!("the running kernel, {kernel}, has no rdma_rxe, so there can be no link on {netdev}");
    }
    eprintln!("the running kernel, {kernel}, has no rdma_rxe: preparing the guest");
    let requirements = Requirements {
        guest: true,
        ..Requirements::default()
    };
    let command = ["rdma", "link", "show"].map(Into::into).to_vec();
    let status = rxe::run(shell, &requirements, command)?;
    ensure!(
        status == 0,
        "the guest does not work: `rdma link show` ended with {status} in it"
    );
    println!("the guest is ready; run commands in it with\n    cargo xtask on rxe -- COMMAND...");
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn device(name: &str, netdev: &str) -> Device {
        Device {
            name: name.into(),
            netdev: netdev.into(),
        }
    }

    fn planned(
        present: &[Device],
        netdev: Option<&str>,
        name: Option<&str>,
    ) -> Result<Plan, String> {
        let request = Request {
            netdev: netdev.map(Into::into),
            name: name.map(Into::into),
        };
        plan(present, &request).map_err(|error| error.to_string())
    }

    #[test]
    fn what_is_there_is_used() {
        let present = [device("rxe_0", "eth0"), device("rxe_1", "eth1")];
        let used = |index: usize| Ok(Plan::Use(present[index].clone()));
        assert_eq!(planned(&present, None, None), used(0));
        assert_eq!(planned(&present, Some("eth1"), None), used(1));
        assert_eq!(planned(&present, None, Some("rxe_1")), used(1));
        assert_eq!(planned(&present, Some("eth0"), Some("rxe_0")), used(0));
    }

    #[test]
    fn what_is_not_there_is_added_under_a_free_name() {
        let present = [device("rxe_0", "eth0")];
        assert_eq!(planned(&[], None, None), Ok(Plan::Add("rxe_0".into())));
        assert_eq!(
            planned(&present, Some("eth1"), None),
            Ok(Plan::Add("rxe_1".into()))
        );
        assert_eq!(
            planned(&present, Some("eth1"), Some("x")),
            Ok(Plan::Add("x".into()))
        );
    }

    #[test]
    fn an_impossible_request_is_refused() {
        let present = [device("rxe_0", "eth0")];
        let error = planned(&present, Some("eth0"), Some("rxe_9")).unwrap_err();
        assert!(error.contains("carries rxe_0"), "{error}");
        let error = planned(&present, Some("eth1"), Some("rxe_0")).unwrap_err();
        assert!(error.contains("on eth0"), "{error}");
    }
}
