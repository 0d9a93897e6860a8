//! The client: the connection to a server, which the clients of services share.

mod builder;
mod calls;
mod incoming;
mod perform;
mod streaming;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

pub use self::builder::ClientBuilder;
pub(crate) use self::calls::Calls;
pub use self::streaming::{Response, Streaming};
use crate::address::{Peer, ToAddress};
use crate::bulk::BulkMemory;
use crate::core::Core;
use crate::error::{Error, Result};
use crate::metadata::Metadata;
use crate::outbox::Sent;

/// A connection to a server, on which the clients of services make calls: `StoreClient::new(client)`.
/// Any number of calls can be in progress at once.
///
/// Clones share the connection, which ends when the last clone is dropped. A clone can have its own
/// deadline and metadata.
///
/// Dropping the future of a call cancels the call: the server drops its handler.
#[derive(Clone)]
pub struct Client {
    handle: Arc<Handle>,
    deadline: Duration,
    /// Set if [`Self::with_deadline`] has set the deadline, which then also limits streaming calls.
    has_own_deadline: bool,
    metadata: Metadata,
}

/// Connection of a client and its clones, which ends when this value is dropped.
#[derive(Debug)]
struct Handle {
    core: Arc<Core>,
}

impl Drop for Handle {
    fn drop(&mut self) {
        // One-way requests of this turn of the scheduler have not left yet.
        if let Err(error) = self.core.outbox.flush() {
            tracing::debug!(%error, "a client's last requests were not sent");
        }
        self.core
            .fail(Error::disconnected("the client was dropped"));
    }
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Client")
            .field("peer", self.peer())
            .field("deadline", &self.deadline)
            .finish_non_exhaustive()
    }
}

impl Client {
    /// Returns a builder for a client with other settings than the defaults.
    pub fn builder() -> ClientBuilder {
        ClientBuilder::default()
    }

    /// Connects to the server at an address: `rdma://host:port`, `tcp://host:port`, or the
    /// [`Address`](crate::Address) of a server of this process.
    ///
    /// # Errors
    ///
    /// The errors of [`ClientBuilder::connect`].
    pub async fn connect(address: impl ToAddress) -> Result<Self> {
        Self::builder().connect(address).await
    }

    /// Returns a client of the same connection whose calls must be answered within `limit`. Streaming
    /// calls have a deadline only if this function has set one.
    ///
    /// With a zero `limit` nothing is sent, and calls fail with [`Error::DeadlineExceeded`].
    #[must_use]
    pub fn with_deadline(&self, limit: Duration) -> Self {
        Self {
            deadline: limit,
            has_own_deadline: true,
            ..self.clone()
        }
    }

    /// Returns a client of the same connection whose requests carry this metadata.
    #[must_use]
    pub fn with_metadata(&self, metadata: Metadata) -> Self {
        Self {
            metadata,
            ..self.clone()
        }
    }

    /// Returns the time within which a unary call must have its answer.
    pub fn deadline(&self) -> Duration {
        self.deadline
    }

    /// Returns the server's end of the connection.
    pub fn peer(&self) -> &Peer {
        &self.core().peer
    }

    /// Returns the numbers of frames and messages that this end of the connection has sent. Several
    /// requests of one turn of the scheduler share a message.
    pub fn sent(&self) -> Sent {
        self.core().outbox.counts()
    }

    /// Allocates zeroed memory for a [`Bulk`](crate::Bulk) that this connection can transfer without a copy.
    ///
    /// # Errors
    ///
    /// [`Error::Transport`] if memory cannot be registered, and the error that ended the connection.
    pub fn bulk_memory(&self, len: usize) -> Result<BulkMemory> {
        BulkMemory::for_peer(self.core(), len)
    }

    /// Returns the error that ended the connection; `None` while the connection is open.
    pub fn failure(&self) -> Option<Error> {
        self.core().end().cloned()
    }

    /// Waits until the connection has ended, and returns the error that ended it.
    pub async fn ended(&self) -> Error {
        self.core().ended().await
    }

    fn core(&self) -> &Arc<Core> {
        &self.handle.core
    }
}
