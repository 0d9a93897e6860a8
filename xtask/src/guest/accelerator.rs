//! Chooses how QEMU executes the virtual machine: by KVM or by emulation.

use std::fs::{self, OpenOptions};
use std::path::Path;
use std::time::Duration;

use xshell::Shell;

use super::job::{GuestDevices, Job};
use super::qemu::Accelerator;
use super::session::{CommandEnd, Guest};
use crate::project;

/// Time limit of the trial boot, which shows whether KVM works on this machine. Under KVM, a boot
/// takes a second. A boot that takes longer than this limit has hung.
const TRIAL_LIMIT: Duration = Duration::from_secs(15);

/// Returns KVM if KVM works on this host, else emulation.
///
/// KVM may fail although `/dev/kvm` exists and can be opened: inside some virtual machines it
/// cannot run an ordinary kernel. Therefore the first call boots the guest `guest` once under KVM.
/// The outcome is stored in the cache directory, and used until the host's kernel changes.
pub(crate) fn choose(shell: &Shell, guest: &Guest) -> anyhow::Result<Accelerator> {
    let device = Path::new("/dev/kvm");
    if OpenOptions::new()
        .read(true)
        .write(true)
        .open(device)
        .is_err()
    {
        return Ok(Accelerator::Tcg);
    }
    let host = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let kept = project::cache()?.join(format!("kvm-works-on-{}", host.trim()));
    match fs::read_to_string(&kept).unwrap_or_default().trim() {
        "yes" => return Ok(Accelerator::Kvm),
        "no" => return Ok(Accelerator::Tcg),
        _ => {}
    }
    eprintln!("guest: trying {} once", device.display());
    let works = boots(shell, guest);
    fs::write(&kept, if works { "yes\n" } else { "no\n" })?;
    Ok(if works {
        Accelerator::Kvm
    } else {
        Accelerator::Tcg
    })
}

fn boots(shell: &Shell, guest: &Guest) -> bool {
    let job = Job {
        command: vec!["true".into()],
        directory: "/".into(),
        environment: Vec::new(),
        guest_devices: GuestDevices::None,
        mtu: 1500,
        shares: Vec::new(),
    };
    match guest.run_with(shell, &job, Accelerator::Kvm, TRIAL_LIMIT) {
        Ok(CommandEnd::Exit(0)) => true,
        Ok(ended) => {
            eprintln!("guest: KVM does not work here ({ended:?})");
            false
        }
        Err(error) => {
            let error = error.to_string();
            let reason = error.lines().last().unwrap_or_default().trim();
            eprintln!("guest: KVM does not work here ({reason})");
            false
        }
    }
}
