//! A shared receive queue: the owner of its `ibv_srq`, posting and destruction.

use std::any::Any;
use std::fmt;
use std::mem;
use std::ptr::{self, NonNull};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use ibverbs_sys as sys;
use parking_lot::Mutex;

use super::completion_queue::CompletionQueueHandle;
use super::context::positive;
use super::protection_domain::ProtectionDomainHandle;
use super::xrc_domain::XrcDomainHandle;
use crate::completion::CompletionQueue;
use crate::error::{Errno, Error, Result};
use crate::protection_domain::ProtectionDomain;
use crate::receive::{SharedReceiveQueue, SharedReceiveQueueId, XrcDomain};

/// The capacity of a shared receive queue: maximum numbers of receives, and of scatter/gather
/// elements of a receive.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct SharedReceiveSizes {
    pub(crate) requests: u32,
    pub(crate) elements: u32,
}

/// The owner of a shared receive queue (`ibv_srq`), and of the memory that the device may use until
/// the queue is destroyed.
pub(crate) struct SharedReceiveQueueHandle {
    raw: NonNull<sys::ibv_srq>,
    id: u64,
    /// Number by which peers address the queue; `None` unless the queue is in an XRC domain.
    number: Option<u32>,
    requests: AtomicU32,
    elements: u32,
    domain: Arc<ProtectionDomainHandle>,
    /// The XRC domain and the completion queue of an XRC queue, which must outlive the queue.
    xrc: Option<(Arc<XrcDomainHandle>, Arc<CompletionQueueHandle>)>,
    /// Memory of receives that were in flight when the program dropped the queue. Kept until the
    /// `ibv_srq` is destroyed.
    abandoned: Mutex<Vec<Box<dyn Any + Send>>>,
}

// SAFETY: verbs are thread-safe on a shared receive queue.
unsafe impl Send for SharedReceiveQueueHandle {}
// SAFETY: verbs are thread-safe on a shared receive queue.
unsafe impl Sync for SharedReceiveQueueHandle {}

impl fmt::Debug for SharedReceiveQueueHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SharedReceiveQueueHandle")
            .field("id", &self.id)
            .field("number", &self.number)
            .field("requests", &self.requests)
            .field("elements", &self.elements)
            .finish_non_exhaustive()
    }
}

impl SharedReceiveQueueHandle {
    pub(crate) fn create(
        domain: Arc<ProtectionDomainHandle>,
        xrc: Option<(Arc<XrcDomainHandle>, Arc<CompletionQueueHandle>)>,
        sizes: SharedReceiveSizes,
    ) -> Result<Self> {
        use sys::ibv_srq_init_attr_mask as mask;
        let id = next_id();
        // SAFETY: all-zero bytes are a valid value of this plain C struct.
        let mut attributes: sys::ibv_srq_init_attr_ex = unsafe { mem::zeroed() };
        attributes.srq_context = ptr::without_provenance_mut(id as usize);
        attributes.attr.max_wr = sizes.requests;
        attributes.attr.max_sge = sizes.elements;
        attributes.srq_type = sys::ibv_srq_type::IBV_SRQT_BASIC;
        attributes.pd = domain.as_raw();
        let mut given = mask::IBV_SRQ_INIT_ATTR_TYPE | mask::IBV_SRQ_INIT_ATTR_PD;
        if let Some((xrc_domain, completions)) = &xrc {
            attributes.srq_type = sys::ibv_srq_type::IBV_SRQT_XRC;
            attributes.xrcd = xrc_domain.as_raw();
            attributes.cq = completions.as_raw();
            given = given | mask::IBV_SRQ_INIT_ATTR_XRCD | mask::IBV_SRQ_INIT_ATTR_CQ;
        }
        attributes.comp_mask = given.0;
        // SAFETY: the new handle keeps the domains and the completion queue valid; the context
        // value is a number that is never dereferenced.
        let raw = unsafe { sys::ibv_create_srq_ex(domain.context().as_raw(), &mut attributes) };
        let Some(raw) = NonNull::new(raw) else {
            let errno = Errno::last();
            let object = format!("{} ({sizes:?})", domain.context().describe());
            return Err(Error::verb("ibv_create_srq_ex", object, errno));
        };
        let mut handle = Self {
            raw,
            id,
            number: None,
            requests: AtomicU32::new(sizes.requests),
            elements: attributes.attr.max_sge,
            domain,
            xrc,
            abandoned: Mutex::default(),
        };
        handle.read_number()?;
        Ok(handle)
    }

    /// Reads the number of a shared receive queue in an XRC domain, by which peers address the
    /// queue, and stores the number in `self`. Does nothing for other queues, which have no number.
    fn read_number(&mut self) -> Result<()> {
        if self.xrc.is_none() {
            return Ok(());
        }
        let mut number = 0;
        // SAFETY: the queue is valid, and so is the place for the answer.
        let errno = unsafe { sys::ibv_get_srq_num(self.raw.as_ptr(), &mut number) };
        self.checked("ibv_get_srq_num", errno)?;
        self.number = Some(number);
        Ok(())
    }

    pub(crate) fn as_raw(&self) -> *mut sys::ibv_srq {
        self.raw.as_ptr()
    }

    pub(crate) fn domain(&self) -> &Arc<ProtectionDomainHandle> {
        &self.domain
    }

    /// Returns the id of the queue. The id is the context value of the queue, by which the device's
    /// events identify the queue.
    pub(crate) fn id(&self) -> SharedReceiveQueueId {
        SharedReceiveQueueId(self.id)
    }

    pub(crate) fn number(&self) -> Option<u32> {
        self.number
    }

    /// Returns the maximum number of scatter/gather elements of each receive.
    #[inline]
    pub(super) fn elements(&self) -> u32 {
        self.elements
    }

    /// Keeps `memory` until the queue is destroyed. The device can use the memory until then.
    pub(super) fn abandon(&self, memory: Box<dyn Any + Send>) {
        self.abandoned.lock().push(memory);
    }

    /// Returns the maximum number of outstanding receives.
    pub(crate) fn requests(&self) -> u32 {
        self.requests.load(Ordering::Relaxed)
    }

    /// Returns the description of this queue for error messages.
    pub(crate) fn describe(&self) -> String {
        let device = self.domain().context().describe();
        match self.number {
            Some(number) => format!("shared receive queue {number:#x} of {device}"),
            None => format!("a shared receive queue of {device}"),
        }
    }

    pub(crate) fn query(&self) -> Result<sys::ibv_srq_attr> {
        // SAFETY: all-zero bytes are a valid value of this plain C struct.
        let mut attributes: sys::ibv_srq_attr = unsafe { mem::zeroed() };
        // SAFETY: the queue and the place for the answer are valid.
        let errno = unsafe { sys::ibv_query_srq(self.raw.as_ptr(), &mut attributes) };
        self.checked("ibv_query_srq", errno)?;
        Ok(attributes)
    }

    pub(crate) fn set_limit(&self, limit: u32) -> Result<()> {
        // SAFETY: all-zero bytes are a valid value of this plain C struct.
        let mut attributes: sys::ibv_srq_attr = unsafe { mem::zeroed() };
        attributes.srq_limit = limit;
        self.modify(attributes, sys::ibv_srq_attr_mask::IBV_SRQ_LIMIT)
    }

    pub(crate) fn resize(&self, requests: u32) -> Result<()> {
        // SAFETY: all-zero bytes are a valid value of this plain C struct.
        let mut attributes: sys::ibv_srq_attr = unsafe { mem::zeroed() };
        attributes.max_wr = requests;
        self.modify(attributes, sys::ibv_srq_attr_mask::IBV_SRQ_MAX_WR)?;
        self.requests.store(requests, Ordering::Relaxed);
        Ok(())
    }

    fn modify(
        &self,
        mut attributes: sys::ibv_srq_attr,
        what: sys::ibv_srq_attr_mask,
    ) -> Result<()> {
        // SAFETY: the queue and the attributes are valid.
        let errno = unsafe { sys::ibv_modify_srq(self.raw.as_ptr(), &mut attributes, what.0 as _) };
        self.checked("ibv_modify_srq", errno)
    }

    fn checked(&self, verb: &'static str, errno: i32) -> Result<()> {
        if errno == 0 {
            Ok(())
        } else {
            let errno = positive(errno);
            Err(Error::verb(verb, self.describe(), errno))
        }
    }

    /// Posts one receive request to the shared receive queue.
    ///
    /// # Safety
    ///
    /// `wr` must be the last request of its list. The request and its elements must be valid for
    /// this call. The caller must keep the memory in place, and must prevent accesses that conflict
    /// with the device's, until the request has completed or the queue is destroyed.
    #[inline]
    pub(super) unsafe fn post(&self, wr: &mut sys::ibv_recv_wr) -> Result<()> {
        // SAFETY: the caller guarantees the same requirements for this list of one request.
        unsafe { self.post_list(wr) }.map_err(|(error, _)| error)
    }

    /// Posts one receive request, and returns the error number of `ibv_post_srq_recv`, or 0 on
    /// success. [`Self::post_error`] converts the number to an error.
    ///
    /// # Safety
    ///
    /// `wr` must be the last request of its list. The request and its elements must be valid for
    /// this call. The caller must keep the memory in place, and must prevent accesses that conflict
    /// with the device's, until the request has completed or the queue is destroyed.
    #[inline(always)]
    pub(super) unsafe fn post_fast_path(&self, wr: *mut sys::ibv_recv_wr) -> i32 {
        let mut bad = mem::MaybeUninit::uninit();
        // SAFETY: the queue is valid; the caller guarantees that the request and its memory are.
        // `bad` is not needed for a list of one request.
        unsafe { sys::ibv_post_srq_recv(self.raw.as_ptr(), wr, bad.as_mut_ptr()) }
    }

    /// Posts a list of receive requests in one call. On failure returns the error and the first
    /// request that was not posted.
    ///
    /// # Safety
    ///
    /// The requests of the list and their elements must be valid for this call. The caller must
    /// keep the memory of each posted request in place, and must prevent accesses that conflict
    /// with the device's, until the request has completed or the queue is destroyed.
    #[inline]
    pub(super) unsafe fn post_list(
        &self,
        first: &mut sys::ibv_recv_wr,
    ) -> Result<(), (Error, *mut sys::ibv_recv_wr)> {
        let first = ptr::from_mut(first);
        let mut bad = first;
        // SAFETY: the queue is valid; the caller guarantees that requests and memory are valid.
        let errno = unsafe { sys::ibv_post_srq_recv(self.raw.as_ptr(), first, &mut bad) };
        if errno == 0 {
            return Ok(());
        }
        Err((self.post_error(errno), bad))
    }

    #[cold]
    pub(super) fn post_error(&self, errno: i32) -> Error {
        match positive(errno) {
            // The program has resized the queue to fewer receives than this table has slots.
            Errno(libc::ENOMEM) => Error::QueueFull {
                queue: "shared receive",
                capacity: self.requests() as usize,
            },
            errno => Error::verb("ibv_post_srq_recv", self.describe(), errno),
        }
    }
}

impl Drop for SharedReceiveQueueHandle {
    fn drop(&mut self) {
        let remains = Destruction {
            raw: self.raw,
            name: self.describe(),
            completions: self.xrc.as_ref().map(|(_, queue)| Arc::clone(queue)),
            parents: Box::new((Arc::clone(&self.domain), self.xrc.take())),
            memory: mem::take(self.abandoned.get_mut()),
        };
        remains.destroy();
    }
}

/// A shared receive queue that is about to be destroyed, and the objects that must exist until
/// then. The program no longer uses the queue.
struct Destruction {
    raw: NonNull<sys::ibv_srq>,
    /// Name of the queue in log messages.
    name: String,
    /// The completion queue of the shared receive queue, if that is in an XRC domain.
    completions: Option<Arc<CompletionQueueHandle>>,
    /// The objects from which the queue was created.
    parents: Box<dyn Any + Send>,
    /// Memory that the device may use until the queue is destroyed.
    memory: Vec<Box<dyn Any + Send>>,
}

// SAFETY: verbs are thread-safe on a shared receive queue.
unsafe impl Send for Destruction {}

impl Destruction {
    /// Destroys the shared receive queue. If the calling thread is iterating over the completion
    /// queue of this queue, defers the destruction until the iteration ends. The destruction needs
    /// the driver's lock of that completion queue, and the iteration holds this lock.
    fn destroy(self) {
        let polled = self
            .completions
            .as_ref()
            .filter(|queue| queue.is_polled_here());
        if let Some(queue) = polled.map(Arc::clone) {
            return queue.run_after_poll(move || self.destroy());
        }
        // SAFETY: the queue is valid and destroyed once, here; every queue pair created with it
        // holds an `Arc` of its handle, so no such queue pair is left. Afterwards the device uses
        // no memory of its receives (man page of ibv_destroy_srq), so `memory` may be dropped.
        let errno = unsafe { sys::ibv_destroy_srq(self.raw.as_ptr()) };
        if errno != 0 {
            // The device may still use the memory, so it must never be freed.
            mem::forget(self.memory);
            let errno = positive(errno);
            tracing::error!(queue = %self.name, %errno, "ibv_destroy_srq failed");
        }
        // The parents must outlive the queue.
        drop(self.parents);
    }
}

fn next_id() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

impl<T: Send + 'static> SharedReceiveQueue<T> {
    /// Takes ownership of a shared receive queue that other code created, for example a vendor's
    /// extension. For a queue in an XRC domain, `xrc` must contain that domain and the completion
    /// queue of the queue. The function sets the context value of the queue to [`Self::id`].
    ///
    /// # Errors
    ///
    /// The errors of the verbs that query the queue. On failure the queue is destroyed.
    ///
    /// # Safety
    ///
    /// `raw` must be a valid shared receive queue of `domain` and `xrc`, without outstanding
    /// receives. No other code may use or destroy it.
    ///
    /// # Panics
    ///
    /// Panics if `raw` is null.
    pub unsafe fn from_raw(
        domain: &ProtectionDomain,
        xrc: Option<(&XrcDomain, &CompletionQueue)>,
        raw: *mut sys::ibv_srq,
    ) -> Result<Self> {
        let raw = NonNull::new(raw).expect("a shared receive queue");
        let id = next_id();
        // SAFETY: the queue is valid, and this code now owns it, including its context value.
        unsafe { (*raw.as_ptr()).srq_context = ptr::without_provenance_mut(id as usize) };
        let completions = xrc.map(|(_, completions)| completions.clone());
        let mut handle = SharedReceiveQueueHandle {
            raw,
            id,
            number: None,
            requests: AtomicU32::new(0),
            elements: 0,
            domain: Arc::clone(domain.handle()),
            xrc: xrc.map(|(xrc_domain, completions)| {
                let (domain, queue) = (xrc_domain.handle(), completions.handle());
                (Arc::clone(domain), Arc::clone(queue))
            }),
            abandoned: Mutex::default(),
        };
        handle.read_number()?;
        let attributes = handle.query()?;
        handle.elements = attributes.max_sge;
        handle.requests = AtomicU32::new(attributes.max_wr);
        let slots = attributes.max_wr;
        Ok(Self::from_handle(handle, completions, slots))
    }
}
