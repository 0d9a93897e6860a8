//! Posts the requests of a test: many at the same time to measure bandwidth, or one at a time to
//! measure latency.

use std::time::{Duration, Instant};

use rdma_core::memory::Gather;
use rdma_core::{Buffer, SendQueue, SendRequest, WorkCompletion};

use super::Connection;
use super::completions::Completions;
use super::send::unposted;
use crate::control::Control;
use crate::error::{Error, Result};
use crate::plan::Length;
use crate::recorder::Recorder;
use crate::session::Measured;
use crate::statistics::Bandwidth;

/// The send queue of a queue pair in a bandwidth test, with counts of the requests to post, posted
/// and completed. `F` is the function that creates the requests; `T` is the memory of a request.
struct Sender<T: Send + 'static, F> {
    queue: SendQueue<T>,
    /// The function that creates the next request to post.
    request: F,
    goal: usize,
    posted: usize,
    completed: usize,
}

/// Measures bandwidth: posts requests on all queue pairs until all requests have completed or the
/// duration is over. Keeps up to `connection.depth` requests outstanding on each queue pair.
///
/// `requests` has one function for each of [`Connection::queue_pairs`], which creates the requests
/// of this queue pair. On each queue pair, every `connection.moderation`-th request and the last
/// request are signaled.
pub(super) fn run_bandwidth<T: Gather + 'static, F: FnMut() -> SendRequest<T>>(
    connection: &Connection,
    control: &mut Control,
    requests: impl IntoIterator<Item = F>,
) -> Result<Measured> {
    let indices = connection.indices();
    let mut senders: Vec<_> = connection
        .queue_pairs()
        .zip(requests)
        .map(|(queue_pair, request)| Sender {
            queue: queue_pair.send_queue::<T>(),
            request,
            goal: connection.message_count(),
            posted: 0,
            completed: 0,
        })
        .collect();
    let mut room = [WorkCompletion::default(); Completions::BATCH];
    let mut times = Timestamps::new(connection);
    control.barrier()?;
    let mut watch = control.watch(false)?;
    times.begin();
    let mut goal = connection.total_messages();
    // Indices of the queue pairs to which more requests can be posted.
    let mut ready: Vec<usize> = (0..senders.len()).collect();
    loop {
        // The only call of `fill`, which is inlined into this loop.
        for position in ready.drain(..) {
            senders[position].fill(connection, &mut times)?;
        }
        if times.completed >= goal {
            break;
        }
        let count = connection.sends.wait(&mut room, &mut watch)?;
        for completion in &room[..count] {
            let position = indices.get(completion.queue_pair());
            let position = *position.ok_or_else(unposted)?;
            let sender = &mut senders[position];
            let done = sender.queue.complete(completion).count();
            sender.completed += done;
            times.complete(done);
            ready.push(position);
        }
        if times.is_over() && goal == usize::MAX {
            // On each queue pair the first signaled request from here on is the last.
            for sender in &mut senders {
                sender.goal = sender.posted.next_multiple_of(connection.moderation);
            }
            goal = senders.iter().map(|sender| sender.goal).sum();
            ready.clear();
            ready.extend(0..senders.len());
        }
    }
    let bandwidth = times.bandwidth();
    if bandwidth.iterations == 0 {
        return Err(Error::Unsupported("nothing to measure".into()));
    }
    Ok(Measured::Bandwidth(bandwidth))
}

impl<T: Gather + 'static, F: FnMut() -> SendRequest<T>> Sender<T, F> {
    /// Posts requests, one by one or in lists, up to `connection.depth` outstanding requests of
    /// this queue pair. Stops earlier if all requests of the test are posted, or if another full
    /// list would exceed the depth. If the test measures the peak bandwidth, records the time of
    /// each post in `times`.
    #[inline(always)]
    fn fill(&mut self, connection: &Connection, times: &mut Timestamps) -> Result<()> {
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

/// Returns `request` as a signaled or an unsignaled request: only a signaled request reports its
/// completion. `number` is the number of the request, counted from 1. A request is signaled if its
/// number is a multiple of `moderation`, or equals `goal`, the number of the last request.
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

/// Measures latency: posts one request at a time, each when the previous request has completed. The
/// function `request` creates a request from memory of `size` bytes. All requests use the same
/// memory.
pub(super) fn run_latency(
    connection: &Connection,
    size: usize,
    control: &mut Control,
    request: impl Fn(Buffer) -> SendRequest<Buffer>,
) -> Result<Measured> {
    let mut sends = connection.queue_pair().send_queue();
    let mut memory = connection.allocate_message(size)?;
    let mut recorder = Recorder::new(connection.plan.length);
    let mut room = [WorkCompletion::default()];
    control.barrier()?;
    let mut watch = control.watch(false)?;
    while recorder.needs_more() {
        recorder.record();
        let request = request(memory);
        sends.post(request).map_err(rdma_core::Error::from)?;
        connection.sends.wait(&mut room, &mut watch)?;
        memory = sends.complete(&room[0]).next().ok_or_else(unposted)?;
    }
    Measured::latency(&recorder, 1)
}

/// The timestamps of a bandwidth test: the times of its begin and end. If the peak bandwidth is
/// measured, also the times at which each message was posted and completed. All queue pairs of the
/// test share these timestamps.
struct Timestamps {
    begun: Instant,
    ended: Instant,
    limit: Option<Duration>,
    posted: usize,
    completed: usize,
    /// The time of each post and of each completion, in memory that was written to before the test,
    /// so that no page fault disturbs the test. `None` if the peak is not measured.
    messages: Option<(Vec<Instant>, Vec<Instant>)>,
}

impl Timestamps {
    fn new(connection: &Connection) -> Self {
        let now = Instant::now();
        let (limit, count) = match connection.plan.length {
            Length::Iterations(count) => (None, count * connection.queue_pair_count()),
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

    /// Records the present time as the time of the next post. The caller must call this function
    /// immediately before the post. Does nothing if the test does not measure the peak bandwidth.
    #[inline]
    fn post(&mut self) {
        if let Some((posted, _)) = &mut self.messages {
            posted[self.posted] = Instant::now();
            self.posted += 1;
        }
    }

    /// Records the present time as the completion time of the oldest `count` outstanding messages.
    #[inline]
    fn complete(&mut self, count: usize) {
        let before = self.completed;
        self.completed += count;
        self.ended = Instant::now();
        if let Some((_, completed)) = &mut self.messages {
            completed[before..self.completed].fill(self.ended);
        }
    }

    fn is_over(&self) -> bool {
        self.limit
            .is_some_and(|limit| self.ended - self.begun >= limit)
    }

    fn bandwidth(&self) -> Bandwidth {
        match &self.messages {
            Some((posted, completed)) => Bandwidth::from_times(posted, completed),
            None => Bandwidth::over(self.completed, self.ended - self.begun),
        }
    }
}
