//! Leases: memory that peers can access through a memory window.
//!
//! Requests bind and invalidate the window, and a request takes time to complete, so a lease has
//! phases. Only in [`Phase::Free`] is it certain that no peer can access the memory. A lease is in
//! that phase at the beginning, and enters it when a request that ends the binding has succeeded,
//! or when a peer's message has invalidated the window. Each binding has a number (generation), so
//! that a request of an earlier binding that completes late changes nothing.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use ibverbs_sys as sys;

use super::lease_registry::OccupiedSlot;
use super::lease_state::{Phase, State};
use super::queue_pair::QueuePairHandle;
use super::span::Span;
use super::volatile::Volatile;
use super::window::WindowHandle;
use crate::error::{Error, Result};
use crate::memory::{AccessFlags, WindowType};
use crate::queue_pair::Outcome;

/// An owned range of registered memory (a span), with the memory window that grants peers access to
/// it.
///
/// Dropping a lease frees the window before the memory, so that peers cannot access freed memory.
pub(crate) struct Lease {
    window: WindowHandle,
    /// The memory, or `None` after the lease has ended.
    memory: Option<Volatile>,
    access: AccessFlags,
    /// The upper 24 bits of the window's key, which never change.
    index: u32,
    place: OccupiedSlot,
}

impl fmt::Debug for Lease {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Lease")
            .field("window", &self.window)
            .field("memory", &self.memory)
            .field("access", &self.access)
            .field("state", &self.state())
            .finish()
    }
}

impl Lease {
    /// Creates a lease of the memory of `span`. Peers have no access until a later bind request of
    /// `window` grants them the rights `access`. `window` and `span` must belong to the same
    /// protection domain. `access` must contain remote rights, and may contain `ZERO_BASED`.
    pub(crate) fn new(window: WindowHandle, span: Span, access: AccessFlags) -> Arc<Self> {
        let key = window.key();
        Arc::new(Self {
            place: window.domain().context().leases().add(key),
            index: index_of(key),
            window,
            memory: Some(Volatile::new(span)),
            access,
        })
    }

    pub(crate) fn memory(&self) -> &Volatile {
        self.memory.as_ref().expect("the lease has not ended")
    }

    pub(crate) fn access(&self) -> AccessFlags {
        self.access
    }

    pub(crate) fn window(&self) -> &WindowHandle {
        &self.window
    }

    pub(crate) fn phase(&self) -> Phase {
        self.state().phase
    }

    /// Returns the remote key of the memory window for the latest binding, even if the bind request
    /// has not completed yet.
    pub(crate) fn key(&self) -> u32 {
        self.key_with(self.state().tag)
    }

    /// Returns the address that requests of peers use for the first byte of the leased memory.
    /// Returns 0 if the access rights contain `ZERO_BASED`.
    pub(crate) fn address(&self) -> u64 {
        if self.access.contains(AccessFlags::ZERO_BASED) {
            0
        } else {
            self.memory().span().address()
        }
    }

    /// Begins to grant peers access to the leased memory. Returns a [`WindowChange`], which the
    /// caller must add to a send request and post. Peers have access after that request has
    /// succeeded. Returns `None` unless the phase of the lease is `Free` (peers have no access).
    pub(crate) fn bind(self: &Arc<Self>) -> Option<WindowChange> {
        self.begin(Phase::Free)
    }

    /// Begins to end the access of peers to the leased memory. Returns a [`WindowChange`], which
    /// the caller must add to a send request and post. The access has ended after that request has
    /// succeeded. Returns `None` unless the phase of the lease is `Bound` (peers have access).
    pub(crate) fn unbind(self: &Arc<Self>) -> Option<WindowChange> {
        self.begin(Phase::Bound)
    }

    fn begin(self: &Arc<Self>, from: Phase) -> Option<WindowChange> {
        let before = self.state();
        if before.phase != from {
            return None;
        }
        let mut during = before;
        if from == Phase::Free {
            during.phase = Phase::Binding;
            during.generation += 1;
            if self.window.kind() == WindowType::Two {
                // The program chooses the last eight bits of the key, and must change them at each
                // binding (IBTA 10.6.7.2.1).
                during.tag = during.tag.wrapping_add(1);
            }
        } else {
            during.phase = Phase::Ending;
        }
        self.change(before, during).then(|| WindowChange {
            lease: Arc::clone(self),
            before,
            during,
            is_described: AtomicBool::new(false),
            beginnings: AtomicU64::new(IN_TRANSITION),
        })
    }

    /// Ends the lease, and returns the window and the memory. Returns the lease unchanged if a peer
    /// can still access the memory, or if a request uses the lease.
    pub(crate) fn finish(self: Arc<Self>) -> Result<(WindowHandle, Span), Arc<Self>> {
        if self.phase() != Phase::Free {
            return Err(self);
        }
        let mut lease = Arc::try_unwrap(self)?;
        let memory = lease.memory.take().expect("the lease has not ended");
        // SAFETY: this is the last reference to the lease, so no request uses the window.
        unsafe { lease.window.set_key(lease.key()) };
        Ok((lease.window.take(), memory.into_span()))
    }

    /// Frees the memory window through which peers access the leased memory, and returns the
    /// memory. Peers then have no access. On failure returns the lease and the error. The error is
    /// `None` if a request still uses the lease.
    pub(crate) fn revoke(self: Arc<Self>) -> Result<Span, (Arc<Self>, Option<Error>)> {
        let mut lease = Arc::try_unwrap(self).map_err(|lease| (lease, None))?;
        let state = lease.place.vacate();
        match lease.window.end() {
            Ok(()) => {
                let memory = lease.memory.take().expect("the lease has not ended");
                Ok(memory.into_span())
            }
            Err(error) => {
                lease.place.retake(state);
                Err((Arc::new(lease), Some(error)))
            }
        }
    }

    fn key_with(&self, tag: u8) -> u32 {
        self.index | u32::from(tag)
    }

    fn state(&self) -> State {
        self.place.state()
    }

    fn change(&self, from: State, to: State) -> bool {
        self.place.change(from, to)
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        self.place.vacate();
        if let Err(error) = self.window.end() {
            // Peers may still access the memory, so it must never be freed.
            std::mem::forget(self.memory.take());
            tracing::error!(%error, "a memory window could not be freed; the memory is leaked");
        }
    }
}

/// Returns the part of a window's key that never changes: `key` with its low eight bits set to 0
/// (IBTA 10.6.7.2.1).
fn index_of(key: u32) -> u32 {
    key & !0xff
}

/// The change that a bind or invalidate request makes to a memory window. This value is stored
/// until the request has completed, and keeps the window and its memory alive.
#[derive(Debug)]
pub(crate) struct WindowChange {
    lease: Arc<Lease>,
    before: State,
    during: State,
    /// Set once the request has been filled in. From then on the request may have been posted.
    is_described: AtomicBool,
    /// The value of [`QueuePairHandle::beginnings`] for the queue pair when the request was
    /// checked, or [`IN_TRANSITION`].
    beginnings: AtomicU64,
}

/// A marker that [`WindowChange::beginnings`] contains instead of the queue pair's restart count.
/// The marker means that a restart was in progress when the request was checked. No restart count
/// equals the marker, because the count has 32 bits.
const IN_TRANSITION: u64 = u64::MAX;

impl WindowChange {
    /// Returns `true` if the request is a local invalidation, and `false` if the request is a bind.
    pub(crate) fn is_invalidation(&self) -> bool {
        self.during.phase == Phase::Ending && self.lease.window.kind() == WindowType::Two
    }

    /// Returns an error unless the window and `queue_pair` belong to the same protection domain.
    /// Also stores the restart count of the queue pair, so that [`Self::inferred`] can detect a
    /// restart during or after this call. The caller must call this method just before it fills in
    /// the request, and must post the request to `queue_pair`.
    pub(crate) fn check(&self, queue_pair: &QueuePairHandle) -> Result<()> {
        if self.lease.window.domain().is_same(queue_pair.domain()) {
            let beginnings = queue_pair.settled_beginnings();
            let beginnings = beginnings.map_or(IN_TRANSITION, u64::from);
            self.beginnings.store(beginnings, Ordering::Relaxed);
            return Ok(());
        }
        let reason = "the queue pair is of another protection domain";
        Err(Error::invalid("memory window", reason))
    }

    /// Derives the outcome of this request from `later`, the outcome of a later request of the same
    /// queue pair. Used for an unsignaled request, which has no completion of its own. Returns
    /// [`Outcome::Failed`] if the queue pair was reset or restarted after [`Self::check`] was
    /// called for this request, or if a restart was in progress during that call. The later request
    /// then says nothing about this request.
    pub(crate) fn inferred(&self, later: Outcome, queue_pair: &QueuePairHandle) -> Outcome {
        if self.beginnings.load(Ordering::Relaxed) == u64::from(queue_pair.beginnings()) {
            later
        } else {
            Outcome::Failed
        }
    }

    /// Returns whether the window is of type 1. A request for such a window must be posted by a
    /// separate call of `ibv_bind_mw`, so a batch cannot contain the request.
    pub(crate) fn needs_own_call(&self) -> bool {
        self.lease.window.kind() == WindowType::One
    }

    /// Fills in the fields of the send request `wr` for this bind or invalidation of the window.
    pub(super) fn describe(&self, wr: &mut sys::ibv_send_wr) {
        let lease = &*self.lease;
        self.is_described.store(true, Ordering::Relaxed);
        if self.is_invalidation() {
            wr.opcode = sys::ibv_wr_opcode::IBV_WR_LOCAL_INV;
            wr.__bindgen_anon_1.invalidate_rkey = lease.key_with(self.during.tag);
            return;
        }
        wr.opcode = sys::ibv_wr_opcode::IBV_WR_BIND_MW;
        // SAFETY: from `begin` until the request completes, this is the only change of the window,
        // and only one thread fills in the request.
        unsafe { lease.window.set_key(lease.key_with(self.before.tag)) };
        let span = lease.memory().span();
        // A window of type 1 is invalidated by a bind of length 0 (ibv_bind_mw(3)).
        let ends = self.during.phase == Phase::Ending;
        wr.__bindgen_anon_2.bind_mw.mw = lease.window.as_raw();
        wr.__bindgen_anon_2.bind_mw.rkey = lease.key_with(self.during.tag);
        wr.__bindgen_anon_2.bind_mw.bind_info = sys::ibv_mw_bind_info {
            mr: span.region().as_raw(),
            addr: span.address(),
            length: if ends { 0 } else { span.len() as u64 },
            mw_access_flags: lease.access.bits(),
        };
    }

    /// Records the outcome of the bind or invalidate request in the state of the lease. After
    /// success, peers have access (bind) or no access (invalidation). After a failure the state is
    /// unknown. If the request was not posted, the lease returns to its state before the request.
    pub(crate) fn settle(mut self, outcome: Outcome) {
        let mut after = self.during;
        after.phase = match (outcome, self.during.phase) {
            (Outcome::Succeeded, Phase::Binding) => Phase::Bound,
            (Outcome::Succeeded, Phase::Ending) => Phase::Free,
            _ => Phase::Unknown,
        };
        if outcome == Outcome::NotPosted {
            after = self.before;
        } else if self.lease.window.kind() == WindowType::One {
            // The library chose the key when the request was posted.
            after.tag = self.lease.window.key() as u8;
        }
        self.finish(after);
    }

    /// Sets the state of the lease to `after` when the bind or invalidate request has ended. Does
    /// nothing if a peer has invalidated the window since the request began.
    fn finish(&mut self, after: State) {
        if self.during != after {
            self.lease.change(self.during, after);
            self.during = after;
        }
    }
}

impl Drop for WindowChange {
    /// Updates the lease if the queue of the bind or invalidate request was dropped before the
    /// outcome of the request was recorded. If the request was possibly posted, the state of the
    /// lease becomes unknown. Otherwise the lease returns to its state before the request.
    fn drop(&mut self) {
        if matches!(self.during.phase, Phase::Binding | Phase::Ending) {
            let mut after = self.before;
            if *self.is_described.get_mut() {
                after = self.during;
                after.phase = Phase::Unknown;
            }
            self.finish(after);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::ops::ControlFlow;

    use super::*;
    use crate::context::Context;
    use crate::ffi::ProtectionDomainHandle;
    use crate::memory::Buffer;

    /// Returns a lease (memory with a memory window) that peers cannot access. No request is posted
    /// in these tests: each test passes the outcome of the request to the lease.
    fn lease() -> Arc<Lease> {
        let context = Context::open("softroce0").unwrap();
        let domain = context.protection_domain().unwrap();
        let registration = domain.registration().access(AccessFlags::WINDOW_BIND);
        let span = Buffer::into_span(registration.allocate(64).unwrap());
        let handle = Arc::clone(domain.handle());
        let window = WindowHandle::allocate(handle, WindowType::Two).unwrap();
        Lease::new(window, span, AccessFlags::REMOTE)
    }

    fn bind(lease: &Arc<Lease>) -> u32 {
        let change = lease.bind().unwrap();
        change.settle(Outcome::Succeeded);
        assert_eq!(lease.phase(), Phase::Bound);
        lease.key()
    }

    #[test]
    fn one_completion_with_a_doubtful_key_is_ignored() {
        let lease = lease();
        let domain = Arc::clone(lease.window.domain());
        let key = bind(&lease);
        // Simulates that an earlier lease with this key ended, and that a peer may have invalidated
        // the key before.
        domain.context().leases().doubt(key);
        domain.ended_by_peer(key);
        assert_eq!(lease.phase(), Phase::Bound, "that was the lease before");
        domain.ended_by_peer(key ^ 1);
        assert_eq!(lease.phase(), Phase::Bound, "another key");
        domain.ended_by_peer(key);
        assert_eq!(lease.phase(), Phase::Free);
        domain.ended_by_peer(key);
        assert_eq!(lease.phase(), Phase::Free);
    }

    #[test]
    fn one_completion_is_ignored_for_each_ended_lease() {
        let lease = lease();
        let domain = Arc::clone(lease.window.domain());
        let key = bind(&lease);
        domain.context().leases().doubt(key);
        domain.context().leases().doubt(key);
        domain.ended_by_peer(key);
        domain.ended_by_peer(key);
        assert_eq!(lease.phase(), Phase::Bound, "those were leases before");
        domain.ended_by_peer(key);
        assert_eq!(lease.phase(), Phase::Free);
    }

    #[test]
    fn a_revoked_lease_leaves_one_doubt() {
        let lease = lease();
        let domain = Arc::clone(lease.window.domain());
        let key = bind(&lease);
        lease.revoke().unwrap();
        assert_eq!(domain.context().leases().doubts(key), 1);
        domain.ended_by_peer(key);
        assert_eq!(domain.context().leases().doubts(key), 0);
    }

    /// Checks that the report of an invalidated window key can arrive at any protection domain of
    /// the window's context. The report ends the lease with this key. If the lease was revoked
    /// before, the first report is ignored.
    #[test]
    fn a_key_is_in_doubt_in_every_domain_of_its_context() {
        let lease = lease();
        let context = Arc::clone(lease.window.domain().context());
        let other = ProtectionDomainHandle::allocate(context).unwrap();
        let key = bind(&lease);
        other.ended_by_peer(key);
        assert_eq!(lease.phase(), Phase::Free);
        let key = bind(&lease);
        lease.revoke().unwrap();
        other.ended_by_peer(key);
        assert_eq!(other.context().leases().doubts(key), 0);
    }

    #[test]
    fn a_request_that_ends_late_changes_nothing() {
        let lease = lease();
        let domain = Arc::clone(lease.window.domain());
        let late = lease.bind().unwrap();
        domain.ended_by_peer(lease.key());
        assert_eq!(lease.phase(), Phase::Free);
        let now = lease.bind().unwrap();
        late.settle(Outcome::Succeeded);
        assert_eq!(lease.phase(), Phase::Binding, "bound by neither yet");
        now.settle(Outcome::Succeeded);
        let end = lease.unbind().unwrap();
        domain.ended_by_peer(lease.key());
        assert_eq!(lease.phase(), Phase::Ending, "the request decides");
        end.settle(Outcome::Failed);
        assert_eq!(lease.phase(), Phase::Unknown);
        assert!(lease.bind().is_none() && lease.unbind().is_none());
    }

    #[test]
    fn keys_come_again_after_256_bindings_and_not_before() {
        let lease = lease();
        let first = bind(&lease);
        let bindings = (1..).try_for_each(|round| {
            lease.unbind().unwrap().settle(Outcome::Succeeded);
            match bind(&lease) == first {
                true => ControlFlow::Break(round),
                false => ControlFlow::Continue(()),
            }
        });
        assert_eq!(bindings, ControlFlow::Break(256));
    }
}
