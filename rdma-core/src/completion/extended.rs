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

/// A completion queue whose completions tell more, of which only what is read costs anything.
///
/// It is a [`CompletionQueue`] with another way to poll; queue pairs are made with
/// [`Self::queue`]. One poll at a time goes through its completions: a second one, from within or
/// from another thread, is an error and not a wait.
///
/// It is `Send` and `Sync` for the same reason as a [`CompletionQueue`]: the driver has a lock, and
/// where it has not, since its [maker promised](ExtendedCompletionQueueBuilder::single_threaded) to
/// use one thread at a time, that promise was `unsafe`.
///
/// ```
/// use rdma_core::{CompletionFields, Context};
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

/// Settings of an extended completion queue to be, from [`CompletionQueueBuilder::extended`].
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

    /// Takes the queue's own memory from this [parent domain](ProtectionDomain::parent).
    #[doc(alias = "IBV_CQ_INIT_ATTR_MASK_PD")]
    pub fn parent_domain(mut self, domain: &ProtectionDomain) -> Self {
        self.domain = Some(domain.clone());
        self
    }

    /// Creates the queue.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidArgument`] for 0 entries, a channel or domain of another device, or a domain
    /// that is no parent domain; and the verb's; [`Error::is_unsupported`] if the device has no extended completion queues, or not one
    /// of the fields or promises.
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

    /// The queue, for making queue pairs, arming, resizing and the like. A plain
    /// [`poll`](CompletionQueue::poll) works too if all of [`CompletionFields::STANDARD`] were
    /// asked for.
    pub fn queue(&self) -> &CompletionQueue {
        &self.queue
    }

    /// What its completions tell.
    pub fn fields(&self) -> CompletionFields {
        self.fields
    }

    /// Calls `each` with the completions that are there and returns what it returns.
    ///
    /// What `each` does not take stays in the queue. A queue pair that `each` drops is destroyed
    /// afterwards.
    ///
    /// A completion cannot be kept beyond the next one or beyond the poll:
    ///
    /// ```compile_fail,E0499
    /// # fn example(queue: rdma_core::ExtendedCompletionQueue) -> rdma_core::Result<()> {
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
    /// [`Error::InUse`] while another poll of this queue goes on, which may be the one that calls
    /// this; and the verb's when the queue or the device has failed. What `each` returned is then
    /// dropped: have it put what must not be lost elsewhere.
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

    /// The C object, valid for as long as this queue.
    pub fn as_raw(&self) -> *mut ibverbs_sys::ibv_cq_ex {
        let extension = self.queue.handle().extension();
        extension.map_or(std::ptr::null_mut(), |extension| extension.as_raw())
    }
}

/// The completions of an extended queue, one after the other, while
/// [`ExtendedCompletionQueue::poll`] lasts.
///
/// Not `Send`: the driver may hold a lock of this thread meanwhile.
#[derive(Debug)]
pub struct PolledCompletions<'a> {
    session: Session<'a>,
    failure: Option<Error>,
}

impl PolledCompletions<'_> {
    /// Goes to the next completion; `None` when there is none, and then none will come in this
    /// poll. A failure of the queue also ends it, and is what the poll returns.
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
