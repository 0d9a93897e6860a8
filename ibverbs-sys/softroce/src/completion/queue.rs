use std::collections::VecDeque;
use std::fmt;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Weak};

use ibverbs_sys::ibv_event_type;
use parking_lot::Mutex;

use crate::context::{Context, Element, Refusal, Shared, Usage};
use crate::limits;
use crate::proto::Time;

use super::moderation::{self, Moderation, Verdict};
use super::{CompletionChannel, Deadlines, Entry};

/// A completion queue: `ibv_cq`.
///
/// Any thread may push. Whoever polls looks at one atomic while there is nothing, and takes the
/// lock only for entries that are there.
pub struct CompletionQueue {
    context: Arc<Context>,
    channel: Option<Arc<CompletionChannel>>,
    deadlines: Arc<Deadlines>,
    this: Weak<Self>,
    /// What asynchronous events name.
    element: Arc<Element>,
    /// What the channel's events name: the same object, whose events of the two kinds are
    /// acknowledged apart.
    notifications: Arc<Element>,
    usage: Usage,
    ignore_overrun: bool,
    /// How many entries there are, and [`OVERRUN`]. Written under the lock.
    waiting: AtomicUsize,
    state: Mutex<State>,
}

/// What a completion queue is made with.
#[derive(Debug)]
pub struct CompletionQueueAttributes {
    /// Entries.
    pub capacity: u32,
    /// Where events go.
    pub channel: Option<Arc<CompletionChannel>>,
    /// Where there is no room the oldest entry is lost, and nothing fails.
    pub ignore_overrun: bool,
}

struct State {
    entries: VecDeque<Entry>,
    capacity: usize,
    arming: Option<Arming>,
    moderation: Moderation,
    held: moderation::Held,
}

/// What an armed completion queue waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Arming {
    /// An entry of a message that was sent solicited, or of an error.
    Solicited,
    /// Any entry.
    Any,
}

/// The completion queue had no room: it is in error, and so is who had to complete a request there
/// (IBTA 11.6.3.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the completion queue is full")]
pub struct Overrun;

/// The bit of `waiting` that says that the queue has overrun.
const OVERRUN: usize = 1 << (usize::BITS - 1);

/// Room that is there from the start; more comes with the entries.
const INITIAL_ROOM: usize = 256;

impl CompletionQueue {
    /// A completion queue of a context; where its moderated events are due is told to `deadlines`.
    pub fn new(
        context: &Arc<Context>,
        deadlines: &Arc<Deadlines>,
        attributes: CompletionQueueAttributes,
    ) -> Result<Arc<Self>, Refusal> {
        let capacity = checked_capacity(attributes.capacity)?;
        Ok(Arc::new_cyclic(|this| Self {
            context: Arc::clone(context),
            channel: attributes.channel,
            deadlines: Arc::clone(deadlines),
            this: this.clone(),
            element: Element::new(),
            notifications: Element::new(),
            usage: Usage::default(),
            ignore_overrun: attributes.ignore_overrun,
            waiting: AtomicUsize::new(0),
            state: Mutex::new(State {
                entries: VecDeque::with_capacity(capacity.min(INITIAL_ROOM)),
                capacity,
                arming: None,
                moderation: Moderation::default(),
                held: moderation::Held::default(),
            }),
        }))
    }

    /// Adds an entry and raises what is to be raised.
    pub fn push(&self, entry: Entry) -> Result<(), Overrun> {
        let mut state = self.state.lock();
        if self.has_overrun() {
            return Err(Overrun);
        }
        if state.entries.len() >= state.capacity {
            if !self.ignore_overrun {
                self.publish(&state, OVERRUN);
                self.context
                    .raise(ibv_event_type::IBV_EVENT_CQ_ERR, &self.element);
                return Err(Overrun);
            }
            state.entries.pop_front();
        }
        let now = Time::from_nanos(entry.timestamp);
        let solicited = entry.is_solicited();
        state.entries.push_back(entry);
        self.publish(&state, 0);
        if state
            .arming
            .is_some_and(|arming| arming == Arming::Any || solicited)
        {
            let State {
                moderation, held, ..
            } = &mut *state;
            match moderation.judge(held, now) {
                Verdict::Raise => self.notify(&mut state),
                Verdict::WaitUntil(Some(due)) => self.deadlines.add(due, self.this.clone()),
                Verdict::WaitUntil(None) => {}
            }
        }
        Ok(())
    }

    /// Whether there is no entry. Takes no lock.
    ///
    /// A thread that is told of an entry in another way (an event, memory that the same message
    /// wrote, a lock) sees it here: the count is published with `Release` before all of these.
    pub fn is_empty(&self) -> bool {
        self.waiting.load(Ordering::Acquire) & !OVERRUN == 0
    }

    /// Takes at most `limit` entries, the oldest first; how many there were.
    pub fn poll(&self, limit: usize, mut out: impl FnMut(Entry)) -> usize {
        if self.is_empty() {
            return 0;
        }
        let mut state = self.state.lock();
        let count = limit.min(state.entries.len());
        state.entries.drain(..count).for_each(&mut out);
        self.publish(&state, self.waiting.load(Ordering::Relaxed) & OVERRUN);
        count
    }

    /// Whether an entry was lost. What came before can still be polled; nothing more comes.
    pub fn has_overrun(&self) -> bool {
        self.waiting.load(Ordering::Acquire) & OVERRUN != 0
    }

    /// Asks for one event at an entry that is yet to come (`ibv_req_notify_cq(3)`): entries that
    /// are there raise none, so who arms polls once more. Since this and [`push`](Self::push) hold
    /// the same lock, an entry comes before, and that poll sees it, or after, and raises the event.
    ///
    /// Who waits for any entry does not, by asking again, come to wait for solicited ones only (IBTA 11.4.2.2).
    pub fn arm(&self, arming: Arming) {
        let mut state = self.state.lock();
        state.arming = state.arming.max(Some(arming));
    }

    /// Removes the entries of a queue pair that is reset or destroyed: they would name requests
    /// that are no longer, or those of a later queue pair with the number.
    pub fn discard(&self, queue_pair: u32) {
        let mut state = self.state.lock();
        state.entries.retain(|entry| entry.queue_pair != queue_pair);
        self.publish(&state, self.waiting.load(Ordering::Relaxed) & OVERRUN);
    }

    /// Changes the number of entries; not below those that are there. Returns the new one.
    pub fn resize(&self, capacity: u32) -> Result<u32, Refusal> {
        let entries = checked_capacity(capacity)?;
        let mut state = self.state.lock();
        if entries < state.entries.len() {
            return Err(Refusal::Invalid);
        }
        state.capacity = entries;
        Ok(capacity)
    }

    /// Says how events are moderated from now on.
    pub fn moderate(&self, moderation: Moderation) {
        let mut state = self.state.lock();
        state.moderation = moderation;
        // What waited by the old rule does not wait for ever by the new one.
        if state.held.due.is_some() {
            self.notify(&mut state);
        }
    }

    /// Raises the moderated event if it is due.
    pub(super) fn expire(&self, now: Time) {
        let mut state = self.state.lock();
        if state.held.due.is_some_and(|due| due <= now) {
            self.notify(&mut state);
        }
    }

    /// Ends the queue's use: refused while queue pairs have it, or shared receive queues. Takes its events back and
    /// waits until those that were fetched are acknowledged.
    pub fn close(&self) -> Result<(), Refusal> {
        self.usage.close()?;
        self.context.withdraw(&self.element);
        if let Some(channel) = &self.channel {
            channel.withdraw(&self.notifications);
        }
        Ok(())
    }

    /// The open device.
    pub fn context(&self) -> &Arc<Context> {
        &self.context
    }

    /// What asynchronous events name.
    pub fn element(&self) -> &Arc<Element> {
        &self.element
    }

    /// What the channel's events name.
    pub fn notifications(&self) -> &Arc<Element> {
        &self.notifications
    }

    /// The event that was asked for; the next one has to be asked for again.
    fn notify(&self, state: &mut State) {
        state.arming = None;
        state.held = moderation::Held::default();
        if let Some(channel) = &self.channel {
            channel.notify(&self.notifications);
        }
    }

    fn publish(&self, state: &State, overrun: usize) {
        self.waiting
            .store(state.entries.len() | overrun, Ordering::Release);
    }
}

impl Shared for CompletionQueue {
    fn usage(&self) -> &Usage {
        &self.usage
    }
}

impl fmt::Debug for CompletionQueue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CompletionQueue")
            .field(
                "waiting",
                &(self.waiting.load(Ordering::Relaxed) & !OVERRUN),
            )
            .field("has_overrun", &self.has_overrun())
            .finish_non_exhaustive()
    }
}

fn checked_capacity(capacity: u32) -> Result<usize, Refusal> {
    if capacity == 0 || capacity > limits::MAX_CQE {
        return Err(Refusal::Invalid);
    }
    Ok(capacity as usize)
}
