//! Connect requests of peers.

use std::net::SocketAddr;

use super::port_space::Message;
use super::queue_pair::{self, establish};
use super::{ConnectionId, ConnectionParameters, PeerParameters};
use crate::context::Context;
use crate::error::{Error, Result};
use crate::queue_pair::{PreparedQueuePair, QueuePair, QueuePairBuilder, Transport};

/// A connect request that a peer sent. Dropping this value rejects the request.
#[doc(alias = "RDMA_CM_EVENT_CONNECT_REQUEST")]
#[derive(Debug)]
#[must_use = "dropping a request rejects it"]
pub struct ConnectionRequest {
    id: ConnectionId,
    listener: ConnectionId,
    peer: PeerParameters,
}

impl ConnectionRequest {
    pub(super) fn new(id: ConnectionId, listener: ConnectionId, peer: PeerParameters) -> Self {
        Self { id, listener, peer }
    }

    /// Returns the new identifier that represents this side of the connection. The events of the
    /// new identifier arrive on the channel of the listening identifier, unless the program
    /// [moves](ConnectionId::migrate) the new identifier.
    pub fn id(&self) -> &ConnectionId {
        &self.id
    }

    /// Returns the listening identifier on which the request arrived.
    pub fn listener(&self) -> &ConnectionId {
        &self.listener
    }

    /// Returns the connection parameters that the peer sent.
    pub fn peer(&self) -> &PeerParameters {
        &self.peer
    }

    /// Returns the private data that the peer's program sent with the request, padded with zeros to
    /// the capacity of the message.
    pub fn private_data(&self) -> &[u8] {
        &self.peer.private_data
    }

    /// Returns the peer's address, or `None` if the system reports no IP address.
    pub fn peer_address(&self) -> Option<SocketAddr> {
        self.id.peer_address()
    }

    /// Returns the context (open device) of the device on which the request arrived, like
    /// [`ConnectionId::context`].
    ///
    /// # Errors
    ///
    /// The errors of [`ConnectionId::context`].
    pub fn context(&self) -> Result<Context> {
        self.id.context()
    }

    /// Creates the queue pair of this side in the state INIT. Receives can be posted in this state,
    /// before the peer sends.
    ///
    /// # Errors
    ///
    /// The errors of [`ConnectionId::prepare`].
    pub fn prepare(&self, builder: QueuePairBuilder) -> Result<PreparedQueuePair> {
        self.id.prepare(builder)
    }

    /// Accepts the connection: connects the queue pair and sends the acceptance to the peer. When
    /// the peer confirms, the identifier gets the event
    /// [`Established`](super::ConnectionEventKind::Established). Messages of the peer may arrive
    /// before that event.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidArgument`] for parameters out of range, private data that does not fit, or a
    /// queue pair whose transport does not match the identifier. Also returns the errors of the
    /// verbs that this method calls. On error the peer is rejected.
    #[doc(alias = "rdma_accept")]
    #[doc(alias = "rdma_init_qp_attr")]
    pub fn accept(
        self,
        prepared: PreparedQueuePair,
        parameters: &ConnectionParameters,
    ) -> Result<(ConnectionId, QueuePair)> {
        self.id.checked(parameters, Message::Accept)?;
        let pair = self.connect_queue_pair(prepared, parameters)?;
        let id = self.accept_connected(&pair, parameters)?;
        Ok((id, pair))
    }

    /// Connects the queue pair to the peer, but does not accept the connection. The peer sends
    /// nothing before [`Self::accept_connected`]. [`Self::accept`] combines this method and
    /// [`Self::accept_connected`].
    ///
    /// # Errors
    ///
    /// The errors of [`Self::accept`].
    #[doc(alias = "rdma_init_qp_attr")]
    pub fn connect_queue_pair(
        &self,
        prepared: PreparedQueuePair,
        parameters: &ConnectionParameters,
    ) -> Result<QueuePair> {
        if self.id.handle().is_datagram() {
            let reason = "it is for datagrams: accept it for a queue pair in operation";
            return Err(Error::invalid("connection identifier", reason));
        }
        establish(&self.id, prepared, &self.peer, parameters)
    }

    /// Sends the acceptance of the connection to the peer. The program must first connect the queue
    /// pair by [`Self::connect_queue_pair`].
    ///
    /// # Errors
    ///
    /// The errors of [`Self::accept`].
    #[doc(alias = "rdma_accept")]
    pub fn accept_connected(
        self,
        pair: &QueuePair,
        parameters: &ConnectionParameters,
    ) -> Result<ConnectionId> {
        self.id.checked(parameters, Message::Accept)?;
        let shared = pair.handle().shared_receive_queue().is_some();
        let raw = parameters.to_raw(&pair.local(), shared);
        self.id.handle().accept(&raw, parameters.data())?;
        Ok(self.id)
    }

    /// Accepts a datagram peer: sends the number of the queue pair `pair` to the peer. Several
    /// peers may share this queue pair. The queue pair must have the queue key of the identifier's
    /// port space: see [`ConnectionId::activate`].
    ///
    /// # Errors
    ///
    /// The errors of [`Self::accept`].
    #[doc(alias = "rdma_accept")]
    pub fn accept_datagram(
        self,
        pair: &QueuePair,
        parameters: &ConnectionParameters,
    ) -> Result<ConnectionId> {
        self.id.checked_datagram()?;
        if pair.kind() != Transport::Datagram {
            let reason = format!("it is {}, and the request is for datagrams", pair.kind());
            return Err(Error::invalid("queue pair", reason));
        }
        self.id.checked(parameters, Message::Accept)?;
        let raw = parameters.to_raw(&queue_pair::placeholder_endpoint(pair.number()), false);
        self.id.handle().accept(&raw, parameters.data())?;
        Ok(self.id)
    }

    /// Rejects the connect request. `private_data` is sent to the peer's program, for example to
    /// explain the reason.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidArgument`] for private data that does not fit, and the error of
    /// `rdma_reject`. On error the peer is rejected without `private_data`.
    #[doc(alias = "rdma_reject")]
    pub fn reject(self, private_data: &[u8]) -> Result<()> {
        self.reject_as(private_data, false)
    }

    /// Rejects the connect request like [`Self::reject`], with the reason that the peer's
    /// vendor-specific (ECE) options are not acceptable.
    ///
    /// # Errors
    ///
    /// The errors of [`Self::reject`].
    #[doc(alias = "rdma_reject_ece")]
    pub fn reject_vendor_options(self, private_data: &[u8]) -> Result<()> {
        self.reject_as(private_data, true)
    }

    fn reject_as(self, private_data: &[u8], vendor_options: bool) -> Result<()> {
        let space = self.id.port_space();
        space.checked(Message::Reject, private_data)?;
        self.id.handle().reject(private_data, vendor_options)
    }
}
