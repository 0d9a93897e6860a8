//! Processes with a time limit, which are killed together with everything that they started.

use std::fs::{self, File};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process_group};

/// Interval between two checks of a process.
const PAUSE: Duration = Duration::from_millis(50);

/// Variables that cargo or its caller sets for this test and that a reader of the documentation
/// does not have.
const CARGOS: &[&str] = &["CARGO", "CARGO_TARGET_DIR", "CARGO_MANIFEST_DIR", "OUT_DIR"];

/// A process and what it started: a process group that is killed when this value is dropped, unless
/// the process has ended.
pub(crate) struct Process {
    title: String,
    child: Child,
    output: PathBuf,
}

/// The end of a process.
pub(crate) struct Ended {
    pub(crate) status: ExitStatus,
    /// Standard output and standard error.
    pub(crate) output: String,
}

impl Process {
    /// Starts `command` in the root of the workspace, without standard input.
    pub(crate) fn start(title: &str, command: &mut Command) -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let name = format!("output-{}-{number}", std::process::id());
        let output = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
        let file = File::create(&output).expect("a file for the output");
        for variable in CARGOS {
            command.env_remove(variable);
        }
        let child = command
            .current_dir(crate::workspace())
            .process_group(0)
            .stdin(Stdio::null())
            .stdout(file.try_clone().expect("a second descriptor"))
            .stderr(file)
            .spawn();
        Self {
            title: title.to_owned(),
            child: child.unwrap_or_else(|error| panic!("starting `{title}`: {error}")),
            output,
        }
    }

    /// Waits until the process ends.
    ///
    /// # Panics
    ///
    /// With the output, if that takes longer than `limit`.
    pub(crate) fn end(mut self, limit: Duration) -> Ended {
        let deadline = Instant::now() + limit;
        loop {
            if let Some(status) = self.child.try_wait().expect("the state of a child") {
                let output = self.output();
                return Ended { status, output };
            }
            self.pause(deadline, "has not ended");
        }
    }

    /// Waits until a process of the group listens at a TCP port.
    ///
    /// # Panics
    ///
    /// With the output, if the process ends or that takes longer than `limit`.
    pub(crate) fn listens(&mut self, limit: Duration) {
        let deadline = Instant::now() + limit;
        while !group_listens(self.child.id()) {
            if let Some(status) = self.child.try_wait().expect("the state of a child") {
                panic!("`{}` ended with {status}:\n{}", self.title, self.output());
            }
            self.pause(deadline, "listens at no TCP port");
        }
    }

    fn pause(&self, deadline: Instant, state: &str) {
        if Instant::now() >= deadline {
            panic!("`{}` {state} in time:\n{}", self.title, self.output());
        }
        thread::sleep(PAUSE);
    }

    fn output(&self) -> String {
        let bytes = fs::read(&self.output).unwrap_or_default();
        String::from_utf8_lossy(&bytes).into_owned()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // A process that was waited for has lost its id, which may be another's by now.
        if let Ok(None) = self.child.try_wait() {
            let _ = kill_process_group(Pid::from_child(&self.child), Signal::KILL);
            let _ = self.child.wait();
        }
        let _ = fs::remove_file(&self.output);
    }
}

/// Returns whether a process of the group has a TCP socket that listens.
fn group_listens(group: u32) -> bool {
    let processes = fs::read_dir("/proc").expect("/proc").flatten();
    processes
        .map(|entry| entry.path())
        .filter(|process| group_of(process) == Some(group))
        .any(|process| {
            let listening = listening_sockets(&process);
            let files = fs::read_dir(process.join("fd")).into_iter().flatten();
            let mut links = files
                .flatten()
                .filter_map(|file| fs::read_link(file.path()).ok());
            links.any(|link| listening.contains(&link.to_string_lossy().into_owned()))
        })
}

fn group_of(process: &Path) -> Option<u32> {
    let stat = fs::read_to_string(process.join("stat")).ok()?;
    // "PID (NAME) STATE PARENT GROUP", and the name may contain anything.
    let (_, rest) = stat.rsplit_once(") ")?;
    rest.split(' ').nth(2)?.parse().ok()
}

/// Returns the listening TCP sockets of the process's network, as links of /proc/PID/fd name them.
fn listening_sockets(process: &Path) -> Vec<String> {
    const STATE: usize = 3;
    const INODE: usize = 9;
    const LISTEN: &str = "0A";
    let tables = ["net/tcp", "net/tcp6"].map(|table| process.join(table));
    let tables = tables
        .iter()
        .map(|table| fs::read_to_string(table).unwrap_or_default());
    let socket = |line: &str| {
        let fields: Vec<_> = line.split_whitespace().collect();
        let inode = fields.get(INODE)?;
        (fields.get(STATE) == Some(&LISTEN)).then(|| format!("socket:[{inode}]"))
    };
    tables
        .flat_map(|table| table.lines().filter_map(socket).collect::<Vec<_>>())
        .collect()
}
