use std::io;
use std::sync::Arc;
use std::thread;

use super::{Care, Nic};
use crate::completion::CompletionChannel;
use crate::context::Element;
use crate::engine::Look;

impl Nic {
    /// Creates a completion channel. Peer processes can wake threads that wait on it, if a wakeup descriptor is free.
    pub(crate) fn new_channel(&self) -> io::Result<Arc<CompletionChannel>> {
        let wake_eventfd =
            (self.host_peers.as_ref()).and_then(|host_peers| host_peers.wake_eventfd());
        wake_eventfd.map_or_else(CompletionChannel::new, CompletionChannel::with)
    }

    /// Fetches the next event of a channel. If none is queued, waits for one, unless the descriptor is non-blocking. While
    /// this thread waits, peer processes on the same host wake this thread instead of the engine, and this thread receives
    /// their messages.
    pub(crate) fn next_event(&self, channel: &CompletionChannel) -> io::Result<Arc<Element>> {
        if let Some(event) = channel.try_next_event() {
            return Ok(event);
        }
        let waiter = || {
            let wake_eventfd = channel
                .wake_eventfd()
                .filter(|_| !channel.is_non_blocking())?;
            self.host_peers.as_ref()?.keep_wake_target(wake_eventfd)
        };
        let Some(mut waiter) = waiter() else {
            return self.next_event_beside(channel);
        };
        let event = loop {
            if waiter.fall_asleep() {
                let waited = channel.wait();
                waiter.wake_up();
                match waited {
                    Ok(None) => {}
                    Ok(Some(event)) => break Ok(event),
                    Err(error) => break Err(error),
                }
            }
            if self.look_after(self.now(), Care::Wake) == Look::Contended {
                thread::yield_now();
            }
            if let Some(event) = channel.try_next_event() {
                break Ok(event);
            }
        };
        if let Some(host_peers) = &self.host_peers {
            if waiter.leave() {
                host_peers.ring();
            }
            let mut links = host_peers.links().into_iter();
            if links.any(|links| links.iter().any(|link| link.owes_waking())) {
                host_peers.remind();
            }
        }
        event
    }

    /// Fetches the next event of a channel, or waits for it, while the engine or another waiting thread receives messages.
    /// A peer's wakeup for another thread that waits on the same channel may end the wait without an event. Then no thread
    /// would receive the peer's message, so this function wakes the engine.
    fn next_event_beside(&self, channel: &CompletionChannel) -> io::Result<Arc<Element>> {
        loop {
            if let Some(event) = channel.wait()? {
                return Ok(event);
            }
            if let Some(host_peers) = &self.host_peers {
                host_peers.ring();
            }
        }
    }
}
