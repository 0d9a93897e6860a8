//! Requests whose memory is borrowed.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use super::QueuePair;
use crate::completion::WorkCompletion;
use crate::error::{Error, Result};
use crate::ffi::{self, Scope, ScopeRequests, Ticket};

impl QueuePair {
    /// Calls `body` with a scope, in which requests with borrowed memory are posted, and waits at
    /// its end for all of them.
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
    /// A wait, for one request or for all, ends when none of the scope's requests has completed for
    /// as long as `timeout`. The queue pair is given up then: it is moved to the error state, in
    /// which the device ends everything outstanding; if that takes longer than two seconds, to the
    /// reset state, in which the device has forgotten it; and if the device refuses that too, the
    /// process is aborted, as nothing else keeps the device from memory that is somebody else's
    /// soon. So a peer that never answers cannot hang it. All this is done as well when `body`
    /// panics; the panic goes on after it.
    ///
    /// Completions of other requests that come meanwhile are kept for those who poll for them, in
    /// their order; where several threads poll a queue at the same time, in scopes or otherwise, what
    /// each of them finds is in order, and not what one finds and another one. Others may poll the
    /// same completion queues while the scope lasts: a completion of one of its requests is not given
    /// to them, but noted for the scope. Their polls are slower meanwhile.
    ///
    /// A scope allocates when it begins, and again after every 2^24 requests.
    ///
    /// # Errors
    ///
    /// [`Error::TimedOut`] when requests had to be given up at the end, and [`Error::Work`] when one
    /// failed whose outcome was not [asked for](PendingRequest::wait). [`Error::InUse`], without a
    /// call of `body`, from within a poll of an extended completion queue of the queue pair.
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

/// A request of a [`Scope`]. Dropping or forgetting it changes nothing for the request: the scope
/// waits for it at its end.
pub struct PendingRequest<'scope, M> {
    requests: &'scope ScopeRequests,
    /// Which of the completion queues it completes on.
    way: usize,
    ticket: Ticket<'scope>,
    /// Gone once it was waited for.
    memory: Option<M>,
}

impl<M> fmt::Debug for PendingRequest<'_, M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PendingRequest")
            .field("id", &self.ticket.id())
            .finish_non_exhaustive()
    }
}

/// A request that succeeded.
#[derive(Debug)]
pub struct CompletedRequest<M> {
    /// Its memory. That of a receive begins with the message, of
    /// [`completion.len()`](WorkCompletion::len) bytes.
    pub memory: M,
    /// The completion of the request.
    pub completion: WorkCompletion,
}

/// A request that failed or did not end in time. `Debug` prints the same text as `Display`.
#[derive(thiserror::Error)]
#[error("{error}")]
pub struct FailedRequest<M> {
    /// The cause: [`Error::Work`] or [`Error::TimedOut`].
    pub error: Error,
    /// Its memory.
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

    /// Waits until the request has ended, and gives its memory back. Others may end meanwhile.
    ///
    /// # Errors
    ///
    /// The memory, with [`Error::Work`] when the request failed, or [`Error::TimedOut`] when it had
    /// to be given up: the queue pair has failed then, and all other requests have ended as well.
    ///
    /// # Panics
    ///
    /// Within a poll of an extended completion queue of the queue pair: before it ends nothing
    /// completes.
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

    /// Returns whether the request has ended, without waiting: [`Self::wait`] then gives the
    /// outcome at once.
    ///
    /// # Errors
    ///
    /// The verb's, when the completion queue or the device has failed.
    pub fn is_over(&self) -> Result<bool> {
        self.requests.is_over(self.ticket)
    }
}

impl<M> Drop for PendingRequest<'_, M> {
    #[inline(always)]
    fn drop(&mut self) {
        if self.memory.is_some() {
            self.requests.unwatch(self.ticket);
        }
    }
}
