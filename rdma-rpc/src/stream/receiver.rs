//! [`Receiver`]: the receiving end of a stream.

use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use futures_util::Stream;

use super::receive_buffer::Window;
use super::{EncodedItem, ReceiveBuffer, Run};
use crate::codec::{CodecError, Decode};
use crate::core::Core;
use crate::error::Error;
use crate::payload::BodyBuffer;
use crate::wire::{CallId, Header};

/// Receiver of a stream of items of type `T` from the other end of a call. Returns the items in the
/// order in which they were sent. The receiver also implements [`Stream`].
///
/// The sender of the stream waits while 4096 sent items or 256 KiB have not been taken from the
/// receiver.
pub struct Receiver<T> {
    incoming: Arc<ReceiveBuffer>,
    core: Arc<Core>,
    id: CallId,
    decode: fn(u8, EncodedItem<'_>) -> Result<T, CodecError>,
    /// Run (items of one frame) from which the program is taking items.
    run: Option<Run>,
    /// Set once the stream has ended.
    is_done: bool,
}

/// Decodes an item with the codec `C`. `codec` is the number of the codec in the item's frame.
/// Fails if this number is not that of `C`, or if `C` cannot decode the item.
fn decode<C: Decode<T>, T>(codec: u8, item: EncodedItem<'_>) -> Result<T, CodecError> {
    if codec != C::ID {
        return Err(CodecError::codec_mismatch(codec, C::ID));
    }
    match item {
        EncodedItem::Bytes(bytes) => C::decode(bytes),
        EncodedItem::Retained(retained) => C::decode_payload(retained.into()),
    }
}

/// Decodes the body of a response with the codec `C`. `stored` contains the received body, and
/// `codec` is the number of the codec in the received frame. Fails if `codec` is not the number of
/// `C`.
pub(crate) fn decode_stored<C: Decode<T>, T>(
    codec: u8,
    stored: &mut BodyBuffer,
) -> Result<T, CodecError> {
    match stored.take_retained() {
        Some(retained) => decode::<C, T>(codec, EncodedItem::Retained(retained)),
        None => decode::<C, T>(codec, EncodedItem::Bytes(stored.bytes())),
    }
}

impl<T> Receiver<T> {
    pub(crate) fn new<C: Decode<T>>(
        incoming: Arc<ReceiveBuffer>,
        core: Arc<Core>,
        id: CallId,
    ) -> Self {
        Self {
            incoming,
            core,
            id,
            decode: decode::<C, T>,
            run: None,
            is_done: false,
        }
    }

    /// Waits for the next item. Returns `None` after the last item. This function is cancel-safe.
    ///
    /// # Errors
    ///
    /// * [`Error::Decode`] if the bytes of an item are not a valid `T`.
    /// * The error that ended the call or the connection. No item follows this error.
    pub async fn next(&mut self) -> Option<Result<T, Error>> {
        std::future::poll_fn(|cx| self.poll_item(cx)).await
    }

    /// Polls for the next item. Returns `None` after the last item or after the error that ended
    /// the stream.
    pub(crate) fn poll_item(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<T, Error>>> {
        if self.is_done {
            return Poll::Ready(None);
        }
        let Poll::Ready(budget) = tokio::task::coop::poll_proceed(cx) else {
            return Poll::Pending;
        };
        // If a decoder panicked in the previous call, its finished run is still stored.
        self.finish_run();
        if self.run.is_none() {
            match self.incoming.poll_run(cx) {
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

    /// Removes the current frame if the program has taken all of its items. If the program has
    /// taken enough items since the last time, sends the peer the permission to send more.
    fn finish_run(&mut self) {
        if let Some(run) = self.run.take_if(|run| run.is_empty())
            && let Some(Window { items, bytes }) = self.incoming.finish(run)
        {
            let id = self.id;
            let window = Header::Window { id, items, bytes };
            self.core.send_control(&window);
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
