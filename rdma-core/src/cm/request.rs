//! Requests of peers to connect.

use std::net::SocketAddr;

use super::port_space::Message;
use super::queue_pair::{self, establish};
use super::{ConnectionId, ConnectionParameters, PeerParameters};
use crate::context::Context;
use crate::error::{Error, Result};
use crate::queue_pair::{PreparedQueuePair, QueuePair, QueuePairBuilder, Transport};

/// A peer that wants to connect. Dropping it rejects it.
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

    /// The new identifier of this end of the connection. Its events arrive on the listening
    /// identifier's channel unless it is [moved](ConnectionId::migrate).
    pub fn id(&self) -> &ConnectionId {
        &self.id
    }

    /// The identifier that listened.
    pub fn listener(&self) -> &ConnectionId {
        &self.listener
    }

    /// What the peer told about itself.
    pub fn peer(&self) -> &PeerParameters {
        &self.peer
    }

    /// What the peer's program said, followed by zeros up to what the message holds.
    pub fn private_data(&self) -> &[u8] {
        &self.peer.private_data
    }

    /// The peer's address.
    pub fn peer_address(&self) -> Option<SocketAddr> {
        self.id.peer_address()
    }

    /// The device that it came through: see [`ConnectionId::context`].
    ///
    /// # Errors
    ///
    /// As [`ConnectionId::context`].
    pub fn context(&self) -> Result<Context> {
        self.id.context()
    }

    /// Makes the queue pair of this end, in state INIT, so that receives are there before the peer
    /// sends.
    ///
    /// # Errors
    ///
    /// As [`ConnectionId::prepare`].
    pub fn prepare(&self, builder: QueuePairBuilder) -> Result<PreparedQueuePair> {
        self.id.prepare(builder)
    }

    /// Accepts: the queue pair is connected, and the peer told. When the peer confirms it, the
    /// identifier gets [`Established`](super::ConnectionEventKind::Established); what the peer
    /// sends may arrive before.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidArgument`] for parameters out of range, private data that does not fit and a
    /// queue pair of another kind; and the verbs'. The peer is rejected then.
    #[doc(alias = "rdma_accept")]
    #[doc(alias = "rdma_init_qp_attr")]
    pub fn accept(
        self,
        prepared: PreparedQueuePair,
        parameters: &ConnectionParameters,
    ) -> Result<(ConnectionId, QueuePair)> {
        if self.id.handle().is_datagram() {
            let reason = "it is for datagrams: accept it for a queue pair in operation";
            return Err(Error::invalid("connection identifier", reason));
        }
        self.id.checked(parameters, Message::Accept)?;
        let shared = prepared.handle().shared_receive_queue().is_some();
        let pair = establish(&self.id, prepared, &self.peer, parameters)?;
        let raw = parameters.to_raw(&pair.local(), shared);
        self.id.handle().accept(&raw, parameters.data())?;
        Ok((self.id, pair))
    }

    /// Accepts a datagram peer: it is told the number of `pair`, which any number of peers may
    /// share. The queue pair must have the queue key of the identifier's port space:
    /// [`ConnectionId::activate`].
    ///
    /// # Errors
    ///
    /// As [`Self::accept`].
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
        let raw = parameters.to_raw(&queue_pair::no_endpoint(pair.number()), false);
        self.id.handle().accept(&raw, parameters.data())?;
        Ok(self.id)
    }

    /// Rejects it, with bytes for the peer's program that say why.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidArgument`] for private data that does not fit, and the verb's. The peer is
    /// rejected then too, without the bytes.
    #[doc(alias = "rdma_reject")]
    pub fn reject(self, private_data: &[u8]) -> Result<()> {
        self.reject_as(private_data, false)
    }

    /// Like [`Self::reject`], because of the vendor's options.
    ///
    /// # Errors
    ///
    /// As [`Self::reject`].
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
