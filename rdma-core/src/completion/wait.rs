//! Blocking waits for completions.

use std::thread;
use std::time::{Duration, Instant};

use super::{CompletionQueue, WorkCompletion};
use crate::error::{Error, Result};

impl CompletionQueue {
    /// Waits until at least one completion is available, and takes up to `room.len()` completions
    /// from the queue into `room`.
    ///
    /// The thread polls for a short time and then sleeps. If the queue has a channel and is the
    /// only queue on that channel, the thread sleeps until the queue produces a completion event.
    /// Otherwise the thread sleeps for 100 microseconds at a time. This method reads completion
    /// events from the channel, and can leave one event unread. Therefore no other thread should
    /// wait for the channel's file descriptor at the same time.
    ///
    /// ```
    /// use std::time::Duration;
    /// use rdma_core::WorkCompletion;
    /// # use rdma_core::{AccessFlags, ConnectOptions, Context, SendRequest};
    /// # let context = Context::open_default()?;
    /// # let domain = context.protection_domain()?;
    /// # let prepared = domain.queue_pair().build()?;
    /// # let endpoint = prepared.endpoint();
    /// # let queue_pair = prepared.connect(&endpoint, &ConnectOptions::default())?;
    /// # let peer = domain.allocate(8)?.expose(AccessFlags::REMOTE)?;
    /// # let source = domain.allocate(8)?;
    /// let mut sends = queue_pair.send_queue();
    /// sends.post(SendRequest::write(source, peer.remote()))?;
    /// let mut room = [WorkCompletion::default(); 16];
    /// let timeout = Duration::from_secs(5);
    /// for completion in queue_pair.send_completions().wait(&mut room, timeout)? {
    ///     completion.result()?;
    ///     sends.complete(completion).for_each(drop);
    /// }
    /// # Ok::<(), rdma_core::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// - [`Error::TimedOut`] if no completion arrives within `timeout`.
    /// - [`Error::InvalidArgument`] if `room` is empty.
    /// - The errors of [`Self::poll`] and of `poll(2)`.
    #[doc(alias = "ibv_poll_cq")]
    #[doc(alias = "ibv_get_cq_event")]
    pub fn wait<'r>(
        &self,
        room: &'r mut [WorkCompletion],
        timeout: Duration,
    ) -> Result<&'r [WorkCompletion]> {
        if room.is_empty() {
            let reason = "there is no room for one";
            return Err(Error::invalid("wait for a completion", reason));
        }
        let begin = Instant::now();
        let mut idle = 0;
        loop {
            let found = self.poll(room)?.len();
            if found > 0 {
                return Ok(&room[..found]);
            }
            let waited = begin.elapsed();
            let Some(left) = timeout.checked_sub(waited).filter(|left| !left.is_zero()) else {
                return Err(Error::TimedOut {
                    what: "a completion",
                    timeout,
                });
            };
            idle += 1;
            let channel = self.handle().channel().filter(|_| idle > SPINS);
            match channel {
                Some(channel) if channel.drain_alone()? => {
                    self.request_notification()?;
                    let found = self.poll(room)?.len();
                    if found > 0 {
                        return Ok(&room[..found]);
                    }
                    channel.wait(Some(left.min(MAX_SLEEP)))?;
                }
                _ => pause(idle, waited),
            }
        }
    }

    /// Takes up to `room.len()` completions from the queue into `room`. If no completion is
    /// available, requests a completion event and then polls a second time.
    ///
    /// An empty result means that the next completion will produce an event. The program can then
    /// wait until the [channel](super::CompletionChannel) is readable, without missing a
    /// completion.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use rdma_core::{Context, WorkCompletion};
    /// let context = Context::open_default()?;
    /// let channel = context.completion_channel()?;
    /// let queue = context.completion_queue(64).channel(&channel).build()?;
    /// let mut room = [WorkCompletion::default(); 16];
    /// # let mut rounds = 0;
    /// loop {
    ///     let completions = queue.poll_or_arm(&mut room)?;
    ///     if completions.is_empty() {
    ///         channel.wait(Some(Duration::from_millis(10)))?;
    ///         channel.drain(|_queue| ())?;
    ///     }
    ///     for completion in completions {
    ///         println!("{:?}", completion.status());
    ///     }
    /// #   rounds += 1;
    /// #   if rounds == 2 { break }
    /// }
    /// # Ok::<(), rdma_core::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// The errors of [`Self::poll`] and [`Self::request_notification`].
    #[doc(alias = "ibv_req_notify_cq")]
    pub fn poll_or_arm<'r>(&self, room: &'r mut [WorkCompletion]) -> Result<&'r [WorkCompletion]> {
        let found = self.poll(room)?.len();
        if found > 0 {
            return Ok(&room[..found]);
        }
        self.request_notification()?;
        self.poll(room)
    }
}

/// Maximum time that a waiting thread sleeps before it polls again. The limit is needed because one
/// event can stand for several completions: if another waiting thread reads the event and takes
/// only some of these completions, no event wakes this thread for the others.
const MAX_SLEEP: Duration = Duration::from_millis(50);

/// Number of empty polls in a row after which the waiting thread yields the processor. The number
/// is small, so that other threads are not delayed noticeably.
const SPINS: u32 = 200;

/// Pauses the thread between two polls of a queue without completions: first by spinning, then by
/// yielding to other threads, and after 5 ms by sleeping. `idle` is the number of empty polls in a
/// row. `waited` is the time that the wait has taken so far.
pub(crate) fn pause(idle: u32, waited: Duration) {
    const YIELDS: Duration = Duration::from_millis(5);
    if idle < SPINS {
        std::hint::spin_loop();
    } else if waited < YIELDS {
        thread::yield_now();
    } else {
        thread::sleep(Duration::from_micros(100));
    }
}
