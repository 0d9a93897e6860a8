//! Builds the guest's initial root file system: busybox, kernel modules, and the files that
//! describe the command to run.

use std::fs;
use std::path::Path;

use anyhow::Context;
use xshell::Shell;

use super::cpio::Archive;
use super::job::{GuestDevices, Job};
use super::kernel::Kernel;
use super::modules;

/// The paths where Debian's package busybox-static installs a static busybox.
const BUSYBOX: [&str; 2] = ["/usr/bin/busybox", "/bin/busybox"];

/// The busybox commands that the guest's script `init.sh` uses. The guest's initial root file
/// system has a link to busybox for each command.
const APPLETS: &[&str] = &[
    "cp",
    "insmod",
    "ln",
    "mkdir",
    "mount",
    "sh",
    "sleep",
    "switch_root",
];

/// Builds the archive of the guest's root file system for one boot, in which the guest runs the
/// command of `job`. The guest loads the kernel modules that it always needs, and also
/// `extra_modules`. `mark` is the text that the guest prints at the end of each output of the
/// command. The archive is not cached, because building takes only milliseconds.
pub(crate) fn build(
    shell: &Shell,
    kernel: &Kernel,
    job: &Job,
    extra_modules: &[String],
    mark: &str,
) -> anyhow::Result<Vec<u8>> {
    let mut names = modules::TRANSPORT.to_vec();
    if job.guest_devices != GuestDevices::None {
        names.extend(modules::SOFT_ROCE);
    }
    names.extend(extra_modules.iter().map(String::as_str));
    let modules = kernel.modules(shell, names)?;

    let mut archive = Archive::default();
    for directory in ["bin", "dev", "job", "modules", "proc", "root", "sys"] {
        archive.directory(directory);
    }
    let busybox = BUSYBOX
        .into_iter()
        .map(Path::new)
        .find(|path| path.exists());
    let busybox = busybox.context("no busybox: install the package busybox-static")?;
    archive.file("bin/busybox", &fs::read(busybox)?);
    for applet in APPLETS {
        archive.symlink(&format!("bin/{applet}"), "busybox");
    }
    let mut order = String::new();
    for (name, contents) in &modules {
        archive.file(&format!("modules/{name}.ko"), contents);
        order.push_str(name);
        order.push('\n');
    }
    archive.file("modules/order", order.as_bytes());
    archive.file("job/config", &job.config(&kernel.module_tree(), mark));
    archive.file("job/shares", &job.share_calls());
    archive.file("job/session", include_bytes!("session.sh"));
    archive.file("job/command", &job.script());
    archive.file("init", include_bytes!("init.sh"));
    Ok(archive.finish())
}
