//! Queue pairs that can send and receive.

use std::sync::Arc;

use super::parts::Parts;
use super::{
    ConcurrentReceiveQueue, ConcurrentSendQueue, Endpoint, QueuePairCapacities, ReceiveQueue,
    SendOperations, SendQueue, Transport,
};
use crate::completion::CompletionQueue;
use crate::device::LocalAddress;
use crate::ffi::QueuePairHandle;

/// A queue pair that can send and receive (state RTS), connected to a peer or activated for
/// datagrams. Clones of the value, and queues that are created from a clone, refer to the same
/// queue pair. The queue pair is destroyed when the last clone and the last queue have been
/// dropped.
///
/// `QueuePair` is `Send` and `Sync`, because verbs are thread-safe on queue pairs.
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

    /// Returns the queue pair number.
    pub fn number(&self) -> u32 {
        self.parts.handle.number()
    }

    /// Returns the local endpoint: the parameters that the peer needs to connect.
    pub fn local(&self) -> Endpoint {
        self.parts.local
    }

    /// Returns the transport type of the queue pair.
    #[doc(alias = "qp_type")]
    pub fn kind(&self) -> Transport {
        self.parts.handle.kind()
    }

    /// Returns the operations that the program can post by the functions `ibv_wr_*`. The set is
    /// empty if [`extended_posting`](super::QueuePairBuilder::extended_posting) was not enabled.
    #[doc(alias = "send_ops_flags")]
    pub fn operations(&self) -> SendOperations {
        self.parts.handle.operations()
    }

    /// Returns the endpoint of the peer, or `None` if the queue pair has no peer.
    pub fn remote(&self) -> Option<Endpoint> {
        self.parts.remote
    }

    /// Returns the local port and GID of the queue pair.
    pub fn address(&self) -> &LocalAddress {
        &self.parts.address
    }

    /// Returns the completion queue for sends, reads, writes and atomics.
    pub fn send_completions(&self) -> &CompletionQueue {
        &self.parts.send_completions
    }

    /// Returns the completion queue for receives.
    pub fn receive_completions(&self) -> &CompletionQueue {
        &self.parts.receive_completions
    }

    /// Returns the maximum length in bytes of the inline data of a request. The device may have
    /// rounded the requested length up.
    #[doc(alias = "max_inline_data")]
    pub fn inline_limit(&self) -> usize {
        self.parts.handle.sizes().inline_data as usize
    }

    /// Returns the maximum number of outstanding send requests.
    #[doc(alias = "max_send_wr")]
    pub fn send_capacity(&self) -> usize {
        self.parts.handle.sizes().send_requests as usize
    }

    /// Returns the maximum number of outstanding receive requests.
    #[doc(alias = "max_recv_wr")]
    pub fn receive_capacity(&self) -> usize {
        self.parts.handle.sizes().receive_requests as usize
    }

    /// Returns the capacities that the device granted, such as the maximum number of outstanding
    /// requests. A device may round the requested capacities up.
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

    /// Returns whether every send request produces a completion (is signaled), including requests
    /// that the program made unsignaled.
    #[doc(alias = "sq_sig_all")]
    pub fn signals_all(&self) -> bool {
        self.parts.handle.signals_all()
    }

    /// Creates a send queue to post sends, writes, reads and atomics to this queue pair. Only one
    /// thread at a time can use the queue.
    pub fn send_queue<T: Send + 'static>(&self) -> SendQueue<T> {
        SendQueue::new(Arc::clone(&self.parts.handle))
    }

    /// Creates a receive queue to post receives to this queue pair. Only one thread at a time can
    /// use the queue.
    pub fn receive_queue<T: Send + 'static>(&self) -> ReceiveQueue<T> {
        ReceiveQueue::new(Arc::clone(&self.parts.handle))
    }

    /// Creates a send queue that several threads can use at the same time.
    pub fn concurrent_send_queue<T: Send + 'static>(&self) -> ConcurrentSendQueue<T> {
        ConcurrentSendQueue::new(Arc::clone(&self.parts.handle))
    }

    /// Creates a receive queue that several threads can use at the same time.
    pub fn concurrent_receive_queue<T: Send + 'static>(&self) -> ConcurrentReceiveQueue<T> {
        ConcurrentReceiveQueue::new(Arc::clone(&self.parts.handle))
    }

    /// Returns a pointer to the underlying C object, `ibv_qp`. The pointer is valid as long as this
    /// queue pair exists.
    pub fn as_raw(&self) -> *mut ibverbs_sys::ibv_qp {
        self.parts.handle.as_raw()
    }
}
