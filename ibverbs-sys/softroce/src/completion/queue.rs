use std::collections::VecDeque;
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Weak};

use ibverbs_sys::ibv_event_type;

use crate::context::{Context, Element, Refusal, Shared, Usage};
use crate::limits;
use crate::proto::Time;
use crate::spin::Mutex;

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
    timed: AtomicBool,
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
    /// The program wants to know when entries came.
    pub timestamps: bool,
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
            timed: AtomicBool::new(attributes.timestamps),
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

    /// Whether entries shall have their time: nobody looks at that of others.
    pub fn is_timed(&self) -> bool {
        self.timed.load(Ordering::Relaxed)
    }

    /// Adds an entry and raises what is to be raised.
    pub fn push(&self, entry: Entry) -> Result<(), Overrun> {
        self.push_all([entry])
    }

    /// Adds entries that came together, in order, up to the first that finds no room.
    pub fn push_all(&self, entries: impl IntoIterator<Item = Entry>) -> Result<(), Overrun> {
        let mut state = self.state.lock();
        if self.has_overrun() {
            return Err(Overrun);
        }
        for entry in entries {
            self.push_one(&mut state, entry)?;
        }
        Ok(())
    }

    fn push_one(&self, state: &mut State, entry: Entry) -> Result<(), Overrun> {
        if state.entries.len() >= state.capacity {
            if !self.ignore_overrun {
                self.publish(state, OVERRUN);
                self.context
                    .raise(ibv_event_type::IBV_EVENT_CQ_ERR, &self.element);
                return Err(Overrun);
            }
            state.entries.pop_front();
        }
        let now = Time::from_nanos(entry.timestamp);
        let solicited = entry.is_solicited();
        state.entries.push_back(entry);
        self.publish(state, 0);
        if state
            .arming
            .is_some_and(|arming| arming == Arming::Any || solicited)
        {
            let State {
                moderation, held, ..
            } = state;
            match moderation.judge(held, now) {
                Verdict::Raise => self.notify(state),
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
        for _ in 0..count {
            if let Some(entry) = state.entries.pop_front() {
                out(entry);
            }
        }
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
        if !moderation.period.is_zero() {
            self.timed.store(true, Ordering::Relaxed);
        }
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

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicBool;
    use std::thread;
    use std::time::Duration;

    use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};

    use super::*;
    use crate::proto::{Completion, CompletionStatus, Work};

    struct Fixture {
        context: Arc<Context>,
        channel: Arc<CompletionChannel>,
        deadlines: Arc<Deadlines>,
        queue: Arc<CompletionQueue>,
    }

    fn fixture(capacity: u32, ignore_overrun: bool) -> Fixture {
        let (context, channel) = (Context::new().unwrap(), CompletionChannel::new().unwrap());
        for flags in [fcntl_getfl(&*context), fcntl_getfl(&*channel)] {
            assert!(!flags.unwrap().contains(OFlags::NONBLOCK));
        }
        fcntl_setfl(&*context, OFlags::NONBLOCK).unwrap();
        fcntl_setfl(&*channel, OFlags::NONBLOCK).unwrap();
        let deadlines = Arc::new(Deadlines::default());
        let channel_too = Some(Arc::clone(&channel));
        let attributes = CompletionQueueAttributes {
            capacity,
            channel: channel_too,
            ignore_overrun,
            timestamps: true,
        };
        let queue = CompletionQueue::new(&context, &deadlines, attributes).unwrap();
        Fixture {
            context,
            channel,
            deadlines,
            queue,
        }
    }

    fn entry(id: u64) -> Entry {
        Entry {
            completion: Completion {
                id,
                status: CompletionStatus::Success,
                work: Work::Receive,
                length: 0,
                immediate: None,
                invalidated: None,
                source: 0,
                route: false,
                solicited: false,
            },
            queue_pair: 1,
            timestamp: 0,
            partition_index: 0,
        }
    }

    fn solicited(id: u64) -> Entry {
        let mut entry = entry(id);
        entry.completion.solicited = true;
        entry
    }

    fn failed(id: u64) -> Entry {
        let mut entry = entry(id);
        entry.completion.status = CompletionStatus::Flushed;
        entry.completion.work = Work::Send;
        entry
    }

    impl Fixture {
        fn push(&self, entry: Entry) {
            self.queue.push(entry).unwrap();
        }

        fn poll(&self, limit: usize) -> Vec<u64> {
            let mut ids = Vec::new();
            self.queue
                .poll(limit, |entry| ids.push(entry.completion.id));
            ids
        }

        /// How many events there are; acknowledges them.
        fn events(&self) -> usize {
            let mut count = 0;
            while let Ok(element) = self.channel.next_event() {
                assert!(Arc::ptr_eq(&element, self.queue.notifications()));
                element.acknowledge(1);
                count += 1;
            }
            count
        }
    }

    #[test]
    fn entries_come_in_order_and_no_more_than_asked_for() {
        let all = fixture(8, false);
        assert!(all.queue.is_empty());
        for id in 0..5 {
            all.push(entry(id));
        }
        assert!(!all.queue.is_empty());
        assert_eq!(all.poll(0), [0; 0]);
        assert_eq!(all.poll(2), [0, 1]);
        assert_eq!(all.poll(10), [2, 3, 4]);
        assert!(all.queue.is_empty());
    }

    #[test]
    fn each_arming_gives_one_event_at_the_next_entry() {
        let all = fixture(8, false);
        all.push(entry(0));
        assert_eq!(all.events(), 0, "nobody asked");
        all.queue.arm(Arming::Any);
        assert_eq!(all.events(), 0, "the entry was there before");
        all.push(entry(1));
        all.push(entry(2));
        assert_eq!(all.events(), 1);
        all.queue.arm(Arming::Any);
        all.queue.arm(Arming::Any);
        all.push(entry(3));
        all.push(entry(4));
        assert_eq!(all.events(), 1, "asking twice is asking once");
    }

    #[test]
    fn solicited_only_means_solicited_or_failed() {
        let all = fixture(16, false);
        all.queue.arm(Arming::Solicited);
        all.push(entry(0));
        assert_eq!(all.events(), 0);
        all.push(solicited(1));
        assert_eq!(all.events(), 1);
        all.queue.arm(Arming::Solicited);
        all.push(failed(2));
        assert_eq!(all.events(), 1);
        let mut sent = solicited(3);
        sent.completion.work = Work::Send;
        all.queue.arm(Arming::Solicited);
        all.push(sent);
        assert_eq!(all.events(), 0, "only the receiver of a message is told");
    }

    #[test]
    fn who_waits_for_any_is_not_made_to_wait_for_solicited() {
        let all = fixture(8, false);
        all.queue.arm(Arming::Any);
        all.queue.arm(Arming::Solicited);
        all.push(entry(0));
        assert_eq!(all.events(), 1);
        all.queue.arm(Arming::Solicited);
        all.queue.arm(Arming::Any);
        all.push(entry(1));
        assert_eq!(all.events(), 1);
    }

    #[test]
    fn an_overrun_is_an_event_and_the_end() {
        let all = fixture(2, false);
        all.push(entry(0));
        all.push(entry(1));
        assert_eq!(all.queue.push(entry(2)), Err(Overrun));
        assert_eq!(
            all.context.next_event().unwrap().kind,
            ibv_event_type::IBV_EVENT_CQ_ERR
        );
        all.queue.element().acknowledge(1);
        assert!(all.queue.has_overrun());
        assert_eq!(all.poll(8), [0, 1], "what was there before is not lost");
        assert!(all.queue.has_overrun());
        assert!(all.queue.is_empty());
        assert_eq!(
            all.queue.push(entry(3)),
            Err(Overrun),
            "there is room, but no trust"
        );
        assert!(all.context.next_event().is_err(), "told once");
    }

    #[test]
    fn an_overrun_that_is_ignored_costs_the_oldest() {
        let all = fixture(2, true);
        for id in 0..5 {
            all.push(entry(id));
        }
        assert!(!all.queue.has_overrun());
        assert_eq!(all.poll(8), [3, 4]);
        assert!(all.context.next_event().is_err());
    }

    #[test]
    fn capacities_are_checked_and_resizing_keeps_what_is_there() {
        let all = fixture(2, false);
        all.push(entry(0));
        all.push(entry(1));
        for wrong in [0, 1, limits::MAX_CQE + 1, u32::MAX] {
            assert_eq!(all.queue.resize(wrong), Err(Refusal::Invalid));
        }
        assert_eq!(all.queue.resize(3), Ok(3));
        all.push(entry(2));
        assert_eq!(all.poll(8), [0, 1, 2]);
        assert_eq!(all.queue.resize(1), Ok(1));
        all.push(entry(3));
        assert_eq!(all.queue.push(entry(4)), Err(Overrun));
    }

    #[test]
    fn entries_of_a_queue_pair_can_be_discarded() {
        let all = fixture(8, false);
        for id in 0..6 {
            let mut entry = entry(id);
            entry.queue_pair = (id % 2) as u32;
            all.push(entry);
        }
        all.queue.discard(1);
        assert_eq!(all.poll(8), [0, 2, 4]);
        all.push(entry(7));
        all.queue.discard(1);
        assert!(all.queue.is_empty());
    }

    #[test]
    fn moderation_counts_completions() {
        let all = fixture(16, false);
        let period = Duration::from_micros(10);
        all.queue.moderate(Moderation { count: 3, period });
        all.queue.arm(Arming::Any);
        all.push(entry(0));
        all.push(entry(1));
        assert_eq!(all.events(), 0);
        all.push(entry(2));
        assert_eq!(all.events(), 1);
        all.push(entry(3));
        all.deadlines.expire(Time::from_nanos(1_000_000));
        assert_eq!(all.events(), 0, "not armed, nothing due");
    }

    #[test]
    fn moderation_does_not_wait_longer_than_its_period() {
        let all = fixture(16, false);
        let period = Duration::from_micros(10);
        all.queue.moderate(Moderation { count: 3, period });
        all.queue.arm(Arming::Any);
        let mut first = entry(0);
        first.timestamp = 500;
        all.push(first);
        assert_eq!(all.deadlines.next(), Some(Time::from_nanos(10_500)));
        all.deadlines.expire(Time::from_nanos(10_499));
        assert_eq!(all.events(), 0);
        all.deadlines.expire(Time::from_nanos(10_500));
        assert_eq!(all.events(), 1);
        assert_eq!(all.deadlines.next(), None);
    }

    #[test]
    fn what_waits_by_an_old_rule_is_told_when_the_rule_changes() {
        let all = fixture(16, false);
        all.queue.moderate(Moderation {
            count: 3,
            period: Duration::from_secs(1),
        });
        all.queue.arm(Arming::Any);
        all.push(entry(0));
        all.queue.moderate(Moderation::default());
        assert_eq!(all.events(), 1);
        all.deadlines.expire(Time::from_nanos(u64::MAX));
        assert_eq!(all.events(), 0);
    }

    #[test]
    fn a_queue_in_use_is_not_closed_and_a_closed_one_is_silent() {
        let all = fixture(2, false);
        all.queue.usage().acquire().unwrap();
        assert_eq!(all.queue.close(), Err(Refusal::Busy));
        all.queue.usage().release();
        all.queue.arm(Arming::Any);
        all.push(entry(0));
        assert_eq!(all.queue.close(), Ok(()));
        assert_eq!(all.events(), 0, "the event that nobody fetched is gone");
        all.queue.arm(Arming::Any);
        all.push(entry(1));
        assert_eq!(all.queue.push(entry(2)), Err(Overrun));
        assert_eq!(all.events(), 0);
        assert!(all.context.next_event().is_err());
    }

    /// A thread that arms, polls and then sleeps until an event misses no entry, and finds each
    /// once. The channel blocks, so a lost event would be a test that does not end.
    #[test]
    fn nobody_sleeps_over_an_entry() {
        const ENTRIES: u64 = 5000;
        let all = fixture(ENTRIES as u32, false);
        fcntl_setfl(&*all.channel, OFlags::empty()).unwrap();
        let polled = thread::scope(|scope| {
            for half in 0..2 {
                let queue = &all.queue;
                scope.spawn(move || {
                    for id in (half..ENTRIES).step_by(2) {
                        queue.push(entry(id)).unwrap();
                        if id.is_multiple_of(64) {
                            thread::yield_now();
                        }
                    }
                });
            }
            let mut ids = Vec::new();
            loop {
                all.queue.arm(Arming::Any);
                while all.queue.poll(7, |entry| ids.push(entry.completion.id)) > 0 {}
                if ids.len() as u64 == ENTRIES {
                    break ids;
                }
                all.channel.next_event().unwrap().acknowledge(1);
            }
        });
        for half in 0..2 {
            let ids = polled.iter().copied().filter(|id| id % 2 == half);
            assert!(
                ids.eq((half..ENTRIES).step_by(2)),
                "each producer's order is kept"
            );
        }
    }

    /// Who is told of an entry in another way finds the queue not empty.
    #[test]
    fn the_empty_check_sees_what_was_announced() {
        let all = fixture(4, false);
        let announced = AtomicBool::new(false);
        for _ in 0..500 {
            thread::scope(|scope| {
                scope.spawn(|| {
                    all.push(entry(1));
                    // Relaxed would do no good here: the announcement itself has to be one.
                    announced.store(true, Ordering::Release);
                });
                while !announced.load(Ordering::Acquire) {
                    std::hint::spin_loop();
                }
                assert!(!all.queue.is_empty());
                assert_eq!(all.poll(1), [1]);
            });
            announced.store(false, Ordering::Relaxed);
        }
    }
}
