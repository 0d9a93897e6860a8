//! [`BulkTable`]: the leases of one connection and its permissions to access the peer's memory, and
//! the handling of received frames about bulk memory.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Weak};

use parking_lot::Mutex;
use tokio::sync::{Notify, Semaphore, oneshot};

use super::access::Access;
use super::lease::LeaseState;
use super::piece::{MAX_PIECE_LEN, MAX_PIECES_IN_FLIGHT};
use crate::core::Core;
use crate::error::Result;
use crate::outbox::{AppendError, Appended, MAX_BATCH_LEN, SendAt, send_long};
use crate::payload::{Body, Message, Payload};
use crate::wire::{BulkFrame, Header, LeaseId, Violation};

/// Maximum number of pieces of lent memory that this end sends at the same time at the peer's
/// request. A further request is a protocol violation. A correct peer has far fewer requests
/// outstanding: at most `MAX_TURNS * MAX_PIECES_IN_FLIGHT`. The factor 8 is a tolerance, because
/// this end sometimes still counts pieces that the peer has already received.
const MAX_PIECES_BEING_SENT: usize = 8 * MAX_TURNS * MAX_PIECES_IN_FLIGHT;

/// Maximum number of transfers of a connection that move bytes at the same time. Further transfers
/// wait. With two transfers at a time, a transfer can start while another transfer waits for its
/// last data.
const MAX_TURNS: usize = 2;

/// Maximum number of bytes of new memory that the running long reads of a connection use together.
/// Further long reads wait. A read counts as at most half of this number, even if its memory is
/// longer. The limit of concurrent transfers does not suffice, because a long read keeps its memory
/// while other transfers run.
pub(super) const MAX_READ_MEMORY: usize = 64 << 20;

/// Limit, in bytes, of this end's unsent data at which the peer can still request answers about
/// bulk memory. A request above the limit is a protocol violation, because further answers would
/// exhaust the memory. A correct peer never causes the violation: a server stops handling messages
/// at a far lower number of unsent bytes, and requests only few pieces at a time from its client.
const MAX_UNSENT: usize = 4 << 20;

/// Maximum number of [`Bulk`](crate::Bulk)s that a server lends at the same time in the results of
/// one connection's calls. Limited because each lent bulk occupies resources of the device. A
/// result that would exceed the limit is not sent: its call fails with
/// [`Error::BadResponse`](crate::Error::BadResponse).
pub(super) const MAX_RESULTS: usize = 1 << 10;

/// State of all bulk memory of a connection: memory that this end has lent to the peer, and memory
/// of the peer that this end may access.
#[derive(Debug)]
pub(crate) struct BulkTable {
    /// Maximum length in bytes of a bulk of the peer.
    limit: usize,
    /// Number of the last lease of this end.
    last_lease: AtomicU64,
    leases: Mutex<HashMap<LeaseId, Arc<LeaseState>>>,
    /// Number of leases of results that have not ended.
    pub(super) results: AtomicUsize,
    /// Notification that the last lease of a result has ended.
    pub(super) results_ended: Notify,
    /// Permissions to access memory of the peer.
    borrowed: Mutex<HashMap<LeaseId, Weak<Access>>>,
    /// Number of pieces that were requested so far. The next request gets this number as its tag.
    last_tag: AtomicU32,
    /// Receivers of the peer's answers to the pieces that were requested, by tag.
    answers: Mutex<HashMap<u32, oneshot::Sender<PieceAnswer>>>,
    /// Permits to begin pieces. A transfer holds one permit during its turn. The number of permits
    /// is limited, so that calls can proceed between pieces.
    pub(super) turns: Semaphore,
    /// Permits for the bytes of new memory of long reads, see [`MAX_READ_MEMORY`].
    pub(super) read_memory: Semaphore,
    /// Approximate number of messages that have arrived on the connection.
    messages: AtomicU64,
    /// Number of pieces that are being sent to the peer.
    served: Arc<AtomicUsize>,
}

/// Answer of the peer to a request to read or write one piece of bulk memory that the peer owns.
#[derive(Debug)]
pub(super) struct PieceAnswer {
    /// Set if the lease has ended, so that no byte was read or written.
    pub(super) has_ended: bool,
    /// Bytes of the piece after a read. Empty after a write.
    pub(super) bytes: Payload,
}

impl BulkTable {
    /// Creates the table of the memory that the two ends of a connection lend to each other.
    /// `limit` is the maximum length in bytes of a [`Bulk`](crate::Bulk) that this end accepts from
    /// the peer.
    pub(crate) fn new(limit: usize) -> Self {
        Self {
            limit,
            last_lease: AtomicU64::new(0),
            leases: Mutex::default(),
            results: AtomicUsize::new(0),
            results_ended: Notify::new(),
            borrowed: Mutex::default(),
            last_tag: AtomicU32::new(0),
            answers: Mutex::default(),
            turns: Semaphore::new(MAX_TURNS),
            read_memory: Semaphore::new(MAX_READ_MEMORY),
            messages: AtomicU64::new(0),
            served: Arc::default(),
        }
    }

    /// Waits until all leases of results have ended: the peer has dropped the
    /// [`Bulk`](crate::Bulk)s of the results, or the leases (permissions to access their memory)
    /// have expired. The caller must ensure that this end sends no further result.
    pub(crate) async fn wait_for_result_leases(&self) {
        loop {
            let mut ended = std::pin::pin!(self.results_ended.notified());
            ended.as_mut().enable();
            if self.results.load(Ordering::SeqCst) == 0 {
                return;
            }
            ended.await;
        }
    }

    /// Returns whether a transfer of this connection is reading or writing bulk memory of the peer.
    pub(crate) fn is_transferring(&self) -> bool {
        self.turns.available_permits() < MAX_TURNS
    }

    /// Counts a message that has arrived on the connection. While the count changes, transfers of
    /// lent memory use shorter pieces, so that the calls of these messages do not wait long.
    #[inline]
    pub(crate) fn count_message(&self) {
        // Two threads may lose a count, which does no harm: only a change of the number matters.
        let messages = self.messages.load(Ordering::Relaxed).wrapping_add(1);
        self.messages.store(messages, Ordering::Relaxed);
    }

    /// Returns the number of messages that have arrived on the connection. The number is
    /// approximate: if two threads count messages at the same time, one message is perhaps not
    /// counted.
    pub(super) fn messages(&self) -> u64 {
        self.messages.load(Ordering::Relaxed)
    }

    /// Returns the maximum length in bytes of a [`Bulk`](crate::Bulk) that this end accepts from
    /// the peer.
    pub(super) fn limit(&self) -> usize {
        self.limit
    }

    /// Adds memory that this end lends to the peer, and returns the ID of the lease. Frames of the
    /// peer refer to the lease by this ID.
    pub(super) fn add_lease(&self, lease: &Arc<LeaseState>) -> LeaseId {
        let id = LeaseId(self.last_lease.fetch_add(1, Ordering::Relaxed) + 1);
        self.leases.lock().insert(id, Arc::clone(lease));
        id
    }

    pub(super) fn remove_lease(&self, id: LeaseId) {
        self.leases.lock().remove(&id);
    }

    fn lease(&self, id: LeaseId) -> Option<Arc<LeaseState>> {
        self.leases.lock().get(&id).cloned()
    }

    /// Adds `access`, this end's permission to access memory of the peer, to this table. `id` is
    /// the ID by which the peer can later revoke the permission.
    pub(super) fn add_borrowed(&self, id: LeaseId, access: &Arc<Access>) {
        self.borrowed.lock().insert(id, Arc::downgrade(access));
    }

    pub(super) fn remove_borrowed(&self, id: LeaseId) {
        self.borrowed.lock().remove(&id);
    }

    /// Returns a new tag for a request to read or write a piece of the peer's bulk memory. Also
    /// returns the channel that receives the peer's answer with this tag.
    pub(super) fn expect_answer(&self) -> (u32, oneshot::Receiver<PieceAnswer>) {
        let (sender, receiver) = oneshot::channel();
        // Few answers are expected at a time, so a tag is free again when the counter wraps around.
        let tag = self.last_tag.fetch_add(1, Ordering::Relaxed);
        self.answers.lock().insert(tag, sender);
        (tag, receiver)
    }

    /// Stops waiting for the peer's answer to the request with this tag. A later answer is ignored.
    pub(super) fn forget_answer(&self, tag: u32) {
        self.answers.lock().remove(&tag);
    }

    /// Fails all requests to read or write bulk memory that the peer has not answered. Called when
    /// the connection has ended.
    pub(crate) fn fail(&self) {
        self.answers.lock().clear();
    }

    /// Handles a received frame about bulk memory: a request, an answer or a release of the peer.
    /// The fields of the frame can have arbitrary values. `message` contains the frame. If
    /// `is_last` is set, the frame is the last of its message: the bytes of an answer are then not
    /// copied, but stay in the buffer of the message.
    pub(crate) fn handle(
        &self,
        core: &Arc<Core>,
        frame: BulkFrame,
        message: &mut Message<'_>,
        is_last: bool,
    ) -> Result<()> {
        let is_answered = !matches!(frame, BulkFrame::Answer { .. });
        if is_answered && !core.outbox.has_room() && core.outbox.queued_in_batches() > MAX_UNSENT {
            return Err(Violation::Bulk.into());
        }
        match frame {
            BulkFrame::Read {
                lease,
                tag,
                at,
                len,
            } => self.serve_read(core, lease, tag, (at, len))?,
            BulkFrame::Write {
                lease,
                tag,
                at,
                body,
            } => {
                let bytes = message.bytes().get(body).unwrap_or_default();
                let state = self.lease(lease);
                let written = state.map_or(Ok(false), |state| state.write(at, bytes))?;
                self.answer(core, lease, tag, !written)?;
            }
            BulkFrame::Answer {
                tag,
                has_ended,
                body,
                ..
            } => {
                let bytes = match Body::take(message, body, is_last) {
                    Body::Short(bytes) => bytes.into(),
                    Body::Long(retained) => retained.into(),
                };
                let expecting = self.answers.lock().remove(&tag);
                if let Some(expecting) = expecting {
                    // The transfer may have been dropped.
                    drop(expecting.send(PieceAnswer { has_ended, bytes }));
                }
            }
            BulkFrame::Revoke { lease } => {
                let access = self.borrowed.lock().get(&lease).and_then(Weak::upgrade);
                match access {
                    Some(access) => access.revoke(),
                    // This end has already dropped the bulk, so nothing accesses the memory.
                    None => core.send_control(&Header::Release { lease }),
                }
            }
            BulkFrame::Release { lease } => {
                if let Some(state) = self.lease(lease) {
                    state.set_released();
                }
            }
        }
        Ok(())
    }

    /// Answers the peer's request for `len` bytes at the offset `at` of leased memory. If the lease
    /// has ended, the answer contains no bytes.
    fn serve_read(
        &self,
        core: &Arc<Core>,
        lease: LeaseId,
        tag: u32,
        (at, len): (u64, u32),
    ) -> Result<()> {
        if len as usize > MAX_PIECE_LEN
            || self.served.load(Ordering::Relaxed) >= MAX_PIECES_BEING_SENT
        {
            return Err(Violation::Bulk.into());
        }
        let place = |bytes: &[u8]| {
            let has_ended = false;
            let header = Header::BulkAnswer {
                lease,
                tag,
                has_ended,
            };
            core.outbox
                .append(&header, bytes, core.send_limit(), SendAt::TurnEnd)
        };
        let state = self.lease(lease);
        let appended = state.map_or(Ok(None), |state| state.read(at, len, place))?;
        match appended {
            None => self.answer(core, lease, tag, true),
            Some(Ok(Appended::Batched)) => Ok(()),
            Some(Ok(Appended::Long(batch))) => {
                let served = PieceBeingSent::new(&self.served);
                let sending = send_long(Arc::clone(core), batch);
                let core = Arc::clone(core);
                core.runtime.clone().spawn(async move {
                    if let Err(error) = sending.await {
                        core.fail(error);
                    }
                    drop(served);
                });
                Ok(())
            }
            // The connection has ended.
            Some(Err(AppendError::Transport(_))) => Ok(()),
            Some(Err(error)) => Err(error.into_error()),
        }
    }

    /// Answers the peer's request `tag` to read or write lent memory, without data. If `has_ended`
    /// is set, the answer says that the memory is no longer lent. Otherwise the answer confirms a
    /// write.
    fn answer(&self, core: &Core, lease: LeaseId, tag: u32, has_ended: bool) -> Result<()> {
        let header = Header::BulkAnswer {
            lease,
            tag,
            has_ended,
        };
        let appended = core
            .outbox
            .append(&header, &[][..], MAX_BATCH_LEN, SendAt::TurnEnd);
        appended.map(drop).map_err(AppendError::into_error)
    }
}

/// Guard that counts a piece of bulk memory that is being sent to the peer, until the guard is
/// dropped. The limit is [`MAX_PIECES_BEING_SENT`].
struct PieceBeingSent(Arc<AtomicUsize>);

impl PieceBeingSent {
    fn new(count: &Arc<AtomicUsize>) -> Self {
        count.fetch_add(1, Ordering::Relaxed);
        Self(Arc::clone(count))
    }
}

impl Drop for PieceBeingSent {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}
