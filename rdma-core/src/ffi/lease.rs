//! Memory that peers can reach through a window.
//!
//! What the window grants is decided by requests that are in flight for a while, so a lease has
//! phases. Only [`Phase::Free`] says that no peer reaches the memory, and it is entered in three ways:
//! at the beginning, by the successful completion of a request that ends the binding, and by the
//! arrival of a peer's message that did. Requests are told apart by generations, so that one that
//! completes late changes nothing.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use ibverbs_sys as sys;

use super::lease_registry::Place;
use super::lease_state::{Phase, State};
use super::queue_pair::QueuePairHandle;
use super::span::Span;
use super::volatile::Volatile;
use super::window::WindowHandle;
use crate::error::{Error, Result};
use crate::memory::{AccessFlags, WindowType};
use crate::queue_pair::Outcome;

/// A span and the window that grants access to it.
///
/// The window is freed, and so every grant ended at the device, before the span is.
pub(crate) struct Lease {
    window: WindowHandle,
    /// `None` only after the end.
    memory: Option<Volatile>,
    access: AccessFlags,
    /// The part of the window's key that does not vary.
    index: u32,
    place: Place,
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
    /// A lease of memory by a window of the same protection domain, to grant `access`, which is
    /// remote rights and perhaps to count from zero.
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

    /// The key that the window has by its last binding, of which the device may not know yet.
    pub(crate) fn key(&self) -> u32 {
        self.key_with(self.state().tag)
    }

    /// What peers call the first byte.
    pub(crate) fn address(&self) -> u64 {
        if self.access.contains(AccessFlags::ZERO_BASED) {
            0
        } else {
            self.memory().span().address()
        }
    }

    /// Begins a binding: the request's part of it.
    pub(crate) fn bind(self: &Arc<Self>) -> Option<WindowChange> {
        self.begin(Phase::Free)
    }

    /// Begins the end of a binding: the request's part of it.
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
                // IBTA 10.6.7.2.1: the consumer chooses the key's last eight bits, and they change.
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
            beginnings: AtomicU32::new(0),
        })
    }

    /// The window and the memory, if no peer can reach it and no request has it.
    pub(crate) fn finish(self: Arc<Self>) -> Result<(WindowHandle, Span), Arc<Self>> {
        if self.phase() != Phase::Free {
            return Err(self);
        }
        let mut lease = Arc::try_unwrap(self)?;
        let memory = lease.memory.take().expect("the lease has not ended");
        // SAFETY: nobody else has this lease, so nobody posts a request with the window.
        unsafe { lease.window.set_key(lease.key()) };
        Ok((lease.window.take(), memory.into_span()))
    }

    /// Frees the window, which ends what it grants; the memory. The error is none while a request
    /// has the lease.
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
            // Peers may still reach the memory: it must never be freed.
            std::mem::forget(self.memory.take());
            tracing::error!(%error, "a memory window could not be freed; the memory is leaked");
        }
    }
}

/// The part of a window's key that does not vary (IBTA 10.6.7.2.1).
fn index_of(key: u32) -> u32 {
    key & !0xff
}

/// What a send request does to a lease's window. It is kept in the request's slot, with the memory
/// and the window by way of the lease, until the request has completed.
#[derive(Debug)]
pub(crate) struct WindowChange {
    lease: Arc<Lease>,
    before: State,
    during: State,
    /// Whether it may have been posted since.
    is_described: AtomicBool,
    /// How often the queue pair had begun anew when it was described.
    beginnings: AtomicU32,
}

impl WindowChange {
    /// Whether the request invalidates a key, and binds nothing.
    pub(crate) fn is_invalidation(&self) -> bool {
        self.during.phase == Phase::Ending && self.lease.window.kind() == WindowType::Two
    }

    /// Whether a queue pair can carry it out, to which it is about to be described.
    pub(crate) fn check(&self, queue_pair: &QueuePairHandle) -> Result<()> {
        if self.lease.window.domain().is_same(queue_pair.domain()) {
            let beginnings = queue_pair.beginnings();
            self.beginnings.store(beginnings, Ordering::Relaxed);
            return Ok(());
        }
        let reason = "the queue pair is of another protection domain";
        Err(Error::invalid("memory window", reason))
    }

    /// How it ended, if a later request of the queue pair ended so. It says nothing if the queue pair
    /// has begun anew in between: this request may have failed before.
    pub(crate) fn inferred(&self, later: Outcome, queue_pair: &QueuePairHandle) -> Outcome {
        if self.beginnings.load(Ordering::Relaxed) == queue_pair.beginnings() {
            later
        } else {
            Outcome::Failed
        }
    }

    /// Whether it goes to the device by a verb of its own (`ibv_bind_mw`), and not in a batch.
    pub(crate) fn goes_alone(&self) -> bool {
        self.lease.window.kind() == WindowType::One
    }

    /// Fills in what the request does.
    pub(super) fn describe(&self, wr: &mut sys::ibv_send_wr) {
        let lease = &*self.lease;
        self.is_described.store(true, Ordering::Relaxed);
        if self.is_invalidation() {
            wr.opcode = sys::ibv_wr_opcode::IBV_WR_LOCAL_INV;
            wr.__bindgen_anon_1.invalidate_rkey = lease.key_with(self.during.tag);
            return;
        }
        wr.opcode = sys::ibv_wr_opcode::IBV_WR_BIND_MW;
        // SAFETY: from `begin` to its completion this change is the only one of the window, and it
        // is described by one thread at a time.
        unsafe { lease.window.set_key(lease.key_with(self.before.tag)) };
        let span = lease.memory().span();
        // A window of type 1 ends by being bound to nothing (ibv_bind_mw(3)).
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

    /// Says how the request ended.
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

    /// Enters a state, unless a peer has ended the binding meanwhile.
    fn finish(&mut self, after: State) {
        if self.during != after {
            self.lease.change(self.during, after);
            self.during = after;
        }
    }
}

impl Drop for WindowChange {
    /// What was lost with its queue may have been carried out or not. What was settled stays so.
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

    /// A lease of which nothing is posted; requests are said to have ended.
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
    fn a_doubtful_key_is_not_believed_once() {
        let lease = lease();
        let domain = Arc::clone(lease.window.domain());
        let key = bind(&lease);
        // As if a lease before this one had ended with the same key in doubt.
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
    fn as_many_doubtful_keys_are_not_believed_as_leases_ended() {
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

    /// A shared receive queue may be of another domain than the queue pair that takes from it.
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
