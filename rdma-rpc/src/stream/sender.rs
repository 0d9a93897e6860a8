//! [`Sender`]: sends the items of a stream.

use std::borrow::Borrow;
use std::fmt;
use std::future::poll_fn;
use std::sync::Arc;
use std::task::{Poll, ready};

use super::Outlet;
use super::outlet::OutletWindow;
use crate::codec::{Codec, Encode, Value};
use crate::core::{Core, Side};
use crate::error::Error;
use crate::outbox::{Appending, Batch, ItemHeader, Unplaced, send_long};
use crate::wire::{CallId, Header};

/// Sends items to the other end of a call.
///
/// Items of one turn of the scheduler share messages. The stream of a caller ends when its sender
/// is dropped; the stream of a handler ends when the handler returns.
pub struct Sender<T> {
    outlet: Arc<Outlet>,
    core: Arc<Core>,
    id: CallId,
    place: Place<T>,
    place_alone: PlaceAlone<T>,
}

/// Encodes an item into a batch. Returns the encoded length, or `None` if a batch has no room for
/// the item.
type Place<T> = fn(&mut Appending<'_>, CallId, u32, &T) -> Result<Option<usize>, Unplaced>;

/// Encodes an item into a message of its own.
type PlaceAlone<T> = fn(&Core, CallId, u32, &T) -> Result<Batch, Unplaced>;

fn place<C: Encode<T>, T>(
    outbox: &mut Appending<'_>,
    id: CallId,
    sequence: u32,
    item: &T,
) -> Result<Option<usize>, Unplaced> {
    outbox.place_item(&header::<C>(id, sequence), &Value::new::<C>(item))
}

fn place_alone<C: Encode<T>, T>(
    core: &Core,
    id: CallId,
    sequence: u32,
    item: &T,
) -> Result<Batch, Unplaced> {
    let header = header::<C>(id, sequence).of_one();
    core.outbox
        .place_alone(&header, &Value::new::<C>(item), core.send_limit())
}

fn header<C: Codec>(id: CallId, sequence: u32) -> ItemHeader {
    ItemHeader {
        id,
        codec: C::ID,
        sequence,
    }
}

/// Number of items that [`Sender::send_all`] takes from its iterator at a time.
const CHUNK: usize = 64;

/// Items that were encoded, and counted in the window of their stream.
enum Placed {
    /// Number of items in the open batch.
    Batched(usize),
    /// One item in a message of its own.
    Alone(Batch),
}

impl<T> Sender<T> {
    pub(crate) fn new<C: Encode<T>>(outlet: Arc<Outlet>, core: Arc<Core>, id: CallId) -> Self {
        Self {
            outlet,
            core,
            id,
            place: place::<C, T>,
            place_alone: place_alone::<C, T>,
        }
    }

    /// Sends an item. Waits while the receiver's window is full.
    ///
    /// # Errors
    ///
    /// [`Error::Encode`] and [`Error::TooLarge`] for an item that cannot be sent, and the error
    /// that ended the call: [`Error::Cancelled`] if the other end has finished the call, or the
    /// error that ended the connection.
    pub async fn send(&mut self, item: impl Borrow<T>) -> Result<(), Error> {
        self.send_some(std::slice::from_ref(&item)).await?;
        Ok(())
    }

    /// Sends the items of an iterator, at less cost per item than [`Self::send`]. Waits while the
    /// receiver's window is full. The items before an error were sent, and up to 64 items behind
    /// were taken from the iterator.
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
            // The iterator runs before any lock is taken, because its code may use this connection.
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

    /// Sends as many of `items` as the window allows, but at least one. Returns their number.
    async fn send_some<I: Borrow<T>>(&self, items: &[I]) -> Result<usize, Error> {
        if !self.core.outbox.has_room() {
            self.core.outbox.room().await;
        }
        let placed = poll_fn(|cx| {
            let budget = ready!(tokio::task::coop::poll_proceed(cx));
            let placed = ready!(
                self.outlet
                    .poll_place(cx, |window| self.place(window, items))
            );
            budget.made_progress();
            Poll::Ready(placed)
        });
        match placed.await.map_err(|unplaced| self.error(unplaced))? {
            Placed::Batched(count) => Ok(count),
            Placed::Alone(batch) => {
                // A task of its own: an item with a number must arrive even if this future is
                // dropped.
                let core = Arc::clone(&self.core);
                let sending = send_long(Arc::clone(&core), batch);
                let sent = self.core.runtime.spawn(async move {
                    if let Err(error) = sending.await {
                        core.fail(error);
                    }
                });
                drop(sent.await);
                self.core.end().cloned().map_or(Ok(1), Err)
            }
        }
    }

    fn place<I: Borrow<T>>(
        &self,
        window: &mut OutletWindow,
        items: &[I],
    ) -> Result<Placed, Unplaced> {
        let mut outbox = self.core.outbox.begin();
        let mut count = 0;
        for item in items {
            if !window.is_open() {
                break;
            }
            match (self.place)(&mut outbox, self.id, window.next(), item.borrow()) {
                Ok(Some(len)) => window.spend(len),
                // The items before this one are reported first.
                Ok(None) | Err(_) if count > 0 => break,
                Ok(None) => {
                    drop(outbox);
                    let batch =
                        (self.place_alone)(&self.core, self.id, window.next(), item.borrow())?;
                    window.spend(batch.body_len());
                    return Ok(Placed::Alone(batch));
                }
                Err(error) => return Err(error),
            }
            count += 1;
        }
        Ok(Placed::Batched(count))
    }

    fn error(&self, unplaced: Unplaced) -> Error {
        match unplaced {
            Unplaced::Transport(error) => self.core.end().cloned().unwrap_or(error),
            unplaced => unplaced.into_error(),
        }
    }
}

impl<T> Drop for Sender<T> {
    fn drop(&mut self) {
        if let Side::Client(_) = self.core.side
            && !self.outlet.is_closed()
        {
            let items = self.outlet.sent();
            let end = Header::End { id: self.id, items };
            // A connection that has ended also ends this stream.
            drop(self.core.outbox.append_bare(&end));
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
