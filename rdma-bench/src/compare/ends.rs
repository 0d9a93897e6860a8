//! The two processes of a run, each on a processor of its own.

use std::ffi::OsString;
use std::fs;
use std::io::Read;
use std::net::TcpListener;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use super::program::in_path;
use crate::error::{Error, Result};

/// How often to look whether a process has ended: seldom, so as not to be in its way.
const PAUSE: Duration = Duration::from_millis(10);
/// How long a server may take to listen.
const START: Duration = Duration::from_secs(30);

/// A child whose output is read while it runs; killed when dropped.
struct Process {
    child: Child,
    name: String,
    output: Option<[JoinHandle<String>; 2]>,
}

impl Process {
    /// Starts it on processor number `processor` if there is one and `taskset` to do so.
    fn start(words: &[OsString], processor: Option<usize>, name: &str) -> Result<Self> {
        let mut command = match processor {
            Some(processor) if in_path("taskset") => {
                let mut command = Command::new("taskset");
                command.args(["-c", &processor.to_string()]).args(words);
                command
            }
            _ => {
                let mut command = Command::new(&words[0]);
                command.args(&words[1..]);
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
        let output = [
            child.stdout.take().map(collect).unwrap_or_else(nothing),
            child.stderr.take().map(collect).unwrap_or_else(nothing),
        ];
        Ok(Self {
            child,
            name: name.to_owned(),
            output: Some(output),
        })
    }

    fn await_listening(&mut self, port: u16) -> Result<()> {
        let started = Instant::now();
        while !is_listening(port) {
            if let Some(status) = self.ended()? {
                return Err(self.failed(format!("ended with {status}")));
            }
            if started.elapsed() > START {
                return Err(self.failed(format!("does not listen on port {port}")));
            }
            thread::sleep(PAUSE);
        }
        Ok(())
    }

    fn failed(&mut self, what: String) -> Error {
        let _ = self.child.kill();
        let [printed, complained] = self.printed();
        let all = printed + &complained;
        let lines: Vec<&str> = all.lines().collect();
        let end = lines[lines.len().saturating_sub(12)..].join("\n");
        Error::Program {
            program: self.name.clone(),
            reason: format!("{what}\n{end}"),
        }
    }

    fn printed(&mut self) -> [String; 2] {
        match self.output.take() {
            Some(output) => output.map(|reader| reader.join().unwrap_or_default()),
            None => Default::default(),
        }
    }

    /// Its exit status, if it has ended.
    fn ended(&mut self) -> Result<Option<ExitStatus>> {
        let name = self.name.clone();
        self.child.try_wait().map_err(|error| Error::Program {
            program: name,
            reason: error.to_string(),
        })
    }

    /// Waits until it has ended well, and returns what it printed.
    fn finish(&mut self, deadline: Instant) -> Result<String> {
        loop {
            match self.ended()? {
                Some(status) if status.success() => {
                    let [printed, _] = self.printed();
                    return Ok(printed);
                }
                Some(status) => return Err(self.failed(format!("ended with {status}"))),
                None if Instant::now() > deadline => {
                    return Err(self.failed("did not end in time".into()));
                }
                None => thread::sleep(PAUSE),
            }
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // Without effect on one that has ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn collect(mut pipe: impl Read + Send + 'static) -> JoinHandle<String> {
    thread::spawn(move || {
        let mut bytes = Vec::new();
        // What came until the failure is what there is.
        let _ = pipe.read_to_end(&mut bytes);
        String::from_utf8_lossy(&bytes).into_owned()
    })
}

fn nothing() -> JoinHandle<String> {
    thread::spawn(String::new)
}

/// A TCP port that nothing uses now.
pub(crate) fn free_port() -> Result<u16> {
    let found = TcpListener::bind("127.0.0.1:0").and_then(|listener| listener.local_addr());
    found
        .map(|address| address.port())
        .map_err(Error::control("looking for a free port"))
}

/// Runs server and client to their end, and returns what the client printed. `words` start both,
/// the client with `client_words` besides.
pub(super) fn run(
    words: &[OsString],
    client_words: &[OsString],
    port: u16,
    name: &str,
    limit: Duration,
) -> Result<String> {
    let client_words = [words, client_words].concat();
    run_with_servers(&[(words.to_vec(), port)], &client_words, name, limit)
}

/// Runs servers, each with the port on which it listens, and a client to their end, and returns what
/// the client printed. The servers share a processor.
pub(crate) fn run_with_servers(
    servers: &[(Vec<OsString>, u16)],
    client_words: &[OsString],
    name: &str,
    limit: Duration,
) -> Result<String> {
    let last = thread::available_parallelism().map_or(0, |count| count.get() - 1);
    let mut started = Vec::new();
    for (words, port) in servers {
        let mut server = Process::start(words, Some(0), &format!("{name} (server)"))?;
        server.await_listening(*port)?;
        started.push(server);
    }
    let deadline = Instant::now() + limit;
    let client_name = format!("{name} (client)");
    let mut client = Process::start(client_words, Some(last.min(1)), &client_name)?;
    let printed = client.finish(deadline)?;
    for mut server in started {
        server.finish(deadline)?;
    }
    Ok(printed)
}

/// Runs one program, on the processors that it chooses, to its end, and returns what it printed.
pub(crate) fn run_alone(words: &[OsString], name: &str, limit: Duration) -> Result<String> {
    Process::start(words, None, name)?.finish(Instant::now() + limit)
}

/// Whether a process of this machine listens on the port. Connecting to find out would be taken for
/// the client.
fn is_listening(port: u16) -> bool {
    ["/proc/net/tcp", "/proc/net/tcp6"].iter().any(|path| {
        let table = fs::read_to_string(path).unwrap_or_default();
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
    fn listening_is_told_from_connected() {
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
        let words = ["sh", "-c", "echo no device >&2; exit 3"].map(OsString::from);
        let port = free_port().unwrap();
        let error = run(&words, &[], port, "sh", Duration::from_secs(5)).unwrap_err();
        let text = error.to_string();
        assert!(
            text.contains("exit status: 3") && text.contains("no device"),
            "{text}"
        );
    }
}
