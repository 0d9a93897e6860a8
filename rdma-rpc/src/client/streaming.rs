//! The caller's ends of streaming calls.

use std::fmt;
use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use futures_util::Stream;

use super::calls::{Answer, Pending};
use super::endpoints::Chosen;
use super::perform::{Begun, Outcome, Told, decode, outcome_of};
use crate::codec::{Decode, Format};
use crate::core::Core;
use crate::error::{CallError, Error};
use crate::observe::Made;
use crate::payload::Stored;
use crate::stream::Receiver;

type DecodeAnswer<T, E> = fn(&Arc<Core>, Answer, &mut Stored, &Told) -> Outcome<T, E>;

/// Future of the response of a call whose caller sends a stream. Dropping it cancels the call.
#[must_use = "dropping the response cancels the call"]
pub struct Response<T, E> {
    pending: Pending<Arc<Core>>,
    told: Told,
    decode: DecodeAnswer<T, E>,
    is_done: bool,
    /// Count of the call, until it has ended.
    made: Option<Made>,
    /// Connection of a client of several servers, which counts the call as in progress.
    _chosen: Option<Chosen>,
}

impl<T, E> Response<T, E> {
    pub(super) fn new<F: Format>(begun: Begun) -> Self
    where
        F::Response: Decode<T>,
        F::Error: Decode<E>,
    {
        Self {
            pending: begun.pending,
            told: begun.told,
            decode: decode::<F, T, E>,
            is_done: false,
            made: begun.made,
            _chosen: begun.chosen,
        }
    }

    fn poll_answer(&mut self, cx: &mut Context<'_>) -> Poll<Outcome<T, E>> {
        if self.is_done {
            return Poll::Ready(Err(Error::Cancelled.into()));
        }
        let (decode, told) = (self.decode, &self.told);
        let core = &self.pending.core;
        let answer = self
            .pending
            .poll_answer(cx, |answer, body| decode(core, answer, body, told));
        if let Poll::Ready(outcome) = &answer {
            self.is_done = true;
            if let Some(made) = self.made.take() {
                made.end(outcome_of(outcome));
            }
        }
        answer
    }
}

impl<T, E> Future for Response<T, E> {
    type Output = Result<T, CallError<E>>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        self.get_mut().poll_answer(cx)
    }
}

impl<T, E> fmt::Debug for Response<T, E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Response")
            .field("method", &self.told.method)
            .finish_non_exhaustive()
    }
}

/// Items of a call whose handler sends a stream, and the handler's result. Also a [`Stream`].
/// Dropping it cancels the call.
///
/// The handler waits while 4096 items or 256 KiB were sent and not yet taken.
#[must_use = "dropping the stream cancels the call"]
pub struct Streaming<O, T, E> {
    items: Receiver<O>,
    response: Response<T, E>,
    /// Result of the handler, once the items have ended.
    result: Option<Outcome<T, E>>,
}

impl<O, T, E> Streaming<O, T, E> {
    pub(super) fn new<F: Format>(begun: Begun) -> Self
    where
        F::Response: Decode<T> + Decode<O>,
        F::Error: Decode<E>,
    {
        let core = Arc::clone(&begun.pending.core);
        let inlet = begun.streams.inlet.clone();
        let inlet = inlet.expect("the method has an output");
        Self {
            items: Receiver::new::<F::Response>(inlet, core, begun.pending.id),
            response: Response::new::<F>(begun),
            result: None,
        }
    }

    /// Waits for the next item; `None` after the last one. [`Self::finish`] then returns the
    /// handler's result. Cancel-safe.
    ///
    /// # Errors
    ///
    /// [`Error::Decode`] if the item is of another type. The error of the call, which is the last
    /// item.
    pub async fn next(&mut self) -> Option<Result<O, CallError<E>>> {
        poll_fn(|cx| self.poll_item(cx)).await
    }

    /// Waits for the end of the items, which are dropped, and returns the result of the handler.
    ///
    /// # Errors
    ///
    /// The error of the call, unless [`Self::next`] has returned it.
    pub async fn finish(mut self) -> Result<T, CallError<E>> {
        while let Some(item) = self.next().await {
            match item {
                Ok(_) | Err(CallError::Rpc(Error::Decode(_))) => {}
                Err(error) => return Err(error),
            }
        }
        let cancelled = || Err(Error::Cancelled.into());
        self.result.take().unwrap_or_else(cancelled)
    }

    fn poll_item(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<O, CallError<E>>>> {
        match self.items.poll_item(cx) {
            Poll::Ready(Some(Ok(item))) => return Poll::Ready(Some(Ok(item))),
            Poll::Ready(Some(Err(error @ Error::Decode(_)))) => {
                return Poll::Ready(Some(Err(error.into())));
            }
            // The answer has the reason of the end.
            Poll::Ready(Some(Err(_)) | None) => {}
            Poll::Pending => return Poll::Pending,
        }
        if self.response.is_done {
            return Poll::Ready(None);
        }
        match self.response.poll_answer(cx) {
            Poll::Ready(Ok(value)) => {
                self.result = Some(Ok(value));
                Poll::Ready(None)
            }
            Poll::Ready(Err(error)) => Poll::Ready(Some(Err(error))),
            Poll::Pending => Poll::Pending,
        }
    }
}

impl<O, T, E> Stream for Streaming<O, T, E> {
    type Item = Result<O, CallError<E>>;

    fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.get_mut().poll_item(cx)
    }
}

impl<O, T, E> Unpin for Streaming<O, T, E> {}
impl<T, E> Unpin for Response<T, E> {}

impl<O, T, E> fmt::Debug for Streaming<O, T, E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Streaming")
            .field("method", &self.response.told.method)
            .finish_non_exhaustive()
    }
}
