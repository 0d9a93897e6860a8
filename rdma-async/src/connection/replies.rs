//! Replies of the peer that futures wait for: to a request for memory, and to a long message.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};

use parking_lot::{Mutex, MutexGuard};
use rdma_core::memory::LentMemory;
use tokio::sync::oneshot;

use super::frame::Refusal;
use super::requests::MAX_WAITING;
use crate::error::{Error, Result};
use crate::memory::RemoteMr;

/// Maximum number of requests of this end that the peer has not yet answered. A request counts even
/// if the future that waited for the reply was dropped. Equal to [`MAX_WAITING`], the maximum
/// number of requests that a peer queues.
const MAX_UNANSWERED: usize = MAX_WAITING;

/// Reply of the peer to a request of this end for memory, or notification that the peer has read,
/// or could not read, a long message of this end.
#[derive(Debug)]
pub(super) enum Reply {
    /// Memory that the peer lends. Dropping the region releases the lease.
    Granted(RemoteMr),
    Refused(Refusal),
    Read(bool),
}

/// Table of the replies that this end expects from the peer. Each entry has the id of its request,
/// which the reply repeats.
#[derive(Debug, Default)]
pub(super) struct PendingReplies {
    table: Mutex<Table>,
    /// Number of bytes that are lent to the peer until replies arrive.
    lent: AtomicUsize,
}

#[derive(Debug, Default)]
struct Table {
    last_id: u64,
    entries: HashMap<u64, Entry>,
    failure: Option<Error>,
}

/// A reply that the peer is expected to send. Contains the channel on which the waiting future gets
/// the reply. If the request was a long message, also contains the memory of the message: the peer
/// can read this memory until the reply arrives.
#[derive(Debug)]
struct Entry {
    sender: oneshot::Sender<Result<Reply>>,
    /// Memory that is lent to the peer until the reply arrives, even if no future waits for it any
    /// more.
    lent: Option<LentMemory>,
}

/// Handle of a future that waits for a reply of the peer. If the handle is dropped after the
/// request was sent, the reply stays in the table of expected replies ([`PendingReplies`]) until
/// the reply arrives. Until then, the peer can read a long message of this end. A late grant of
/// memory is also still recognized, and does not count as memory that this end has not requested.
#[derive(Debug)]
pub(super) struct PendingReply<'a> {
    pub(super) id: u64,
    receiver: oneshot::Receiver<Result<Reply>>,
    replies: &'a PendingReplies,
}

impl PendingReplies {
    /// Adds an expected reply to the table, and returns the handle by which a future waits for it.
    /// `lent` is memory that is lent to the peer until the reply arrives.
    pub(super) fn register(&self, lent: Option<LentMemory>) -> PendingReply<'_> {
        self.register_in(self.table.lock(), lent)
    }

    /// Adds an expected reply to the table like [`Self::register`], unless [`MAX_UNANSWERED`]
    /// replies are already expected: then fails. A peer that never replies thus cannot make the
    /// table grow without limit. `what` is the name of the request in the error.
    pub(super) fn register_limited(
        &self,
        what: &'static str,
        lent: Option<LentMemory>,
    ) -> Result<PendingReply<'_>> {
        let table = self.table.lock();
        if table.entries.len() >= MAX_UNANSWERED {
            drop(table);
            let reason = format!("{MAX_UNANSWERED} earlier requests are unanswered").into();
            return Err(Error::Refused { what, reason });
        }
        Ok(self.register_in(table, lent))
    }

    fn register_in(
        &self,
        mut table: MutexGuard<'_, Table>,
        lent: Option<LentMemory>,
    ) -> PendingReply<'_> {
        let (sender, receiver) = oneshot::channel();
        table.last_id += 1;
        let id = table.last_id;
        match &table.failure {
            Some(error) => drop(sender.send(Err(error.clone()))),
            None => {
                let bytes = lent.as_ref().map_or(0, |lent| lent.len());
                self.lent.fetch_add(bytes, Ordering::Relaxed);
                table.entries.insert(id, Entry { sender, lent });
            }
        }
        PendingReply {
            id,
            receiver,
            replies: self,
        }
    }

    /// Returns whether this end expects the reply to a request with the id `id`.
    pub(super) fn expects(&self, id: u64) -> bool {
        self.table.lock().entries.contains_key(&id)
    }

    /// Passes the peer's reply to the request `id` to the future that waits for the reply. Returns
    /// the reply as an error if no future waits.
    pub(super) fn deliver(&self, id: u64, reply: Reply) -> Result<(), Reply> {
        let entry = self.table.lock().entries.remove(&id);
        let Some(Entry { sender, lent }) = entry else {
            return Err(reply);
        };
        // The peer's access ends before the waiting future gets its memory back.
        self.unlend(lent);
        sender.send(Ok(reply)).map_err(|unsent| match unsent {
            Ok(reply) => reply,
            Err(_) => unreachable!("the sent value is a reply"),
        })
    }

    /// Returns the total length, in bytes, of the long messages of this end that are lent to the
    /// peer: the peer may read them by RDMA, and has not yet confirmed the read.
    pub(super) fn lent_bytes(&self) -> usize {
        self.lent.load(Ordering::Relaxed)
    }

    /// Ends the peer's access to the memory `lent` of a long message, by dropping the memory.
    /// Subtracts its length from the number that [`Self::lent_bytes`] returns. Does nothing for
    /// `None`.
    fn unlend(&self, lent: Option<LentMemory>) {
        if let Some(lent) = lent {
            self.lent.fetch_sub(lent.len(), Ordering::Relaxed);
        }
    }

    /// Ends all waits for replies of the peer with `error`, because the connection has ended. Later
    /// waits get the same error.
    pub(super) fn fail(&self, error: &Error) {
        let entries = {
            let mut table = self.table.lock();
            table.failure = Some(error.clone());
            std::mem::take(&mut table.entries)
        };
        for Entry { sender, lent } in entries.into_values() {
            self.unlend(lent);
            drop(sender.send(Err(error.clone())));
        }
    }
}

impl PendingReply<'_> {
    /// Closes the channel to the future that would wait for the reply. The caller must call this
    /// function before it sends the request. The thread that receives the reply then handles the
    /// reply itself.
    pub(super) fn close(&mut self) {
        self.receiver.close();
    }

    /// Waits for the reply of the peer, or for the error that ends the connection. Returns `None`
    /// if the reply was removed from the table of expected replies before.
    pub(super) async fn wait(&mut self) -> Option<Result<Reply>> {
        (&mut self.receiver).await.ok()
    }

    /// Returns a guard for sending the request to which the peer will reply. Dropping the guard
    /// removes the reply from the list of expected replies, unless the caller has set `is_sent`
    /// because the request was sent.
    pub(super) fn remove_unless_sent(&self) -> RemoveUnlessSent<'_> {
        RemoveUnlessSent {
            replies: self.replies,
            id: self.id,
            is_sent: false,
        }
    }
}

/// Guard that removes a reply from the list of expected replies when it is dropped. Does nothing if
/// `is_sent` is set: the request was sent, so the peer will reply.
#[derive(Debug)]
pub(super) struct RemoveUnlessSent<'a> {
    replies: &'a PendingReplies,
    id: u64,
    pub(super) is_sent: bool,
}

impl Drop for RemoveUnlessSent<'_> {
    fn drop(&mut self) {
        if !self.is_sent {
            let removed = self.replies.table.lock().entries.remove(&self.id);
            self.replies.unlend(removed.and_then(|entry| entry.lent));
        }
    }
}
