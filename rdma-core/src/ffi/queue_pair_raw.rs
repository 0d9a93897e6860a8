//! Queue pairs that other code or another process created.

use std::ptr::{self, NonNull};
use std::sync::Arc;

use ibverbs_sys as sys;
use ibverbs_sys::ibv_qp_open_attr_mask as mask;

use super::queue_pair::{QueuePairHandle, QueuePairSizes};
use super::queue_pair_destruction::{DestroyedOnDrop, QueuePairDestruction};
use super::queue_pair_plan::{Created, QueuePairPlan};
use crate::error::{Errno, Error, Result};
use crate::queue_pair::{AttributeMask, ManualQueuePair, QueuePairBuilder, Transport};

impl QueuePairBuilder {
    /// Takes ownership of a queue pair that other code created, for example a vendor's extension.
    /// The queue pair is destroyed by `ibv_destroy_qp`.
    ///
    /// The builder must contain the objects from which the queue pair was created: the protection
    /// domain, the completion queues, the shared receive queue and the XRC domain. The result keeps
    /// these objects alive. The builder must also contain the [operations](Self::operations) that
    /// the queue pair can post by the functions `ibv_wr_*`. The transport type of the queue pair
    /// and the sizes of its queues are queried from the device. A queue pair in INIT or RTS is
    /// converted to a [`PreparedQueuePair`](crate::PreparedQueuePair) or a
    /// [`QueuePair`](crate::QueuePair) by [`ManualQueuePair::prepared`],
    /// [`ManualQueuePair::connected`] or [`ManualQueuePair::activated`].
    ///
    /// # Errors
    ///
    /// On failure the queue pair is destroyed.
    ///
    /// - [`Error::InvalidArgument`] for a builder without completion queues.
    /// - The errors of [`Context::address`](crate::Context::address) for the choice of port and
    ///   GID.
    /// - The errors of the verbs that query the device and the queue pair.
    ///
    /// # Safety
    ///
    /// `raw` must be a valid queue pair that was created from exactly the objects in the builder.
    /// No other code may use, change or destroy the queue pair, and the queue pair must have no
    /// outstanding requests. If the builder contains operations, the queue pair must have been
    /// created for these operations.
    ///
    /// A [`SendQueue`](crate::SendQueue) may be created from the result only if its send requests
    /// complete in the order of posting. Vendor-specific kinds may not guarantee that order. Queues
    /// [for any number of threads](crate::queue_pair::ConcurrentSendQueue) and scopes do not need
    /// that order.
    ///
    /// # Panics
    ///
    /// Panics if `raw` is null.
    #[doc(alias = "ibv_qp")]
    pub unsafe fn from_raw(self, raw: *mut sys::ibv_qp) -> Result<ManualQueuePair> {
        let raw = NonNull::new(raw).expect("a queue pair");
        // SAFETY: the caller guarantees that the queue pair is valid; its kind does not change.
        let kind = Transport::from_raw(unsafe { raw.as_ref().qp_type });
        let whole = self.has_completions() || kind == Transport::XrcTarget;
        let builder = self.transport(kind);
        // SAFETY: the caller guarantees that the queue pair is valid; its number does not change.
        let number = unsafe { raw.as_ref().qp_num };
        let context = builder.domain().handle().context().describe();
        // An error before the handle exists destroys the queue pair as well.
        let unowned = DestroyedOnDrop::new(QueuePairDestruction {
            raw,
            name: format!("queue pair {number:#x} of {context}"),
            completions: builder.completions().collect(),
            parents: Box::new(builder.clone()),
            memory: Vec::new(),
        });
        builder.adopt(move |plan| {
            let granted = plan.sizes;
            let mut handle = QueuePairHandle::adopt(plan, Created { raw, granted });
            unowned.release();
            if !whole {
                let reason = "the builder has none of its completion queues";
                return Err(Error::invalid("queue pair", reason));
            }
            let (_, initial) = handle.query(AttributeMask::STATE)?;
            handle.set_sizes(QueuePairSizes {
                send_requests: initial.cap.max_send_wr,
                receive_requests: initial.cap.max_recv_wr,
                send_elements: initial.cap.max_send_sge,
                receive_elements: initial.cap.max_recv_sge,
                inline_data: initial.cap.max_inline_data,
            });
            Ok(handle)
        })
    }

    /// Opens an XRC target queue pair that another process created in the XRC domain of this
    /// builder. Both processes must have opened the XRC domain through the same file. The queue
    /// pair is destroyed when every process has closed it.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidArgument`] for a builder without an XRC domain, and the error of
    /// `ibv_open_qp`.
    #[doc(alias = "ibv_open_qp")]
    pub fn open(self, number: u32) -> Result<ManualQueuePair> {
        self.transport(Transport::XrcTarget).adopt(|plan| {
            let created = plan.open(number)?;
            Ok(QueuePairHandle::adopt(plan, created))
        })
    }
}

impl QueuePairPlan {
    fn open(&self, number: u32) -> Result<Created> {
        let Some(domain) = &self.xrc_domain else {
            let reason = "an XRC target needs an XRC domain";
            return Err(Error::invalid("queue pair", reason));
        };
        self.checked()?;
        let needed = mask::IBV_QP_OPEN_ATTR_NUM.0
            | mask::IBV_QP_OPEN_ATTR_XRCD.0
            | mask::IBV_QP_OPEN_ATTR_TYPE.0;
        let mut attributes = sys::ibv_qp_open_attr {
            comp_mask: needed,
            qp_num: number,
            xrcd: domain.as_raw(),
            qp_context: ptr::null_mut(),
            qp_type: Transport::XrcTarget.to_raw(),
        };
        let context = Arc::clone(self.domain.context());
        // SAFETY: the owner keeps the handles that keep context and XRC domain valid.
        let raw = unsafe { sys::ibv_open_qp(context.as_raw(), &mut attributes) };
        match NonNull::new(raw) {
            Some(raw) => Ok(Created {
                raw,
                granted: QueuePairSizes::default(),
            }),
            None => {
                let errno = Errno::last();
                let object = format!("queue pair {number:#x} of {}", context.describe());
                Err(Error::verb("ibv_open_qp", object, errno))
            }
        }
    }
}
