//! The plan of a new queue pair (objects and parameters), and its creation.

use std::mem;
use std::ptr::NonNull;
use std::sync::Arc;

use ibverbs_sys as sys;
use ibverbs_sys::ibv_qp_init_attr_mask as mask;

use super::completion_queue::CompletionQueueHandle;
use super::protection_domain::ProtectionDomainHandle;
use super::queue_pair::QueuePairSizes;
use super::shared_receive_queue::SharedReceiveQueueHandle;
use super::xrc_domain::XrcDomainHandle;
use crate::error::{Errno, Error, Result};
use crate::queue_pair::{SendOperations, Transport};

/// The objects and parameters from which a queue pair is created.
#[derive(Debug, Clone)]
pub(crate) struct QueuePairPlan {
    pub(crate) domain: Arc<ProtectionDomainHandle>,
    pub(crate) kind: Transport,
    pub(crate) sizes: QueuePairSizes,
    pub(crate) send_completions: Arc<CompletionQueueHandle>,
    pub(crate) receive_completions: Arc<CompletionQueueHandle>,
    pub(crate) shared_receive_queue: Option<Arc<SharedReceiveQueueHandle>>,
    pub(crate) xrc_domain: Option<Arc<XrcDomainHandle>>,
    /// The operations that will be posted by the functions `ibv_wr_*`; `None` if all operations
    /// will be posted by `ibv_post_send`.
    pub(crate) operations: Option<SendOperations>,
    pub(crate) signals_all: bool,
    /// Bits of `ibv_qp_create_flags`.
    pub(crate) create_flags: u32,
    /// The queue pair number that sent packets contain as their source, if it differs from the
    /// queue pair's own number.
    pub(crate) source_number: Option<u32>,
    /// Maximum length in bytes of the headers of segmented sends.
    pub(crate) segmentation_header: Option<u16>,
}

/// A queue pair that was just created, with the sizes that the device granted (numbers of requests
/// and elements, length of inline data).
pub(super) struct Created {
    pub(super) raw: NonNull<sys::ibv_qp>,
    pub(super) granted: QueuePairSizes,
}

impl QueuePairPlan {
    /// Creates the queue pair by `ibv_create_qp` or, if the settings of this plan require it, by
    /// `ibv_create_qp_ex`. The owner of the result must keep the completion queues and the other
    /// objects of this plan alive.
    pub(super) fn create(&self) -> Result<Created> {
        self.checked()?;
        // SAFETY: all-zero bytes are a valid value of this plain C struct.
        let mut attributes: sys::ibv_qp_init_attr_ex = unsafe { mem::zeroed() };
        attributes.qp_type = self.kind.to_raw();
        attributes.sq_sig_all = self.signals_all.into();
        if self.kind.has_send_queue() {
            attributes.send_cq = self.send_completions.as_raw();
            attributes.cap.max_send_wr = self.sizes.send_requests;
            attributes.cap.max_send_sge = self.sizes.send_elements;
            attributes.cap.max_inline_data = self.sizes.inline_data;
        }
        if self.kind.has_receive_queue() {
            attributes.recv_cq = self.receive_completions.as_raw();
            match &self.shared_receive_queue {
                Some(queue) => attributes.srq = queue.as_raw(),
                None => {
                    attributes.cap.max_recv_wr = self.sizes.receive_requests;
                    attributes.cap.max_recv_sge = self.sizes.receive_elements;
                }
            }
        }
        if self.kind != Transport::XrcTarget {
            attributes.comp_mask |= mask::IBV_QP_INIT_ATTR_PD.0;
            attributes.pd = self.domain.as_raw();
        } else if let Some(domain) = &self.xrc_domain {
            attributes.comp_mask |= mask::IBV_QP_INIT_ATTR_XRCD.0;
            attributes.xrcd = domain.as_raw();
        }
        if let Some(operations) = self.operations {
            attributes.comp_mask |= mask::IBV_QP_INIT_ATTR_SEND_OPS_FLAGS.0;
            attributes.send_ops_flags = operations.bits();
        }
        let mut flags = self.create_flags;
        if let Some(number) = self.source_number {
            flags |= sys::ibv_qp_create_flags::IBV_QP_CREATE_SOURCE_QPN.0;
            attributes.source_qpn = number;
        }
        if flags != 0 {
            attributes.comp_mask |= mask::IBV_QP_INIT_ATTR_CREATE_FLAGS.0;
            attributes.create_flags = flags;
        }
        if let Some(bytes) = self.segmentation_header {
            attributes.comp_mask |= mask::IBV_QP_INIT_ATTR_MAX_TSO_HEADER.0;
            attributes.max_tso_header = bytes;
        }
        let plain = attributes.comp_mask == mask::IBV_QP_INIT_ATTR_PD.0;
        let raw = if plain {
            self.create_plain(&mut attributes)
        } else {
            let context = self.domain.context().as_raw();
            // SAFETY: the owner keeps the handles that keep context, domains and queues valid; the
            // fields of `attributes` that its mask selects are set.
            unsafe { sys::ibv_create_qp_ex(context, &mut attributes) }
        };
        let verb = if plain {
            "ibv_create_qp"
        } else {
            "ibv_create_qp_ex"
        };
        let raw = NonNull::new(raw).ok_or_else(|| self.error(verb, plain, Errno::last()))?;
        let granted = attributes.cap;
        Ok(Created {
            raw,
            granted: QueuePairSizes {
                send_requests: granted.max_send_wr,
                receive_requests: granted.max_recv_wr,
                send_elements: granted.max_send_sge,
                receive_elements: granted.max_recv_sge,
                inline_data: granted.max_inline_data,
            },
        })
    }

    /// Creates the queue pair by `ibv_create_qp`, which every device supports.
    fn create_plain(&self, attributes: &mut sys::ibv_qp_init_attr_ex) -> *mut sys::ibv_qp {
        let mut plain = sys::ibv_qp_init_attr {
            qp_context: attributes.qp_context,
            send_cq: attributes.send_cq,
            recv_cq: attributes.recv_cq,
            srq: attributes.srq,
            cap: attributes.cap,
            qp_type: attributes.qp_type,
            sq_sig_all: attributes.sq_sig_all,
        };
        // SAFETY: the owner keeps the handles of domain and queues; `plain` is a valid struct.
        let raw = unsafe { sys::ibv_create_qp(self.domain.as_raw(), &mut plain) };
        attributes.cap = plain.cap;
        raw
    }

    /// Returns an error unless the new queue pair's domains and queues belong to the same context.
    /// Neither libibverbs nor the drivers check this.
    pub(super) fn checked(&self) -> Result<()> {
        let context = self.domain.context();
        let foreign = |what: &str| {
            let reason = format!("the {what} is of another context");
            Err(Error::invalid("queue pair", reason))
        };
        for queue in [&self.send_completions, &self.receive_completions] {
            if !Arc::ptr_eq(queue.context(), context) {
                return foreign("completion queue");
            }
        }
        if let Some(queue) = &self.shared_receive_queue
            && !Arc::ptr_eq(queue.domain().context(), context)
        {
            return foreign("shared receive queue");
        }
        if let Some(domain) = &self.xrc_domain
            && !Arc::ptr_eq(domain.context(), context)
        {
            return foreign("XRC domain");
        }
        Ok(())
    }

    fn error(&self, verb: &'static str, plain: bool, errno: Errno) -> Error {
        let context = self.domain.context();
        if plain && matches!(errno.0, libc::EOPNOTSUPP | libc::ENOSYS) {
            return Error::Unsupported {
                what: self.kind.described(),
                device: context.name().to_owned(),
            };
        }
        let object = format!("{} ({}, {:?})", context.describe(), self.kind, self.sizes);
        Error::verb(verb, object, errno)
    }
}
