//! Shards: the queues and the task that the connections of one runtime share.
//!
//! A shard consists of one completion queue, one completion channel, one shared receive queue and
//! one task, the [driver](self::driver), which polls while futures wait and otherwise sleeps on the
//! channel. A future also polls the queue once before it waits. The thread that polls passes each
//! completion to the connection of its queue pair: a receive brings a message, a completed request
//! ends itself and the unsignaled requests before it.

mod deadlines;
mod driver;
mod receives;
mod turn;

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering, fence};
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
use self::receives::Receives;
use self::turn::Turn;
use crate::builder::CompletionMode;
use crate::connection::Connection;
use crate::error::{Error, Result};
use crate::memory::PieceLender;

/// Maximum number of completions that are taken from the queue at once.
const BATCH: usize = 32;
/// Maximum number of batches in one poll, so that many completions do not occupy the thread for
/// long.
const BATCHES: usize = 8;
/// Maximum number of polls for the last completions of a connection, enough for a full completion
/// queue.
const DETACH_POLLS: usize = 1 << 10;
/// Maximum time for which a future polls before it waits, on a runtime with one thread, where no
/// other task can poll in the meantime.
const BRIEF_POLL: Duration = Duration::from_micros(2);
/// Number of polls between two readings of the clock.
const POLLS_PER_CLOCK: usize = 8;
/// Capacity of a new completion queue, which grows with the number of connections.
const FIRST_ENTRIES: u32 = 4096;

/// Settings that are the same for all connections of a shard.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Profile {
    /// Method by which waiting futures are notified of completions.
    pub(crate) completion: CompletionMode,
    /// Length of a receive in bytes.
    pub(crate) receive_len: usize,
}

/// Queues, receives and driver that the connections of one runtime share.
#[derive(Debug)]
pub(crate) struct Shard {
    runtime: Id,
    profile: Profile,
    /// Set if futures may poll for up to [`BRIEF_POLL`] before they wait.
    polls_briefly: bool,
    completions: CompletionQueue,
    receives: Receives,
    poller: Mutex<Poller>,
    /// Attached and detached connections that the next poll adds to, or removes from, its table.
    changes: SegQueue<Change>,
    turn: Turn,
    deadlines: Deadlines,
    /// Part of the completion queue's capacity that is reserved for receives and connections.
    reserved: Mutex<usize>,
    /// Number of futures that wait for a message, a credit, room in the send queue, or the end of
    /// all requests of a connection.
    waiting: AtomicU32,
    /// Set while the driver sleeps.
    is_asleep: AtomicBool,
    /// Notification that wakes the driver.
    wake: Arc<Notify>,
    /// Set once the driver has ended with its runtime.
    has_ended: AtomicBool,
    #[cfg(test)]
    counts: driver::Counts,
}

/// State of a poll, which only the polling thread uses.
#[derive(Debug)]
struct Poller {
    connections: QueuePairMap<Arc<Connection>>,
    room: [WorkCompletion; BATCH],
    /// Wakers of futures whose operations have completed, in the order of completion.
    wakes: Vec<Waker>,
    /// Detached connections, to be dropped after the lock is released.
    left: Vec<Arc<Connection>>,
}

#[derive(Debug)]
enum Change {
    Attach(Arc<Connection>),
    Detach(u32),
}

/// Result of a poll.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Polled {
    /// Number of completions that were handled. After a full poll the queue may contain more.
    Found(usize),
    /// Another thread is polling.
    Elsewhere,
}

impl Shard {
    /// Creates a shard on the current runtime, and starts its driver.
    pub(crate) fn start(domain: &ProtectionDomain, profile: Profile) -> Result<Arc<Self>> {
        let channel = watched_channel(domain)?;
        let context = domain.context();
        let most = context.attributes()?.max_completions();
        let entries = FIRST_ENTRIES.min(u32::try_from(most).unwrap_or(u32::MAX));
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
                room: [WorkCompletion::default(); BATCH],
                wakes: Vec::new(),
                left: Vec::new(),
            }),
            changes: SegQueue::new(),
            turn: Turn::default(),
            deadlines: Deadlines::default(),
            waiting: AtomicU32::new(0),
            is_asleep: AtomicBool::new(false),
            wake,
            has_ended: AtomicBool::new(false),
            #[cfg(test)]
            counts: driver::Counts::default(),
        });
        driver::spawn(&shard, channel);
        Ok(shard)
    }

    /// Returns whether the shard can be used by connections of this runtime and profile.
    pub(crate) fn serves(&self, runtime: Id, profile: Profile) -> bool {
        self.runtime == runtime && self.profile == profile && !self.has_ended()
    }

    /// Returns whether the driver has ended with its runtime.
    pub(crate) fn has_ended(&self) -> bool {
        self.has_ended.load(Ordering::Acquire)
    }

    /// Returns the lender of the memory in which messages arrive.
    pub(crate) fn receive_memory(&self) -> &Arc<PieceLender> {
        self.receives.memory()
    }

    /// Sets the completion queue and the shared receive queue of a queue pair to those of this
    /// shard.
    pub(crate) fn prepare(&self, builder: QueuePairBuilder) -> QueuePairBuilder {
        self.receives
            .prepare(builder.send_completions(&self.completions))
    }

    /// Reserves room in the completion queue for `requests`, and posts receives for `messages`.
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

    /// Releases a reservation of [`Self::reserve`].
    fn release(&self, requests: usize, messages: usize) {
        *self.reserved.lock() -= requests;
        self.receives.shrink(messages);
    }

    /// Attaches a connection, which from now on gets its completions.
    pub(crate) fn attach(&self, connection: &Arc<Connection>) {
        self.changes.push(Change::Attach(Arc::clone(connection)));
    }

    /// Hands the remaining completions to a connection, and none afterwards. Its receives return to
    /// the shared queue: completions that are left when the queue pair is destroyed are lost, with
    /// their receives.
    pub(crate) fn detach(&self, connection: &Connection) {
        // In the error state the queue pair takes no more receives, and completes those that it
        // took.
        if let Err(error) = connection.queue_pair().fail() {
            tracing::warn!(%error, "the queue pair could not be moved to the error state");
        }
        for _ in 0..DETACH_POLLS {
            match self.poll() {
                Polled::Found(found) if found < BATCH * BATCHES => break,
                Polled::Found(_) => {}
                Polled::Elsewhere => std::thread::yield_now(),
            }
        }
        let number = connection.queue_pair().number();
        self.changes.push(Change::Detach(number));
        // Removes it now: the next poll may be far off.
        self.poll();
    }

    /// Takes completions from the queue, passes them to their connections, and wakes the waiting
    /// tasks.
    #[inline(never)]
    pub(crate) fn poll(&self) -> Polled {
        let mut found = 0;
        loop {
            let Some(mut poller) = self.poller.try_lock() else {
                return Polled::Elsewhere;
            };
            found += self.poll_with(&mut poller);
            if poller.wakes.is_empty() && poller.left.is_empty() {
                drop(poller);
            } else {
                let wakes = std::mem::take(&mut poller.wakes);
                let left = std::mem::take(&mut poller.left);
                drop(poller);
                drop(left);
                self.wake_all(wakes);
            }
            // A thread that added a change during this poll could not poll itself.
            if self.changes.is_empty() {
                return Polled::Found(found);
            }
        }
    }

    /// Wakes tasks, in the order of completion.
    #[inline(never)]
    fn wake_all(&self, mut wakes: Vec<Waker>) {
        wakes.drain(..).for_each(Waker::wake);
        // The next poll reuses the allocation.
        if let Some(mut poller) = self.poller.try_lock()
            && poller.wakes.capacity() < wakes.capacity()
            && poller.wakes.is_empty()
        {
            poller.wakes = wakes;
        }
    }

    #[inline]
    fn poll_with(&self, poller: &mut Poller) -> usize {
        if !self.changes.is_empty() {
            self.apply_changes(&mut poller.connections, &mut poller.left);
        }
        let Poller {
            connections,
            room,
            wakes,
            left,
        } = poller;
        let mut found = 0;
        let mut received = 0;
        for _ in 0..BATCHES {
            let completions = match self.completions.poll(room) {
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
                    // The connection may have been attached since `changes` was last read.
                    self.apply_changes(connections, left);
                }
                let is_receive = self.hand_out(completion, connections.get(number), wakes);
                received += usize::from(is_receive);
            }
            if completions.len() < BATCH {
                break;
            }
        }
        if received > 0 {
            self.receives.replenish(received);
        }
        found
    }

    /// Passes a completion to its connection. Returns whether the completion is of a receive.
    #[inline]
    fn hand_out(
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
                Some(connection) => connection.arrive(completion, memory),
                // A message for a connection that has ended.
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

    #[cold]
    fn apply_changes(
        &self,
        connections: &mut QueuePairMap<Arc<Connection>>,
        left: &mut Vec<Arc<Connection>>,
    ) {
        while let Some(change) = self.changes.pop() {
            left.extend(match change {
                Change::Attach(connection) => {
                    let number = connection.queue_pair().number();
                    connections.insert(number, connection)
                }
                Change::Detach(number) => connections.remove(number),
            });
        }
    }

    /// Ends all connections of the shard with this error.
    pub(crate) async fn fail(&self, error: &Error) {
        loop {
            if let Some(mut poller) = self.poller.try_lock() {
                let Poller {
                    connections, left, ..
                } = &mut *poller;
                self.apply_changes(connections, left);
                return fail_all(connections, error);
            }
            tokio::task::yield_now().await;
        }
    }

    /// Returns whether a future polls for a short time before it waits: on a runtime with one
    /// thread, if no future waits for anything other than an operation.
    #[inline]
    pub(crate) fn may_poll_briefly(&self) -> bool {
        self.polls_briefly && self.waiting.load(Ordering::Relaxed) == 0
    }

    /// Polls for up to [`BRIEF_POLL`], until `attempt` returns a value.
    #[inline]
    pub(crate) fn poll_briefly<T>(&self, mut attempt: impl FnMut() -> Option<T>) -> Option<T> {
        let mut begun = None;
        loop {
            // Reading the clock takes as long as several polls.
            for _ in 0..POLLS_PER_CLOCK {
                // Only a poll completes operations and brings messages.
                if self.poll() != Polled::Found(0)
                    && let Some(value) = attempt()
                {
                    return Some(value);
                }
                std::hint::spin_loop();
            }
            let now = Instant::now();
            if now - *begun.get_or_insert(now) >= BRIEF_POLL {
                return None;
            }
        }
    }

    /// Counts a waiting future until the returned guard is dropped.
    pub(crate) fn waiting(&self) -> Waiting<'_> {
        self.waiting.fetch_add(1, Ordering::Relaxed);
        Waiting(&self.waiting)
    }

    /// Wakes the driver if it sleeps, so that it polls for a waiting future. Does nothing in the
    /// mode [`CompletionMode::Event`].
    #[inline]
    pub(crate) fn wake_driver(&self) {
        if self.profile.completion != CompletionMode::Event
            && self.is_asleep.load(Ordering::Relaxed)
        {
            self.wake.notify_one();
        }
    }

    /// Adds a deadline that ends the connection after `limit`, unless it is cancelled before.
    pub(crate) fn add_deadline(
        &self,
        connection: Weak<Connection>,
        limit: Duration,
    ) -> DeadlineKey {
        let (place, is_next) = self.deadlines.add(connection, limit);
        if is_next {
            // The driver may be sleeping until a later deadline, or without a time limit.
            self.wake.notify_one();
        }
        place
    }

    pub(crate) fn cancel_deadline(&self, place: DeadlineKey) {
        self.deadlines.cancel(place);
    }

    /// Polls until the completions that were in the queue at the call are handed out. Waits while
    /// another thread polls.
    pub(crate) async fn catch_up(&self) {
        while !matches!(self.poll(), Polled::Found(found) if found < BATCH * BATCHES) {
            tokio::task::yield_now().await;
        }
    }

    /// Adds the connection to the turn, at whose end its staged requests are handed to the device.
    /// Returns `false` if the driver sleeps or has ended: the caller must then hand them over
    /// itself, which takes less time than waking the driver.
    pub(crate) fn post_at_turn_end(&self, connection: &Connection) -> bool {
        if self.is_asleep.load(Ordering::Relaxed) || self.has_ended() {
            return false;
        }
        let Some(connection) = connection.to_arc() else {
            return false;
        };
        self.turn.add(connection);
        // The driver ends the turn once more after it has set `is_asleep`.
        fence(Ordering::SeqCst);
        !self.is_asleep.load(Ordering::Relaxed)
    }

    /// Adds the connection to the turn, like [`Self::post_at_turn_end`], but wakes the driver if it
    /// sleeps. Returns `false` if the driver has ended.
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
        // Wakes the driver, which then ends.
        self.wake.notify_one();
    }
}

/// Room in the completion queue and receives that are reserved for one connection.
#[derive(Debug)]
pub(crate) struct Reservation {
    shard: Arc<Shard>,
    requests: usize,
    messages: usize,
}

impl Reservation {
    /// Reserves room for the completions of `requests`, and posts receives for `messages`.
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

/// Guard that counts a waiting future while it lives.
#[derive(Debug)]
pub(crate) struct Waiting<'s>(&'s AtomicU32);

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cold]
fn fail_all(connections: &QueuePairMap<Arc<Connection>>, error: &Error) {
    for connection in connections.values() {
        connection.fail(error.clone());
        // Nobody polls for the requests that the device flushes.
        connection.end_waits();
    }
}

/// Creates a completion channel that is registered with the current runtime.
fn watched_channel(domain: &ProtectionDomain) -> Result<AsyncFd<CompletionChannel>> {
    let channel = domain.context().completion_channel()?;
    // The replacement of `new` is unsafe because a type may return a different descriptor each
    // time, or one that it does not own. A channel always returns its own descriptor, open while it
    // lives.
    #[expect(
        deprecated,
        reason = "the replacement is unsafe for types unlike this one"
    )]
    AsyncFd::new(channel).map_err(|source| Error::tcp("watching", "completions", source))
}
