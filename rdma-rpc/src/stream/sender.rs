//! [`Sender`]: the sending end of a stream.

use std::borrow::Borrow;
use std::fmt;
use std::future::poll_fn;
use std::sync::Arc;
use std::task::{Poll, ready};

use super::SendWindow;
use super::send_window::RemainingWindow;
use crate::codec::{Codec, Encode, TypedBody};
use crate::core::{Core, Side};
use crate::error::Error;
use crate::outbox::{AppendError, Batch, ItemHeader, OpenBatch, send_long};
use crate::wire::{CallId, Header};

/// Sender of a stream of items of type `T` to the other end of a call.
///
/// Several items are sent in one message if the program sends them without waiting in between. A
/// caller's stream ends when the sender is dropped. A handler's stream ends when the handler
/// returns.
pub struct Sender<T> {
    outgoing: Arc<SendWindow>,
    core: Arc<Core>,
    id: CallId,
    append_item: AppendItem<T>,
    encode_long: EncodeLong<T>,
}

/// Function that encodes a stream item into the message to which frames are being appended. The
/// arguments are this message, the call, the sequence number and the item. Returns the encoded
/// length, or `None` if the item is too long to share a message.
type AppendItem<T> = fn(&mut OpenBatch<'_>, CallId, u32, &T) -> Result<Option<usize>, AppendError>;

/// Function that encodes an item that does not fit into a batch as a separate message. The
/// arguments are the connection, the call, the sequence number and the item.
type EncodeLong<T> = fn(&Core, CallId, u32, &T) -> Result<Box<Batch>, AppendError>;

fn append_item<C: Encode<T>, T>(
    outbox: &mut OpenBatch<'_>,
    id: CallId,
    sequence: u32,
    item: &T,
) -> Result<Option<usize>, AppendError> {
    outbox.append_item(&header::<C>(id, sequence), &TypedBody::new::<C>(item))
}

fn encode_long<C: Encode<T>, T>(
    core: &Core,
    id: CallId,
    sequence: u32,
    item: &T,
) -> Result<Box<Batch>, AppendError> {
    let header = header::<C>(id, sequence).single_header();
    core.outbox
        .encode_long(&header, &TypedBody::new::<C>(item), core.send_limit())
}

fn header<C: Codec>(id: CallId, sequence: u32) -> ItemHeader {
    ItemHeader {
        id,
        codec: C::ID,
        sequence,
    }
}

/// Number of items that [`Sender::send_all`] takes from its iterator at a time. Large enough that
/// the connection's send queue is rarely locked, and small enough to limit the memory for the
/// items.
const CHUNK: usize = 64;

/// Stream items that a [`Sender`] has encoded at the same time. These items already count against
/// the number of items and bytes that the receiver of the stream allows.
enum AppendedItems {
    /// This number of items is in the open batch.
    Batched(usize),
    /// A single long item, in a separate message that must still be sent.
    Alone(Box<Batch>),
}

impl<T> Sender<T> {
    pub(crate) fn new<C: Encode<T>>(
        outgoing: Arc<SendWindow>,
        core: Arc<Core>,
        id: CallId,
    ) -> Self {
        Self {
            outgoing,
            core,
            id,
            append_item: append_item::<C, T>,
            encode_long: encode_long::<C, T>,
        }
    }

    /// Sends an item. Waits while the receiver has not taken enough of the earlier items, see
    /// [`Receiver`](crate::Receiver).
    ///
    /// # Errors
    ///
    /// * [`Error::Encode`] or [`Error::TooLarge`] if the item cannot be sent.
    /// * [`Error::Cancelled`] if the other end has finished the call, or if the deadline of the
    ///   call has passed.
    /// * The error that ended the connection.
    pub async fn send(&mut self, item: impl Borrow<T>) -> Result<(), Error> {
        self.send_some(std::slice::from_ref(&item)).await?;
        Ok(())
    }

    /// Sends the items of an iterator, at less cost per item than [`Self::send`]. Waits while the
    /// receiver has not taken enough of the earlier items. If an item fails, all items before it
    /// were sent. Up to 64 further items were then taken from the iterator, but not sent.
    ///
    /// # Errors
    ///
    /// The errors of [`Self::send`].
    pub async fn send_all<I>(&mut self, items: I) -> Result<(), Error>
    where
        I: IntoIterator<Item: Borrow<T>>,
    {
        let mut items = items.into_iter();
        let mut chunk = Vec::with_capacity(items.size_hint().0.min(CHUNK));
        loop {
            // The iterator is called without a lock, because its code may use this connection.
            chunk.extend(items.by_ref().take(CHUNK));
            if chunk.is_empty() {
                return Ok(());
            }
            let mut rest = &chunk[..];
            while !rest.is_empty() {
                let sent = self.send_some(rest).await?;
                rest = rest.get(sent..).unwrap_or_default();
            }
            chunk.clear();
        }
    }

    /// Sends items from the start of `items`: at least one, and at most the number that the peer
    /// allows. Returns the number of sent items. While the peer allows no items, waits until the
    /// receiver has taken enough of the earlier items.
    async fn send_some<I: Borrow<T>>(&self, items: &[I]) -> Result<usize, Error> {
        if !self.core.outbox.has_room() {
            self.unless_closed(self.core.outbox.wait_for_room()).await?;
        }
        let appended = poll_fn(|cx| {
            let budget = ready!(tokio::task::coop::poll_proceed(cx));
            let appended = ready!(
                self.outgoing
                    .poll_append(cx, |window| self.append_items(window, items))
            );
            budget.made_progress();
            Poll::Ready(appended)
        });
        match appended.await.map_err(|error| self.error(error))? {
            AppendedItems::Batched(count) => Ok(count),
            AppendedItems::Alone(batch) => {
                // Sent in a separate task: an item with a sequence number must arrive even if this
                // future is dropped.
                let core = Arc::clone(&self.core);
                let sending = send_long(Arc::clone(&core), batch);
                let sent = self.core.runtime.spawn(async move {
                    if let Err(error) = sending.await {
                        core.fail(error);
                    }
                });
                drop(self.unless_closed(sent).await?);
                self.core.end().cloned().map_or(Ok(1), Err)
            }
        }
    }

    /// Waits for the future `waiting`, and returns its output. Fails if the stream is closed first,
    /// for example because the deadline of the call has passed.
    async fn unless_closed<F: Future>(&self, waiting: F) -> Result<F::Output, Error> {
        tokio::select! {
            biased;
            output = waiting => Ok(output),
            error = poll_fn(|cx| self.outgoing.poll_closed(cx)) => {
                Err(self.core.end().cloned().unwrap_or(error))
            }
        }
    }

    /// Encodes items from the start of `items`, up to the number that the peer allows, into the
    /// message that is being filled. Stops before an item that is too long to share a message. If
    /// the first item is too long, encodes only this item, as a separate message. Returns the
    /// number of items, or the separate message.
    fn append_items<I: Borrow<T>>(
        &self,
        window: &mut RemainingWindow,
        items: &[I],
    ) -> Result<AppendedItems, AppendError> {
        let mut outbox = self.core.outbox.lock_batch();
        let mut count = 0;
        for item in items {
            if !window.is_open() {
                break;
            }
            match (self.append_item)(&mut outbox, self.id, window.next(), item.borrow()) {
                Ok(Some(len)) => window.spend(len),
                // The preceding items are reported first; the next call handles this item.
                Ok(None) | Err(_) if count > 0 => break,
                Ok(None) => {
                    drop(outbox);
                    let batch =
                        (self.encode_long)(&self.core, self.id, window.next(), item.borrow())?;
                    window.spend(batch.body_len());
                    return Ok(AppendedItems::Alone(batch));
                }
                Err(error) => return Err(error),
            }
            count += 1;
        }
        Ok(AppendedItems::Batched(count))
    }

    /// Converts the error of an item that was not sent to the error that the program gets. If the
    /// connection has ended, returns the reason for the end.
    fn error(&self, error: AppendError) -> Error {
        match error {
            AppendError::Transport(error) => self.core.end().cloned().unwrap_or(error),
            error => error.into_error(),
        }
    }
}

impl<T> Drop for Sender<T> {
    fn drop(&mut self) {
        if let Side::Client(_) = self.core.side
            && !self.outgoing.is_closed()
        {
            let items = self.outgoing.sent();
            let end = Header::End { id: self.id, items };
            self.core.send_control(&end);
        }
    }
}

impl<T> fmt::Debug for Sender<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sender")
            .field("id", &self.id)
            .finish_non_exhaustive()
    }
}
