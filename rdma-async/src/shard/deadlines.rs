//! Deadlines of operations: a timer wheel with slots of one millisecond.
//!
//! The driver of the shard checks the wheel, and ends the connections whose deadlines have passed.

use std::sync::Weak;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use crate::connection::Connection;
use crate::error::Error;

/// Number of slots of the timer wheel, each for one millisecond, so that a round takes about one
/// second. A later deadline stays in its slot for further rounds.
const SLOTS: u64 = 1024;
/// Value of `Deadlines::next` (the time of the next check of the timer wheel) that means that there
/// is no deadline.
const NEVER: u64 = u64::MAX;

/// Timer wheel with the deadlines of operations of all connections of a shard (connections that
/// share queues). A connection ends at its deadline unless the deadline is cancelled.
#[derive(Debug)]
pub(super) struct Deadlines {
    start: Instant,
    wheel: Mutex<Wheel>,
    /// Tick of the next check of the wheel, in milliseconds since `start`. No deadline is earlier.
    next: AtomicU64,
}

/// State of the timer wheel: the entries of the deadlines, and the slots that refer to the entries.
#[derive(Debug)]
struct Wheel {
    /// Keys of the deadlines, by slot. The slot is the tick modulo the number of slots.
    slots: Box<[Vec<DeadlineKey>]>,
    entries: Vec<Entry>,
    free: Vec<u32>,
    /// First tick that has not passed, in milliseconds since the start of the wheel.
    tick: u64,
    count: usize,
}

/// Key of a deadline on a [`Deadlines`] timer wheel, by which the deadline is cancelled.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct DeadlineKey {
    index: u32,
    /// Use count of the entry, which makes the keys of earlier deadlines invalid.
    generation: u32,
}

/// Entry of one deadline on the timer wheel. When the deadline has passed or was cancelled, the
/// entry is used for another deadline.
#[derive(Debug)]
struct Entry {
    generation: u32,
    tick: u64,
    limit: Duration,
    /// Connection that ends at the deadline, or `None` while the entry is free.
    connection: Option<Weak<Connection>>,
}

impl Default for Deadlines {
    fn default() -> Self {
        Self {
            start: Instant::now(),
            wheel: Mutex::new(Wheel {
                slots: (0..SLOTS).map(|_| Vec::new()).collect(),
                entries: Vec::new(),
                free: Vec::new(),
                tick: 0,
                count: 0,
            }),
            next: AtomicU64::new(NEVER),
        }
    }
}

impl Deadlines {
    /// Converts `time` to a tick of the timer wheel: the number of milliseconds since the start of
    /// the wheel, rounded up.
    fn tick_of(&self, time: Instant) -> u64 {
        let elapsed = time.saturating_duration_since(self.start);
        u64::try_from(elapsed.as_nanos().div_ceil(1_000_000)).unwrap_or(NEVER - 1)
    }

    /// Adds a deadline: `connection` ends after `limit`, unless the deadline is cancelled. Returns
    /// the key for cancelling. Also returns `true` if the new deadline must be checked before all
    /// others. The caller must then wake the driver, the task that checks the deadlines, if the
    /// driver sleeps.
    pub(super) fn add(&self, connection: Weak<Connection>, limit: Duration) -> (DeadlineKey, bool) {
        let now = Instant::now();
        let due = now
            .checked_add(limit)
            .unwrap_or(now + Duration::from_secs(1 << 30));
        let tick = self.tick_of(due);
        let mut wheel = self.wheel.lock();
        let tick = tick.max(wheel.tick);
        let index = wheel.free.pop().unwrap_or_else(|| {
            wheel.entries.push(Entry {
                generation: 0,
                tick: 0,
                limit,
                connection: None,
            });
            (wheel.entries.len() - 1) as u32
        });
        let entry = &mut wheel.entries[index as usize];
        entry.generation = entry.generation.wrapping_add(1);
        entry.tick = tick;
        entry.limit = limit;
        entry.connection = Some(connection);
        let key = DeadlineKey {
            index,
            generation: entry.generation,
        };
        wheel.slots[(tick % SLOTS) as usize].push(key);
        wheel.count += 1;
        // The wheel is checked at least once in a round, which removes the keys of cancelled
        // deadlines.
        let check = tick.min(wheel.tick + SLOTS - 1);
        let is_next = check < self.next.load(Ordering::Relaxed);
        if is_next {
            self.next.store(check, Ordering::Relaxed);
        }
        (key, is_next)
    }

    /// Cancels the deadline with the key `key`. Does nothing if the deadline has passed or was
    /// already cancelled.
    pub(super) fn cancel(&self, key: DeadlineKey) {
        let connection = self.wheel.lock().remove(key);
        drop(connection);
    }

    /// Returns the time at which the driver must check the timer wheel next. The driver is the task
    /// that ends connections at their deadlines. Returns `None` if there is no deadline.
    pub(super) fn next(&self) -> Option<Instant> {
        match self.next.load(Ordering::Relaxed) {
            NEVER => None,
            tick => self.start.checked_add(Duration::from_millis(tick)),
        }
    }

    /// Ends the connections whose deadlines have passed at the time `now`. Does nothing before the
    /// time that [`Self::next`] returns.
    pub(super) fn expire(&self, now: Instant) {
        if self.next().is_none_or(|next| now < next) {
            return;
        }
        let elapsed = now.saturating_duration_since(self.start);
        let tick = u64::try_from(elapsed.as_millis()).unwrap_or(NEVER - 1);
        let due = self.wheel.lock().advance(tick, &self.next);
        for (connection, limit) in due {
            if let Some(connection) = connection.upgrade() {
                connection.fail(Error::deadline(limit));
            }
        }
    }
}

impl Wheel {
    /// Removes the deadline with the key `key`, and returns the connection that the deadline would
    /// end. Returns `None` if the deadline has passed or was cancelled.
    fn remove(&mut self, key: DeadlineKey) -> Option<Weak<Connection>> {
        let entry = self.entries.get_mut(key.index as usize)?;
        if entry.generation != key.generation {
            return None;
        }
        let connection = entry.connection.take()?;
        self.free.push(key.index);
        self.count -= 1;
        Some(connection)
    }

    /// Removes the deadlines that have passed at the time `to`, in milliseconds since the creation
    /// of the [`Deadlines`]. Returns the connections to end, each with its time limit. Stores the
    /// time of the next check in `next`.
    fn advance(&mut self, to: u64, next: &AtomicU64) -> Vec<(Weak<Connection>, Duration)> {
        let mut due = Vec::new();
        let last = to.min(self.tick + SLOTS - 1);
        for tick in self.tick..=last {
            let slot = (tick % SLOTS) as usize;
            let mut keys = std::mem::take(&mut self.slots[slot]);
            keys.retain(|&key| {
                let entry = &self.entries[key.index as usize];
                if entry.generation != key.generation || entry.connection.is_none() {
                    return false;
                }
                if entry.tick > to {
                    return true;
                }
                let limit = entry.limit;
                due.extend(self.remove(key).map(|connection| (connection, limit)));
                false
            });
            self.slots[slot] = keys;
        }
        self.tick = to + 1;
        let later = |tick: &u64| !self.slots[(tick % SLOTS) as usize].is_empty();
        let found = (self.tick..self.tick + SLOTS).find(later);
        let found = found.filter(|_| self.count > 0);
        next.store(found.unwrap_or(NEVER), Ordering::Relaxed);
        due
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Advances the timer wheel to the tick (millisecond) `to`. Returns the number of deadlines
    /// that have passed.
    fn advance(deadlines: &Deadlines, to: u64) -> usize {
        let mut wheel = deadlines.wheel.lock();
        wheel.advance(to, &deadlines.next).len()
    }

    #[test]
    fn a_deadline_passes_once_and_not_before_its_tick() {
        let deadlines = Deadlines::default();
        let limits = [1_u64, 5, 900, 1023, 1024, 1500, 5000];
        for limit in limits {
            deadlines.add(Weak::new(), Duration::from_millis(limit));
        }
        let due: Vec<u64> = {
            let wheel = deadlines.wheel.lock();
            wheel.entries.iter().map(|entry| entry.tick).collect()
        };
        let mut seen = 0;
        let mut to = 0;
        while seen < limits.len() {
            seen += advance(&deadlines, to);
            let expected = due.iter().filter(|&&tick| tick <= to).count();
            assert_eq!(seen, expected, "at tick {to}");
            to += 7;
        }
        assert_eq!(deadlines.next(), None);
    }

    #[test]
    fn a_cancelled_deadline_never_passes_and_its_entry_is_reused() {
        let deadlines = Deadlines::default();
        for _ in 0..1000 {
            let (key, _) = deadlines.add(Weak::new(), Duration::from_millis(10));
            deadlines.cancel(key);
            deadlines.cancel(key);
        }
        assert_eq!(deadlines.wheel.lock().entries.len(), 1);
        assert_eq!(advance(&deadlines, 1000), 0);
        let keys: usize = deadlines.wheel.lock().slots.iter().map(Vec::len).sum();
        assert_eq!(keys, 0);
        let (kept, _) = deadlines.add(Weak::new(), Duration::from_secs(3600));
        assert_eq!(advance(&deadlines, 5000), 0);
        deadlines.cancel(kept);
        assert_eq!(deadlines.wheel.lock().count, 0);
    }

    #[test]
    fn the_wheel_is_checked_within_a_round_even_for_a_late_deadline() {
        let deadlines = Deadlines::default();
        let (key, _) = deadlines.add(Weak::new(), Duration::from_secs(3600));
        deadlines.cancel(key);
        let round = Duration::from_millis(SLOTS);
        assert!(deadlines.next().unwrap() <= Instant::now() + round);
    }

    #[test]
    fn the_wheel_is_checked_no_later_than_the_next_deadline() {
        let deadlines = Deadlines::default();
        let (_, first) = deadlines.add(Weak::new(), Duration::from_secs(60));
        let (_, second) = deadlines.add(Weak::new(), Duration::from_millis(50));
        let (_, third) = deadlines.add(Weak::new(), Duration::from_secs(30));
        assert!(first && second && !third);
        assert!(deadlines.next().unwrap() <= Instant::now() + Duration::from_millis(51));
        assert_eq!(advance(&deadlines, 100), 1);
        assert!(deadlines.next().is_some());
    }
}
