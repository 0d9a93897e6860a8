//! Connection identifiers.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use super::port_space::Message;
use super::queue_pair::{self, establish};
use super::{ConnectionParameters, EventChannel, PeerParameters, PortSpace, shared_context};
use crate::context::Context;
use crate::error::{Error, Result};
use crate::ffi::cm::IdHandle;
use crate::queue_pair::{EnhancedEstablishment, PreparedQueuePair, QueuePair, QueuePairBuilder};

/// A connection identifier: the local side of a connection, or a listening address. Clones refer to
/// the same identifier. Dropping the last clone destroys the identifier.
///
/// The methods do not wait. A method starts an operation. An [event](super::ConnectionEvent) on the
/// identifier's channel later reports the result of the operation.
#[doc(alias = "rdma_cm_id")]
#[derive(Debug, Clone)]
pub struct ConnectionId {
    handle: Arc<IdHandle>,
}

impl ConnectionId {
    /// Creates a connection identifier for the kind of service `space`. The events of the
    /// identifier arrive on `channel`.
    ///
    /// # Errors
    ///
    /// The error of `rdma_create_id`.
    #[doc(alias = "rdma_create_id")]
    pub fn new(channel: &EventChannel, space: PortSpace) -> Result<Self> {
        IdHandle::create(channel.handle(), space.to_raw()).map(Self::from_handle)
    }

    pub(crate) fn from_handle(handle: Arc<IdHandle>) -> Self {
        Self { handle }
    }

    pub(super) fn handle(&self) -> &IdHandle {
        &self.handle
    }

    /// Returns the channel on which the events of this identifier arrive.
    pub fn channel(&self) -> EventChannel {
        EventChannel::from_handle(self.handle.channel())
    }

    /// Returns the port space of the identifier: the kind of service, such as reliable connections
    /// or datagrams.
    pub fn port_space(&self) -> PortSpace {
        PortSpace::from_raw(self.handle.port_space())
    }

    /// Returns the local address of this connection identifier, or `None` if the identifier is not
    /// bound.
    #[doc(alias = "rdma_get_local_addr")]
    #[doc(alias = "rdma_get_src_port")]
    pub fn local_address(&self) -> Option<SocketAddr> {
        self.handle.local_address()
    }

    /// Returns the peer's address, or `None` if the address is not known.
    #[doc(alias = "rdma_get_peer_addr")]
    #[doc(alias = "rdma_get_dst_port")]
    pub fn peer_address(&self) -> Option<SocketAddr> {
        self.handle.peer_address()
    }

    /// Returns the name of the device that this connection identifier uses, or `None` if the device
    /// is not known yet.
    pub fn device_name(&self) -> Option<String> {
        self.handle.device_name()
    }

    /// Returns the number of the device port that this connection identifier uses, or `None` if the
    /// device is not known yet.
    pub fn port(&self) -> Option<u8> {
        self.handle.port()
    }

    /// Returns the context (open device) of the device that this connection identifier uses. All
    /// identifiers of one device share the context. Later calls return the same context as long as
    /// the program holds a handle of the context, or an object that was created from the context.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidArgument`] while the identifier has no device, and the error of opening the
    /// device.
    pub fn context(&self) -> Result<Context> {
        match self.device_name() {
            Some(name) => shared_context::of_device(&name),
            None => Err(Error::invalid(
                "connection identifier",
                "it has no device yet: resolve an address, or bind it to one",
            )),
        }
    }

    /// Binds the identifier to a local address. The unspecified address (`0.0.0.0` or `::`) binds
    /// to the addresses of all devices. Port 0 selects a free port.
    ///
    /// # Errors
    ///
    /// The error of `rdma_bind_addr`, for example if no device has the address, or if the port is
    /// in use.
    #[doc(alias = "rdma_bind_addr")]
    pub fn bind(&self, address: SocketAddr) -> Result<()> {
        self.handle.bind(address)
    }

    /// Starts to find the local device and the link address by which this machine reaches
    /// `destination`. `source` is the local address to use. If `source` is `None`, the system
    /// chooses an address. The event
    /// [`AddressResolved`](super::ConnectionEventKind::AddressResolved) reports success. The event
    /// [`AddressError`](super::ConnectionEventKind::AddressError) reports failure, at the latest
    /// after `timeout`.
    ///
    /// # Errors
    ///
    /// The error of `rdma_resolve_addr`, for example if no device has a route to the destination.
    #[doc(alias = "rdma_resolve_addr")]
    pub fn resolve_address(
        &self,
        source: Option<SocketAddr>,
        destination: SocketAddr,
        timeout: Duration,
    ) -> Result<()> {
        let timeout = milliseconds(timeout);
        self.handle.resolve_address(source, destination, timeout)
    }

    /// Starts to find the route to the destination that [`Self::resolve_address`] has resolved. The
    /// event [`RouteResolved`](super::ConnectionEventKind::RouteResolved) reports success. The
    /// event [`RouteError`](super::ConnectionEventKind::RouteError) reports failure, at the latest
    /// after `timeout`.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidArgument`] if the identifier has no device, and the error of
    /// `rdma_resolve_route`.
    #[doc(alias = "rdma_resolve_route")]
    pub fn resolve_route(&self, timeout: Duration) -> Result<()> {
        self.handle.resolve_route(milliseconds(timeout))
    }

    /// Starts to listen for connect requests. An event
    /// [`ConnectRequest`](super::ConnectionEventKind::ConnectRequest) reports each request of a
    /// peer. `backlog` is the maximum number of pending requests.
    ///
    /// # Errors
    ///
    /// The error of `rdma_listen`, for example if the port is in use.
    #[doc(alias = "rdma_listen")]
    pub fn listen(&self, backlog: u32) -> Result<()> {
        self.handle
            .listen(i32::try_from(backlog).unwrap_or(i32::MAX))
    }

    /// Creates a queue pair with the settings of `builder` in the state INIT, in which receives can
    /// be posted. The queue pair must belong to the device of this connection identifier.
    ///
    /// For a connection, [`Self::connect`] and [`Self::establish`] then connect the queue pair. For
    /// datagrams, [`Self::activate`] makes the queue pair ready.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidArgument`] if the identifier has no device, or if the device or the
    /// [`Transport`](crate::Transport) of the queue pair does not match the identifier. Also
    /// returns the errors of the verbs that this method calls.
    #[doc(alias = "rdma_create_qp")]
    #[doc(alias = "rdma_init_qp_attr")]
    pub fn prepare(&self, builder: QueuePairBuilder) -> Result<PreparedQueuePair> {
        queue_pair::prepare(self, builder)
    }

    /// Sends a connect request to the peer. If the peer accepts, the event
    /// [`ConnectResponse`](super::ConnectionEventKind::ConnectResponse) arrives, and
    /// [`Self::establish`] connects the queue pair. On failure the event is
    /// [`Rejected`](super::ConnectionEventKind::Rejected),
    /// [`Unreachable`](super::ConnectionEventKind::Unreachable) or
    /// [`ConnectError`](super::ConnectionEventKind::ConnectError).
    ///
    /// If the peer does not respond, the connection manager repeats the request for more than a
    /// minute. Dropping the identifier cancels the request.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidArgument`] for parameters out of range, for private data that does not fit,
    /// if the identifier has no device, or if the transport of the queue pair does not match the
    /// identifier. Also returns the error of `rdma_connect`.
    #[doc(alias = "rdma_connect")]
    pub fn connect(
        &self,
        prepared: &PreparedQueuePair,
        parameters: &ConnectionParameters,
    ) -> Result<()> {
        queue_pair::check_kind(self, prepared.kind())?;
        self.checked(parameters, Message::Connect)?;
        let raw = parameters.to_raw(
            &prepared.endpoint(),
            prepared.handle().shared_receive_queue().is_some(),
        );
        self.handle.connect(&raw, parameters.data())
    }

    /// Connects the queue pair to the peer that accepted the connect request, and confirms the
    /// connection to the peer. `peer` contains the parameters from the event
    /// [`ConnectResponse`](super::ConnectionEventKind::ConnectResponse).
    ///
    /// # Errors
    ///
    /// The errors of the verbs that this method calls, for example if the peer has given up. On
    /// error the queue pair is destroyed.
    #[doc(alias = "rdma_establish")]
    #[doc(alias = "rdma_init_qp_attr")]
    pub fn establish(
        &self,
        prepared: PreparedQueuePair,
        peer: &PeerParameters,
        parameters: &ConnectionParameters,
    ) -> Result<QueuePair> {
        let pair = self.connect_queue_pair(prepared, peer, parameters)?;
        self.confirm()?;
        Ok(pair)
    }

    /// Connects the queue pair to the peer that accepted the connect request, but does not confirm
    /// the connection to the peer. The peer sends nothing before [`Self::confirm`].
    /// [`Self::establish`] combines this method and [`Self::confirm`].
    ///
    /// # Errors
    ///
    /// The errors of [`Self::establish`].
    #[doc(alias = "rdma_init_qp_attr")]
    pub fn connect_queue_pair(
        &self,
        prepared: PreparedQueuePair,
        peer: &PeerParameters,
        parameters: &ConnectionParameters,
    ) -> Result<QueuePair> {
        establish(self, prepared, peer, parameters)
    }

    /// Sends the confirmation of the connection to the peer. The program must first call
    /// [`Self::connect_queue_pair`].
    ///
    /// # Errors
    ///
    /// The error of `rdma_establish`, for example if the peer has given up.
    #[doc(alias = "rdma_establish")]
    pub fn confirm(&self) -> Result<()> {
        self.handle.establish()
    }

    /// Starts a query for the datagram queue pair of the peer at the resolved address. The event
    /// [`Established`](super::ConnectionEventKind::Established) reports success.
    /// [`PeerParameters::destination`] of the event is the destination for datagrams. The event
    /// [`Unreachable`](super::ConnectionEventKind::Unreachable) reports that the peer does not
    /// respond.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidArgument`] for private data that does not fit, or if the identifier is not
    /// for datagrams or has no device. Also returns the error of `rdma_connect`.
    #[doc(alias = "rdma_connect")]
    pub fn find_datagram_peer(&self, parameters: &ConnectionParameters) -> Result<()> {
        self.checked_datagram()?;
        self.checked(parameters, Message::Connect)?;
        let raw = parameters.to_raw(&queue_pair::placeholder_endpoint(0), false);
        self.handle.connect(&raw, parameters.data())
    }

    /// Makes a datagram queue pair ready to send and receive, and returns the queue pair. The queue
    /// pair gets the queue key of the identifier's port space.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidArgument`] if the queue pair or the identifier is not for datagrams, and the
    /// errors of the verbs that this method calls.
    pub fn activate(&self, prepared: PreparedQueuePair) -> Result<QueuePair> {
        self.checked_datagram()?;
        queue_pair::activate(self, prepared)
    }

    pub(super) fn checked_datagram(&self) -> Result<()> {
        if self.handle.is_datagram() {
            return Ok(());
        }
        let reason = "it is for connections, not for datagrams";
        Err(Error::invalid("connection identifier", reason))
    }

    pub(super) fn checked(
        &self,
        parameters: &ConnectionParameters,
        message: Message,
    ) -> Result<()> {
        parameters.checked()?;
        self.port_space().checked(message, parameters.data())
    }

    /// Disconnects from the peer. Both sides get the event
    /// [`Disconnected`](super::ConnectionEventKind::Disconnected). If the peer disconnects first,
    /// the program must call this method after the event, to confirm the disconnection.
    ///
    /// The queue pair stays usable until it is [moved to the error state](QueuePair::fail) or
    /// dropped.
    ///
    /// # Errors
    ///
    /// The error of `rdma_disconnect`, for example if there is no connection.
    #[doc(alias = "rdma_disconnect")]
    pub fn disconnect(&self) -> Result<()> {
        self.handle.disconnect()
    }

    /// Notifies the connection manager that the peer's first message has arrived. The connection
    /// manager then treats the connection as established, even if the peer's confirmation was lost.
    ///
    /// # Errors
    ///
    /// The error of `rdma_notify`, for example if the connection is already established.
    #[doc(alias = "rdma_notify")]
    #[doc(alias = "IBV_EVENT_COMM_EST")]
    pub fn notify_established(&self) -> Result<()> {
        self.handle.notify_established()
    }

    /// Sets the enhanced connection establishment (ECE) options for the peer. The next connect
    /// request or acceptance contains the options. By ECE options, two devices of one vendor agree
    /// on additional features. Pass the result of [`query_ece`](PreparedQueuePair::query_ece) of
    /// the queue pair.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidArgument`] if the vendor in `ours` is 0, and the error of
    /// `rdma_set_local_ece`.
    #[doc(alias = "rdma_set_local_ece")]
    pub fn set_local_ece(&self, ours: EnhancedEstablishment) -> Result<()> {
        if ours.vendor == 0 {
            let reason = "they are of no vendor: there is nothing to offer";
            return Err(Error::invalid("vendor's options", reason));
        }
        self.handle.set_local_ece(ours.into())
    }

    /// Returns the enhanced connection establishment (ECE) options that the peer sent with its
    /// connect request or acceptance. The vendor is 0 if the peer sent no options. The program
    /// passes the options to [`set_ece`](PreparedQueuePair::set_ece).
    ///
    /// # Errors
    ///
    /// The error of `rdma_get_remote_ece`.
    #[doc(alias = "rdma_get_remote_ece")]
    pub fn remote_ece(&self) -> Result<EnhancedEstablishment> {
        self.handle.remote_ece().map(EnhancedEstablishment::from)
    }

    /// Moves this connection identifier and its pending events to the event channel `channel`.
    /// Later events of the identifier also arrive on `channel`.
    ///
    /// # Errors
    ///
    /// The error of `rdma_migrate_id`.
    #[doc(alias = "rdma_migrate_id")]
    pub fn migrate(&self, channel: &EventChannel) -> Result<()> {
        self.handle.migrate(channel.handle())
    }

    /// Starts to join the multicast group with the address `group`. If `send_only` is `true`, the
    /// membership does not include receiving. The event
    /// [`MulticastJoined`](super::ConnectionEventKind::MulticastJoined) reports success. The event
    /// [`MulticastError`](super::ConnectionEventKind::MulticastError) reports failure. Both events
    /// contain `token`, a number that the program chooses.
    ///
    /// To receive, the program must also attach a queue pair to the GID and LID of the group, by
    /// [`QueuePair::attach_to_group`]. Before the call, bind the identifier or resolve the group's
    /// address, so that the identifier has a device. Dropping the identifier leaves the group.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidArgument`] if the identifier has no device, and the error of
    /// `rdma_join_multicast_ex`.
    #[doc(alias = "rdma_join_multicast")]
    #[doc(alias = "rdma_join_multicast_ex")]
    pub fn join_multicast(&self, group: SocketAddr, send_only: bool, token: usize) -> Result<()> {
        self.handle.join(group, send_only, token)
    }

    /// Leaves a multicast group that this identifier has joined by [`Self::join_multicast`].
    ///
    /// # Errors
    ///
    /// [`Error::InvalidArgument`] if the identifier has not joined the group, and the error of
    /// `rdma_leave_multicast`.
    #[doc(alias = "rdma_leave_multicast")]
    pub fn leave_multicast(&self, group: SocketAddr) -> Result<()> {
        self.handle.leave(group)
    }

    /// Returns whether `self` and `other` are handles to the same connection identifier, for
    /// example to find the connection to which an event belongs.
    pub fn is(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.handle, &other.handle)
    }

    /// Returns the peer's address as text for error messages, or a replacement text if the address
    /// is not known.
    pub(super) fn peer_name(&self) -> String {
        match self.peer_address() {
            Some(peer) => peer.to_string(),
            None => "the peer".to_owned(),
        }
    }

    /// Returns the underlying `rdma_cm_id`. The pointer is valid as long as this identifier exists.
    /// The caller must not use the pointer while another thread uses the identifier or reads events
    /// from its channel.
    pub fn as_raw(&self) -> *mut ibverbs_sys::rdma_cm_id {
        self.handle.as_raw()
    }
}

fn milliseconds(timeout: Duration) -> i32 {
    i32::try_from(timeout.as_micros().div_ceil(1000)).unwrap_or(i32::MAX)
}
