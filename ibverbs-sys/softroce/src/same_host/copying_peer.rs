#![forbid(unsafe_code)]
//! A peer process that may copy from and to memory of this process, and the wait until its copies
//! have ended.
//!
//! A peer counts as a copying peer from before it gets the permission to copy until it has closed
//! its side of the connection. In the peer process, a [`Link`](super::link::Link) closes that side
//! when no thread can copy through the link any more. If this process has violated the protocol or
//! has not finished the handshake, the peer closes that side [earlier](super::link::Link::abort).
//! The state of the link in this process does not matter.

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::net::{Shutdown, shutdown};
use rustix::process::{Pid, PidfdFlags, pidfd_open};

use super::process;
use super::shared::MappedArray;
use crate::descriptor::Descriptor;
use crate::epoch::{Lanes, OccupiedLanes};
use crate::sync::Line;

/// Time for which a thread spins while it waits for a peer's copy. Most copies end within this
/// time. Otherwise the thread sleeps repeatedly, each time for the same duration.
const SPIN_AND_SLEEP_TIME: Duration = Duration::from_millis(1);

/// Maximum time that this process waits for a peer to finish a copy if the peer is stopped by a
/// signal or a debugger. Without the limit, a verb would not return until the peer continues.
const MAX_WAIT_FOR_STOPPED: Duration = Duration::from_secs(1);

/// Maximum time that this process waits for any peer to finish a copy. A running peer finishes
/// within microseconds. A peer that is frozen by its cgroup does not finish, and is not reported as
/// stopped.
const MAX_WAIT: Duration = Duration::from_secs(30);

/// The process at the other end of a Unix connection: its IDs, the connection, and the permission
/// of this process to access its memory.
#[derive(Debug)]
pub(super) struct Process {
    /// Process ID of the process.
    pub(super) number: Pid,
    /// ID of the thread by which the kernel finds the memory of the process. See [`process`].
    pub(super) thread: Pid,
    /// Result of the check whether the kernel permits this process to copy from and to the memory
    /// of the other process.
    pub(super) copies: process::KernelCopies,
    /// Connection that is closed when the other process ends or calls `exec`.
    pub(super) socket: Descriptor,
    /// Descriptor that becomes readable when the process has ended. `None` if the system has no
    /// such descriptors.
    pub(super) handle: Option<Descriptor>,
}

impl Process {
    /// Opens a descriptor that becomes readable when the process with the ID `number` has ended.
    /// Returns `None` if the system cannot open such a descriptor. The connection to the process
    /// does not always report the end: another process can have inherited the connection and hold
    /// it open.
    pub(super) fn open_handle(number: Pid) -> Option<Descriptor> {
        Descriptor::open(|| pidfd_open(number, PidfdFlags::empty())).ok()
    }
}

/// A peer process that may copy from and to memory of this process. This process waits for the end
/// of the peer's copies before memory is reused.
#[derive(Debug)]
pub(super) struct CopyingPeer {
    pub(super) process: Process,
    /// Lanes of the peer: shared words in which the peer records that copies are in progress (see
    /// [`epoch`](crate::epoch)).
    lanes: MappedArray<Line>,
}

impl CopyingPeer {
    pub(super) fn new(process: Process, lanes: MappedArray<Line>) -> Self {
        Self { process, lanes }
    }

    /// Returns whether the peer has closed its side of the connection, or the peer process has
    /// ended.
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

    /// Returns the descriptors to poll for the end of the peer process: its socket, and its process
    /// handle if the system supports one. The peer may also close the socket earlier.
    pub(super) fn descriptors(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        let handle = self.process.handle.as_ref().map(AsFd::as_fd);
        [Some(self.process.socket.as_fd()), handle]
            .into_iter()
            .flatten()
    }

    /// Closes this side of the connection. The peer then no longer waits for copies by this process
    /// from or to its memory.
    pub(super) fn close_connection(&self) {
        // An error means that the peer is gone.
        let _ = shutdown(&self.process.socket, Shutdown::Write);
    }
}

/// Copies by one peer process that were in progress when [`CopiesInProgress::of`] was called. This
/// process waits for their end before memory is reused.
#[derive(Debug)]
pub(super) struct CopiesInProgress {
    copying_peer: Arc<CopyingPeer>,
    occupied: OccupiedLanes,
    wait: Wait,
}

/// State of a wait for the end of a peer's copies: the time at which the wait began, and the
/// duration for which a signal or a debugger has stopped the peer.
#[derive(Clone, Copy, Debug)]
struct Wait {
    since: Instant,
    /// Time since which each check has found the peer stopped. `None` if the last check found the
    /// peer running.
    stopped: Option<Instant>,
}

impl CopiesInProgress {
    /// Records the copies that the peer has in progress now, so that the caller can wait for their
    /// end. Before the call, the caller must make the memory inaccessible for new copies.
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

    /// Checks whether the peer's copies have ended. Returns `Some(true)` if the copies have ended
    /// or the peer process has ended. Returns `Some(false)` if the time limit of the wait is
    /// exceeded, and `None` if the caller must check again.
    pub(super) fn poll(&mut self) -> Option<bool> {
        if self.occupied.have_ended(Lanes(&self.copying_peer.lanes)) {
            return Some(true);
        }
        // Most copies end within this time, so no system call is made before.
        (self.wait.since.elapsed() > SPIN_AND_SLEEP_TIME)
            .then(|| self.wait.check_peer(&self.copying_peer))
            .flatten()
    }

    /// Returns the duration of the wait so far, from which callers compute the delay until their
    /// next check.
    pub(super) fn elapsed(&self) -> Duration {
        self.wait.since.elapsed()
    }

    /// Waits until the peer's copies have ended or the peer process has ended, and then returns
    /// `true`. Returns `false` if the time limit is exceeded, because the peer was stopped or
    /// frozen during a copy. The memory must then not be reused, because the peer can continue the
    /// copy at any time.
    pub(super) fn wait(self) -> bool {
        let Self {
            copying_peer,
            mut occupied,
            mut wait,
        } = self;
        let mut outlook = None;
        let are_left = occupied.wait(Lanes(&copying_peer.lanes), || {
            if wait.since.elapsed() > SPIN_AND_SLEEP_TIME {
                // The peer may be stopped, or may wait for a processor.
                thread::sleep(SPIN_AND_SLEEP_TIME);
            }
            outlook = wait.check_peer(&copying_peer);
            outlook.is_some()
        });
        are_left || outlook == Some(true)
    }
}

impl Wait {
    /// Checks whether the wait for the peer's copies must end. Returns `Some(true)` if the peer has
    /// ended, and `Some(false)` if the time limit of the wait is exceeded. Returns `None` if the
    /// caller must continue the wait.
    fn check_peer(&mut self, copying_peer: &CopyingPeer) -> Option<bool> {
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
