//! Queue pairs in operation.

use std::sync::Arc;

use super::parts::Parts;
use super::{
    ConcurrentReceiveQueue, ConcurrentSendQueue, Endpoint, QueuePairCapacities, ReceiveQueue,
    SendOperations, SendQueue, Transport,
};
use crate::completion::CompletionQueue;
use crate::device::LocalAddress;
use crate::ffi::QueuePairHandle;

/// A queue pair in operation: connected to its peer, or to send datagrams. Clones, and the queues
/// made from it, are the same one; it is destroyed with the last of them.
///
/// It is `Send` and `Sync`: verbs are thread-safe.
#[doc(alias = "ibv_qp")]
#[derive(Debug, Clone)]
pub struct QueuePair {
    pub(super) parts: Arc<Parts>,
}

impl QueuePair {
    pub(super) fn new(parts: Parts) -> Self {
        let parts = Arc::new(parts);
        Self { parts }
    }

    pub(crate) fn handle(&self) -> &Arc<QueuePairHandle> {
        &self.parts.handle
    }

    /// Its number.
    pub fn number(&self) -> u32 {
        self.parts.handle.number()
    }

    /// What this end is to the peer.
    pub fn local(&self) -> Endpoint {
        self.parts.local
    }

    /// Which service it gives.
    #[doc(alias = "qp_type")]
    pub fn kind(&self) -> Transport {
        self.parts.handle.kind()
    }

    /// What it can post by the functions `ibv_wr_*`: nothing, unless it was
    /// [made](super::QueuePairBuilder::extended_posting) for them.
    #[doc(alias = "send_ops_flags")]
    pub fn operations(&self) -> SendOperations {
        self.parts.handle.operations()
    }

    /// What the peer is; `None` where there is not one peer.
    pub fn remote(&self) -> Option<Endpoint> {
        self.parts.remote
    }

    /// Its port and GID.
    pub fn address(&self) -> &LocalAddress {
        &self.parts.address
    }

    /// Where its sends, reads, writes and atomics complete.
    pub fn send_completions(&self) -> &CompletionQueue {
        &self.parts.send_completions
    }

    /// Where its receives complete.
    pub fn receive_completions(&self) -> &CompletionQueue {
        &self.parts.receive_completions
    }

    /// How many bytes can be sent inline, at least what was asked for.
    #[doc(alias = "max_inline_data")]
    pub fn inline_limit(&self) -> usize {
        self.parts.handle.sizes().inline_data as usize
    }

    /// How many send requests can be outstanding.
    #[doc(alias = "max_send_wr")]
    pub fn send_capacity(&self) -> usize {
        self.parts.handle.sizes().send_requests as usize
    }

    /// How many receive requests can be outstanding.
    #[doc(alias = "max_recv_wr")]
    pub fn receive_capacity(&self) -> usize {
        self.parts.handle.sizes().receive_requests as usize
    }

    /// How much its queues hold, as the device granted it: at least what was asked for, for devices
    /// round up.
    #[doc(alias = "ibv_qp_cap")]
    pub fn capacities(&self) -> QueuePairCapacities {
        let granted = self.parts.handle.granted();
        QueuePairCapacities {
            send_requests: granted.send_requests,
            receive_requests: granted.receive_requests,
            send_elements: granted.send_elements,
            receive_elements: granted.receive_elements,
            inline_data: granted.inline_data,
        }
    }

    /// Whether every send request is signaled, whatever it says.
    #[doc(alias = "sq_sig_all")]
    pub fn signals_all(&self) -> bool {
        self.parts.handle.signals_all()
    }

    /// A queue to post sends, writes, reads and atomics to.
    pub fn send_queue<T: Send + 'static>(&self) -> SendQueue<T> {
        SendQueue::new(Arc::clone(&self.parts.handle))
    }

    /// A queue to post receives to.
    pub fn receive_queue<T: Send + 'static>(&self) -> ReceiveQueue<T> {
        ReceiveQueue::new(Arc::clone(&self.parts.handle))
    }

    /// Like [`Self::send_queue`], for any number of threads.
    pub fn concurrent_send_queue<T: Send + 'static>(&self) -> ConcurrentSendQueue<T> {
        ConcurrentSendQueue::new(Arc::clone(&self.parts.handle))
    }

    /// Like [`Self::receive_queue`], for any number of threads.
    pub fn concurrent_receive_queue<T: Send + 'static>(&self) -> ConcurrentReceiveQueue<T> {
        ConcurrentReceiveQueue::new(Arc::clone(&self.parts.handle))
    }

    /// The C object, valid for as long as this.
    pub fn as_raw(&self) -> *mut ibverbs_sys::ibv_qp {
        self.parts.handle.as_raw()
    }
}
