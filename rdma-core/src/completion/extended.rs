//! Extended completion queues.

use std::sync::Arc;

use ibverbs_sys::ibv_create_cq_attr_flags;

use super::queue::checked_channel;
use super::{
    CompletionFields, CompletionQueue, CompletionQueueBuilder, CompletionQueueId,
    ExtendedCompletion,
};
use crate::error::{Error, Result};
use crate::ffi::{CompletionQueueHandle, ExtendedSettings, Session};
use crate::protection_domain::ProtectionDomain;

/// A completion queue whose completions can have additional fields, for example timestamps
/// (`ibv_cq_ex`). The crate reads a field only when the program calls the method for the field.
///
/// The queue is a [`CompletionQueue`] with another way to poll. [`Self::queue`] returns the plain
/// queue, for example to create queue pairs. Only one poll can run at a time: a second poll, from
/// the closure of the first poll or from another thread, returns an error and does not wait.
///
/// An extended queue is `Send` and `Sync` like a [`CompletionQueue`], because the driver locks the
/// queue. A queue without a lock can only be created by the `unsafe` method
/// [`single_threaded`](ExtendedCompletionQueueBuilder::single_threaded). The caller of this method
/// guarantees that one thread at a time uses the queue.
///
/// ```
/// use rdma_core::Context;
/// use rdma_core::completion::CompletionFields;
///
/// let context = Context::open_default()?;
/// let fields = CompletionFields::STANDARD;
/// let queue = context.completion_queue(64).extended(fields).build()?;
/// let pair = context.protection_domain()?.queue_pair().send_completions(queue.queue()).build()?;
/// let bytes = queue.poll(|completions| {
///     let mut bytes = 0;
///     while let Some(completion) = completions.next() {
///         bytes += completion.len().unwrap_or(0);
///     }
///     bytes
/// })?;
/// assert_eq!(bytes, 0);
/// # drop(pair);
/// # Ok::<(), rdma_core::Error>(())
/// ```
#[doc(alias = "ibv_cq_ex")]
#[derive(Debug, Clone)]
pub struct ExtendedCompletionQueue {
    queue: CompletionQueue,
    fields: CompletionFields,
}

/// A builder for a completion queue whose completions can have additional fields, from
/// [`CompletionQueueBuilder::extended`].
#[derive(Debug, Clone)]
#[must_use = "a builder makes nothing until `build`"]
pub struct ExtendedCompletionQueueBuilder {
    plain: CompletionQueueBuilder,
    fields: CompletionFields,
    flags: ibv_create_cq_attr_flags,
    domain: Option<ProtectionDomain>,
}

impl ExtendedCompletionQueueBuilder {
    pub(super) fn new(plain: CompletionQueueBuilder, fields: CompletionFields) -> Self {
        Self {
            plain,
            fields,
            flags: ibv_create_cq_attr_flags(0),
            domain: None,
        }
    }

    pub(crate) fn flag(mut self, flag: ibv_create_cq_attr_flags) -> Self {
        self.flags.0 |= flag.0;
        self
    }

    /// Sets the [parent domain](ProtectionDomain::parent) that the driver uses to allocate the
    /// queue.
    #[doc(alias = "IBV_CQ_INIT_ATTR_MASK_PD")]
    pub fn parent_domain(mut self, domain: &ProtectionDomain) -> Self {
        self.domain = Some(domain.clone());
        self
    }

    /// Creates the extended completion queue with the settings of this builder.
    ///
    /// # Errors
    ///
    /// - [`Error::InvalidArgument`] for 0 entries, for a channel or domain of another device, or
    ///   for a domain that is not a parent domain.
    /// - The error of `ibv_create_cq_ex`. The error [is unsupported](Error::is_unsupported) if the
    ///   device does not support extended completion queues, one of the fields, or one of the
    ///   flags.
    #[doc(alias = "ibv_create_cq_ex")]
    pub fn build(self) -> Result<ExtendedCompletionQueue> {
        let what = "extended completion queue";
        let context = Arc::clone(self.plain.context.handle());
        let channel = checked_channel(&self.plain, what)?;
        let domain = self.domain.map(|domain| Arc::clone(domain.handle()));
        if domain
            .as_ref()
            .is_some_and(|domain| !Arc::ptr_eq(domain.context(), &context))
        {
            return Err(Error::invalid(
                what,
                "the parent domain is of another context",
            ));
        }
        if domain.as_ref().is_some_and(|domain| !domain.is_parent()) {
            return Err(Error::invalid(what, "the domain is not a parent domain"));
        }
        let settings = ExtendedSettings {
            entries: self.plain.entries,
            channel,
            vector: self.plain.vector,
            fields: self.fields,
            flags: self.flags,
            domain,
        };
        let id = CompletionQueueId::next();
        let handle = CompletionQueueHandle::create_extended(context, settings, id.0)?;
        Ok(ExtendedCompletionQueue::from_handle(handle, id))
    }
}

impl ExtendedCompletionQueue {
    pub(crate) fn from_handle(handle: CompletionQueueHandle, id: CompletionQueueId) -> Self {
        let fields = handle.extension().map(|extension| extension.fields());
        Self {
            fields: fields.unwrap_or(CompletionFields::empty()),
            queue: CompletionQueue::from_handle(handle, id),
        }
    }

    /// Returns the underlying completion queue, for example to create queue pairs, to request
    /// notifications, or to resize the queue. A plain [`poll`](CompletionQueue::poll) also works on
    /// this queue if [`Self::fields`] includes [`CompletionFields::STANDARD`].
    pub fn queue(&self) -> &CompletionQueue {
        &self.queue
    }

    /// Returns the additional fields with which the queue was created. Each completion of the queue
    /// has these fields.
    pub fn fields(&self) -> CompletionFields {
        self.fields
    }

    /// Calls `each` with an iterator over the available completions, and returns the result of
    /// `each`.
    ///
    /// Completions that `each` does not consume stay in the queue. If `each` drops a queue pair,
    /// the queue pair is destroyed after the poll.
    ///
    /// A completion is valid only until `each` reads the next completion or returns:
    ///
    /// ```compile_fail,E0499
    /// # fn example(queue: rdma_core::completion::ExtendedCompletionQueue) -> rdma_core::Result<()> {
    /// queue.poll(|completions| {
    ///     let first = completions.next();
    ///     let second = completions.next();
    ///     drop((first, second));
    /// })
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// - [`Error::InUse`] if another poll of this queue is running, in another thread or in a
    ///   caller of this function.
    /// - The error of `ibv_start_poll` or `ibv_next_poll` if the queue or the device has failed.
    ///
    /// If the queue fails during the poll, the return value of `each` is dropped. If `each` has
    /// results that must not be lost, `each` must therefore store these results elsewhere.
    #[doc(alias = "ibv_start_poll")]
    #[doc(alias = "ibv_end_poll")]
    pub fn poll<R>(&self, each: impl FnOnce(&mut PolledCompletions<'_>) -> R) -> Result<R> {
        let mut completions = PolledCompletions {
            session: self.queue.handle().session()?,
            failure: None,
        };
        let outcome = each(&mut completions);
        match completions.failure.take() {
            None => Ok(outcome),
            Some(error) => Err(error),
        }
    }

    /// Returns the underlying `ibv_cq_ex`. The pointer is valid as long as this queue exists.
    pub fn as_raw(&self) -> *mut ibverbs_sys::ibv_cq_ex {
        let extension = self.queue.handle().extension();
        extension.map_or(std::ptr::null_mut(), |extension| extension.as_raw())
    }
}

/// An iterator over the completions of an extended completion queue, valid during one call of
/// [`ExtendedCompletionQueue::poll`].
///
/// The iterator is not `Send`, because the driver may hold a lock during the poll, and only the
/// thread that acquired the lock may release it.
#[derive(Debug)]
pub struct PolledCompletions<'a> {
    session: Session<'a>,
    failure: Option<Error>,
}

impl PolledCompletions<'_> {
    /// Returns the next completion, or `None` if no completion is left. After `None`, every further
    /// call during the same poll also returns `None`. If the queue fails, this method returns
    /// `None`, and [`poll`](ExtendedCompletionQueue::poll) then returns the error.
    #[doc(alias = "ibv_next_poll")]
    #[allow(
        clippy::should_implement_trait,
        reason = "what it gives borrows from this"
    )]
    #[inline]
    pub fn next(&mut self) -> Option<ExtendedCompletion<'_>> {
        match self.session.advance() {
            Ok(true) => Some(ExtendedCompletion::new(&self.session)),
            Ok(false) => None,
            Err(error) => {
                self.failure = Some(error);
                None
            }
        }
    }
}
