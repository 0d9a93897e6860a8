//! Futures that wait for operations.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use tokio::task::coop::poll_proceed;

use super::Connection;
use super::results::Place;
use crate::error::Result;

/// An accepted operation. Resolves to what an atomic found, and to 0 for any other.
///
/// Dropping it leaves the operation in flight; its memory stays claimed until it completes.
#[derive(Debug)]
#[must_use = "futures do nothing unless awaited"]
pub(crate) struct Operation<'c> {
    connection: &'c Connection,
    number: u64,
    place: Option<Place>,
    /// Set once the outcome was taken.
    is_over: bool,
}

impl<'c> Operation<'c> {
    #[inline]
    pub(super) fn new(connection: &'c Connection, number: u64, place: Option<Place>) -> Self {
        Self {
            connection,
            number,
            place,
            is_over: false,
        }
    }

    /// Takes the outcome, if it is there.
    #[inline]
    fn take(&mut self) -> Option<Result<u64>> {
        let sender = &self.connection.sender;
        if !sender.has_ended(self.number) {
            return None;
        }
        let outcome = if sender.has_succeeded(self.number) {
            Ok(self.place.map_or(0, |place| sender.value(place)))
        } else {
            Err(self.connection.cause(self.number))
        };
        self.is_over = true;
        if let Some(place) = self.place.take() {
            sender.release_place(place);
        }
        Some(outcome)
    }

    /// Has the task woken when the operation has ended.
    #[inline(never)]
    fn wait(&mut self, cx: &Context<'_>) -> Poll<Result<u64>> {
        let connection = self.connection;
        // Where no other operation of the connection is awaited, this one is polled for a short time.
        let is_alone = connection.sender.lock().is_attended_once();
        if is_alone && let Some(outcome) = connection.linger_with_all_posted(|| self.take()) {
            return Poll::Ready(outcome);
        }
        let replaced = connection.sender.lock().register(self.number, cx.waker());
        // Outside of the lock, as in `drop`.
        drop(replaced);
        // It may have ended before the waker was there.
        if let Some(outcome) = self.take() {
            return Poll::Ready(outcome);
        }
        if connection.sender.is_forsaken() {
            return Poll::Ready(Err(connection.ended().of_posted()));
        }
        connection.shard.attend();
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
        // Many devices are done at once: a task that only does such operations lets others run too.
        let turn = match self.connection.counts() {
            true => Some(ready!(poll_proceed(cx))),
            false => None,
        };
        if !self.connection.sender.has_ended(self.number) {
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
        let sender = &self.connection.sender;
        let waker = sender.lock().detach(self.number);
        // Outside of the lock: what a waker does when it is dropped is the program's.
        drop(waker);
        if let Some(place) = self.place.take() {
            sender.release_place(place);
        }
    }
}
