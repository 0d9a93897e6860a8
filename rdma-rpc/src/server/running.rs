//! [`Running`]: a handler that did not finish in its first poll, as a task.

use std::future::{pending, poll_fn};
use std::panic::AssertUnwindSafe;
use std::sync::Arc;

use futures_util::FutureExt;
use tokio::time::{Instant, sleep_until};

use super::gate::Entered;
use super::handler::{Cell, Typed, drop_quietly, outcome_of, poll, send};
use super::serving::Serving;
use crate::codec::{Encode, Format};
use crate::core::Core;
use crate::observe::{Handled, Outcome};
use crate::outbox::Leaves;
use crate::stream::Streams;
use crate::wire::{CallId, ONE_WAY};

/// A handler that runs as a task. Dropping it drops the handler, and counts it as ended.
pub(super) struct Running<F, Q, T, E, Fut, H> {
    method: Arc<Typed<F, Q, T, E, Fut, H>>,
    /// `None` once the future has finished.
    cell: Option<Cell<Fut>>,
    core: Arc<Core>,
    id: CallId,
    streams: Streams,
    /// `None` once the handler has ended.
    handled: Option<Handled>,
    _entered: [Option<Entered>; 3],
}

impl<F, Q, T, E, Fut, H> Running<F, Q, T, E, Fut, H> {
    pub(super) fn new(
        method: &Arc<Typed<F, Q, T, E, Fut, H>>,
        cell: Cell<Fut>,
        core: &Arc<Core>,
        id: CallId,
        streams: Streams,
        (entered, handled): ([Option<Entered>; 3], Handled),
    ) -> Self {
        Self {
            method: Arc::clone(method),
            cell: Some(cell),
            core: Arc::clone(core),
            id,
            streams,
            handled: Some(handled),
            _entered: entered,
        }
    }
}

impl<F, Q, T, E, Fut, H> Running<F, Q, T, E, Fut, H>
where
    F: Format,
    F::Response: Encode<T>,
    F::Error: Encode<E>,
    Fut: Future<Output = Result<T, E>>,
{
    /// Runs the handler to its end and sends its response. The handler of a one-way call, which has
    /// no slot, is dropped at `deadline` and at the end of the connection.
    pub(super) async fn run(mut self, deadline: u64) {
        let Some(mut cell) = self.cell.take() else {
            return;
        };
        let method = Arc::clone(&self.method);
        let Some(observed) = self.handled.take() else {
            return;
        };
        let handled = poll_fn(|cx| {
            let begun = Instant::now();
            let polled = observed.within(|| poll(&mut cell, cx));
            method.report_blocking(begun.elapsed());
            polled
        });
        // Unwind safe: a future that has panicked is dropped.
        let mut handled = AssertUnwindSafe(handled).catch_unwind();
        let outcome = if self.id.index == ONE_WAY {
            let late = async {
                match self.core.deadlines.time(deadline) {
                    Some(time) => sleep_until(time).await,
                    None => pending().await,
                }
            };
            tokio::select! {
                biased;
                _ = self.core.ended() => return,
                () = late => return,
                outcome = &mut handled => outcome,
            }
        } else {
            (&mut handled).await
        };
        drop(handled);
        let Ok(result) = outcome else {
            drop_quietly(cell);
            observed.end(Outcome::Panicked);
            self.method.panicked(&self.core, self.id);
            return;
        };
        self.method.keep(cell);
        observed.end(outcome_of(&result));
        self.streams.bulks.close();
        self.streams.bulks.idle().await;
        let is_alone = Serving::of(&self.core).has_one();
        let leaves = match is_alone {
            true => Leaves::WithFlush,
            false => Leaves::AtTurnEnd,
        };
        let streams = std::mem::take(&mut self.streams);
        let finished = self
            .method
            .finish(&self.core, self.id, &streams, &result, leaves);
        if let Some(batch) = finished {
            send(&self.core, self.id, batch).await;
        } else if is_alone && let Err(error) = self.core.outbox.flush() {
            self.core.fail(error);
        }
    }
}

impl<F, Q, T, E, Fut, H> Drop for Running<F, Q, T, E, Fut, H> {
    fn drop(&mut self) {
        if let Some(cell) = self.cell.take() {
            drop_quietly(cell);
        }
        Serving::of(&self.core).ended();
    }
}
