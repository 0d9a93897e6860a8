//! [`Response`] and [`Streaming`]: the caller's ends of streaming calls.

use std::fmt;
use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use futures_util::Stream;

use super::calls::{Answer, PendingCall};
use super::endpoints::ChosenConnection;
use super::perform::{ErrorInfo, Outcome, StreamingCall, decode, outcome_of};
use crate::codec::{Decode, MethodCodecs};
use crate::core::Core;
use crate::error::{CallError, Error};
use crate::observe::ClientObservation;
use crate::payload::BodyBuffer;
use crate::stream::Receiver;

/// Function that converts the server's answer to a call to the outcome that the caller gets. The
/// arguments are the connection, the kind of the answer, its encoded body, and a description of the
/// call for errors. A function pointer, so that the type [`Response`] has no parameters for codecs.
type DecodeAnswer<T, E> = fn(&Arc<Core>, Answer, &mut BodyBuffer, &ErrorInfo) -> Outcome<T, E>;

/// Future of the response to a call whose caller sends a stream. `T` is the handler's success
/// value, and `E` the service's error. Dropping the future cancels the call.
#[must_use = "dropping the response cancels the call"]
pub struct Response<T, E> {
    pending: PendingCall<Arc<Core>>,
    info: ErrorInfo,
    decode: DecodeAnswer<T, E>,
    /// Set once the response was returned.
    is_done: bool,
    /// Metrics of the call, or `None` once the call has ended.
    metrics: Option<ClientObservation>,
    /// Connection that was chosen by a client of several servers. Keeps the call counted as in
    /// progress.
    _chosen: Option<ChosenConnection>,
}

impl<T, E> Response<T, E> {
    pub(super) fn new<F: MethodCodecs>(begun: StreamingCall) -> Self
    where
        F::Response: Decode<T>,
        F::Error: Decode<E>,
    {
        Self {
            pending: begun.pending,
            info: begun.info,
            decode: decode::<F, T, E>,
            is_done: false,
            metrics: begun.metrics,
            _chosen: begun.chosen,
        }
    }

    /// Polls for the answer of the server, and converts the answer to the outcome of the call.
    /// After the outcome was returned, further polls fail with [`Error::Cancelled`].
    fn poll_answer(&mut self, cx: &mut Context<'_>) -> Poll<Outcome<T, E>> {
        if self.is_done {
            return Poll::Ready(Err(Error::Cancelled.into()));
        }
        let (decode, info) = (self.decode, &self.info);
        let core = &self.pending.core;
        let answer = self
            .pending
            .poll_answer(cx, |answer, body| decode(core, answer, body, info));
        if let Poll::Ready(outcome) = &answer {
            self.is_done = true;
            if let Some(metrics) = self.metrics.take() {
                metrics.end(outcome_of(outcome));
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
            .field("method", &self.info.method)
            .finish_non_exhaustive()
    }
}

/// The stream of items of type `O` that a handler sends, and the handler's result: `T`, or the
/// service's error `E`. Also implements [`Stream`]. Dropping this value cancels the call.
///
/// The handler waits while 4096 items or 256 KiB were sent and not yet received by this program.
#[must_use = "dropping the stream cancels the call"]
pub struct Streaming<O, T, E> {
    items: Receiver<O>,
    response: Response<T, E>,
    /// Result of the handler. Set after the last item.
    result: Option<Outcome<T, E>>,
}

impl<O, T, E> Streaming<O, T, E> {
    pub(super) fn new<F: MethodCodecs>(begun: StreamingCall) -> Self
    where
        F::Response: Decode<T> + Decode<O>,
        F::Error: Decode<E>,
    {
        let core = Arc::clone(&begun.pending.core);
        let incoming = begun.streams.incoming.clone();
        let incoming = incoming.expect("the method has an output");
        Self {
            items: Receiver::new::<F::Response>(incoming, core, begun.pending.id),
            response: Response::new::<F>(begun),
            result: None,
        }
    }

    /// Waits for the next item of the handler's stream, and returns it. Returns `None` after the
    /// last item. [`Self::finish`] then returns the handler's result. This function is cancel-safe.
    ///
    /// # Errors
    ///
    /// [`Error::Decode`] if the bytes of an item are not a valid `O`. If the call fails, the last
    /// item is the error of the call.
    pub async fn next(&mut self) -> Option<Result<O, CallError<E>>> {
        poll_fn(|cx| self.poll_item(cx)).await
    }

    /// Waits for the end of the handler's stream, and returns the handler's result. Drops the
    /// remaining items of the stream.
    ///
    /// # Errors
    ///
    /// The error of the call, unless [`Self::next`] has already returned the error.
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

    /// Polls for the next item of the handler's stream. After the last item, polls for the server's
    /// answer. Stores a result of the handler for [`Self::finish`], and returns `None`. If the call
    /// has failed, returns its error as the last item instead.
    fn poll_item(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<O, CallError<E>>>> {
        match self.items.poll_item(cx) {
            Poll::Ready(Some(Ok(item))) => return Poll::Ready(Some(Ok(item))),
            Poll::Ready(Some(Err(error @ Error::Decode(_)))) => {
                return Poll::Ready(Some(Err(error.into())));
            }
            // The answer contains the reason for the end.
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
            .field("method", &self.response.info.method)
            .finish_non_exhaustive()
    }
}
