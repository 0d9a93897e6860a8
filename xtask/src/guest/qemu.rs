//! The emulator QEMU: its command line, its process, and the connections with the guest.

use std::ffi::{OsStr, OsString};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStderr, Command, Stdio};

use anyhow::Context;
use rustix::fs::MemfdFlags;
use rustix::io::FdFlags;
use rustix::process::Signal;

use super::counter;
use super::job::share_tag;

/// The name of QEMU's program for a machine with x86-64 processors.
const PROGRAM: &str = "qemu-system-x86_64";

/// The path of a minimal firmware, which boots a PVH kernel image half a second faster than QEMU's
/// default firmware.
const FIRMWARE: &str = "/usr/share/qemu/qboot.rom";

/// Parameters of the guest's kernel. Self-tests of ciphers, clearing of fresh pages and mitigations
/// are turned off: under emulation they take the larger part of the boot time. The time-stamp
/// counter remains the clock even if a busy host makes it seem unstable: the clock that the kernel
/// would use instead takes a microsecond to read, which would show in every latency. A panic ends
/// the emulator.
const KERNEL_PARAMETERS: &str = "console=ttyS0 quiet panic=-1 cryptomgr.notests init_on_alloc=0 \
                                 rcupdate.rcu_expedited=1 mitigations=off nokaslr \
                                 random.trust_cpu=on tsc=reliable";

/// The mechanism that executes the guest's instructions: KVM or emulation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Accelerator {
    /// KVM: the host's processor, through `/dev/kvm`.
    Kvm,
    /// TCG: QEMU translates the guest's instructions.
    Tcg,
}

impl Accelerator {
    /// Returns the arguments of QEMU that select this accelerator, and a processor with all
    /// features that the accelerator supports, except the features in `without`.
    fn arguments(self, without: &[&str]) -> [String; 4] {
        let (accelerator, processor) = match self {
            Self::Kvm => ("kvm", "host"),
            Self::Tcg => ("tcg,thread=multi,tb-size=256", "max"),
        };
        let mut processor = processor.to_owned();
        for feature in without {
            processor += &format!(",-{feature}");
        }
        [
            "-accel".to_owned(),
            accelerator.to_owned(),
            "-cpu".to_owned(),
            processor,
        ]
    }
}

/// The virtual machine that QEMU runs.
#[derive(Debug)]
pub(crate) struct Machine {
    /// The mechanism that executes the guest's instructions.
    pub(crate) accelerator: Accelerator,
    /// Number of the guest's processors.
    pub(crate) cpus: u32,
    /// Processor features that the guest's processors do not have, by the names that QEMU uses.
    pub(crate) without: Vec<&'static str>,
    /// The guest's memory in MiB.
    pub(crate) memory: u32,
    /// Path of the uncompressed kernel image.
    pub(crate) kernel: PathBuf,
    /// Directories of the host that the guest may write to.
    pub(crate) shares: Vec<PathBuf>,
}

/// A handle to the process of QEMU. QEMU is killed when this value is dropped or this process dies.
#[derive(Debug)]
pub(crate) struct Qemu {
    child: Child,
}

/// The host's ends of the connections with the guest: sockets that are connected to the guest's
/// ports, and the error output of QEMU.
#[derive(Debug)]
pub(crate) struct Ports {
    /// The output of the guest's kernel and of its first process.
    pub(crate) console: UnixStream,
    /// Lines that report the progress of the guest.
    pub(crate) status: UnixStream,
    /// The standard output of the command that runs in the guest.
    pub(crate) stdout: UnixStream,
    /// The standard error of the command that runs in the guest.
    pub(crate) stderr: UnixStream,
    /// Error messages of the emulator itself.
    pub(crate) errors: ChildStderr,
}

impl Qemu {
    /// Starts QEMU for the virtual machine `machine` with the archive `initramfs` as initial root.
    /// Returns a handle to QEMU's process, and the host's ends of the connections with the guest.
    /// No file is left on disk at any time: the archive is a memory file, and the connections with
    /// the guest are socket pairs.
    pub(crate) fn start(machine: &Machine, initramfs: &[u8]) -> anyhow::Result<(Self, Ports)> {
        let archive = memory_file(initramfs).context("creating a memory file for the initramfs")?;
        let (console, console_end) = UnixStream::pair()?;
        let (status, status_end) = UnixStream::pair()?;
        let (stdout, stdout_end) = UnixStream::pair()?;
        let (stderr, stderr_end) = UnixStream::pair()?;
        let ends = [console_end, status_end, stdout_end, stderr_end].map(OwnedFd::from);
        let fds = ends.each_ref().map(AsRawFd::as_raw_fd);
        let arguments = machine.arguments(archive.as_raw_fd(), fds, Path::new(FIRMWARE).exists());
        eprintln!("$ {}", printable(&arguments));

        let mut command = Command::new(PROGRAM);
        command
            .args(arguments)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped());
        let parent = rustix::process::getpid();
        let inherited = move || -> io::Result<()> {
            for fd in ends.iter().chain([&archive]) {
                rustix::io::fcntl_setfd(fd, FdFlags::empty())?;
            }
            rustix::process::set_parent_process_death_signal(Some(Signal::KILL))?;
            // The parent may have died before the call above took effect.
            match rustix::process::getppid() {
                Some(now) if now == parent => Ok(()),
                _ => Err(io::ErrorKind::Interrupted.into()),
            }
        };
        // SAFETY: the closure runs in the forked child of a process that may have other threads.
        // The closure makes four kinds of system call through rustix, which neither allocates nor
        // locks, and builds an error from a kind, which does not allocate either.
        unsafe { command.pre_exec(inherited) };
        let mut child = command
            .spawn()
            .with_context(|| format!("starting {PROGRAM}"))?;
        // The closure owns this process's copies of the guest's descriptors. These copies must be
        // closed here, so that the connections end together with the emulator.
        drop(command);
        let errors = child
            .stderr
            .take()
            .context("QEMU's standard error is not a pipe")?;
        Ok((
            Self { child },
            Ports {
                console,
                status,
                stdout,
                stderr,
                errors,
            },
        ))
    }
}

impl Drop for Qemu {
    fn drop(&mut self) {
        // Both fail only if the process has already ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Machine {
    fn kernel_parameters(&self) -> String {
        match self.accelerator {
            // The kernel gets the frequency of the counter from the hypervisor.
            Accelerator::Kvm => KERNEL_PARAMETERS.to_owned(),
            Accelerator::Tcg => {
                format!("{KERNEL_PARAMETERS} tsc_early_khz={}", counter::kilohertz())
            }
        }
    }

    fn arguments(&self, initramfs: RawFd, ports: [RawFd; 4], firmware: bool) -> Vec<OsString> {
        let [console, status, stdout, stderr] = ports;
        let mut line = Line::default();
        line.add([
            "-no-user-config",
            "-nodefaults",
            "-display",
            "none",
            "-no-reboot",
        ]);
        line.add(["-machine", "q35"])
            .add(self.accelerator.arguments(&self.without));
        line.add([
            "-smp",
            &self.cpus.to_string(),
            "-m",
            &self.memory.to_string(),
        ]);
        if firmware {
            line.add(["-bios", FIRMWARE]);
        }
        line.add(["-kernel"]).add([&self.kernel]);
        line.add(["-initrd", &format!("/proc/self/fd/{initramfs}")]);
        line.add(["-append", &self.kernel_parameters()]);
        line.add(["-chardev", &format!("socket,id=console,fd={console}")]);
        line.add(["-serial", "chardev:console"]);
        line.add(["-device", "virtio-serial-pci"]);
        for (number, name, fd) in [
            (1, "status", status),
            (2, "stdout", stdout),
            (3, "stderr", stderr),
        ] {
            line.add(["-chardev", &format!("socket,id={name},fd={fd}")]);
            line.add([
                "-device",
                &format!("virtserialport,chardev={name},nr={number}"),
            ]);
        }
        line.directory("host", Path::new("/"), ",readonly=on");
        for (index, directory) in self.shares.iter().enumerate() {
            line.directory(&share_tag(index), directory, "");
        }
        line.0
    }
}

/// The arguments of a QEMU command line under construction, without the name of the program.
#[derive(Default)]
struct Line(Vec<OsString>);

impl Line {
    fn add<const N: usize>(&mut self, words: [impl AsRef<OsStr>; N]) -> &mut Self {
        self.0
            .extend(words.iter().map(|word| word.as_ref().to_owned()));
        self
    }

    /// Adds the options that export the directory `path` to the guest, with the tag `tag` and the
    /// access mode `access`. A comma in the path is doubled, as QEMU's options require.
    fn directory(&mut self, tag: &str, path: &Path, access: &str) {
        let mut option = format!("local,id={tag},security_model=none,multidevs=remap").into_bytes();
        option.extend_from_slice(access.as_bytes());
        option.extend_from_slice(b",path=");
        for &byte in path.as_os_str().as_bytes() {
            option.extend(std::iter::repeat_n(byte, if byte == b',' { 2 } else { 1 }));
        }
        self.add(["-fsdev".into(), OsString::from_vec(option)]);
        self.add([
            "-device",
            &format!("virtio-9p-pci,fsdev={tag},mount_tag={tag}"),
        ]);
    }
}

fn memory_file(contents: &[u8]) -> io::Result<OwnedFd> {
    let file = rustix::fs::memfd_create("initramfs", MemfdFlags::CLOEXEC)?;
    let mut file = std::fs::File::from(file);
    io::Write::write_all(&mut file, contents)?;
    Ok(file.into())
}

fn printable(arguments: &[OsString]) -> String {
    let mut line = PROGRAM.to_owned();
    for word in arguments {
        let word = word.to_string_lossy();
        line.push(' ');
        match word.contains(' ') {
            true => line.push_str(&format!("'{word}'")),
            false => line.push_str(&word),
        }
    }
    line
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn processors_lack_what_they_are_not_to_have() {
        let [.., processor] = Accelerator::Tcg.arguments(&["pclmulqdq", "avx2"]);
        assert_eq!(processor, "max,-pclmulqdq,-avx2");
        let [.., processor] = Accelerator::Kvm.arguments(&[]);
        assert_eq!(processor, "host");
    }

    #[test]
    fn shared_paths_are_escaped_and_only_they_are_writable() {
        let machine = Machine {
            accelerator: Accelerator::Tcg,
            cpus: 2,
            without: Vec::new(),
            memory: 1024,
            kernel: "/k/vmlinux".into(),
            shares: vec!["/a,b".into()],
        };
        let arguments = machine.arguments(9, [3, 4, 5, 6], true);
        let directories: Vec<_> = arguments
            .iter()
            .filter_map(|word| word.to_str())
            .filter(|word| word.starts_with("local,"))
            .collect();
        assert_eq!(
            directories,
            [
                "local,id=host,security_model=none,multidevs=remap,readonly=on,path=/",
                "local,id=share0,security_model=none,multidevs=remap,path=/a,,b",
            ]
        );
    }
}
