//! Waiting for completions: polling, or by their events.

use std::time::Duration;

use rdma_core::{CompletionChannel, CompletionQueue, Context, WorkCompletion};

use crate::control::Watch;
use crate::error::{Error, Result};

/// A completion queue and how to wait for it.
#[derive(Debug)]
pub(super) struct Completions {
    pub(super) queue: CompletionQueue,
    channel: Option<CompletionChannel>,
}

impl Completions {
    /// How many completions are taken at once.
    pub(super) const BATCH: usize = 16;
    /// The longest wait for an event without a look at the other end.
    const NAP: Duration = Duration::from_millis(100);

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

    /// Waits until there are completions and puts them into `room`. Returns how many; none when the
    /// other end is done and this one is to end with it.
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
                    let came = channel.wait(Some(Self::NAP))?;
                    channel.drain(|_| {})?;
                    !came && watch.look()?
                }
            };
            if ended {
                // What came before the end may have come since the last poll.
                return self.poll(room);
            }
        }
    }

    /// Takes the completions that are there, all of them successful.
    #[inline]
    pub(super) fn poll(&self, room: &mut [WorkCompletion]) -> Result<usize> {
        let taken = self.queue.poll(room)?;
        for completion in taken {
            completion.result().map_err(Error::Work)?;
        }
        Ok(taken.len())
    }
}
