//! Boots the guest for one command, forwards the command's output, and returns the command's exit
//! status.

use std::collections::VecDeque;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant, SystemTime};

use anyhow::bail;
use xshell::Shell;

use super::job::Job;
use super::kernel::Kernel;
use super::qemu::{Accelerator, Machine, Ports, Qemu};
use super::{accelerator, initramfs, stream};

/// Time limit of a boot. A boot takes seconds on an idle host, and much longer on a busy host.
const BOOT_LIMIT: Duration = Duration::from_secs(180);

/// Maximum wait for the rest of the command's output after the command has ended. If output is
/// still missing after this time, the run fails.
const DRAIN_LIMIT: Duration = Duration::from_secs(60);

/// Maximum number of bytes of console output that are kept for an error message. Older output is
/// dropped.
const CONSOLE_KEPT: usize = 16 << 10;

/// The way in which the command that runs in the guest (the virtual machine) ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CommandEnd {
    /// The command ended with this exit status; 128 + n for death by signal n.
    Exit(u8),
    /// The command was still running at its time limit.
    TimedOut,
}

/// The parameters of a guest (a virtual machine) that is booted for one command.
#[derive(Debug)]
pub(crate) struct Guest {
    /// The kernel that the guest runs.
    pub(crate) kernel: Kernel,
    /// Number of the guest's processors.
    pub(crate) cpus: u32,
    /// Features that the guest's processors must not have.
    pub(crate) without: Vec<&'static str>,
    /// The guest's memory in MiB.
    pub(crate) memory: u32,
    /// Kernel modules that the guest loads in addition to the modules of Soft-RoCE.
    pub(crate) modules: Vec<String>,
    /// Time limit of the command; `None` for no limit.
    pub(crate) limit: Option<Duration>,
}

enum Event {
    /// The command starts. The value is the uptime of the guest in seconds, as text.
    Ready(String),
    /// The command has ended with this exit status.
    Exit(u8),
    /// The standard output or error of this process was closed.
    OutputClosed,
    /// The emulator has ended.
    EmulatorEnded,
}

impl Guest {
    /// Boots the guest, runs the command of `job` in the guest, and stops the guest. Returns the
    /// exit status of the command, or [`CommandEnd::TimedOut`].
    pub(crate) fn run(&self, shell: &Shell, job: &Job) -> anyhow::Result<CommandEnd> {
        let accelerator = accelerator::choose(shell, self)?;
        self.run_with(shell, job, accelerator, BOOT_LIMIT)
    }

    pub(super) fn run_with(
        &self,
        shell: &Shell,
        job: &Job,
        accelerator: Accelerator,
        boot_limit: Duration,
    ) -> anyhow::Result<CommandEnd> {
        let begin = Instant::now();
        let mark = mark();
        let initramfs = initramfs::build(shell, &self.kernel, job, &self.modules, &mark)?;
        let machine = Machine {
            accelerator,
            cpus: self.cpus,
            without: self.without.clone(),
            memory: self.memory,
            kernel: self.kernel.image(),
            shares: job.shares.clone(),
        };
        let (qemu, ports) = Qemu::start(&machine, &initramfs)?;
        let Ports {
            console,
            status,
            stdout,
            stderr,
            errors,
        } = ports;

        let tail = Tail::default();
        let console = tail.collect(console);
        let errors = tail.collect(errors);
        let (events, inbox) = mpsc::channel();
        report_status(status, events.clone());
        let outputs = [
            forward(stdout, io::stdout(), mark.clone(), events.clone()),
            forward(stderr, io::stderr(), mark, events),
        ];

        let mut deadline = Some(begin + boot_limit);
        let mut booted = false;
        loop {
            let event = match deadline {
                Some(at) => inbox.recv_timeout(at.saturating_duration_since(Instant::now())),
                None => inbox.recv().map_err(RecvTimeoutError::from),
            };
            match event {
                Ok(Event::Ready(uptime)) => {
                    booted = true;
                    deadline = self.limit.map(|limit| Instant::now() + limit);
                    let host = begin.elapsed().as_secs_f64();
                    let release = self.kernel.release();
                    eprintln!(
                        "guest: kernel {release} ready after {host:.1} s (own clock {uptime} s)"
                    );
                }
                Ok(Event::Exit(status)) => {
                    let end = Instant::now() + DRAIN_LIMIT;
                    while !outputs.iter().all(JoinHandle::is_finished) && Instant::now() < end {
                        thread::sleep(Duration::from_millis(2));
                    }
                    if !outputs.iter().all(JoinHandle::is_finished) {
                        bail!("the command ended with status {status}, but its output did not");
                    }
                    return Ok(CommandEnd::Exit(status));
                }
                Ok(Event::OutputClosed) => return Ok(CommandEnd::Exit(128 + 13)),
                Err(RecvTimeoutError::Timeout) if booted => {
                    drop(qemu);
                    for output in outputs {
                        let _ = output.join();
                    }
                    return Ok(CommandEnd::TimedOut);
                }
                Err(RecvTimeoutError::Timeout) => {
                    drop(qemu);
                    bail!("the guest did not boot within {boot_limit:?}\n{tail}");
                }
                Ok(Event::EmulatorEnded) | Err(RecvTimeoutError::Disconnected) => {
                    drop(qemu);
                    for collector in [console, errors] {
                        let _ = collector.join();
                    }
                    let when = if booted {
                        "while the command ran"
                    } else {
                        "before it was up"
                    };
                    bail!("the guest stopped {when}\n{tail}");
                }
            }
        }
    }
}

/// Returns a text that the guest prints to mark the end of an output. The text is random, so that
/// no command prints it by chance.
fn mark() -> String {
    let now = SystemTime::UNIX_EPOCH
        .elapsed()
        .unwrap_or_default()
        .as_nanos();
    format!("<end-of-output-{now:x}-{}>", std::process::id())
}

/// Starts a thread that reads the guest's status port `port`, and reports to the channel `events`.
/// The thread sends one event for each line, and [`Event::EmulatorEnded`] at the end of the port.
fn report_status(port: UnixStream, events: mpsc::Sender<Event>) {
    thread::spawn(move || {
        for line in BufReader::new(port).lines() {
            let Ok(line) = line else { break };
            let event = match line.split_once(' ') {
                Some(("ready", uptime)) => Event::Ready(uptime.to_owned()),
                Some(("exit", status)) => Event::Exit(status.parse().unwrap_or(u8::MAX)),
                _ => continue,
            };
            if events.send(event).is_err() {
                return;
            }
        }
        // Sending fails if the session is over, so that no receiver is left.
        let _ = events.send(Event::EmulatorEnded);
    });
}

/// Starts a thread that copies an output of the command in the guest to `out`, an output of this
/// process, up to the text `mark`. `port` is the connection with the guest that carries the output.
/// If copying fails, as when `out` is closed, the thread sends [`Event::OutputClosed`] to `events`.
fn forward(
    port: UnixStream,
    out: impl Write + Send + 'static,
    mark: String,
    events: mpsc::Sender<Event>,
) -> JoinHandle<()> {
    thread::spawn(move || {
        if stream::copy_until(mark.as_bytes(), port, out).is_err() {
            let _ = events.send(Event::OutputClosed);
        }
    })
}

/// The last part of the output that the guest's console and the emulator wrote. Error messages show
/// this part.
#[derive(Clone, Debug, Default)]
struct Tail(Arc<Mutex<VecDeque<u8>>>);

impl Tail {
    fn collect(&self, mut from: impl Read + Send + 'static) -> JoinHandle<()> {
        let kept = Arc::clone(&self.0);
        thread::spawn(move || {
            let mut chunk = [0; 4096];
            while let Ok(count @ 1..) = from.read(&mut chunk) {
                let mut kept = kept.lock().unwrap_or_else(PoisonError::into_inner);
                kept.extend(&chunk[..count]);
                let excess = kept.len().saturating_sub(CONSOLE_KEPT);
                kept.drain(..excess);
            }
        })
    }
}

impl std::fmt::Display for Tail {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let bytes: Vec<u8> = kept.iter().copied().collect();
        drop(kept);
        let text = String::from_utf8_lossy(&bytes);
        let lines: Vec<&str> = text
            .lines()
            .map(str::trim_end)
            .filter(|l| !l.is_empty())
            .collect();
        if lines.is_empty() {
            return write!(f, "(its console was silent)");
        }
        write!(f, "its console ended with")?;
        for line in &lines[lines.len().saturating_sub(40)..] {
            write!(f, "\n    {line}")?;
        }
        Ok(())
    }
}
