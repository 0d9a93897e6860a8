//! [`Process`]: this program again, in the role of a server or a client.

use std::fmt;
use std::io::{BufRead, BufReader, Read};
use std::net::TcpListener;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::{env, fs};

use rustix::process::{Pid, Signal, kill_process};

const ROLE: &str = "RDMA_TEST_ROLE";

/// Returns the role of this process; `None` if it is the test itself.
pub(crate) fn role() -> Option<String> {
    env::var(ROLE).ok()
}

/// Returns the arguments of a process with a role.
pub(crate) fn words() -> Vec<String> {
    env::args().skip(1).collect()
}

/// Tells [`Process::wait_until_ready`] that this process is ready.
pub(crate) fn say_ready() {
    println!("ready");
}

/// Returns addresses that are free now.
pub(crate) fn free_addresses(count: usize) -> Vec<String> {
    let listeners = (0..count).map(|_| TcpListener::bind("127.0.0.1:0").unwrap());
    let listeners: Vec<_> = listeners.collect();
    let address = |listener: &TcpListener| {
        let port = listener.local_addr().unwrap().port();
        format!("rdma://127.0.0.1:{port}")
    };
    listeners.iter().map(address).collect()
}

/// A process with a role, which is killed when this value is dropped.
#[derive(Debug)]
pub(crate) struct Process {
    child: Child,
    output: BufReader<ChildStdout>,
}

impl Drop for Process {
    fn drop(&mut self) {
        self.kill();
    }
}

impl Process {
    pub(crate) fn start(role: &str, words: &[&str], variables: &[(&str, &str)]) -> Self {
        let mut child = Command::new(env::current_exe().expect("this program's path"))
            .args(words)
            .env(ROLE, role)
            .envs(variables.iter().copied())
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .expect("this program runs again");
        let output = BufReader::new(child.stdout.take().expect("a pipe"));
        Self { child, output }
    }

    pub(crate) fn wait_until_ready(&mut self) {
        let mut line = String::new();
        self.output.read_line(&mut line).expect("its output");
        assert_eq!(line, "ready\n");
    }

    pub(crate) fn kill(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
    }

    pub(crate) fn stop(&self) {
        self.signal(Signal::STOP);
    }

    pub(crate) fn resume(&self) {
        self.signal(Signal::CONT);
    }

    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).expect("the process runs");
    }

    pub(crate) fn has_ended(&mut self) -> bool {
        self.child.try_wait().expect("its status").is_some()
    }

    /// Returns what the process printed, after it has ended by itself.
    pub(crate) fn report(&mut self, seed: u64) -> String {
        let mut report = String::new();
        self.output.read_to_string(&mut report).expect("its output");
        let status = self.child.wait().expect("its status");
        assert!(status.success(), "SEED={seed}: {status}\n{report}");
        report
    }

    /// Returns the memory and the descriptors that the process uses.
    pub(crate) fn usage(&self) -> Usage {
        Usage::of(&self.child.id().to_string())
    }
}

/// Memory and descriptors of a process.
#[derive(Debug)]
pub(crate) struct Usage {
    /// Resident memory in KiB.
    memory: u64,
    descriptors: usize,
}

impl Usage {
    /// Returns the usage of the process `process`, a name in `/proc`.
    pub(crate) fn of(process: &str) -> Self {
        let status = fs::read_to_string(format!("/proc/{process}/status")).expect("it runs");
        let memory = status.lines().find_map(|line| {
            let value = line.strip_prefix("VmRSS:")?.trim().strip_suffix(" kB")?;
            value.parse().ok()
        });
        let descriptors = fs::read_dir(format!("/proc/{process}/fd")).expect("it runs");
        Self {
            memory: memory.expect("its resident memory"),
            descriptors: descriptors.count(),
        }
    }

    /// Returns whether this usage is at most that of `earlier`, and what differs by chance: the
    /// calls in progress, and connections that are established or ended at the moment.
    pub(crate) fn is_about(&self, earlier: &Self) -> bool {
        self.memory <= earlier.memory + earlier.memory / 8 + (16 << 10)
            && self.descriptors <= earlier.descriptors + earlier.descriptors / 8 + 64
    }
}

impl fmt::Display for Usage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} KiB, {} descriptors", self.memory, self.descriptors)
    }
}
