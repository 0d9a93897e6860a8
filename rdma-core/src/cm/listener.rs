//! Listening for connection requests of peers, with blocking calls.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use super::connection::EventWaiter;
use super::connector::MAX_WAIT;
use super::{
    ConnectionError, ConnectionEventKind, ConnectionId, ConnectionIdOption, ConnectionParameters,
    ConnectionRequest, EventChannel, PortSpace, PreparedConnection,
};
use crate::context::Context;
use crate::error::Result;
use crate::queue_pair::{QueuePair, QueuePairBuilder};

/// A listener: a local address at which peers can connect. Several threads may use the listener at
/// the same time.
#[derive(Debug)]
pub struct Listener {
    channel: EventChannel,
    id: ConnectionId,
    timeout: Duration,
}

/// A builder for a listener, from [`Listener::builder`].
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
    /// Sets the port space in which the listener listens. The default is [`PortSpace::Tcp`].
    pub fn port_space(mut self, space: PortSpace) -> Self {
        self.space = space;
        self
    }

    /// Sets the maximum number of pending connect requests. The default is 128.
    pub fn backlog(mut self, backlog: u32) -> Self {
        self.backlog = backlog;
        self
    }

    /// Sets the time limit for accepting a peer, and later for disconnecting from that peer. The
    /// default is 10 s.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }

    /// Sets an option of the connection identifier that listens.
    pub fn option(mut self, option: ConnectionIdOption) -> Self {
        self.options.push(option);
        self
    }

    /// Binds to the address that was passed to [`Listener::builder`], and starts to listen.
    ///
    /// # Errors
    ///
    /// [`ConnectionError::NoManager`] if the system has no connection manager, and the errors of
    /// the verbs that this method calls, for example if no device has the address, or if the port
    /// is in use.
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
    /// Listens at `address`. The unspecified address (`0.0.0.0` or `::`) listens on all devices.
    /// Port 0 selects a free port.
    ///
    /// # Errors
    ///
    /// The errors of [`ListenerBuilder::listen`].
    #[doc(alias = "rdma_bind_addr")]
    #[doc(alias = "rdma_listen")]
    pub fn bind(address: SocketAddr) -> Result<Self> {
        Self::builder(address).listen()
    }

    /// Returns a builder for a listener at `address`.
    pub fn builder(address: SocketAddr) -> ListenerBuilder {
        ListenerBuilder {
            address,
            space: PortSpace::Tcp,
            backlog: 128,
            timeout: MAX_WAIT,
            options: Vec::new(),
        }
    }

    /// Returns the address at which the listener listens, or `None` if the system reports no IP
    /// address.
    pub fn local_address(&self) -> Option<SocketAddr> {
        self.id.local_address()
    }

    /// Returns the connection identifier that listens.
    pub fn id(&self) -> &ConnectionId {
        &self.id
    }

    /// Returns the event channel of the listening identifier. The file descriptor of the channel
    /// becomes readable when a connect request arrives.
    pub fn channel(&self) -> &EventChannel {
        &self.channel
    }

    /// Waits for the next connect request and returns it. Returns `None` if `timeout` passes first.
    /// A `timeout` of `None` means no limit.
    ///
    /// # Errors
    ///
    /// [`ConnectionError::DeviceRemoved`], and the errors of the verbs that this method calls.
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

/// A connect request of a peer to a [`Listener`]. Dropping this value rejects the request.
///
/// Each request has a separate event channel. Therefore a thread other than the listening thread
/// can accept or reject the request.
#[derive(Debug)]
#[must_use = "dropping it rejects the peer"]
pub struct Incoming {
    request: ConnectionRequest,
    waiting: EventWaiter,
}

impl Incoming {
    fn new(request: ConnectionRequest, timeout: Duration) -> Result<Self> {
        let channel = EventChannel::new()?;
        request.id().migrate(&channel)?;
        let waiting = EventWaiter {
            channel,
            peer: request.id().peer_name(),
            timeout,
        };
        Ok(Self { request, waiting })
    }

    /// Returns the underlying connect request, for example to query the parameters that the peer
    /// sent.
    pub fn request(&self) -> &ConnectionRequest {
        &self.request
    }

    /// Returns the peer's address, or `None` if the system reports no IP address.
    pub fn peer_address(&self) -> Option<SocketAddr> {
        self.request.peer_address()
    }

    /// Returns the private data that the peer's program sent with the connect request, padded with
    /// zeros to the capacity of the message.
    pub fn private_data(&self) -> &[u8] {
        self.request.private_data()
    }

    /// Returns the context (open device) of the device on which the request arrived, like
    /// [`ConnectionId::context`].
    ///
    /// # Errors
    ///
    /// The errors of [`ConnectionId::context`].
    pub fn context(&self) -> Result<Context> {
        self.request.context()
    }

    /// Creates the queue pair of the new connection in the state INIT. Receives can be posted in
    /// this state, before the peer sends.
    ///
    /// # Errors
    ///
    /// The errors of [`ConnectionId::prepare`]. On error the peer is rejected.
    pub fn prepare(self, builder: QueuePairBuilder) -> Result<PreparedConnection> {
        let prepared = self.request.prepare(builder)?;
        Ok(PreparedConnection::accepting(
            self.request,
            prepared,
            self.waiting,
        ))
    }

    /// Creates the queue pair and accepts the connection. Combines [`Self::prepare`] and
    /// [`PreparedConnection::establish`].
    ///
    /// # Errors
    ///
    /// The errors of [`Self::prepare`] and [`PreparedConnection::establish`].
    #[doc(alias = "rdma_accept")]
    pub fn accept(
        self,
        builder: QueuePairBuilder,
        parameters: &ConnectionParameters,
    ) -> Result<super::Connection> {
        self.prepare(builder)?.establish(parameters)
    }

    /// Accepts a datagram peer: sends the number of the queue pair `pair` to the peer, like
    /// [`ConnectionRequest::accept_datagram`]. Returns the connection identifier of the association
    /// with this peer. Dropping the identifier ends the association.
    ///
    /// # Errors
    ///
    /// The errors of [`ConnectionRequest::accept_datagram`].
    pub fn accept_datagram(
        self,
        pair: &QueuePair,
        parameters: &ConnectionParameters,
    ) -> Result<ConnectionId> {
        self.request.accept_datagram(pair, parameters)
    }

    /// Rejects the connect request. `private_data` is sent to the peer's program, for example to
    /// explain the reason.
    ///
    /// # Errors
    ///
    /// The errors of [`ConnectionRequest::reject`].
    #[doc(alias = "rdma_reject")]
    pub fn reject(self, private_data: &[u8]) -> Result<()> {
        self.request.reject(private_data)
    }
}
