#![forbid(unsafe_code)]
//! Who of a process's threads sleeps for it, and is woken when a peer has something.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering, fence};

use super::link::Link;
use super::neighbourhood::Neighbourhood;
use super::wake::Sleeper;
use crate::completion::Bell;

/// Who sleeps.
#[derive(Debug, Default)]
pub(super) struct Vigil {
    /// The engine does, until something wakes it.
    is_engine_asleep: AtomicBool,
    /// A thread waits at a channel in its place; of several it is the first.
    is_kept: AtomicBool,
}

/// One who waits at a channel, and is woken in the engine's place.
pub(crate) struct Waiter<'a> {
    neighbourhood: &'a Neighbourhood,
    sleeper: Sleeper,
    links: Arc<[Arc<Link>]>,
}

impl Neighbourhood {
    /// Says to all that the engine sleeps; whether there is nothing from them.
    pub(crate) fn fall_asleep(&self) -> bool {
        self.vigil.is_engine_asleep.store(true, Ordering::Relaxed);
        // Who waits at a channel and goes sees this, or has gone.
        fence(Ordering::SeqCst);
        let Some(links) = self.links() else {
            return true;
        };
        (links.iter()).for_each(|link| link.fall_asleep(Sleeper::Engine));
        !links.iter().any(|link| link.is_waiting())
    }

    /// Says that the engine is awake.
    pub(crate) fn wake_up(&self) {
        self.vigil.is_engine_asleep.store(false, Ordering::Relaxed);
        for link in self.links().iter().flat_map(|links| links.iter()) {
            link.wake_up(Sleeper::Engine);
        }
    }

    /// Waits in the engine's place at a channel whose bell peers have. None: another thread does, or there is nobody to
    /// wait for.
    pub(crate) fn keep_vigil(&self, bell: &Bell) -> Option<Waiter<'_>> {
        let links = self.links()?;
        let is_kept = &self.vigil.is_kept;
        (!is_kept.swap(true, Ordering::AcqRel)).then(|| Waiter {
            neighbourhood: self,
            sleeper: Sleeper::Channel(bell.number()),
            links,
        })
    }
}

impl Waiter<'_> {
    /// Says to all that this thread sleeps; whether there is nothing from them.
    pub(crate) fn fall_asleep(&mut self) -> bool {
        if let Some(links) = self.neighbourhood.links() {
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

    /// Says that it is awake.
    pub(crate) fn wake_up(&self) {
        (self.links.iter()).for_each(|link| link.wake_up(self.sleeper));
    }

    /// Leaves it to the engine, which may be asleep; whether there is something that nobody was woken for.
    pub(crate) fn leave(self) -> bool {
        self.wake_up();
        let Neighbourhood { vigil, .. } = self.neighbourhood;
        vigil.is_kept.store(false, Ordering::Release);
        // The engine stores, then looks whether somebody else waits; this is the same the other way around.
        fence(Ordering::SeqCst);
        if vigil.is_engine_asleep.load(Ordering::Relaxed) {
            (self.links.iter()).for_each(|link| link.fall_asleep(Sleeper::Engine));
        }
        self.links.iter().any(|link| link.is_waiting())
    }
}
