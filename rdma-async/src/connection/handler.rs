//! The message handler: a function of the program that is called within the poll that has found a
//! message.

use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::OnceLock;

use super::Connection;
use super::send_state::UNAWAITED;
use crate::error::{Error, Result};
use crate::memory::{LocalMr, LocalMrReadAccess};

/// A received message that is passed to the message handler, the function that the program has set
/// with [`Rdma::handle_messages`].
///
/// [`Rdma::handle_messages`]: crate::Rdma::handle_messages
#[derive(Debug)]
pub struct Message {
    /// Registered memory with the bytes of the message.
    pub region: LocalMr,
    /// Immediate data that was sent with the message, or `None` if the peer sent none.
    pub immediate: Option<u32>,
}

/// Handle by which a message handler posts messages on its connection without waiting.
#[derive(Debug)]
pub struct Poster<'c> {
    connection: &'c Connection,
}

impl Poster<'_> {
    /// Posts a message without waiting. Returns `false`, and posts nothing, if the peer cannot
    /// accept another message or the send queue is full. The message is posted to the device,
    /// together with other messages, at the end of the current turn (round) of the task that polls
    /// for completions.
    ///
    /// # Errors
    ///
    /// - [`Error::InvalidArgument`] if the message is longer than the peer's
    ///   [`message_length`](crate::RdmaBuilder::message_length).
    /// - [`Error::Verbs`] if the device refuses the request.
    /// - The error that ended the connection.
    pub fn try_post(&self, message: &impl LocalMrReadAccess) -> Result<bool> {
        self.connection.try_post_message(message)
    }
}

/// Function of the program that is called for each message that arrives in one piece. The function
/// can post messages with the [`Poster`]. To leave a message unhandled, the function returns the
/// message: the program then gets the message from a receive, as without a handler.
type HandlerFn = dyn Fn(Message, &Poster<'_>) -> Option<Message> + Send + Sync;

/// The message handler of a connection: a function of the program, or none until the program sets a
/// function.
#[derive(Default)]
pub(super) struct Handler {
    handle: OnceLock<Box<HandlerFn>>,
}

impl Handler {
    pub(super) fn is_set(&self) -> bool {
        self.handle.get().is_some()
    }
}

impl fmt::Debug for Handler {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Handler")
            .field("is_set", &self.handle.get().is_some())
            .finish()
    }
}

impl Connection {
    /// Sets the function that is called for each message of at most
    /// [`RdmaBuilder::message_length`](crate::RdmaBuilder::message_length) bytes, see
    /// [`Rdma::handle_messages`](crate::Rdma::handle_messages). Fails if a function is already set.
    pub(crate) fn handle_messages(
        &self,
        handle: impl Fn(Message, &Poster<'_>) -> Option<Message> + Send + Sync + 'static,
    ) -> Result<()> {
        let set = self.handler.handle.set(Box::new(handle));
        set.map_err(|_| Error::invalid("message handler", "the connection already has a handler"))
    }

    /// Passes a received message to the program's message handler. Returns the message if no
    /// handler is set or the handler has returned it.
    #[inline]
    pub(super) fn offer_to_handler(&self, message: Message) -> Option<Message> {
        match self.handler.handle.get() {
            None => Some(message),
            Some(handle) => self.run_handler(handle, message),
        }
    }

    /// Calls `handle`, the program's message handler, with a received message. Returns the message
    /// if the handler returns it unhandled. Ends the connection if the handler panics.
    fn run_handler(&self, handle: &HandlerFn, message: Message) -> Option<Message> {
        let poster = Poster { connection: self };
        // A panic in the handler would otherwise end the driver, which polls for all connections of
        // the shard.
        match catch_unwind(AssertUnwindSafe(|| handle(message, &poster))) {
            Ok(None) => {
                self.owe_data_credit();
                None
            }
            Ok(left) => left,
            Err(_) => {
                self.fail(Error::disconnected("its message handler panicked"));
                None
            }
        }
    }

    /// Posts a message of the application without waiting. Returns `false`, and posts nothing, if
    /// the peer has no free receive for the message, or the send queue is full. Fails for a message
    /// that does not fit into one receive of the peer.
    pub(crate) fn try_post_message(&self, message: &impl LocalMrReadAccess) -> Result<bool> {
        if message.length() > self.peer_payload {
            let reason = format!(
                "{} bytes exceed the peer's message length of {} bytes: use `send`",
                message.length(),
                self.peer_payload
            );
            return Err(Error::invalid("message to post", reason));
        }
        self.try_begin_send(message, None, UNAWAITED)
            .map(|number| number.is_some())
    }
}
