#![forbid(unsafe_code)]

use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};

use crate::proto::Time;

/// How much too late a timer may be for not waking the engine that sleeps until a later one.
const TOLERANCE: u64 = 1_000_000;

/// Where the engine sleeps, and how it is woken.
#[derive(Debug)]
pub(crate) struct Sleeper {
    /// Until when the engine sleeps if nothing happens, in nanoseconds; 0: it is awake.
    until: AtomicU64,
    bell: OwnedFd,
}

impl Sleeper {
    pub(crate) fn new() -> io::Result<Self> {
        Ok(Self {
            until: AtomicU64::new(0),
            bell: eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?,
        })
    }

    /// What others may ring it with.
    pub(crate) fn bell(&self) -> io::Result<OwnedFd> {
        self.bell.try_clone()
    }

    /// Wakes the engine if it sleeps. What it shall see must have been stored before, sequentially consistent.
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
        // It fails only where the counter is full, and then the bell is ringing anyway.
        let _ = rustix::io::write(&self.bell, &1_u64.to_ne_bytes());
    }

    /// Sleeps until `deadline` if there is one, until `watched` is readable, or until somebody wakes the caller.
    /// `still` is asked when everybody can see that the caller sleeps: whether there is still nothing to do.
    pub(super) fn sleep(
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

    fn wait(&self, timeout: Option<&Timespec>, watched: BorrowedFd<'_>) {
        let mut descriptors = [
            PollFd::new(&self.bell, PollFlags::IN),
            PollFd::from_borrowed_fd(watched, PollFlags::IN),
        ];
        // It fails by a signal, which the engine's thread has blocked, or for want of memory: then all is looked after
        // and it is tried again.
        if poll(&mut descriptors, timeout).is_ok() && !descriptors[0].revents().is_empty() {
            let _ = rustix::io::read(&self.bell, &mut [0; 8]);
        }
    }
}
