#![forbid(unsafe_code)]

use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::thread;

use rustix::event::{PollFd, PollFlags};

use super::pacing::{Finding, Pacing, Wait};
use super::{Timers, signals};
use crate::net::Endpoints;
use crate::proto::Time;

/// What the engine drives.
pub(crate) trait Device: Send + Sync + 'static {
    /// Fetches the packets that are there, answers them, and runs the timers that are due.
    fn look(&self) -> Look;

    /// When somebody last polled and found the device's work to be his; none: never.
    fn polled(&self) -> Option<Time>;

    /// What packets come by, now.
    fn endpoints(&self) -> Arc<Endpoints>;
}

/// What a look at the network found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Look {
    /// Somebody else is looking.
    Contended,
    /// It is done.
    Done {
        /// Packets that were fetched.
        fetched: usize,
        /// There may be more.
        more: bool,
    },
}

/// The engine's thread, as others see it. It ends when this, or the device, is dropped.
#[derive(Debug)]
pub(crate) struct Engine {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    timers: Arc<Timers>,
    stop: AtomicBool,
    /// How often a program said that it is about to sleep.
    armed: AtomicU64,
    /// The engine does not watch the sockets.
    away: AtomicBool,
    /// How often the engine went around, for tests of how little it does.
    rounds: AtomicU64,
}

impl Engine {
    /// Starts the thread. Signals go to the program's own threads, never to this one.
    pub(crate) fn start<D: Device>(timers: Arc<Timers>, device: Weak<D>) -> io::Result<Self> {
        let shared = Arc::new(Shared {
            timers,
            stop: AtomicBool::new(false),
            armed: AtomicU64::new(0),
            away: AtomicBool::new(false),
            rounds: AtomicU64::new(0),
        });
        let of_thread = Arc::clone(&shared);
        signals::blocked(|| {
            thread::Builder::new()
                .name("softroce".to_owned())
                .spawn(move || of_thread.run(&device))
        })?;
        Ok(Self { shared })
    }

    /// A program is about to sleep until a completion comes: from now on packets wake the engine.
    pub(crate) fn watch(&self) {
        // The engine stores `away` and then looks at `armed`.
        self.shared.armed.fetch_add(1, Ordering::SeqCst);
        if self.shared.away.load(Ordering::SeqCst) {
            self.shared.timers.sleeper().wake();
        }
    }

    /// How often the engine woke up and went to sleep again.
    #[cfg(test)]
    pub(super) fn rounds(&self) -> u64 {
        self.shared.rounds.load(Ordering::SeqCst)
    }

    /// Whether it leaves the sockets to others.
    #[cfg(test)]
    pub(super) fn is_away(&self) -> bool {
        self.shared.away.load(Ordering::SeqCst)
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::SeqCst);
        // It may be the engine's thread that drops the device, so it is not waited for.
        self.shared.timers.sleeper().ring();
    }
}

impl Shared {
    fn run<D: Device>(&self, device: &Weak<D>) {
        let mut pacing = Pacing::new();
        let (mut woken, mut armed) = (false, 0);
        while !self.stop.load(Ordering::SeqCst) {
            self.rounds.fetch_add(1, Ordering::SeqCst);
            let Some(device) = device.upgrade() else {
                return;
            };
            let armed_before = armed;
            armed = self.armed.load(Ordering::SeqCst);
            let look = device.look();
            let now = self.timers.now();
            let (polled, endpoints) = (device.polled(), device.endpoints());
            // Others may drop the device while its engine sleeps.
            drop(device);
            let (fetched, more) = match look {
                Look::Contended => (0, false),
                Look::Done { fetched, more } => (fetched, more),
            };
            let wait = pacing.decide(Finding {
                woken,
                fetched: fetched > 0,
                contended: look == Look::Contended,
                armed: armed != armed_before,
                polled: polled.map(|polled| now - polled),
            });
            // What is left in a socket would end the sleep at once.
            woken = more && wait == Wait::Watch || self.sleep(wait, now, armed, &endpoints);
        }
    }

    /// Sleeps as told; whether a packet ended it.
    fn sleep(&self, wait: Wait, now: Time, armed: u64, endpoints: &Endpoints) -> bool {
        let timer = self.timers.earliest();
        let (deadline, watched) = match wait {
            Wait::Watch => (timer, true),
            Wait::Leave(interval) => {
                let end = now + interval;
                (Some(timer.map_or(end, |timer| timer.min(end))), false)
            }
        };
        let mut descriptors: smallvec::SmallVec<[PollFd<'_>; 4]> = smallvec::SmallVec::new();
        if watched {
            let sockets = endpoints.sockets();
            descriptors.extend(sockets.map(|socket| PollFd::new(socket, PollFlags::IN)));
        }
        self.away.store(!watched, Ordering::SeqCst);
        self.timers
            .sleeper()
            .sleep(now, deadline, &descriptors, || {
                let sooner = |timer| deadline.is_none_or(|deadline| timer < deadline);
                !self.timers.earliest().is_some_and(sooner)
                    && self.armed.load(Ordering::SeqCst) == armed
                    && !self.stop.load(Ordering::SeqCst)
            })
    }
}
