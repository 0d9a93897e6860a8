//! Deadlines of waiting futures: a timer wheel with slots of one millisecond.
//!
//! The driver task of the shard checks the wheel, and ends the connections whose deadlines have
//! passed.

use std::sync::Weak;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use crate::connection::Connection;
use crate::error::Error;

/// Number of slots. The wheel passes the slot of a deadline beyond 1024 ms more than once.
const SLOTS: u64 = 1024;
/// Tick that means "no deadline".
const NEVER: u64 = u64::MAX;

/// Timer wheel of connections that end at a deadline unless it is cancelled before.
#[derive(Debug)]
pub(super) struct Deadlines {
    begun: Instant,
    wheel: Mutex<Wheel>,
    /// Lower bound of all deadlines, as a tick in milliseconds since `begun`.
    next: AtomicU64,
}

#[derive(Debug)]
struct Wheel {
    /// Deadlines by slot, which is the tick modulo the number of slots.
    slots: Box<[Vec<DeadlineKey>]>,
    entries: Vec<Entry>,
    free: Vec<u32>,
    /// First tick that has not passed.
    tick: u64,
    count: usize,
}

/// Handle of a deadline on the wheel, with which it is cancelled.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct DeadlineKey {
    index: u32,
    /// Number that distinguishes successive uses of the entry.
    generation: u32,
}

#[derive(Debug)]
struct Entry {
    generation: u32,
    tick: u64,
    limit: Duration,
    /// `None` while the entry is free.
    connection: Option<Weak<Connection>>,
}

impl Default for Deadlines {
    fn default() -> Self {
        Self {
            begun: Instant::now(),
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
    /// Returns the tick of `time`, rounded up to a millisecond.
    fn tick_of(&self, time: Instant) -> u64 {
        let elapsed = time.saturating_duration_since(self.begun);
        u64::try_from(elapsed.as_nanos().div_ceil(1_000_000)).unwrap_or(NEVER - 1)
    }

    /// Adds a deadline that ends the connection after `limit`. Returns its handle, and whether it
    /// is the earliest deadline on the wheel.
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
        let place = DeadlineKey {
            index,
            generation: entry.generation,
        };
        wheel.slots[(tick % SLOTS) as usize].push(place);
        wheel.count += 1;
        // The wheel is checked at least once a round, which removes the places of cancelled
        // deadlines.
        let check = tick.min(wheel.tick + SLOTS - 1);
        let is_next = check < self.next.load(Ordering::Relaxed);
        if is_next {
            self.next.store(check, Ordering::Relaxed);
        }
        (place, is_next)
    }

    /// Cancels a deadline; does nothing if it has passed or was cancelled.
    pub(super) fn cancel(&self, place: DeadlineKey) {
        let connection = self.wheel.lock().take(place);
        drop(connection);
    }

    /// Returns the time of the next check of the wheel, or `None` if it is empty.
    pub(super) fn next(&self) -> Option<Instant> {
        match self.next.load(Ordering::Relaxed) {
            NEVER => None,
            tick => self.begun.checked_add(Duration::from_millis(tick)),
        }
    }

    /// Ends the connections whose deadlines have passed.
    pub(super) fn pass(&self, now: Instant) {
        if self.next().is_none_or(|next| now < next) {
            return;
        }
        let elapsed = now.saturating_duration_since(self.begun);
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
    fn take(&mut self, place: DeadlineKey) -> Option<Weak<Connection>> {
        let entry = self.entries.get_mut(place.index as usize)?;
        if entry.generation != place.generation {
            return None;
        }
        let connection = entry.connection.take()?;
        self.free.push(place.index);
        self.count -= 1;
        Some(connection)
    }

    /// Removes and returns the deadlines up to the tick `to`, and stores the tick of the next
    /// check.
    fn advance(&mut self, to: u64, next: &AtomicU64) -> Vec<(Weak<Connection>, Duration)> {
        let mut due = Vec::new();
        let last = to.min(self.tick + SLOTS - 1);
        for tick in self.tick..=last {
            let slot = (tick % SLOTS) as usize;
            let mut places = std::mem::take(&mut self.slots[slot]);
            places.retain(|&place| {
                let entry = &self.entries[place.index as usize];
                if entry.generation != place.generation || entry.connection.is_none() {
                    return false;
                }
                if entry.tick > to {
                    return true;
                }
                let limit = entry.limit;
                due.extend(self.take(place).map(|connection| (connection, limit)));
                false
            });
            self.slots[slot] = places;
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

    /// Passes all ticks up to `to` and returns the number of deadlines that were due.
    fn advance(deadlines: &Deadlines, to: u64) -> usize {
        let mut wheel = deadlines.wheel.lock();
        wheel.advance(to, &deadlines.next).len()
    }

    #[test]
    fn a_deadline_is_due_once_and_not_before_its_tick() {
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
    fn a_cancelled_deadline_is_never_due_and_its_entry_is_used_again() {
        let deadlines = Deadlines::default();
        for _ in 0..1000 {
            let (place, _) = deadlines.add(Weak::new(), Duration::from_millis(10));
            deadlines.cancel(place);
            deadlines.cancel(place);
        }
        assert_eq!(deadlines.wheel.lock().entries.len(), 1);
        assert_eq!(advance(&deadlines, 1000), 0);
        let places: usize = deadlines.wheel.lock().slots.iter().map(Vec::len).sum();
        assert_eq!(places, 0);
        let (kept, _) = deadlines.add(Weak::new(), Duration::from_secs(3600));
        assert_eq!(advance(&deadlines, 5000), 0);
        deadlines.cancel(kept);
        assert_eq!(deadlines.wheel.lock().count, 0);
    }

    #[test]
    fn the_wheel_is_checked_within_a_round_however_late_the_deadline_is() {
        let deadlines = Deadlines::default();
        let (place, _) = deadlines.add(Weak::new(), Duration::from_secs(3600));
        deadlines.cancel(place);
        let round = Duration::from_millis(SLOTS);
        assert!(deadlines.next().unwrap() <= Instant::now() + round);
    }

    #[test]
    fn the_wheel_is_looked_at_again_no_later_than_the_next_deadline() {
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
