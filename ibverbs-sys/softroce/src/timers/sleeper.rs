#![forbid(unsafe_code)]

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};

use crate::descriptor::{self, Descriptor, Opening};
use crate::proto::Time;

/// Maximum delay of a timer in nanoseconds. A new timer does not wake the sleeping engine
/// (background thread) if the engine will wake within this time after the timer is due. The delay
/// saves system calls.
const MAX_TIMER_DELAY: u64 = 1_000_000;

/// Interval at which the engine (background thread) checks its timers after the program has closed
/// descriptors of the device by mistake. No descriptor can then wake the engine.
const FALLBACK_INTERVAL: Duration = Duration::from_millis(10);

/// Sleep state of the engine (background thread of the device), and the eventfd with which other
/// threads and processes wake it.
#[derive(Debug)]
pub(crate) struct Sleeper {
    /// Time in nanoseconds at which the engine's sleep ends at the latest. 0 while the engine is
    /// awake.
    until: AtomicU64,
    wake_eventfd: Descriptor,
    /// Both ends of a pipe. Closing both ends wakes a thread that sleeps on the first.
    ends: [Descriptor; 2],
    /// Set after a descriptor on which the engine sleeps was found to be closed.
    has_lost: AtomicBool,
}

impl Sleeper {
    pub(crate) fn new() -> io::Result<Self> {
        let opening = Opening::begin();
        let (read, write) = io::pipe()?;
        let ends = [opening.adopt(read.into()), opening.adopt(write.into())];
        drop(opening);
        Ok(Self {
            ends,
            has_lost: AtomicBool::new(false),
            until: AtomicU64::new(0),
            wake_eventfd: Descriptor::open(|| {
                eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
            })?,
        })
    }

    /// Returns a duplicate of the eventfd that wakes the engine (background thread) of this
    /// process. The duplicate is passed to other processes, which can then wake the engine.
    pub(crate) fn wake_eventfd(&self) -> io::Result<Descriptor> {
        self.wake_eventfd.try_clone()
    }

    /// Wakes the engine (background thread) if it sleeps. The caller must first store the state
    /// that the engine must see, with sequentially consistent ordering.
    pub(crate) fn wake(&self) {
        self.wake_if(|until| until > 0);
    }

    /// Wakes the engine (background thread) if its sleep would end too late for the time
    /// `deadline`, for which a timer was scheduled: more than [`MAX_TIMER_DELAY`] after this time.
    pub(crate) fn wake_before(&self, deadline: Time) {
        let latest = deadline.as_nanos().saturating_add(MAX_TIMER_DELAY);
        self.wake_if(|until| until > latest);
    }

    fn wake_if(&self, asleep: impl Fn(u64) -> bool) {
        // The first thread that wakes the engine marks it as awake, so that other threads need not
        // wake it again.
        let woken = self
            .until
            .fetch_update(Ordering::SeqCst, Ordering::SeqCst, |until| {
                asleep(until).then_some(0)
            });
        if woken.is_ok() {
            self.signal();
        }
    }

    /// Increments the eventfd of the engine (background thread): ends the engine's present sleep,
    /// or prevents its next sleep.
    pub(crate) fn signal(&self) {
        descriptor::increment(self.wake_eventfd.as_fd());
    }

    /// Puts the calling thread, the engine (background thread), to sleep. The sleep ends at the
    /// time `deadline`, when the descriptor `watched` is readable, or when another thread wakes the
    /// engine. `now` is the present time.
    ///
    /// Calls `still` just before the sleep, when other threads already see the engine as asleep. If
    /// `still` returns `false`, work is left, and this function returns immediately.
    pub(crate) fn sleep(
        &self,
        now: Time,
        deadline: Option<Time>,
        watched: BorrowedFd<'_>,
        still: impl FnOnce() -> bool,
    ) {
        // 0 means awake, so a deadline of 0 is stored as 1.
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

    /// Returns whether the engine (background thread) has detected that the program has closed a
    /// descriptor of the device. The engine must then check all descriptors of the device.
    pub(crate) fn has_lost(&self) -> bool {
        self.has_lost.load(Ordering::Relaxed)
    }

    /// Sleeps for a fixed interval. Called instead of [`sleep`](Self::sleep) when no descriptor can
    /// wake the engine (background thread).
    pub(crate) fn pause(&self) {
        thread::sleep(FALLBACK_INTERVAL);
    }

    fn wait(&self, timeout: Option<&Timespec>, watched: BorrowedFd<'_>) {
        let mut descriptors = [
            PollFd::new(&self.wake_eventfd, PollFlags::IN),
            PollFd::from_borrowed_fd(watched, PollFlags::IN),
            PollFd::new(&self.ends[0], PollFlags::empty()),
        ];
        // `poll` fails on a signal, which the engine's thread blocks, or without memory: then the
        // engine checks everything and tries again.
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
            let _ = rustix::io::read(&self.wake_eventfd, &mut [0; 8]);
        }
    }
}
