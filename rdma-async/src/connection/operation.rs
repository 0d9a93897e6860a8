//! Operations in flight, and the futures that wait for them.

use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::task::{Context, Poll, ready};

use futures_util::task::AtomicWaker;
use parking_lot::Mutex;
use rdma_core::WorkError;
use tokio::task::coop::poll_proceed;

use super::Connection;
use crate::error::{Error, Result};

/// No operation has been posted in the slot, or its outcome was dropped.
const IDLE: u8 = 0;
/// An operation is in flight, and a future waits for it.
const PENDING: u8 = 1;
/// An operation is in flight, and no future waits for it.
const UNATTENDED: u8 = 2;
/// The operation succeeded; its future has not taken the outcome yet.
const SUCCEEDED: u8 = 3;
/// The operation failed; its future has not taken the outcome yet.
const FAILED: u8 = 4;

/// What became of the operation in one slot of the send queue; its index is the slot's.
#[derive(Debug)]
pub(super) struct OperationSlot {
    state: AtomicU8,
    /// What an atomic found.
    value: AtomicU64,
    failure: Mutex<Option<WorkError>>,
    waker: AtomicWaker,
}

impl OperationSlot {
    pub(super) fn new() -> Self {
        Self {
            state: AtomicU8::new(IDLE),
            value: AtomicU64::new(0),
            failure: Mutex::new(None),
            waker: AtomicWaker::new(),
        }
    }

    /// Prepares the slot for an operation that a future waits for.
    pub(super) fn begin(&self) {
        self.state.store(PENDING, Ordering::Release);
    }

    /// Prepares the slot for an operation that no future waits for.
    pub(super) fn begin_unattended(&self) {
        self.state.store(UNATTENDED, Ordering::Release);
    }

    /// Frees the slot of an operation that the device refused.
    pub(super) fn withdraw(&self) {
        self.state.store(IDLE, Ordering::Release);
    }

    /// Returns whether an operation is in flight and a future waits for it.
    pub(super) fn is_pending(&self) -> bool {
        self.state.load(Ordering::Acquire) == PENDING
    }

    /// Returns whether an operation is in flight.
    pub(super) fn is_in_flight(&self) -> bool {
        matches!(self.state.load(Ordering::Acquire), PENDING | UNATTENDED)
    }

    /// Has the future look again.
    pub(super) fn wake(&self) {
        self.waker.wake();
    }

    /// Records the outcome. Returns whether no future waits for the operation: the slot is then free at
    /// once, and the caller releases it.
    #[must_use = "a slot that no future waits for must be released"]
    pub(super) fn finish(&self, outcome: Result<u64, WorkError>) -> bool {
        let state = match outcome {
            Ok(value) => {
                self.value.store(value, Ordering::Relaxed);
                SUCCEEDED
            }
            Err(error) => {
                *self.failure.lock() = Some(error);
                FAILED
            }
        };
        let unattended = self
            .state
            .compare_exchange(PENDING, state, Ordering::AcqRel, Ordering::Acquire)
            .is_err();
        if unattended {
            self.state.store(IDLE, Ordering::Release);
        } else {
            self.wake();
        }
        unattended
    }
}

/// A posted operation. Resolves to what an atomic found, and to 0 for any other.
///
/// Dropping it leaves the operation in flight; its memory stays claimed until it completes.
#[derive(Debug)]
#[must_use = "futures do nothing unless awaited"]
pub(super) struct Operation<'c> {
    connection: &'c Connection,
    /// `None` once the outcome was taken.
    index: Option<u32>,
}

impl<'c> Operation<'c> {
    pub(super) fn new(connection: &'c Connection, index: u32) -> Self {
        Self {
            connection,
            index: Some(index),
        }
    }

    /// Takes the outcome, if it is there, and frees the slot.
    fn take(&mut self) -> Option<Result<u64>> {
        let index = self.index?;
        let slot = self.connection.operation(index);
        let outcome = match slot.state.load(Ordering::Acquire) {
            SUCCEEDED => Ok(slot.value.load(Ordering::Relaxed)),
            FAILED => Err(self.connection.cause(slot.failure.lock().take()?)),
            _ => return None,
        };
        self.index = None;
        self.connection.release_slot(index);
        Some(outcome)
    }
}

impl Future for Operation<'_> {
    type Output = Result<u64>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let connection = self.connection;
        let Some(index) = self.index else {
            panic!("an operation was polled after it had completed");
        };
        // Many devices are done at once: a task that only does such operations lets others run too.
        let turn = ready!(poll_proceed(cx));
        if let Some(outcome) = connection.spin(|| self.take()) {
            turn.made_progress();
            return Poll::Ready(outcome);
        }
        connection.operation(index).waker.register(cx.waker());
        // It may have completed before the waker was there.
        match self.take() {
            Some(outcome) => {
                turn.made_progress();
                Poll::Ready(outcome)
            }
            None if connection.forsaken.load(Ordering::SeqCst) => {
                Poll::Ready(Err::<u64, Error>(connection.ended()))
            }
            None => {
                connection.stay_awake(cx);
                Poll::Pending
            }
        }
    }
}

impl Drop for Operation<'_> {
    fn drop(&mut self) {
        let Some(index) = self.index else { return };
        let slot = self.connection.operation(index);
        let abandoned =
            slot.state
                .compare_exchange(PENDING, UNATTENDED, Ordering::AcqRel, Ordering::Acquire);
        if abandoned.is_err() {
            self.connection.release_slot(index);
        }
    }
}
