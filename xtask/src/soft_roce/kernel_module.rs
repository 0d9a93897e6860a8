//! Loads Soft-RoCE's kernel module, and the modules that give programs access to it.

use std::fs;
use std::path::Path;

use anyhow::Context;
use xshell::{Shell, cmd};

use crate::packages::{self, Privilege};

/// The name of Soft-RoCE's kernel module.
const NAME: &str = "rdma_rxe";

/// The kernel modules that programs need: Soft-RoCE's module, and the modules that give programs
/// access to RDMA devices.
const ALL: &[&str] = &["ib_core", "ib_uverbs", "rdma_ucm", NAME];

/// The availability of Soft-RoCE's module for the running kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum State {
    /// The module is loaded, or part of the kernel image.
    Loaded,
    /// The module can be loaded.
    Available,
    /// The running kernel does not have the module.
    Absent,
}

/// Returns whether Soft-RoCE's module is loaded, available or absent.
pub(crate) fn state(shell: &Shell) -> State {
    if Path::new("/sys/module").join(NAME).exists() {
        return State::Loaded;
    }
    let Some(modprobe) = modprobe() else {
        return State::Absent;
    };
    let trial = cmd!(shell, "{modprobe} --dry-run --quiet {NAME}");
    match trial.quiet().ignore_stdout().ignore_stderr().run() {
        Ok(()) => State::Available,
        Err(_) => State::Absent,
    }
}

/// Returns the release of the running kernel, as `uname -r` prints it.
pub(crate) fn running_kernel() -> String {
    let release = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    release.trim().to_owned()
}

/// Installs the package with Soft-RoCE's module for the running kernel. Does nothing if the
/// distribution has no such package.
pub(crate) fn install_extra(shell: &Shell) -> anyhow::Result<()> {
    let package = format!("linux-modules-extra-{}", running_kernel());
    let known = cmd!(shell, "apt-cache show {package}")
        .quiet()
        .ignore_stdout()
        .ignore_stderr();
    if known.run().is_err() {
        return Ok(());
    }
    let Some(privilege) = Privilege::acquire(shell) else {
        anyhow::bail!(
            "{NAME} is in a package. Run\n    {}",
            packages::install_line(&[&package])
        );
    };
    eprintln!("to install: {package} (for the kernel module {NAME})");
    privilege.run(shell, &["apt-get", "install", "--yes", &package])
}

/// Loads Soft-RoCE's module and the modules that give programs access to it, unless they are
/// loaded.
pub(crate) fn load(shell: &Shell) -> anyhow::Result<()> {
    let loaded = |name: &&str| Path::new("/sys/module").join(name).exists();
    if ALL.iter().all(loaded) {
        return Ok(());
    }
    let modprobe = modprobe().context("no modprobe: install the package kmod")?;
    let line = [&[modprobe, "--all"], ALL].concat();
    match Privilege::acquire(shell) {
        Some(privilege) => privilege.run(shell, &line),
        None => anyhow::bail!(
            "loading modules takes root. Run\n    sudo {}",
            line.join(" ")
        ),
    }
}

/// Returns the path of the program `modprobe`; `None` if the program is not installed. Searches the
/// directories of system programs, which are not in every user's PATH.
fn modprobe() -> Option<&'static str> {
    ["/usr/sbin/modprobe", "/sbin/modprobe"]
        .into_iter()
        .find(|path| Path::new(path).exists())
}
