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

use super::pacing::{CHECK_INTERVAL, Observations, Pacing, Wait};
use super::spawn;
use super::watch::{Event, Wakeup, Watch};
use crate::descriptor;
use crate::net::Endpoints;
use crate::proto::Time;
use crate::timers::Timers;

/// Maximum number of batches of packets that the engine (background thread) receives before it
/// handles other events. For example, peers that connect through shared memory are such events.
/// Without a limit, a peer that sends without end would delay the events.
const MAX_BATCHES: usize = 16;

/// Minimum number of packets in one iteration of the engine (background thread) after which the
/// engine stays awake for [`STAY_AWAKE_TIME`]. After so many packets, more packets are probably
/// about to arrive.
const MANY_PACKETS: usize = 16;

/// Time for which the engine (background thread) stays awake after it has received at least
/// [`MANY_PACKETS`] packets. Falling asleep and being woken takes about this long, and each wakeup
/// also costs time of the thread that sends the packet.
const STAY_AWAKE_TIME: Duration = Duration::from_micros(30);

/// Maximum time for which the engine (background thread) receives no packets and handles no timers
/// because another thread is doing so. The limit applies if that thread is not scheduled.
const MAX_CONTENTION_WAIT: Duration = Duration::from_micros(100);

/// Functions of the device that the engine (background thread) calls.
pub(crate) trait EngineTasks: Send + Sync + 'static {
    /// Receives one batch of packets, sends the responses, and runs due timers. If another thread
    /// is receiving, returns [`ReceiveAttempt::Contended`] immediately. The other thread then
    /// receives again after it has released the lock.
    fn receive(&self) -> ReceiveAttempt;

    /// Returns the time at which a thread of the program last polled the device, or `None` if no
    /// thread ever polled.
    fn polled(&self) -> Option<Time>;

    /// Returns the UDP sockets that receive packets of the device at present.
    fn endpoints(&self) -> Arc<Endpoints>;

    /// Handles events of other processes, for example peers that connect through shared memory.
    /// Called in each iteration of the engine's loop. New events wake the engine by the descriptor
    /// that [`events_descriptor`](Self::events_descriptor) returns. Does nothing by default.
    fn handle_events(&self) {}

    /// Returns a descriptor that is readable while events are pending for
    /// [`handle_events`](Self::handle_events), or `None` if there are no such events. Every call
    /// must return the same descriptor.
    fn events_descriptor(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    /// Handles changes of the host's network interfaces and addresses. Called when the descriptor
    /// of [`host_changes`](Self::host_changes) is readable. Does nothing by default.
    fn handle_host_changes(&self) {}

    /// Returns a descriptor that is readable while events are pending for
    /// [`handle_host_changes`](Self::handle_host_changes). Returns `None` if there are no such
    /// events. Every call must return the same descriptor.
    fn host_changes(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    /// Informs peer processes that the engine (background thread) is about to sleep, so that they
    /// wake the engine for new messages. Returns `false` if work is left, so that the engine must
    /// not sleep: messages that arrived before this call, delayed responses, or messages that wait
    /// to be sent.
    fn fall_asleep(&self) -> bool {
        true
    }

    /// Informs peer processes that the engine (background thread) is awake, so that they need not
    /// wake the engine for new messages. Does nothing by default.
    fn wake_up(&self) {}

    /// Returns the interval at which the engine (background thread) must check for messages even if
    /// no packet wakes the engine. Returns `None` if no such checks are needed. The checks are
    /// needed while peers wake a thread of the program instead of the engine, because the device
    /// cannot rely on that thread to receive. `_is_over` is `true` if the last such interval has
    /// passed. The implementation can then end the checks.
    fn check_interval(&self, _is_over: bool) -> Option<Duration> {
        None
    }

    /// Runs the device's timers that are due, without receiving packets. Called instead of
    /// [`receive`](Self::receive) after the program has closed descriptors of the device by
    /// mistake, because the sockets are then perhaps closed.
    fn run_due(&self);

    /// Makes the device fail after a panic of the engine (background thread). `panic` is the
    /// payload of the panic. Returns `true` if the engine may continue, and `false` if the device
    /// had failed before. In the second case, the engine ends.
    fn panicked(&self, panic: &(dyn Any + Send)) -> bool;
}

/// Result of one attempt of the engine (background thread) to receive packets
/// ([`EngineTasks::receive`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ReceiveAttempt {
    /// Another thread is receiving, and will receive once more after this attempt.
    Contended,
    /// The attempt has received all packets of one batch.
    Done {
        /// Number of packets that were fetched, or 0 if no packets were left.
        fetched: usize,
    },
}

/// Handle of the engine (background thread of the device). The thread ends when this handle or the
/// device is dropped.
#[derive(Debug)]
pub(crate) struct Engine {
    shared: Arc<EngineState>,
}

#[derive(Debug)]
struct EngineState {
    timers: Arc<Timers>,
    stop: AtomicBool,
    /// Number of times that the program armed a completion queue (requested an event, in order to
    /// sleep until a completion arrives). The engine (background thread) detects by a change that
    /// it must watch the sockets.
    armed: AtomicU64,
    /// Set while the engine (background thread) does not watch the sockets, so that packets do not
    /// wake it.
    away: AtomicBool,
    /// Number of iterations of the engine's loop, for tests.
    rounds: AtomicU64,
}

impl Engine {
    /// Starts the engine: a background thread that calls the [`EngineTasks`] of `device`. The
    /// thread sleeps at most until the earliest of `timers` expires, and [`EngineTasks::receive`]
    /// then handles this timer. The thread handles no signals of the program.
    pub(crate) fn start<D: EngineTasks>(timers: Arc<Timers>, device: Weak<D>) -> io::Result<Self> {
        let shared = Arc::new(EngineState {
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

    /// Ensures that packets that arrive from now on wake the engine (background thread). While
    /// threads of the program poll, packets need not wake the engine. The caller must call this
    /// function when the program is about to sleep until a completion arrives.
    pub(crate) fn watch(&self) {
        // The engine accesses the two words in the opposite order: it stores `away` and then loads
        // `armed`.
        self.shared.armed.fetch_add(1, Ordering::SeqCst);
        if self.shared.away.load(Ordering::SeqCst) {
            self.shared.timers.sleeper().wake();
        }
    }

    /// Returns the number of iterations that the loop of this engine (background thread) has
    /// executed, for tests.
    #[cfg(test)]
    pub(super) fn rounds(&self) -> u64 {
        self.shared.rounds.load(Ordering::SeqCst)
    }

    /// Returns whether packets do not wake the engine (background thread) at present, because
    /// threads of the program poll.
    pub(crate) fn is_unwatched(&self) -> bool {
        self.shared.away.load(Ordering::SeqCst)
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::SeqCst);
        // The thread is not joined, because the engine's own thread may be the one that drops the
        // device.
        self.shared.timers.sleeper().signal();
    }
}

impl EngineState {
    /// Runs the loop of the engine (background thread) until `device` is dropped. `watch` contains
    /// the descriptors that wake the engine. A panic in the loop makes the device fail, but the
    /// loop continues, because timers must still be run. A second panic ends the loop.
    fn drive<D: EngineTasks>(&self, device: &Weak<D>, mut watch: Watch) {
        // Code that meets state which the panic left inconsistent finds that the device has failed.
        while let Err(panic) = catch_unwind(AssertUnwindSafe(|| self.run(device, &mut watch))) {
            let device = device.upgrade();
            if !device.is_some_and(|device| device.panicked(&*panic)) {
                return;
            }
        }
    }

    fn run<D: EngineTasks>(&self, device: &Weak<D>, watch: &mut Watch) {
        // Otherwise the kernel adds 50 us to every timer. On failure, the timers are late by that
        // time.
        let _ = rustix::thread::set_current_timer_slack(NonZeroU64::new(1000));
        let mut pacing = Pacing::new();
        let mut armed = 0;
        let mut awake = Time::default();
        let mut check = Time::default();
        let whole = device.upgrade();
        if let Some(events) = whole.as_ref().and_then(|device| device.events_descriptor()) {
            // On failure, peers on the same host are reached by packets only.
            let _ = watch.add(events, Event::Heard);
        }
        if let Some(changes) = whole.as_ref().and_then(|device| device.host_changes()) {
            // On failure, the GID table does not change.
            let _ = watch.add(changes, Event::HostChange);
        }
        drop(whole);
        while !self.stop.load(Ordering::SeqCst) {
            self.rounds.fetch_add(1, Ordering::SeqCst);
            let Some(device_now) = device.upgrade() else {
                return;
            };
            if self.timers.sleeper().has_lost() || descriptor::has_lost() {
                descriptor::check_all();
            }
            if descriptor::has_lost() {
                // The descriptor numbers of the sockets may now belong to files of the program.
                device_now.run_due();
                drop(device_now);
                self.timers.sleeper().pause();
                continue;
            }
            let armed_before = armed;
            armed = self.armed.load(Ordering::SeqCst);
            // Packets that arrive from here on end the next sleep immediately.
            let Wakeup {
                woken,
                host_changed,
            } = watch.take();
            if host_changed {
                device_now.handle_host_changes();
            }
            device_now.handle_events();
            let (packets, look) = receive(&*device_now);
            let fetched = packets > 0;
            let now = self.timers.now();
            if packets >= MANY_PACKETS {
                awake = now + STAY_AWAKE_TIME;
            }
            let (polled, endpoints) = (device_now.polled(), device_now.endpoints());
            let check_interval = device_now.check_interval(now >= check);
            if now >= check {
                check = now + check_interval.unwrap_or_default();
            }
            // Other threads may drop the device while its engine sleeps.
            drop(device_now);
            let wait = pacing.decide(Observations {
                woken: woken || fetched,
                fetched,
                contended: look == ReceiveAttempt::Contended,
                armed: armed != armed_before,
                polled: polled.map(|polled| now - polled),
            });
            // Another thread is receiving, and continues once it is scheduled. The thread may need
            // this processor, so the engine sleeps.
            let wait = match wait {
                Wait::Watch if look == ReceiveAttempt::Contended => {
                    Wait::Unwatched(MAX_CONTENTION_WAIT)
                }
                wait => wait,
            };
            let watched = watch.set(&endpoints, wait == Wait::Watch);
            let interval = match wait {
                Wait::Unwatched(interval) => Some(interval),
                // A socket has more packets. A watch that began earlier does not report them.
                Wait::Watch if matches!(look, ReceiveAttempt::Done { fetched: 1.. }) => continue,
                Wait::Watch if now < awake => {
                    hint::spin_loop();
                    continue;
                }
                Wait::Watch if watched => check_interval,
                Wait::Watch => Some(CHECK_INTERVAL),
            };
            self.away.store(wait != Wait::Watch, Ordering::SeqCst);
            // If another thread is receiving, that thread runs the due timers.
            let least = match look {
                ReceiveAttempt::Contended => now + MAX_CONTENTION_WAIT,
                ReceiveAttempt::Done { .. } => now,
            };
            // An engine that wakes up at intervals need not be woken.
            let device_of_sleep = (wait == Wait::Watch).then_some(device);
            self.sleep(interval, now, least, armed, watch, device_of_sleep);
            if let Some(device) = device_of_sleep.and_then(Weak::upgrade) {
                device.wake_up();
            }
        }
    }

    /// Puts the engine (background thread) to sleep until an event or a timer wakes it.
    ///
    /// * `interval`: maximum time of the sleep.
    /// * `least`: earliest time at which a timer wakes the engine.
    /// * `armed`: recent value of the counter of armed completion queues. If the counter has
    ///   changed since then, returns immediately.
    fn sleep<D: EngineTasks>(
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

/// Receives packets of `device` until no packets are left or another thread is receiving, but at
/// most [`MAX_BATCHES`] batches. Returns the number of packets that were received before the last
/// attempt, and the result of the last attempt.
fn receive(device: &impl EngineTasks) -> (usize, ReceiveAttempt) {
    let mut packets = 0;
    let mut look = device.receive();
    for _ in 1..MAX_BATCHES {
        match look {
            ReceiveAttempt::Done { fetched } if fetched > 0 => packets += fetched,
            _ => break,
        }
        look = device.receive();
    }
    (packets, look)
}
