use std::io;
use std::sync::Arc;
use std::thread;

use super::{Nic, ReceivingThread};
use crate::completion::{CompletionChannel, WakeEventfd};
use crate::context::Element;
use crate::engine::ReceiveAttempt;
use crate::same_host::HostPeers;

impl Nic {
    /// Creates a completion channel. If the NIC has a free eventfd for the channel, peer processes
    /// can directly wake threads that wait on the channel.
    pub(crate) fn new_channel(&self) -> io::Result<Arc<CompletionChannel>> {
        let wake_eventfd =
            (self.host_peers.as_ref()).and_then(|host_peers| host_peers.wake_eventfd());
        wake_eventfd.map_or_else(CompletionChannel::new, CompletionChannel::with)
    }

    /// Fetches the next completion event of `channel`. Returns the [`Element`] (event record) of
    /// the completion queue to which the event belongs. If no event is queued, waits for an event,
    /// unless the channel's descriptor is non-blocking. While this thread waits, peer processes on
    /// the same host wake this thread instead of the engine (background thread), and this thread
    /// receives the messages of the peers.
    pub(crate) fn next_event(&self, channel: &CompletionChannel) -> io::Result<Arc<Element>> {
        if let Some(event) = channel.try_next_event() {
            return Ok(event);
        }
        let (Some(host_peers), Some(wake_eventfd)) = (&self.host_peers, channel.wake_eventfd())
        else {
            return channel.next_event();
        };
        if channel.is_non_blocking() {
            return self.next_event_non_blocking(channel, host_peers, wake_eventfd);
        }
        let Some(mut waiter) = host_peers.become_wake_target(wake_eventfd) else {
            return self.next_event_shared(channel);
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
            if self.receive_and_run_timers(self.now(), ReceivingThread::Wake)
                == ReceiveAttempt::Contended
            {
                thread::yield_now();
            }
            if let Some(event) = channel.try_next_event() {
                break Ok(event);
            }
        };
        if waiter.leave() {
            host_peers.wake_engine();
        }
        schedule_wakeups(host_peers);
        event
    }

    /// Ensures that packets and messages that arrive from now on wake a thread. Must be called when
    /// the program has armed a completion queue and is about to wait. `channel` is the completion
    /// channel at which the events of the queue arrive.
    ///
    /// Packets wake the engine (background thread). Messages through shared memory can wake the
    /// waiting thread directly: peer processes do so if the program has only this channel and the
    /// channel is non-blocking.
    pub(crate) fn armed(&self, channel: Option<&CompletionChannel>) {
        self.watch();
        if let (Some(host_peers), Some(channel)) = (&self.host_peers, channel)
            && let Some(wake_eventfd) = channel.wake_eventfd()
            && wake_eventfd.is_only_one()
            && channel.was_non_blocking()
        {
            host_peers.arm_channel(wake_eventfd);
        }
    }

    /// Fetches the next completion event of the non-blocking channel `channel`. The calling thread
    /// itself receives messages that the processes `host_peers` have sent through shared memory.
    /// With the descriptor `wake_eventfd`, these processes wake this thread for new messages, and
    /// not the engine (background thread).
    fn next_event_non_blocking(
        &self,
        channel: &CompletionChannel,
        host_peers: &HostPeers,
        wake_eventfd: &WakeEventfd,
    ) -> io::Result<Arc<Element>> {
        let receive = || {
            self.receive_and_run_timers(self.now(), ReceivingThread::Wake);
            channel.try_next_event()
        };
        loop {
            if let Some(event) = channel.wait()? {
                return Ok(event);
            }
            if let Some(event) = receive() {
                // The engine sends the deferred wakeups if the thread does not, at the end of its
                // interval at the latest.
                if !host_peers.is_channel_armed() {
                    schedule_wakeups(host_peers);
                }
                return Ok(event);
            }
            // The message caused no event, so the queue is still armed, and the program waits
            // without arming the queue again.
            host_peers.arm_channel(wake_eventfd);
            if let Some(event) = receive() {
                return Ok(event);
            }
        }
    }

    /// Fetches the next completion event of `channel`. If there is no event, waits while the engine
    /// (background thread) or another waiting thread receives messages. The wait can end without an
    /// event, for example if a peer process has signaled the channel to wake another thread. This
    /// function then wakes the engine, because otherwise no thread might receive the message of the
    /// peer.
    fn next_event_shared(&self, channel: &CompletionChannel) -> io::Result<Arc<Element>> {
        loop {
            if let Some(event) = channel.wait()? {
                return Ok(event);
            }
            if let Some(host_peers) = &self.host_peers {
                host_peers.wake_engine();
            }
        }
    }
}

/// Makes the engine (background thread) wake peers of `host_peers`, if this thread has deferred the
/// wakeups of these peers. The engine wakes only the peers that this thread has not woken after a
/// short time.
fn schedule_wakeups(host_peers: &HostPeers) {
    let mut links = host_peers.links().into_iter();
    if links.any(|links| links.iter().any(|link| link.must_wake())) {
        host_peers.schedule_wakeups();
    }
}
