//! Shards: the queues and the task that the connections of one runtime share.
//!
//! A shard consists of a completion queue, a completion channel, a shared receive queue and a task,
//! the [driver]. The driver polls while completions arrive, and otherwise sleeps until the channel
//! has an event. A future also polls the completion queue once before it waits. The polling thread
//! dispatches each completion to the connection of its queue pair. The completion of a receive
//! delivers a message. The completion of a request ends the request and the unsignaled requests
//! before it.

mod deadlines;
mod driver;
mod last_task;
mod receives;
mod turn;

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering, fence};
use std::sync::{Arc, Weak};
use std::task::Waker;
use std::time::{Duration, Instant};

use crossbeam_queue::SegQueue;
use parking_lot::Mutex;
use rdma_core::{
    CompletionChannel, CompletionQueue, ProtectionDomain, QueuePairBuilder, QueuePairMap,
    WorkCompletion, WorkOpcode,
};
use tokio::io::unix::AsyncFd;
use tokio::runtime::{Handle, Id, RuntimeFlavor};
use tokio::sync::Notify;

pub(crate) use self::deadlines::DeadlineKey;
use self::deadlines::Deadlines;
use self::last_task::LastTask;
use self::receives::Receives;
use self::turn::Turn;
use crate::builder::CompletionMode;
use crate::connection::Connection;
use crate::error::{Error, Result};
use crate::memory::PieceLender;

/// Maximum number of completions that one call takes from the completion queue: the length of an
/// array in the poller. A longer array needs fewer calls after a burst, and more memory for each
/// shard.
const BATCH: usize = 32;
/// Maximum number of batches of [`BATCH`] completions that one poll handles. Bounds the time for
/// which a poll occupies its thread.
const BATCHES: usize = 8;
/// Maximum number of polls of the completion queue for the last completions of a connection that
/// ends. The number suffices to empty a full queue. A limit is needed in case completions arrive
/// faster than they are polled.
const DETACH_POLLS: usize = 1 << 10;
/// Maximum time for which a future polls the completion queue before it waits, on a runtime with
/// one thread. The time is about the latency of a fast device. Longer polling would delay the other
/// tasks of that thread.
pub(crate) const BRIEF_POLL: Duration = Duration::from_micros(2);
/// Number of polls between two readings of the clock, because reading the clock takes as long as
/// several polls.
const POLLS_PER_CLOCK: usize = 8;
/// Initial number of entries of a completion queue, enough for the requests of dozens of
/// connections. The queue grows with the number of connections.
const INITIAL_ENTRIES: u32 = 4096;

/// Settings that connections must have in common to share a completion queue and a receive queue (a
/// [`Shard`]).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Profile {
    /// Method by which futures are notified of completions.
    pub(crate) completion: CompletionMode,
    /// Length of a receive in bytes.
    pub(crate) receive_len: usize,
}

/// Completion queue, shared receive queue and driver task that the connections of one device share
/// if they have the same runtime and [`Profile`].
#[derive(Debug)]
pub(crate) struct Shard {
    runtime: Id,
    profile: Profile,
    /// Set if a future may poll for up to [`BRIEF_POLL`] before it waits: on a runtime with one
    /// thread, except in the mode [`CompletionMode::Event`].
    polls_briefly: bool,
    completions: CompletionQueue,
    receives: Receives,
    poller: Mutex<Poller>,
    /// Connections to be added to, or removed from, the table of the poller by the next poll.
    changes: SegQueue<Change>,
    turn: Turn,
    /// Number of completions that all polls together have found. Written under the lock of
    /// `poller`.
    found: AtomicU64,
    deadlines: Deadlines,
    /// Number of entries of the completion queue that are reserved for receives and requests.
    reserved: Mutex<usize>,
    /// Number of futures that wait for a message, a credit, room in the send queue, or the end of
    /// all requests of a connection. While there is any, other futures do not poll briefly.
    waiting: AtomicU32,
    /// Task that called [`Self::is_lone_task`] last.
    last_task: LastTask,
    /// Set while the driver sleeps, and after it has ended.
    is_asleep: AtomicBool,
    /// Notification that wakes the driver.
    wake: Arc<Notify>,
    /// Set once the driver has ended, because its runtime has ended or the completion channel has
    /// failed.
    has_ended: AtomicBool,
    #[cfg(test)]
    counts: driver::Counts,
}

/// Data for polling the completion queue: the connections by queue pair number, a buffer for
/// completions, and the results of a poll. Locked by the polling thread.
#[derive(Debug)]
struct Poller {
    connections: QueuePairMap<Arc<Connection>>,
    buffer: [WorkCompletion; BATCH],
    /// Wakers of futures whose operations have completed, in order of completion.
    wakes: Vec<Waker>,
    /// Detached connections, dropped after the lock is released.
    detached: Vec<Arc<Connection>>,
}

/// Addition or removal of a connection in the table that maps queue pair numbers to connections.
/// The next poll of the completion queue applies the change.
#[derive(Debug)]
enum Change {
    Attach(Arc<Connection>),
    /// Number of the queue pair of the connection.
    Detach(u32),
}

/// Result of polling the completion queue: the number of completions, or the fact that another
/// thread is polling.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Polled {
    /// Number of handled completions. At the maximum of one poll, the queue may contain further
    /// completions.
    Found(usize),
    /// Another thread is polling the completion queue.
    Busy,
}

impl Shard {
    /// Creates a shard (queues that several connections share) on the current runtime, and spawns
    /// its driver, the task that polls the completion queue. `profile` contains the settings that
    /// all these connections have.
    pub(crate) fn start(domain: &ProtectionDomain, profile: Profile) -> Result<Arc<Self>> {
        let channel = registered_channel(domain)?;
        let context = domain.context();
        let max = context.attributes()?.max_completions();
        let entries = INITIAL_ENTRIES.min(u32::try_from(max).unwrap_or(u32::MAX));
        let completions = context
            .completion_queue(entries)
            .channel(channel.get_ref())
            .build()?;
        let receives = Receives::new(domain, profile.receive_len, completions.capacity() / 4)?;
        let wake = Arc::new(Notify::new());
        let runtime = Handle::current();
        let has_one_thread = runtime.runtime_flavor() == RuntimeFlavor::CurrentThread;
        let shard = Arc::new(Self {
            runtime: runtime.id(),
            profile,
            polls_briefly: has_one_thread && profile.completion != CompletionMode::Event,
            reserved: Mutex::new(receives.capacity()),
            completions,
            receives,
            poller: Mutex::new(Poller {
                connections: QueuePairMap::new(),
                buffer: [WorkCompletion::default(); BATCH],
                wakes: Vec::new(),
                detached: Vec::new(),
            }),
            changes: SegQueue::new(),
            turn: Turn::default(),
            found: AtomicU64::new(0),
            deadlines: Deadlines::default(),
            waiting: AtomicU32::new(0),
            last_task: LastTask::default(),
            is_asleep: AtomicBool::new(false),
            wake,
            has_ended: AtomicBool::new(false),
            #[cfg(test)]
            counts: driver::Counts::default(),
        });
        driver::spawn(&shard, channel);
        Ok(shard)
    }

    /// Returns whether a new connection can share these completion and receive queues with existing
    /// connections. The runtime and the settings (`profile`) must be equal, and the task that polls
    /// the queues must still run.
    pub(crate) fn serves(&self, runtime: Id, profile: Profile) -> bool {
        self.runtime == runtime && self.profile == profile && !self.has_ended()
    }

    /// Returns whether the driver, the task that polls these queues, has ended. New connections
    /// then need other queues.
    pub(crate) fn has_ended(&self) -> bool {
        self.has_ended.load(Ordering::Acquire)
    }

    /// Returns the allocator of the memory of receives. The memory of a received message later
    /// returns to this allocator.
    pub(crate) fn receive_memory(&self) -> &Arc<PieceLender> {
        self.receives.memory()
    }

    /// Returns `builder`, the builder of a new queue pair, with the completion queue and the
    /// receive queue that several connections share.
    pub(crate) fn prepare(&self, builder: QueuePairBuilder) -> QueuePairBuilder {
        self.receives
            .prepare(builder.send_completions(&self.completions))
    }

    /// Reserves room in the shared completion queue for `requests` more send requests, and posts
    /// receives for `messages` more messages on the shared receive queue. Grows the completion
    /// queue if necessary.
    fn reserve(&self, requests: usize, messages: usize) -> Result<()> {
        {
            let mut reserved = self.reserved.lock();
            let sum = *reserved + requests;
            if sum > self.completions.capacity() {
                let entries = sum.next_power_of_two();
                self.completions
                    .resize(u32::try_from(entries).unwrap_or(u32::MAX))
                    .or_else(|_| {
                        self.completions
                            .resize(u32::try_from(sum).unwrap_or(u32::MAX))
                    })?;
            }
            *reserved = sum;
        }
        let posted = self.receives.grow(messages);
        if posted.is_err() {
            self.release(requests, messages);
        }
        posted
    }

    /// Releases the resources that [`Self::reserve`] has reserved for a connection: room for
    /// `requests` completions in the completion queue, and receives for `messages` messages in the
    /// shared receive queue.
    fn release(&self, requests: usize, messages: usize) {
        *self.reserved.lock() -= requests;
        self.receives.shrink(messages);
    }

    /// Adds a connection to the connections that share this completion queue. The following polls
    /// of the queue then pass the completions of its queue pair to the connection.
    pub(crate) fn attach(&self, connection: &Arc<Connection>) {
        self.changes.push(Change::Attach(Arc::clone(connection)));
    }

    /// Removes a connection from the connections that share this completion queue. First moves its
    /// queue pair to the error state, and handles the remaining completions. Later completions, and
    /// the memory of their receives, are lost when the queue pair is destroyed with the connection.
    pub(crate) fn detach(&self, connection: &Connection) {
        // In the error state, the queue pair takes no further receives from the shared queue, and
        // flushes the receives that it has taken.
        if let Err(error) = connection.queue_pair().fail() {
            tracing::warn!(%error, "the queue pair could not be moved to the error state");
        }
        for _ in 0..DETACH_POLLS {
            match self.poll() {
                Polled::Found(found) if found < BATCH * BATCHES => break,
                Polled::Found(_) => {}
                Polled::Busy => std::thread::yield_now(),
            }
        }
        let number = connection.queue_pair().number();
        self.changes.push(Change::Detach(number));
        // Applies the change now, because the next poll may be much later.
        self.poll();
    }

    /// Polls the completion queue, dispatches the completions to their connections, and wakes the
    /// waiting tasks.
    #[inline(never)]
    pub(crate) fn poll(&self) -> Polled {
        let mut found = 0;
        loop {
            let Some(mut poller) = self.poller.try_lock() else {
                return Polled::Busy;
            };
            found += self.poll_with(&mut poller);
            if poller.wakes.is_empty() && poller.detached.is_empty() {
                drop(poller);
            } else {
                let wakes = std::mem::take(&mut poller.wakes);
                let detached = std::mem::take(&mut poller.detached);
                drop(poller);
                drop(detached);
                self.wake_all(wakes);
            }
            // A thread that added a change during this poll got `Busy` and relies on this thread.
            if self.changes.is_empty() {
                return Polled::Found(found);
            }
        }
    }

    /// Wakes the tasks whose operations have completed, in order of completion. Called without the
    /// lock of the poller, because waking a task can run code that polls.
    #[inline(never)]
    fn wake_all(&self, mut wakes: Vec<Waker>) {
        wakes.drain(..).for_each(Waker::wake);
        // Keeps the allocation for the next poll.
        if let Some(mut poller) = self.poller.try_lock()
            && poller.wakes.capacity() < wakes.capacity()
            && poller.wakes.is_empty()
        {
            poller.wakes = wakes;
        }
    }

    /// Polls the completion queue and dispatches the completions, with the poller that the caller
    /// has locked. Returns the number of completions.
    #[inline]
    fn poll_with(&self, poller: &mut Poller) -> usize {
        if !self.changes.is_empty() {
            self.apply_changes(&mut poller.connections, &mut poller.detached);
        }
        let Poller {
            connections,
            buffer,
            wakes,
            detached,
        } = poller;
        let mut found = 0;
        let mut received = 0;
        for _ in 0..BATCHES {
            let completions = match self.completions.poll(buffer) {
                Ok(completions) => completions,
                Err(error) => {
                    fail_all(connections, &error.into());
                    break;
                }
            };
            found += completions.len();
            for completion in completions {
                let number = completion.queue_pair();
                if connections.get(number).is_none() {
                    // The connection may have been attached after `changes` was last read.
                    self.apply_changes(connections, detached);
                }
                let is_receive = self.dispatch(completion, connections.get(number), wakes);
                received += usize::from(is_receive);
            }
            if completions.len() < BATCH {
                break;
            }
        }
        if received > 0 {
            self.receives.replenish(received);
        }
        if found > 0 {
            let total = self.found.load(Ordering::Relaxed) + found as u64;
            self.found.store(total, Ordering::Relaxed);
        }
        found
    }

    /// Passes a completion to the connection of its queue pair. Returns `true` if the completion
    /// belongs to a receive: the caller counts completed receives, to post new receives.
    #[inline]
    fn dispatch(
        &self,
        completion: &WorkCompletion,
        connection: Option<&Arc<Connection>>,
        wakes: &mut Vec<Waker>,
    ) -> bool {
        let may_be_receive = completion.result().is_err()
            || matches!(
                completion.opcode(),
                WorkOpcode::Receive | WorkOpcode::ReceiveWriteImmediate
            );
        if may_be_receive && let Some(memory) = self.receives.complete(completion) {
            let unused = match connection {
                Some(connection) => connection.handle_receive(completion, memory),
                // The connection has ended, so its message is dropped.
                None => Some(memory),
            };
            if let Some(memory) = unused {
                self.receives.post(memory);
            }
            return true;
        }
        if let Some(connection) = connection {
            connection.complete(completion, wakes);
        }
        false
    }

    /// Applies the queued changes to `connections`, the table of connections that get completions:
    /// adds new connections, and moves removed connections to `detached`, so that the caller drops
    /// them later.
    #[cold]
    fn apply_changes(
        &self,
        connections: &mut QueuePairMap<Arc<Connection>>,
        detached: &mut Vec<Arc<Connection>>,
    ) {
        while let Some(change) = self.changes.pop() {
            detached.extend(match change {
                Change::Attach(connection) => {
                    let number = connection.queue_pair().number();
                    connections.insert(number, connection)
                }
                Change::Detach(number) => connections.remove(number),
            });
        }
    }

    /// Ends all connections that share these queues with `error`, because the driver (the polling
    /// task) has failed with this error.
    pub(crate) async fn fail(&self, error: &Error) {
        loop {
            if let Some(mut poller) = self.poller.try_lock() {
                let poller = &mut *poller;
                self.apply_changes(&mut poller.connections, &mut poller.detached);
                return fail_all(&poller.connections, error);
            }
            tokio::task::yield_now().await;
        }
    }

    /// Returns whether a future may poll the completion queue for a short time before it waits.
    /// Returns `false` on a runtime with several threads, and in the mode
    /// [`CompletionMode::Event`]. Also returns `false` while another future is counted as waiting
    /// ([`Self::waiting`]), for example for a message: the poll would delay that future.
    #[inline]
    pub(crate) fn may_poll_briefly(&self) -> bool {
        self.polls_briefly && self.waiting.load(Ordering::Relaxed) == 0
    }

    /// Returns whether the task of `waker` may poll the completion queue for its own result.
    /// Returns `false` if the poll could delay other tasks: see [`LastTask::replace`].
    pub(crate) fn is_lone_task(&self, waker: &Waker) -> bool {
        self.last_task.replace(waker)
    }

    /// Records that a task has polled the completion queue but not found its own result. The next
    /// calls of [`Self::is_lone_task`] for this task then return `false`: see
    /// [`LastTask::poll_failed`].
    pub(crate) fn lone_poll_failed(&self) {
        self.last_task.poll_failed();
    }

    /// Polls the completion queue until `attempt` returns a value, for at most `limit`. Calls
    /// `attempt` after each poll that has found completions, because only a poll can complete
    /// operations and deliver messages. Returns `None` after `limit`.
    #[inline]
    pub(crate) fn poll_briefly<T>(
        &self,
        limit: Duration,
        mut attempt: impl FnMut() -> Option<T>,
    ) -> Option<T> {
        let mut begun = None;
        loop {
            for _ in 0..POLLS_PER_CLOCK {
                // Only a poll can complete operations and deliver messages.
                if self.poll() != Polled::Found(0)
                    && let Some(value) = attempt()
                {
                    return Some(value);
                }
                std::hint::spin_loop();
            }
            let now = Instant::now();
            if now - *begun.get_or_insert(now) >= limit {
                return None;
            }
        }
    }

    /// Counts a future as waiting until the returned guard is dropped. While a future is counted,
    /// other futures may not poll the completion queue repeatedly before they wait
    /// ([`Self::may_poll_briefly`]): the polls would occupy the thread, so that the waiting future
    /// could not run.
    pub(crate) fn waiting(&self) -> WaitingFuture<'_> {
        self.waiting.fetch_add(1, Ordering::Relaxed);
        WaitingFuture(&self.waiting)
    }

    /// Wakes the driver task if it sleeps, so that the driver polls for completions while a future
    /// waits. Does nothing in the mode [`CompletionMode::Event`], in which the device wakes the
    /// driver by a completion event.
    #[inline]
    pub(crate) fn wake_driver(&self) {
        if self.profile.completion != CompletionMode::Event
            && self.is_asleep.load(Ordering::Relaxed)
        {
            self.wake.notify_one();
        }
    }

    /// Adds a deadline at which `connection` ends with an error, after the time `limit`. Returns
    /// the key by which the deadline can be cancelled.
    pub(crate) fn add_deadline(
        &self,
        connection: Weak<Connection>,
        limit: Duration,
    ) -> DeadlineKey {
        let (key, is_next) = self.deadlines.add(connection, limit);
        if is_next {
            // The driver may be sleeping until a later time, or without a time limit.
            self.wake.notify_one();
        }
        key
    }

    /// Cancels the deadline with the key `key`. Does nothing if the deadline has passed or was
    /// already cancelled.
    pub(crate) fn cancel_deadline(&self, key: DeadlineKey) {
        self.deadlines.cancel(key);
    }

    /// Polls until all completions that were in the queue at the time of the call are dispatched to
    /// their connections. Yields to other tasks while another thread polls.
    pub(crate) async fn drain_completions(&self) {
        while !matches!(self.poll(), Polled::Found(found) if found < BATCH * BATCHES) {
            tokio::task::yield_now().await;
        }
    }

    /// Lets the driver task post the connection's staged requests (accepted, but not yet posted to
    /// the device) at the end of its current round (turn). Returns `false` if the driver sleeps or
    /// has ended. The caller must then post the requests, which takes less time than waking the
    /// driver.
    pub(crate) fn post_at_turn_end(&self, connection: &Connection) -> bool {
        if self.is_asleep.load(Ordering::Relaxed) || self.has_ended() {
            return false;
        }
        let Some(connection) = connection.to_arc() else {
            return false;
        };
        self.turn.add(connection);
        // After setting `is_asleep`, the driver ends the turn once more.
        fence(Ordering::SeqCst);
        !self.is_asleep.load(Ordering::Relaxed)
    }

    /// Lets the driver task post the connection's accepted requests and buffered stream bytes at
    /// the end of its current round (turn). Wakes the driver if it sleeps. Returns `false` if the
    /// driver has ended: the caller must then post the requests and the bytes.
    pub(crate) fn flush_at_turn_end(&self, connection: &Connection) -> bool {
        let Some(connection) = connection.to_arc() else {
            return false;
        };
        self.turn.add(connection);
        fence(Ordering::SeqCst);
        if self.is_asleep.load(Ordering::Relaxed) {
            self.wake.notify_one();
        }
        !self.has_ended()
    }
}

impl Drop for Shard {
    fn drop(&mut self) {
        // The woken driver finds no shard, and ends.
        self.wake.notify_one();
    }
}

/// Room in the completion queue and receives, which are reserved for one connection until this
/// value is dropped.
#[derive(Debug)]
pub(crate) struct Reservation {
    shard: Arc<Shard>,
    requests: usize,
    messages: usize,
}

impl Reservation {
    /// Reserves resources for one connection in the queues of `shard`, which several connections
    /// share: room in the completion queue for `requests` requests, and receives for `messages`
    /// messages of the peer. Dropping the returned value releases them.
    pub(crate) fn new(shard: Arc<Shard>, requests: usize, messages: usize) -> Result<Self> {
        shard.reserve(requests, messages)?;
        Ok(Self {
            shard,
            requests,
            messages,
        })
    }

    pub(crate) fn shard(&self) -> &Arc<Shard> {
        &self.shard
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        self.shard.release(self.requests, self.messages);
    }
}

/// Guard that counts a future as waiting until the guard is dropped. While a future is counted,
/// other futures may not poll the completion queue repeatedly before they wait: the polls would
/// occupy the thread, so that the waiting future could not run.
#[derive(Debug)]
pub(crate) struct WaitingFuture<'s>(&'s AtomicU32);

impl Drop for WaitingFuture<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Ends all connections in the table `connections` with `error`, and wakes their waiting futures.
/// Called if the polling task of these connections has failed, or if their completion queue cannot
/// be polled.
#[cold]
fn fail_all(connections: &QueuePairMap<Arc<Connection>>, error: &Error) {
    for connection in connections.values() {
        connection.fail(error.clone());
        // No thread polls for the requests that the device flushes.
        connection.end_waits();
    }
}

/// Creates a completion channel that is registered with the current runtime, so that the polling
/// task can wait for its events.
fn registered_channel(domain: &ProtectionDomain) -> Result<AsyncFd<CompletionChannel>> {
    let channel = domain.context().completion_channel()?;
    // The replacement of `new` is unsafe, because an implementation of `AsRawFd` may return
    // different descriptors, or a descriptor that it does not own. A completion channel always
    // returns its own descriptor, which is open until the channel is dropped.
    #[expect(
        deprecated,
        reason = "the replacement is unsafe for types unlike this one"
    )]
    AsyncFd::new(channel).map_err(|source| Error::tcp("watching", "completions", source))
}
