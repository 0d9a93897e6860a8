#![forbid(unsafe_code)]

use std::any::Any;
use std::hint;
use std::io;
use std::num::NonZeroU64;
use std::os::fd::{AsFd, BorrowedFd};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use super::pacing::{Finding, INTERVAL, Pacing, Wait};
use super::spawn;
use super::watch::Watch;
use crate::descriptor;
use crate::net::Endpoints;
use crate::proto::Time;
use crate::timers::Timers;

/// Batches of packets that the engine fetches before it decides again how to wait.
const BATCHES: usize = 16;

/// So many packets at a look are the middle of a transfer: more of them are about to come.
const BULK: usize = 16;

/// Time that the engine stays awake after it found so many packets. Falling asleep and being woken takes about as long,
/// and a part of that is at the cost of the sender, which wakes the engine.
const AWAKE: Duration = Duration::from_micros(30);

/// Time that another thread which is fetching packets may take, before the engine checks that the timers that are due
/// ran.
const PAUSE: Duration = Duration::from_micros(100);

/// The device, as the engine drives it.
pub(crate) trait Device: Send + Sync + 'static {
    /// Fetches one batch of the packets that are there, answers them, and runs the timers that are due. Where another
    /// thread is fetching, that one will look again after it has let go.
    fn look(&self) -> Look;

    /// Returns when a thread last polled and looked after the device; `None` if none ever did.
    fn polled(&self) -> Option<Time>;

    /// Returns the sockets that packets come by now.
    fn endpoints(&self) -> Arc<Endpoints>;

    /// Looks after what else [`heard`](Self::heard) tells of.
    fn attend(&self) {}

    /// Returns the descriptor that is readable when there is something to [attend](Self::attend) to; always the same
    /// one.
    fn heard(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    /// Tells peers that the engine is about to sleep until they wake it. Returns `false` if something has come for
    /// which nobody will wake it.
    fn fall_asleep(&self) -> bool {
        true
    }

    /// Notes that the engine is awake.
    fn wake_up(&self) {}

    /// Runs the timers that are due, and nothing else.
    fn run_due(&self);

    /// Reports a panic of the engine to the device. Returns whether the engine may go on.
    fn panicked(&self, panic: &(dyn Any + Send)) -> bool;
}

/// Result of a look at the network.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Look {
    /// Somebody else is looking, and will look again.
    Contended,
    /// The look is done.
    Done {
        /// Packets that were fetched; none: there were no more.
        fetched: usize,
    },
}

/// The engine's thread, as other threads see it. The thread ends when this handle, or the device, is dropped.
#[derive(Debug)]
pub(crate) struct Engine {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    timers: Arc<Timers>,
    stop: AtomicBool,
    /// Number of times that a program said that it is about to sleep.
    armed: AtomicU64,
    /// The engine does not watch the sockets.
    away: AtomicBool,
    /// Number of times that the engine went around its loop, for tests of how seldom it runs.
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
        let watch = Watch::new()?;
        spawn("softroce", move || of_thread.drive(&device, watch))?;
        Ok(Self { shared })
    }

    /// Makes packets wake the engine from now on: the program is about to sleep until a completion comes.
    pub(crate) fn watch(&self) {
        // The engine stores `away` and then looks at `armed`.
        self.shared.armed.fetch_add(1, Ordering::SeqCst);
        if self.shared.away.load(Ordering::SeqCst) {
            self.shared.timers.sleeper().wake();
        }
    }

    /// Returns the number of times that the engine woke up and went to sleep again.
    #[cfg(test)]
    pub(super) fn rounds(&self) -> u64 {
        self.shared.rounds.load(Ordering::SeqCst)
    }

    /// Returns whether the engine leaves the sockets to polling threads, and checks at intervals that there still are
    /// some.
    pub(crate) fn is_away(&self) -> bool {
        self.shared.away.load(Ordering::SeqCst)
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::SeqCst);
        // The engine's own thread may be the one that drops the device, so it is not waited for.
        self.shared.timers.sleeper().ring();
    }
}

impl Shared {
    /// Runs until the device is gone. After a panic the device has failed, and the thread goes on for timers, such as
    /// those of completion events that are held back. A second panic ends the thread.
    fn drive<D: Device>(&self, device: &Weak<D>, mut watch: Watch) {
        // Code that uses state which the panic has left inconsistent finds a device that has failed.
        while let Err(panic) = catch_unwind(AssertUnwindSafe(|| self.run(device, &mut watch))) {
            let device = device.upgrade();
            if !device.is_some_and(|device| device.panicked(&*panic)) {
                return;
            }
        }
    }

    fn run<D: Device>(&self, device: &Weak<D>, watch: &mut Watch) {
        // Else the system adds 50 us to every timer. If it refuses, they are as late as that.
        let _ = rustix::thread::set_current_timer_slack(NonZeroU64::new(1000));
        let mut pacing = Pacing::new();
        let mut armed = 0;
        let mut awake = Time::default();
        if let Some(heard) = device.upgrade().as_ref().and_then(|device| device.heard()) {
            // Where the system refuses, peers of the host are strangers.
            let _ = watch.add(heard);
        }
        while !self.stop.load(Ordering::SeqCst) {
            self.rounds.fetch_add(1, Ordering::SeqCst);
            let Some(device_now) = device.upgrade() else {
                return;
            };
            if self.timers.sleeper().has_lost() || descriptor::has_lost() {
                descriptor::check_all();
            }
            if descriptor::has_lost() {
                // The numbers of the sockets may now be those of files of the program.
                device_now.run_due();
                drop(device_now);
                self.timers.sleeper().rest();
                continue;
            }
            let armed_before = armed;
            armed = self.armed.load(Ordering::SeqCst);
            // Packets that come from here on end the next sleep at once.
            let woken = watch.take();
            device_now.attend();
            let (packets, look) = look(&*device_now);
            let fetched = packets > 0;
            let now = self.timers.now();
            if packets >= BULK {
                awake = now + AWAKE;
            }
            let (polled, endpoints) = (device_now.polled(), device_now.endpoints());
            // Others may drop the device while its engine sleeps.
            drop(device_now);
            let wait = pacing.decide(Finding {
                woken: woken || fetched,
                fetched,
                contended: look == Look::Contended,
                armed: armed != armed_before,
                polled: polled.map(|polled| now - polled),
            });
            // Another thread is fetching and will go on when it gets a processor. That may be this one, so it is left
            // to that thread.
            let wait = match wait {
                Wait::Watch if look == Look::Contended => Wait::Leave(PAUSE),
                wait => wait,
            };
            let watched = watch.set(&endpoints, wait == Wait::Watch);
            let interval = match wait {
                Wait::Leave(interval) => Some(interval),
                // There is more, of which a watch that began before tells nothing.
                Wait::Watch if matches!(look, Look::Done { fetched: 1.. }) => continue,
                Wait::Watch if now < awake => {
                    hint::spin_loop();
                    continue;
                }
                Wait::Watch if watched => None,
                Wait::Watch => Some(INTERVAL),
            };
            self.away.store(wait != Wait::Watch, Ordering::SeqCst);
            // Timers that are due run where the packets are looked after.
            let least = match look {
                Look::Contended => now + PAUSE,
                Look::Done { .. } => now,
            };
            // An engine that wakes up at intervals need not be woken.
            let device_of_sleep = (wait == Wait::Watch).then_some(device);
            self.sleep(interval, now, least, armed, watch, device_of_sleep);
            if let Some(device) = device_of_sleep.and_then(Weak::upgrade) {
                device.wake_up();
            }
        }
    }

    /// Sleeps until something is to be done, but timers not before `least`; or so long.
    fn sleep<D: Device>(
        &self,
        interval: Option<Duration>,
        now: Time,
        least: Time,
        armed: u64,
        watch: &Watch,
        device: Option<&Weak<D>>,
    ) {
        let end = interval.map(|interval| now + interval);
        let earliest = self.timers.earliest().map(|timer| timer.max(least));
        let deadline = earliest.into_iter().chain(end).min();
        self.timers
            .sleeper()
            .sleep(now, deadline, watch.as_fd(), || {
                let sooner = |timer: Time| deadline.is_none_or(|end| timer.max(least) < end);
                !self.timers.earliest().is_some_and(sooner)
                    && self.armed.load(Ordering::SeqCst) == armed
                    && !self.stop.load(Ordering::SeqCst)
                    && device
                        .and_then(Weak::upgrade)
                        .is_none_or(|device| device.fall_asleep())
            });
    }
}

/// Fetches packets until there are none, or for a while; how many there were, and the last look.
fn look(device: &impl Device) -> (usize, Look) {
    let mut packets = 0;
    let mut look = device.look();
    for _ in 1..BATCHES {
        match look {
            Look::Done { fetched } if fetched > 0 => packets += fetched,
            _ => break,
        }
        look = device.look();
    }
    (packets, look)
}
