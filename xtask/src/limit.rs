//! Runs child processes with a time limit.

use std::io;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, Command, ExitStatus};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process_group, set_parent_process_death_signal};

/// Exit status of a command that was killed at its time limit. The program `timeout` of coreutils
/// has the same status.
pub(crate) const TIMED_OUT: u8 = 124;

/// A child process in a process group of its own, so that the child can be killed together with its
/// own children.
#[derive(Debug)]
pub(crate) struct ProcessGroup {
    child: Child,
}

impl ProcessGroup {
    /// Starts `command`. The child is killed when the calling thread ends.
    pub(crate) fn spawn(command: &mut Command) -> io::Result<Self> {
        command.process_group(0);
        let bound = || Ok(set_parent_process_death_signal(Some(Signal::KILL))?);
        // SAFETY: the closure makes one system call, without allocating or locking, as it must in
        // the forked child of a process that may have other threads.
        unsafe { command.pre_exec(bound) };
        Ok(Self {
            child: command.spawn()?,
        })
    }

    /// Returns the child process, for example to use its pipes.
    pub(crate) fn child(&mut self) -> &mut Child {
        &mut self.child
    }

    /// Waits until the child has ended, for at most `limit`. If the child still runs then, kills it
    /// and its children, and returns `None`. Waits without limit if `limit` is `None`.
    pub(crate) fn wait(mut self, limit: Option<Duration>) -> io::Result<Option<ExitStatus>> {
        let Some(limit) = limit else {
            return self.child.wait().map(Some);
        };
        let deadline = Instant::now() + limit;
        let mut pause = Duration::from_millis(1);
        loop {
            if let Some(status) = self.child.try_wait()? {
                return Ok(Some(status));
            }
            if Instant::now() >= deadline {
                return Ok(None);
            }
            thread::sleep(pause);
            pause = (pause * 2).min(Duration::from_millis(50));
        }
    }
}

impl Drop for ProcessGroup {
    fn drop(&mut self) {
        if let Some(group) = i32::try_from(self.child.id()).ok().and_then(Pid::from_raw) {
            // Fails if the group has no process left, which is the desired state.
            let _ = kill_process_group(group, Signal::KILL);
        }
        // Fails only if the child has already been waited for.
        let _ = self.child.wait();
    }
}

/// Converts the exit status of a process to one number, as a shell does: the exit code, or 128 + n
/// for death by signal n.
pub(crate) fn exit_code(status: ExitStatus) -> u8 {
    let code = status
        .code()
        .or_else(|| status.signal().map(|signal| 128 + signal));
    code.and_then(|code| u8::try_from(code).ok())
        .unwrap_or(u8::MAX)
}

#[cfg(test)]
mod tests {
    use std::process::Command;
    use std::time::{Duration, Instant};

    use super::{ProcessGroup, exit_code};

    fn shell(script: &str) -> ProcessGroup {
        ProcessGroup::spawn(Command::new("sh").args(["-c", script])).unwrap()
    }

    #[test]
    fn exit_codes_are_the_shells() {
        let code = |script| exit_code(shell(script).wait(None).unwrap().unwrap());
        assert_eq!(code("exit 7"), 7);
        assert_eq!(code("kill -SEGV $$"), 139);
    }

    #[test]
    fn a_hung_child_is_stopped_with_its_children() {
        let begin = Instant::now();
        let hung = shell("sleep 600 & sleep 600");
        assert!(
            hung.wait(Some(Duration::from_millis(50)))
                .unwrap()
                .is_none()
        );
        assert!(begin.elapsed() < Duration::from_secs(60));
    }
}
