//! Connections that are made by the connection manager of the system (rdma_cm). Only devices with a
//! kernel driver support it.
//!
//! The connection manager exchanges the parameters of the queue pairs, and private data: the limits
//! of each end, and whether the end authenticates. Authentication then uses messages of the new
//! connection, which grants no memory until the peer is authenticated.

mod authentication;
mod events;
mod link;
mod private;

use std::fmt;
use std::future::poll_fn;
use std::net::SocketAddr;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use parking_lot::Mutex;
use rdma_core::QueuePair;
use rdma_core::cm::{
    ConnectionEventKind, ConnectionId, ConnectionParameters, ConnectionRequest, PortSpace,
};
use tokio::time::timeout;

use self::authentication::Identity;
use self::events::AsyncEventChannel;
pub(crate) use self::link::CmLink;
use self::private::PrivateData;
use crate::authentication::End;
use crate::builder::{RdmaBuilder, Template};
use crate::connection::{Attached, Connection, ControlTask, Link};
use crate::connector::{Connector, Listener};
use crate::device::RdmaDevice;
use crate::error::{Error, Result};
use crate::half_open::{HalfOpen, HandshakeState};
use crate::handshake::{self, LocalEnd, ReservedRoom, refused};
use crate::rdma::Rdma;

/// Maximum number of connect requests that wait in the kernel until the listener takes them. Enough
/// for many peers that connect at the same time.
const BACKLOG: u32 = 1024;

impl RdmaBuilder {
    /// Creates a connector that uses the connection manager of the system (rdma_cm). `address` is
    /// the IP address and port at which the peer listens, see [`CmListener`]. The connection
    /// manager selects the device and the path from the route to the peer, and the attributes with
    /// which the queue pair is connected. [`Self::options`], [`Self::port`] and [`Self::gid_index`]
    /// thus have no effect.
    pub fn cm_connector(self, address: SocketAddr) -> CmConnector {
        CmConnector {
            devices: Devices::new(self),
            address,
        }
    }

    /// Creates a listener that uses the connection manager of the system (rdma_cm). `address` is an
    /// IP address of an RDMA device, and a port. The unspecified address stands for the addresses
    /// of all devices, and port 0 for a free port.
    ///
    /// # Errors
    ///
    /// [`Error::Verbs`] if the system has no connection manager, or if the address is not usable.
    #[doc(alias = "rdma_listen")]
    pub fn cm_bind(self, address: SocketAddr) -> Result<CmListener> {
        let events = AsyncEventChannel::new()?;
        let id = ConnectionId::new(events.channel(), PortSpace::Tcp)?;
        id.bind(address)?;
        id.listen(BACKLOG)?;
        Ok(CmListener {
            half_open: HalfOpen::new(self.max_half_open()),
            waiting: None,
            devices: Devices::new(self),
            events,
            id,
        })
    }
}

/// Devices that the connections of one connector or listener use. Each device is opened once, when
/// the connection manager selects it for a connection.
#[derive(Debug, Clone)]
struct Devices {
    builder: RdmaBuilder,
    open: Arc<Mutex<Vec<RdmaDevice>>>,
}

impl Devices {
    fn new(builder: RdmaBuilder) -> Self {
        Self {
            builder,
            open: Arc::default(),
        }
    }

    /// Returns the [`Template`] (device and settings) for the connection of `id`. The connection
    /// manager has selected the device.
    fn template(&self, id: &ConnectionId) -> Result<Template> {
        let name = id.device_name().unwrap_or_default();
        self.builder.template_on(&name, &mut self.open.lock())
    }
}

/// Connector that uses the connection manager of the system (rdma_cm), created by
/// [`RdmaBuilder::cm_connector`].
///
/// ```no_run
/// use rdma_async::{Connector, RdmaBuilder};
///
/// # async fn example() -> Result<(), rdma_async::Error> {
/// let mut listener = RdmaBuilder::default().cm_bind("10.0.0.1:7174".parse().unwrap())?;
/// let connector = RdmaBuilder::default().cm_connector("10.0.0.1:7174".parse().unwrap());
/// let (client, server) = tokio::try_join!(connector.connect(), listener.accept())?;
/// # Ok(())
/// # }
/// ```
#[doc(alias = "rdma_connect")]
#[derive(Debug, Clone)]
pub struct CmConnector {
    devices: Devices,
    address: SocketAddr,
}

impl Connector for CmConnector {
    async fn connect(&self) -> Result<Rdma> {
        let limit = self.devices.builder.connect_limit();
        let what = "connecting";
        timeout(limit, self.connect_unbounded(limit))
            .await
            .unwrap_or(Err(Error::Timeout { what, limit }))
    }
}

impl CmConnector {
    /// Connects to the peer without a limit on the total duration: the caller must limit the
    /// duration. `limit` is the time limit of resolving the address, and also of resolving the
    /// route.
    async fn connect_unbounded(&self, limit: Duration) -> Result<Rdma> {
        let peer = self.address;
        let events = AsyncEventChannel::new()?;
        let id = ConnectionId::new(events.channel(), PortSpace::Tcp)?;
        id.resolve_address(None, peer, limit)?;
        let resolved = |kind| match kind {
            ConnectionEventKind::AddressResolved => Ok(()),
            other => Err(other),
        };
        events.wait_for(peer, resolved).await?;
        id.resolve_route(limit)?;
        let resolved = |kind| match kind {
            ConnectionEventKind::RouteResolved => Ok(()),
            other => Err(other),
        };
        events.wait_for(peer, resolved).await?;

        let template = self.devices.template(&id)?;
        let own = PrivateData::of(&template);
        let LocalEnd { prepared, room, .. } =
            LocalEnd::prepare_by(template, |builder| id.prepare(builder))?;
        let parameters = ConnectionParameters::default().private_data(own.encode());
        id.connect(&prepared, &parameters)?;
        let is_response = |kind| match kind {
            ConnectionEventKind::ConnectResponse(peer) => Ok(peer),
            other => Err(other),
        };
        let response = events.wait_for(peer, is_response).await?;
        let theirs = PrivateData::decode(&response.private_data, own)
            .map_err(|reason| refused(peer, reason))?;
        let pair = id.connect_queue_pair(prepared, &response, &parameters)?;
        // The peer sends no message before `confirm`, so the connection is attached before its
        // first completion.
        let (connection, attached) = attach(room, pair, theirs, peer);
        id.confirm()?;
        let (own, theirs) = identities(&id, own, theirs);
        let link = Link::Cm(CmLink::new(id, events));
        let task = ControlTask::spawn(attached, link);
        let rdma = Rdma::new(connection, task, own.address.unwrap_or(peer), peer);
        authentication::run(rdma, End::Connecting, own, theirs).await
    }
}

/// Returns the identities of this end and of the peer: their private data and their addresses.
/// Authentication tokens are computed from the identities. `own` and `theirs` are the private data
/// of the two ends, and `id` contains their addresses.
fn identities(id: &ConnectionId, own: PrivateData, theirs: PrivateData) -> (Identity, Identity) {
    let identity = |private, address| Identity { private, address };
    let own = identity(own, id.local_address());
    (own, identity(theirs, id.peer_address()))
}

/// Creates a connection from a connected queue pair. Attaches the connection to a shard, which
/// polls the completion queue and passes completions to the connection. If the settings require
/// authentication, the connection lends no memory until the peer is authenticated.
fn attach(
    room: ReservedRoom,
    pair: QueuePair,
    peer: PrivateData,
    address: SocketAddr,
) -> (Arc<Connection>, Attached) {
    let connection = room.into_connection(pair, peer.limits, address.ip());
    if peer.authenticates {
        connection.withhold_memory();
    }
    let attached = Attached::new(&connection);
    (connection, attached)
}

/// Listener that uses the connection manager of the system (rdma_cm), created by
/// [`RdmaBuilder::cm_bind`].
///
/// Handshakes run concurrently, like the handshakes of [`RdmaListener`](crate::RdmaListener).
#[doc(alias = "rdma_listen")]
pub struct CmListener {
    devices: Devices,
    half_open: HalfOpen,
    /// Connect request whose handshake begins when another handshake has ended. Declared before
    /// `events`, because the request must be dropped before its event channel.
    waiting: Option<ConnectionRequest>,
    /// Identifier that listens. Declared before `events`, because the identifier must be dropped
    /// before its event channel.
    id: ConnectionId,
    events: AsyncEventChannel,
}

impl fmt::Debug for CmListener {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CmListener")
            .field("address", &self.local_address())
            .field("half_open", &self.half_open)
            .finish_non_exhaustive()
    }
}

impl Listener for CmListener {
    async fn accept(&mut self) -> Result<Rdma> {
        CmListener::accept(self).await
    }
}

impl CmListener {
    /// Returns the address at which peers can connect, or `None` if the connection manager does not
    /// report it.
    pub fn local_address(&self) -> Option<SocketAddr> {
        self.id.local_address()
    }

    /// Waits until the next peer has connected, and returns the connection. After an error of one
    /// peer, the listener can still accept other peers. Cancel-safe: dropping the future loses no
    /// connection.
    ///
    /// # Errors
    ///
    /// [`Error::Handshake`] if the handshake with a peer failed or exceeded
    /// [`RdmaBuilder::connect_timeout`]. [`Error::Verbs`] if the device cannot create a queue pair,
    /// or if the connection manager fails. [`Error::Disconnected`] if the device of the listener
    /// was removed. [`Error::InvalidArgument`] if the builder was set to another device than the
    /// route to the peer uses.
    pub async fn accept(&mut self) -> Result<Rdma> {
        poll_fn(|cx| self.poll_accept(cx)).await
    }

    /// Polls for the next connection, like [`Self::accept`]. Registers the task to be woken if no
    /// peer has connected.
    ///
    /// # Errors
    ///
    /// The errors of [`Self::accept`].
    pub fn poll_accept(&mut self, cx: &mut Context<'_>) -> Poll<Result<Rdma>> {
        loop {
            if let Poll::Ready(Some(outcome)) = self.half_open.poll_next(cx) {
                return Poll::Ready(outcome);
            }
            if self.waiting.is_some() {
                ready!(self.half_open.poll_capacity(cx));
            }
            if let Some(request) = self.waiting.take() {
                self.begin_handshake(request);
                continue;
            }
            match ready!(self.events.poll_next(cx))?.kind {
                ConnectionEventKind::ConnectRequest(request) => self.waiting = Some(request),
                ConnectionEventKind::DeviceRemoval => {
                    let reason = "the RDMA device of a listener was removed";
                    return Poll::Ready(Err(Error::disconnected(reason)));
                }
                other => tracing::debug!(event = %other, "connection event ignored by a listener"),
            }
        }
    }

    /// Starts the task that performs the handshake of a connect request.
    fn begin_handshake(&mut self, request: ConnectionRequest) {
        let devices = self.devices.clone();
        let limit = devices.builder.connect_limit();
        let handshakes = devices.builder.max_half_open();
        let peer = request.peer_address();
        let peer = peer.unwrap_or_else(|| SocketAddr::from(([0; 4], 0)));
        self.half_open.begin(|state| async move {
            // A peer that is ended here has already been accepted, so that it gets no reason.
            tokio::select! {
                outcome = timeout(limit, accept(&devices, request, peer, &state)) => {
                    outcome.unwrap_or_else(|_| Err(handshake::too_slow(peer, limit)))
                }
                () = state.evicted() => Err(handshake::evicted(peer, handshakes)),
            }
        });
    }
}

/// Performs the handshake of the accepting end for a connect request, and returns the new
/// connection. Calls [`HandshakeState::set_proved`] once the peer has sent valid private data and,
/// if required, a valid token.
async fn accept(
    devices: &Devices,
    request: ConnectionRequest,
    peer: SocketAddr,
    state: &HandshakeState,
) -> Result<Rdma> {
    let template = devices.template(request.id())?;
    let own = PrivateData::of(&template);
    let theirs = match PrivateData::decode(request.private_data(), own) {
        Ok(theirs) => theirs,
        Err(reason) => {
            if let Err(error) = request.reject(&private::rejection(&reason)) {
                tracing::debug!(%peer, %error, "a peer could not be rejected with a reason");
            }
            return Err(refused(peer, reason));
        }
    };
    // Without authentication, the peer sends no proof.
    if !own.authenticates {
        state.set_proved();
    }
    let events = AsyncEventChannel::new()?;
    request.id().migrate(events.channel())?;
    let LocalEnd { prepared, room, .. } =
        LocalEnd::prepare_by(template, |builder| request.prepare(builder))?;
    let parameters = ConnectionParameters::default().private_data(own.encode());
    let pair = request.connect_queue_pair(prepared, &parameters)?;
    let (connection, attached) = attach(room, pair.clone(), theirs, peer);
    let id = request.accept_connected(&pair, &parameters)?;
    let established = |kind| match kind {
        ConnectionEventKind::Established(_) => Ok(()),
        other => Err(other),
    };
    events.wait_for(peer, established).await?;
    let (own, theirs) = identities(&id, own, theirs);
    let link = Link::Cm(CmLink::new(id, events));
    let task = ControlTask::spawn(attached, link);
    let rdma = Rdma::new(connection, task, own.address.unwrap_or(peer), peer);
    let rdma = authentication::run(rdma, End::Accepting, own, theirs).await?;
    state.set_proved();
    Ok(rdma)
}
