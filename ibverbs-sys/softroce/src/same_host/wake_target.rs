#![forbid(unsafe_code)]
//! The choice of the thread that peers wake when they have sent a message to this process.
//!
//! Usually peers wake the engine (background thread). While a thread of the program waits for an event of a completion
//! channel, peers wake that thread instead. This saves the wakeup by the engine.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering, fence};

use super::host_peers::HostPeers;
use super::link::Link;
use super::wake::Sleeper;
use crate::completion::WakeEventfd;

/// State of the choice of the thread that peer processes wake.
#[derive(Debug, Default)]
pub(super) struct WakeTarget {
    /// Set while the engine sleeps.
    is_engine_asleep: AtomicBool,
    /// Set while peers wake a thread that waits at a channel instead of the engine. If more threads wait, peers still wake
    /// the first one.
    is_kept: AtomicBool,
}

/// A thread that waits at a completion channel, and that peer processes wake instead of the engine.
pub(crate) struct Waiter<'a> {
    host_peers: &'a HostPeers,
    sleeper: Sleeper,
    links: Arc<[Arc<Link>]>,
}

impl HostPeers {
    /// Marks the engine (background thread) as asleep in the memory that is shared with each peer, so that peers wake it.
    /// Returns `false` if the engine must not sleep, because messages can be received, or waiting messages can be sent.
    pub(crate) fn fall_asleep(&self) -> bool {
        self.wake_target
            .is_engine_asleep
            .store(true, Ordering::Relaxed);
        // This fence pairs with the one in `leave`: a waiter that leaves sees the flag, or this thread sees the waiter's
        // changes.
        fence(Ordering::SeqCst);
        let Some(links) = self.links() else {
            return true;
        };
        (links.iter()).for_each(|link| link.fall_asleep(Sleeper::Engine));
        !links.iter().any(|link| link.is_waiting())
    }

    /// Marks the engine (background thread) as awake on all links, so that no peer sends a wakeup to it.
    pub(crate) fn wake_up(&self) {
        self.wake_target
            .is_engine_asleep
            .store(false, Ordering::Relaxed);
        for link in self.links().iter().flat_map(|links| links.iter()) {
            link.wake_up(Sleeper::Engine);
        }
    }

    /// Makes peers wake the calling thread, by the eventfd of its completion channel. Returns `None` if peers already wake
    /// another waiting thread, or if no memory is shared with other processes.
    pub(crate) fn keep_wake_target(&self, wake_eventfd: &WakeEventfd) -> Option<Waiter<'_>> {
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
    /// Marks this thread as asleep in the memory that is shared with each peer, so that peers wake it, and sends deferred
    /// wakeups of peers. Returns `false` if this thread must not sleep, because messages can be received, or waiting
    /// messages can be sent.
    pub(crate) fn fall_asleep(&mut self) -> bool {
        if let Some(links) = self.host_peers.links() {
            self.links = links;
        }
        for link in &*self.links {
            if link.owes_waking() {
                link.flush();
            }
            link.fall_asleep(self.sleeper);
        }
        !self.links.iter().any(|link| link.is_waiting())
    }

    /// Marks this thread as awake on all links, so that no peer sends a wakeup to it.
    pub(crate) fn wake_up(&self) {
        (self.links.iter()).for_each(|link| link.wake_up(self.sleeper));
    }

    /// Makes peers wake the engine (background thread) again instead of this thread. Returns `true` if messages may be
    /// received, or waiting messages can be sent, and no thread was woken for them.
    pub(crate) fn leave(self) -> bool {
        self.wake_up();
        let HostPeers { wake_target, .. } = self.host_peers;
        wake_target.is_kept.store(false, Ordering::Release);
        // This fence pairs with the one in `HostPeers::fall_asleep`: each of the two threads first stores its own state, and
        // then loads that of the other.
        fence(Ordering::SeqCst);
        if wake_target.is_engine_asleep.load(Ordering::Relaxed) {
            (self.links.iter()).for_each(|link| link.fall_asleep(Sleeper::Engine));
        }
        self.links.iter().any(|link| link.is_waiting())
    }
}
