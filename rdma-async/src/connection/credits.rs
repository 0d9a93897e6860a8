//! How many messages the peer can take.

use std::sync::atomic::{AtomicU32, Ordering};

use super::Connection;
use super::waiters::Waiters;

/// One control credit is kept for the message that returns credits, so that they always come back.
pub(super) const CREDIT_RESERVE: u32 = 1;

/// A count that tasks take from and wait for, without a lock while there is enough.
#[derive(Debug)]
pub(super) struct CreditCounter {
    available: AtomicU32,
    most: u32,
    waiters: Waiters,
}

impl CreditCounter {
    /// All of `most` available.
    pub(super) fn new(most: u16) -> Self {
        let most = u32::from(most);
        Self {
            available: AtomicU32::new(most),
            most,
            waiters: Waiters::default(),
        }
    }

    /// Takes one if that leaves at least `reserve`.
    pub(super) fn try_take(&self, reserve: u32) -> bool {
        let less = |available: u32| (available > reserve).then(|| available - 1);
        self.available
            .fetch_update(Ordering::AcqRel, Ordering::Relaxed, less)
            .is_ok()
    }

    /// Gives back `count`; `false`, with nothing given, if that would be more than there are.
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

    /// Those who wait for credits.
    pub(super) fn waiters(&self) -> &Waiters {
        &self.waiters
    }
}

/// Leave to send one message; given back unless it is spent.
#[derive(Debug)]
#[must_use = "a credit that is dropped is given back"]
pub(super) struct Credit<'c> {
    connection: &'c Connection,
    control: bool,
}

impl<'c> Credit<'c> {
    /// One that was taken from the data credits.
    pub(super) fn data(connection: &'c Connection) -> Self {
        let control = false;
        Self {
            connection,
            control,
        }
    }

    /// One that was taken from the control credits.
    pub(super) fn control(connection: &'c Connection) -> Self {
        let control = true;
        Self {
            connection,
            control,
        }
    }

    /// The message was posted.
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

#[cfg(test)]
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
