//! [`Context`]: information about a call for its handler.

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::connection::ServerConnection;
use crate::address::Peer;
use crate::bulk::BulkMemory;
use crate::core::Core;
use crate::error::Result;
use crate::metadata::Metadata;
use crate::once::{AnswerCache, ConnectionClient};
use crate::wire::{CallId, ONE_WAY};

/// Context of a call, which a handler gets as an argument: the deadline, the metadata, the peer and
/// the cancellation of the call.
///
/// When a call is cancelled or its deadline passes, the handler is dropped at its next `await`. A
/// task that the handler has spawned is not dropped: the task can wait for the cancellation with a
/// clone of the context ([`Self::cancelled`]).
#[derive(Clone)]
pub struct Context {
    core: Arc<Core>,
    id: CallId,
    deadline: u64,
    metadata: Metadata,
}

impl Context {
    pub(super) fn new(core: &Arc<Core>, id: CallId, deadline: u64, metadata: Metadata) -> Self {
        Self {
            core: Arc::clone(core),
            id,
            deadline,
            metadata,
        }
    }

    /// Returns the server's store of answers to calls of methods with `#[rpc(once)]`. Repeated
    /// requests are answered from this store.
    pub(crate) fn answer_cache(&self) -> &AnswerCache {
        &ServerConnection::of(&self.core).shared.once
    }

    /// Returns the record of the client at the other end of this connection: its identifier, and
    /// the time at which the connection was accepted. Used for calls of methods with
    /// `#[rpc(once)]`.
    pub(crate) fn connection_client(&self) -> &ConnectionClient {
        &ServerConnection::of(&self.core).once_client
    }

    /// Returns the connection and the ID of the call, for the call's streams.
    pub(super) fn parts(&self) -> (Arc<Core>, CallId) {
        (Arc::clone(&self.core), self.id)
    }

    /// Returns the description of the client that made the call, such as its address.
    pub fn peer(&self) -> &Peer {
        &self.core.peer
    }

    /// Returns the identity that the [authentication](crate::Server::authenticate) function
    /// returned. Empty without authentication.
    pub fn identity(&self) -> &Metadata {
        ServerConnection::of(&self.core).identity()
    }

    /// Returns the metadata that the caller has sent with the request.
    pub fn metadata(&self) -> &Metadata {
        &self.metadata
    }

    /// Allocates zeroed memory for a [`Bulk`](crate::Bulk) that this connection can transfer
    /// without a copy.
    ///
    /// # Errors
    ///
    /// * [`Error::Transport`](crate::Error::Transport) if the memory cannot be registered.
    /// * [`Error::Bulk`](crate::Error::Bulk) if the memory cannot be allocated.
    /// * The error that ended the connection.
    pub fn bulk_memory(&self, len: usize) -> Result<BulkMemory> {
        BulkMemory::for_peer(&self.core, len)
    }

    /// Returns the deadline of the call, at which the server drops the handler because the caller
    /// no longer waits. Returns `None` if the call has no deadline.
    pub fn deadline(&self) -> Option<Instant> {
        let deadline = self.core.deadlines.time(self.deadline);
        deadline.map(tokio::time::Instant::into_std)
    }

    /// Returns the remaining time until the deadline, or `None` if the call has no deadline.
    pub fn remaining(&self) -> Option<Duration> {
        let deadline = self.core.deadlines.time(self.deadline)?;
        Some(deadline.saturating_duration_since(tokio::time::Instant::now()))
    }

    /// Returns whether the call has ended. A call ends when the caller cancels it, when its
    /// deadline passes, when its connection ends, or when its handler finishes. A one-way call ends
    /// with its connection.
    pub fn is_cancelled(&self) -> bool {
        self.core.end().is_some()
            || (self.id.index != ONE_WAY
                && !ServerConnection::of(&self.core).slots.is_running(self.id))
    }

    /// Waits until the call has ended, see [`Self::is_cancelled`].
    pub async fn cancelled(&self) {
        if self.id.index == ONE_WAY {
            self.core.ended().await;
            return;
        }
        // When the connection ends, its calls end, too.
        let slots = &ServerConnection::of(&self.core).slots;
        let Some(end_notify) = slots.end_notify(self.id) else {
            return;
        };
        let mut ended = std::pin::pin!(end_notify.notified());
        ended.as_mut().enable();
        if slots.is_running(self.id) {
            ended.await;
        }
    }
}

impl fmt::Debug for Context {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Context")
            .field("peer", self.peer())
            .field("remaining", &self.remaining())
            .field("metadata", &self.metadata)
            .finish_non_exhaustive()
    }
}
