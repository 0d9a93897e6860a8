//! Scopes: requests with borrowed memory, which end before the borrow does.
//!
//! | file | content |
//! |---|---|
//! | `scope` | [`Scope`], the public interface, and the guarantee that the borrow outlives the requests |
//! | `scope_requests` | [`ScopeRequests`], the requests of a scope: posting |
//! | `scope_end` | [`ScopeRequests`]: waiting for completions, and forcing requests to end |
//! | `scope_slots` | the states of the requests |

use std::fmt;
use std::marker::PhantomData;
use std::mem;
use std::panic::{self, AssertUnwindSafe};

use super::scope_requests::{RECEIVES, SENDS, ScopeRequests};
use crate::error::Result;
use crate::memory::{BorrowedMemory, Scatter};
use crate::queue_pair::{InlineData, PendingRequest, PostError, SendRequest};

/// A scope for requests with borrowed memory, from [`QueuePair::scope`](crate::QueuePair::scope).
///
/// No request outlives the scope, even if the program drops or leaks the handle of the request:
/// when the closure returns or panics, the scope waits for all requests in flight.
///
/// The scope is not `Sync`, and its requests are neither `Send` nor `Sync`: a single thread posts
/// and waits, so the scope needs no lock.
pub struct Scope<'scope, 'env: 'scope> {
    requests: ScopeRequests,
    /// Makes both lifetimes invariant, so that the compiler can shorten neither.
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

/// Calls `body` with a scope. Returns after `body` has returned and no request of the scope is in
/// flight any more.
pub(crate) fn scope<'env, R>(
    requests: ScopeRequests,
    body: impl for<'scope> FnOnce(&'scope Scope<'scope, 'env>) -> R,
) -> Result<R> {
    // The check is needed because `force_end` may have to reset the queue pair, which is impossible
    // while this thread is polling its completion queue.
    requests.queue_pair.refuse_within_poll()?;
    // Other threads may poll these completion queues too; they then store the completions of this
    // scope's requests in its inbox.
    let queues = requests.completions.clone();
    let inbox = requests.slots.inbox();
    let _diversions = [&queues[0], &queues[1]].map(|queue| queue.stash().register(inbox));
    let scope = Scope {
        requests,
        scope: PhantomData,
        env: PhantomData,
    };
    // If waiting for the requests panics, the process is aborted: the borrow must not end while the
    // device may use the memory.
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

/// Aborts the process with a message. Called if a borrow of memory would otherwise end while the
/// device can still access the memory.
#[cold]
pub(super) fn abort(reason: &str) -> ! {
    tracing::error!(reason, "aborting: the device may still use borrowed memory");
    eprintln!("rdma-core: aborting, as the device may still use borrowed memory: {reason}");
    std::process::abort()
}

impl<'scope> Scope<'scope, '_> {
    /// Posts a send request with borrowed memory. The scope makes every request signaled.
    ///
    /// # Errors
    ///
    /// The errors of [`SendQueue::post`](crate::SendQueue::post).
    #[doc(alias = "ibv_post_send")]
    #[inline(always)]
    pub fn post<M: BorrowedMemory + 'scope>(
        &'scope self,
        request: SendRequest<M>,
    ) -> Result<PendingRequest<'scope, M>, PostError<M>> {
        const { assert_borrowed::<M>() };
        // SAFETY: the memory is borrowed for `'scope`, which ends after the request has ended. `M`
        // has no destructor, so the handle may be leaked. Until the request has ended the memory is
        // in the handle, where no code can access it.
        match unsafe { self.requests.post_send(request) } {
            Ok((ticket, memory)) => Ok(PendingRequest::new(&self.requests, SENDS, ticket, memory)),
            Err(refused) => Err(PostError::new(refused)),
        }
    }

    /// Posts a send request with inline data, like
    /// [`SendQueue::post_inline`](crate::SendQueue::post_inline). The scope makes every request
    /// signaled.
    ///
    /// # Errors
    ///
    /// The errors of [`SendQueue::post_inline`](crate::SendQueue::post_inline).
    #[inline]
    pub fn post_inline<D: InlineData>(
        &'scope self,
        request: SendRequest<D>,
    ) -> Result<PendingRequest<'scope, ()>, PostError<D>> {
        match self.requests.post_inline(request) {
            Ok(ticket) => Ok(PendingRequest::new(&self.requests, SENDS, ticket, ())),
            Err(refused) => Err(PostError::new(refused)),
        }
    }

    /// Posts a receive: the device will write one message of the peer to `memory`.
    ///
    /// # Errors
    ///
    /// The errors of [`ReceiveQueue::post`](crate::ReceiveQueue::post).
    #[doc(alias = "ibv_post_recv")]
    #[inline(always)]
    pub fn post_receive<M: BorrowedMemory + Scatter + 'scope>(
        &'scope self,
        memory: M,
    ) -> Result<PendingRequest<'scope, M>, PostError<M>> {
        const { assert_borrowed::<M>() };
        // SAFETY: the memory is borrowed for `'scope`, which ends after the request has ended. `M`
        // has no destructor, and until the request has ended the memory is in the handle, where no
        // code can access it.
        match unsafe { self.requests.post_receive(memory) } {
            Ok((ticket, memory)) => Ok(PendingRequest::new(
                &self.requests,
                RECEIVES,
                ticket,
                memory,
            )),
            Err(refused) => Err(PostError::new(refused)),
        }
    }

    /// Returns the number of requests in flight: posted requests whose completion the scope has not
    /// polled yet.
    pub fn in_flight(&self) -> usize {
        self.requests.in_flight.get()
    }

    /// Waits until all requests that were posted through this [`Scope`] have ended. Does not return
    /// their outcomes; [`PendingRequest::wait`] returns the outcome of each request.
    ///
    /// # Errors
    ///
    /// - [`Error::TimedOut`](crate::Error::TimedOut) if no request has ended during the timeout of
    ///   the scope. The queue pair has then failed.
    /// - [`Error::InUse`](crate::Error::InUse) if the calling thread is polling an extended
    ///   completion queue of the queue pair.
    pub fn wait_all(&self) -> Result<()> {
        self.requests.wait_all()
    }
}

/// Asserts, at compile time, that `M` has no destructor, as [`BorrowedMemory`] requires.
const fn assert_borrowed<M>() {
    assert!(
        !mem::needs_drop::<M>(),
        "the memory of a scope's requests is borrowed: post a slice or a reference"
    );
}
