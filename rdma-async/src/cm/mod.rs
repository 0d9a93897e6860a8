//! Connections by the connection manager (rdma_cm) of the system, which only devices of the kernel
//! have.
//!
//! The connection manager exchanges the parameters of the queue pairs, and private data: the terms
//! of each end, and one byte that says whether the end authenticates. Authentication then uses
//! messages of the new connection, which grants no memory before.

mod authentication;
mod events;
mod link;
mod private;

use std::fmt;
use std::future::poll_fn;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use parking_lot::Mutex;
use rdma_core::QueuePair;
use rdma_core::cm::{
    ConnectionEventKind, ConnectionId, ConnectionParameters, ConnectionRequest, PortSpace,
};
use tokio::time::timeout;

use self::authentication::Side;
use self::events::Events;
pub(crate) use self::link::ManagerLink;
use self::private::Private;
use crate::authentication::End;
use crate::builder::{RdmaBuilder, Template};
use crate::connection::{Attached, Connection, ControlTask, Link};
use crate::connector::{Connector, Listener};
use crate::device::RdmaDevice;
use crate::error::{Error, Result};
use crate::half_open::HalfOpen;
use crate::handshake::{self, Local, Room, refused};
use crate::rdma::Rdma;

/// Maximum number of connect requests that wait for the listener.
const BACKLOG: u32 = 1024;

impl RdmaBuilder {
    /// Creates a connector to the peer that listens at an IP address by the connection manager of
    /// the system (rdma_cm), see [`CmListener`]. The connection manager chooses the device by the
    /// route to the peer, and the path; [`Self::options`], [`Self::port`] and [`Self::gid_index`]
    /// have no effect.
    pub fn cm_connector(self, address: SocketAddr) -> CmConnector {
        CmConnector {
            devices: Devices::new(self),
            address,
        }
    }

    /// Listens at an IP address of RDMA devices by the connection manager of the system (rdma_cm).
    /// The unspecified address stands for those of all devices, and port 0 for a free port.
    ///
    /// # Errors
    ///
    /// [`Error::Verbs`] if the system has no connection manager, or the address cannot be listened
    /// at.
    #[doc(alias = "rdma_listen")]
    pub fn cm_bind(self, address: SocketAddr) -> Result<CmListener> {
        let events = Events::new()?;
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

/// The devices that the connections of one connector or listener use, each opened once.
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

    /// Returns the settings of connections, with the device of a connection identifier.
    fn place(&self, id: &ConnectionId) -> Result<Template> {
        let name = id.device_name().unwrap_or_default();
        self.builder.template_on(&name, &mut self.open.lock())
    }
}

/// Connector by the connection manager of the system, created by [`RdmaBuilder::cm_connector`].
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
    async fn connect_unbounded(&self, limit: Duration) -> Result<Rdma> {
        let peer = self.address;
        let events = Events::new()?;
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

        let place = self.devices.place(&id)?;
        let own = Private::of(&place);
        let Local { prepared, room } = Local::prepare_by(place, |builder| id.prepare(builder))?;
        let parameters = ConnectionParameters::default().private_data(own.encode());
        id.connect(&prepared, &parameters)?;
        let answered = |kind| match kind {
            ConnectionEventKind::ConnectResponse(peer) => Ok(peer),
            other => Err(other),
        };
        let answer = events.wait_for(peer, answered).await?;
        let theirs =
            Private::decode(&answer.private_data, own).map_err(|reason| refused(peer, reason))?;
        let pair = id.connect_queue_pair(prepared, &answer, &parameters)?;
        // The peer sends nothing before it is confirmed, so no completion comes before this.
        let (connection, attached) = attach(room, pair, theirs, peer);
        id.confirm()?;
        let (own, theirs) = sides(&id, own, theirs);
        let link = Link::Manager(ManagerLink::new(id, events));
        let task = ControlTask::spawn(attached, link);
        let rdma = Rdma::new(connection, task, own.address.unwrap_or(peer), peer);
        authentication::perform(rdma, End::Connecting, own, theirs).await
    }
}

/// Returns the two ends of a connection: this one, and the peer.
fn sides(id: &ConnectionId, own: Private, theirs: Private) -> (Side, Side) {
    let side = |private, address| Side { private, address };
    let own = side(own, id.local_address());
    (own, side(theirs, id.peer_address()))
}

/// Creates the connection of a queue pair, and attaches it to its shard. Grants no memory before
/// the peer has proved itself, if the ends authenticate.
fn attach(
    room: Room,
    pair: QueuePair,
    peer: Private,
    address: SocketAddr,
) -> (Arc<Connection>, Attached) {
    let connection = room.occupy(pair, peer.terms, address.ip());
    if peer.authenticates {
        connection.withhold_memory();
    }
    let attached = Attached::new(&connection);
    (connection, attached)
}

/// Listener by the connection manager of the system, created by [`RdmaBuilder::cm_bind`].
///
/// The handshakes run concurrently, as those of [`RdmaListener`](crate::RdmaListener) do.
#[doc(alias = "rdma_listen")]
pub struct CmListener {
    devices: Devices,
    half_open: HalfOpen,
    /// Request of the peer whose handshake begins as soon as there is room. Dropped before the
    /// channel.
    waiting: Option<ConnectionRequest>,
    /// Dropped before its channel.
    id: ConnectionId,
    events: Events,
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
    /// Returns the address at which peers can connect, or `None` if the system does not know it.
    pub fn local_address(&self) -> Option<SocketAddr> {
        self.id.local_address()
    }

    /// Waits until the next peer has connected, and returns its connection. Can be called again
    /// after an error of one peer. Cancel-safe: dropping the future loses no connection.
    ///
    /// # Errors
    ///
    /// [`Error::Handshake`] if the handshake of a peer failed or exceeded the time limit of
    /// connecting, and [`Error::Verbs`] if the device cannot create a queue pair or the connection
    /// manager fails.
    pub async fn accept(&mut self) -> Result<Rdma> {
        poll_fn(|cx| self.poll_accept(cx)).await
    }

    /// Returns the next connection, like [`Self::accept`], or registers the task to be woken when
    /// there is one.
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
                other => tracing::debug!(event = %other, "ignored by a listener"),
            }
        }
    }

    fn begin_handshake(&mut self, request: ConnectionRequest) {
        let devices = self.devices.clone();
        let limit = devices.builder.connect_limit();
        let peer = request.peer_address();
        let peer = peer.unwrap_or_else(|| SocketAddr::from(([0; 4], 0)));
        self.half_open.begin(|has_proved| async move {
            timeout(limit, accept(&devices, request, peer, &has_proved))
                .await
                .unwrap_or_else(|_| Err(handshake::too_slow(peer, limit)))
        });
    }
}

/// Performs the handshake of the accepting end.
async fn accept(
    devices: &Devices,
    request: ConnectionRequest,
    peer: SocketAddr,
    has_proved: &AtomicBool,
) -> Result<Rdma> {
    let place = devices.place(request.id())?;
    let own = Private::of(&place);
    let theirs = match Private::decode(request.private_data(), own) {
        Ok(theirs) => theirs,
        Err(reason) => {
            if let Err(error) = request.reject(&private::rejection(&reason)) {
                tracing::debug!(%peer, %error, "a peer could not be rejected with a reason");
            }
            return Err(refused(peer, reason));
        }
    };
    // Without authentication, a peer has no more to prove.
    has_proved.store(!own.authenticates, Ordering::Relaxed);
    let events = Events::new()?;
    request.id().migrate(events.channel())?;
    let Local { prepared, room } = Local::prepare_by(place, |builder| request.prepare(builder))?;
    let parameters = ConnectionParameters::default().private_data(own.encode());
    let pair = request.connect_queue_pair(prepared, &parameters)?;
    let (connection, attached) = attach(room, pair.clone(), theirs, peer);
    let id = request.accept_connected(&pair, &parameters)?;
    let established = |kind| match kind {
        ConnectionEventKind::Established(_) => Ok(()),
        other => Err(other),
    };
    events.wait_for(peer, established).await?;
    let (own, theirs) = sides(&id, own, theirs);
    let link = Link::Manager(ManagerLink::new(id, events));
    let task = ControlTask::spawn(attached, link);
    let rdma = Rdma::new(connection, task, own.address.unwrap_or(peer), peer);
    let rdma = authentication::perform(rdma, End::Accepting, own, theirs).await?;
    has_proved.store(true, Ordering::Relaxed);
    Ok(rdma)
}
