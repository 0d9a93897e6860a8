//! [`Context`]: what a handler knows about its call besides the arguments.

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::serving::Serving;
use crate::address::Peer;
use crate::bulk::BulkMemory;
use crate::core::Core;
use crate::error::Result;
use crate::metadata::Metadata;
use crate::once::Windows;
use crate::wire::{CallId, ONE_WAY};

/// Context of a call: its deadline, its metadata, the peer, and whether the caller still waits.
///
/// A handler whose call is cancelled, or whose deadline has passed, is dropped at its next `await`.
/// A task that the handler has started is not: it can watch a clone of the context
/// ([`Self::cancelled`]).
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

    /// Returns the answers that the server keeps.
    pub(crate) fn windows(&self) -> &Windows {
        &Serving::of(&self.core).shared.once
    }

    pub(super) fn parts(&self) -> (Arc<Core>, CallId) {
        (Arc::clone(&self.core), self.id)
    }

    /// Returns the caller's end of the connection.
    pub fn peer(&self) -> &Peer {
        &self.core.peer
    }

    /// Returns the identity of the client that [authentication](crate::Server::authenticate) has
    /// found, which is empty without authentication.
    pub fn identity(&self) -> &Metadata {
        Serving::of(&self.core).identity()
    }

    /// Returns the metadata that the caller sent.
    pub fn metadata(&self) -> &Metadata {
        &self.metadata
    }

    /// Allocates zeroed memory for a [`Bulk`](crate::Bulk) that the connection can transfer without
    /// a copy.
    ///
    /// # Errors
    ///
    /// [`Error::Transport`](crate::Error::Transport) if memory cannot be registered, and the error
    /// that ended the connection.
    pub fn bulk_memory(&self, len: usize) -> Result<BulkMemory> {
        BulkMemory::for_peer(&self.core, len)
    }

    /// Returns the time at which the caller stops waiting and the handler is dropped; `None` if the
    /// call has no deadline.
    pub fn deadline(&self) -> Option<Instant> {
        let deadline = self.core.deadlines.time(self.deadline);
        deadline.map(tokio::time::Instant::into_std)
    }

    /// Returns the time left until the deadline; `None` if the call has no deadline.
    pub fn remaining(&self) -> Option<Duration> {
        let deadline = self.core.deadlines.time(self.deadline)?;
        Some(deadline.saturating_duration_since(tokio::time::Instant::now()))
    }

    /// Returns whether the call has ended: the caller has given it up, its deadline has passed, its
    /// connection has ended, or its handler has finished. A one-way call ends with its connection.
    pub fn is_cancelled(&self) -> bool {
        self.core.end().is_some()
            || (self.id.index != ONE_WAY && !Serving::of(&self.core).slots.is_running(self.id))
    }

    /// Waits until the call has ended, see [`Self::is_cancelled`].
    pub async fn cancelled(&self) {
        if self.id.index == ONE_WAY {
            self.core.ended().await;
            return;
        }
        // The end of the connection ends its calls.
        let slots = &Serving::of(&self.core).slots;
        let Some(watch) = slots.watch(self.id) else {
            return;
        };
        let mut ended = std::pin::pin!(watch.notified());
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
