//! Keeping a send queue full, and posting one request after the other.

use std::time::{Duration, Instant};

use rdma_core::{Buffer, Gather, SendRequest, WorkCompletion};

use super::Connection;
use super::completions::Completions;
use super::send::foreign;
use crate::control::Control;
use crate::error::{Error, Result};
use crate::plan::Length;
use crate::recorder::Recorder;
use crate::session::Measured;
use crate::statistics::Bandwidth;

/// Posts requests, as many at once as the depth allows, until all are done or the time is over.
///
/// One in so many is signaled, and so is the last.
pub(super) fn pump<T: Gather + 'static>(
    connection: &Connection,
    control: &mut Control,
    mut request: impl FnMut() -> SendRequest<T>,
) -> Result<Measured> {
    let mut queue = connection.queue_pair.send_queue::<T>();
    let mut room = [WorkCompletion::default(); Completions::BATCH];
    let mut times = Times::new(connection);
    let (depth, moderation) = (connection.depth, connection.moderation);
    let list = connection.list;
    let (mut goal, mut posted, mut completed) = (connection.count(), 0, 0);
    control.barrier()?;
    let mut watch = control.watch(false)?;
    times.begin();
    while completed < goal {
        let mut next = |number: usize| {
            let request = request();
            match (number + 1).is_multiple_of(moderation) || number + 1 == goal {
                true => request,
                false => request.unsignaled(),
            }
        };
        if list == 1 {
            while posted < goal && posted - completed < depth {
                times.post(posted);
                queue.post(next(posted)).map_err(rdma_core::Error::from)?;
                posted += 1;
            }
        } else {
            while posted < goal && posted - completed + list <= depth {
                let mut batch = queue.batch();
                for number in posted..goal.min(posted + list) {
                    times.post(number);
                    batch.push(next(number)).map_err(rdma_core::Error::from)?;
                }
                posted += batch.post().map_err(|refused| refused.error)?;
            }
        }
        let count = connection.sends.wait(&mut room, &mut watch)?;
        for completion in &room[..count] {
            let before = completed;
            completed += queue.complete(completion).count();
            times.complete(before..completed);
        }
        if times.over() && goal == usize::MAX {
            // The first signaled request from here on ends it.
            goal = posted.next_multiple_of(moderation);
        }
    }
    let bandwidth = times.bandwidth(completed);
    if bandwidth.iterations == 0 {
        return Err(Error::Unsupported("nothing to measure".into()));
    }
    Ok(Measured::Bandwidth(bandwidth))
}

/// Posts one request after the other, each with the same memory and when the one before is done.
pub(super) fn turns(
    connection: &Connection,
    size: usize,
    control: &mut Control,
    request: impl Fn(Buffer) -> SendRequest<Buffer>,
) -> Result<Measured> {
    let mut sends = connection.queue_pair.send_queue();
    let mut memory = connection.message(size)?;
    let mut recorder = Recorder::new(connection.plan.length);
    let mut room = [WorkCompletion::default()];
    control.barrier()?;
    let mut watch = control.watch(false)?;
    while recorder.more() {
        recorder.stamp();
        let request = request(memory);
        sends.post(request).map_err(rdma_core::Error::from)?;
        connection.sends.wait(&mut room, &mut watch)?;
        memory = sends.complete(&room[0]).next().ok_or_else(foreign)?;
    }
    Measured::latency(&recorder, 1)
}

/// The timestamps of a bandwidth test.
struct Times {
    begun: Instant,
    ended: Instant,
    limit: Option<Duration>,
    /// Of each message, when it was posted and when it was seen completed, in memory that was
    /// touched before.
    messages: Option<(Vec<Instant>, Vec<Instant>)>,
}

impl Times {
    fn new(connection: &Connection) -> Self {
        let now = Instant::now();
        let (limit, count) = match connection.plan.length {
            Length::Iterations(count) => (None, count),
            Length::Duration(duration) => (Some(duration), 0),
        };
        Self {
            begun: now,
            ended: now,
            limit,
            messages: connection
                .peak
                .then(|| (vec![now; count], vec![now; count])),
        }
    }

    fn begin(&mut self) {
        self.begun = Instant::now();
    }

    #[inline]
    fn post(&mut self, message: usize) {
        if let Some((posted, _)) = &mut self.messages {
            posted[message] = Instant::now();
        }
    }

    #[inline]
    fn complete(&mut self, messages: std::ops::Range<usize>) {
        self.ended = Instant::now();
        if let Some((_, completed)) = &mut self.messages {
            completed[messages].fill(self.ended);
        }
    }

    fn over(&self) -> bool {
        self.limit
            .is_some_and(|limit| self.ended - self.begun >= limit)
    }

    fn bandwidth(&self, count: usize) -> Bandwidth {
        match &self.messages {
            Some((posted, completed)) => Bandwidth::of_stamps(posted, completed),
            None => Bandwidth::over(count, self.ended - self.begun),
        }
    }
}
