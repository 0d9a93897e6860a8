//! The message handler: a function of the program that is called within the poll that finds a
//! message.

use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::OnceLock;

use super::Connection;
use super::send_state::{AwaitedBy, PostTime};
use crate::error::{Error, Result};
use crate::memory::{LocalMr, LocalMrReadAccess};

/// A message that is passed to the handler of [`Rdma::handle_messages`], within the poll that found
/// it.
///
/// [`Rdma::handle_messages`]: crate::Rdma::handle_messages
#[derive(Debug)]
pub struct Message {
    /// The bytes of the message.
    pub region: LocalMr,
    /// The immediate data that was sent with the message.
    pub immediate: Option<u32>,
}

/// Handle with which a message handler posts messages on its connection, without waiting.
#[derive(Debug)]
pub struct Poster<'c> {
    connection: &'c Connection,
}

impl Poster<'_> {
    /// Posts a message, but never waits. Returns `false`, and posts nothing, if the peer has no
    /// room for a further message or the send queue is full. The device gets the message at the end
    /// of the turn.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidArgument`] for a message that is longer than one piece, [`Error::Verbs`] if
    /// the device refuses the request, and the error that ended the connection.
    pub fn try_post(&self, message: &impl LocalMrReadAccess) -> Result<bool> {
        self.connection.try_post_message(message)
    }
}

type Handle = dyn Fn(Message, &Poster<'_>) -> Option<Message> + Send + Sync;

/// Message handler of a connection, if the program has set one.
#[derive(Default)]
pub(super) struct Handler {
    handle: OnceLock<Box<Handle>>,
}

impl fmt::Debug for Handler {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Handler")
            .field("is_set", &self.handle.get().is_some())
            .finish()
    }
}

impl Connection {
    /// Sets the handler of messages of one piece.
    pub(crate) fn handle_messages(
        &self,
        handle: impl Fn(Message, &Poster<'_>) -> Option<Message> + Send + Sync + 'static,
    ) -> Result<()> {
        let set = self.handler.handle.set(Box::new(handle));
        set.map_err(|_| Error::invalid("message handler", "the connection has one already"))
    }

    /// Passes a message to the handler. Returns the message if no handler is set or the handler
    /// returned it.
    #[inline]
    pub(super) fn offer_to_handler(&self, message: Message) -> Option<Message> {
        match self.handler.handle.get() {
            None => Some(message),
            Some(handle) => self.run_handler(handle, message),
        }
    }

    fn run_handler(&self, handle: &Handle, message: Message) -> Option<Message> {
        let poster = Poster { connection: self };
        // A panic here would end the task that polls for every connection of the shard.
        match catch_unwind(AssertUnwindSafe(|| handle(message, &poster))) {
            Ok(None) => {
                self.taken();
                None
            }
            Ok(left) => left,
            Err(_) => {
                self.fail(Error::disconnected("its message handler panicked"));
                None
            }
        }
    }

    /// Posts a message of the application. Returns `false` if that would have to wait.
    pub(crate) fn try_post_message(&self, message: &impl LocalMrReadAccess) -> Result<bool> {
        if message.length() > self.peer_payload {
            let reason = format!(
                "{} bytes are more than the {} that one piece has: send it",
                message.length(),
                self.peer_payload
            );
            return Err(Error::invalid("message to post at once", reason));
        }
        let how = (AwaitedBy::Nothing, PostTime::AtTurnEnd);
        self.try_begin_send(message, None, how)
            .map(|number| number.is_some())
    }
}
