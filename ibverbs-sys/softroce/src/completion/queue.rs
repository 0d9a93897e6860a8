#![forbid(unsafe_code)]

use std::fmt;
use std::slice;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};

use ibverbs_sys::ibv_event_type;
use smallvec::SmallVec;

use crate::context::{Context, Element, Refusal, Shared, Usage};
use crate::limits;
use crate::proto::Time;
use crate::spin::Mutex;

use super::moderation::{self, Moderation, Verdict};
use super::ring::{Added, Marks, Place, Refused, Ring, TooMany};
use super::{CompletionChannel, Deadlines, Entry};

#[cfg(all(test, not(loom)))]
mod tests;

/// A completion queue: `ibv_cq`.
///
/// Any thread may push, and any may poll. Neither locks anything, unless an event was asked for.
pub struct CompletionQueue {
    entries: Ring<Entry>,
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
    timed: AtomicBool,
    overrun: AtomicBool,
    events: Mutex<Events>,
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
    /// The program wants to know when entries came.
    pub timestamps: bool,
}

/// What is to be raised. The ring's marks say what is awaited, so that who pushes need not look here.
#[derive(Default)]
struct Events {
    arming: Option<Arming>,
    /// The first place whose entry raises an event.
    since: Option<Place>,
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

/// Room that is there from the start; more comes with the entries.
const INITIAL_ROOM: usize = 256;

/// Entries that are added together at most.
const TOGETHER: usize = 16;

const _: () = assert!(limits::MAX_CQE as usize <= Ring::<Entry>::MAX_CAPACITY);

impl CompletionQueue {
    /// A completion queue of a context; where its moderated events are due is told to `deadlines`.
    pub fn new(
        context: &Arc<Context>,
        deadlines: &Arc<Deadlines>,
        attributes: CompletionQueueAttributes,
    ) -> Result<Arc<Self>, Refusal> {
        let capacity = checked_capacity(attributes.capacity)?;
        Ok(Arc::new_cyclic(|this| Self {
            entries: Ring::new(capacity, INITIAL_ROOM),
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

    /// Whether entries shall have their time: nobody looks at that of others.
    pub fn is_timed(&self) -> bool {
        self.timed.load(Ordering::Relaxed)
    }

    /// Adds an entry and raises what is to be raised.
    #[inline]
    pub fn push(&self, entry: Entry) -> Result<(), Overrun> {
        let added = self.entries.push(entry);
        if added.is_some_and(|added| added.marks().is_empty()) {
            return Ok(());
        }
        // Another one, so that the first need not be in memory before it is in its slot.
        let again = entry;
        self.push_with_care(added, &again)
    }

    /// An entry is not added yet, or it is and somebody may have to be told.
    #[cold]
    fn push_with_care(&self, added: Option<Added>, entry: &Entry) -> Result<(), Overrun> {
        let entry = slice::from_ref(entry);
        match added {
            Some(added) => {
                self.announce(added, entry);
                Ok(())
            }
            None => self.push_slice(entry),
        }
    }

    /// Adds entries that came together, in order, up to the first that finds no room.
    #[inline]
    pub fn push_all(&self, entries: impl IntoIterator<Item = Entry>) -> Result<(), Overrun> {
        let mut entries = entries.into_iter();
        while entries.size_hint().0 > 1 {
            self.push_together(&mut entries)?;
        }
        for entry in entries {
            self.push(entry)?;
        }
        Ok(())
    }

    /// Adds some entries. They are copied first: nothing may go wrong between a claim and what it is for.
    #[inline(never)]
    fn push_together(&self, entries: &mut impl Iterator<Item = Entry>) -> Result<(), Overrun> {
        let together: SmallVec<[Entry; TOGETHER]> = entries.take(TOGETHER).collect();
        self.push_slice(&together)
    }

    fn push_slice(&self, mut entries: &[Entry]) -> Result<(), Overrun> {
        while !entries.is_empty() {
            match self.entries.push_all(entries) {
                Ok((count, added)) => {
                    let (these, rest) = entries.split_at(count);
                    if !added.marks().is_empty() {
                        self.announce(added, these);
                    }
                    entries = rest;
                }
                Err(refused) => self.make_room(refused)?,
            }
        }
        Ok(())
    }

    /// An entry found no room; whether it is worth another try.
    #[cold]
    fn make_room(&self, refused: Refused) -> Result<(), Overrun> {
        let Refused::Full(full) = refused else {
            return Err(Overrun);
        };
        if self.ignore_overrun {
            if self.entries.poll(1, |_| ()) == 0 {
                // The oldest is about to come.
                self.entries.settle();
            }
            return Ok(());
        }
        if !self.entries.close(full) {
            return Ok(());
        }
        // Who sees the overrun finds what came before it.
        self.entries.settle();
        self.overrun.store(true, Ordering::Release);
        self.context
            .raise(ibv_event_type::IBV_EVENT_CQ_ERR, &self.element);
        Err(Overrun)
    }

    /// Entries came of which some may be awaited.
    #[cold]
    fn announce(&self, added: Added, entries: &[Entry]) {
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
            // Others may have been told meanwhile, and somebody may have asked anew.
            let asked = events.since.is_some_and(|since| !added.is_before(since));
            if !asked
                || !events
                    .arming
                    .is_some_and(|arming| is_awaited(arming, entry))
            {
                continue;
            }
            let Events {
                moderation, held, ..
            } = &mut *events;
            match moderation.judge(held, Time::from_nanos(entry.timestamp)) {
                Verdict::Raise => self.notify(&mut events),
                Verdict::WaitUntil(Some(due)) => self.deadlines.add(due, self.this.clone()),
                Verdict::WaitUntil(None) => {}
            }
        }
    }

    /// Whether there is no entry. Takes no lock.
    ///
    /// A thread that is told of an entry in another way (an event, memory that the same message
    /// wrote, a lock) sees it here: the entry is published with `Release` before all of these. Only if another thread
    /// is just adding one before it, it comes with that one; an event waits for that.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Takes at most `limit` entries, the oldest first; how many there were.
    #[inline(always)]
    pub fn poll(&self, limit: usize, out: impl FnMut(&Entry)) -> usize {
        self.entries.poll(limit, out)
    }

    /// Whether an entry was lost. What came before can still be polled; nothing more comes.
    pub fn has_overrun(&self) -> bool {
        self.overrun.load(Ordering::Acquire)
    }

    /// Asks for one event at an entry that is yet to come (`ibv_req_notify_cq(3)`): entries that
    /// are there raise none, so who arms polls once more. That poll finds the entries whose places were claimed
    /// before this; those that come later are told by their claim that an event is awaited, and raise it.
    ///
    /// Who waits for any entry does not, by asking again, come to wait for solicited ones only (IBTA 11.4.2.2).
    pub fn arm(&self, arming: Arming) {
        {
            let mut events = self.events.lock();
            let place = self.entries.mark(arming.marks());
            if events.arming.is_none() {
                events.since = Some(place);
            }
            events.arming = events.arming.max(Some(arming));
        }
        self.entries.settle();
    }

    /// Removes the entries of a queue pair that is reset or destroyed: they would name requests
    /// that are no longer, or those of a later queue pair with the number.
    pub fn discard(&self, queue_pair: u32) {
        self.entries.retain(|entry| entry.queue_pair != queue_pair);
    }

    /// Changes the number of entries; not below those that are there. Returns the new one.
    pub fn resize(&self, capacity: u32) -> Result<u32, Refusal> {
        let entries = checked_capacity(capacity)?;
        match self.entries.resize(entries) {
            Ok(()) => Ok(capacity),
            Err(TooMany) => Err(Refusal::Invalid),
        }
    }

    /// Says how events are moderated from now on.
    pub fn moderate(&self, moderation: Moderation) {
        if !moderation.period.is_zero() {
            self.timed.store(true, Ordering::Relaxed);
        }
        let mut events = self.events.lock();
        events.moderation = moderation;
        // What waited by the old rule does not wait for ever by the new one.
        if events.held.due.is_some() {
            self.notify(&mut events);
        }
    }

    /// Raises the moderated event if it is due.
    pub(super) fn expire(&self, now: Time) {
        let mut events = self.events.lock();
        if events.held.due.is_some_and(|due| due <= now) {
            self.notify(&mut events);
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
    fn notify(&self, events: &mut Events) {
        events.arming = None;
        events.held = moderation::Held::default();
        self.entries.unmark();
        // Others may have claimed places before that of the entry: who is told of it finds it, and not a gap.
        self.entries.settle();
        if let Some(channel) = &self.channel {
            channel.notify(&self.notifications);
        }
    }
}

impl Arming {
    fn marks(self) -> Marks {
        match self {
            Self::Any => Marks::FIRST,
            Self::Solicited => Marks::SECOND,
        }
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
