//! Connecting to a listening peer, with blocking calls.

use std::net::SocketAddr;
use std::time::Duration;

use super::connection::EventWaiter;
use super::{
    Connection, ConnectionEventKind, ConnectionId, ConnectionIdOption, ConnectionParameters,
    ConnectionStep, EventChannel, PeerParameters, PortSpace, PreparedConnection,
};
use crate::context::Context;
use crate::error::Result;
use crate::queue_pair::QueuePairBuilder;

/// The default time limit of each step of establishing or ending a connection.
pub(super) const MAX_WAIT: Duration = Duration::from_secs(10);

/// A builder for a connection to a listening peer. [`Self::connect`] and [`Self::resolve`] block.
/// Each step (address resolution, route resolution, connecting) has a time limit.
#[derive(Debug, Clone)]
#[must_use = "a connector does nothing until `resolve` or `connect`"]
pub struct Connector {
    destination: SocketAddr,
    source: Option<SocketAddr>,
    space: PortSpace,
    timeout: Duration,
    parameters: ConnectionParameters,
    options: Vec<ConnectionIdOption>,
}

impl Connector {
    /// Creates a connector that will connect to the program listening at `destination`.
    pub fn new(destination: SocketAddr) -> Self {
        Self {
            destination,
            source: None,
            space: PortSpace::Tcp,
            timeout: MAX_WAIT,
            parameters: ConnectionParameters::default(),
            options: Vec::new(),
        }
    }

    /// Sets the local address from which to connect. By default the system chooses the local
    /// address by its route to the destination.
    pub fn source(mut self, source: SocketAddr) -> Self {
        self.source = Some(source);
        self
    }

    /// Sets the port space in which the peer listens. The default is [`PortSpace::Tcp`].
    pub fn port_space(mut self, space: PortSpace) -> Self {
        self.space = space;
        self
    }

    /// Sets the time limit of each step: address resolution, route resolution, connecting, and
    /// later disconnecting. The default is 10 s.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }

    /// Sets the parameters that [`Self::connect`] sends to the peer, such as private data and retry
    /// counts.
    pub fn parameters(mut self, parameters: ConnectionParameters) -> Self {
        self.parameters = parameters;
        self
    }

    /// Sets an option of the connection identifier that this connector creates.
    pub fn option(mut self, option: ConnectionIdOption) -> Self {
        self.options.push(option);
        self
    }

    /// Finds the local device, the link address and the route by which this machine reaches the
    /// destination. Blocks until the route is resolved or a step has failed.
    ///
    /// # Errors
    ///
    /// [`ConnectionError`](super::ConnectionError) if the system has no connection manager, no
    /// route exists or the timeout passes. Also returns the errors of the verbs that this method
    /// calls.
    #[doc(alias = "rdma_resolve_addr")]
    #[doc(alias = "rdma_resolve_route")]
    pub fn resolve(&self) -> Result<ResolvedPeer> {
        let channel = EventChannel::new()?;
        let id = ConnectionId::new(&channel, self.space)?;
        for &option in &self.options {
            id.set_option(option)?;
        }
        let waiting = EventWaiter {
            channel,
            peer: self.destination.to_string(),
            timeout: self.timeout,
        };
        id.resolve_address(self.source, self.destination, self.timeout)?;
        waiting.until(ConnectionStep::AddressResolution, |kind| match kind {
            ConnectionEventKind::AddressResolved => Ok(()),
            other => Err(other),
        })?;
        id.resolve_route(self.timeout)?;
        waiting.until(ConnectionStep::RouteResolution, |kind| match kind {
            ConnectionEventKind::RouteResolved => Ok(()),
            other => Err(other),
        })?;
        Ok(ResolvedPeer { id, waiting })
    }

    /// Connects to the peer: resolves the route to the peer, creates a queue pair, and connects the
    /// queue pair. This method calls `builder` with the device of the route. `builder` returns the
    /// settings of the queue pair.
    ///
    /// If the peer sends first, receives must be posted before the connection is established. In
    /// that case call [`Self::resolve`], [`ResolvedPeer::prepare`] and
    /// [`PreparedConnection::establish`] separately.
    ///
    /// # Errors
    ///
    /// The errors of [`Self::resolve`], [`ResolvedPeer::prepare`] and
    /// [`PreparedConnection::establish`], and the error that `builder` returns.
    #[doc(alias = "rdma_connect")]
    pub fn connect(
        &self,
        builder: impl FnOnce(&Context) -> Result<QueuePairBuilder>,
    ) -> Result<Connection> {
        let peer = self.resolve()?;
        let context = peer.context()?;
        let prepared = peer.prepare(builder(&context)?)?;
        prepared.establish(&self.parameters)
    }
}

/// A peer to which [`Connector::resolve`] has found a route. The next step is to create the queue
/// pair for the connection by [`Self::prepare`].
#[derive(Debug)]
pub struct ResolvedPeer {
    id: ConnectionId,
    waiting: EventWaiter,
}

impl ResolvedPeer {
    /// Returns the connection identifier of this side, from which the program can query the device
    /// and the addresses of both sides.
    pub fn id(&self) -> &ConnectionId {
        &self.id
    }

    /// Returns the context (open device) of the device that the route uses, like
    /// [`ConnectionId::context`].
    ///
    /// # Errors
    ///
    /// The errors of [`ConnectionId::context`].
    pub fn context(&self) -> Result<Context> {
        self.id.context()
    }

    /// Creates the queue pair of the connection in the state INIT. Receives can be posted in this
    /// state, before the peer sends.
    ///
    /// # Errors
    ///
    /// The errors of [`ConnectionId::prepare`].
    pub fn prepare(self, builder: QueuePairBuilder) -> Result<PreparedConnection> {
        let prepared = self.id.prepare(builder)?;
        Ok(PreparedConnection::connecting(
            self.id,
            prepared,
            self.waiting,
        ))
    }

    /// Queries the datagram queue pair of the peer, and waits for the response.
    /// [`PeerParameters::destination`] of the result is the destination for datagrams to that queue
    /// pair.
    ///
    /// # Errors
    ///
    /// [`ConnectionError`](super::ConnectionError) if the peer rejects the query or the timeout
    /// passes. Also returns the errors of [`ConnectionId::find_datagram_peer`].
    #[doc(alias = "rdma_connect")]
    pub fn find_datagram_peer(&self, parameters: &ConnectionParameters) -> Result<PeerParameters> {
        self.id.find_datagram_peer(parameters)?;
        self.waiting
            .until(ConnectionStep::Connecting, |kind| match kind {
                ConnectionEventKind::Established(peer) => Ok(peer),
                other => Err(other),
            })
    }
}
