//! [`Access`]: memory of the peer that this end may access, until the call or the lease ends.

use std::fmt;
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::Notify;

use super::{Bulk, Kind, scope};
use crate::codec::CodecError;
use crate::core::Core;
use crate::error::BulkError;
use crate::wire::{Header, LeaseId};

/// Access to a bulk of the peer, which all clones of the bulk and its transfers share.
pub(super) struct Access {
    core: Arc<Core>,
    lease: LeaseId,
    /// Set for a result: its owner waits until this end does not need it any more.
    is_result: bool,
    state: Mutex<State>,
    /// Notification of the end of the last piece.
    idle: Notify,
}

#[derive(Debug, Default)]
struct State {
    /// Number of pieces that are being transferred.
    in_flight: usize,
    /// Set once no further piece may be transferred.
    is_closed: bool,
    /// Set once the owner has requested the end of the access.
    is_revoked: bool,
}

impl Access {
    pub(super) fn core(&self) -> &Arc<Core> {
        &self.core
    }

    pub(super) fn lease(&self) -> LeaseId {
        self.lease
    }

    /// Begins the transfer of a piece, which lasts until the returned value is dropped.
    pub(super) fn enter(self: &Arc<Self>) -> Result<Entered, BulkError> {
        let mut state = self.state.lock();
        if state.is_closed {
            return Err(BulkError::Ended);
        }
        state.in_flight += 1;
        Ok(Entered(Arc::clone(self)))
    }

    /// Allows no further piece.
    fn close(&self) {
        self.state.lock().is_closed = true;
    }

    /// Ends the access at the request of the owner, who is told when the last piece has ended.
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

    /// Tells the owner that this end does not access the memory any more.
    fn release(&self) {
        let lease = self.lease;
        // A connection that has ended has ended the lease, too.
        drop(self.core.outbox.append_bare(&Header::Release { lease }));
    }

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

/// Piece that is being transferred.
pub(super) struct Entered(Arc<Access>);

impl Drop for Entered {
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

/// Access to the bulks of one request, which ends with the call.
#[derive(Clone, Default)]
pub(crate) struct Accesses(Option<Arc<[Arc<Access>]>>);

impl Accesses {
    fn all(&self) -> &[Arc<Access>] {
        self.0.as_deref().unwrap_or_default()
    }

    /// Allows no further transfer.
    pub(crate) fn close(&self) {
        self.all().iter().for_each(|access| access.close());
    }

    /// Returns whether no piece is being transferred.
    pub(crate) fn is_idle(&self) -> bool {
        self.all().iter().all(|access| access.is_idle())
    }

    /// Waits until no piece is being transferred.
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

/// Decodes a value with `decode`, and gives this end access to the bulks of the peer that the value
/// has. `is_result` is set for a result.
pub(crate) fn decode<T>(
    core: &Arc<Core>,
    is_result: bool,
    decode: impl FnOnce() -> Result<T, CodecError>,
) -> Result<(T, Accesses), CodecError> {
    let (decoded, received) = scope::decoding(decode);
    if received.is_empty() {
        return Ok((decoded?, Accesses::default()));
    }
    let bound = decoded.and_then(|value| Ok((value, bind_all(core, is_result, &received)?)));
    if bound.is_err() && is_result {
        release_unbound(core, &received);
    }
    let (value, accesses) = bound?;
    Ok((value, Accesses(Some(accesses.into()))))
}

/// Gives this end access to the bulks of one value.
fn bind_all(
    core: &Arc<Core>,
    is_result: bool,
    received: &[Bulk],
) -> Result<Vec<Arc<Access>>, CodecError> {
    let mut accesses = Vec::with_capacity(received.len());
    for bulk in received {
        let access = bind(core, is_result, bulk, &accesses)?;
        accesses.push(access);
    }
    Ok(accesses)
}

/// Tells the owner of bulks of a result that this end does not access those to which it has no
/// access.
fn release_unbound(core: &Core, received: &[Bulk]) {
    for bulk in received {
        if let Kind::Peer(peer) = &*bulk.0
            && peer.access.get().is_none()
        {
            let lease = LeaseId(peer.token.lease);
            // A connection that has ended has ended the lease, too.
            drop(core.outbox.append_bare(&Header::Release { lease }));
        }
    }
}

/// Gives this end access to a bulk of the peer. A bulk that the value has several times shares one
/// of the accesses `former`, so that the lease ends with the last of them.
fn bind(
    core: &Arc<Core>,
    is_result: bool,
    bulk: &Bulk,
    former: &[Arc<Access>],
) -> Result<Arc<Access>, CodecError> {
    let Kind::Peer(peer) = &*bulk.0 else {
        return Err(CodecError::new("a decoded bulk is one of the peer"));
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
