//! [`Sender`]: sends the items of a stream.

use std::borrow::Borrow;
use std::fmt;
use std::future::poll_fn;
use std::sync::Arc;
use std::task::{Poll, ready};

use super::Outlet;
use crate::codec::{Encode, Value};
use crate::core::{Core, Side};
use crate::error::Error;
use crate::outbox::{Leaves, Placed, Unplaced, send_long};
use crate::wire::{CallId, Header};

/// Sends items to the other end of a call.
///
/// Items of one turn of the scheduler leave in one message. The stream of a caller ends when its sender
/// is dropped; the stream of a handler ends when the handler returns.
pub struct Sender<T> {
    outlet: Arc<Outlet>,
    core: Arc<Core>,
    id: CallId,
    codec: u8,
    place: Place<T>,
}

type Place<T> = fn(&Core, &Header<'_>, &T) -> Result<Placed, Unplaced>;

fn place<C: Encode<T>, T>(core: &Core, header: &Header<'_>, item: &T) -> Result<Placed, Unplaced> {
    let value = Value::new::<C>(item);
    core.outbox
        .append(header, &value, core.send_limit(), Leaves::AtTurnEnd)
}

impl<T> Sender<T> {
    pub(crate) fn new<C: Encode<T>>(outlet: Arc<Outlet>, core: Arc<Core>, id: CallId) -> Self {
        Self {
            outlet,
            core,
            id,
            codec: C::ID,
            place: place::<C, T>,
        }
    }

    /// Sends an item. Waits while the receiver's window is full.
    ///
    /// # Errors
    ///
    /// [`Error::Encode`] and [`Error::TooLarge`] for an item that cannot be sent, and the error that
    /// ended the call: [`Error::Cancelled`] if the other end has finished the call, or the error that
    /// ended the connection.
    pub async fn send(&mut self, item: impl Borrow<T>) -> Result<(), Error> {
        self.core.outbox.room().await;
        let sequence = poll_fn(|cx| {
            let budget = ready!(tokio::task::coop::poll_proceed(cx));
            let ready = ready!(self.outlet.poll_ready(cx));
            budget.made_progress();
            Poll::Ready(ready)
        });
        let header = Header::Item {
            id: self.id,
            codec: self.codec,
            sequence: sequence.await?,
        };
        let placed = self.outlet.place(
            || (self.place)(&self.core, &header, item.borrow()),
            |placed| match placed {
                Placed::Batched(len) => *len,
                Placed::Long(batch) => batch.body_len(),
            },
        );
        match placed.map_err(|unplaced| self.error(unplaced))? {
            Placed::Batched(_) => Ok(()),
            Placed::Long(batch) => {
                // A task of its own: an item with a number must arrive even if this future is dropped.
                let core = Arc::clone(&self.core);
                let sending = send_long(Arc::clone(&core), batch);
                let sent = self.core.runtime.spawn(async move {
                    if let Err(error) = sending.await {
                        core.fail(error);
                    }
                });
                drop(sent.await);
                self.core.end().cloned().map_or(Ok(()), Err)
            }
        }
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
