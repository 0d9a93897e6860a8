//! [`Table`]: the bulk memory of one connection, and the frames about it.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Weak};

use parking_lot::Mutex;
use tokio::sync::{Semaphore, oneshot};

use super::access::Access;
use super::lease::LeaseState;
use super::piece::{IN_FLIGHT, PIECE};
use crate::core::Core;
use crate::error::Result;
use crate::outbox::{BATCH, Leaves, Placed, Unplaced, send_long};
use crate::payload::{Body, Message, Payload};
use crate::wire::{BulkHead, Header, LeaseId, Violation};

/// Maximum number of pieces that a peer may have requested and not received yet. A peer that keeps
/// the rules has [`IN_FLIGHT`] of them, besides some whose end this end has not noticed yet.
const MAX_SERVED: usize = 8 * IN_FLIGHT;

/// Maximum number of bytes that wait to be sent while further frames of the peer are answered. A
/// server stops reading long before, and a client that keeps the rules has far fewer.
const MAX_UNSENT: usize = 4 << 20;

/// Maximum number of results that a peer may keep at a time. Each needs resources of the device.
pub(super) const MAX_RESULTS: usize = 1 << 10;

/// Leases of this end of a connection, and memory of the peer that this end accesses.
#[derive(Debug)]
pub(crate) struct Table {
    /// Maximum length in bytes of a bulk of the peer.
    limit: usize,
    last_lease: AtomicU64,
    leases: Mutex<HashMap<LeaseId, Arc<LeaseState>>>,
    /// Number of leases of results.
    pub(super) results: AtomicUsize,
    borrowed: Mutex<HashMap<LeaseId, Weak<Access>>>,
    last_tag: AtomicU32,
    /// Transfers of pieces that wait for the answer of the peer.
    answers: Mutex<HashMap<u32, oneshot::Sender<Answer>>>,
    /// Permits to transfer a piece, so that the pieces of all bulks leave room for calls.
    pub(super) pieces: Semaphore,
    /// Number of pieces that are being sent to the peer.
    served: Arc<AtomicUsize>,
}

/// Answer to the transfer of a piece.
#[derive(Debug)]
pub(super) struct Answer {
    /// Set if the lease has ended.
    pub(super) has_ended: bool,
    /// Bytes of a read.
    pub(super) bytes: Payload,
}

impl Table {
    /// Creates the table of a connection whose peer may send bulks of up to `limit` bytes.
    pub(crate) fn new(limit: usize) -> Self {
        Self {
            limit,
            last_lease: AtomicU64::new(0),
            leases: Mutex::default(),
            results: AtomicUsize::new(0),
            borrowed: Mutex::default(),
            last_tag: AtomicU32::new(0),
            answers: Mutex::default(),
            pieces: Semaphore::new(IN_FLIGHT),
            served: Arc::default(),
        }
    }

    /// Returns the maximum length in bytes of a bulk of the peer.
    pub(super) fn limit(&self) -> usize {
        self.limit
    }

    /// Adds a lease of this end, and returns its number.
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

    /// Adds memory of the peer that this end may access.
    pub(super) fn add_borrowed(&self, id: LeaseId, access: &Arc<Access>) {
        self.borrowed.lock().insert(id, Arc::downgrade(access));
    }

    pub(super) fn remove_borrowed(&self, id: LeaseId) {
        self.borrowed.lock().remove(&id);
    }

    /// Returns a number for the transfer of a piece, and the receiver of its answer.
    pub(super) fn expect_answer(&self) -> (u32, oneshot::Receiver<Answer>) {
        let (sender, receiver) = oneshot::channel();
        // Few answers are expected at a time, so a tag is not in use when its number comes again.
        let tag = self.last_tag.fetch_add(1, Ordering::Relaxed);
        self.answers.lock().insert(tag, sender);
        (tag, receiver)
    }

    /// Expects no answer any more.
    pub(super) fn forget_answer(&self, tag: u32) {
        self.answers.lock().remove(&tag);
    }

    /// Ends all waits for answers, because the connection has ended.
    pub(crate) fn fail(&self) {
        self.answers.lock().clear();
    }

    /// Handles a frame of bulk memory, which may hold any numbers.
    pub(crate) fn handle(
        &self,
        core: &Arc<Core>,
        head: BulkHead,
        message: &mut Message<'_>,
        is_last: bool,
    ) -> Result<()> {
        let is_answered = !matches!(head, BulkHead::Answer { .. });
        if is_answered && !core.outbox.has_room() && core.outbox.queued() > MAX_UNSENT {
            return Err(Violation::Bulk.into());
        }
        match head {
            BulkHead::Read {
                lease,
                tag,
                at,
                len,
            } => self.serve_read(core, lease, tag, (at, len))?,
            BulkHead::Write {
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
            BulkHead::Answer {
                tag,
                has_ended,
                body,
                ..
            } => {
                let bytes = match Body::take(message, body, is_last) {
                    Body::Short(bytes) => bytes.into(),
                    Body::Long(kept) => kept.into(),
                };
                let expecting = self.answers.lock().remove(&tag);
                if let Some(expecting) = expecting {
                    // Nobody may wait any more.
                    drop(expecting.send(Answer { has_ended, bytes }));
                }
            }
            BulkHead::Revoke { lease } => {
                let access = self.borrowed.lock().get(&lease).and_then(Weak::upgrade);
                match access {
                    Some(access) => access.revoke(),
                    // This end does not access the memory, and has no token of it any more.
                    None => core.outbox.append_bare(&Header::Release { lease })?,
                }
            }
            BulkHead::Release { lease } => {
                if let Some(state) = self.lease(lease) {
                    state.set_released();
                }
            }
        }
        Ok(())
    }

    /// Sends a piece of leased memory to the peer.
    fn serve_read(
        &self,
        core: &Arc<Core>,
        lease: LeaseId,
        tag: u32,
        (at, len): (u64, u32),
    ) -> Result<()> {
        if len as usize > PIECE || self.served.load(Ordering::Relaxed) >= MAX_SERVED {
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
                .append(&header, bytes, core.send_limit(), Leaves::AtTurnEnd)
        };
        let state = self.lease(lease);
        let placed = state.map_or(Ok(None), |state| state.read(at, len, place))?;
        match placed {
            None => self.answer(core, lease, tag, true),
            Some(Ok(Placed::Batched)) => Ok(()),
            Some(Ok(Placed::Long(batch))) => {
                let served = Served::new(&self.served);
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
            Some(Err(Unplaced::Transport(_))) => Ok(()),
            Some(Err(unplaced)) => Err(unplaced.into_error()),
        }
    }

    fn answer(&self, core: &Core, lease: LeaseId, tag: u32, has_ended: bool) -> Result<()> {
        let header = Header::BulkAnswer {
            lease,
            tag,
            has_ended,
        };
        let placed = core
            .outbox
            .append(&header, &[][..], BATCH, Leaves::AtTurnEnd);
        placed.map(drop).map_err(Unplaced::into_error)
    }
}

/// Piece that is being sent, until this value is dropped.
struct Served(Arc<AtomicUsize>);

impl Served {
    fn new(count: &Arc<AtomicUsize>) -> Self {
        count.fetch_add(1, Ordering::Relaxed);
        Self(Arc::clone(count))
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}
