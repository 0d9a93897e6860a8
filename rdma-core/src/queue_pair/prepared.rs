//! Queue pairs that can receive but not send.

use std::sync::Arc;

use super::parts::Parts;
use super::{
    ConcurrentReceiveQueue, ConnectOptions, DatagramOptions, Endpoint, EnhancedEstablishment,
    ManualQueuePair, QueuePair, QueuePairAttributes, ReceiveQueue, Transport,
};
use crate::device::LocalAddress;
use crate::error::Result;
use crate::ffi::QueuePairHandle;

/// A queue pair in INIT, which is not connected or activated yet. Receives can be posted to it,
/// sends cannot.
///
/// `PreparedQueuePair` is `Send` and `Sync`, because verbs are thread-safe on queue pairs.
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

    /// Returns the parameters that the peer needs to connect.
    pub fn endpoint(&self) -> Endpoint {
        self.parts.local
    }

    /// Returns the queue pair number.
    pub fn number(&self) -> u32 {
        self.parts.handle.number()
    }

    /// Returns the transport type of the queue pair.
    #[doc(alias = "qp_type")]
    pub fn kind(&self) -> Transport {
        self.parts.handle.kind()
    }

    /// Returns the local port and GID of the queue pair.
    pub fn address(&self) -> &LocalAddress {
        &self.parts.address
    }

    /// Returns all attributes of the queue pair.
    ///
    /// # Errors
    ///
    /// The error of the verb.
    #[doc(alias = "ibv_query_qp")]
    pub fn attributes(&self) -> Result<QueuePairAttributes> {
        QueuePairAttributes::of(&self.parts.handle)
    }

    /// Returns a new queue for posting receives. Receives can be posted before the peer sends.
    pub fn receive_queue<T: Send + 'static>(&self) -> ReceiveQueue<T> {
        ReceiveQueue::new(Arc::clone(&self.parts.handle))
    }

    /// Returns a new receive queue for any number of threads.
    pub fn concurrent_receive_queue<T: Send + 'static>(&self) -> ConcurrentReceiveQueue<T> {
        ConcurrentReceiveQueue::new(Arc::clone(&self.parts.handle))
    }

    /// Returns the enhanced connection establishment (ECE) options that the device supports.
    ///
    /// # Errors
    ///
    /// The error of the verb. Most devices do not support ECE
    /// ([`Error::is_unsupported`](crate::Error::is_unsupported)).
    #[doc(alias = "ibv_query_ece")]
    pub fn query_ece(&self) -> Result<EnhancedEstablishment> {
        self.parts.handle.query_ece().map(Into::into)
    }

    /// Sets the ECE options that were negotiated with the peer. Call this method before connecting.
    ///
    /// # Errors
    ///
    /// The errors of [`Self::query_ece`].
    #[doc(alias = "ibv_set_ece")]
    pub fn set_ece(&self, on: EnhancedEstablishment) -> Result<()> {
        self.parts.handle.set_ece(on.into())
    }

    /// Connects the queue pair to the peer's queue pair: moves it from INIT to RTR and RTS.
    ///
    /// For connected transports; use [`Self::activate`] for datagrams. The peer must connect to the
    /// [`endpoint`](Self::endpoint) of this queue pair as well. Connecting sends no packet, so an
    /// unreachable peer is detected only by the first request.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidArgument`](crate::Error::InvalidArgument) for options out of range, for an
    /// invalid endpoint, or if the transport has no peer, and
    /// [`Error::RefusedModification`](crate::Error::RefusedModification), for example because no
    /// route leads to the peer's GID.
    #[doc(alias = "ibv_modify_qp")]
    pub fn connect(self, remote: &Endpoint, options: &ConnectOptions) -> Result<QueuePair> {
        for step in self.parts.connecting(remote, options)? {
            self.parts.modify(&step)?;
        }
        Ok(self.parts.in_operation(Some(*remote)))
    }

    /// Activates a queue pair without a peer: moves it from INIT to RTR and RTS. For
    /// [`Transport::Datagram`] and [`Transport::RawPacket`]; the latter ignores the queue key.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidArgument`](crate::Error::InvalidArgument) if the transport needs a peer, and
    /// [`Error::RefusedModification`](crate::Error::RefusedModification).
    #[doc(alias = "ibv_modify_qp")]
    pub fn activate(self, options: &DatagramOptions) -> Result<QueuePair> {
        for step in self.parts.activating(options)? {
            self.parts.modify(&step)?;
        }
        Ok(self.parts.in_operation(None))
    }

    /// Converts the queue pair to the type whose state transitions the program performs step by
    /// step.
    pub fn manual(self) -> ManualQueuePair {
        ManualQueuePair::new(self.parts)
    }

    pub(crate) fn handle(&self) -> &QueuePairHandle {
        &self.parts.handle
    }

    /// Converts the queue pair to the public type, with these endpoints, after the caller has moved
    /// it to RTS.
    pub(crate) fn in_operation_as(self, local: Endpoint, remote: Option<Endpoint>) -> QueuePair {
        let parts = Parts {
            local,
            ..self.parts
        };
        parts.in_operation(remote)
    }

    /// Returns the C object. The pointer is valid as long as this queue pair exists.
    pub fn as_raw(&self) -> *mut ibverbs_sys::ibv_qp {
        self.parts.handle.as_raw()
    }
}
