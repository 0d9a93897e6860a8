//! Credits: permissions to send one message each, which the receiver gives to the sender. Credits
//! bound the number of messages in flight.
//!
//! The receiver returns a credit, in the header of a message of its own, when it can accept another
//! message.

use std::sync::atomic::Ordering;

use super::Connection;
use super::sync::AtomicU32;
use super::waiters::Waiters;

/// Number of control credits (permissions to send one control message each) that are reserved for
/// messages that return credits. Without this reserve, both ends could wait for credits of each
/// other forever.
pub(super) const CREDIT_RESERVE: u32 = 1;

/// Counter of the available credits for one class of messages, data or control. A credit is a
/// permission to send one message, which the peer has given to this end. Tasks take credits without
/// a lock, and can wait for credits.
#[derive(Debug)]
pub(super) struct CreditCounter {
    available: AtomicU32,
    limit: u32,
    waiters: Waiters,
}

impl CreditCounter {
    /// Creates a counter with `limit` available credits (permissions to send one message each).
    /// `limit` is the number of messages that the peer accepts before it returns credits.
    pub(super) fn new(limit: u16) -> Self {
        let limit = u32::from(limit);
        Self {
            available: AtomicU32::new(limit),
            limit,
            waiters: Waiters::default(),
        }
    }

    /// Takes a credit, the permission to send one message, if at least `reserve` credits remain
    /// afterwards. The reserve is kept for messages that return credits to the peer. Returns
    /// `false` if no credit was taken.
    pub(super) fn try_take(&self, reserve: u32) -> bool {
        let less = |available: u32| (available > reserve).then(|| available - 1);
        self.available
            .fetch_update(Ordering::AcqRel, Ordering::Relaxed, less)
            .is_ok()
    }

    /// Adds `count` credits (permissions to send one message each), and wakes the waiting tasks.
    /// The peer has returned these credits, or this end has not used them. Returns `false`, and
    /// adds nothing, if the number of available credits would exceed the limit.
    #[must_use = "a peer that returns too many credits violates the protocol"]
    pub(super) fn add(&self, count: u16) -> bool {
        if count == 0 {
            return true;
        }
        let more = |available: u32| {
            available
                .checked_add(u32::from(count))
                .filter(|&sum| sum <= self.limit)
        };
        let fits = self
            .available
            .fetch_update(Ordering::AcqRel, Ordering::Relaxed, more)
            .is_ok();
        self.waiters.wake();
        fits
    }

    /// Returns the list of the tasks that wait for credits of this counter, so that the caller can
    /// wake them or wait. A credit is the permission to send one message.
    pub(super) fn waiters(&self) -> &Waiters {
        &self.waiters
    }
}

/// Credit that this end has taken from a counter: a permission to send one message, which the peer
/// has given to this end. Dropping the value returns the credit to the counter, unless
/// [`Self::spend`] was called.
#[derive(Debug)]
#[must_use = "a dropped credit returns to the counter"]
pub(super) struct Credit<'c> {
    connection: &'c Connection,
    control: bool,
}

impl<'c> Credit<'c> {
    /// Creates a guard for one credit (permission to send) of the data messages. The caller must
    /// have taken this credit from the connection's counter. Dropping the guard returns the credit
    /// to the counter, unless [`Self::spend`] was called.
    pub(super) fn data(connection: &'c Connection) -> Self {
        let control = false;
        Self {
            connection,
            control,
        }
    }

    /// Creates a guard for one credit (permission to send) of the control messages. The caller must
    /// have taken this credit from the connection's counter. Dropping the guard returns the credit
    /// to the counter, unless [`Self::spend`] was called.
    pub(super) fn control(connection: &'c Connection) -> Self {
        let control = true;
        Self {
            connection,
            control,
        }
    }

    /// Consumes the credit (permission to send one message) without returning it to the counter.
    /// Called after the send queue has accepted the message.
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
            connection.control_credits.add(1)
        } else {
            connection.data_credits.add(1)
        };
        if !fits {
            // The peer has returned this credit although no message has used the credit.
            connection.fail_for_violation("more credits than were in use");
        }
        if control {
            connection.flush_outbox();
        }
    }
}

#[cfg(all(test, not(loom_models)))]
mod tests {
    use super::*;

    #[test]
    fn neither_the_reserve_nor_the_limit_is_exceeded() {
        let credits = CreditCounter::new(3);
        assert!(credits.try_take(1) && credits.try_take(1));
        assert!(!credits.try_take(1));
        assert!(credits.try_take(0));
        assert!(!credits.try_take(0));
        assert!(credits.add(3));
        assert!(
            !credits.add(1),
            "a peer cannot return more credits than were taken"
        );
    }
}
