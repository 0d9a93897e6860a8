//! Posts the requests of a test: many at once to measure bandwidth, or one after the other to measure
//! latency.

use std::time::{Duration, Instant};

use rdma_core::{Buffer, Gather, SendQueue, SendRequest, WorkCompletion};

use super::Connection;
use super::completions::Completions;
use super::send::foreign;
use crate::control::Control;
use crate::error::{Error, Result};
use crate::plan::Length;
use crate::recorder::Recorder;
use crate::session::Measured;
use crate::statistics::Bandwidth;

/// A queue pair of a bandwidth test, with the numbers of requests to post, posted and completed.
struct Lane<T: Send + 'static, F> {
    queue: SendQueue<T>,
    /// Function that creates the next request.
    request: F,
    goal: usize,
    posted: usize,
    completed: usize,
}

/// Measures bandwidth: posts requests to every queue pair, up to `connection.depth` at once, until all
/// have completed or the time is over. `requests` has, for each of [`Connection::queue_pairs`], a
/// function that creates the requests.
///
/// On each queue pair, every `connection.moderation`-th request is signaled, and so is the last
/// request.
pub(super) fn pump<T: Gather + 'static, F: FnMut() -> SendRequest<T>>(
    connection: &Connection,
    control: &mut Control,
    requests: impl IntoIterator<Item = F>,
) -> Result<Measured> {
    let positions = connection.positions();
    let mut lanes: Vec<_> = connection
        .queue_pairs()
        .zip(requests)
        .map(|(queue_pair, request)| Lane {
            queue: queue_pair.send_queue::<T>(),
            request,
            goal: connection.count(),
            posted: 0,
            completed: 0,
        })
        .collect();
    let mut room = [WorkCompletion::default(); Completions::BATCH];
    let mut times = Times::new(connection);
    control.barrier()?;
    let mut watch = control.watch(false)?;
    times.begin();
    let mut goal = connection.messages_in_all();
    // Indices of the queue pairs to which more requests can be posted.
    let mut ready: Vec<usize> = (0..lanes.len()).collect();
    loop {
        // The only call of `fill`, which is inlined into this loop.
        for position in ready.drain(..) {
            lanes[position].fill(connection, &mut times)?;
        }
        if times.completed >= goal {
            break;
        }
        let count = connection.sends.wait(&mut room, &mut watch)?;
        for completion in &room[..count] {
            let position = positions.get(completion.queue_pair());
            let position = *position.ok_or_else(foreign)?;
            let lane = &mut lanes[position];
            let done = lane.queue.complete(completion).count();
            lane.completed += done;
            times.complete(done);
            ready.push(position);
        }
        if times.over() && goal == usize::MAX {
            // On each queue pair the first signaled request from here on is the last.
            for lane in &mut lanes {
                lane.goal = lane.posted.next_multiple_of(connection.moderation);
            }
            goal = lanes.iter().map(|lane| lane.goal).sum();
            ready.clear();
            ready.extend(0..lanes.len());
        }
    }
    let bandwidth = times.bandwidth();
    if bandwidth.iterations == 0 {
        return Err(Error::Unsupported("nothing to measure".into()));
    }
    Ok(Measured::Bandwidth(bandwidth))
}

impl<T: Gather + 'static, F: FnMut() -> SendRequest<T>> Lane<T, F> {
    /// Posts requests, one by one or in lists, until the queue pair has as many outstanding requests
    /// as `connection.depth` allows.
    #[inline(always)]
    fn fill(&mut self, connection: &Connection, times: &mut Times) -> Result<()> {
        let (depth, list) = (connection.depth, connection.list);
        let (goal, moderation) = (self.goal, connection.moderation);
        while self.posted < goal && self.posted - self.completed + list <= depth {
            if list == 1 {
                times.post();
                let request = signaled((self.request)(), self.posted + 1, goal, moderation);
                self.queue.post(request).map_err(rdma_core::Error::from)?;
                self.posted += 1;
                continue;
            }
            let mut batch = self.queue.batch();
            for number in self.posted..goal.min(self.posted + list) {
                times.post();
                let request = signaled((self.request)(), number + 1, goal, moderation);
                batch.push(request).map_err(rdma_core::Error::from)?;
            }
            self.posted += batch.post().map_err(|refused| refused.error)?;
        }
        Ok(())
    }
}

/// Returns `request`, signaled or unsignaled. Signaled are the request with the number `goal` and
/// every `moderation`-th request. `number` counts from 1.
#[inline(always)]
fn signaled<T>(
    request: SendRequest<T>,
    number: usize,
    goal: usize,
    moderation: usize,
) -> SendRequest<T> {
    match number.is_multiple_of(moderation) || number == goal {
        true => request,
        false => request.unsignaled(),
    }
}

/// Measures latency: posts one request after the other, each with the same memory, when the previous
/// request has completed. The function `request` creates a request from the memory.
pub(super) fn turns(
    connection: &Connection,
    size: usize,
    control: &mut Control,
    request: impl Fn(Buffer) -> SendRequest<Buffer>,
) -> Result<Measured> {
    let mut sends = connection.queue_pair().send_queue();
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

/// The timestamps of a bandwidth test, over all of its queue pairs.
struct Times {
    begun: Instant,
    ended: Instant,
    limit: Option<Duration>,
    posted: usize,
    completed: usize,
    /// The times of all posts and of all completions, in memory that was written to before the test,
    /// so that no page fault disturbs the test.
    messages: Option<(Vec<Instant>, Vec<Instant>)>,
}

impl Times {
    fn new(connection: &Connection) -> Self {
        let now = Instant::now();
        let (limit, count) = match connection.plan.length {
            Length::Iterations(count) => (None, count * connection.width()),
            Length::Duration(duration) => (Some(duration), 0),
        };
        Self {
            begun: now,
            ended: now,
            limit,
            posted: 0,
            completed: 0,
            messages: connection
                .peak
                .then(|| (vec![now; count], vec![now; count])),
        }
    }

    fn begin(&mut self) {
        self.begun = Instant::now();
    }

    /// Records that a message is about to be posted.
    #[inline]
    fn post(&mut self) {
        if let Some((posted, _)) = &mut self.messages {
            posted[self.posted] = Instant::now();
            self.posted += 1;
        }
    }

    /// Records that the oldest `count` messages of a queue pair are complete.
    #[inline]
    fn complete(&mut self, count: usize) {
        let before = self.completed;
        self.completed += count;
        self.ended = Instant::now();
        if let Some((_, completed)) = &mut self.messages {
            completed[before..self.completed].fill(self.ended);
        }
    }

    fn over(&self) -> bool {
        self.limit
            .is_some_and(|limit| self.ended - self.begun >= limit)
    }

    fn bandwidth(&self) -> Bandwidth {
        match &self.messages {
            Some((posted, completed)) => Bandwidth::of_stamps(posted, completed),
            None => Bandwidth::over(self.completed, self.ended - self.begun),
        }
    }
}
