//! Waits for completions: by polling, or by completion events.

use std::time::Duration;

use rdma_core::{CompletionChannel, CompletionQueue, Context, WorkCompletion};

use crate::control::Watch;
use crate::error::{Error, Result};

/// A completion queue of a test over rdma-core, and its completion channel if this process waits
/// for events instead of polling.
#[derive(Debug)]
pub(super) struct Completions {
    pub(super) queue: CompletionQueue,
    channel: Option<CompletionChannel>,
}

impl Completions {
    /// Maximum number of completions that one poll of a bandwidth test returns, as in perftest.
    pub(super) const BATCH: usize = 16;
    /// Maximum wait for a completion event, after which this process checks that the peer is alive.
    const EVENT_WAIT: Duration = Duration::from_millis(100);

    pub(super) fn new(context: &Context, entries: usize, events: bool) -> Result<Self> {
        let entries = super::connection::entries(entries)?;
        let builder = context.completion_queue(entries);
        if !events {
            let queue = builder.build()?;
            return Ok(Self {
                queue,
                channel: None,
            });
        }
        let channel = context.completion_channel()?;
        let queue = builder.channel(&channel).build()?;
        Ok(Self {
            queue,
            channel: Some(channel),
        })
    }

    /// Waits for completions, writes them to `room`, and returns their number. During the wait,
    /// `watch` checks that the peer is alive. Returns 0 if this process must stop, because the peer
    /// has finished and no further completion has arrived.
    #[inline]
    pub(super) fn wait(&self, room: &mut [WorkCompletion], watch: &mut Watch) -> Result<usize> {
        loop {
            let count = self.poll(room)?;
            if count > 0 {
                watch.busy();
                return Ok(count);
            }
            let ended = match &self.channel {
                None => watch.idle()?,
                Some(channel) => {
                    self.queue.request_notification()?;
                    let late = self.poll(room)?;
                    if late > 0 {
                        watch.busy();
                        return Ok(late);
                    }
                    let came = channel.wait(Some(Self::EVENT_WAIT))?;
                    channel.drain(|_| {})?;
                    !came && watch.check()?
                }
            };
            if ended {
                // Completions from before the peer finished may have arrived since the last poll.
                return self.poll(room);
            }
        }
    }

    /// Writes the available completions to `room`, and returns their number, which may be 0. Fails
    /// if a completion has an error status.
    #[inline]
    pub(super) fn poll(&self, room: &mut [WorkCompletion]) -> Result<usize> {
        let taken = self.queue.poll(room)?;
        for completion in taken {
            completion.result().map_err(Error::Work)?;
        }
        Ok(taken.len())
    }
}
