//! [`Lease`]: bulk memory of this end that the peer may access.

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use parking_lot::Mutex;
use rdma_async::{Lent, LocalMrReadAccess, RdmaDevice};
use tokio::sync::Notify;
use tokio::time::{Instant, sleep, sleep_until};

use super::scope::MAX_BULKS;
use super::table::MAX_RESULTS;
use super::token::Token;
use super::{Bulk, BulkKind, BulkMemory, MemoryState, OwnBulk, scope};
use crate::core::Core;
use crate::error::{BulkError, Error, Result};
use crate::outbox::AppendError;
use crate::wire::{Header, LeaseId, Violation};

/// Maximum time for which memory stays lent after this end has requested it back, so that the peer
/// can complete running transfers. Long enough for a few pieces of 64 KiB. An RDMA access after
/// this time fails and ends the connection.
const RELEASE_TIMEOUT: Duration = Duration::from_millis(100);

/// Lease of the memory of one [`Bulk`]: the peer may access the memory while this value exists.
/// Dropping this value ends the peer's access at the RDMA device immediately.
struct Lease {
    core: Arc<Core>,
    id: LeaseId,
    bulk: Bulk,
    token: Token,
    state: Arc<LeaseState>,
}

/// State of one lease (memory that is lent to the peer), for the code that processes received
/// frames: the memory itself, and a flag that is set once the peer has given the memory back.
pub(super) struct LeaseState {
    is_writable: bool,
    /// The leased memory, or `None` once the lease has ended.
    held: Mutex<Option<LeasedMemory>>,
    /// Set once [`Self::set_released`] was called.
    is_released: AtomicBool,
    /// Notification that `is_released` was set.
    changed: Notify,
}

/// Memory of this end that is lent to the peer. On RDMA connections the peer's device accesses the
/// memory. On other connections messages transfer the data.
enum LeasedMemory {
    /// Memory whose pieces are transferred by messages.
    Streamed(BulkMemory),
    /// Memory that the peer's device accesses by one-sided operations.
    OneSided {
        lent: Lent,
        device: RdmaDevice,
        /// Memory of the bulk if `lent` is a registered copy of that memory, or `None` if the
        /// bulk's own memory is lent.
        original: Option<BulkMemory>,
    },
}

impl fmt::Debug for LeaseState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LeaseState").finish_non_exhaustive()
    }
}

impl LeaseState {
    /// Calls `place` with `len` bytes of the memory that is lent to the peer, beginning at the
    /// offset `at`. Returns the result of `place`, or `None` if the memory is no longer lent.
    ///
    /// Fails if the range exceeds the memory. Also fails on an RDMA connection, where the peer must
    /// read the memory by RDMA, not by messages.
    pub(super) fn read<T>(
        &self,
        at: u64,
        len: u32,
        place: impl FnOnce(&[u8]) -> T,
    ) -> Result<Option<T>, Violation> {
        match &*self.held.lock() {
            Some(LeasedMemory::Streamed(memory)) => {
                let part = range(at, len as usize).and_then(|range| memory.get(range));
                Ok(Some(place(part.ok_or(Violation::Bulk)?)))
            }
            Some(LeasedMemory::OneSided { .. }) => Err(Violation::Bulk),
            None => Ok(None),
        }
    }

    /// Copies `bytes`, which the peer has sent, to the offset `at` of the memory that is lent to
    /// the peer. Returns `false`, and copies nothing, if the memory is no longer lent. Fails if the
    /// range exceeds the memory, if the memory is read-only for the peer, or if the connection uses
    /// RDMA.
    pub(super) fn write(&self, at: u64, bytes: &[u8]) -> Result<bool, Violation> {
        match &mut *self.held.lock() {
            Some(LeasedMemory::Streamed(memory)) if self.is_writable => {
                let part = range(at, bytes.len()).and_then(|range| memory.get_mut(range));
                part.ok_or(Violation::Bulk)?.copy_from_slice(bytes);
                Ok(true)
            }
            Some(_) => Err(Violation::Bulk),
            None => Ok(false),
        }
    }

    /// Makes [`Self::released`] return. Called when the peer has confirmed that it no longer
    /// accesses the leased memory, or when the caller has cancelled the call whose result contains
    /// the bulk.
    pub(super) fn set_released(&self) {
        self.is_released.store(true, Ordering::Release);
        self.changed.notify_waiters();
    }

    /// Waits until the peer has confirmed that it no longer accesses the leased memory, or the
    /// caller has cancelled the call whose result contains the bulk.
    async fn released(&self) {
        loop {
            let mut changed = std::pin::pin!(self.changed.notified());
            changed.as_mut().enable();
            if self.is_released.load(Ordering::Acquire) {
                return;
            }
            changed.await;
        }
    }
}

/// Returns the range of the `len` bytes at the offset `at`. Returns `None` if the start or the end
/// of the range does not fit in a `usize`.
fn range(at: u64, len: usize) -> Option<std::ops::Range<usize>> {
    let start = usize::try_from(at).ok()?;
    Some(start..start.checked_add(len)?)
}

impl Lease {
    /// Lends the memory of `bulk` to the peer of the connection `core`, until the returned value is
    /// dropped. Fails if the memory is already lent for another call, or if the peer owns the
    /// memory.
    fn open(core: &Arc<Core>, bulk: Bulk) -> Result<Self> {
        let BulkKind::Own(own) = &*bulk.0 else {
            return Err(BulkError::Foreign.into());
        };
        let memory = own.take(MemoryState::Lent).ok_or(BulkError::InUse)?;
        let held = match make_accessible(core, memory, own.is_writable) {
            Ok(held) => held,
            Err((memory, error)) => {
                own.put(Some(memory));
                return Err(error);
            }
        };
        let token = Token {
            lease: 0,
            len: own.len as u64,
            is_writable: own.is_writable,
            memory: match &held {
                LeasedMemory::OneSided { lent, .. } => Some(lent.token().to_bytes()),
                LeasedMemory::Streamed(_) => None,
            },
        };
        let state = Arc::new(LeaseState {
            is_writable: own.is_writable,
            held: Mutex::new(Some(held)),
            is_released: AtomicBool::new(false),
            changed: Notify::new(),
        });
        let id = core.bulks.add_lease(&state);
        Ok(Self {
            core: Arc::clone(core),
            id,
            token: Token {
                lease: id.0,
                ..token
            },
            bulk,
            state,
        })
    }

    /// Ends the lease: the peer can no longer access the memory, and the [`Bulk`] to which the
    /// memory belongs gets the memory back. Does nothing if the lease has already ended.
    fn end(&self) {
        let held = self.state.held.lock().take();
        let Some(held) = held else { return };
        self.core.bulks.remove_lease(self.id);
        if let BulkKind::Own(own) = &*self.bulk.0 {
            own.put(end_access(held, own));
        }
    }

    /// Requests the lent memory back from the peer. The peer must then stop accessing the memory,
    /// and confirm this. Does nothing if the peer has already given the memory back.
    fn revoke(&self) {
        if !self.state.is_released.load(Ordering::Acquire) {
            self.core.send_control(&Header::Revoke { lease: self.id });
        }
    }

    /// Waits until the peer has confirmed that it no longer accesses the lent memory. Also returns
    /// when the connection has ended, or at the time `latest`.
    async fn wait(&self, latest: Instant) {
        tokio::select! {
            () = self.state.released() => {}
            () = sleep_until(latest) => {}
            _ = self.core.ended() => {}
        }
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        self.end();
    }
}

/// Makes `memory` accessible to the peer. Over RDMA, the peer's device accesses registered memory
/// directly. Unregistered memory is first copied to registered memory. Over other transports, the
/// memory is only stored, and messages transfer its bytes. On failure, returns `memory` with the
/// error.
fn make_accessible(
    core: &Core,
    memory: BulkMemory,
    is_writable: bool,
) -> Result<LeasedMemory, (BulkMemory, Error)> {
    let Some(link) = core.outbox.link() else {
        return Err((memory, core.end_error()));
    };
    let Some(rdma) = link.rdma().filter(|_| !memory.is_empty()) else {
        return Ok(LeasedMemory::Streamed(memory));
    };
    let device = rdma.device().clone();
    let (region, original) = match memory.into_region(&device) {
        Ok(region) => (region, None),
        Err(memory) => {
            let copy = BulkMemory::allocate(&link, memory.len(), true);
            let region = copy.map(|mut copy| {
                copy.copy_from_slice(&memory);
                copy.into_region(&device)
            });
            match region {
                Ok(Ok(region)) => (region, Some(memory)),
                Ok(Err(_)) => return Err((memory, BulkError::Lost.into())),
                Err(error) => return Err((memory, error)),
            }
        }
    };
    let lent = match is_writable {
        true => rdma.lend(region),
        false => rdma.lend_read_only(region),
    };
    match lent {
        Ok(lent) => Ok(LeasedMemory::OneSided {
            lent,
            device,
            original,
        }),
        Err((region, error)) => {
            let memory = original.unwrap_or_else(|| BulkMemory::of_region(region, device));
            Err((memory, error.into()))
        }
    }
}

/// Ends the peer's access to `held`, the lent memory of the bulk `own`. If the peer could write to
/// a registered copy of the memory, copies the bytes back. Returns the memory, or `None` if the
/// device could not end the access.
fn end_access(held: LeasedMemory, own: &OwnBulk) -> Option<BulkMemory> {
    match held {
        LeasedMemory::Streamed(memory) => Some(memory),
        LeasedMemory::OneSided {
            lent,
            device,
            original,
        } => {
            let region = match lent.end() {
                Ok(region) => region,
                Err(error) => {
                    tracing::error!(%error, "ending the lease of a bulk at the device failed");
                    return None;
                }
            };
            match original {
                None => Some(BulkMemory::of_region(region, device)),
                Some(mut memory) => {
                    if own.is_writable {
                        memory.copy_from_slice(region.as_slice());
                    }
                    Some(memory)
                }
            }
        }
    }
}

/// Leases of the memory of all [`Bulk`]s in one request or result. Dropping this value spawns a
/// task that ends the leases after the peer has released the memory.
#[derive(Default)]
pub(crate) struct CallLeases(Vec<Lease>);

impl CallLeases {
    /// Returns each [`Bulk`] whose memory is lent, with its token. The token represents the bulk in
    /// the encoded request or result.
    fn tokens(&self) -> Vec<(Bulk, Token)> {
        let tokens = self.0.iter().map(|lease| (lease.bulk.clone(), lease.token));
        tokens.collect()
    }

    /// Returns `true` if the request or result contains no [`Bulk`], so that no memory is lent with
    /// it.
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Takes the memory that was lent for a call back immediately. The caller must ensure that the
    /// peer has stopped accessing the memory. The arrival of the response, for example, is
    /// sufficient.
    pub(crate) fn end(mut self) {
        self.0.clear();
    }

    /// Takes back the memory that was lent for a call, when the call ends without a response. The
    /// peer's handler is perhaps still accessing the memory. Therefore this function first requests
    /// the memory back, and waits at most [`RELEASE_TIMEOUT`] until the peer confirms.
    pub(crate) async fn close(mut self) {
        let leases = std::mem::take(&mut self.0);
        close(leases).await;
    }
}

impl Drop for CallLeases {
    fn drop(&mut self) {
        let leases = std::mem::take(&mut self.0);
        if let Some(first) = leases.first() {
            // If the runtime has ended, the task is dropped, and its leases with it.
            first.core.runtime.clone().spawn(close(leases));
        }
    }
}

/// Requests the lent memory of all `leases` back from the peer. Ends each lease when the peer has
/// confirmed this, and all leases at the latest after [`RELEASE_TIMEOUT`].
async fn close(leases: Vec<Lease>) {
    leases.iter().for_each(Lease::revoke);
    let latest = Instant::now() + RELEASE_TIMEOUT;
    for lease in leases {
        lease.wait(latest).await;
    }
}

/// Encodes a frame with `attempt`, and lends the memory of the [`Bulk`]s in the frame to the peer.
/// `attempt` must encode the frame and append it to the send queue, or return the frame as a
/// separate message. Returns the result of the last `attempt`, and the leases of the lent memory.
///
/// An `attempt` fails if it finds bulks that are not lent yet. This function then lends these bulks
/// and calls `attempt` again, several times if necessary. Fails if the frame contains more than
/// `most` or [`MAX_BULKS`] bulks.
pub(crate) fn append_with_bulks<T>(
    core: &Arc<Core>,
    most: usize,
    attempt: impl Fn() -> Result<T, AppendError>,
) -> Result<(T, CallLeases), AppendError> {
    let mut leased = CallLeases::default();
    loop {
        let (appended, missing) = scope::encode_in_scope(leased.tokens(), &attempt);
        let lent = match appended {
            // An attempt with a bulk that was not lent always fails.
            Ok(appended) => return Ok((appended, leased)),
            Err(error) if missing.is_empty() => Err(error),
            Err(_) if leased.0.len() + missing.len() > most.min(MAX_BULKS) => {
                Err(AppendError::Transport(BulkError::TooMany.into()))
            }
            Err(_) => {
                let mut leases = missing.into_iter().map(|bulk| Lease::open(core, bulk));
                let lent = leases.try_for_each(|lease| lease.map(|lease| leased.0.push(lease)));
                lent.map_err(AppendError::Transport)
            }
        };
        if let Err(error) = lent {
            leased.end();
            return Err(error);
        }
    }
}

/// References to the leases of the [`Bulk`]s in one result, by which a server lends memory to the
/// caller. Normally these leases end when the caller drops the bulks. If the caller cancels the
/// call instead, the server ends the leases with [`Self::release`].
#[derive(Debug)]
pub(crate) struct ResultLeases(Vec<Weak<LeaseState>>);

impl ResultLeases {
    /// Starts to take back the memory that was lent with a result, in a background task. Called
    /// when the caller has cancelled the call and will not use the memory.
    pub(crate) fn release(&self) {
        let leases = self.0.iter().filter_map(Weak::upgrade);
        leases.for_each(|lease| lease.set_released());
    }
}

/// Spawns tasks that end the leases in `leased`, by which the caller can access memory in a result.
/// A lease ends when the caller has dropped the [`Bulk`], when the connection ends, or after the
/// time `limit`. Returns references by which the server can end the leases earlier.
pub(crate) fn expire_results(mut leased: CallLeases, limit: Duration) -> ResultLeases {
    let states = leased.0.iter().map(|lease| Arc::downgrade(&lease.state));
    let results = ResultLeases(states.collect());
    for lease in std::mem::take(&mut leased.0) {
        let core = Arc::clone(&lease.core);
        let counted = CountedResultLease::new(&core);
        core.runtime.clone().spawn(async move {
            tokio::select! {
                () = lease.state.released() => {}
                () = sleep(limit) => {}
                _ = lease.core.ended() => {}
            }
            close(vec![lease]).await;
            drop(counted);
        });
    }
    results
}

/// Returns the number of [`Bulk`]s that further results of this connection's calls can contain now.
/// All results together can lend at most [`MAX_RESULTS`] bulks at the same time.
pub(crate) fn results_left(core: &Core) -> usize {
    MAX_RESULTS.saturating_sub(core.bulks.results.load(Ordering::Relaxed))
}

/// Guard that counts one [`Bulk`] that this server lends to the caller with the result of a call.
/// Until the guard is dropped, the bulk counts against the limit [`MAX_RESULTS`].
struct CountedResultLease(Arc<Core>);

impl CountedResultLease {
    fn new(core: &Arc<Core>) -> Self {
        core.bulks.results.fetch_add(1, Ordering::Relaxed);
        Self(Arc::clone(core))
    }
}

impl Drop for CountedResultLease {
    fn drop(&mut self) {
        let bulks = &self.0.bulks;
        if bulks.results.fetch_sub(1, Ordering::SeqCst) == 1 {
            bulks.results_ended.notify_waiters();
        }
    }
}
