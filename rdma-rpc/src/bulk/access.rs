//! [`Access`]: the permission to access memory of the peer until the lease ends.

use std::fmt;
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::Notify;

use super::{Bulk, BulkKind, scope};
use crate::codec::CodecError;
use crate::core::Core;
use crate::error::BulkError;
use crate::wire::{Header, LeaseId};

/// Permission of this end to read or write the memory of one [`Bulk`] that the peer lends. All
/// clones of the bulk share the permission. After the permission has ended, [`Self::begin_piece`]
/// fails, so that transfers of the bulk stop.
pub(super) struct Access {
    core: Arc<Core>,
    lease: LeaseId,
    /// Set for a bulk of a result. The owner of such a bulk lends the memory until this end sends a
    /// release. The lease of an argument ends with the call instead.
    is_result: bool,
    state: Mutex<State>,
    /// Notification that the last piece in flight has ended.
    idle: Notify,
}

/// State of an [`Access`], the permission to use memory that the peer lends. Contains the number of
/// pieces of the memory that are being transferred, and whether the permission has ended.
#[derive(Debug, Default)]
struct State {
    /// Number of pieces of the memory, of at most 64 KiB each, that are being transferred.
    in_flight: usize,
    /// Set once the permission has ended, so that no further piece may be transferred.
    is_closed: bool,
    /// Set once the owner of the memory has requested the end of the permission. A release frame
    /// then confirms the end to the owner after the last piece.
    is_revoked: bool,
}

impl Access {
    pub(super) fn core(&self) -> &Arc<Core> {
        &self.core
    }

    pub(super) fn lease(&self) -> LeaseId {
        self.lease
    }

    /// Counts a piece (at most 64 KiB) of the peer's memory as being transferred, until the
    /// returned guard is dropped. Fails if the permission to access the memory has ended. The
    /// permission ends when its call ends, or when the peer requests the memory back.
    pub(super) fn begin_piece(self: &Arc<Self>) -> Result<PieceInFlight, BulkError> {
        let mut state = self.state.lock();
        if state.is_closed {
            return Err(BulkError::Ended);
        }
        state.in_flight += 1;
        Ok(PieceInFlight(Arc::clone(self)))
    }

    /// Ends the permission to access memory that the peer lends for a call. Called when the call
    /// has ended at this end of the connection. Afterwards, each transfer of the memory fails
    /// before its next piece.
    fn close(&self) {
        self.state.lock().is_closed = true;
    }

    /// Ends the permission to access the peer's memory. Called when the peer, which owns the
    /// memory, requests this. Sends the peer a release frame, which confirms the end, as soon as no
    /// piece of the memory is being transferred.
    pub(super) fn revoke(&self) {
        let is_idle = {
            let mut state = self.state.lock();
            state.is_closed = true;
            state.is_revoked = true;
            state.in_flight == 0
        };
        if is_idle {
            self.release();
        }
    }

    /// Sends a release frame to the peer, which owns the memory. The frame confirms that this end
    /// no longer accesses the memory.
    fn release(&self) {
        let lease = self.lease;
        self.core.send_control(&Header::Release { lease });
    }

    /// Waits until no bytes of the memory that the peer lends are being transferred.
    async fn idle(&self) {
        loop {
            let mut idle = std::pin::pin!(self.idle.notified());
            idle.as_mut().enable();
            if self.is_idle() {
                return;
            }
            idle.await;
        }
    }

    /// Returns `true` if no piece of the memory that the peer lends is being transferred.
    fn is_idle(&self) -> bool {
        self.state.lock().in_flight == 0
    }
}

impl Drop for Access {
    fn drop(&mut self) {
        self.core.bulks.remove_borrowed(self.lease);
        if self.is_result && !self.state.get_mut().is_revoked {
            self.release();
        }
    }
}

/// Guard for the transfer of one piece (at most 64 KiB) of the peer's memory. The [`Access`] counts
/// the piece as in flight until the guard is dropped.
pub(super) struct PieceInFlight(Arc<Access>);

impl Drop for PieceInFlight {
    fn drop(&mut self) {
        let (is_idle, is_revoked) = {
            let mut state = self.0.state.lock();
            state.in_flight -= 1;
            (state.in_flight == 0, state.is_revoked)
        };
        if is_idle {
            self.0.idle.notify_waiters();
            if is_revoked {
                self.0.release();
            }
        }
    }
}

/// Permissions to access the memory of all [`Bulk`]s in one received request or result. The
/// permissions of a request end with its call.
#[derive(Clone, Default)]
pub(crate) struct Accesses(Option<Arc<[Arc<Access>]>>);

impl Accesses {
    fn all(&self) -> &[Arc<Access>] {
        self.0.as_deref().unwrap_or_default()
    }

    /// Ends all permissions to access memory that the peer lends for a call. Called when the call
    /// ends. Afterwards, transfers of this memory fail before they transfer more bytes.
    pub(crate) fn close(&self) {
        self.all().iter().for_each(|access| access.close());
    }

    /// Returns `true` if no piece of the memory that the peer lends for a call is being
    /// transferred.
    pub(crate) fn is_idle(&self) -> bool {
        self.all().iter().all(|access| access.is_idle())
    }

    /// Waits until no bytes of the memory that the peer lends for a call are being transferred.
    pub(crate) async fn idle(&self) {
        for access in self.all() {
            access.idle().await;
        }
    }
}

impl fmt::Debug for Accesses {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Accesses")
            .field("len", &self.all().len())
            .finish_non_exhaustive()
    }
}

/// Decodes a received request or result with `decode`. Returns the decoded value, and permissions
/// to access the memory of the value's [`Bulk`]s, which the peer lends.
///
/// The permissions of a request end with the call. The peer gets a message about this end only if
/// the peer has requested the memory back. If `is_result` is set, the value is a result: this end
/// sends the peer a message when this end no longer uses the memory.
pub(crate) fn decode<T>(
    core: &Arc<Core>,
    is_result: bool,
    decode: impl FnOnce() -> Result<T, CodecError>,
) -> Result<(T, Accesses), CodecError> {
    let (decoded, received) = scope::decode_in_scope(decode);
    if received.is_empty() {
        return Ok((decoded?, Accesses::default()));
    }
    let bound = decoded.and_then(|value| Ok((value, open_all(core, is_result, &received)?)));
    if bound.is_err() && is_result {
        release_unopened(core, &received);
    }
    let (value, accesses) = bound?;
    Ok((value, Accesses(Some(accesses.into()))))
}

/// Creates a permission to access the peer's memory for each [`Bulk`] in `received`, which lists
/// the bulks of one decoded value. Fails if a bulk is too long or does not belong to the peer.
fn open_all(
    core: &Arc<Core>,
    is_result: bool,
    received: &[Bulk],
) -> Result<Vec<Arc<Access>>, CodecError> {
    let mut accesses = Vec::with_capacity(received.len());
    for bulk in received {
        let access = open_access(core, is_result, bulk, &accesses)?;
        accesses.push(access);
    }
    Ok(accesses)
}

/// Informs the peer that this end will not use the memory of the [`Bulk`]s in `received`. Called
/// when the result that contains these bulks is invalid. Skips each bulk for which a permission (an
/// [`Access`]) already exists: dropping the permission informs the peer.
fn release_unopened(core: &Core, received: &[Bulk]) {
    for bulk in received {
        if let BulkKind::Peer(peer) = &*bulk.0
            && peer.access.get().is_none()
        {
            let lease = LeaseId(peer.token.lease);
            core.send_control(&Header::Release { lease });
        }
    }
}

/// Returns the permission to access the peer's memory of `bulk`, a [`Bulk`] in a received request
/// or result. `former` lists the permissions of the preceding bulks in the same message. If `bulk`
/// is a clone of a preceding bulk, returns the permission of that bulk. Otherwise creates a
/// permission. Clones share a permission, so that the memory is released only after all clones were
/// dropped.
fn open_access(
    core: &Arc<Core>,
    is_result: bool,
    bulk: &Bulk,
    former: &[Arc<Access>],
) -> Result<Arc<Access>, CodecError> {
    let BulkKind::Peer(peer) = &*bulk.0 else {
        return Err(CodecError::new("a decoded bulk must belong to the peer"));
    };
    let (len, limit) = (peer.token.len, core.bulks.limit());
    if usize::try_from(len).map_or(true, |len| len > limit) {
        let reason = format!("a bulk of {len} bytes is longer than the limit of {limit}");
        return Err(CodecError::new(reason));
    }
    let lease = LeaseId(peer.token.lease);
    if let Some(shared) = former.iter().find(|access| access.lease == lease) {
        return Ok(Arc::clone(peer.access.get_or_init(|| Arc::clone(shared))));
    }
    let access = peer.access.get_or_init(|| {
        Arc::new(Access {
            core: Arc::clone(core),
            lease,
            is_result,
            state: Mutex::default(),
            idle: Notify::new(),
        })
    });
    core.bulks.add_borrowed(lease, access);
    Ok(Arc::clone(access))
}
