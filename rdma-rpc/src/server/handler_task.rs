//! [`HandlerTask`]: the task of a handler that was not ready at its first poll.

use std::future::{pending, poll_fn};
use std::panic::AssertUnwindSafe;
use std::sync::Arc;

use futures_util::FutureExt;
use tokio::time::{Instant, sleep_until};

use super::call_limit::CallPermit;
use super::connection::ServerConnection;
use super::handler::{
    FutureBox, TypedHandler, drop_catching_panic, outcome_of, poll, send_response,
};
use crate::codec::{Encode, MethodCodecs};
use crate::core::Core;
use crate::observe::ServerObservation;
use crate::outbox::SendAt;
use crate::stream::Streams;
use crate::wire::{CallId, ONE_WAY};

/// Task that polls a handler until it has returned a result, and sends the response. Dropping this
/// value, for example when the call is cancelled, drops the handler and counts it as ended.
pub(super) struct HandlerTask<F, Q, T, E, Fut, H> {
    method: Arc<TypedHandler<F, Q, T, E, Fut, H>>,
    /// Future of the handler; `None` once the future has finished.
    boxed: Option<FutureBox<Fut>>,
    core: Arc<Core>,
    id: CallId,
    streams: Streams,
    /// Metrics and span of the handler; `None` once the handler has ended.
    observed: Option<ServerObservation>,
    _permits: [Option<CallPermit>; 3],
}

impl<F, Q, T, E, Fut, H> HandlerTask<F, Q, T, E, Fut, H> {
    pub(super) fn new(
        method: &Arc<TypedHandler<F, Q, T, E, Fut, H>>,
        boxed: FutureBox<Fut>,
        core: &Arc<Core>,
        id: CallId,
        streams: Streams,
        (permits, observed): ([Option<CallPermit>; 3], ServerObservation),
    ) -> Self {
        Self {
            method: Arc::clone(method),
            boxed: Some(boxed),
            core: Arc::clone(core),
            id,
            streams,
            observed: Some(observed),
            _permits: permits,
        }
    }
}

impl<F, Q, T, E, Fut, H> HandlerTask<F, Q, T, E, Fut, H>
where
    F: MethodCodecs,
    F::Response: Encode<T>,
    F::Error: Encode<E>,
    Fut: Future<Output = Result<T, E>>,
{
    /// Runs the handler until it returns a result, and sends the response. Drops the handler of a
    /// one-way call early if `deadline` passes or the connection ends. In these cases, the
    /// connection itself aborts the tasks of all other calls.
    pub(super) async fn run(mut self, deadline: u64) {
        let Some(mut boxed) = self.boxed.take() else {
            return;
        };
        let method = Arc::clone(&self.method);
        let Some(observed) = self.observed.take() else {
            return;
        };
        let polling = poll_fn(|cx| {
            let begun = Instant::now();
            let polled = observed.within(|| poll(&mut boxed, cx));
            method.report_blocking(begun.elapsed());
            polled
        });
        // Unwind safe: a future that panicked is not polled again.
        let mut polling = AssertUnwindSafe(polling).catch_unwind();
        let outcome = if self.id.index == ONE_WAY {
            let expired = async {
                match self.core.deadlines.time(deadline) {
                    Some(time) => sleep_until(time).await,
                    None => pending().await,
                }
            };
            tokio::select! {
                biased;
                _ = self.core.ended() => return,
                () = expired => return,
                outcome = &mut polling => outcome,
            }
        } else {
            (&mut polling).await
        };
        drop(polling);
        let result = match outcome {
            Ok(result) => result,
            Err(payload) => {
                drop_catching_panic(boxed);
                observed.end(self.method.unwound(&self.core, self.id, payload));
                return;
            }
        };
        self.method.recycle(boxed);
        observed.end(outcome_of(&result));
        self.streams.bulks.close();
        self.streams.bulks.idle().await;
        let is_alone = ServerConnection::of(&self.core).has_one_handler();
        let send_at = match is_alone {
            true => SendAt::NextFlush,
            false => SendAt::TurnEnd,
        };
        let streams = std::mem::take(&mut self.streams);
        let finished = self
            .method
            .finish(&self.core, self.id, &streams, &result, send_at);
        if let Some(batch) = finished {
            send_response(&self.core, self.id, batch).await;
        } else if is_alone && let Err(error) = self.core.outbox.flush() {
            self.core.fail(error);
        }
    }
}

impl<F, Q, T, E, Fut, H> Drop for HandlerTask<F, Q, T, E, Fut, H> {
    fn drop(&mut self) {
        if let Some(boxed) = self.boxed.take() {
            drop_catching_panic(boxed);
        }
        ServerConnection::of(&self.core).end_handler();
    }
}
