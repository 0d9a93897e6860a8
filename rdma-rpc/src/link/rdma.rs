//! RDMA: messages of one piece are handled within the poll that finds them, longer ones in a task.

use std::alloc::Layout;
use std::sync::Arc;

use rdma_async::{LocalMr, LocalMrReadAccess, LocalMrSlice, Rdma};

use crate::core::Core;
use crate::error::Error;
use crate::outbox::Batch;
use crate::payload::{Buffer, Message};

/// An RDMA connection.
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

    pub(super) fn allocate(&self, len: usize) -> Result<Buffer, Error> {
        let layout = Layout::from_size_align(len.max(1), 8).map_err(|_| Error::TooLarge {
            len,
            limit: isize::MAX as usize,
        })?;
        Ok(Buffer::Region(self.rdma.alloc_local_mr_stale(layout)?))
    }

    /// Posts a batch. If the peer has no room, or takes only shorter pieces, the flusher sends it.
    pub(super) fn try_send(&self, batch: &mut Batch) -> Result<bool, Error> {
        match self.rdma.try_post(&part(batch)?) {
            Err(rdma_async::Error::InvalidArgument { .. }) => Ok(false),
            outcome => Ok(outcome?),
        }
    }

    pub(super) async fn send(&self, batch: &mut Batch) -> Result<(), Error> {
        Ok(self.rdma.post(&part(batch)?).await?)
    }

    /// Passes each message of one piece to the connection within the poll that finds it. While the
    /// connection has no room for answers, messages are left to [`Self::receive`].
    pub(super) fn handle_messages(&self, core: &Arc<Core>) {
        // The connection holds this link, so the handler must not hold the connection.
        let weak = Arc::downgrade(core);
        let set = self.rdma.handle_messages(move |message, _| {
            let core = weak.upgrade()?;
            // The peer's settings come first: a message behind them must not be handled before
            // them.
            if core.others().is_none() || !core.has_room() {
                return Some(message);
            }
            // The thread that polls may belong to another runtime, or to none.
            let _entered = core.runtime.enter();
            core.handle(Message::Owned(Buffer::Region(message.region)));
            None
        });
        if let Err(error) = set {
            core.fail(error.into());
        }
    }

    /// Receives the messages that no poll has handled, until the connection ends.
    pub(super) async fn receive(&self, core: &Arc<Core>) -> Error {
        loop {
            core.room().await;
            match self.rdma.receive().await {
                Ok(region) => core.handle(Message::Owned(Buffer::Region(region))),
                Err(error) if self.rdma.failure().is_some() => return error.into(),
                // The transport reports the refusal to the peer.
                Err(error) => tracing::warn!(%error, "a message could not be received"),
            }
        }
    }
}

/// Returns the message of a batch in its registered memory.
fn part(batch: &mut Batch) -> Result<LocalMrSlice<'_>, Error> {
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
