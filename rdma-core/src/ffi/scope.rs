//! Requests with borrowed memory, all of which have ended when the borrow does.

use std::cell::Cell;
use std::fmt;
use std::marker::PhantomData;
use std::mem::{self, MaybeUninit};
use std::panic::{self, AssertUnwindSafe};
use std::sync::Arc;
use std::time::Duration;

use super::completion_queue::CompletionQueueHandle;
use super::queue_pair::QueuePairHandle;
use super::receive_ring::no_receive_queue;
use super::request::{ReceiveElements, describe_inline, describe_send, stack_room};
use super::slot_table::{Reserved, SlotTable};
use crate::completion::WorkCompletion;
use crate::error::{Error, Result};
use crate::memory::{BorrowedMemory, Gather, Scatter};
use crate::queue_pair::Outcome as End;
use crate::queue_pair::{InlineData, KeepAlive, PendingRequest, PostError, SendRequest};

/// Where requests are posted whose memory is borrowed, from
/// [`QueuePair::scope`](crate::QueuePair::scope).
///
/// Nothing that it posts outlives it, whatever becomes of the requests' handles: what is in flight
/// when the closure ends, by returning or by a panic, is waited for.
///
/// It is not `Sync`, and its requests are neither `Send` nor `Sync`: one thread posts and waits, which
/// needs no lock.
pub struct Scope<'scope, 'env: 'scope> {
    requests: ScopeRequests,
    /// Invariant, so that neither lifetime is taken for a shorter one.
    scope: PhantomData<&'scope mut &'scope ()>,
    env: PhantomData<&'env mut &'env ()>,
}

impl fmt::Debug for Scope<'_, '_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Scope")
            .field("queue_pair", &self.requests.queue_pair.number())
            .field("in_flight", &self.in_flight())
            .finish_non_exhaustive()
    }
}

/// Calls `body` with a scope, and returns when nothing of it is in flight any more.
pub(crate) fn scope<'env, R>(
    requests: ScopeRequests,
    body: impl for<'scope> FnOnce(&'scope Scope<'scope, 'env>) -> R,
) -> Result<R> {
    if requests.queue_pair.is_polled_here() {
        // It could not be reset: see `give_up`.
        let holder = "a poll of the queue pair's completions that has not ended";
        return Err(Error::InUse { holder });
    }
    let scope = Scope {
        requests,
        scope: PhantomData,
        env: PhantomData,
    };
    // Whatever happens, the borrowed memory is not given back while the device may use it.
    let unfinished = AbortOnDrop;
    let outcome = panic::catch_unwind(AssertUnwindSafe(|| body(&scope)));
    let ended = scope.requests.end();
    mem::forget(unfinished);
    match outcome {
        Ok(value) => ended.map(|()| value),
        Err(payload) => panic::resume_unwind(payload),
    }
}

struct AbortOnDrop;

impl Drop for AbortOnDrop {
    fn drop(&mut self) {
        abort("waiting for the requests of a scope panicked");
    }
}

/// Ends the process: the device may be using memory that is about to be somebody else's.
#[cold]
pub(super) fn abort(reason: &str) -> ! {
    tracing::error!(reason, "aborting: the device may still use borrowed memory");
    eprintln!("rdma-core: aborting, as the device may still use borrowed memory: {reason}");
    std::process::abort()
}

impl<'scope> Scope<'scope, '_> {
    /// Posts a request, signaled.
    ///
    /// # Errors
    ///
    /// As [`SendQueue::post`](crate::SendQueue::post).
    #[doc(alias = "ibv_post_send")]
    #[inline]
    pub fn post<M: BorrowedMemory + 'scope>(
        &'scope self,
        request: SendRequest<M>,
    ) -> Result<PendingRequest<'scope, M>, PostError<M>> {
        const { assert_borrowed::<M>() };
        // SAFETY: the memory lives for `'scope`, which does not end before `scope` returns, when
        // the request has ended. `M` drops nothing, so it keeps nothing that must be kept; and until
        // the request has ended nobody gets at it: it is in the handle.
        match unsafe { self.requests.post_send(request) } {
            Ok((ticket, memory)) => Ok(PendingRequest::new(&self.requests, ticket, memory)),
            Err(refused) => Err(PostError::new(refused)),
        }
    }

    /// Posts a request whose data is copied, signaled, as
    /// [`SendQueue::post_inline`](crate::SendQueue::post_inline) does.
    ///
    /// # Errors
    ///
    /// As [`SendQueue::post_inline`](crate::SendQueue::post_inline).
    #[inline]
    pub fn post_inline<D: InlineData>(
        &'scope self,
        request: SendRequest<D>,
    ) -> Result<PendingRequest<'scope, ()>, PostError<D>> {
        match self.requests.post_inline(request) {
            Ok(ticket) => Ok(PendingRequest::new(&self.requests, ticket, ())),
            Err(refused) => Err(PostError::new(refused)),
        }
    }

    /// Posts memory for one message of the peer.
    ///
    /// # Errors
    ///
    /// As [`ReceiveQueue::post`](crate::ReceiveQueue::post).
    #[doc(alias = "ibv_post_recv")]
    #[inline]
    pub fn post_receive<M: BorrowedMemory + Scatter + 'scope>(
        &'scope self,
        memory: M,
    ) -> Result<PendingRequest<'scope, M>, PostError<M>> {
        const { assert_borrowed::<M>() };
        // SAFETY: as in `post`.
        match unsafe { self.requests.post_receive(memory) } {
            Ok((ticket, memory)) => Ok(PendingRequest::new(&self.requests, ticket, memory)),
            Err(refused) => Err(PostError::new(refused)),
        }
    }

    /// How many requests have not ended, as far as is known.
    pub fn in_flight(&self) -> usize {
        self.requests.in_flight.get()
    }

    /// Waits until all requests have ended. What became of each, its handle tells.
    ///
    /// # Errors
    ///
    /// [`Error::TimedOut`] when none of them ended for as long as the scope allows: the queue pair
    /// has failed then. [`Error::InUse`] within a poll of an extended completion queue of it.
    pub fn wait_all(&self) -> Result<()> {
        self.requests.wait_all()
    }
}

/// What soundness needs of [`BorrowedMemory`].
const fn assert_borrowed<M>() {
    assert!(
        !mem::needs_drop::<M>(),
        "the memory of a scope's requests is borrowed: post a slice or a reference"
    );
}

/// What became of the request in a slot.
#[derive(Debug, Clone, Copy)]
pub(super) enum Outcome {
    /// There is none.
    Free,
    InFlight {
        id: u64,
    },
    /// In flight, and its handle is gone.
    Unwatched {
        id: u64,
    },
    Completed(WorkCompletion),
    /// The device was made to forget it.
    Forgotten,
}

/// The requests of a scope, by their slots.
pub(crate) struct ScopeRequests {
    pub(super) queue_pair: Arc<QueuePairHandle>,
    /// Where they complete: that of sends, and that of receives if it is another.
    pub(super) completions: [Option<Arc<CompletionQueueHandle>>; 2],
    pub(super) timeout: Duration,
    pub(super) table: SlotTable<KeepAlive>,
    pub(super) outcomes: Box<[Cell<Outcome>]>,
    pub(super) in_flight: Cell<usize>,
    /// The first failure that no handle told.
    pub(super) failure: Cell<Option<Error>>,
}

/// A request of a scope: its slot.
#[derive(Debug)]
pub(crate) struct Ticket(pub(super) u32);

impl ScopeRequests {
    pub(crate) fn new(
        queue_pair: Arc<QueuePairHandle>,
        sends: &Arc<CompletionQueueHandle>,
        receives: &Arc<CompletionQueueHandle>,
        timeout: Duration,
    ) -> Self {
        let sizes = queue_pair.sizes();
        let capacity = sizes.send_requests.saturating_add(sizes.receive_requests);
        let table = SlotTable::new(capacity);
        let receives = (!Arc::ptr_eq(sends, receives)).then(|| Arc::clone(receives));
        Self {
            queue_pair,
            completions: [Some(Arc::clone(sends)), receives],
            timeout,
            outcomes: (0..table.capacity())
                .map(|_| Cell::new(Outcome::Free))
                .collect(),
            table,
            in_flight: Cell::new(0),
            failure: Cell::new(None),
        }
    }

    #[inline]
    fn reserve(&self) -> Result<Reserved> {
        self.table.reserve().ok_or_else(|| Error::QueueFull {
            queue: "scope's",
            capacity: self.table.capacity(),
        })
    }

    /// Counts a request that was posted.
    #[inline]
    fn posted(&self, reserved: Reserved) -> Ticket {
        let id = reserved.id();
        self.outcomes[reserved.index() as usize].set(Outcome::InFlight { id });
        self.in_flight.set(self.in_flight.get() + 1);
        Ticket(reserved.index())
    }

    /// # Safety
    ///
    /// The memory stays where it is, and unreachable in every way that its type does not allow the
    /// device as well, until the request has ended.
    #[inline]
    unsafe fn post_send<M: Gather>(
        &self,
        request: SendRequest<M>,
    ) -> Result<(Ticket, M), (Error, M)> {
        let request = request.signaled();
        let reserved = match self.reserve() {
            Ok(reserved) => reserved,
            Err(error) => return Err((error, request.into_memory())),
        };
        let (mut wr, mut room) = (MaybeUninit::uninit(), stack_room());
        let (queue_pair, id) = (&*self.queue_pair, reserved.id());
        if let Err(error) = describe_send(&mut wr, &mut room, &request, queue_pair, id) {
            self.table.cancel(reserved);
            return Err((error, request.into_memory()));
        }
        let (memory, keep) = request.into_parts();
        self.table.launch(&reserved, keep);
        // SAFETY: it was described, and `room` outlives the call; the caller vouches for the memory.
        // What keeps alive is in the slot until the request has ended.
        match unsafe { queue_pair.post_send(wr.assume_init_mut()) } {
            Ok(()) => Ok((self.posted(reserved), memory)),
            Err(error) => {
                self.withdraw(reserved);
                Err((error, memory))
            }
        }
    }

    /// Gives up what was kept of a request that was not posted.
    #[cold]
    fn withdraw(&self, reserved: Reserved) {
        self.table.withdraw(reserved).settle(End::NotPosted);
    }

    #[inline]
    fn post_inline<D: InlineData>(&self, request: SendRequest<D>) -> Result<Ticket, (Error, D)> {
        let request = request.signaled();
        let reserved = match self.reserve() {
            Ok(reserved) => reserved,
            Err(error) => return Err((error, request.into_memory())),
        };
        let (mut wr, mut room) = (MaybeUninit::uninit(), stack_room());
        let (queue_pair, id) = (&*self.queue_pair, reserved.id());
        if let Err(error) = describe_inline(&mut wr, &mut room, &request, queue_pair, id) {
            self.table.cancel(reserved);
            return Err((error, request.into_memory()));
        }
        let (data, keep) = request.into_parts();
        self.table.launch(&reserved, keep);
        // SAFETY: it was described, and `room` and the data, which is copied, outlive the call. What
        // keeps alive is in the slot until the request has ended.
        match unsafe { queue_pair.post_send(wr.assume_init_mut()) } {
            Ok(()) => Ok(self.posted(reserved)),
            Err(error) => {
                self.withdraw(reserved);
                Err((error, data))
            }
        }
    }

    /// # Safety
    ///
    /// As [`Self::post_send`].
    #[inline]
    unsafe fn post_receive<M: Scatter>(&self, memory: M) -> Result<(Ticket, M), (Error, M)> {
        if let Some(error) = no_receive_queue(&self.queue_pair) {
            return Err((error, memory));
        }
        let mut elements = ReceiveElements::new();
        let (limits, context) = (self.queue_pair.sizes(), self.queue_pair.domain().context());
        if let Err(error) = elements.scatter(&memory, limits, context) {
            return Err((error, memory));
        }
        let reserved = match self.reserve() {
            Ok(reserved) => reserved,
            Err(error) => return Err((error, memory)),
        };
        let mut wr = elements.work_request(reserved.id());
        self.table.launch(&reserved, KeepAlive::Nothing);
        // SAFETY: `elements` outlives the call; the caller vouches for the memory.
        match unsafe { self.queue_pair.post_receive(&mut wr) } {
            Ok(()) => Ok((self.posted(reserved), memory)),
            Err(error) => {
                self.withdraw(reserved);
                Err((error, memory))
            }
        }
    }
}
