//! Listening for peers.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use super::connection::Waiting;
use super::connector::PATIENCE;
use super::{
    ConnectionError, ConnectionEventKind, ConnectionId, ConnectionIdOption, ConnectionParameters,
    ConnectionRequest, EventChannel, PortSpace, PreparedConnection,
};
use crate::context::Context;
use crate::error::Result;
use crate::queue_pair::{QueuePair, QueuePairBuilder};

/// A place where peers connect. Threads may share it.
#[derive(Debug)]
pub struct Listener {
    channel: EventChannel,
    id: ConnectionId,
    timeout: Duration,
}

/// Settings of a listener to be, from [`Listener::builder`].
#[derive(Debug, Clone)]
#[must_use = "a builder makes nothing until `listen`"]
pub struct ListenerBuilder {
    address: SocketAddr,
    space: PortSpace,
    backlog: u32,
    timeout: Duration,
    options: Vec<ConnectionIdOption>,
}

impl ListenerBuilder {
    /// In this port space. Default [`PortSpace::Tcp`].
    pub fn port_space(mut self, space: PortSpace) -> Self {
        self.space = space;
        self
    }

    /// How many peers may wait to be taken. Default 128.
    pub fn backlog(mut self, backlog: u32) -> Self {
        self.backlog = backlog;
        self
    }

    /// How long accepting a peer, and later disconnecting, may take. Default 10 s.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }

    /// Sets an option of the identifier.
    pub fn option(mut self, option: ConnectionIdOption) -> Self {
        self.options.push(option);
        self
    }

    /// Binds and listens.
    ///
    /// # Errors
    ///
    /// [`ConnectionError::NoManager`] where there is no connection manager, and the verbs', for
    /// example if no device has the address, or the port is in use.
    #[doc(alias = "rdma_listen")]
    pub fn listen(&self) -> Result<Listener> {
        let channel = EventChannel::new()?;
        let id = ConnectionId::new(&channel, self.space)?;
        for &option in &self.options {
            id.set_option(option)?;
        }
        id.bind(self.address)?;
        id.listen(self.backlog)?;
        Ok(Listener {
            channel,
            id,
            timeout: self.timeout,
        })
    }
}

impl Listener {
    /// Listens at this address: the unspecified one is every device's, and port 0 a free one.
    ///
    /// # Errors
    ///
    /// As [`ListenerBuilder::listen`].
    #[doc(alias = "rdma_bind_addr")]
    #[doc(alias = "rdma_listen")]
    pub fn bind(address: SocketAddr) -> Result<Self> {
        Self::builder(address).listen()
    }

    /// Begins a listener at this address.
    pub fn builder(address: SocketAddr) -> ListenerBuilder {
        ListenerBuilder {
            address,
            space: PortSpace::Tcp,
            backlog: 128,
            timeout: PATIENCE,
            options: Vec::new(),
        }
    }

    /// Where it listens.
    pub fn local_address(&self) -> Option<SocketAddr> {
        self.id.local_address()
    }

    /// The identifier.
    pub fn id(&self) -> &ConnectionId {
        &self.id
    }

    /// The channel of the identifier: its descriptor becomes readable when a peer is there.
    pub fn channel(&self) -> &EventChannel {
        &self.channel
    }

    /// The next peer that wants to connect. Waits for it up to `timeout` (`None`: without limit);
    /// `None` when that is over.
    ///
    /// # Errors
    ///
    /// [`ConnectionError::DeviceRemoved`], and the verbs'.
    #[doc(alias = "rdma_get_request")]
    pub fn next(&self, timeout: Option<Duration>) -> Result<Option<Incoming>> {
        let deadline = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
        loop {
            let Some(event) = self.channel.next_until(deadline)? else {
                return Ok(None);
            };
            match event.kind {
                ConnectionEventKind::ConnectRequest(request) => {
                    return Incoming::new(request, self.timeout).map(Some);
                }
                ConnectionEventKind::DeviceRemoval if event.id.is(&self.id) => {
                    let peer = "every peer".to_owned();
                    return Err(ConnectionError::DeviceRemoved { peer }.into());
                }
                other => tracing::debug!(event = %other, "ignored by a listener"),
            }
        }
    }
}

/// A peer that wants to connect. Dropping it rejects it.
///
/// Its events arrive on a channel of its own, so that it can be answered by another thread than the
/// one that listens.
#[derive(Debug)]
#[must_use = "dropping it rejects the peer"]
pub struct Incoming {
    request: ConnectionRequest,
    waiting: Waiting,
}

impl Incoming {
    fn new(request: ConnectionRequest, timeout: Duration) -> Result<Self> {
        let channel = EventChannel::new()?;
        request.id().migrate(&channel)?;
        let waiting = Waiting {
            channel,
            peer: request.id().peer_name(),
            timeout,
        };
        Ok(Self { request, waiting })
    }

    /// The request.
    pub fn request(&self) -> &ConnectionRequest {
        &self.request
    }

    /// The peer's address.
    pub fn peer_address(&self) -> Option<SocketAddr> {
        self.request.peer_address()
    }

    /// What the peer's program said, followed by zeros up to what the message holds.
    pub fn private_data(&self) -> &[u8] {
        self.request.private_data()
    }

    /// The device that it came through: see [`ConnectionId::context`].
    ///
    /// # Errors
    ///
    /// As [`ConnectionId::context`].
    pub fn context(&self) -> Result<Context> {
        self.request.context()
    }

    /// Makes the queue pair, in state INIT, so that receives are there before the peer sends.
    ///
    /// # Errors
    ///
    /// As [`ConnectionId::prepare`]. The peer is rejected then.
    pub fn prepare(self, builder: QueuePairBuilder) -> Result<PreparedConnection> {
        let prepared = self.request.prepare(builder)?;
        Ok(PreparedConnection::accepting(
            self.request,
            prepared,
            self.waiting,
        ))
    }

    /// Makes the queue pair and accepts: [`Self::prepare`] and [`PreparedConnection::establish`].
    ///
    /// # Errors
    ///
    /// Those of both.
    #[doc(alias = "rdma_accept")]
    pub fn accept(
        self,
        builder: QueuePairBuilder,
        parameters: &ConnectionParameters,
    ) -> Result<super::Connection> {
        self.prepare(builder)?.establish(parameters)
    }

    /// Accepts a datagram peer: see [`ConnectionRequest::accept_datagram`]. It is over when the
    /// identifier is dropped.
    ///
    /// # Errors
    ///
    /// As [`ConnectionRequest::accept_datagram`].
    pub fn accept_datagram(
        self,
        pair: &QueuePair,
        parameters: &ConnectionParameters,
    ) -> Result<ConnectionId> {
        self.request.accept_datagram(pair, parameters)
    }

    /// Rejects it, with bytes for the peer's program that say why.
    ///
    /// # Errors
    ///
    /// As [`ConnectionRequest::reject`].
    #[doc(alias = "rdma_reject")]
    pub fn reject(self, private_data: &[u8]) -> Result<()> {
        self.request.reject(private_data)
    }
}
