use std::sync::Arc;

use ibverbs_sys::{ibv_qp_cap, ibv_qp_type};

use super::error::CreateError;
use super::handles::Handle;
use crate::completion::CompletionQueue;
use crate::context::ProtectionDomain;
use crate::limits::{MAX_INLINE, MAX_QP_WR, MAX_SGE};
use crate::proto::Service;
use crate::receive::SharedReceiveQueue;
use crate::xrc::XrcDomain;

/// Attributes and objects that a program passes to `ibv_create_qp` for a new queue pair.
#[derive(Debug)]
pub(crate) struct Creation<'a> {
    /// The open device that creates the queue pair.
    pub(crate) handle: Handle,
    pub(crate) service: Service,
    pub(crate) domain: Option<&'a Arc<ProtectionDomain>>,
    pub(crate) send_queue: Option<&'a Arc<CompletionQueue>>,
    pub(crate) receive_queue: Option<&'a Arc<CompletionQueue>>,
    pub(crate) shared_queue: Option<&'a Arc<SharedReceiveQueue>>,
    pub(crate) xrc: Option<&'a Arc<XrcDomain>>,
    pub(crate) capabilities: ibv_qp_cap,
    /// Set if every send request generates a completion, even if it is not signaled.
    pub(crate) signal_all: bool,
}

/// Returns the transport service, such as reliable connection, of the queue pair type `kind` of the
/// C ABI. Fails if the device does not support the type.
pub(crate) fn service_of(kind: ibv_qp_type) -> Result<Service, CreateError> {
    Ok(match kind {
        ibv_qp_type::IBV_QPT_RC => Service::ReliableConnection,
        ibv_qp_type::IBV_QPT_UC => Service::UnreliableConnection,
        ibv_qp_type::IBV_QPT_UD => Service::UnreliableDatagram,
        ibv_qp_type::IBV_QPT_XRC_SEND => Service::XrcInitiator,
        ibv_qp_type::IBV_QPT_XRC_RECV => Service::XrcTarget,
        ibv_qp_type::IBV_QPT_RAW_PACKET | ibv_qp_type::IBV_QPT_DRIVER => {
            return Err(CreateError::UnsupportedType(kind.0));
        }
        other => return Err(CreateError::Type(other.0)),
    })
}

impl Creation<'_> {
    /// Checks the objects and capabilities that the program requests for the new queue pair, and
    /// returns the capabilities that the queue pair gets. Fails if an object is missing that the
    /// transport service requires, if the service does not permit the given shared receive queue,
    /// or if a capability exceeds the limits of the device.
    pub(super) fn check(&self) -> Result<ibv_qp_cap, CreateError> {
        let has_receives = match self.service {
            Service::XrcTarget => {
                present(self.xrc.is_some(), "the XRC domain")?;
                return Ok(ibv_qp_cap::default());
            }
            Service::XrcInitiator => false,
            _ => true,
        };
        present(self.domain.is_some(), "the protection domain")?;
        present(
            self.send_queue.is_some(),
            "the send queue's completion queue",
        )?;
        let mut capabilities = self.capabilities;
        if has_receives {
            let what = "the receive queue's completion queue";
            present(self.receive_queue.is_some(), what)?;
        }
        if let Some(shared) = self.shared_queue.filter(|_| has_receives) {
            // ibv_create_qp(3): only RC and UD queue pairs may have a shared receive queue. XRC
            // queues are only for XRC targets.
            let may = matches!(
                self.service,
                Service::ReliableConnection | Service::UnreliableDatagram
            );
            if !may || shared.xrc().is_some() {
                return Err(CreateError::Excess("the shared receive queue"));
            }
        }
        limit("max_send_wr", capabilities.max_send_wr, MAX_QP_WR)?;
        limit("max_send_sge", capabilities.max_send_sge, MAX_SGE)?;
        limit("max_inline_data", capabilities.max_inline_data, MAX_INLINE)?;
        if has_receives && self.shared_queue.is_none() {
            limit("max_recv_wr", capabilities.max_recv_wr, MAX_QP_WR)?;
            limit("max_recv_sge", capabilities.max_recv_sge, MAX_SGE)?;
        } else {
            // The program's values are ignored (ibv_create_qp(3)): the queue pair has no receive
            // queue of its own.
            capabilities.max_recv_wr = 0;
            capabilities.max_recv_sge = 0;
        }
        Ok(capabilities)
    }
}

fn present(there: bool, what: &'static str) -> Result<(), CreateError> {
    if there {
        Ok(())
    } else {
        Err(CreateError::Missing(what))
    }
}

fn limit(what: &'static str, asked: u32, limit: u32) -> Result<(), CreateError> {
    if asked <= limit {
        Ok(())
    } else {
        Err(CreateError::Limit { what, asked, limit })
    }
}
