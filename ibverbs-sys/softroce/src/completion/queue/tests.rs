use std::sync::atomic::AtomicBool;
use std::thread;
use std::time::Duration;

use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};

use super::*;
use crate::proto::{Completion, CompletionOpcode, CompletionStatus};

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
        completion: Completion::new(id, CompletionStatus::Success, CompletionOpcode::Receive),
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
    entry.completion.opcode = CompletionOpcode::Send;
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

    /// Fetches and acknowledges all completion events of the channel. Returns their number.
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
fn entries_are_polled_in_order_up_to_the_requested_number() {
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
fn each_arming_raises_one_event_at_the_next_entry() {
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
fn solicited_only_arming_reports_solicited_and_failed_completions() {
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
    sent.completion.opcode = CompletionOpcode::Send;
    all.queue.arm(Arming::Solicited);
    all.push(sent);
    assert_eq!(all.events(), 0, "only the receiver of a message is told");
}

#[test]
fn arming_for_solicited_completions_does_not_weaken_an_earlier_arming() {
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
fn an_overrun_raises_an_event_and_fails_the_queue() {
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
fn an_ignored_overrun_overwrites_the_oldest_entries() {
    let all = fixture(2, true);
    for id in 0..5 {
        all.push(entry(id));
    }
    assert!(!all.queue.has_overrun());
    assert_eq!(all.poll(8), [3, 4]);
    assert!(all.context.next_event().is_err());
}

#[test]
fn capacities_are_checked_and_resizing_keeps_the_entries() {
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
fn entries_of_one_call_are_added_up_to_the_capacity() {
    let all = fixture(100, false);
    assert_eq!(all.queue.push_all((0..40).map(entry)), Ok(()));
    assert_eq!(all.poll(30), Vec::from_iter(0..30));
    assert_eq!(all.queue.push_all((40..200).map(entry)), Err(Overrun));
    assert_eq!(all.poll(usize::MAX), Vec::from_iter(30..130));
    assert_eq!(all.queue.push_all((0..2).map(entry)), Err(Overrun));
    assert_eq!(
        all.context.next_event().unwrap().kind,
        ibv_event_type::IBV_EVENT_CQ_ERR
    );
    all.queue.element().acknowledge(1);
    let all = fixture(10, true);
    assert_eq!(all.queue.push_all((0..95).map(entry)), Ok(()));
    assert_eq!(all.poll(usize::MAX), Vec::from_iter(85..95));
}

#[test]
fn entries_of_one_call_raise_one_event() {
    let all = fixture(100, false);
    all.queue.arm(Arming::Any);
    all.queue.push_all((0..40).map(entry)).unwrap();
    assert_eq!(all.events(), 1);
    all.queue.arm(Arming::Solicited);
    all.queue.push_all((0..20).map(entry)).unwrap();
    assert_eq!(all.events(), 0);
    all.queue
        .push_all((0..3).map(entry).chain([solicited(3), solicited(4)]))
        .unwrap();
    assert_eq!(all.events(), 1);
}

/// Checks that an armed queue raises its event for the first later entry after a resize, and none
/// for earlier entries.
#[test]
fn an_armed_queue_stays_armed_after_a_resize() {
    let all = fixture(300, false);
    all.queue.push_all((0..256).map(entry)).unwrap();
    all.queue.arm(Arming::Any);
    all.queue.discard(7);
    assert_eq!(all.queue.resize(260), Ok(260));
    assert_eq!(all.events(), 0);
    all.push(entry(256));
    assert_eq!(all.events(), 1);
    assert_eq!(all.poll(usize::MAX).len(), 257);
    all.queue.arm(Arming::Any);
    assert_eq!(all.queue.resize(3), Ok(3));
    all.push(entry(0));
    assert_eq!(all.events(), 1);
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

/// Creates an armed queue with moderation: its event is raised after three entries, or 10 µs after
/// the first of them.
fn moderated() -> Fixture {
    let all = fixture(16, false);
    let period = Duration::from_micros(10);
    all.queue.moderate(Moderation { count: 3, period });
    all.queue.arm(Arming::Any);
    all
}

#[test]
fn moderation_counts_completions() {
    let all = moderated();
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
    let all = moderated();
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
fn a_changed_moderation_reports_delayed_completions() {
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
fn a_queue_in_use_is_not_closed_and_a_closed_queue_raises_no_event() {
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

/// Checks that a thread that arms, polls and then sleeps until an event misses no entry, and finds
/// each entry once. The channel blocks, so after a lost event the test would not end.
#[test]
fn no_thread_sleeps_while_an_entry_is_present() {
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

/// Checks that the queue is never empty for a thread to which another thread has reported an entry.
#[test]
fn the_empty_check_sees_added_entries() {
    let all = fixture(4, false);
    let announced = AtomicBool::new(false);
    for _ in 0..500 {
        thread::scope(|scope| {
            scope.spawn(|| {
                all.push(entry(1));
                // The flag must be set with `Release`, or setting it would order nothing.
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
