//! Queue pairs that were made elsewhere.

use std::ptr::{self, NonNull};
use std::sync::Arc;

use ibverbs_sys as sys;
use ibverbs_sys::ibv_qp_open_attr_mask as mask;

use super::queue_pair::{QueuePairHandle, QueuePairSizes};
use super::queue_pair_plan::{Created, QueuePairPlan};
use crate::error::{Errno, Error, Result};
use crate::queue_pair::{AttributeMask, ManualQueuePair, QueuePairBuilder, Transport};

impl QueuePairBuilder {
    /// Takes over a queue pair that was made elsewhere, for example by a vendor's extension. It is
    /// destroyed by `ibv_destroy_qp`.
    ///
    /// This builder says what it was made of: its domain, completion queues, shared receive queue
    /// and XRC domain, which the queue pair then keeps, and the
    /// [operations](Self::operations) that it can post by the functions `ibv_wr_*`. Its kind and how
    /// much its queues hold it tells itself. In INIT or RTS it becomes a
    /// [`PreparedQueuePair`](crate::PreparedQueuePair) or a [`QueuePair`](crate::QueuePair) by
    /// [`ManualQueuePair::prepared`], [`ManualQueuePair::connected`] or
    /// [`ManualQueuePair::activated`].
    ///
    /// # Errors
    ///
    /// [`Error::InvalidArgument`] for a builder without the completion queues, and the verbs': the
    /// queue pair is destroyed then.
    ///
    /// # Safety
    ///
    /// `raw` is a valid queue pair that was made of the objects that the builder has, and of no
    /// other. Nothing else uses, changes or destroys it, and no request of it is outstanding. It was
    /// made for the operations of the builder, if that has any.
    ///
    /// A [`SendQueue`](crate::SendQueue) is made of it only if its send requests complete in the
    /// order of posting, on which that relies. Those of a vendor's kinds may not; queues
    /// [for any number of threads](crate::ConcurrentSendQueue) and scopes do not need it.
    ///
    /// # Panics
    ///
    /// If `raw` is null.
    #[doc(alias = "ibv_qp")]
    pub unsafe fn from_raw(self, raw: *mut sys::ibv_qp) -> Result<ManualQueuePair> {
        let raw = NonNull::new(raw).expect("a queue pair");
        // SAFETY: the caller vouches for it; its kind does not change.
        let kind = Transport::from_raw(unsafe { raw.as_ref().qp_type });
        let whole = self.has_completions() || kind == Transport::XrcTarget;
        let builder = self.transport(kind);
        builder.adopt(|plan| {
            let granted = plan.sizes;
            let mut handle = QueuePairHandle::adopt(plan, Created { raw, granted });
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

    /// Opens an XRC target queue pair that another process has made in the XRC domain of this
    /// builder, which shares that domain by its file. It is destroyed when every process has closed
    /// it.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidArgument`] for a builder without an XRC domain, and the verb's.
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
        // SAFETY: context and XRC domain are valid for as long as their handles, which the owner
        // keeps.
        let raw = unsafe { sys::ibv_open_qp(context.as_raw(), &mut attributes) };
        match NonNull::new(raw) {
            Some(raw) => Ok(Created {
                raw,
                granted: QueuePairSizes::default(),
            }),
            None => {
                let object = format!("queue pair {number:#x} of {}", context.describe());
                Err(Error::verb("ibv_open_qp", object, Errno::last()))
            }
        }
    }
}
