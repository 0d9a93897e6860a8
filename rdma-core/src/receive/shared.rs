//! Shared receive queues.

use std::fmt;
use std::sync::Arc;

use super::{SharedReceiveBatch, XrcDomain};
use crate::completion::{CompletionQueue, WorkCompletion};
use crate::error::{Error, Result};
use crate::ffi::{SharedReceiveQueueHandle, SharedReceiveSizes, SharedReceiveSlots};
use crate::memory::Scatter;
use crate::protection_domain::ProtectionDomain;
use crate::queue_pair::PostError;

/// The identity of a shared receive queue, unique in this process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct SharedReceiveQueueId(pub(crate) u64);

/// Maximum number of receives of a shared receive queue. The crate keeps the memory of each receive
/// in a table, and the work request id of the receive contains the 16-bit table index.
const MAX_REQUESTS: u32 = 1 << 16;

/// A builder for a shared receive queue, from [`ProtectionDomain::shared_receive_queue`].
#[derive(Debug, Clone)]
#[must_use = "a builder makes nothing until `build`"]
pub struct SharedReceiveQueueBuilder {
    domain: ProtectionDomain,
    sizes: SharedReceiveSizes,
    max_requests: u32,
    xrc: Option<(XrcDomain, CompletionQueue)>,
}

impl SharedReceiveQueueBuilder {
    pub(crate) fn new(domain: ProtectionDomain, requests: u32) -> Self {
        Self {
            domain,
            sizes: SharedReceiveSizes {
                requests,
                elements: 4,
            },
            max_requests: requests,
            xrc: None,
        }
    }

    /// Sets the maximum number of scatter/gather elements of a receive. The default is 4.
    #[doc(alias = "max_sge")]
    pub fn elements(mut self, count: u32) -> Self {
        self.sizes.elements = count;
        self
    }

    /// Sets the maximum number of receives to which the program can later
    /// [resize](SharedReceiveQueue::resize) the queue, at most 65536. The default is the initial
    /// number of receives.
    pub fn max_requests(mut self, count: u32) -> Self {
        self.max_requests = count;
        self
    }

    /// Makes the queue a part of the XRC domain `domain`. All receives of the queue complete on
    /// `completions`, for messages to every queue pair.
    #[doc(alias = "IBV_SRQT_XRC")]
    pub fn xrc(mut self, domain: &XrcDomain, completions: &CompletionQueue) -> Self {
        self.xrc = Some((domain.clone(), completions.clone()));
        self
    }

    /// Creates the shared receive queue with the settings of this builder.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidArgument`] for 0 or more than 65536 receives, or for an XRC domain or
    /// completion queue of another device. Also returns the error of `ibv_create_srq_ex`, for
    /// example because the device does not support so many receives or does not support XRC.
    #[doc(alias = "ibv_create_srq")]
    #[doc(alias = "ibv_create_srq_ex")]
    pub fn build<T: Send + 'static>(self) -> Result<SharedReceiveQueue<T>> {
        let what = "shared receive queue";
        let most = self.max_requests.max(self.sizes.requests);
        if self.sizes.requests == 0 || most > MAX_REQUESTS {
            let reason = format!("{most} requests are not between 1 and {MAX_REQUESTS}");
            return Err(Error::invalid(what, reason));
        }
        let context = self.domain.handle().context();
        if let Some((domain, completions)) = &self.xrc
            && !(Arc::ptr_eq(domain.handle().context(), context)
                && Arc::ptr_eq(completions.handle().context(), context))
        {
            let reason = "the XRC domain or the completion queue is of another context";
            return Err(Error::invalid(what, reason));
        }
        let handle = SharedReceiveQueueHandle::create(
            Arc::clone(self.domain.handle()),
            self.xrc.as_ref().map(|(domain, completions)| {
                (
                    Arc::clone(domain.handle()),
                    Arc::clone(completions.handle()),
                )
            }),
            self.sizes,
        )?;
        let completions = self.xrc.map(|(_, completions)| completions);
        Ok(SharedReceiveQueue::from_handle(handle, completions, most))
    }
}

/// A queue of receives that several queue pairs share. The order in which queue pairs consume the
/// receives is unspecified.
///
/// Any number of threads can post and complete receives, without a lock of this crate. The queue is
/// `Send` and `Sync` if the memory is `Send`, because one thread at a time uses the memory of each
/// receive. A receive completes on the receive completion queue of the queue pair that received the
/// message. In an XRC domain, a receive instead completes on the completion queue of the shared
/// receive queue. The program passes each completion to [`Self::complete`].
///
/// Clones refer to the same queue. Dropping the last clone with receives in flight is safe: their
/// memory is freed after the last queue pair that uses the queue is destroyed.
///
/// If a queue pair is destroyed after it has consumed a receive and before the receive has
/// completed, the receive never completes. The capacity of the queue is then smaller by one, and
/// the memory of the receive is kept as long as the queue exists. To avoid the loss, move the queue
/// pair of a disconnected client to the error state first, and process its completions until the
/// event [`LastRequestReached`](crate::AsyncEvent) reports that no more receives will complete.
#[doc(alias = "ibv_srq")]
pub struct SharedReceiveQueue<T: Send + 'static> {
    slots: Arc<SharedReceiveSlots<T>>,
    completions: Option<CompletionQueue>,
}

// `Clone` is not derived, because cloning the handle does not require `T: Clone`.
impl<T: Send + 'static> Clone for SharedReceiveQueue<T> {
    fn clone(&self) -> Self {
        Self {
            slots: Arc::clone(&self.slots),
            completions: self.completions.clone(),
        }
    }
}

impl<T: Send + 'static> fmt::Debug for SharedReceiveQueue<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SharedReceiveQueue")
            .field("slots", &self.slots)
            .finish_non_exhaustive()
    }
}

/// The capacity of a shared receive queue and the limit for the limit event, returned by
/// [`SharedReceiveQueue::attributes`].
#[doc(alias = "ibv_srq_attr")]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct SharedReceiveQueueAttributes {
    /// Maximum number of receives in the queue.
    pub requests: u32,
    /// Maximum number of scatter/gather elements of a receive.
    pub elements: u32,
    /// Number of receives below which the device generates a limit event, or 0 if no limit is set.
    pub limit: u32,
}

impl<T: Send + 'static> SharedReceiveQueue<T> {
    pub(crate) fn from_handle(
        handle: SharedReceiveQueueHandle,
        completions: Option<CompletionQueue>,
        slots: u32,
    ) -> Self {
        Self {
            slots: Arc::new(SharedReceiveSlots::new(Arc::new(handle), slots)),
            completions,
        }
    }

    pub(crate) fn handle(&self) -> &Arc<SharedReceiveQueueHandle> {
        self.slots.handle()
    }

    /// Posts a receive: the device will write one message, from one of the peers, to `memory`.
    ///
    /// # Errors
    ///
    /// Returns the memory, with [`Error::QueueFull`] if the queue already has the maximum number of
    /// receives in flight, [`Error::TooManyElements`], [`Error::NotWritable`], or the error of
    /// `ibv_post_srq_recv`.
    #[doc(alias = "ibv_post_srq_recv")]
    #[inline]
    pub fn post(&self, memory: T) -> Result<(), PostError<T>>
    where
        T: Scatter,
    {
        self.slots.post(memory).map_err(PostError::new)
    }

    /// Creates a batch of at most `capacity` receives, which are posted to the device in one call.
    /// One thread at a time can use a batch. The program can use a batch repeatedly without further
    /// allocations.
    pub fn batch(&self, capacity: usize) -> SharedReceiveBatch<'_, T> {
        SharedReceiveBatch::new(&self.slots, capacity)
    }

    /// Returns the memory of the receive that `completion` completes, or `None` for a completion of
    /// another queue. If the receive succeeded, the first [`len`](WorkCompletion::len) bytes are
    /// the message.
    #[inline]
    pub fn complete(&self, completion: &WorkCompletion) -> Option<T> {
        let memory = self.slots.complete(completion.id())?;
        if let Some(key) = completion.invalidated_key() {
            self.handle().domain().ended_by_peer(key);
        }
        Some(memory)
    }

    /// Returns the maximum number of receives in flight.
    pub fn capacity(&self) -> usize {
        self.handle().requests() as usize
    }

    /// Returns the id of the shared receive queue. Events of the device contain this id.
    pub fn id(&self) -> SharedReceiveQueueId {
        self.handle().id()
    }

    /// Returns the number by which XRC senders address the queue, or `None` if the queue is not in
    /// an XRC domain.
    #[doc(alias = "ibv_get_srq_num")]
    pub fn number(&self) -> Option<u32> {
        self.handle().number()
    }

    /// Returns the completion queue on which all receives complete, if the queue is in an XRC
    /// domain. Returns `None` if receives complete on the completion queues of the queue pairs.
    pub fn completions(&self) -> Option<&CompletionQueue> {
        self.completions.as_ref()
    }

    /// Queries the current capacity of the queue and the limit that [`Self::set_limit`] has set.
    ///
    /// # Errors
    ///
    /// The error of `ibv_query_srq`.
    #[doc(alias = "ibv_query_srq")]
    pub fn attributes(&self) -> Result<SharedReceiveQueueAttributes> {
        let raw = self.handle().query()?;
        Ok(SharedReceiveQueueAttributes {
            requests: raw.max_wr,
            elements: raw.max_sge,
            limit: raw.srq_limit,
        })
    }

    /// Sets the limit for the limit event. When fewer than `requests` receives are left in the
    /// queue, the device generates one event (`IBV_EVENT_SRQ_LIMIT_REACHED`), and the program can
    /// post more receives. The event removes the limit. If `requests` is 0, this call removes the
    /// limit.
    ///
    /// # Errors
    ///
    /// The error of `ibv_modify_srq`, for example if the limit is larger than the capacity of the
    /// queue.
    #[doc(alias = "ibv_modify_srq")]
    #[doc(alias = "IBV_SRQ_LIMIT")]
    #[doc(alias = "IBV_EVENT_SRQ_LIMIT_REACHED")]
    pub fn set_limit(&self, requests: u32) -> Result<()> {
        self.handle().set_limit(requests)
    }

    /// Changes the capacity of the queue to `requests` receives. The
    /// [maximum](SharedReceiveQueueBuilder::max_requests) was set when the queue was built.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidArgument`] for more than the maximum, and the error of `ibv_modify_srq`, for
    /// example if more than `requests` receives are in flight or if the device cannot resize the
    /// queue.
    #[doc(alias = "ibv_modify_srq")]
    #[doc(alias = "IBV_SRQ_MAX_WR")]
    pub fn resize(&self, requests: u32) -> Result<()> {
        let most = self.slots.most();
        if requests == 0 || requests as usize > most {
            let reason = format!("{requests} requests are not between 1 and {most}");
            return Err(Error::invalid("size of a shared receive queue", reason));
        }
        self.handle().resize(requests)
    }

    /// Returns the underlying `ibv_srq`. The pointer is valid as long as this queue exists.
    pub fn as_raw(&self) -> *mut ibverbs_sys::ibv_srq {
        self.handle().as_raw()
    }
}
