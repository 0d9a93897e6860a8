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

/// A queue pair in the state INIT, before its connection or activation. The program can post
/// receives to the queue pair, but no sends.
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

    /// Returns the parameters that the peer needs in order to connect to this queue pair.
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
    /// The error of `ibv_query_qp`.
    #[doc(alias = "ibv_query_qp")]
    pub fn attributes(&self) -> Result<QueuePairAttributes> {
        QueuePairAttributes::of(&self.parts.handle)
    }

    /// Creates a receive queue to post receives to this queue pair. Only one thread at a time can
    /// use the queue. Receives can be posted before the peer sends.
    pub fn receive_queue<T: Send + 'static>(&self) -> ReceiveQueue<T> {
        ReceiveQueue::new(Arc::clone(&self.parts.handle))
    }

    /// Creates a receive queue that several threads can use at the same time.
    pub fn concurrent_receive_queue<T: Send + 'static>(&self) -> ConcurrentReceiveQueue<T> {
        ConcurrentReceiveQueue::new(Arc::clone(&self.parts.handle))
    }

    /// Returns the enhanced connection establishment (ECE) options that the device supports:
    /// vendor-specific options for a connection.
    ///
    /// # Errors
    ///
    /// The error of `ibv_query_ece`. Most devices do not support ECE
    /// ([`Error::is_unsupported`](crate::Error::is_unsupported)).
    #[doc(alias = "ibv_query_ece")]
    pub fn query_ece(&self) -> Result<EnhancedEstablishment> {
        self.parts.handle.query_ece().map(Into::into)
    }

    /// Sets the enhanced connection establishment (ECE) options that both sides have agreed to use.
    /// The program must call this method before connecting.
    ///
    /// # Errors
    ///
    /// The errors of [`Self::query_ece`].
    #[doc(alias = "ibv_set_ece")]
    pub fn set_ece(&self, on: EnhancedEstablishment) -> Result<()> {
        self.parts.handle.set_ece(on.into())
    }

    /// Connects this queue pair to the peer's queue pair: moves this queue pair from INIT to RTR
    /// and then to RTS.
    ///
    /// The method is for connected transports. For datagrams, use [`Self::activate`]. The peer must
    /// connect to the [`endpoint`](Self::endpoint) of this queue pair as well. Connecting sends no
    /// packet, so an unreachable peer is detected only by the first request.
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
        Ok(self.parts.into_queue_pair(Some(*remote)))
    }

    /// Activates a queue pair without a peer, of type [`Transport::Datagram`] or
    /// [`Transport::RawPacket`]: makes the queue pair ready to receive and to send. Raw packet
    /// queue pairs ignore the queue key in `options`.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidArgument`](crate::Error::InvalidArgument) if the transport needs a peer, and
    /// [`Error::RefusedModification`](crate::Error::RefusedModification) if the device refuses the
    /// change.
    #[doc(alias = "ibv_modify_qp")]
    pub fn activate(self, options: &DatagramOptions) -> Result<QueuePair> {
        for step in self.parts.activating(options)? {
            self.parts.modify(&step)?;
        }
        Ok(self.parts.into_queue_pair(None))
    }

    /// Converts the queue pair to a [`ManualQueuePair`], whose state transitions the program
    /// performs step by step.
    pub fn manual(self) -> ManualQueuePair {
        ManualQueuePair::new(self.parts)
    }

    pub(crate) fn handle(&self) -> &QueuePairHandle {
        &self.parts.handle
    }

    /// Converts a queue pair in the state RTS (ready to send) to a [`QueuePair`] with the endpoints
    /// `local` and `remote`. The caller has already moved the queue pair to RTS. `remote` is `None`
    /// if the queue pair has no peer.
    pub(crate) fn into_rts(self, local: Endpoint, remote: Option<Endpoint>) -> QueuePair {
        let parts = Parts {
            local,
            ..self.parts
        };
        parts.into_queue_pair(remote)
    }

    /// Returns a pointer to the underlying C object, `ibv_qp`. The pointer is valid as long as this
    /// queue pair exists.
    pub fn as_raw(&self) -> *mut ibverbs_sys::ibv_qp {
        self.parts.handle.as_raw()
    }
}
