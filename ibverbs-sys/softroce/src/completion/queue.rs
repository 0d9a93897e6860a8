#![forbid(unsafe_code)]

use std::fmt;
use std::slice;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};

use ibverbs_sys::ibv_event_type;
use smallvec::SmallVec;

use crate::context::{Context, Element, HasUsage, Refusal, Usage};
use crate::limits;
use crate::proto::Time;
use crate::spin::Mutex;

use super::moderation::{self, EventTiming, Moderation};
use super::ring::{AddError, Added, Position, Ring, TailFlags, TooManyEntries};
use super::{CompletionChannel, Deadlines, Entry};

#[cfg(all(test, not(loom)))]
mod tests;

/// A completion queue (`ibv_cq`).
///
/// Any thread may add entries, and any thread may poll. Adding an entry takes a lock only while the
/// queue is armed for an event. Polling takes no lock.
pub struct CompletionQueue {
    entries: Ring<Entry>,
    context: Arc<Context>,
    channel: Option<Arc<CompletionChannel>>,
    deadlines: Arc<Deadlines>,
    this: Weak<Self>,
    /// [`Element`] that stands for this queue in asynchronous events.
    element: Arc<Element>,
    /// [`Element`] that stands for this queue in events of the completion channel. The program
    /// acknowledges these events separately from asynchronous events.
    notifications: Arc<Element>,
    usage: Usage,
    ignore_overrun: bool,
    timed: AtomicBool,
    overrun: AtomicBool,
    events: Mutex<ArmedState>,
}

/// Attributes with which a completion queue is created (`ibv_create_cq_ex(3)`).
#[derive(Debug)]
pub struct CompletionQueueAttributes {
    /// Maximum number of entries in the queue.
    pub capacity: u32,
    /// Channel at which the queue raises its completion events. `None` for a queue that raises no
    /// events.
    pub channel: Option<Arc<CompletionChannel>>,
    /// Set if a full queue drops its oldest entry to add a new one. Otherwise, an entry that does
    /// not fit makes the queue fail.
    pub ignore_overrun: bool,
    /// Set if the program reads the timestamps of entries, so that they must be recorded.
    pub timestamps: bool,
}

/// State of an armed completion queue: the program's request for a completion event, and a delayed
/// event. A flag in the ring of entries shows whether a request exists. A thread that adds an entry
/// locks this state only if the flag is set.
#[derive(Default)]
struct ArmedState {
    arming: Option<Arming>,
    /// Position in the ring of the first entry that may raise the event: the tail of the ring at
    /// the time when the queue was armed.
    since: Option<Position>,
    moderation: Moderation,
    held: moderation::DelayedEvent,
}

/// Kind of the entries for which a program arms a completion queue (`ibv_req_notify_cq(3)`). The
/// next entry of this kind raises a completion event.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Arming {
    /// A received message with the solicited flag, or an error (`solicited_only` is set).
    Solicited,
    /// Any entry.
    Any,
}

/// Error: an entry did not fit into a full completion queue. Afterwards, the completion queue
/// accepts no further entries. The queue pair to which the entry belongs fails, too (IBTA
/// 11.6.3.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the completion queue is full")]
pub struct Overrun;

/// Initial number of entries for which a completion queue has memory. More memory is allocated when
/// it is needed. So a queue with a large capacity and few entries stays in the processor's cache.
const INITIAL_ENTRIES: usize = 256;

/// Maximum number of entries that one reservation of slots adds to a completion queue. The entries
/// are first collected on the stack, so a larger number would copy more memory.
const MAX_BATCH: usize = 16;

const _: () = assert!(limits::MAX_CQE as usize <= Ring::<Entry>::MAX_CAPACITY);

impl CompletionQueue {
    /// Creates a completion queue of the open device `context` with the given attributes.
    /// `deadlines` is the list to which the queue adds each completion event that it delays
    /// ([`Moderation`]).
    pub fn new(
        context: &Arc<Context>,
        deadlines: &Arc<Deadlines>,
        attributes: CompletionQueueAttributes,
    ) -> Result<Arc<Self>, Refusal> {
        let capacity = checked_capacity(attributes.capacity)?;
        Ok(Arc::new_cyclic(|this| Self {
            entries: Ring::new(capacity, INITIAL_ENTRIES),
            context: Arc::clone(context),
            channel: attributes.channel,
            deadlines: Arc::clone(deadlines),
            this: this.clone(),
            element: Element::new(),
            notifications: Element::new(),
            usage: Usage::default(),
            ignore_overrun: attributes.ignore_overrun,
            timed: AtomicBool::new(attributes.timestamps),
            overrun: AtomicBool::new(false),
            events: Mutex::default(),
        }))
    }

    /// Returns the channel at which the queue raises its completion events, or `None` if the
    /// program created the queue without a channel.
    pub(crate) fn channel(&self) -> Option<&CompletionChannel> {
        self.channel.as_deref()
    }

    /// Returns whether the program reads the timestamps of this completion queue's entries. If not,
    /// the timestamps need not be recorded.
    pub fn is_timed(&self) -> bool {
        self.timed.load(Ordering::Relaxed)
    }

    /// Adds an entry to the completion queue, and raises a completion event if the program has
    /// requested an event for such an entry. If the queue is full, this call and all later calls
    /// fail. A queue that ignores overruns drops its oldest entry instead.
    #[inline]
    pub fn push(&self, entry: Entry) -> Result<(), Overrun> {
        let added = self.entries.push(entry);
        if added.is_some_and(|added| added.marks().is_empty()) {
            return Ok(());
        }
        // A second copy lets the compiler keep `entry` in registers until it is written to its
        // slot.
        let again = entry;
        self.push_slowly(added, &again)
    }

    /// Completes a [`push`](Self::push) of `entry` whose fast path did not suffice. `added` is
    /// `None` if the fast path did not add the entry. In this case, this function adds the entry.
    /// Afterwards raises the completion event if the program has requested an event for such an
    /// entry. Fails if the queue is full or has failed.
    #[cold]
    fn push_slowly(&self, added: Option<Added>, entry: &Entry) -> Result<(), Overrun> {
        let entry = slice::from_ref(entry);
        match added {
            Some(added) => {
                self.notify_added(added, entry);
                Ok(())
            }
            None => self.push_slice(entry),
        }
    }

    /// Adds all of `entries` in order. Fails at the first entry that does not fit into the queue.
    /// Earlier entries stay in the queue.
    #[inline]
    pub fn push_all(&self, entries: impl IntoIterator<Item = Entry>) -> Result<(), Overrun> {
        let mut entries = entries.into_iter();
        while entries.size_hint().0 > 1 {
            self.push_batch(&mut entries)?;
        }
        for entry in entries {
            self.push(entry)?;
        }
        Ok(())
    }

    /// Adds the next entries of the iterator in order, at most [`MAX_BATCH`]. Collects the entries
    /// before slots in the ring are reserved. Otherwise, a panic of the iterator would leave
    /// reserved slots without entries.
    #[inline(never)]
    fn push_batch(&self, entries: &mut impl Iterator<Item = Entry>) -> Result<(), Overrun> {
        let together: SmallVec<[Entry; MAX_BATCH]> = entries.take(MAX_BATCH).collect();
        self.push_slice(&together)
    }

    fn push_slice(&self, mut entries: &[Entry]) -> Result<(), Overrun> {
        while !entries.is_empty() {
            match self.entries.push_all(entries) {
                Ok((count, added)) => {
                    let (these, rest) = entries.split_at(count);
                    if !added.marks().is_empty() {
                        self.notify_added(added, these);
                    }
                    entries = rest;
                }
                Err(refused) => self.make_room(refused)?,
            }
        }
        Ok(())
    }

    /// Handles a failed attempt to add an entry to the ring. `refused` is the reason for the
    /// failure. If the ring is full, a queue that ignores overruns drops its oldest entry, and any
    /// other queue fails and accepts no further entries. Returns `Ok` if the caller must try again
    /// to add the entry.
    #[cold]
    fn make_room(&self, refused: AddError) -> Result<(), Overrun> {
        let AddError::Full(full) = refused else {
            return Err(Overrun);
        };
        if self.ignore_overrun {
            if self.entries.poll(1, |_| ()) == 0 {
                // The oldest entry is still being written.
                self.entries.wait_for_claims();
            }
            return Ok(());
        }
        if !self.entries.close(full) {
            return Ok(());
        }
        // A thread that sees the overrun must find all earlier entries.
        self.entries.wait_for_claims();
        self.overrun.store(true, Ordering::Release);
        self.context
            .raise(ibv_event_type::IBV_EVENT_CQ_ERR, &self.element);
        Err(Overrun)
    }

    /// Raises the completion event for `entries`, which were just added to the ring, if the program
    /// has requested an event for any of them. The event is raised immediately, or with the delay
    /// that the program has set. `added` contains the requests for events that existed when the
    /// entries were added.
    #[cold]
    fn notify_added(&self, added: Added, entries: &[Entry]) {
        let is_awaited =
            |arming: Arming, entry: &Entry| arming == Arming::Any || entry.is_solicited();
        let marked = if added.marks().contains(Arming::Any.marks()) {
            Arming::Any
        } else {
            Arming::Solicited
        };
        if !entries.iter().any(|entry| is_awaited(marked, entry)) {
            return;
        }
        let mut events = self.events.lock();
        for entry in entries {
            // Another thread may have raised the event in the meantime, and the queue may have been
            // armed again.
            let asked = events.since.is_some_and(|since| !added.is_before(since));
            if !asked
                || !events
                    .arming
                    .is_some_and(|arming| is_awaited(arming, entry))
            {
                continue;
            }
            let ArmedState {
                moderation, held, ..
            } = &mut *events;
            match moderation.count_completion(held, Time::from_nanos(entry.timestamp)) {
                EventTiming::Raise => self.notify(&mut events),
                EventTiming::WaitUntil(Some(due)) => self.deadlines.add(due, self.this.clone()),
                EventTiming::WaitUntil(None) => {}
            }
        }
    }

    /// Returns whether the completion queue has no entry. Takes no lock.
    ///
    /// The result is `false` if the caller has seen another effect of a message whose entry was
    /// added, for example the message's bytes in memory, because the entry is published first. The
    /// only exception is an older entry that a thread is still writing: the queue then seems to end
    /// before that entry. A completion event is raised only when all earlier entries are complete.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Removes at most `limit` entries from the completion queue, the oldest first, and calls `out`
    /// for each. Returns the number of removed entries.
    #[inline(always)]
    pub fn poll(&self, limit: usize, out: impl FnMut(&Entry)) -> usize {
        self.entries.poll(limit, out)
    }

    /// Returns whether an entry was lost because the queue was full. After this, earlier entries
    /// can still be polled, but no further entries are added.
    pub fn has_overrun(&self) -> bool {
        self.overrun.load(Ordering::Acquire)
    }

    /// Arms the completion queue: requests an event for the next added entry of the kind `arming`
    /// (`ibv_req_notify_cq(3)`). Entries that are already in the queue raise no event, so the
    /// caller must poll again after this call. Then no entry is missed: the poll finds an entry
    /// whose addition began before this call, and a later entry raises the event.
    ///
    /// While the queue is armed for any entry, arming for solicited entries has no effect (IBTA
    /// 11.4.2.2).
    pub fn arm(&self, arming: Arming) {
        {
            let mut events = self.events.lock();
            let place = self.entries.mark(arming.marks());
            if events.arming.is_none() {
                events.since = Some(place);
            }
            events.arming = events.arming.max(Some(arming));
        }
        self.entries.wait_for_claims();
    }

    /// Removes the completions of the queue pair with the number `queue_pair` from the completion
    /// queue. Called when the queue pair is reset or destroyed. Otherwise the program would find
    /// request IDs that are not valid any more, or completions that appear to belong to a later
    /// queue pair with the same number.
    pub fn discard(&self, queue_pair: u32) {
        self.entries.retain(|entry| entry.queue_pair != queue_pair);
    }

    /// Changes the capacity of the completion queue to `capacity` entries, and returns `capacity`.
    /// Fails if the queue contains more entries, or if `capacity` is 0 or above the limit of the
    /// device.
    pub fn resize(&self, capacity: u32) -> Result<u32, Refusal> {
        let entries = checked_capacity(capacity)?;
        match self.entries.resize(entries) {
            Ok(()) => Ok(capacity),
            Err(TooManyEntries) => Err(Refusal::Invalid),
        }
    }

    /// Sets the moderation of completion events to `moderation`. If the old moderation has delayed
    /// an event, raises this event now. Otherwise the event could be delayed forever.
    pub fn moderate(&self, moderation: Moderation) {
        if !moderation.period.is_zero() {
            self.timed.store(true, Ordering::Relaxed);
        }
        let mut events = self.events.lock();
        events.moderation = moderation;
        // A delayed event is raised now, because the new moderation may never raise it.
        if events.held.due.is_some() {
            self.notify(&mut events);
        }
    }

    /// Raises the delayed completion event of the queue if the event is due at the time `now` or
    /// earlier. [`Moderation`] delays events, so that several completions share one event.
    pub(super) fn expire(&self, now: Time) {
        let mut events = self.events.lock();
        if events.held.due.is_some_and(|due| due <= now) {
            self.notify(&mut events);
        }
    }

    /// Closes the completion queue, because the program destroys it. Fails while queue pairs or
    /// shared receive queues use the queue. Removes the queue's pending events, and waits until the
    /// program has acknowledged the fetched events.
    pub fn close(&self) -> Result<(), Refusal> {
        self.usage.close()?;
        self.context.withdraw(&self.element);
        if let Some(channel) = &self.channel {
            channel.withdraw(&self.notifications);
        }
        Ok(())
    }

    /// Returns the context of the open device to which the queue belongs.
    pub fn context(&self) -> &Arc<Context> {
        &self.context
    }

    /// Returns the [`Element`] of the queue for asynchronous events. An element contains the
    /// address of the queue's `ibv_cq`, and counts the events that the program must still
    /// acknowledge.
    pub fn element(&self) -> &Arc<Element> {
        &self.element
    }

    /// Returns the [`Element`] of the queue for the events of its completion channel. An element
    /// contains the address of the queue's `ibv_cq`, and counts the events that the program must
    /// still acknowledge.
    pub fn notifications(&self) -> &Arc<Element> {
        &self.notifications
    }

    /// Raises the completion event for which the program has armed the queue, and disarms the
    /// queue, so that the event is raised only once. `events` is the locked state of the armed
    /// event.
    fn notify(&self, events: &mut ArmedState) {
        events.arming = None;
        events.held = moderation::DelayedEvent::default();
        self.entries.unmark();
        // Other threads may have claimed earlier slots. A thread that gets the event must find its
        // entry, not a gap.
        self.entries.wait_for_claims();
        if let Some(channel) = &self.channel {
            channel.notify(&self.notifications);
        }
    }
}

impl Arming {
    fn marks(self) -> TailFlags {
        match self {
            Self::Any => TailFlags::FIRST,
            Self::Solicited => TailFlags::SECOND,
        }
    }
}

impl HasUsage for CompletionQueue {
    fn usage(&self) -> &Usage {
        &self.usage
    }
}

impl fmt::Debug for CompletionQueue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CompletionQueue")
            .field("waiting", &self.entries.len())
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
