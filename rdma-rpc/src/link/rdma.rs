//! [`RdmaLink`]: the RDMA transport. Messages of one piece are handled within the poll that
//! receives them, longer messages in a task.

use std::alloc::Layout;
use std::sync::Arc;

use rdma_async::{LocalMr, LocalMrReadAccess, LocalMrSlice, Rdma};

use crate::core::Core;
use crate::error::Error;
use crate::outbox::Batch;
use crate::payload::{Buffer, Message};

/// One end of an RDMA connection, which sends batches (messages with one or more frames) and
/// receives messages.
#[derive(Debug)]
pub(crate) struct RdmaLink {
    rdma: Rdma,
}

impl RdmaLink {
    pub(super) fn new(rdma: Rdma) -> Self {
        Self { rdma }
    }

    pub(super) fn rdma(&self) -> &Rdma {
        &self.rdma
    }

    /// Allocates `len` bytes of registered memory, which may contain bytes of earlier messages.
    pub(super) fn allocate(&self, len: usize) -> Result<Buffer, Error> {
        let layout = Layout::from_size_align(len.max(1), 8).map_err(|_| Error::TooLarge {
            len,
            limit: isize::MAX as usize,
        })?;
        Ok(Buffer::Region(self.rdma.alloc_local_mr_stale(layout)?))
    }

    /// Posts the message in `batch` to the send queue without waiting. Returns `false` if the
    /// message cannot be posted now: the peer has no receive buffer left, the message is longer
    /// than the peer's receive buffers, or the send queue is full. The caller must then use
    /// [`Self::send`]. Returns `true` otherwise.
    pub(super) fn try_send(&self, batch: &mut Batch) -> Result<bool, Error> {
        match self.rdma.try_post(&message_of(batch)?) {
            Err(rdma_async::Error::InvalidArgument { .. }) => Ok(false),
            outcome => Ok(outcome?),
        }
    }

    /// Posts the message in `batch`. Waits until the send queue and the peer can accept the
    /// message. If the message is longer than the peer's receive buffers, waits until the peer has
    /// read it.
    pub(super) async fn send(&self, batch: &mut Batch) -> Result<(), Error> {
        Ok(self.rdma.post(&message_of(batch)?).await?)
    }

    /// Makes rdma-async call this connection directly for each short message. The call happens
    /// within the poll that receives the message, so that no task must be woken. [`Self::receive`]
    /// handles the other messages: long messages, messages that arrive before the peer's settings,
    /// and messages that arrive while a server has too many messages to send.
    pub(super) fn handle_messages(&self, core: &Arc<Core>) {
        // The connection owns this link, so a strong reference would form a cycle.
        let weak = Arc::downgrade(core);
        let set = self.rdma.handle_messages(move |message, _| {
            let core = weak.upgrade()?;
            // The peer's settings are the first message. Later messages must not be handled
            // earlier.
            if core.peer_settings().is_none() || !core.has_room() {
                return Some(message);
            }
            // The polling thread may belong to another runtime, or to no runtime.
            let _entered = core.runtime.enter();
            core.handle(Message::Owned(Buffer::Region(message.region)));
            None
        });
        if let Err(error) = set {
            core.fail(error.into());
        }
    }

    /// Receives and handles messages until the connection ends, and returns the reason for the end.
    /// Gets only messages that the callback of [`Self::handle_messages`] has not handled.
    pub(super) async fn receive(&self, core: &Arc<Core>) -> Error {
        loop {
            core.wait_for_room().await;
            match self.rdma.receive().await {
                Ok(region) => core.handle(Message::Owned(Buffer::Region(region))),
                Err(error) if self.rdma.failure().is_some() => return error.into(),
                // The transport reports the refusal to the peer.
                Err(error) => tracing::warn!(%error, "a message could not be received"),
            }
        }
    }
}

/// Returns the message of `batch` as a part of its registered buffer, for sending by RDMA. Fails if
/// the buffer is not registered.
fn message_of(batch: &mut Batch) -> Result<LocalMrSlice<'_>, Error> {
    let len = batch.len();
    let region = match batch.buffer() {
        Buffer::Region(region) => region as &LocalMr,
        Buffer::Heap(_) => {
            return Err(Error::disconnected("a message is not in registered memory"));
        }
    };
    debug_assert!(len <= region.length());
    let part = region.get(0..len);
    part.ok_or_else(|| Error::disconnected("a message is longer than its memory"))
}
