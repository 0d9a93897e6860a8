//! Leases: bulk memory of this end, while the peer may access it.

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
use super::{Bulk, BulkMemory, Kind, Own, Place, scope};
use crate::core::Core;
use crate::error::{BulkError, Error, Result};
use crate::outbox::Unplaced;
use crate::wire::{Header, LeaseId, Violation};

/// Time that a peer gets to stop an access in progress, before its lease ends at the device. An
/// access after that ends the connection.
const GRACE: Duration = Duration::from_millis(100);

/// Lease of one bulk to the peer of a connection. Dropping it ends the access at the device at
/// once.
struct Lease {
    core: Arc<Core>,
    id: LeaseId,
    bulk: Bulk,
    token: Token,
    state: Arc<LeaseState>,
}

/// State of a lease that the frames of the peer refer to.
pub(super) struct LeaseState {
    is_writable: bool,
    /// `None` once the lease has ended.
    held: Mutex<Option<Held>>,
    /// Set once the peer has stopped accessing the memory.
    is_released: AtomicBool,
    changed: Notify,
}

/// Memory of a lease.
enum Held {
    /// Memory whose pieces are sent in messages.
    Streamed(BulkMemory),
    /// Memory that the peer's device accesses.
    OneSided {
        lent: Lent,
        device: RdmaDevice,
        /// Memory of the bulk, if it is not registered with the device, and `lent` is a copy.
        original: Option<BulkMemory>,
    },
}

impl fmt::Debug for LeaseState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LeaseState").finish_non_exhaustive()
    }
}

impl LeaseState {
    /// Calls `place` with a part of memory that is sent in messages; `None` if the lease has ended.
    pub(super) fn read<T>(
        &self,
        at: u64,
        len: u32,
        place: impl FnOnce(&[u8]) -> T,
    ) -> Result<Option<T>, Violation> {
        match &*self.held.lock() {
            Some(Held::Streamed(memory)) => {
                let part = range(at, len as usize).and_then(|range| memory.get(range));
                Ok(Some(place(part.ok_or(Violation::Bulk)?)))
            }
            Some(Held::OneSided { .. }) => Err(Violation::Bulk),
            None => Ok(None),
        }
    }

    /// Writes a part of memory that is sent in messages. Returns `false` if the lease has ended.
    pub(super) fn write(&self, at: u64, bytes: &[u8]) -> Result<bool, Violation> {
        match &mut *self.held.lock() {
            Some(Held::Streamed(memory)) if self.is_writable => {
                let part = range(at, bytes.len()).and_then(|range| memory.get_mut(range));
                part.ok_or(Violation::Bulk)?.copy_from_slice(bytes);
                Ok(true)
            }
            Some(_) => Err(Violation::Bulk),
            None => Ok(false),
        }
    }

    /// Records that the peer does not access the memory any more.
    pub(super) fn set_released(&self) {
        self.is_released.store(true, Ordering::Release);
        self.changed.notify_waiters();
    }

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

fn range(at: u64, len: usize) -> Option<std::ops::Range<usize>> {
    let start = usize::try_from(at).ok()?;
    Some(start..start.checked_add(len)?)
}

impl Lease {
    /// Lends the memory of a bulk to the peer of a connection.
    fn open(core: &Arc<Core>, bulk: Bulk) -> Result<Self> {
        let Kind::Own(own) = &*bulk.0 else {
            return Err(BulkError::Foreign.into());
        };
        let memory = own.take(Place::Lent).ok_or(BulkError::InUse)?;
        let held = match hold(core, memory, own.is_writable) {
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
                Held::OneSided { lent, .. } => Some(lent.token().to_bytes()),
                Held::Streamed(_) => None,
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

    /// Ends the access at the device, and returns the memory to the bulk.
    fn end(&self) {
        let held = self.state.held.lock().take();
        let Some(held) = held else { return };
        self.core.bulks.remove_lease(self.id);
        if let Kind::Own(own) = &*self.bulk.0 {
            own.put(release(held, own));
        }
    }

    fn revoke(&self) {
        if !self.state.is_released.load(Ordering::Acquire) {
            // The peer of a connection that has ended needs no notice.
            drop(
                self.core
                    .outbox
                    .append_bare(&Header::Revoke { lease: self.id }),
            );
        }
    }

    /// Waits until the peer has stopped accessing the memory, at most until `latest`.
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

/// Makes memory accessible to the peer.
fn hold(core: &Core, memory: BulkMemory, is_writable: bool) -> Result<Held, (BulkMemory, Error)> {
    let Some(link) = core.outbox.link() else {
        return Err((memory, core.ended_now()));
    };
    let Some(rdma) = link.rdma().filter(|_| !memory.is_empty()) else {
        return Ok(Held::Streamed(memory));
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
        Ok(lent) => Ok(Held::OneSided {
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

/// Ends the access to memory at the device. Returns the memory of the bulk, unless the device could
/// not end the access.
fn release(held: Held, own: &Own) -> Option<BulkMemory> {
    match held {
        Held::Streamed(memory) => Some(memory),
        Held::OneSided {
            lent,
            device,
            original,
        } => {
            let region = match lent.end() {
                Ok(region) => region,
                Err(error) => {
                    tracing::error!(%error, "the lease of a bulk could not be ended");
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

/// Leases of one call. Dropping this value ends them, after the peer has stopped accessing the
/// memory, in a task.
#[derive(Default)]
pub(crate) struct Leased(Vec<Lease>);

impl Leased {
    fn tokens(&self) -> Vec<(Bulk, Token)> {
        let tokens = self.0.iter().map(|lease| (lease.bulk.clone(), lease.token));
        tokens.collect()
    }

    /// Returns whether the call lends no memory.
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Ends the leases at once, because the peer is not accessing the memory.
    pub(crate) fn end(mut self) {
        self.0.clear();
    }

    /// Ends the leases. The peer gets a short time to stop accessing the memory.
    pub(crate) async fn close(mut self) {
        let leases = std::mem::take(&mut self.0);
        close(leases).await;
    }
}

impl Drop for Leased {
    fn drop(&mut self) {
        let leases = std::mem::take(&mut self.0);
        if let Some(first) = leases.first() {
            // A runtime that has ended drops the task, and with it the leases.
            first.core.runtime.clone().spawn(close(leases));
        }
    }
}

async fn close(leases: Vec<Lease>) {
    leases.iter().for_each(Lease::revoke);
    let latest = Instant::now() + GRACE;
    for lease in leases {
        lease.wait(latest).await;
    }
}

/// Places a frame whose body may contain bulks. `attempt` encodes the body: again if it has bulks,
/// which were then lent to the peer. An attempt may end before it has found all of them. At most
/// `most` bulks are lent, and no more than a value may have.
pub(crate) fn place<T>(
    core: &Arc<Core>,
    most: usize,
    attempt: impl Fn() -> Result<T, Unplaced>,
) -> Result<(T, Leased), Unplaced> {
    let mut leased = Leased::default();
    loop {
        let (placed, missing) = scope::encoding(leased.tokens(), &attempt);
        let lent = match placed {
            // A body with a bulk that was not lent is not placed.
            Ok(placed) => return Ok((placed, leased)),
            Err(unplaced) if missing.is_empty() => Err(unplaced),
            Err(_) if leased.0.len() + missing.len() > most.min(MAX_BULKS) => {
                Err(Unplaced::Transport(BulkError::TooMany.into()))
            }
            Err(_) => {
                let mut leases = missing.into_iter().map(|bulk| Lease::open(core, bulk));
                let lent = leases.try_for_each(|lease| lease.map(|lease| leased.0.push(lease)));
                lent.map_err(Unplaced::Transport)
            }
        };
        if let Err(unplaced) = lent {
            leased.end();
            return Err(unplaced);
        }
    }
}

/// Leases of a result, which a caller that does not take the result releases.
#[derive(Debug)]
pub(crate) struct Results(Vec<Weak<LeaseState>>);

impl Results {
    /// Ends the leases, because the caller has dropped the result without decoding it.
    pub(crate) fn release(&self) {
        let leases = self.0.iter().filter_map(Weak::upgrade);
        leases.for_each(|lease| lease.set_released());
    }
}

/// Ends the leases of a result when the caller has dropped the bulks, after `limit` at the latest.
pub(crate) fn serve_results(mut leased: Leased, limit: Duration) -> Results {
    let states = leased.0.iter().map(|lease| Arc::downgrade(&lease.state));
    let results = Results(states.collect());
    for lease in std::mem::take(&mut leased.0) {
        let core = Arc::clone(&lease.core);
        let counted = Counted::new(&core);
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

/// Returns the number of bulks that further results of a connection may have.
pub(crate) fn results_left(core: &Core) -> usize {
    MAX_RESULTS.saturating_sub(core.bulks.results.load(Ordering::Relaxed))
}

/// Lease of a result, counted until this value is dropped.
struct Counted(Arc<Core>);

impl Counted {
    fn new(core: &Arc<Core>) -> Self {
        core.bulks.results.fetch_add(1, Ordering::Relaxed);
        Self(Arc::clone(core))
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.bulks.results.fetch_sub(1, Ordering::Relaxed);
    }
}
