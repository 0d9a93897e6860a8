//! Connecting to a listening peer.

use std::net::SocketAddr;
use std::time::Duration;

use super::connection::Waiting;
use super::{
    Connection, ConnectionEventKind, ConnectionId, ConnectionIdOption, ConnectionParameters,
    ConnectionStep, EventChannel, PeerParameters, PortSpace, PreparedConnection,
};
use crate::context::Context;
use crate::error::Result;
use crate::queue_pair::QueuePairBuilder;

/// How long a step may take unless the program says otherwise.
pub(super) const PATIENCE: Duration = Duration::from_secs(10);

/// A connection to be: where to, and how. Each step waits for a bounded time.
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
    /// To the program that listens at this address.
    pub fn new(destination: SocketAddr) -> Self {
        Self {
            destination,
            source: None,
            space: PortSpace::Tcp,
            timeout: PATIENCE,
            parameters: ConnectionParameters::default(),
            options: Vec::new(),
        }
    }

    /// From this address. Default: the one that the way there begins at.
    pub fn source(mut self, source: SocketAddr) -> Self {
        self.source = Some(source);
        self
    }

    /// To a program that listens in this port space. Default [`PortSpace::Tcp`].
    pub fn port_space(mut self, space: PortSpace) -> Self {
        self.space = space;
        self
    }

    /// How long each step may take: resolving the address, resolving the route, connecting, and
    /// later disconnecting. Default 10 s.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }

    /// What [`Self::connect`] tells the peer.
    pub fn parameters(mut self, parameters: ConnectionParameters) -> Self {
        self.parameters = parameters;
        self
    }

    /// Sets an option of the identifier.
    pub fn option(mut self, option: ConnectionIdOption) -> Self {
        self.options.push(option);
        self
    }

    /// Finds the way: the device, the link address and the route.
    ///
    /// # Errors
    ///
    /// [`ConnectionError`](super::ConnectionError): no connection manager, no way, or not within
    /// the time; and the verbs'.
    #[doc(alias = "rdma_resolve_addr")]
    #[doc(alias = "rdma_resolve_route")]
    pub fn resolve(&self) -> Result<ResolvedPeer> {
        let channel = EventChannel::new()?;
        let id = ConnectionId::new(&channel, self.space)?;
        for &option in &self.options {
            id.set_option(option)?;
        }
        let waiting = Waiting {
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

    /// Finds the way, makes the queue pair that `builder` gives for the device of the way, and
    /// connects it.
    ///
    /// Where the peer sends first, receives must be posted before: by [`Self::resolve`],
    /// [`ResolvedPeer::prepare`] and [`PreparedConnection::establish`].
    ///
    /// # Errors
    ///
    /// Those of these three, and of `builder`.
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

/// A peer to which the way is known.
#[derive(Debug)]
pub struct ResolvedPeer {
    id: ConnectionId,
    waiting: Waiting,
}

impl ResolvedPeer {
    /// The identifier, which has the device and the addresses of both ends.
    pub fn id(&self) -> &ConnectionId {
        &self.id
    }

    /// The device of the way: see [`ConnectionId::context`].
    ///
    /// # Errors
    ///
    /// As [`ConnectionId::context`].
    pub fn context(&self) -> Result<Context> {
        self.id.context()
    }

    /// Makes the queue pair, in state INIT, so that receives are there before the peer sends.
    ///
    /// # Errors
    ///
    /// As [`ConnectionId::prepare`].
    pub fn prepare(self, builder: QueuePairBuilder) -> Result<PreparedConnection> {
        let prepared = self.id.prepare(builder)?;
        Ok(PreparedConnection::connecting(
            self.id,
            prepared,
            self.waiting,
        ))
    }

    /// Asks for the datagram peer: [`PeerParameters::destination`] is where to send.
    ///
    /// # Errors
    ///
    /// [`ConnectionError`](super::ConnectionError): rejected, or not within the time; and those of
    /// [`ConnectionId::find_datagram_peer`].
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
