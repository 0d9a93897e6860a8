//! Shards: the queues and the task that the connections of one runtime share.
//!
//! A shard has one completion queue, one completion channel, one shared receive queue, and one task, the
//! [driver](self::driver), that polls while futures wait and sleeps on the channel otherwise. Futures poll
//! the queue too, once each time before they wait. Whoever polls hands out every completion that it
//! finds: that of a receive to the connection of its queue pair, that of a request to the requests that it
//! ends.

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

use self::deadlines::Deadlines;
pub(crate) use self::deadlines::Place;
use self::receives::Receives;
use self::turn::Turn;
use crate::builder::CompletionMode;
use crate::connection::Connection;
use crate::error::{Error, Result};
use crate::memory::PieceLender;

/// Number of completions that are taken from the queue at once.
const BATCH: usize = 32;
/// Number of batches of one poll, so that a flood of completions does not keep the thread.
const BATCHES: usize = 8;
/// Maximum number of polls for the last completions of a connection, enough for a full completion queue.
const DETACH_POLLS: usize = 1 << 10;
/// Longest time for which a future polls before it waits, on a runtime of one thread, where nobody else
/// polls meanwhile.
const LINGER: Duration = Duration::from_micros(2);
/// Number of polls between two looks at the clock.
const LOOK: usize = 8;
/// Entries of a new completion queue. It grows with the connections.
const FIRST_ENTRIES: u32 = 4096;

/// Settings that all connections of a shard have in common.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Profile {
    /// How futures learn of completions.
    pub(crate) completion: CompletionMode,
    /// Length of a receive in bytes.
    pub(crate) receive_len: usize,
}

/// Queues, receives and driver that the connections of one runtime share.
#[derive(Debug)]
pub(crate) struct Shard {
    runtime: Id,
    profile: Profile,
    /// Set if futures may poll for a short time before they wait.
    may_linger: bool,
    completions: CompletionQueue,
    receives: Receives,
    poller: Mutex<Poller>,
    /// Connections that come and go, which whoever polls next takes note of.
    changes: SegQueue<Change>,
    turn: Turn,
    deadlines: Deadlines,
    /// Number of completions that connections may have in the queue, of its capacity.
    reserved: Mutex<usize>,
    /// Number of futures that wait for something other than an operation of their own.
    waiting: AtomicU32,
    /// Set while the driver sleeps.
    is_asleep: AtomicBool,
    /// Wakes the driver.
    wake: Arc<Notify>,
    /// Set once the driver has ended with its runtime.
    has_ended: AtomicBool,
}

/// State that only the thread that polls uses.
#[derive(Debug)]
struct Poller {
    connections: QueuePairMap<Arc<Connection>>,
    room: [WorkCompletion; BATCH],
    /// Wakers of futures whose operations have ended, in the order of completion.
    wakes: Vec<Waker>,
    /// Connections that left, to be dropped when the lock is free.
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
    /// So many completions, and the queue may have more if there were as many as one poll takes.
    Found(usize),
    /// Another thread polls at this moment.
    Elsewhere,
}

impl Shard {
    /// Makes a shard on the current runtime, and starts its driver.
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
            may_linger: has_one_thread && profile.completion != CompletionMode::Event,
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
        });
        driver::spawn(&shard, channel);
        Ok(shard)
    }

    /// Returns whether connections of this runtime and profile can use the shard.
    pub(crate) fn serves(&self, runtime: Id, profile: Profile) -> bool {
        self.runtime == runtime && self.profile == profile && !self.has_ended()
    }

    /// Returns whether the driver has ended with its runtime.
    pub(crate) fn has_ended(&self) -> bool {
        self.has_ended.load(Ordering::Acquire)
    }

    /// Returns the memory that messages arrive in.
    pub(crate) fn receive_memory(&self) -> &Arc<PieceLender> {
        self.receives.memory()
    }

    /// Has a queue pair complete here and take its receives from here.
    pub(crate) fn prepare(&self, builder: QueuePairBuilder) -> QueuePairBuilder {
        self.receives
            .prepare(builder.send_completions(&self.completions))
    }

    /// Makes room for the completions of a connection with so many requests, and posts receives for so
    /// many messages.
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

    /// Gives back what [`Self::reserve`] reserved.
    fn release(&self, requests: usize, messages: usize) {
        *self.reserved.lock() -= requests;
        self.receives.shrink(messages);
    }

    /// Hands completions of a connection to it from now on.
    pub(crate) fn attach(&self, connection: &Arc<Connection>) {
        self.changes.push(Change::Attach(Arc::clone(connection)));
    }

    /// Hands the remaining completions to a connection, and none afterwards. Its receives return to the
    /// shared queue: completions that are left when the queue pair is destroyed are lost, with their receives.
    pub(crate) fn detach(&self, connection: &Connection) {
        // In the error state the queue pair takes no more receives, and completes those that it took.
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
        // Nobody may poll for a while.
        self.poll();
    }

    /// Takes the completions that are there and hands them out.
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
            // Whoever made a change while this thread polled could not poll.
            if self.changes.is_empty() {
                return Polled::Found(found);
            }
        }
    }

    /// Wakes tasks, in the order of completion.
    #[inline(never)]
    fn wake_all(&self, mut wakes: Vec<Waker>) {
        wakes.drain(..).for_each(Waker::wake);
        // For the next poll, so that it allocates nothing.
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
            self.take_note(&mut poller.connections, &mut poller.left);
        }
        let Poller {
            connections,
            room,
            wakes,
            left,
        } = poller;
        let mut found = 0;
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
                    // It may have come after the last look, and before its completion.
                    self.take_note(connections, left);
                }
                self.hand_out(completion, connections.get(number), wakes);
            }
            if completions.len() < BATCH {
                break;
            }
        }
        if found > 0 {
            self.receives.replenish();
        }
        found
    }

    #[inline]
    fn hand_out(
        &self,
        completion: &WorkCompletion,
        connection: Option<&Arc<Connection>>,
        wakes: &mut Vec<Waker>,
    ) {
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
        } else if let Some(connection) = connection {
            connection.complete(completion, wakes);
        }
    }

    #[cold]
    fn take_note(
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

    /// Ends all connections.
    pub(crate) async fn fail(&self, error: &Error) {
        loop {
            if let Some(mut poller) = self.poller.try_lock() {
                let Poller {
                    connections, left, ..
                } = &mut *poller;
                self.take_note(connections, left);
                return fail_all(connections, error);
            }
            tokio::task::yield_now().await;
        }
    }

    /// Returns whether a future polls for a short time before it waits: on a runtime of one thread, if no
    /// future waits for anything other than an operation.
    #[inline]
    pub(crate) fn lingers(&self) -> bool {
        self.may_linger && self.waiting.load(Ordering::Relaxed) == 0
    }

    /// Polls for a short time, until `attempt` returns a value.
    #[inline]
    pub(crate) fn linger<T>(&self, mut attempt: impl FnMut() -> Option<T>) -> Option<T> {
        let mut begun = None;
        loop {
            // A look at the clock takes as long as some polls.
            for _ in 0..LOOK {
                self.poll();
                if let Some(value) = attempt() {
                    return Some(value);
                }
                std::hint::spin_loop();
            }
            let now = Instant::now();
            if now - *begun.get_or_insert(now) >= LINGER {
                return None;
            }
        }
    }

    /// Counts a future that waits, until the guard is dropped.
    pub(crate) fn waiting(&self) -> Waiting<'_> {
        self.waiting.fetch_add(1, Ordering::Relaxed);
        Waiting(&self.waiting)
    }

    /// Has the driver poll, if it sleeps: a future waits.
    #[inline]
    pub(crate) fn attend(&self) {
        if self.profile.completion != CompletionMode::Event
            && self.is_asleep.load(Ordering::Relaxed)
        {
            self.wake.notify_one();
        }
    }

    /// Ends the connection after `limit`, unless the deadline is cancelled before.
    pub(crate) fn add_deadline(&self, connection: Weak<Connection>, limit: Duration) -> Place {
        let (place, is_next) = self.deadlines.add(connection, limit);
        if is_next {
            // The driver may sleep until a later one, or for good.
            self.wake.notify_one();
        }
        place
    }

    pub(crate) fn cancel_deadline(&self, place: Place) {
        self.deadlines.cancel(place);
    }

    /// Polls until the completions that were in the queue at the call are handed out. Waits while another
    /// thread polls.
    pub(crate) async fn catch_up(&self) {
        while !matches!(self.poll(), Polled::Found(found) if found < BATCH * BATCHES) {
            tokio::task::yield_now().await;
        }
    }

    /// Has the connection's staged requests leave at the end of the turn. Returns whether they will: not
    /// while the driver sleeps, since waking it may take longer than a doorbell.
    pub(crate) fn leaves_later(&self, connection: &Connection) -> bool {
        if self.is_asleep.load(Ordering::Relaxed) || self.has_ended() {
            return false;
        }
        let Some(connection) = connection.to_arc() else {
            return false;
        };
        self.turn.add(connection);
        // The driver looks at the turn once more after it has said that it sleeps.
        fence(Ordering::SeqCst);
        !self.is_asleep.load(Ordering::Relaxed)
    }
}

impl Drop for Shard {
    fn drop(&mut self) {
        // The driver ends.
        self.wake.notify_one();
    }
}

/// Room for the completions of a connection, and receives for its messages.
#[derive(Debug)]
pub(crate) struct Reservation {
    shard: Arc<Shard>,
    requests: usize,
    messages: usize,
}

impl Reservation {
    /// Makes room for so many requests, and has receives posted for so many messages.
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

/// A future that waits, for as long as this lives.
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
        connection.forsake();
    }
}

/// Makes a channel that the current runtime watches.
fn watched_channel(domain: &ProtectionDomain) -> Result<AsyncFd<CompletionChannel>> {
    let channel = domain.context().completion_channel()?;
    // What replaces `new` is unsafe because a type may give out another descriptor each time, or
    // one it does not own. A channel gives out its one, which is open for as long as it lives.
    #[expect(
        deprecated,
        reason = "the replacement is unsafe for types unlike this one"
    )]
    AsyncFd::new(channel).map_err(|source| Error::tcp("watching", "completions", source))
}
