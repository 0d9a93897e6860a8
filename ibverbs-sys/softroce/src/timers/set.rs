#![forbid(unsafe_code)]

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;

use super::Sleeper;
use super::clock::Clock;
use crate::proto::Time;

/// Clock of the NIC, and the set of its timers. When a timer expires, the engine (background
/// thread) calls the owner of the timer: a queue pair, the network or the NIC.
#[derive(Debug)]
pub(crate) struct Timers {
    clock: Clock,
    /// Scheduled times, each with the key of the queue pair (or other user) that must be called
    /// then. Each key has at most one time.
    set: Mutex<BTreeSet<(Time, u32)>>,
    /// Earliest time in the set in nanoseconds, or `u64::MAX` if the set is empty.
    earliest: AtomicU64,
    sleeper: Sleeper,
}

/// State of one timer: the time at which the engine (background thread) will call the owner of the
/// timer. The owner, for example a queue pair, stores this value. The time can be earlier than the
/// owner's present deadline, but is never later.
#[derive(Debug)]
pub(crate) struct Alarm(AtomicU64);

/// Value of [`Alarm`] if the timer is not set. The clock does not reach this time for more than 500
/// years.
const NEVER: u64 = u64::MAX;

impl Alarm {
    pub(crate) const fn new() -> Self {
        Self(AtomicU64::new(NEVER))
    }

    /// Returns whether the timer is set: its owner (a queue pair, for example) will be called at
    /// the time of the timer.
    #[inline]
    pub(crate) fn is_set(&self) -> bool {
        self.0.load(Ordering::SeqCst) != NEVER
    }
}

impl Timers {
    pub(crate) fn new(sleeper: Sleeper) -> Self {
        Self {
            clock: Clock::new(),
            set: Mutex::new(BTreeSet::new()),
            earliest: AtomicU64::new(NEVER),
            sleeper,
        }
    }

    /// Returns the [`Sleeper`], with which other threads wake the engine (background thread).
    pub(crate) fn sleeper(&self) -> &Sleeper {
        &self.sleeper
    }

    /// Returns the present time of the NIC's clock.
    pub(crate) fn now(&self) -> Time {
        self.clock.now()
    }

    /// Returns the approximate present time, faster than [`now`](Self::now). The result is usually
    /// some milliseconds later than the present time, because the maximum lag of the clock is
    /// added. Used for deadlines that need not be exact.
    pub(crate) fn coarse_now(&self) -> Time {
        self.clock.coarse()
    }

    /// Returns the time of the earliest scheduled timer, or `None` if no timer is scheduled.
    pub(crate) fn earliest(&self) -> Option<Time> {
        let earliest = self.earliest.load(Ordering::SeqCst);
        (earliest != NEVER).then(|| Time::from_nanos(earliest))
    }

    /// Sets the timer `alarm` for `deadline`. `key` identifies the owner of the timer, for example
    /// a queue pair. The engine calls the owner at the time `deadline`. If the timer is already set
    /// for an earlier time, the timer stays set for this time. The owner is then called early, and
    /// must set the timer again. So a deadline that is extended with every packet costs one
    /// comparison.
    ///
    /// The caller must first make the state that determines the deadline visible to other threads,
    /// for example by releasing a lock. So a deadline is not missed if the timer expires during
    /// this call: either this call sets the timer again, or the thread that has
    /// [cleared](Self::clear) the timer sees the new state.
    pub(crate) fn schedule(&self, key: u32, alarm: &Alarm, deadline: Time) {
        let deadline_nanos = deadline.as_nanos().min(NEVER - 1);
        if alarm.0.load(Ordering::SeqCst) <= deadline_nanos {
            return;
        }
        let mut set = self.set.lock();
        let noted = alarm.0.load(Ordering::SeqCst);
        if noted <= deadline_nanos {
            return;
        }
        if noted != NEVER {
            set.remove(&(Time::from_nanos(noted), key));
        }
        set.insert((Time::from_nanos(deadline_nanos), key));
        alarm.0.store(deadline_nanos, Ordering::SeqCst);
        let sooner = self.publish(&set);
        drop(set);
        if sooner {
            self.sleeper.wake_before(deadline);
        }
    }

    /// Cancels a timer, because its owner (a queue pair, for example) is being destroyed. `alarm`
    /// is the state of the timer, and `key` identifies its owner.
    pub(crate) fn cancel(&self, key: u32, alarm: &Alarm) {
        if alarm.0.load(Ordering::SeqCst) == NEVER {
            return;
        }
        let mut set = self.set.lock();
        let noted = alarm.0.swap(NEVER, Ordering::SeqCst);
        set.remove(&(Time::from_nanos(noted), key));
        self.publish(&set);
    }

    /// Moves the timers that are due at `now` to `out`, as the keys of their owners and their
    /// times. Moves only timers that fit into the present capacity of `out`. Before an owner
    /// determines its next deadline, the caller must clear the owner's [`Alarm`] with
    /// [`Timers::clear`].
    pub(crate) fn take_due(&self, now: Time, out: &mut Vec<(u32, Time)>) {
        if self.earliest.load(Ordering::SeqCst) > now.as_nanos() {
            return;
        }
        let mut set = self.set.lock();
        while out.len() < out.capacity()
            && set.first().is_some_and(|&(time, _)| time <= now)
            && let Some((time, key)) = set.pop_first()
        {
            out.push((key, time));
        }
        self.publish(&set);
    }

    /// Marks the timer `alarm` as not set. `time` is the time for which the timer was set. If the
    /// timer is now set for another time, the timer stays set. Called before the owner of the
    /// expired timer is called.
    pub(crate) fn clear(alarm: &Alarm, time: Time) {
        // A new user with the same key may be scheduled for another time already. Then its alarm
        // stays.
        let _ =
            alarm
                .0
                .compare_exchange(time.as_nanos(), NEVER, Ordering::SeqCst, Ordering::SeqCst);
    }

    /// Stores the time of the earliest timer in `set`, so that threads can read the time without a
    /// lock. Returns `true` if the new time is earlier than the previously stored time. The caller
    /// must then wake the engine (background thread) if the engine would sleep too long. The caller
    /// must hold the lock of `set`.
    fn publish(&self, set: &BTreeSet<(Time, u32)>) -> bool {
        let first = set.first().map_or(NEVER, |(time, _)| time.as_nanos());
        self.earliest.swap(first, Ordering::SeqCst) > first
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn timers() -> Timers {
        Timers::new(Sleeper::new().unwrap())
    }

    fn at(nanos: u64) -> Time {
        Time::from_nanos(nanos)
    }

    fn due(timers: &Timers, now: u64) -> Vec<(u32, Time)> {
        let mut due = Vec::with_capacity(4);
        timers.take_due(at(now), &mut due);
        due
    }

    #[test]
    fn due_timers_are_returned_once_and_in_order() {
        let (timers, alarms) = (timers(), [const { Alarm::new() }; 3]);
        for (key, deadline) in [(0, 300), (1, 100), (2, 200)] {
            timers.schedule(key, &alarms[key as usize], at(deadline));
        }
        assert_eq!(timers.earliest(), Some(at(100)));
        assert_eq!(due(&timers, 99), []);
        assert_eq!(due(&timers, 250), [(1, at(100)), (2, at(200))]);
        assert_eq!(timers.earliest(), Some(at(300)));
        assert_eq!(due(&timers, 250), []);
        assert_eq!(due(&timers, 300), [(0, at(300))]);
        assert_eq!(timers.earliest(), None);
    }

    #[test]
    fn an_earlier_deadline_replaces_the_entry_and_a_later_deadline_does_not() {
        let (timers, alarm) = (timers(), Alarm::new());
        timers.schedule(7, &alarm, at(200));
        timers.schedule(7, &alarm, at(300));
        assert_eq!(timers.earliest(), Some(at(200)));
        timers.schedule(7, &alarm, at(100));
        assert_eq!(due(&timers, 1000), [(7, at(100))]);
        Timers::clear(&alarm, at(100));
        timers.schedule(7, &alarm, at(300));
        assert_eq!(due(&timers, 1000), [(7, at(300))]);
    }

    #[test]
    fn each_timer_has_at_most_one_entry() {
        let (timers, alarm) = (timers(), Alarm::new());
        for deadline in (1..1000).rev() {
            timers.schedule(7, &alarm, at(deadline));
        }
        assert_eq!(timers.set.lock().len(), 1);
        timers.cancel(7, &alarm);
        assert_eq!((timers.earliest(), timers.set.lock().len()), (None, 0));
        timers.cancel(7, &alarm);
    }

    #[test]
    fn timers_beyond_the_limit_are_returned_by_the_next_call() {
        let (timers, alarms) = (timers(), [const { Alarm::new() }; 6]);
        for (key, alarm) in alarms.iter().enumerate() {
            timers.schedule(key as u32, alarm, at(10 + key as u64));
        }
        assert_eq!(due(&timers, 100).len(), 4);
        assert_eq!(due(&timers, 100), [(4, at(14)), (5, at(15))]);
    }

    #[test]
    fn a_late_removal_does_not_affect_the_next_timer_of_the_same_key() {
        let (timers, old, new) = (timers(), Alarm::new(), Alarm::new());
        timers.schedule(7, &old, at(100));
        let taken = due(&timers, 100);
        timers.schedule(7, &new, at(200));
        Timers::clear(&new, taken[0].1);
        timers.schedule(7, &new, at(250));
        assert_eq!(timers.earliest(), Some(at(200)));
    }
}
