//! The client side: calls to a server.

mod builder;
mod calls;
mod receiver;

use std::fmt;
use std::marker::PhantomData;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use rdma_async::Rdma;
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::net::ToSocketAddrs;
use tokio::task::AbortHandle;
use tokio::time::{Instant, timeout_at};

pub use self::builder::ClientBuilder;
use self::calls::{Answer, Calls};
use crate::codec::{Codec, CodecError, Postcard, RAW};
use crate::error::{Error, Result};
use crate::message::{ComposeError, Composer, Outgoing, Payload};
use crate::wire::{Header, METHOD_LIMIT};

/// A client of an RPC server. Any number of calls can be in progress at once on its connection.
///
/// Clones share the connection, which ends when the last clone is dropped.
///
/// Dropping the future of a call abandons the call: its answer is discarded on arrival. The handler may
/// still run, at most until the deadline of the call.
pub struct Client<C = Postcard> {
    handle: Arc<Handle>,
    deadline: Duration,
    codec: PhantomData<fn() -> C>,
}

/// State shared by the clones of a client. Dropping it ends the receiving task.
#[derive(Debug)]
struct Handle {
    connection: Arc<Connection>,
    receiver: AbortHandle,
}

/// State shared by the calls and the receiving task.
#[derive(Debug)]
struct Connection {
    rdma: Rdma,
    calls: Calls,
    message_limit: usize,
}

impl Drop for Handle {
    fn drop(&mut self) {
        self.receiver.abort();
    }
}

impl<C> Clone for Client<C> {
    fn clone(&self) -> Self {
        Self {
            handle: Arc::clone(&self.handle),
            deadline: self.deadline,
            codec: PhantomData,
        }
    }
}

impl<C> fmt::Debug for Client<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Client")
            .field("peer", &self.peer_address())
            .field("deadline", &self.deadline)
            .finish_non_exhaustive()
    }
}

impl Client {
    /// Returns a builder for a client with other settings than the defaults.
    pub fn builder() -> ClientBuilder {
        ClientBuilder::default()
    }

    /// Connects to the server that listens at a TCP address.
    ///
    /// # Errors
    ///
    /// The errors of [`ClientBuilder::connect`].
    pub async fn connect(address: impl ToSocketAddrs) -> Result<Self> {
        Self::builder().connect(address).await
    }

    /// Creates a client with default settings that uses an existing connection. The client receives all
    /// messages of the connection from now on.
    ///
    /// # Panics
    ///
    /// If called outside of a tokio runtime.
    pub fn new(rdma: Rdma) -> Self {
        Self::builder().over(rdma)
    }
}

impl<C> Client<C> {
    /// Returns a client that uses the same connection with the codec `D`.
    #[must_use]
    pub fn codec<D: Codec>(&self) -> Client<D> {
        Client {
            handle: Arc::clone(&self.handle),
            deadline: self.deadline,
            codec: PhantomData,
        }
    }

    /// Returns a client that uses the same connection with another deadline for its calls.
    #[must_use]
    pub fn with_deadline(&self, limit: Duration) -> Self {
        Self {
            deadline: limit,
            ..self.clone()
        }
    }

    /// Returns the time within which a call must have its answer.
    pub fn deadline(&self) -> Duration {
        self.deadline
    }

    /// Returns the TCP address of the server.
    pub fn peer_address(&self) -> SocketAddr {
        self.handle.connection.rdma.peer_address()
    }

    /// Returns the error that ended the connection; `None` while calls can be made.
    pub fn failure(&self) -> Option<Error> {
        self.handle.connection.calls.end().cloned()
    }

    /// Calls a method with `request` as the unencoded body, and returns the unencoded body of the
    /// response, in the memory that it was received in. In each direction the bytes are copied once,
    /// into the memory that they are sent from.
    ///
    /// The method must have been added by [`Router::raw`](crate::Router::raw).
    ///
    /// # Errors
    ///
    /// The errors of [`Self::call`].
    pub async fn call_raw(&self, method: &str, request: &[u8]) -> Result<Payload> {
        let compose = |composer: Composer<'_>, header| composer.copied(header, method, request);
        self.perform(method, self.deadline, RAW, compose).await
    }

    /// Sends a request and waits for its answer, for at most `limit`.
    async fn perform(
        &self,
        method: &str,
        limit: Duration,
        codec: u8,
        compose: impl FnOnce(Composer<'_>, Header) -> Result<Outgoing, ComposeError>,
    ) -> Result<Payload> {
        let exceeded = || Error::DeadlineExceeded {
            method: method.to_owned(),
            limit,
        };
        if limit.is_zero() {
            return Err(exceeded());
        }
        let Some(deadline) = Instant::now().checked_add(limit) else {
            return self
                .handle
                .connection
                .perform(method, codec, || limit, compose)
                .await;
        };
        let left = || deadline.saturating_duration_since(Instant::now());
        let answer = self.handle.connection.perform(method, codec, left, compose);
        timeout_at(deadline, answer)
            .await
            .unwrap_or_else(|_| Err(exceeded()))
    }
}

impl<C: Codec> Client<C> {
    /// Calls a method with the client's deadline, and returns its decoded response.
    ///
    /// # Errors
    ///
    /// See [`Error`], which also says after which errors the connection can still be used.
    pub async fn call<Request, Response>(&self, method: &str, request: &Request) -> Result<Response>
    where
        Request: Serialize + ?Sized,
        Response: DeserializeOwned,
    {
        self.call_within(self.deadline, method, request).await
    }

    /// Calls a method that must answer within `deadline`, which replaces the client's deadline. With a
    /// zero `deadline` nothing is sent, and the call fails with [`Error::DeadlineExceeded`].
    ///
    /// # Errors
    ///
    /// The errors of [`Self::call`].
    pub async fn call_within<Request, Response>(
        &self,
        deadline: Duration,
        method: &str,
        request: &Request,
    ) -> Result<Response>
    where
        Request: Serialize + ?Sized,
        Response: DeserializeOwned,
    {
        let compose =
            |composer: Composer<'_>, header| composer.encoded::<C, _>(header, method, request);
        let payload = self.perform(method, deadline, C::ID, compose).await?;
        C::decode(&payload).map_err(Error::Decode)
    }
}

impl Connection {
    async fn perform(
        &self,
        method: &str,
        codec: u8,
        left: impl FnOnce() -> Duration,
        compose: impl FnOnce(Composer<'_>, Header) -> Result<Outgoing, ComposeError>,
    ) -> Result<Payload> {
        let unknown = || Error::UnknownMethod {
            method: method.to_owned(),
        };
        let method_len = u16::try_from(method.len())
            .ok()
            .filter(|_| method.len() <= METHOD_LIMIT)
            .ok_or_else(unknown)?;
        let call = self.calls.begin().await?;
        let header = Header::Request {
            id: call.id(),
            deadline: left(),
            codec,
            method_len,
        };
        let composer = Composer {
            rdma: &self.rdma,
            limit: self.message_limit,
        };
        let message = compose(composer, header)?;
        if let Err(error) = message.post(&self.rdma).await {
            return Err(self.unsent(error, message.len()));
        }
        // The message is kept until the answer arrives: by then the device has finished sending it, and
        // its memory can be reused at once.
        match call.answer().await {
            Answer::Response {
                codec: answered,
                payload,
            } if answered == codec => Ok(payload),
            Answer::Response {
                codec: answered, ..
            } => Err(Error::Decode(CodecError::new(format!(
                "it is of codec {answered}, and the request of {codec}"
            )))),
            Answer::Failure(failure) => Err(failure.into_error(method, message.len())),
            Answer::Ended(end) => Err(end),
        }
    }

    /// Converts the error of a request that could not be sent.
    fn unsent(&self, error: rdma_async::Error, len: usize) -> Error {
        match error {
            // A server refuses a message only because of its size.
            rdma_async::Error::Refused { .. } => Error::TooLarge {
                what: "request",
                len,
                limit: None,
            },
            // If the server ended the connection, the server's reason explains more than the transport
            // error.
            error => self.calls.end().cloned().unwrap_or(Error::Transport(error)),
        }
    }
}

impl From<ComposeError> for Error {
    fn from(error: ComposeError) -> Self {
        match error {
            ComposeError::Codec(error) => Self::Encode(error),
            ComposeError::TooLarge { len, limit } => Self::TooLarge {
                what: "request",
                len,
                limit: Some(limit),
            },
            ComposeError::Memory(error) => Self::Transport(error),
        }
    }
}
