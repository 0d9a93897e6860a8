//! Scopes for requests with borrowed memory.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use super::QueuePair;
use crate::completion::WorkCompletion;
use crate::error::{Error, Result};
use crate::ffi::{self, Scope, ScopeRequests, Ticket};

impl QueuePair {
    /// Calls `body` with a scope, through which `body` can post requests with borrowed memory. The
    /// method returns only after all requests of the scope have ended.
    ///
    /// ```
    /// use std::time::Duration;
    /// # use rdma_core::{AccessFlags, ConnectOptions, Context, SendRequest};
    /// # let context = Context::open("softroce0")?;
    /// # let domain = context.protection_domain()?;
    /// # let (left, right) = (domain.queue_pair().build()?, domain.queue_pair().build()?);
    /// # let (to_right, to_left) = (right.endpoint(), left.endpoint());
    /// # let _right = right.connect(&to_left, &ConnectOptions::default())?;
    /// # let left = left.connect(&to_right, &ConnectOptions::default())?;
    /// # let there = domain.allocate(8)?.expose(AccessFlags::REMOTE)?;
    /// let source = domain.allocate(8)?;
    /// let mut target = domain.allocate(8)?;
    /// left.scope(Duration::from_secs(5), |scope| {
    ///     let write = scope.post(SendRequest::write(source.as_slice(), there.remote()))?;
    ///     let read = scope.post(SendRequest::read(target.as_slice_mut(), there.remote()))?;
    ///     write.wait()?;
    ///     println!("it has {:?}", &read.wait()?.memory[..]);
    ///     Ok::<(), rdma_core::Error>(())
    /// })??;
    /// println!("{:?} became {:?}", &source[..], &target[..]);
    /// # Ok::<(), rdma_core::Error>(())
    /// ```
    ///
    /// A wait, for one request or for all requests, times out if no request of the scope completes
    /// for the duration `timeout`. The method then moves the queue pair to the error state, in
    /// which the device completes all outstanding requests. If these completions take longer than
    /// two seconds, the method moves the queue pair to RESET, in which the device discards the
    /// outstanding requests. If the device refuses the reset, the method aborts the process,
    /// because the device could otherwise access memory after the borrow has ended. Therefore a
    /// peer that never responds cannot block the scope. If `body` panics, the method waits in the
    /// same way, and then the panic continues.
    ///
    /// The scope keeps completions of other requests for later polls, in their order. If several
    /// threads poll a completion queue at the same time, each thread gets its completions in order,
    /// but the order between threads is unspecified. Other threads may poll the same completion
    /// queues while the scope exists, and their polls are then slower. The completions of the
    /// scope's requests are passed to the scope and not to those threads.
    ///
    /// A scope allocates memory when it begins, and again after every 2^24 requests.
    ///
    /// # Errors
    ///
    /// [`Error::TimedOut`] if requests did not complete in time. [`Error::Work`] if a request
    /// failed, and the program did not get the result by [`PendingRequest::wait`].
    /// [`Error::InUse`], without a call of `body`, if the calling thread is polling an extended
    /// completion queue of the queue pair.
    pub fn scope<'env, R>(
        &self,
        timeout: Duration,
        body: impl for<'scope> FnOnce(&'scope Scope<'scope, 'env>) -> R,
    ) -> Result<R> {
        let requests = ScopeRequests::new(
            Arc::clone(self.handle()),
            self.send_completions().handle(),
            self.receive_completions().handle(),
            timeout,
        );
        ffi::scope(requests, body)
    }
}

/// A handle of a request that was posted in a [`Scope`]. Dropping or forgetting the handle does not
/// affect the request: the scope ends only after the request has ended.
pub struct PendingRequest<'scope, M> {
    requests: &'scope ScopeRequests,
    /// The index of the completion queue of the request: 0 for sends, 1 for receives.
    way: usize,
    ticket: Ticket<'scope>,
    /// The memory of the request; `None` after [`Self::wait`] has returned the memory.
    memory: Option<M>,
}

impl<M> fmt::Debug for PendingRequest<'_, M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PendingRequest")
            .field("id", &self.ticket.id())
            .finish_non_exhaustive()
    }
}

/// The result of a successful request in a [`Scope`]: the memory and the completion of the request.
#[derive(Debug)]
pub struct CompletedRequest<M> {
    /// The memory of the request. The memory of a receive begins with the message, which has
    /// [`completion.len()`](WorkCompletion::len) bytes.
    pub memory: M,
    /// The completion of the request.
    pub completion: WorkCompletion,
}

/// The error of a failed request in a [`Scope`], with the memory of the request. The request failed
/// or did not end in time.
#[derive(thiserror::Error)]
#[error("{error}")]
pub struct FailedRequest<M> {
    /// The cause of the failure: [`Error::Work`] or [`Error::TimedOut`].
    pub error: Error,
    /// The memory of the request.
    pub memory: M,
}

impl<M> fmt::Debug for FailedRequest<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl<M> From<FailedRequest<M>> for Error {
    fn from(failed: FailedRequest<M>) -> Self {
        failed.error
    }
}

impl<'scope, M> PendingRequest<'scope, M> {
    #[inline(always)]
    pub(crate) fn new(
        requests: &'scope ScopeRequests,
        way: usize,
        ticket: Ticket<'scope>,
        memory: M,
    ) -> Self {
        Self {
            requests,
            way,
            ticket,
            memory: Some(memory),
        }
    }

    /// Waits until the request has ended, and returns its memory and its completion.
    ///
    /// # Errors
    ///
    /// Returns the memory, with [`Error::Work`] if the request failed, or [`Error::TimedOut`] if
    /// the request did not complete in time. After a timeout the queue pair has failed, and all
    /// other requests have ended as well.
    ///
    /// # Panics
    ///
    /// Panics if the calling thread is polling an extended completion queue of the queue pair,
    /// because no request could complete before that poll has ended.
    #[inline(always)]
    pub fn wait(mut self) -> Result<CompletedRequest<M>, FailedRequest<M>> {
        let memory = self.memory.take().expect("it is waited for once");
        let completion = match self.requests.poll_once(self.way, self.ticket) {
            Some(completion) => completion,
            None => match self.requests.wait(self.ticket) {
                Ok(completion) => completion,
                Err(error) => return Err(FailedRequest { error, memory }),
            },
        };
        Ok(CompletedRequest { memory, completion })
    }

    /// Returns whether the request has ended, without waiting. After the end of the request,
    /// [`Self::wait`] returns immediately.
    ///
    /// # Errors
    ///
    /// The error of the verb that polls the completion queue, for example because the completion
    /// queue or the device has failed.
    pub fn is_over(&self) -> Result<bool> {
        self.requests.is_over(self.ticket)
    }
}

impl<M> Drop for PendingRequest<'_, M> {
    #[inline(always)]
    fn drop(&mut self) {
        if self.memory.is_some() {
            self.requests.drop_handle(self.ticket);
        }
    }
}
