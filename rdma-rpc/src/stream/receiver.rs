//! [`Receiver`]: the items that a handler receives from its caller.

use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use futures_util::Stream;

use super::inlet::Window;
use super::{Encoded, Inlet, Run};
use crate::codec::{CodecError, Decode};
use crate::core::Core;
use crate::error::Error;
use crate::payload::Stored;
use crate::wire::{CallId, Header};

/// Items that the other end of a call sends, in their order. Also a [`Stream`].
///
/// The sender waits while 4096 items or 256 KiB were sent and not yet taken from the receiver.
pub struct Receiver<T> {
    inlet: Arc<Inlet>,
    core: Arc<Core>,
    id: CallId,
    decode: fn(u8, Encoded<'_>) -> Result<T, CodecError>,
    /// Items that were taken from `inlet` and not yet by the program.
    run: Option<Run>,
    is_done: bool,
}

/// Decodes an item of codec `C`.
fn decode<C: Decode<T>, T>(codec: u8, item: Encoded<'_>) -> Result<T, CodecError> {
    if codec != C::ID {
        return Err(CodecError::other_codec(codec, C::ID));
    }
    match item {
        Encoded::Bytes(bytes) => C::decode(bytes),
        Encoded::Kept(kept) => C::decode_payload(kept.into()),
    }
}

/// Decodes received bytes that name their codec.
pub(crate) fn decode_stored<C: Decode<T>, T>(
    codec: u8,
    stored: &mut Stored,
) -> Result<T, CodecError> {
    match stored.take_kept() {
        Some(kept) => decode::<C, T>(codec, Encoded::Kept(kept)),
        None => decode::<C, T>(codec, Encoded::Bytes(stored.bytes())),
    }
}

impl<T> Receiver<T> {
    pub(crate) fn new<C: Decode<T>>(inlet: Arc<Inlet>, core: Arc<Core>, id: CallId) -> Self {
        Self {
            inlet,
            core,
            id,
            decode: decode::<C, T>,
            run: None,
            is_done: false,
        }
    }

    /// Waits for the next item; `None` after the last one. Cancel-safe.
    ///
    /// # Errors
    ///
    /// [`Error::Decode`] if the item is of another type, and the error that ended the call or the
    /// connection. No further item follows an error that ended the call.
    pub async fn next(&mut self) -> Option<Result<T, Error>> {
        std::future::poll_fn(|cx| self.poll_item(cx)).await
    }

    pub(crate) fn poll_item(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<T, Error>>> {
        if self.is_done {
            return Poll::Ready(None);
        }
        let Poll::Ready(budget) = tokio::task::coop::poll_proceed(cx) else {
            return Poll::Pending;
        };
        // A decoder that panicked has left its run behind.
        self.finish_run();
        if self.run.is_none() {
            match self.inlet.poll_run(cx) {
                Poll::Ready(Ok(Some(run))) => self.run = Some(run),
                Poll::Ready(ended) => {
                    self.is_done = true;
                    return Poll::Ready(ended.err().map(Err));
                }
                Poll::Pending => return Poll::Pending,
            }
        }
        budget.made_progress();
        let item = self.run.as_mut().map(|run| run.take(self.decode));
        self.finish_run();
        Poll::Ready(item.map(|item| item.map_err(Error::Decode)))
    }

    /// Finishes a run whose items were all taken, and gives its window back to the peer.
    fn finish_run(&mut self) {
        if let Some(run) = self.run.take_if(|run| run.is_empty())
            && let Some(Window { items, bytes }) = self.inlet.finish(run)
        {
            let id = self.id;
            let window = Header::Window { id, items, bytes };
            // A connection that has ended also ends this stream.
            drop(self.core.outbox.append_bare(&window));
        }
    }
}

impl<T> Stream for Receiver<T> {
    type Item = Result<T, Error>;

    fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.get_mut().poll_item(cx)
    }
}

impl<T> fmt::Debug for Receiver<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Receiver")
            .field("id", &self.id)
            .finish_non_exhaustive()
    }
}
