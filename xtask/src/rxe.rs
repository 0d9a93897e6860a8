//! Runs a command on a machine that has the kernel's Soft-RoCE device: this machine or the guest.

use std::env;
use std::ffi::OsString;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;
use std::time::Duration;

use anyhow::{Context, ensure};
use xshell::Shell;

use crate::guest::job::{GuestDevices, Job};
use crate::guest::kernel::Kernel;
use crate::guest::{CommandEnd, Guest};
use crate::limit::{ProcessGroup, TIMED_OUT, exit_code};
use crate::soft_roce::device;
use crate::{environment, packages};

/// The MTU of the guest's network devices in bytes: RoCE's largest path MTU, 4096, and room for
/// headers.
const MTU: u32 = 4200;

/// The requirements of a command on the machine that runs the command: this machine or a virtual
/// machine (the guest). Includes the settings of the guest.
#[derive(Clone, Debug)]
pub(crate) struct Requirements {
    /// The RDMA device of this machine, of any kind, that the command must use.
    pub(crate) device: Option<String>,
    /// Set to run the command in the guest even if this machine has a device.
    pub(crate) guest: bool,
    /// Soft-RoCE devices that the guest creates.
    pub(crate) guest_devices: GuestDevices,
    /// Kernel modules that the guest loads in addition to the modules of Soft-RoCE.
    pub(crate) modules: Vec<String>,
    /// MTU of the guest's network devices in bytes.
    pub(crate) mtu: u32,
    /// Time limit of the command; `None` for no limit.
    pub(crate) limit: Option<Duration>,
    /// Number of the guest's processors.
    pub(crate) cpus: u32,
    /// Features that the guest's processors must not have.
    pub(crate) without: Vec<&'static str>,
    /// The guest's memory in MiB.
    pub(crate) memory: u32,
    /// Directories of the host that the guest may write to.
    pub(crate) shares: Vec<PathBuf>,
    /// The working directory of the command; `None` for the current directory.
    pub(crate) directory: Option<PathBuf>,
    /// Environment variables in addition to the caller's.
    pub(crate) environment: Vec<(OsString, OsString)>,
}

impl Default for Requirements {
    fn default() -> Self {
        let here = thread::available_parallelism().map_or(1, |count| count.get().min(8) as u32);
        Self {
            device: None,
            guest: false,
            guest_devices: GuestDevices::Dummy,
            modules: Vec::new(),
            mtu: MTU,
            limit: Some(Duration::from_secs(3600)),
            // At least two: client and server of a connection poll, and the kernel needs a
            // processor, too.
            cpus: here.max(2),
            without: Vec::new(),
            memory: 2048,
            shares: Vec::new(),
            directory: None,
            environment: Vec::new(),
        }
    }
}

/// Runs `command` on a machine that meets `requirements`: this machine or the guest (a virtual
/// machine). The command gets the environment variables of xtask's caller. Returns the exit status
/// of `command`.
pub(crate) fn run(
    shell: &Shell,
    requirements: &Requirements,
    command: Vec<OsString>,
) -> anyhow::Result<u8> {
    ensure!(!command.is_empty(), "no command: put it after `--`");
    match device_here(requirements)? {
        Some(device) => run_here(&device, requirements, &command),
        None => run_in_guest(shell, requirements, command),
    }
}

/// Returns whether a command with these requirements runs in the guest (a virtual machine) rather
/// than on this machine.
pub(crate) fn runs_in_guest(requirements: &Requirements) -> bool {
    matches!(device_here(requirements), Ok(None))
}

/// Returns the name of the device of this machine on which to run a command with these
/// requirements. Returns `None` if the command must run in the guest (a virtual machine). Fails if
/// the required device does not exist.
fn device_here(requirements: &Requirements) -> anyhow::Result<Option<String>> {
    if let Some(name) = &requirements.device {
        ensure!(
            device::exists(name),
            "this machine has no RDMA device `{name}`; `ibv_devices` lists those it has"
        );
        return Ok(Some(name.clone()));
    }
    // xtask creates further devices and loads further modules only in the guest.
    let ordinary =
        requirements.guest_devices == GuestDevices::Dummy && requirements.modules.is_empty();
    if requirements.guest || !ordinary {
        return Ok(None);
    }
    Ok(device::list().into_iter().next().map(|device| device.name))
}

/// Runs `command` on this machine with `device` as the default RDMA device. Returns the exit status
/// of `command`.
pub(crate) fn run_here(
    device: &str,
    requirements: &Requirements,
    command: &[OsString],
) -> anyhow::Result<u8> {
    let words: Vec<_> = command.iter().map(|word| word.to_string_lossy()).collect();
    eprintln!("$ {}={device} {}", environment::DEVICE, words.join(" "));
    let mut child = Command::new(&command[0]);
    child.args(&command[1..]).stdin(Stdio::null());
    child.env_clear().envs(environment_of(device, requirements));
    if let Some(directory) = &requirements.directory {
        child.current_dir(directory);
    }
    let group = match ProcessGroup::spawn(&mut child) {
        Ok(group) => group,
        Err(error) => {
            eprintln!("{}: {error}", words[0]);
            return Ok(if error.kind() == ErrorKind::NotFound {
                127
            } else {
                126
            });
        }
    };
    match group.wait(requirements.limit)? {
        Some(status) => Ok(exit_code(status)),
        None => Ok(timed_out(requirements.limit)),
    }
}

fn run_in_guest(
    shell: &Shell,
    requirements: &Requirements,
    command: Vec<OsString>,
) -> anyhow::Result<u8> {
    packages::install(shell, packages::GUEST)?;
    let shares = requirements
        .shares
        .iter()
        .map(|dir| shared(dir))
        .collect::<Result<_, _>>()?;
    let directory = match &requirements.directory {
        Some(directory) => directory.clone(),
        None => env::current_dir().context("the current directory")?,
    };
    let job = Job {
        command,
        directory,
        environment: environment_of("rxe_0", requirements),
        guest_devices: requirements.guest_devices,
        mtu: requirements.mtu,
        shares,
    };
    let guest = Guest {
        kernel: Kernel::prepare(shell)?,
        cpus: requirements.cpus,
        without: requirements.without.clone(),
        memory: requirements.memory,
        modules: requirements.modules.clone(),
        limit: requirements.limit,
    };
    match guest.run(shell, &job)? {
        CommandEnd::Exit(status) => Ok(status),
        CommandEnd::TimedOut => Ok(timed_out(requirements.limit)),
    }
}

/// Returns the environment of xtask's caller with the variables of `requirements` added. Sets
/// `RDMA_DEVICE` to `device` if `requirements` names a device or the caller has not set the
/// variable.
fn environment_of(device: &str, requirements: &Requirements) -> Vec<(OsString, OsString)> {
    let mut environment = environment::with_device(device);
    if requirements.device.is_some() {
        environment.retain(|(name, _)| name != environment::DEVICE);
        environment.push((environment::DEVICE.into(), device.into()));
    }
    let given = |name: &OsString| {
        requirements
            .environment
            .iter()
            .any(|(given, _)| given == name)
    };
    environment.retain(|(name, _)| !given(name));
    environment.extend(requirements.environment.iter().cloned());
    environment
}

fn timed_out(limit: Option<Duration>) -> u8 {
    eprintln!(
        "stopped: the command was still running after {} s",
        limit.unwrap_or_default().as_secs()
    );
    TIMED_OUT
}

fn shared(directory: &Path) -> anyhow::Result<PathBuf> {
    let absolute = directory.canonicalize();
    absolute.with_context(|| format!("sharing the directory {}", directory.display()))
}
