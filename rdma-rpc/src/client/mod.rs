//! Calling.

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

/// Calls the methods of a server, any number at once on one connection.
///
/// Clones share the connection, which ends with the last of them.
///
/// Dropping a call's future gives the call up: nobody waits for its answer, which is discarded when
/// it comes. The handler may still run, up to the call's deadline.
pub struct Client<C = Postcard> {
    handle: Arc<Handle>,
    deadline: Duration,
    codec: PhantomData<fn() -> C>,
}

/// What the clones of a client share; the receiving task ends with it.
#[derive(Debug)]
struct Handle {
    connection: Arc<Connection>,
    receiver: AbortHandle,
}

/// What the calls and the receiving task share.
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
    /// Settings other than the defaults.
    pub fn builder() -> ClientBuilder {
        ClientBuilder::default()
    }

    /// Connects to the server that listens at a TCP address.
    ///
    /// # Errors
    ///
    /// As [`ClientBuilder::connect`].
    pub async fn connect(address: impl ToSocketAddrs) -> Result<Self> {
        Self::builder().connect(address).await
    }

    /// Makes a client of a connection, whose messages are all for it from now on.
    ///
    /// # Panics
    ///
    /// Outside of a tokio runtime.
    pub fn new(rdma: Rdma) -> Self {
        Self::builder().over(rdma)
    }
}

impl<C> Client<C> {
    /// The same connection with another codec.
    #[must_use]
    pub fn codec<D: Codec>(&self) -> Client<D> {
        Client {
            handle: Arc::clone(&self.handle),
            deadline: self.deadline,
            codec: PhantomData,
        }
    }

    /// The same connection with another deadline for each call.
    #[must_use]
    pub fn with_deadline(&self, limit: Duration) -> Self {
        Self {
            deadline: limit,
            ..self.clone()
        }
    }

    /// How long a call waits for its answer.
    pub fn deadline(&self) -> Duration {
        self.deadline
    }

    /// The server's TCP address.
    pub fn peer_address(&self) -> SocketAddr {
        self.handle.connection.rdma.peer_address()
    }

    /// Why no more calls can be made; `None` while they can.
    pub fn failure(&self) -> Option<Error> {
        self.handle.connection.calls.end().cloned()
    }

    /// Calls a method with bytes, and returns those that it answers, where they were received: each
    /// way they are copied once, into the memory that they are sent from.
    ///
    /// The method is one of [`Router::raw`](crate::Router::raw).
    ///
    /// # Errors
    ///
    /// As [`Self::call`].
    pub async fn call_raw(&self, method: &str, request: &[u8]) -> Result<Payload> {
        let compose = |composer: Composer<'_>, header| composer.copied(header, method, request);
        self.perform(method, self.deadline, RAW, compose).await
    }

    /// Sends a request and waits for its answer.
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
    /// Calls a method.
    ///
    /// # Errors
    ///
    /// [`Error`] says what can go wrong, and whether the connection is of use afterwards.
    pub async fn call<Request, Response>(&self, method: &str, request: &Request) -> Result<Response>
    where
        Request: Serialize + ?Sized,
        Response: DeserializeOwned,
    {
        self.call_within(self.deadline, method, request).await
    }

    /// Calls a method with a deadline of its own. One of zero is over before anything is sent.
    ///
    /// # Errors
    ///
    /// As [`Self::call`].
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
        // The message is kept until the answer is there: then the device is done with it, and its
        // memory is free for the next one at once.
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

    /// Why a request could not be sent.
    fn unsent(&self, error: rdma_async::Error, len: usize) -> Error {
        match error {
            // Its size is what a server refuses a message for.
            rdma_async::Error::Refused { .. } => Error::TooLarge {
                what: "request",
                len,
                limit: None,
            },
            // What the server said before it went is more to the point.
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
