//! [`Operation`]: the future of an accepted request.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use tokio::task::coop::poll_proceed;

use super::Connection;
use super::results::ResultSlot;
use crate::error::Result;

/// Future of an operation that the send queue has accepted. Resolves when the operation has
/// completed: to the result of an atomic operation, and to 0 for other operations.
///
/// Dropping the future leaves the operation in flight: its memory stays claimed until the operation
/// has completed.
#[derive(Debug)]
#[must_use = "futures do nothing unless awaited"]
pub(crate) struct Operation<'c> {
    connection: &'c Connection,
    number: u64,
    slot: Option<ResultSlot>,
    /// Set once the future has registered a waker. From then on, the driver polls for the
    /// completion.
    is_waiting: bool,
    /// Set once the future has returned the result.
    is_over: bool,
}

impl<'c> Operation<'c> {
    #[inline]
    pub(super) fn new(connection: &'c Connection, number: u64, slot: Option<ResultSlot>) -> Self {
        Self {
            connection,
            number,
            slot,
            is_waiting: false,
            is_over: false,
        }
    }

    /// Returns the result of the operation if the operation has ended, and frees its result slot.
    /// The value is the result of an atomic operation, and 0 for other operations. Returns `None`
    /// if the operation has not ended.
    #[inline]
    fn take(&mut self) -> Option<Result<u64>> {
        let sender = &self.connection.sender;
        if !sender.has_ended(self.number) {
            return None;
        }
        let outcome = if sender.has_succeeded(self.number) {
            Ok(self.slot.map_or(0, |slot| sender.value(slot)))
        } else {
            Err(self.connection.operation_error(self.number))
        };
        self.is_over = true;
        if let Some(slot) = self.slot.take() {
            sender.release_result(slot);
        }
        Some(outcome)
    }

    /// Returns the result of the operation, or registers the task of `cx`, which is then woken when
    /// the operation ends. Before registering, polls the completion queue for a short time if this
    /// delays no other task. Fails if completions are no longer polled because the connection has
    /// failed. The value is the result of an atomic operation, and 0 for other operations.
    #[inline(never)]
    fn wait(&mut self, cx: &Context<'_>) -> Poll<Result<u64>> {
        let connection = self.connection;
        let sender = &connection.sender;
        let may_poll = !self.is_waiting && connection.shard.may_poll_briefly();
        self.is_waiting = true;
        // If no other future waits for a request, this poll delays no other task of the connection.
        let registered = match may_poll {
            true => sender.register_unless_alone(self.number, cx.waker()),
            false => Some(sender.register(self.number, cx.waker())),
        };
        let must_not_wait = match registered {
            Some(must_not_wait) => must_not_wait,
            None => match connection.post_and_poll_briefly(|| self.take()) {
                Some(outcome) => return Poll::Ready(outcome),
                None => sender.register(self.number, cx.waker()),
            },
        };
        if must_not_wait {
            let ended = || Err(connection.end_reason().of_posted());
            return Poll::Ready(self.take().unwrap_or_else(ended));
        }
        connection.shard.wake_driver();
        Poll::Pending
    }
}

impl Future for Operation<'_> {
    type Output = Result<u64>;

    #[inline]
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        assert!(
            !self.is_over,
            "an operation was polled after it had completed"
        );
        // Operations often complete at the first poll. Tokio's budget then still lets other tasks
        // run.
        let turn = match self.connection.count_poll() {
            true => Some(ready!(poll_proceed(cx))),
            false => None,
        };
        let sender = &self.connection.sender;
        if !self.is_waiting && !sender.has_ended(self.number) && !sender.is_staged(self.number) {
            self.connection.shard.poll();
        }
        let polled = match self.take() {
            Some(outcome) => Poll::Ready(outcome),
            None => self.wait(cx),
        };
        if let (Poll::Ready(_), Some(turn)) = (&polled, turn) {
            turn.made_progress();
        }
        polled
    }
}

impl Drop for Operation<'_> {
    fn drop(&mut self) {
        if self.is_over {
            return;
        }
        let slot = self.slot.take();
        self.connection.sender.detach(self.number, slot);
    }
}
