//! Source of completions: a queue that is polled, or whose events are waited for.

use std::time::Instant;

use rdma_core::completion::{CompletionFields, ExtendedCompletionQueue};
use rdma_core::{CompletionChannel, CompletionQueue, Context, WorkCompletion};

use super::{MAX_WAIT, Options, Outcome};

/// Completion queue of all completions.
#[derive(Debug)]
pub(crate) struct Completions {
    queue: CompletionQueue,
    /// Extended interface of `queue`, present if the completions have timestamps.
    timed: Option<ExtendedCompletionQueue>,
    channel: Option<CompletionChannel>,
}

/// Completion, and the device's timestamp of it.
pub(crate) type Timed = (WorkCompletion, Option<u64>);

/// Maximum number of completions per poll.
const AT_ONCE: usize = 16;

impl Completions {
    /// Creates a queue for this number of completions.
    pub(crate) fn new(context: &Context, options: &Options, entries: usize) -> Outcome<Self> {
        let mut builder = context.completion_queue(u32::try_from(entries)?);
        let mut channel = None;
        if options.events {
            let announces = context.completion_channel()?;
            builder = builder.channel(&announces);
            channel = Some(announces);
        }
        if !options.timestamps {
            let (queue, timed) = (builder.build()?, None);
            return Ok(Self {
                queue,
                timed,
                channel,
            });
        }
        let fields = CompletionFields::STANDARD | CompletionFields::TIMESTAMP;
        let timed = builder.extended(fields).build()?;
        Ok(Self {
            queue: timed.queue().clone(),
            timed: Some(timed),
            channel,
        })
    }

    pub(crate) fn queue(&self) -> &CompletionQueue {
        &self.queue
    }

    /// Waits for completions, and puts at least one into `room`.
    pub(crate) fn next(&self, room: &mut Vec<Timed>) -> Outcome<()> {
        let deadline = Instant::now() + MAX_WAIT;
        let mut armed = false;
        room.clear();
        loop {
            self.poll(room)?;
            if !room.is_empty() {
                return Ok(());
            }
            if Instant::now() > deadline {
                return Err(format!("the peer has been silent for {MAX_WAIT:?}").into());
            }
            let Some(channel) = &self.channel else {
                std::hint::spin_loop();
                continue;
            };
            // Completions before the request raise no event, so the queue is polled again first.
            if armed {
                channel.wait(Some(MAX_WAIT))?;
                channel.drain(|_| ())?;
            } else {
                self.queue.request_notification()?;
            }
            armed = !armed;
        }
    }

    fn poll(&self, room: &mut Vec<Timed>) -> Outcome<()> {
        let Some(timed) = &self.timed else {
            let mut taken = [WorkCompletion::default(); AT_ONCE];
            let taken = self.queue.poll(&mut taken)?;
            room.extend(taken.iter().map(|completion| (*completion, None)));
            return Ok(());
        };
        timed.poll(|completions| {
            while room.len() < AT_ONCE
                && let Some(completion) = completions.next()
            {
                room.push((completion.completion(), completion.timestamp()));
            }
        })?;
        Ok(())
    }
}

/// Times between receives, in ticks of the device's clock.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub(crate) struct Ticks {
    last: Option<u64>,
    pub(crate) intervals: u64,
    pub(crate) least: u64,
    pub(crate) most: u64,
    pub(crate) sum: u64,
}

impl Ticks {
    /// Counts a receive at this time.
    pub(crate) fn count(&mut self, now: u64) {
        // After a restart of the clock the difference means nothing.
        if let Some(passed) = self.last.and_then(|last| now.checked_sub(last)) {
            self.least = if self.intervals == 0 {
                passed
            } else {
                self.least.min(passed)
            };
            self.most = self.most.max(passed);
            self.sum += passed;
            self.intervals += 1;
        }
        self.last = Some(now);
    }
}
