#![forbid(unsafe_code)]
//! Selection of the thread that peers wake when they have sent a message to this process.
//!
//! Usually peers wake the engine (background thread). Peers wake a thread of the program instead,
//! which saves the wakeup by the engine:
//! - while the thread [waits](Waiter) in a call for an event of a completion channel;
//! - after the thread has armed a completion queue whose channel is non-blocking, as an event loop
//!   does ([`arm_channel`]). The thread may be busy when a peer wakes it, or never wait for the
//!   channel. So the engine then looks for messages at [intervals](CHECK_INTERVAL), until no queue
//!   was armed for one interval.
//!
//! [`arm_channel`]: HostPeers::arm_channel

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering, fence};
use std::time::Duration;

use super::host_peers::HostPeers;
use super::link::Link;
use super::wake::{Armed, Sleeper};
use crate::completion::WakeEventfd;

/// State that determines which thread of this process the peer processes wake: the engine
/// (background thread), or a thread that waits at a completion channel.
#[derive(Debug, Default)]
pub(super) struct WakeTarget {
    /// Set while the engine sleeps.
    is_engine_asleep: AtomicBool,
    /// Set while peers wake a thread that waits at a channel instead of the engine (background
    /// thread). If more threads wait, peers still wake the first one.
    is_kept: AtomicBool,
    /// Set while peers wake a thread of an armed non-blocking channel, which may not be waiting.
    armed: Armed,
}

/// Interval at which the engine (background thread) checks for messages while peers wake the
/// program instead of the engine. If the program is busy, a message waits at most for this time.
pub(crate) const CHECK_INTERVAL: Duration = Duration::from_millis(2);

/// A thread that waits at a completion channel, and that peer processes wake for new messages.
/// While such a thread waits, peers do not wake the engine (background thread).
pub(crate) struct Waiter<'a> {
    host_peers: &'a HostPeers,
    sleeper: Sleeper,
    links: Arc<[Arc<Link>]>,
}

impl HostPeers {
    /// Records the engine (background thread) as asleep in the memory that is shared with each
    /// peer, so that peers wake it. Returns `false` if messages can be received, or waiting
    /// messages can be sent. The engine must then not sleep.
    pub(crate) fn fall_asleep(&self) -> bool {
        self.wake_target
            .is_engine_asleep
            .store(true, Ordering::Relaxed);
        // This fence pairs with the one in `leave`: a waiter that leaves sees the flag, or this
        // thread sees the waiter's changes.
        fence(Ordering::SeqCst);
        let Some(links) = self.links() else {
            return true;
        };
        (links.iter()).for_each(|link| link.fall_asleep(Sleeper::Engine));
        !links.iter().any(|link| link.is_waiting())
    }

    /// Publishes to all peers that the engine (background thread) is awake, so that no peer wakes
    /// it.
    pub(crate) fn wake_up(&self) {
        self.wake_target
            .is_engine_asleep
            .store(false, Ordering::Relaxed);
        for link in self.links().iter().flat_map(|links| links.iter()) {
            link.wake_up(Sleeper::Engine);
        }
    }

    /// Makes peers wake the program by the eventfd `wake_eventfd` of a non-blocking completion
    /// channel, instead of the engine (background thread). Called when the program has requested an
    /// event of the channel. Afterwards the caller must receive messages again, because peers send
    /// no wakeup for messages that arrived earlier. Also wakes peers to which messages were sent
    /// without a wakeup. Does nothing if peers already wake a thread that waits at a channel.
    pub(crate) fn arm_channel(&self, wake_eventfd: &WakeEventfd) {
        let Some(links) = self.links() else {
            return;
        };
        let Self { wake_target, .. } = self;
        if wake_target.is_kept.load(Ordering::Relaxed) {
            return;
        }
        let is_first = wake_target.armed.arm();
        for link in &*links {
            if link.must_wake() {
                link.flush();
            }
            link.fall_asleep(Sleeper::Channel(wake_eventfd.number()));
        }
        // If the engine has ended two intervals meanwhile, it no longer checks for messages.
        let has_ended = wake_target.armed.arm();
        if is_first || has_ended {
            self.wake_engine();
        }
    }

    /// Returns whether peers wake the program instead of the engine (background thread), because
    /// the program has requested an event of a non-blocking channel. If so, the engine must check
    /// for messages at intervals of [`CHECK_INTERVAL`]: the program can be busy and not poll the
    /// channel.
    pub(crate) fn is_channel_armed(&self) -> bool {
        self.wake_target.armed.is_set()
    }

    /// Ends a check interval of the engine (background thread). If the program has requested no
    /// event of a channel in this interval, peers no longer wake the program. The engine calls this
    /// function after each check for messages. No other thread may call this function.
    pub(crate) fn end_check(&self) {
        if self.wake_target.armed.end_interval() {
            for link in self.links().iter().flat_map(|links| links.iter()) {
                link.clear_channel();
            }
        }
    }

    /// Makes peers wake the calling thread, by the eventfd of its completion channel, until
    /// [`Waiter::leave`] is called. Before each sleep, the thread must call
    /// [`Waiter::fall_asleep`]. Returns `None` if peers already wake another waiting thread, or if
    /// no memory is shared with other processes.
    pub(crate) fn become_wake_target(&self, wake_eventfd: &WakeEventfd) -> Option<Waiter<'_>> {
        let links = self.links()?;
        let is_kept = &self.wake_target.is_kept;
        (!is_kept.swap(true, Ordering::AcqRel)).then(|| Waiter {
            host_peers: self,
            sleeper: Sleeper::Channel(wake_eventfd.number()),
            links,
        })
    }
}

impl Waiter<'_> {
    /// Records this thread as asleep in the memory that is shared with each peer, so that peers
    /// wake it. Also sends deferred wakeups to peers. Returns `false` if messages can be received,
    /// or waiting messages can be sent. The thread must then not sleep.
    pub(crate) fn fall_asleep(&mut self) -> bool {
        if let Some(links) = self.host_peers.links() {
            self.links = links;
        }
        for link in &*self.links {
            if link.must_wake() {
                link.flush();
            }
            link.fall_asleep(self.sleeper);
        }
        !self.links.iter().any(|link| link.is_waiting())
    }

    /// Records this thread as awake on all links (shared memory), so that no peer wakes it.
    pub(crate) fn wake_up(&self) {
        (self.links.iter()).for_each(|link| link.wake_up(self.sleeper));
    }

    /// Ends the wait of this thread: peers wake the engine (background thread) again. Returns
    /// `true` if messages can be received, or waiting messages can be sent. The caller must then
    /// wake the engine, because peers have perhaps woken only this thread for the messages.
    pub(crate) fn leave(self) -> bool {
        self.wake_up();
        let HostPeers { wake_target, .. } = self.host_peers;
        wake_target.is_kept.store(false, Ordering::Release);
        // This fence pairs with the one in `HostPeers::fall_asleep`: each of the two threads first
        // stores its own state, and then loads that of the other.
        fence(Ordering::SeqCst);
        if wake_target.is_engine_asleep.load(Ordering::Relaxed) {
            (self.links.iter()).for_each(|link| link.fall_asleep(Sleeper::Engine));
        }
        self.links.iter().any(|link| link.is_waiting())
    }
}
