//! Debian packages: which ones a task needs, and getting them installed.

use std::path::Path;
use std::process::Command;

use anyhow::{Context, bail, ensure};
use xshell::{Cmd, Shell, cmd};

/// What it takes to build programs of the workspace: headers of the verbs libraries, and the tool
/// that finds them.
pub(crate) const BUILD: &[&str] = &["libibverbs-dev", "librdmacm-dev", "pkg-config"];

/// What loads the module and makes the link on this machine, and looks at the result.
pub(crate) const DEVICE: &[&str] = &[
    "kmod",
    "iproute2",
    "ibverbs-providers",
    "ibverbs-utils",
    "rdmacm-utils",
];

/// What boots the guest: the emulator, its user space, tools to unpack a kernel package, and what
/// the guest uses of this machine's files.
pub(crate) const GUEST: &[&str] = &[
    "qemu-system-x86",
    "busybox-static",
    "binutils",
    "xz-utils",
    "kmod",
    "iproute2",
    "ibverbs-providers",
    "ibverbs-utils",
    "rdmacm-utils",
];

/// What dissects the captures that tests write. They look at the bytes themselves where it is not.
pub(crate) const DISSECTOR: &[&str] = &["tshark"];

/// The C programs that are run on softroce.
pub(crate) const PROGRAMS: &[&str] = &["ibverbs-utils", "perftest"];

/// The C tools that the benchmarks compare with.
pub(crate) const PERFTEST: &[&str] = &["perftest"];

/// The library over shared memory that softroce is measured against.
pub(crate) const UCX: &[&str] = &["ucx-utils"];

/// What counts instructions.
pub(crate) const CALLGRIND: &[&str] = &["valgrind"];

/// Packages with names that begin like this may be removed when apt sees no other way: parts of
/// another version of what is to be installed.
const REPLACEABLE: &str = "qemu-";

/// Those of `wanted` that are not installed. Everything, where there is no dpkg to ask.
pub(crate) fn missing(shell: &Shell, wanted: &[&'static str]) -> Vec<&'static str> {
    let format = "${binary:Package} ${Status}\\n";
    let known = cmd!(shell, "dpkg-query --show --showformat={format} {wanted...}");
    let known = known
        .quiet()
        .ignore_status()
        .ignore_stderr()
        .read()
        .unwrap_or_default();
    absent(&known, wanted)
}

/// Installs those of `wanted` that are missing. Without the right to, says which line to run.
pub(crate) fn install(shell: &Shell, wanted: &[&'static str]) -> anyhow::Result<()> {
    let missing = missing(shell, wanted);
    if missing.is_empty() {
        return Ok(());
    }
    if !Path::new("/usr/bin/apt-get").exists() {
        bail!(
            "missing: {}\n(names of Debian packages: install their counterparts with this \
             system's package manager)",
            missing.join(" ")
        );
    }
    let Some(privilege) = Privilege::acquire(shell) else {
        bail!(
            "packages are missing, and installing them takes root. Run\n    {}\n\
             then this command again",
            install_line(&missing)
        );
    };
    if apt_install(shell, privilege, &missing).is_err() {
        // The lists are absent on a fresh machine and outdated on an old one.
        privilege.run(shell, &["apt-get", "-qq", "update"])?;
        apt_install(shell, privilege, &missing)
            .with_context(|| format!("apt-get could not install {}", missing.join(" ")))?;
    }
    Ok(())
}

/// The line that installs `names`.
pub(crate) fn install_line(names: &[&str]) -> String {
    format!(
        "sudo apt-get install --no-install-recommends {}",
        names.join(" ")
    )
}

fn apt_install(shell: &Shell, privilege: Privilege, names: &[&str]) -> anyhow::Result<()> {
    let install = ["install", "--yes", "--no-install-recommends"];
    let plan = cmd!(shell, "apt-get --simulate {install...} {names...}")
        .quiet()
        .ignore_stderr();
    let plan = plan.read()?;
    let removed: Vec<&str> = removals(&plan)
        .into_iter()
        .filter(|name| !name.starts_with(REPLACEABLE))
        .collect();
    ensure!(
        removed.is_empty(),
        "apt would remove {}. Decide yourself, with\n    {}",
        removed.join(" "),
        install_line(names)
    );
    let mut command = vec!["env", "DEBIAN_FRONTEND=noninteractive", "apt-get", "-qq"];
    command.extend(["-o", "DPkg::Lock::Timeout=600", "-o", "Dpkg::Use-Pty=0"]);
    command.extend(install);
    command.extend(names);
    privilege.run(shell, &command)
}

/// How this process may act as root.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Privilege {
    /// It is root.
    Root,
    /// `sudo` works and asks for no password.
    Sudo,
}

impl Privilege {
    /// Finds out, without ever prompting.
    pub(crate) fn acquire(shell: &Shell) -> Option<Self> {
        if rustix::process::geteuid().is_root() {
            return Some(Self::Root);
        }
        let sudo = cmd!(shell, "sudo --non-interactive true")
            .quiet()
            .ignore_stdout();
        sudo.ignore_stderr().run().is_ok().then_some(Self::Sudo)
    }

    /// Runs `command` as root, echoing it.
    pub(crate) fn run(self, shell: &Shell, command: &[&str]) -> anyhow::Result<()> {
        let sudo: &[&str] = match self {
            Self::Root => &[],
            Self::Sudo => &["sudo", "--non-interactive"],
        };
        let mut words = sudo.iter().chain(command);
        let program = words.next().context("an empty command")?;
        chatter(cmd!(shell, "{program} {words...}"))
    }
}

/// Runs `command`, echoing it, with all it prints on standard error: preparations must not show
/// in the output of the command that they prepare.
pub(crate) fn chatter(command: Cmd<'_>) -> anyhow::Result<()> {
    let line = command.to_string();
    eprintln!("$ {line}");
    let status = Command::from(command).stdout(std::io::stderr()).status();
    let status = status.with_context(|| format!("starting `{line}`"))?;
    ensure!(status.success(), "`{line}` failed: {status}");
    Ok(())
}

/// Those of `wanted` that `known`, lines of `package[:arch] want flag status`, does not show as
/// installed.
fn absent(known: &str, wanted: &[&'static str]) -> Vec<&'static str> {
    let installed: Vec<&str> = known
        .lines()
        .filter_map(|line| line.strip_suffix(" ok installed"))
        .filter_map(|line| line.split([' ', ':']).next())
        .collect();
    wanted
        .iter()
        .copied()
        .filter(|name| !installed.contains(name))
        .collect()
}

/// The packages that a simulated run of apt-get removes.
fn removals(plan: &str) -> Vec<&str> {
    let lines = plan.lines().filter_map(|line| line.strip_prefix("Remv "));
    lines
        .filter_map(|line| line.split_whitespace().next())
        .collect()
}

#[cfg(test)]
mod tests {
    use super::{absent, removals};

    #[test]
    fn only_fully_installed_packages_count() {
        let known = "kmod install ok installed\n\
                     libibverbs-dev:amd64 install ok installed\n\
                     perftest deinstall ok config-files\n\
                     qemu-system-x86 install ok unpacked\n";
        let wanted = [
            "kmod",
            "libibverbs-dev",
            "perftest",
            "qemu-system-x86",
            "xz-utils",
        ];
        assert_eq!(
            absent(known, &wanted),
            ["perftest", "qemu-system-x86", "xz-utils"]
        );
    }

    #[test]
    fn without_dpkg_everything_is_absent() {
        assert_eq!(absent("", &["kmod"]), ["kmod"]);
    }

    #[test]
    fn removals_are_read_from_the_simulation() {
        let plan = "Remv qemu-utils [1:10.0]\nInst seabios (1.16 Debian [all])\nConf seabios\n";
        assert_eq!(removals(plan), ["qemu-utils"]);
    }
}
