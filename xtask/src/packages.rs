//! Groups of Debian packages, and functions that install them.

use std::env;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, bail, ensure};
use xshell::{Cmd, Shell, cmd};

/// Debian packages that are installed together, for one purpose.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Group {
    /// Names of the packages.
    pub(crate) names: &'static [&'static str],
    /// The purpose of the packages, worded to follow "to", such as "build against libibverbs".
    pub(crate) purpose: &'static str,
}

/// The Debian packages to build the workspace: the headers of the verbs libraries, and pkg-config,
/// which finds these headers.
pub(crate) const BUILD: &Group = &Group {
    names: &["libibverbs-dev", "librdmacm-dev", "pkg-config"],
    purpose: "build against libibverbs and librdmacm",
};

/// The packages to load the kernel module, create the Soft-RoCE device on this machine, and inspect
/// the device.
pub(crate) const DEVICE: &Group = &Group {
    names: &[
        "kmod",
        "iproute2",
        "ibverbs-providers",
        "ibverbs-utils",
        "rdmacm-utils",
    ],
    purpose: "set up and inspect the kernel's Soft-RoCE device",
};

/// The Debian packages on this machine to boot the guest, a virtual machine: the emulator, the
/// guest's user space, tools to unpack a kernel package, and programs of this machine that the
/// guest runs.
pub(crate) const GUEST: &Group = &Group {
    names: &[
        "qemu-system-x86",
        "busybox-static",
        "binutils",
        "xz-utils",
        "kmod",
        "iproute2",
        "ibverbs-providers",
        "ibverbs-utils",
        "rdmacm-utils",
    ],
    purpose: "boot the QEMU guest with the kernel's Soft-RoCE device",
};

/// The Debian package to build the RPC frameworks with which rdma-rpc is compared: the Cap'n Proto
/// compiler.
pub(crate) const PEERS: &Group = &Group {
    names: &["capnproto"],
    purpose: "build the RPC frameworks that rdma-rpc is compared with",
};

/// The Debian package with the program that dissects the packets captured by tests. Without it, the
/// tests themselves check the bytes of the packets.
pub(crate) const DISSECTOR: &Group = &Group {
    names: &["tshark"],
    purpose: "dissect the packets that tests capture",
};

/// The Debian packages with the C programs that the tests run on softroce.
pub(crate) const PROGRAMS: &Group = &Group {
    names: &["ibverbs-utils", "perftest"],
    purpose: "run the usual C programs on softroce",
};

/// The Debian package of perftest, whose C programs give the reference values for rdma-core and
/// softroce in the benchmarks.
pub(crate) const PERFTEST: &Group = &Group {
    names: &["perftest"],
    purpose: "compare the benchmarks with perftest",
};

/// The package of UCX, a communication library with which the benchmarks compare softroce.
pub(crate) const UCX: &Group = &Group {
    names: &["ucx-utils"],
    purpose: "compare softroce with UCX over shared memory",
};

/// The packages with the programs of other projects that the tests run on softroce: UCX, Open MPI
/// with its compiler, and uDAPL.
pub(crate) const FOREIGN: &Group = &Group {
    names: &["ucx-utils", "openmpi-bin", "libopenmpi-dev", "dapl2-utils"],
    purpose: "run UCX, Open MPI and uDAPL on softroce",
};

/// The package of valgrind, whose tool callgrind counts instructions.
pub(crate) const CALLGRIND: &Group = &Group {
    names: &["valgrind"],
    purpose: "count instructions",
};

/// The prefix of the names of Debian packages that apt may remove when it installs another version
/// of QEMU. If apt would remove any other package, nothing is installed.
const REPLACEABLE: &str = "qemu-";

/// Pairs of a Debian package and a program in it. If the program exists, the package counts as
/// installed, even if dpkg does not list the package, for example after an installation from source
/// code.
const PROGRAM_OF: &[(&str, &str)] = &[
    ("binutils", "ar"),
    ("dapl2-utils", "dtest"),
    ("ibverbs-utils", "ibv_devinfo"),
    ("iproute2", "ip"),
    ("kmod", "modprobe"),
    ("libopenmpi-dev", "mpicc"),
    ("openmpi-bin", "mpirun"),
    ("perftest", "ib_send_lat"),
    ("pkg-config", "pkg-config"),
    ("qemu-system-x86", "qemu-system-x86_64"),
    ("rdmacm-utils", "rping"),
    ("tshark", "tshark"),
    ("ucx-utils", "ucx_perftest"),
    ("valgrind", "valgrind"),
    ("xz-utils", "xz"),
];

/// The name of the environment variable with a directory of headers and libraries. The build script
/// of ibverbs-sys reads the variable, for systems on which these files are not in the usual
/// directories.
const PREFIX: &str = "IBVERBS_SYS_PREFIX";

/// Returns the Debian packages in `wanted` that are not installed. A package also counts as
/// installed if dpkg does not list it but its contents exist, as after an installation from source
/// code.
pub(crate) fn missing(shell: &Shell, wanted: &[&'static str]) -> Vec<&'static str> {
    let format = "${binary:Package} ${Status}\\n";
    let known = cmd!(shell, "dpkg-query --show --showformat={format} {wanted...}");
    let known = known
        .quiet()
        .ignore_status()
        .ignore_stderr()
        .read()
        .unwrap_or_default();
    let mut not_installed = not_installed(&known, wanted);
    not_installed.retain(|name| !is_provided(shell, name));
    not_installed
}

/// Returns whether the contents of `package` exist on this machine, even if dpkg does not list the
/// package, as after an installation from source code. The package then need not be installed.
fn is_provided(shell: &Shell, package: &str) -> bool {
    if let "libibverbs-dev" | "librdmacm-dev" = package {
        let library = package.trim_end_matches("-dev");
        let found = cmd!(shell, "pkg-config --exists {library}").quiet();
        return env::var_os(PREFIX).is_some() || found.ignore_stderr().run().is_ok();
    }
    let program = PROGRAM_OF.iter().find(|(name, _)| *name == package);
    let paths = env::var_os("PATH").unwrap_or_default();
    program.is_some_and(|(_, program)| {
        env::split_paths(&paths).any(|directory| directory.join(program).is_file())
    })
}

/// Installs the missing packages of `group`, after printing their names and their purpose. If this
/// process may not install packages, fails with the command that a user can run.
pub(crate) fn install(shell: &Shell, group: &Group) -> anyhow::Result<()> {
    let missing = missing(shell, group.names);
    if missing.is_empty() {
        return Ok(());
    }
    announce(&[(group, missing.clone())]);
    install_missing(shell, group, &missing)
}

/// Installs the missing Debian packages of all `groups`, after printing a list of their names and
/// purposes. A group has all packages for one purpose. Returns the groups that could not be
/// installed, each with the error.
pub(crate) fn install_all(
    shell: &Shell,
    groups: &[&'static Group],
) -> Vec<(&'static Group, anyhow::Error)> {
    let mut plan = Vec::new();
    for &group in groups {
        let missing = missing(shell, group.names);
        if !missing.is_empty() {
            plan.push((group, missing));
        }
    }
    announce(&plan);
    plan.iter()
        .filter_map(|(group, missing)| {
            let error = install_missing(shell, group, missing).err()?;
            Some((*group, error))
        })
        .collect()
}

/// Prints the packages of `plan` that will be installed, and their purpose, one line for each
/// group.
fn announce(plan: &[(&Group, Vec<&str>)]) {
    for (group, missing) in plan {
        eprintln!("to install: {} (to {})", missing.join(" "), group.purpose);
    }
}

fn install_missing(shell: &Shell, group: &Group, missing: &[&str]) -> anyhow::Result<()> {
    let purpose = group.purpose;
    if !Path::new("/usr/bin/apt-get").exists() {
        bail!(
            "to {purpose}, install {}\n(names of Debian packages: this system has no apt-get; \
             install their counterparts with its package manager)",
            missing.join(" ")
        );
    }
    let Some(privilege) = Privilege::acquire(shell) else {
        bail!(
            "to {purpose}, packages are missing, and installing them takes root. Run\n    {}\n\
             then this command again",
            install_line(missing)
        );
    };
    if apt_install(shell, privilege, missing).is_ok() {
        return Ok(());
    }
    // apt's package lists are absent on a fresh machine and outdated on an old one. An update fails
    // if one of several sources fails, and the other sources may have the packages.
    if let Err(error) = privilege.run(shell, &["apt-get", "-qq", "update"]) {
        eprintln!("{error:#}");
    }
    apt_install(shell, privilege, missing).with_context(|| {
        format!(
            "to {purpose}, packages are missing, and apt-get could not install them. See why with\n    \
             {}\nand run this command again",
            install_line(missing)
        )
    })
}

/// Returns the shell command with which a user installs the packages `names`, for error messages
/// and reports.
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

/// The way in which this process can run commands as root, for example to install packages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Privilege {
    /// The process is root.
    Root,
    /// `sudo` works without a password.
    Sudo,
}

impl Privilege {
    /// Returns the way in which this process can run commands as root, or `None` if it cannot.
    /// Never prompts for a password.
    pub(crate) fn acquire(shell: &Shell) -> Option<Self> {
        if rustix::process::geteuid().is_root() {
            return Some(Self::Root);
        }
        let sudo = cmd!(shell, "sudo --non-interactive true")
            .quiet()
            .ignore_stdout();
        sudo.ignore_stderr().run().is_ok().then_some(Self::Sudo)
    }

    /// Prints `command`, and runs the command as root. Fails if the command fails.
    pub(crate) fn run(self, shell: &Shell, command: &[&str]) -> anyhow::Result<()> {
        let sudo: &[&str] = match self {
            Self::Root => &[],
            Self::Sudo => &["sudo", "--non-interactive"],
        };
        let mut words = sudo.iter().chain(command);
        let program = words.next().context("the command is empty")?;
        run_quietly(cmd!(shell, "{program} {words...}"))
    }
}

/// Prints `command`, and runs the command with all its output on standard error. Standard output is
/// reserved for the output of the command that the user requested.
pub(crate) fn run_quietly(command: Cmd<'_>) -> anyhow::Result<()> {
    let line = command.to_string();
    eprintln!("$ {line}");
    let status = Command::from(command).stdout(std::io::stderr()).status();
    let status = status.with_context(|| format!("starting `{line}`"))?;
    ensure!(status.success(), "`{line}` failed: {status}");
    Ok(())
}

/// Returns the packages in `wanted` that are not installed. `known` is the output of dpkg-query,
/// with lines of the form `package[:arch] want flag status`.
fn not_installed(known: &str, wanted: &[&'static str]) -> Vec<&'static str> {
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

/// Returns the names of the packages that apt-get would remove, according to `plan`, the output of
/// a simulated run of apt-get.
fn removals(plan: &str) -> Vec<&str> {
    let lines = plan.lines().filter_map(|line| line.strip_prefix("Remv "));
    lines
        .filter_map(|line| line.split_whitespace().next())
        .collect()
}

#[cfg(test)]
mod tests {
    use super::{BUILD, DEVICE, not_installed, removals};
    use crate::project;

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
            not_installed(known, &wanted),
            ["perftest", "qemu-system-x86", "xz-utils"]
        );
    }

    /// Returns the names of the Debian packages that the documentation page `docs/src/{page}` tells
    /// the user to install, in the order of the page.
    fn installed_on(page: &str) -> Vec<String> {
        let path = project::root().join("docs/src").join(page);
        let text = std::fs::read_to_string(path).unwrap();
        let mut commands = text
            .lines()
            .filter_map(|line| Some(line.split_once("apt-get install ")?.1));
        let words = commands.next().expect("the page has a command");
        assert_eq!(commands.next(), None);
        let words = words.split_whitespace().filter(|word| *word != "-y");
        words.map(str::to_owned).collect()
    }

    #[test]
    fn the_documentation_names_the_packages_that_are_installed() {
        assert_eq!(installed_on("containers.md"), BUILD.names);
        let of_device = [BUILD.names, DEVICE.names].concat();
        assert_eq!(installed_on("soft-roce.md"), of_device);
    }

    #[test]
    fn without_dpkg_everything_is_absent() {
        assert_eq!(not_installed("", &["kmod"]), ["kmod"]);
    }

    #[test]
    fn removals_are_read_from_the_simulation() {
        let plan = "Remv qemu-utils [1:10.0]\nInst seabios (1.16 Debian [all])\nConf seabios\n";
        assert_eq!(removals(plan), ["qemu-utils"]);
    }
}
