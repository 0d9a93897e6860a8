//! Programs that run with the library preloaded.

use std::env;
use std::fmt;
use std::io::Read;
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use crate::library::library;

/// Time limit of a program, enough for a machine under load.
const LIMIT: Duration = Duration::from_secs(120);

/// Maximum time between the request to terminate and the end of a program, in which the program
/// ends its children.
const TERMINATION_TIMEOUT: Duration = Duration::from_secs(5);

/// Returns whether a program is in the search path.
pub(crate) fn is_installed(program: &str) -> bool {
    let path = env::var_os("PATH").unwrap_or_default();
    env::split_paths(&path).any(|directory| directory.join(program).is_file())
}

/// A running program, which is ended when this value is dropped.
pub(crate) struct Running {
    child: Child,
    output: Option<JoinHandle<String>>,
}

/// A program that has ended, with its standard output and standard error in one text.
#[derive(Debug)]
pub(crate) struct Ended {
    status: Option<ExitStatus>,
    pub(crate) output: String,
}

impl Running {
    /// Starts a program on the device, with these environment variables besides `LD_PRELOAD`.
    pub(crate) fn start(words: &[&str], variables: &[(&str, &str)]) -> Result<Self, String> {
        let problem = |error| format!("starting {}: {error}", words[0]);
        let (mut reader, writer) = std::io::pipe().map_err(problem)?;
        let mut command = Command::new(words[0]);
        command
            .args(&words[1..])
            .env("LD_PRELOAD", library())
            .envs(variables.iter().copied())
            .current_dir("/")
            .stdin(Stdio::null())
            .stdout(writer.try_clone().map_err(problem)?)
            .stderr(writer);
        let child = command.spawn().map_err(problem)?;
        // The command holds the writing end of the pipe.
        drop(command);
        let output = thread::spawn(move || {
            let mut bytes = Vec::new();
            // The bytes before an error are still useful.
            let _ = reader.read_to_end(&mut bytes);
            String::from_utf8_lossy(&bytes).into_owned()
        });
        Ok(Self {
            child,
            output: Some(output),
        })
    }

    pub(crate) fn has_ended(&mut self) -> bool {
        !matches!(self.child.try_wait(), Ok(None))
    }

    /// Waits until the program has ended, and ends it at its time limit.
    pub(crate) fn wait(mut self) -> Ended {
        let status = self.wait_until(Instant::now() + LIMIT);
        if status.is_none() {
            self.end();
        }
        let output = self.output.take().and_then(|output| output.join().ok());
        Ended {
            status,
            output: output.unwrap_or_default(),
        }
    }

    fn wait_until(&mut self, deadline: Instant) -> Option<ExitStatus> {
        loop {
            match self.child.try_wait() {
                Ok(None) if Instant::now() < deadline => thread::sleep(Duration::from_millis(5)),
                Ok(status) => return status,
                Err(_) => return None,
            }
        }
    }

    /// Ends the program. `mpirun` ends its ranks when it is asked to end.
    fn end(&mut self) {
        if let Ok(id) = self.child.id().try_into() {
            // SAFETY: the call takes no pointers. The child was not waited for, so no other process
            // has its number.
            unsafe { libc::kill(id, libc::SIGTERM) };
        }
        if self
            .wait_until(Instant::now() + TERMINATION_TIMEOUT)
            .is_none()
        {
            // Fails only if the program has just ended.
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if !self.has_ended() {
            self.end();
        }
    }
}

impl Ended {
    /// Returns whether the signal SIGPIPE has ended the program: the program has written to a
    /// socket that its peer had closed.
    pub(crate) fn has_broken_pipe(&self) -> bool {
        let signal = self.status.and_then(|status| status.signal());
        signal == Some(libc::SIGPIPE)
    }

    /// Fails with the output of the program, unless it has succeeded and printed each of these
    /// texts.
    pub(crate) fn judge(&self, texts: &[&str]) -> Result<(), String> {
        if !self.status.is_some_and(|status| status.success()) {
            return Err(format!("it failed: {self}"));
        }
        match texts.iter().find(|text| !self.output.contains(**text)) {
            Some(text) => Err(format!("it did not print {text:?}: {self}")),
            None => Ok(()),
        }
    }
}

impl fmt::Display for Ended {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.status {
            Some(status) => writeln!(f, "{status}")?,
            None => writeln!(f, "still running at its time limit")?,
        }
        f.write_str(&self.output)
    }
}
