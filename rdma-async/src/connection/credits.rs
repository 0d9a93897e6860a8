//! Credits: permissions to send one message each, which bound the messages in flight.
//!
//! The peer returns a credit, in the header of its own messages, when it can accept another
//! message.

use std::sync::atomic::Ordering;

use super::Connection;
use super::sync::AtomicU32;
use super::waiters::Waiters;

/// Number of control credits reserved for messages that return credits, so that the ends never wait
/// for each other.
pub(super) const CREDIT_RESERVE: u32 = 1;

/// Number of available credits of one class, which tasks take without a lock and can wait for.
#[derive(Debug)]
pub(super) struct CreditCounter {
    available: AtomicU32,
    most: u32,
    waiters: Waiters,
}

impl CreditCounter {
    /// Creates a counter with `most` credits, all available.
    pub(super) fn new(most: u16) -> Self {
        let most = u32::from(most);
        Self {
            available: AtomicU32::new(most),
            most,
            waiters: Waiters::default(),
        }
    }

    /// Takes a credit if at least `reserve` remain. Returns whether a credit was taken.
    pub(super) fn try_take(&self, reserve: u32) -> bool {
        let less = |available: u32| (available > reserve).then(|| available - 1);
        self.available
            .fetch_update(Ordering::AcqRel, Ordering::Relaxed, less)
            .is_ok()
    }

    /// Returns `count` credits to the counter. Returns `false`, without a change, if more would be
    /// available than exist.
    #[must_use = "a peer that returns more than it has is wrong"]
    pub(super) fn give(&self, count: u16) -> bool {
        if count == 0 {
            return true;
        }
        let more = |available: u32| {
            available
                .checked_add(u32::from(count))
                .filter(|&sum| sum <= self.most)
        };
        let fits = self
            .available
            .fetch_update(Ordering::AcqRel, Ordering::Relaxed, more)
            .is_ok();
        self.waiters.wake();
        fits
    }

    /// Returns the tasks that wait for credits.
    pub(super) fn waiters(&self) -> &Waiters {
        &self.waiters
    }
}

/// Permission to send one message. Dropping it returns it to the counter, unless it was spent.
#[derive(Debug)]
#[must_use = "a credit that is dropped is given back"]
pub(super) struct Credit<'c> {
    connection: &'c Connection,
    control: bool,
}

impl<'c> Credit<'c> {
    /// Wraps a credit that was taken from the data credits.
    pub(super) fn data(connection: &'c Connection) -> Self {
        let control = false;
        Self {
            connection,
            control,
        }
    }

    /// Wraps a credit that was taken from the control credits.
    pub(super) fn control(connection: &'c Connection) -> Self {
        let control = true;
        Self {
            connection,
            control,
        }
    }

    /// Spends the credit, after its message was accepted.
    pub(super) fn spend(self) {
        std::mem::forget(self);
    }
}

impl Drop for Credit<'_> {
    fn drop(&mut self) {
        let Self {
            connection,
            control,
        } = *self;
        let fits = if control {
            connection.control_credits.give(1)
        } else {
            connection.data_credits.give(1)
        };
        debug_assert!(fits, "a credit that was taken can be given back");
        if control {
            connection.flush_outbox();
        }
    }
}

#[cfg(all(test, not(loom_models)))]
mod tests {
    use super::*;

    #[test]
    fn the_reserve_is_kept_and_the_limit_too() {
        let credits = CreditCounter::new(3);
        assert!(credits.try_take(1) && credits.try_take(1));
        assert!(!credits.try_take(1));
        assert!(credits.try_take(0));
        assert!(!credits.try_take(0));
        assert!(credits.give(3));
        assert!(
            !credits.give(1),
            "a peer cannot give more than there are receives"
        );
    }
}
