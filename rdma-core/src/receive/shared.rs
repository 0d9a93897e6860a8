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

/// Tells the shared receive queues of this process apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct SharedReceiveQueueId(pub(crate) u64);

/// The most requests of a shared receive queue of this crate.
const MAX_REQUESTS: u32 = 1 << 16;

/// Settings of a shared receive queue to be, from [`ProtectionDomain::shared_receive_queue`].
#[derive(Debug, Clone)]
#[must_use = "a builder makes nothing until `build`"]
pub struct SharedReceiveQueueBuilder {
    domain: ProtectionDomain,
    sizes: SharedReceiveSizes,
    most_requests: u32,
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
            most_requests: requests,
            xrc: None,
        }
    }

    /// How many pieces of memory a request can have. Default 4.
    #[doc(alias = "max_sge")]
    pub fn elements(mut self, count: u32) -> Self {
        self.sizes.elements = count;
        self
    }

    /// Up to how many requests the queue can be [resized](SharedReceiveQueue::resize) later, at most
    /// 65536. Default: not beyond what it begins with.
    pub fn most_requests(mut self, count: u32) -> Self {
        self.most_requests = count;
        self
    }

    /// Makes it one of an XRC domain, with the completion queue where its receives complete,
    /// whichever queue pair they came through.
    #[doc(alias = "IBV_SRQT_XRC")]
    pub fn xrc(mut self, domain: &XrcDomain, completions: &CompletionQueue) -> Self {
        self.xrc = Some((domain.clone(), completions.clone()));
        self
    }

    /// Creates the queue.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidArgument`] for 0 or more than 65536 requests or for an XRC domain or
    /// completion queue of another device, and the verb's, for example when the device cannot hold
    /// so many requests, or has no XRC.
    #[doc(alias = "ibv_create_srq")]
    #[doc(alias = "ibv_create_srq_ex")]
    pub fn build<T: Send + 'static>(self) -> Result<SharedReceiveQueue<T>> {
        let what = "shared receive queue";
        let most = self.most_requests.max(self.sizes.requests);
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

/// Receives that any queue pair made with it takes, in no order that the program can rely on.
///
/// Any thread posts and completes, without a lock of this crate: it is `Send` and `Sync` if the
/// memory is `Send`, since each slot is one thread's at a time. The completions come to the receive completion
/// queue of the queue pair that took the message, or, in an XRC domain, to the queue's own; give
/// each to [`Self::complete`].
///
/// Clones are the same queue. Dropping the last with receives in flight is safe: their memory is
/// freed once the last queue pair that takes from it is gone too.
///
/// A receive that a queue pair had taken when it was destroyed never completes: its slot is lost and
/// its memory kept for as long as the queue. A server that shall lose none moves a queue pair whose
/// client left to the error state first, and takes its completions until the event
/// [`LastRequestReached`](crate::AsyncEvent) says that no more will come.
#[doc(alias = "ibv_srq")]
pub struct SharedReceiveQueue<T: Send + 'static> {
    slots: Arc<SharedReceiveSlots<T>>,
    completions: Option<CompletionQueue>,
}

// Not derived: clones of the handle need no clone of `T`.
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

/// What a shared receive queue holds and when it warns, from [`SharedReceiveQueue::attributes`].
#[doc(alias = "ibv_srq_attr")]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct SharedReceiveQueueAttributes {
    /// How many requests it can hold.
    pub requests: u32,
    /// How many pieces of memory a request can have.
    pub elements: u32,
    /// Below how many requests it announces that they run out; 0 when it is not armed.
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

    /// Posts memory for one message of any peer.
    ///
    /// # Errors
    ///
    /// The memory, with [`Error::QueueFull`] when as many receives are in flight as fit,
    /// [`Error::TooManyElements`], [`Error::NotWritable`], or the verb's error.
    #[doc(alias = "ibv_post_srq_recv")]
    #[inline]
    pub fn post(&self, memory: T) -> Result<(), PostError<T>>
    where
        T: Scatter,
    {
        self.slots.post(memory).map_err(PostError::new)
    }

    /// Makes a batch of at most `capacity` receives, which are handed to the device together. It is
    /// for one thread and can be used again and again, which allocates nothing.
    pub fn batch(&self, capacity: usize) -> SharedReceiveBatch<'_, T> {
        SharedReceiveBatch::new(&self.slots, capacity)
    }

    /// Returns the memory of the receive that this completion completes; `None` for one of another
    /// queue. Its first [`len`](WorkCompletion::len) bytes are the message, if it succeeded.
    #[inline]
    pub fn complete(&self, completion: &WorkCompletion) -> Option<T> {
        let memory = self.slots.complete(completion.id())?;
        if let Some(key) = completion.invalidated_key() {
            self.handle().domain().ended_by_peer(key);
        }
        Some(memory)
    }

    /// How many receives can be in flight.
    pub fn capacity(&self) -> usize {
        self.handle().requests() as usize
    }

    /// What the device's events name it.
    pub fn id(&self) -> SharedReceiveQueueId {
        self.handle().id()
    }

    /// What XRC senders name it: its number in its XRC domain; `None` if it is of none.
    #[doc(alias = "ibv_get_srq_num")]
    pub fn number(&self) -> Option<u32> {
        self.handle().number()
    }

    /// Where its receives complete if it is of an XRC domain; `None` if the queue pairs say.
    pub fn completions(&self) -> Option<&CompletionQueue> {
        self.completions.as_ref()
    }

    /// What it holds now and when it warns.
    ///
    /// # Errors
    ///
    /// The verb's.
    #[doc(alias = "ibv_query_srq")]
    pub fn attributes(&self) -> Result<SharedReceiveQueueAttributes> {
        let raw = self.handle().query()?;
        Ok(SharedReceiveQueueAttributes {
            requests: raw.max_wr,
            elements: raw.max_sge,
            limit: raw.srq_limit,
        })
    }

    /// Announces once, by an event of the device, that fewer than `requests` receives are left:
    /// time to post more. After the event it must be set again. 0 disarms it.
    ///
    /// # Errors
    ///
    /// The verb's, for example when the limit is above the queue's capacity.
    #[doc(alias = "ibv_modify_srq")]
    #[doc(alias = "IBV_SRQ_LIMIT")]
    #[doc(alias = "IBV_EVENT_SRQ_LIMIT_REACHED")]
    pub fn warn_below(&self, requests: u32) -> Result<()> {
        self.handle().set_limit(requests)
    }

    /// Makes room for `requests` receives, up to what it was
    /// [built for](SharedReceiveQueueBuilder::most_requests).
    ///
    /// # Errors
    ///
    /// [`Error::InvalidArgument`] for more than that, and the verb's: when more receives are in
    /// flight, or the device cannot resize.
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

    /// The C object, valid for as long as this queue.
    pub fn as_raw(&self) -> *mut ibverbs_sys::ibv_srq {
        self.handle().as_raw()
    }
}
