#![forbid(unsafe_code)]
//! The directory of the other processes of the host, and of the links (shared memory) to them.
//!
//! Threads of the program look up the link to a process by a socket address of the process. If the
//! process is unknown, the thread performs a [`handshake`]. The engine (background thread)
//! [continues](PeerDirectory::handle_events) handshakes that other processes have begun, and
//! removes links that have ended.

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering, fence};
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex, MutexGuard};

#[cfg(any(test, fuzzing))]
use super::admission::MAX_LINKS_PER_PROCESS;
use super::admission::{HANDSHAKE_TIMEOUT, RETRY_COOLDOWN};
use super::copying_peer::CopyingPeer;
use super::events::{Events, Source, Timer};
use super::handshake::{self, HandshakeOutcome};
use super::handshake_message::{has_room, without_interface};
use super::link::Link;
use super::links::{Links, ProcessState};
use super::local::{LocalProcess, ProcessResources};
use super::pending::Handshakes;
use super::sockets;
use crate::descriptor::Descriptor;

/// Maximum delay of a deferred wakeup of a peer. The delay is rarely reached: a program usually
/// answers a message much sooner, and the answer wakes the peer, too.
const MAX_WAKE_DELAY: Duration = Duration::from_micros(500);

/// Directory of the known processes of the host, and of the links (shared memory) to them.
pub(crate) struct PeerDirectory {
    local: LocalProcess,
    listeners: Mutex<Vec<Descriptor>>,
    state: Mutex<State>,
    /// Condition variable that is notified when a link (shared memory with another process) was
    /// added or a handshake has ended.
    changed: Condvar,
    /// Timer that expires when the engine (background thread) must send the deferred wakeups of
    /// peers.
    wake_timer: Timer,
    /// Set from the start of `wake_timer` until the deferred wakeups are sent, so that the timer is
    /// started only once.
    is_reminded: AtomicBool,
    /// Timer that expires when the engine (background thread) must continue or end pending
    /// handshakes.
    handshake_timer: Timer,
}

struct State {
    links: Links,
    handshakes: Handshakes,
    /// Time for which `handshake_timer` is set, or `None` if it is not set.
    timer: Option<Instant>,
}

impl PeerDirectory {
    /// Creates an empty directory of the processes that share memory with this process. `resources`
    /// are the descriptors and tables that each peer receives. [Listens](Self::listen) at each
    /// address in `resources` whose UDP socket is open already.
    pub(crate) fn open(resources: ProcessResources) -> io::Result<Self> {
        if resources.addresses.is_empty() || !has_room(&resources.addresses, &resources.gids) {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let events = Events::new()?;
        let open = resources.addresses[..resources.open.min(resources.addresses.len())].to_vec();
        let directory = Self {
            wake_timer: Timer::new(&events)?,
            is_reminded: AtomicBool::new(false),
            handshake_timer: Timer::new(&events)?,
            local: LocalProcess::new(resources, events),
            listeners: Mutex::default(),
            state: Mutex::new(State {
                links: Links::default(),
                handshakes: Handshakes::new(Instant::now()),
                timer: None,
            }),
            changed: Condvar::new(),
        };
        for address in open {
            directory.listen(address)?;
        }
        Ok(directory)
    }

    /// Listens on an abstract Unix socket for processes that know this process by the UDP address
    /// `address`. Does nothing if the address is not in the list that this process passes to its
    /// peers.
    pub(crate) fn listen(&self, address: SocketAddr) -> io::Result<()> {
        let address = without_interface(address);
        if !self.local.has_address(address) {
            return Ok(());
        }
        let listener = sockets::listen_at(address)?;
        self.local.events.add(listener.as_fd(), Source::Other)?;
        self.listeners.lock().push(listener);
        Ok(())
    }

    /// Returns the link (shared memory) to the process that has the socket address `address`, and
    /// performs a handshake if there is no link. Performs no handshake if the process declined a
    /// handshake less than [`RETRY_COOLDOWN`] ago. Returns `None` if no process has the address, or
    /// if the process declines or does not answer in time. Also returns `None` for an address of
    /// this process if this process is not permitted to be a peer of itself.
    pub(crate) fn link(&self, address: SocketAddr) -> Option<Arc<Link>> {
        if self.local.has_address(address) && !self.local.resources.is_peer {
            return None;
        }
        let mut state = self.state.lock();
        let deadline = Instant::now() + HANDSHAKE_TIMEOUT;
        loop {
            match state.links.state(address) {
                Some(ProcessState::Linked(link)) if !link.is_dead() => {
                    return Some(Arc::clone(link));
                }
                Some(ProcessState::Declined(when)) if when.elapsed() < RETRY_COOLDOWN => {
                    return None;
                }
                Some(ProcessState::InHandshake) => {
                    if self.changed.wait_until(&mut state, deadline).timed_out() {
                        return None;
                    }
                    continue;
                }
                // The peer has begun a handshake that is nearly finished. A second handshake would
                // create a second link.
                _ if state.handshakes.is_welcomed(address) => {
                    if self.changed.wait_until(&mut state, deadline).timed_out() {
                        return None;
                    }
                    continue;
                }
                _ => {}
            }
            state.links.begin_handshake(address);
            let ask = || handshake::perform(&self.local, address);
            match MutexGuard::unlocked(&mut state, ask) {
                Ok(HandshakeOutcome::Linked(link)) => {
                    state.links.add(&link, &self.local.resources.addresses);
                    self.changed.notify_all();
                    return Some(link);
                }
                // The handshake that the peer has begun will add the link.
                Ok(HandshakeOutcome::Superseded) => {
                    let is_in_handshake = |state: &mut State| state.links.is_in_handshake(address);
                    let waited =
                        self.changed
                            .wait_while_until(&mut state, is_in_handshake, deadline);
                    if !waited.timed_out() {
                        continue;
                    }
                }
                Ok(HandshakeOutcome::Declined) | Err(_) => {}
            }
            // A handshake that the peer has begun may have added a link while the state was
            // unlocked.
            if state.links.is_in_handshake(address) {
                state.links.set_declined(address, Instant::now());
                self.changed.notify_all();
            }
            return state.links.link(address);
        }
    }

    /// Returns the links (shared memory) of this process to all peer processes.
    pub(crate) fn links(&self) -> Vec<Arc<Link>> {
        self.state.lock().links.all().to_vec()
    }

    /// Returns all peer processes whose copies are possibly still in progress. Before the call, the
    /// caller must make the memory that it will reuse inaccessible for new copies.
    pub(crate) fn copying_peers(&self) -> Vec<Arc<CopyingPeer>> {
        self.local.copying_peers()
    }

    /// Continues handshakes that other processes have begun, removes links that have ended, and
    /// sends wakeups of peers that were deferred until now. Returns whether a link (shared memory)
    /// was added or removed. Only the engine's thread calls this function.
    pub(crate) fn handle_events(&self) -> bool {
        self.local.set_engine();
        let taken = self.local.events.take();
        if taken.any && self.is_reminded.swap(false, Ordering::AcqRel) {
            self.wake_timer.clear();
            // Pairs with the fence in `schedule_wakeups`: either the thread that defers a wakeup
            // sets the timer again, or this thread finds the deferred wakeup.
            fence(Ordering::SeqCst);
            let owing = self.links().into_iter().filter(|link| link.must_wake());
            owing.for_each(|link| link.flush());
        }
        let has_failed = self.local.take_failure();
        let mut state = self.state.lock();
        if !taken.any && !has_failed && !state.links.has_ended() {
            return false;
        }
        let before = state.links.changes();
        let now = Instant::now();
        let State {
            links, handshakes, ..
        } = &mut *state;
        handshakes.accept(&self.listeners.lock(), &self.local.events, now);
        if handshake::continue_pending(&self.local, links, handshakes, now) {
            self.changed.notify_all();
        }
        if taken.peer || has_failed || links.has_ended() {
            self.remove_ended(links);
        }
        self.set_handshake_timer(&mut state, now);
        state.links.changes() != before
    }

    /// Removes links (shared memory) that have ended, and peer processes that no longer copy from
    /// or to memory of this process.
    fn remove_ended(&self, links: &mut Links) {
        let _ended = links.remove_ended();
        if links.has_ended() {
            // The end of a peer is reported as one event. The wakeup makes the engine call
            // `handle_events` again for the links that stay.
            self.local.wake_engine();
        }
        self.local.remove_gone();
    }

    /// Sets the handshake timer to the next time at which a pending handshake needs work without an
    /// event, for example because its time limit is exceeded.
    fn set_handshake_timer(&self, state: &mut State, now: Instant) {
        let next = state.handshakes.next_deadline();
        // An expired timer has to be set again, even to the same time.
        state.timer = state.timer.filter(|&timer| timer > now);
        if next == state.timer {
            return;
        }
        state.timer = next;
        // A duration of 0 would stop the timer.
        let after = next.map(|next| {
            next.saturating_duration_since(now)
                .max(Duration::from_nanos(1))
        });
        self.handshake_timer.set(after.unwrap_or_default());
    }

    /// Ensures that the engine (background thread) sends the deferred wakeups of peers within
    /// [`MAX_WAKE_DELAY`]. Does nothing if the timer for these wakeups is running already.
    pub(crate) fn schedule_wakeups(&self) {
        // Pairs with the fence in `handle_events`.
        fence(Ordering::SeqCst);
        if self.is_reminded.load(Ordering::Relaxed) || self.is_reminded.swap(true, Ordering::AcqRel)
        {
            return;
        }
        self.wake_timer.set(MAX_WAKE_DELAY);
    }

    /// Returns the descriptor that is readable while the engine (background thread) must call
    /// [`handle_events`](Self::handle_events).
    pub(crate) fn events_descriptor(&self) -> BorrowedFd<'_> {
        self.local.events.descriptor()
    }

    /// Wakes the background thread of this process that receives messages.
    pub(crate) fn wake_engine(&self) {
        self.local.wake_engine();
    }
}

#[cfg(any(test, fuzzing))]
impl PeerDirectory {
    /// Resets the rate limits of handshakes for a test, so that a full burst is allowed.
    pub(super) fn reset_limits(&self) {
        self.state.lock().handshakes.reset_limits(Instant::now());
    }

    /// Checks the limits for a test: panics if this process has more pending handshakes or links
    /// (shared memory) than allowed.
    pub(super) fn check_limits(&self) {
        let state = self.state.lock();
        state.handshakes.check_limits();
        for process in state.handshakes.processes() {
            assert!(self.local.links_with(process) <= MAX_LINKS_PER_PROCESS);
        }
    }

    /// Returns whether this process has no link (shared memory), no pending handshake, and no peer
    /// that may copy from or to its memory.
    pub(super) fn has_no_peers(&self) -> bool {
        let state = self.state.lock();
        state.handshakes.is_empty()
            && state.links.all().is_empty()
            && self.local.copying_peer_count() == 0
    }

    /// Returns the eventfd by which peers and other threads wake the background thread of this
    /// process.
    #[cfg(all(test, not(loom)))]
    pub(super) fn wake_eventfd(&self) -> BorrowedFd<'_> {
        self.local.resources.wake_eventfd.as_fd()
    }
}

impl fmt::Debug for PeerDirectory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PeerDirectory")
            .field("addresses", &self.local.resources.addresses)
            .field("links", &self.state.lock().links.all())
            .finish_non_exhaustive()
    }
}
