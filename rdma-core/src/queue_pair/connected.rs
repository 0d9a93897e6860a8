//! Connected queue pairs.

use std::sync::Arc;

use ibverbs_sys::{ibv_qp_attr_mask, ibv_qp_state};

use super::{
    ConcurrentReceiveQueue, ConcurrentSendQueue, Endpoint, QueuePairState, ReceiveQueue,
    SendOperations, SendQueue, Transport,
};
use crate::completion::CompletionQueue;
use crate::device::LocalAddress;
use crate::error::Result;
use crate::ffi::{QueuePairHandle, empty_attributes};

/// A queue pair in operation: connected to its peer, or to send datagrams. Clones, and the queues made from it, are the same one; it is destroyed
/// with the last of them.
#[doc(alias = "ibv_qp")]
#[derive(Debug, Clone)]
pub struct QueuePair {
    handle: Arc<QueuePairHandle>,
    send_completions: CompletionQueue,
    receive_completions: CompletionQueue,
    address: Arc<LocalAddress>,
    local: Endpoint,
    remote: Option<Endpoint>,
}

impl QueuePair {
    pub(super) fn new(
        handle: Arc<QueuePairHandle>,
        send_completions: CompletionQueue,
        receive_completions: CompletionQueue,
        address: LocalAddress,
        (local, remote): (Endpoint, Option<Endpoint>),
    ) -> Self {
        let address = Arc::new(address);
        Self {
            handle,
            send_completions,
            receive_completions,
            address,
            local,
            remote,
        }
    }

    pub(crate) fn handle(&self) -> &Arc<QueuePairHandle> {
        &self.handle
    }

    /// Its number.
    pub fn number(&self) -> u32 {
        self.handle.number()
    }

    /// What this end is to the peer.
    pub fn local(&self) -> Endpoint {
        self.local
    }

    /// Which service it gives.
    #[doc(alias = "qp_type")]
    pub fn kind(&self) -> Transport {
        self.handle.kind()
    }

    /// What it can post by the functions `ibv_wr_*`: nothing, unless it was
    /// [made](super::QueuePairBuilder::extended_posting) for them.
    #[doc(alias = "send_ops_flags")]
    pub fn operations(&self) -> SendOperations {
        self.handle.operations()
    }

    /// What the peer is; `None` where there is not one peer.
    pub fn remote(&self) -> Option<Endpoint> {
        self.remote
    }

    /// Its port and GID.
    pub fn address(&self) -> &LocalAddress {
        &self.address
    }

    /// Where its sends, reads, writes and atomics complete.
    pub fn send_completions(&self) -> &CompletionQueue {
        &self.send_completions
    }

    /// Where its receives complete.
    pub fn receive_completions(&self) -> &CompletionQueue {
        &self.receive_completions
    }

    /// How many bytes can be sent inline, at least what was asked for.
    #[doc(alias = "max_inline_data")]
    pub fn inline_limit(&self) -> usize {
        self.handle.sizes().inline_data as usize
    }

    /// How many send requests can be outstanding.
    #[doc(alias = "max_send_wr")]
    pub fn send_capacity(&self) -> usize {
        self.handle.sizes().send_requests as usize
    }

    /// How many receive requests can be outstanding.
    #[doc(alias = "max_recv_wr")]
    pub fn receive_capacity(&self) -> usize {
        self.handle.sizes().receive_requests as usize
    }

    /// A queue to post sends, writes, reads and atomics to.
    pub fn send_queue<T: Send + 'static>(&self) -> SendQueue<T> {
        SendQueue::new(Arc::clone(&self.handle))
    }

    /// A queue to post receives to.
    pub fn receive_queue<T: Send + 'static>(&self) -> ReceiveQueue<T> {
        ReceiveQueue::new(Arc::clone(&self.handle))
    }

    /// Like [`Self::send_queue`], for any number of threads.
    pub fn concurrent_send_queue<T: Send + 'static>(&self) -> ConcurrentSendQueue<T> {
        ConcurrentSendQueue::new(Arc::clone(&self.handle))
    }

    /// Like [`Self::receive_queue`], for any number of threads.
    pub fn concurrent_receive_queue<T: Send + 'static>(&self) -> ConcurrentReceiveQueue<T> {
        ConcurrentReceiveQueue::new(Arc::clone(&self.handle))
    }

    /// The state it is in.
    ///
    /// # Errors
    ///
    /// The verb's.
    #[doc(alias = "ibv_query_qp")]
    pub fn state(&self) -> Result<QueuePairState> {
        let attributes = self.handle.query(ibv_qp_attr_mask::IBV_QP_STATE)?;
        Ok(QueuePairState::from_raw(attributes.qp_state))
    }

    /// Moves it to the error state: everything outstanding completes as flushed, in bounded time,
    /// and what the peer sends is refused.
    ///
    /// What is posted later is flushed too. Linux's Soft-RoCE leaves receives posted later alone
    /// until this is called again, which is allowed in every state.
    ///
    /// # Errors
    ///
    /// The verb's.
    #[doc(alias = "ibv_modify_qp")]
    pub fn fail(&self) -> Result<()> {
        let mut attributes = empty_attributes();
        attributes.qp_state = ibv_qp_state::IBV_QPS_ERR;
        self.handle
            .modify(&mut attributes, ibv_qp_attr_mask::IBV_QP_STATE, "to ERR")
    }

    /// The C object, valid for as long as this.
    pub fn as_raw(&self) -> *mut ibverbs_sys::ibv_qp {
        self.handle.as_raw()
    }
}
