#![forbid(unsafe_code)]
//! A peer that may copy from and to memory of this process, and the wait for its copies.
//!
//! A peer counts as a visitor before it is told that it may copy, and until it has closed its end of the connection. In the
//! peer, a [`Link`](super::link::Link) closes that end when no thread can copy through the link any more. The state of the
//! connection on this side has no influence.

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::net::{Shutdown, shutdown};
use rustix::process::{Pid, PidfdFlags, pidfd_open};

use super::epoch::{Lanes, Occupied};
use super::process;
use super::ring;
use super::shared::Part;
use crate::descriptor::Descriptor;

/// Time for which a wait for a peer's copy does not sleep.
const HASTE: Duration = Duration::from_millis(1);

/// Longest wait for a copy of a peer that is stopped.
const PATIENCE_STOPPED: Duration = Duration::from_secs(1);

/// Longest wait for a copy of any peer. A peer that runs finishes at once; a frozen one (cgroup) does not.
const PATIENCE: Duration = Duration::from_secs(30);

/// The process at the other end of a connection.
#[derive(Debug)]
pub(super) struct Process {
    /// Process ID.
    pub(super) number: Pid,
    /// The thread by which its memory is reached: see [`process`].
    pub(super) thread: Pid,
    /// The connection, which ends with the process, or when it becomes another program.
    pub(super) socket: Descriptor,
    /// The process itself. None: the system cannot tell.
    pub(super) handle: Option<Descriptor>,
}

impl Process {
    /// Opens a process, as a descriptor that is readable when the process has ended. Returns `None` if the system cannot.
    pub(super) fn open_handle(number: Pid) -> Option<Descriptor> {
        Descriptor::open(|| pidfd_open(number, PidfdFlags::empty())).ok()
    }
}

/// A peer that may copy from and to memory of this process.
#[derive(Debug)]
pub(super) struct Visitor {
    pub(super) process: Process,
    /// Where it says that it copies.
    lanes: Part<ring::Line>,
}

impl Visitor {
    pub(super) fn new(process: Process, lanes: Part<ring::Line>) -> Self {
        Self { process, lanes }
    }

    /// Returns whether the peer has closed its end of the connection, or the process has ended.
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

    /// Returns the descriptors that tell the end of the peer.
    pub(super) fn watched(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        let handle = self.process.handle.as_ref().map(AsFd::as_fd);
        [Some(self.process.socket.as_fd()), handle]
            .into_iter()
            .flatten()
    }

    /// Says to it that this side copies no more.
    pub(super) fn leave(&self) {
        // It fails where the peer is gone.
        let _ = shutdown(&self.process.socket, Shutdown::Write);
    }
}

/// Copies of a peer that were under way at a moment.
#[derive(Debug)]
pub(super) struct Copies {
    visitor: Arc<Visitor>,
    occupied: Occupied,
    wait: Wait,
}

/// Duration of the wait so far.
#[derive(Clone, Copy, Debug)]
struct Wait {
    since: Instant,
    /// Since when the peer was found to be stopped.
    stopped: Option<Instant>,
}

impl Copies {
    /// Returns the copies that a peer has under way. To be called after the region or window was retracted.
    pub(super) fn of(visitor: Arc<Visitor>) -> Self {
        Self {
            occupied: Lanes(&visitor.lanes).occupied(),
            visitor,
            wait: Wait {
                since: Instant::now(),
                stopped: None,
            },
        }
    }

    /// Returns `Some(true)` if the copies are over or the peer is gone, `None` if not yet, `Some(false)` as [`wait`](Self::wait) does.
    pub(super) fn poll(&mut self) -> Option<bool> {
        if self.occupied.are_left(Lanes(&self.visitor.lanes)) {
            return Some(true);
        }
        // Most are over before anything is asked of the system.
        (self.wait.since.elapsed() > HASTE)
            .then(|| self.wait.outlook(&self.visitor))
            .flatten()
    }

    /// Duration of the wait so far.
    pub(super) fn age(&self) -> Duration {
        self.wait.since.elapsed()
    }

    /// Waits until they are over, or the peer is gone. False: one is not over, and may not be for long: the peer
    /// was stopped in the middle of it.
    pub(super) fn wait(self) -> bool {
        let Self {
            visitor,
            mut occupied,
            mut wait,
        } = self;
        let mut outlook = None;
        let are_left = occupied.wait(Lanes(&visitor.lanes), || {
            if wait.since.elapsed() > HASTE {
                // It does not run, or there is too much else that does.
                thread::sleep(HASTE);
            }
            outlook = wait.outlook(&visitor);
            outlook.is_some()
        });
        are_left || outlook == Some(true)
    }
}

impl Wait {
    /// Returns whether to end the wait: `Some(true)` if the peer is gone, `Some(false)` if the limit has passed.
    fn outlook(&mut self, visitor: &Visitor) -> Option<bool> {
        if visitor.is_gone() {
            return Some(true);
        }
        self.stopped = if process::is_stopped(visitor.process.number) {
            self.stopped.or_else(|| Some(Instant::now()))
        } else {
            None
        };
        let for_long = |since: Instant| since.elapsed() > PATIENCE_STOPPED;
        let is_in_vain = self.stopped.is_some_and(for_long) || self.since.elapsed() > PATIENCE;
        is_in_vain.then_some(false)
    }
}
