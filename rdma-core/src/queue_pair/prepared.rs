//! Queue pairs that can receive but not send yet.

use std::sync::Arc;

use super::parts::Parts;
use super::{
    ConcurrentReceiveQueue, ConnectOptions, DatagramOptions, Endpoint, EnhancedEstablishment,
    ManualQueuePair, QueuePair, QueuePairAttributes, ReceiveQueue, Transport,
};
use crate::device::LocalAddress;
use crate::error::Result;
use crate::ffi::QueuePairHandle;

/// A queue pair that is not connected or activated yet (INIT): receives can be posted to it, sends
/// cannot.
///
/// It is `Send` and `Sync`: verbs are thread-safe.
///
/// ```
/// # fn example(prepared: rdma_core::PreparedQueuePair) {
/// let queue = prepared.receive_queue::<rdma_core::Buffer>();
/// # }
/// ```
///
/// ```compile_fail,E0599
/// # fn example(prepared: rdma_core::PreparedQueuePair) {
/// let queue = prepared.send_queue::<rdma_core::Buffer>();
/// # }
/// ```
#[derive(Debug)]
pub struct PreparedQueuePair {
    parts: Parts,
}

impl PreparedQueuePair {
    pub(super) fn new(parts: Parts) -> Self {
        Self { parts }
    }

    /// What the peer must know.
    pub fn endpoint(&self) -> Endpoint {
        self.parts.local
    }

    /// Its number.
    pub fn number(&self) -> u32 {
        self.parts.handle.number()
    }

    /// Which service it gives.
    #[doc(alias = "qp_type")]
    pub fn kind(&self) -> Transport {
        self.parts.handle.kind()
    }

    /// Its port and GID.
    pub fn address(&self) -> &LocalAddress {
        &self.parts.address
    }

    /// Everything that it tells about itself.
    ///
    /// # Errors
    ///
    /// The verb's.
    #[doc(alias = "ibv_query_qp")]
    pub fn attributes(&self) -> Result<QueuePairAttributes> {
        QueuePairAttributes::of(&self.parts.handle)
    }

    /// A queue to post receives to, so that they are there before the peer sends.
    pub fn receive_queue<T: Send + 'static>(&self) -> ReceiveQueue<T> {
        ReceiveQueue::new(Arc::clone(&self.parts.handle))
    }

    /// Like [`Self::receive_queue`], for any number of threads.
    pub fn concurrent_receive_queue<T: Send + 'static>(&self) -> ConcurrentReceiveQueue<T> {
        ConcurrentReceiveQueue::new(Arc::clone(&self.parts.handle))
    }

    /// What the device offers to agree on with the peer's.
    ///
    /// # Errors
    ///
    /// The verb's: most devices have nothing to offer
    /// ([`Error::is_unsupported`](crate::Error::is_unsupported)).
    #[doc(alias = "ibv_query_ece")]
    pub fn enhancements(&self) -> Result<EnhancedEstablishment> {
        self.parts.handle.query_ece().map(Into::into)
    }

    /// Sets what was agreed on with the peer's device. Before it is connected.
    ///
    /// # Errors
    ///
    /// As [`Self::enhancements`].
    #[doc(alias = "ibv_set_ece")]
    pub fn agree(&self, on: EnhancedEstablishment) -> Result<()> {
        self.parts.handle.set_ece(on.into())
    }

    /// Connects it to the peer's queue pair: INIT to RTR to RTS.
    ///
    /// For queue pairs that are connected to one peer; datagram ones are [activated](Self::activate).
    /// The peer must do the same with this end's [`endpoint`](Self::endpoint). Nothing is sent: that
    /// the peer is there shows in the first request.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidArgument`](crate::Error::InvalidArgument) for options out of range, an
    /// endpoint that cannot be, or a queue pair without a peer, and
    /// [`Error::RefusedModification`](crate::Error::RefusedModification), for example without a
    /// route to the peer's GID.
    #[doc(alias = "ibv_modify_qp")]
    pub fn connect(self, remote: &Endpoint, options: &ConnectOptions) -> Result<QueuePair> {
        for step in self.parts.connecting(remote, options)? {
            self.parts.modify(&step)?;
        }
        Ok(self.parts.in_operation(Some(*remote)))
    }

    /// Makes it send and receive, without a peer: INIT to RTR to RTS. For
    /// [`Transport::Datagram`] and [`Transport::RawPacket`], of which the latter has no queue key.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidArgument`](crate::Error::InvalidArgument) for a queue pair that wants a peer,
    /// and [`Error::RefusedModification`](crate::Error::RefusedModification).
    #[doc(alias = "ibv_modify_qp")]
    pub fn activate(self, options: &DatagramOptions) -> Result<QueuePair> {
        for step in self.parts.activating(options)? {
            self.parts.modify(&step)?;
        }
        Ok(self.parts.in_operation(None))
    }

    /// It, to be brought up step by step.
    pub fn manual(self) -> ManualQueuePair {
        ManualQueuePair::new(self.parts)
    }

    pub(crate) fn handle(&self) -> &QueuePairHandle {
        &self.parts.handle
    }

    /// It with these ends, for who brought it up.
    pub(crate) fn in_operation_as(self, local: Endpoint, remote: Option<Endpoint>) -> QueuePair {
        let parts = Parts {
            local,
            ..self.parts
        };
        parts.in_operation(remote)
    }

    /// The C object, valid for as long as this.
    pub fn as_raw(&self) -> *mut ibverbs_sys::ibv_qp {
        self.parts.handle.as_raw()
    }
}
