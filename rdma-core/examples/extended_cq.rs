//! Prints the times at which messages completed, by the device's clock. An extended completion
//! queue reports the fields that it was built with, and each field costs time only if it is read.
//!
//! ```console
//! $ cargo run -p rdma-core --features softroce --example extended_cq -- 5
//! 5 messages on softroce0, completions with LEN | IMMEDIATE | QUEUE_PAIR | TIMESTAMP | WALL_CLOCK
//! message 0: 8 bytes, immediate 0, tick 214311022, at 09:30:12.000214311 UTC
//! ```

use std::error::Error;
use std::fmt;
use std::time::{Duration, Instant, SystemTime};

use rdma_core::completion::{CompletionFields, ExtendedCompletionQueue};
use rdma_core::{ConnectOptions, Context, SendRequest, WorkCompletion};

fn main() -> Result<(), Box<dyn Error>> {
    let count = match std::env::args().nth(1) {
        Some(count) => count.parse()?,
        None => 5,
    };
    let context = Context::open_default()?;
    let (fields, messages) = timed(&context, count)?;
    println!(
        "{count} messages on {}, completions with {fields}",
        context.name()
    );
    for message in messages {
        println!("{message}");
    }
    Ok(())
}

/// Fields of the completion of a receive.
pub(crate) struct Message {
    pub(crate) bytes: usize,
    pub(crate) immediate: u32,
    /// Timestamp in ticks of the device's clock.
    pub(crate) tick: Option<u64>,
    pub(crate) at: Option<SystemTime>,
}

impl fmt::Display for Message {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            bytes, immediate, ..
        } = self;
        write!(f, "message {immediate}: {bytes} bytes")?;
        if let Some(tick) = self.tick {
            write!(f, ", tick {tick}")?;
        }
        let since = |at: SystemTime| at.duration_since(SystemTime::UNIX_EPOCH).ok();
        if let Some(at) = self.at.and_then(since) {
            let seconds = at.as_secs() % (24 * 60 * 60);
            let (hour, minute, second) = (seconds / 3600, seconds / 60 % 60, seconds % 60);
            let nanoseconds = at.subsec_nanos();
            write!(
                f,
                ", at {hour:02}:{minute:02}:{second:02}.{nanoseconds:09} UTC"
            )?;
        }
        Ok(())
    }
}

/// Sends messages from one queue pair of this process to another. Returns the available fields and
/// the received messages.
pub(crate) fn timed(
    context: &Context,
    count: u32,
) -> Result<(CompletionFields, Vec<Message>), Box<dyn Error>> {
    let queue = queue(context)?;
    let domain = context.protection_domain()?;
    let left = domain.queue_pair().build()?;
    let right = domain
        .queue_pair()
        .receive_completions(queue.queue())
        .build()?;
    let (to_right, to_left) = (right.endpoint(), left.endpoint());
    let options = ConnectOptions::default();
    let left = left.connect(&to_right, &options)?;
    let right = right.connect(&to_left, &options)?;

    let (mut sends, mut receives) = (left.send_queue(), right.receive_queue());
    let mut memory = domain.allocate(8)?;
    let mut messages = Vec::new();
    for number in 0..count {
        receives.post(domain.allocate(64)?)?;
        sends.post(SendRequest::send_with_immediate(memory, number))?;
        memory = until("the send", || {
            let mut room = [WorkCompletion::default()];
            let Some(sent) = left.send_completions().poll(&mut room)?.first() else {
                return Ok(None);
            };
            sent.result()?;
            Ok(sends.complete(sent).next())
        })?;
        messages.push(until("the message", || {
            queue.poll(|completions| {
                let Some(completion) = completions.next() else {
                    return Ok(None);
                };
                completion.result()?;
                // The receive queue owns the memory, and returns it for a copy of the completion.
                drop(receives.complete(&completion.completion()));
                Ok(Some(Message {
                    bytes: completion.len().unwrap_or(0),
                    immediate: completion.immediate().unwrap_or(0),
                    tick: completion.timestamp(),
                    at: completion.wall_clock(),
                }))
            })?
        })?);
    }
    Ok((queue.fields(), messages))
}

/// Polls until `poll` returns a value, for ten seconds at most.
fn until<T>(
    what: &str,
    mut poll: impl FnMut() -> Result<Option<T>, Box<dyn Error>>,
) -> Result<T, Box<dyn Error>> {
    let deadline = Instant::now() + Duration::from_secs(10);
    while Instant::now() < deadline {
        if let Some(found) = poll()? {
            return Ok(found);
        }
    }
    Err(format!("{what} did not complete").into())
}

/// Creates an extended queue with as many time fields as the device supports.
fn queue(context: &Context) -> rdma_core::Result<ExtendedCompletionQueue> {
    type Fields = CompletionFields;
    let needed = Fields::LEN | Fields::IMMEDIATE | Fields::QUEUE_PAIR;
    let times = [
        Fields::TIMESTAMP | Fields::WALL_CLOCK,
        Fields::TIMESTAMP,
        Fields::empty(),
    ];
    let mut made = Err(rdma_core::Error::NoDevice);
    for time in times {
        made = context.completion_queue(64).extended(needed | time).build();
        if !matches!(&made, Err(error) if error.is_unsupported()) {
            break;
        }
    }
    made
}
