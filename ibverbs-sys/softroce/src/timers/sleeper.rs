#![forbid(unsafe_code)]

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};

use crate::descriptor::{self, Descriptor, Opening};
use crate::proto::Time;

/// Delay of a timer, in nanoseconds, that is accepted where the engine sleeps until a later one: it is not woken for
/// less.
const TOLERANCE: u64 = 1_000_000;

/// Interval at which the engine checks its timers when no descriptor can wake the thread.
const REST: Duration = Duration::from_millis(10);

/// Where the engine sleeps, and how it is woken.
#[derive(Debug)]
pub(crate) struct Sleeper {
    /// Until when the engine sleeps if nothing happens, in nanoseconds; 0: it is awake.
    until: AtomicU64,
    bell: Descriptor,
    /// Both ends of a pipe. A thread that sleeps at the first end is woken when both are closed.
    ends: [Descriptor; 2],
    /// Set after one of these descriptors was found to be closed.
    has_lost: AtomicBool,
}

impl Sleeper {
    pub(crate) fn new() -> io::Result<Self> {
        let opening = Opening::begin();
        let (read, write) = io::pipe()?;
        let ends = [opening.own(read.into()), opening.own(write.into())];
        drop(opening);
        Ok(Self {
            ends,
            has_lost: AtomicBool::new(false),
            until: AtomicU64::new(0),
            bell: Descriptor::open(|| eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK))?,
        })
    }

    /// Returns a descriptor with which others can ring the engine.
    pub(crate) fn bell(&self) -> io::Result<Descriptor> {
        self.bell.try_clone()
    }

    /// Wakes the engine if it sleeps. State that the engine must see then must have been stored before, sequentially
    /// consistent.
    pub(crate) fn wake(&self) {
        self.wake_if(|until| until > 0);
    }

    /// Wakes the engine if it would sleep much longer than to `deadline`.
    pub(crate) fn wake_before(&self, deadline: Time) {
        let latest = deadline.as_nanos().saturating_add(TOLERANCE);
        self.wake_if(|until| until > latest);
    }

    fn wake_if(&self, asleep: impl Fn(u64) -> bool) {
        // The first one who wakes it marks it as awake, so that others do not pay for it again.
        let woken = self
            .until
            .fetch_update(Ordering::SeqCst, Ordering::SeqCst, |until| {
                asleep(until).then_some(0)
            });
        if woken.is_ok() {
            self.ring();
        }
    }

    /// Makes the engine's sleep end, or its next one be none.
    pub(crate) fn ring(&self) {
        descriptor::count_up(self.bell.as_fd());
    }

    /// Sleeps until `deadline` if there is one, until `watched` is readable, or until somebody wakes the caller.
    /// `still` is asked when everybody can see that the caller sleeps: whether there is still nothing to do.
    pub(crate) fn sleep(
        &self,
        now: Time,
        deadline: Option<Time>,
        watched: BorrowedFd<'_>,
        still: impl FnOnce() -> bool,
    ) {
        // 0 means awake; a deadline that is now or over is no sleep.
        let until = deadline.map_or(u64::MAX, |deadline| deadline.as_nanos().max(1));
        self.until.store(until, Ordering::SeqCst);
        if still() {
            let timeout = deadline.map(|deadline| {
                let left = deadline - now;
                Timespec {
                    tv_sec: left.as_secs() as _,
                    tv_nsec: left.subsec_nanos().into(),
                }
            });
            self.wait(timeout.as_ref(), watched);
        }
        self.until.store(0, Ordering::SeqCst);
    }

    /// Returns whether the program has closed a descriptor that the engine sleeps at.
    pub(crate) fn has_lost(&self) -> bool {
        self.has_lost.load(Ordering::Relaxed)
    }

    /// Sleeps for a while when nothing can wake the caller.
    pub(crate) fn rest(&self) {
        thread::sleep(REST);
    }

    fn wait(&self, timeout: Option<&Timespec>, watched: BorrowedFd<'_>) {
        let mut descriptors = [
            PollFd::new(&self.bell, PollFlags::IN),
            PollFd::from_borrowed_fd(watched, PollFlags::IN),
            PollFd::new(&self.ends[0], PollFlags::empty()),
        ];
        // `poll` fails on a signal, which the engine's thread has blocked, or if there is no memory: then the engine
        // looks after everything and tries again.
        if poll(&mut descriptors, timeout).is_err() {
            return;
        }
        let is_closed = |descriptor: &PollFd<'_>| {
            let found = descriptor.revents();
            found.intersects(PollFlags::NVAL | PollFlags::HUP | PollFlags::ERR)
        };
        if descriptors.iter().any(is_closed) {
            self.has_lost.store(true, Ordering::Relaxed);
        } else if !descriptors[0].revents().is_empty() {
            let _ = rustix::io::read(&self.bell, &mut [0; 8]);
        }
    }
}
