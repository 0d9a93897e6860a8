#![forbid(unsafe_code)]

use std::io;
use std::os::fd::OwnedFd;
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

    /// Sleeps until `deadline` if there is one, a descriptor is readable, or somebody wakes the caller; whether a
    /// descriptor is readable. `still` is asked when everybody can see that the caller sleeps: whether there is still
    /// nothing to do.
    pub(crate) fn sleep(
        &self,
        now: Time,
        deadline: Option<Time>,
        descriptors: &[PollFd<'_>],
        still: impl FnOnce() -> bool,
    ) -> bool {
        // 0 means awake; a deadline that is now or over is no sleep.
        let until = deadline.map_or(u64::MAX, |deadline| deadline.as_nanos().max(1));
        self.until.store(until, Ordering::SeqCst);
        let mut readable = false;
        if still() {
            let timeout = deadline.map(|deadline| {
                let left = deadline - now;
                Timespec {
                    tv_sec: left.as_secs() as _,
                    tv_nsec: left.subsec_nanos().into(),
                }
            });
            readable = self.wait(timeout.as_ref(), descriptors);
        }
        self.until.store(0, Ordering::SeqCst);
        readable
    }

    fn wait(&self, timeout: Option<&Timespec>, descriptors: &[PollFd<'_>]) -> bool {
        let mut all: smallvec::SmallVec<[PollFd<'_>; 4]> = smallvec::SmallVec::new();
        all.push(PollFd::new(&self.bell, PollFlags::IN));
        all.extend(descriptors.iter().cloned());
        // It fails by a signal, which the engine's thread has blocked, or for want of memory: then it is tried again.
        match poll(&mut all, timeout) {
            Ok(ready) if ready > 0 => {
                if !all[0].revents().is_empty() {
                    let _ = rustix::io::read(&self.bell, &mut [0; 8]);
                }
                all[1..]
                    .iter()
                    .any(|descriptor| !descriptor.revents().is_empty())
            }
            _ => false,
        }
    }
}
