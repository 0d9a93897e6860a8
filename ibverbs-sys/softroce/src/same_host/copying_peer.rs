#![forbid(unsafe_code)]
//! A peer process that may copy from and to memory of this process, and the wait until its copies have ended.
//!
//! A peer counts as a copying peer from before it receives the permission to copy until it has closed its end of the connection. In
//! the peer's process, a [`Link`](super::link::Link) closes that end when no thread can copy through the link any more. The
//! state of the link in this process has no influence.

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::net::{Shutdown, shutdown};
use rustix::process::{Pid, PidfdFlags, pidfd_open};

use super::process;
use super::shared::Part;
use crate::descriptor::Descriptor;
use crate::epoch::{Lanes, Occupied};
use crate::sync::Line;

/// Time for which a thread that waits for a peer's copy spins, and the length of each sleep after that. Most copies end within
/// this time.
const SPIN_TIME: Duration = Duration::from_millis(1);

/// Maximum time that this process waits for a peer to finish a copy if the peer is stopped by a signal or a debugger.
const MAX_WAIT_FOR_STOPPED: Duration = Duration::from_secs(1);

/// Maximum time that this process waits for any peer to finish a copy. A running peer finishes within microseconds; a peer that
/// is frozen by its cgroup does not, and is not reported as stopped.
const MAX_WAIT: Duration = Duration::from_secs(30);

/// The process at the other end of a connection.
#[derive(Debug)]
pub(super) struct Process {
    /// Process ID.
    pub(super) number: Pid,
    /// ID of the thread by which the kernel finds the memory of the process; see [`process`].
    pub(super) thread: Pid,
    /// Permission of the kernel to copy from and to the memory of the other process.
    pub(super) copies: process::KernelCopies,
    /// Connection that ends with the process, or when the process calls `exec`.
    pub(super) socket: Descriptor,
    /// Descriptor that is readable when the process has ended; `None` if the system has no such descriptors.
    pub(super) handle: Option<Descriptor>,
}

impl Process {
    /// Opens a descriptor that is readable when a process has ended. Returns `None` if the system cannot open one. The
    /// descriptor reports the end even if another process holds the process's end of the connection open.
    pub(super) fn open_handle(number: Pid) -> Option<Descriptor> {
        Descriptor::open(|| pidfd_open(number, PidfdFlags::empty())).ok()
    }
}

/// A peer process that may copy from and to memory of this process.
#[derive(Debug)]
pub(super) struct CopyingPeer {
    pub(super) process: Process,
    /// Lanes (shared words, see [`epoch`](crate::epoch)) in which the peer marks its copies as in progress.
    lanes: Part<Line>,
}

impl CopyingPeer {
    pub(super) fn new(process: Process, lanes: Part<Line>) -> Self {
        Self { process, lanes }
    }

    /// Returns whether the peer has closed its end of the connection or the peer's process has ended.
    pub(super) fn is_gone(&self) -> bool {
        let Process { socket, handle, .. } = &self.process;
        let mut descriptors: Vec<_> = [
            Some((socket, PollFlags::RDHUP)),
            handle.as_ref().map(|handle| (handle, PollFlags::IN)),
        ]
        .into_iter()
        .flatten()
        .map(|(descriptor, flags)| PollFd::new(descriptor, flags))
        .collect();
        let now = Timespec {
            tv_sec: 0,
            tv_nsec: 0,
        };
        let polled = rustix::event::poll(&mut descriptors, Some(&now));
        polled.is_ok()
            && descriptors
                .iter()
                .any(|descriptor| !descriptor.revents().is_empty())
    }

    /// Returns the descriptors whose events report the end of the peer.
    pub(super) fn watched(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        let handle = self.process.handle.as_ref().map(AsFd::as_fd);
        [Some(self.process.socket.as_fd()), handle]
            .into_iter()
            .flatten()
    }

    /// Closes this side of the connection, which informs the peer that this process no longer copies from or to its memory.
    pub(super) fn leave(&self) {
        // An error means that the peer is gone.
        let _ = shutdown(&self.process.socket, Shutdown::Write);
    }
}

/// Copies by one peer that were in progress when [`Copies::of`] was called.
#[derive(Debug)]
pub(super) struct Copies {
    copying_peer: Arc<CopyingPeer>,
    occupied: Occupied,
    wait: Wait,
}

/// Start of a wait until a peer's copies have ended, and the time since when the peer is stopped.
#[derive(Clone, Copy, Debug)]
struct Wait {
    since: Instant,
    /// Time since when the peer was found stopped at each check; `None` if the last check found that the peer runs.
    stopped: Option<Instant>,
}

impl Copies {
    /// Returns the copies that a peer has in progress now. The caller must have retracted the region or window before.
    pub(super) fn of(copying_peer: Arc<CopyingPeer>) -> Self {
        Self {
            occupied: Lanes(&copying_peer.lanes).occupied(),
            copying_peer,
            wait: Wait {
                since: Instant::now(),
                stopped: None,
            },
        }
    }

    /// Checks whether the peer's copies have ended. Returns `Some(true)` if they have ended or the peer is gone, `None` if a
    /// copy is still in progress, and `Some(false)` if the wait has exceeded its limit.
    pub(super) fn poll(&mut self) -> Option<bool> {
        if self.occupied.are_left(Lanes(&self.copying_peer.lanes)) {
            return Some(true);
        }
        // Most copies end within this time, without a system call.
        (self.wait.since.elapsed() > SPIN_TIME)
            .then(|| self.wait.outlook(&self.copying_peer))
            .flatten()
    }

    /// Returns the duration of the wait so far.
    pub(super) fn age(&self) -> Duration {
        self.wait.since.elapsed()
    }

    /// Waits until the peer's copies have ended or the peer is gone, and returns `true`. Returns `false` if the wait has
    /// exceeded its limit: then the peer was stopped during a copy, and may finish that copy at any later time.
    pub(super) fn wait(self) -> bool {
        let Self {
            copying_peer,
            mut occupied,
            mut wait,
        } = self;
        let mut outlook = None;
        let are_left = occupied.wait(Lanes(&copying_peer.lanes), || {
            if wait.since.elapsed() > SPIN_TIME {
                // The peer is stopped, or waits for a processor.
                thread::sleep(SPIN_TIME);
            }
            outlook = wait.outlook(&copying_peer);
            outlook.is_some()
        });
        are_left || outlook == Some(true)
    }
}

impl Wait {
    /// Checks whether to go on waiting, and returns `None` if so. Returns `Some(true)` if the peer is gone, and `Some(false)`
    /// if the wait has exceeded its limit.
    fn outlook(&mut self, copying_peer: &CopyingPeer) -> Option<bool> {
        if copying_peer.is_gone() {
            return Some(true);
        }
        self.stopped = if process::is_stopped(copying_peer.process.number) {
            self.stopped.or_else(|| Some(Instant::now()))
        } else {
            None
        };
        let is_long = |since: Instant| since.elapsed() > MAX_WAIT_FOR_STOPPED;
        let has_exceeded = self.stopped.is_some_and(is_long) || self.since.elapsed() > MAX_WAIT;
        has_exceeded.then_some(false)
    }
}
