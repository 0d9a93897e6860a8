//! Runs the server and the client of a measurement, each on a processor of its own.

use std::ffi::OsString;
use std::fs;
use std::io::Read;
use std::net::TcpListener;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use super::program::in_path;
use crate::error::{Error, Result};

/// Interval between two checks whether a server or client process has ended. The interval is long,
/// so that the checks do not disturb the measurement.
const CHECK_INTERVAL: Duration = Duration::from_millis(10);
/// Maximum time that the start of a program may take. After this time, the run fails. A server has
/// started when it listens on its port. A client has started when its output suffices to start its
/// companion (a program that runs beside the client).
const START_TIMEOUT: Duration = Duration::from_secs(30);

/// A child process whose output is read while the process runs. The process is killed when this
/// value is dropped.
struct Process {
    child: Child,
    name: String,
    output: Output,
    complaints: Output,
}

/// The output of a child process: the bytes that were read from its pipe so far, and the thread
/// that reads them.
#[derive(Default)]
struct Output {
    bytes: Arc<Mutex<Vec<u8>>>,
    reader: Option<JoinHandle<()>>,
}

impl Output {
    /// Starts a thread that reads `pipe`, an output of a child process, to its end. [`Self::text`]
    /// returns the part that was read so far.
    fn of(mut pipe: impl Read + Send + 'static) -> Self {
        let bytes = Arc::new(Mutex::new(Vec::new()));
        let shared = Arc::clone(&bytes);
        let read = move || {
            let mut part = [0; 4096];
            // An error of the pipe counts as its end.
            while let Ok(length @ 1..) = pipe.read(&mut part) {
                let mut bytes = shared.lock().unwrap_or_else(PoisonError::into_inner);
                bytes.extend(&part[..length]);
            }
        };
        Self {
            bytes,
            reader: Some(thread::spawn(read)),
        }
    }

    /// Returns, as text, the part of the child process's output that was read so far.
    fn text(&self) -> String {
        let bytes = self.bytes.lock().unwrap_or_else(PoisonError::into_inner);
        String::from_utf8_lossy(&bytes).into_owned()
    }

    /// Waits until the process has closed its end of the pipe, and returns everything that the
    /// process wrote, as text.
    fn whole(&mut self) -> String {
        if let Some(reader) = self.reader.take() {
            // If the reader panicked, the output until then is returned.
            let _ = reader.join();
        }
        self.text()
    }
}

impl Process {
    /// Starts a process with the command line `argv`. Pins the process to the processor with the
    /// number `processor`, if one is given and `taskset` is installed. `name` is the program's name
    /// in errors.
    fn start(argv: &[OsString], processor: Option<usize>, name: &str) -> Result<Self> {
        let mut command = match processor {
            Some(processor) if in_path("taskset") => {
                let mut command = Command::new("taskset");
                command.args(["-c", &processor.to_string()]).args(argv);
                command
            }
            _ => {
                let mut command = Command::new(&argv[0]);
                command.args(&argv[1..]);
                command
            }
        };
        command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let mut child = command.spawn().map_err(|error| Error::Program {
            program: name.to_owned(),
            reason: format!("starting it: {error}"),
        })?;
        Ok(Self {
            output: child.stdout.take().map(Output::of).unwrap_or_default(),
            complaints: child.stderr.take().map(Output::of).unwrap_or_default(),
            child,
            name: name.to_owned(),
        })
    }

    fn await_listening(&mut self, port: u16) -> Result<()> {
        let started = Instant::now();
        while !is_listening(self.child.id(), port) {
            if let Some(status) = self.exit_status()? {
                return Err(self.failed(format!("ended with {status}")));
            }
            if started.elapsed() > START_TIMEOUT {
                return Err(self.failed(format!("does not listen on port {port}")));
            }
            thread::sleep(CHECK_INTERVAL);
        }
        Ok(())
    }

    fn failed(&mut self, what: String) -> Error {
        let _ = self.child.kill();
        let all = self.output.whole() + &self.complaints.whole();
        let lines: Vec<&str> = all.lines().collect();
        let end = lines[lines.len().saturating_sub(12)..].join("\n");
        Error::Program {
            program: self.name.clone(),
            reason: format!("{what}\n{end}"),
        }
    }

    /// Returns the exit status of this process, or `None` while the process runs.
    fn exit_status(&mut self) -> Result<Option<ExitStatus>> {
        let name = self.name.clone();
        self.child.try_wait().map_err(|error| Error::Program {
            program: name,
            reason: error.to_string(),
        })
    }

    /// Starts a second program (a companion) that runs at the same time as the benchmark program
    /// `self`. The function `companion` gets the output of `self`, and returns the command line of
    /// the second program, or `None` while the output is incomplete. Waits until the output is
    /// complete.
    fn run_beside(&mut self, companion: Companion<'_>) -> Result<Self> {
        let started = Instant::now();
        loop {
            if let Some(argv) = companion(&self.output.text()) {
                return Self::start(&argv, Some(0), &format!("{} (companion)", self.name));
            }
            if let Some(status) = self.exit_status()? {
                return Err(self.failed(format!("ended before the test, with {status}")));
            }
            if started.elapsed() > START_TIMEOUT {
                return Err(self.failed("did not print its addresses in time".into()));
            }
            thread::sleep(CHECK_INTERVAL);
        }
    }

    /// Waits until the process has ended, and returns its output. Fails if the process fails, or
    /// runs beyond `deadline`. The error contains the end of the output.
    fn finish(&mut self, deadline: Instant) -> Result<String> {
        loop {
            match self.exit_status()? {
                Some(status) if status.success() => return Ok(self.output.whole()),
                Some(status) => return Err(self.failed(format!("ended with {status}"))),
                None if Instant::now() > deadline => {
                    return Err(self.failed("did not end in time".into()));
                }
                None => thread::sleep(CHECK_INTERVAL),
            }
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // Has no effect if the process has ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Returns a TCP port that is free at the time of the call, for a server that the caller starts.
pub(crate) fn free_port() -> Result<u16> {
    let found = TcpListener::bind("127.0.0.1:0").and_then(|listener| listener.local_addr());
    found
        .map(|address| address.port())
        .map_err(Error::control("finding a free TCP port"))
}

/// Runs a server and a client until both have ended, and returns the client's output. The server's
/// command line is `argv`, the client's is `argv` followed by `client_args`. The server listens on
/// `port`. Fails if the client takes longer than `limit`. `name` is the program's name in errors.
pub(super) fn run(
    argv: &[OsString],
    client_args: &[OsString],
    port: u16,
    name: &str,
    limit: Duration,
) -> Result<String> {
    let client_args = [argv, client_args].concat();
    run_with_servers(&[(argv.to_vec(), port)], &client_args, name, limit, None)
}

/// A function that derives the command line of a companion (a program that runs beside a client)
/// from the client's output so far. Returns `None` while that output does not suffice.
pub(crate) type Companion<'a> = &'a dyn Fn(&str) -> Option<Vec<OsString>>;

/// Runs servers and a client until all have ended, and returns the client's output. Each server has
/// a command line and the port on which it listens. `companion` derives the command line of a
/// further program from the client's output. This program runs at the same time as the client, and
/// is ended with the client. The servers and this program share one processor. The client has
/// another processor, if the machine has more than one.
///
/// Fails if the programs take longer than `limit`. `name` is the name of the measured program in
/// errors.
pub(crate) fn run_with_servers(
    servers: &[(Vec<OsString>, u16)],
    client_args: &[OsString],
    name: &str,
    limit: Duration,
    companion: Option<Companion<'_>>,
) -> Result<String> {
    let last = thread::available_parallelism().map_or(0, |count| count.get() - 1);
    let mut started = Vec::new();
    for (argv, port) in servers {
        let mut server = Process::start(argv, Some(0), &format!("{name} (server)"))?;
        server.await_listening(*port)?;
        started.push(server);
    }
    let deadline = Instant::now() + limit;
    let client_name = format!("{name} (client)");
    let mut client = Process::start(client_args, Some(last.min(1)), &client_name)?;
    let mut beside = companion.map(|line| client.run_beside(line)).transpose()?;
    let printed = client.finish(deadline)?;
    if let Some(beside) = &mut beside
        && let Some(status) = beside.exit_status()?
    {
        return Err(beside.failed(format!("ended before the test, with {status}")));
    }
    drop(beside);
    for mut server in started {
        server.finish(deadline)?;
    }
    Ok(printed)
}

/// Runs several servers, each with a client, at the same time, until all have ended. Returns the
/// outputs of the clients. The servers share one processor, and so do the clients. Fails if the
/// programs take longer than `limit`. `name` is the program's name in errors.
pub(crate) fn run_together(flows: &[Flow], name: &str, limit: Duration) -> Result<Vec<String>> {
    let last = thread::available_parallelism().map_or(0, |count| count.get() - 1);
    let mut servers = Vec::new();
    for flow in flows {
        let mut server = Process::start(&flow.server, Some(0), &format!("{name} (server)"))?;
        server.await_listening(flow.port)?;
        servers.push(server);
    }
    let deadline = Instant::now() + limit;
    let start =
        |flow: &Flow| Process::start(&flow.client, Some(last.min(1)), &format!("{name} (client)"));
    let clients: Result<Vec<Process>> = flows.iter().map(start).collect();
    let printed = clients?
        .iter_mut()
        .map(|client| client.finish(deadline))
        .collect();
    for mut server in servers {
        server.finish(deadline)?;
    }
    printed
}

/// Runs several programs at the same time until all have ended, and returns their outputs. `lines`
/// are the command lines of the programs. No program is pinned to a processor. Fails if the
/// programs take longer than `limit`. `name` is the name of the programs in errors.
pub(crate) fn run_group(
    lines: &[Vec<OsString>],
    name: &str,
    limit: Duration,
) -> Result<Vec<String>> {
    let deadline = Instant::now() + limit;
    let started = lines.iter().map(|line| Process::start(line, None, name));
    let mut started = started.collect::<Result<Vec<_>>>()?;
    started
        .iter_mut()
        .map(|process| process.finish(deadline))
        .collect()
}

/// A server and its client, which run at the same time as other such pairs. Contains the command
/// lines of both programs, and the port of the server.
#[derive(Debug)]
pub(crate) struct Flow {
    pub(crate) server: Vec<OsString>,
    pub(crate) port: u16,
    pub(crate) client: Vec<OsString>,
}

/// Runs the program with the command line `argv` until it ends, and returns its output. Pins the
/// program to the processor with the number `processor`, if one is given. Fails if the program
/// takes longer than `limit`. `name` is the name of the program in errors.
pub(crate) fn run_alone(
    argv: &[OsString],
    processor: Option<usize>,
    name: &str,
    limit: Duration,
) -> Result<String> {
    Process::start(argv, processor, name)?.finish(Instant::now() + limit)
}

/// Returns whether a process listens on the TCP port `port` in the network namespace of the process
/// with the ID `process`. Reads the kernel's tables of connections instead of connecting, because
/// the server would treat such a connection as the connection of its client.
fn is_listening(process: u32, port: u16) -> bool {
    ["tcp", "tcp6"].iter().any(|name| {
        let table = fs::read_to_string(format!("/proc/{process}/net/{name}")).unwrap_or_default();
        listens(&table, port)
    })
}

fn listens(table: &str, port: u16) -> bool {
    const LISTEN: &str = "0A";
    let end = format!(":{port:04X}");
    table.lines().skip(1).any(|line| {
        let mut columns = line.split_whitespace().skip(1);
        let local = columns.next().is_some_and(|local| local.ends_with(&end));
        local && columns.nth(1) == Some(LISTEN)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn listening_and_connected_sockets_are_distinguished() {
        let table = "\
  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt
   0: 00000000:4853 00000000:0000 0A 00000000:00000000 00:00000000 00000000
   1: 0100007F:4854 0100007F:4855 01 00000000:00000000 00:00000000 00000000
";
        assert!(listens(table, 18515));
        assert!(!listens(table, 18516));
        assert!(!listens(table, 18517));
    }

    #[test]
    fn a_server_that_ends_is_not_waited_for() {
        let argv = ["sh", "-c", "echo no device >&2; exit 3"].map(OsString::from);
        let port = free_port().unwrap();
        let error = run(&argv, &[], port, "sh", Duration::from_secs(5)).unwrap_err();
        let text = error.to_string();
        assert!(
            text.contains("exit status: 3") && text.contains("no device"),
            "{text}"
        );
    }
}
