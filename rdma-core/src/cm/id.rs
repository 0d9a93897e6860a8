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

/// One end of a connection, or of one to be; or a place to listen. Clones are the same identifier,
/// which is destroyed with the last of them.
///
/// Nothing here waits: what a call begins, an [event](super::ConnectionEvent) on the identifier's
/// channel ends.
#[doc(alias = "rdma_cm_id")]
#[derive(Debug, Clone)]
pub struct ConnectionId {
    handle: Arc<IdHandle>,
}

impl ConnectionId {
    /// Makes an identifier whose events arrive on `channel`.
    ///
    /// # Errors
    ///
    /// The verb's.
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

    /// Where its events arrive.
    pub fn channel(&self) -> EventChannel {
        EventChannel::from_handle(self.handle.channel())
    }

    /// Which service it is for.
    pub fn port_space(&self) -> PortSpace {
        PortSpace::from_raw(self.handle.port_space())
    }

    /// Its own address, once it has one.
    #[doc(alias = "rdma_get_local_addr")]
    #[doc(alias = "rdma_get_src_port")]
    pub fn local_address(&self) -> Option<SocketAddr> {
        self.handle.local_address()
    }

    /// The peer's address, once it has one.
    #[doc(alias = "rdma_get_peer_addr")]
    #[doc(alias = "rdma_get_dst_port")]
    pub fn peer_address(&self) -> Option<SocketAddr> {
        self.handle.peer_address()
    }

    /// The name of the device that it goes through, once that is known.
    pub fn device_name(&self) -> Option<String> {
        self.handle.device_name()
    }

    /// The port of the device that it goes through, once that is known.
    pub fn port(&self) -> Option<u8> {
        self.handle.port()
    }

    /// The device that it goes through, open: the same context for all identifiers of a device, for
    /// as long as somebody keeps it.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidArgument`] while it has no device, and what opening it gives.
    pub fn context(&self) -> Result<Context> {
        match self.device_name() {
            Some(name) => shared_context::of_device(&name),
            None => Err(Error::invalid(
                "connection identifier",
                "it has no device yet: resolve an address, or bind it to one",
            )),
        }
    }

    /// Binds it to an address of this machine. The unspecified address is every device's, and port
    /// 0 a free one.
    ///
    /// # Errors
    ///
    /// The verb's, for example if no device has the address, or the port is in use.
    #[doc(alias = "rdma_bind_addr")]
    pub fn bind(&self, address: SocketAddr) -> Result<()> {
        self.handle.bind(address)
    }

    /// Begins to find the device and the link address of the way to `destination`, from `source` if
    /// that is given. The end is
    /// [`AddressResolved`](super::ConnectionEventKind::AddressResolved) or
    /// [`AddressError`](super::ConnectionEventKind::AddressError), after `timeout` at the latest.
    ///
    /// # Errors
    ///
    /// The verb's, for example if no device has a way there.
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

    /// Begins to find the route to the resolved address. The end is
    /// [`RouteResolved`](super::ConnectionEventKind::RouteResolved) or
    /// [`RouteError`](super::ConnectionEventKind::RouteError), after `timeout` at the latest.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidArgument`] without a device, and the verb's.
    #[doc(alias = "rdma_resolve_route")]
    pub fn resolve_route(&self, timeout: Duration) -> Result<()> {
        self.handle.resolve_route(milliseconds(timeout))
    }

    /// Listens: each peer that wants to connect is a
    /// [`ConnectRequest`](super::ConnectionEventKind::ConnectRequest). Up to `backlog` of them wait
    /// to be taken.
    ///
    /// # Errors
    ///
    /// The verb's, for example if the port is in use.
    #[doc(alias = "rdma_listen")]
    pub fn listen(&self, backlog: u32) -> Result<()> {
        self.handle
            .listen(i32::try_from(backlog).unwrap_or(i32::MAX))
    }

    /// Makes the queue pair of this connection, in state INIT: it can be posted receives. Of a
    /// datagram identifier, it is [activated](Self::activate) next.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidArgument`] without a device, for a queue pair of another device, and for one
    /// of another [`Transport`](crate::Transport) than the identifier's; and the verbs'.
    #[doc(alias = "rdma_create_qp")]
    #[doc(alias = "rdma_init_qp_attr")]
    pub fn prepare(&self, builder: QueuePairBuilder) -> Result<PreparedQueuePair> {
        queue_pair::prepare(self, builder)
    }

    /// Asks the peer to connect. The end is
    /// [`ConnectResponse`](super::ConnectionEventKind::ConnectResponse), after which
    /// [`Self::establish`] connects the queue pair, or
    /// [`Rejected`](super::ConnectionEventKind::Rejected),
    /// [`Unreachable`](super::ConnectionEventKind::Unreachable) or
    /// [`ConnectError`](super::ConnectionEventKind::ConnectError).
    ///
    /// A peer that never answers is asked again for more than a minute; dropping the identifier
    /// ends that.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidArgument`] for parameters out of range, private data that does not fit, an
    /// identifier without a device and a queue pair of another kind; and the verb's.
    #[doc(alias = "rdma_connect")]
    pub fn connect(
        &self,
        prepared: &PreparedQueuePair,
        parameters: &ConnectionParameters,
    ) -> Result<()> {
        queue_pair::checked_kind(self, prepared.kind())?;
        self.checked(parameters, Message::Connect)?;
        let raw = parameters.to_raw(
            &prepared.endpoint(),
            prepared.handle().shared_receive_queue().is_some(),
        );
        self.handle.connect(&raw, parameters.data())
    }

    /// Connects the queue pair to the peer that answered with `peer`, and tells it.
    ///
    /// # Errors
    ///
    /// The verbs', for example if the peer has given up meanwhile. The queue pair is gone then.
    #[doc(alias = "rdma_establish")]
    #[doc(alias = "rdma_init_qp_attr")]
    pub fn establish(
        &self,
        prepared: PreparedQueuePair,
        peer: &PeerParameters,
        parameters: &ConnectionParameters,
    ) -> Result<QueuePair> {
        let pair = establish(self, prepared, peer, parameters)?;
        self.handle.establish()?;
        Ok(pair)
    }

    /// Asks for the datagram peer at the resolved address. The end is
    /// [`Established`](super::ConnectionEventKind::Established), whose
    /// [`PeerParameters::destination`] is where to send, or
    /// [`Unreachable`](super::ConnectionEventKind::Unreachable).
    ///
    /// # Errors
    ///
    /// [`Error::InvalidArgument`] for private data that does not fit and an identifier that is not
    /// for datagrams or has no device; and the verb's.
    #[doc(alias = "rdma_connect")]
    pub fn find_datagram_peer(&self, parameters: &ConnectionParameters) -> Result<()> {
        self.checked_datagram()?;
        self.checked(parameters, Message::Connect)?;
        let raw = parameters.to_raw(&queue_pair::no_endpoint(0), false);
        self.handle.connect(&raw, parameters.data())
    }

    /// Makes a datagram queue pair of this identifier send and receive, with the queue key of its
    /// port space.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidArgument`] for a queue pair or an identifier that is not for datagrams, and
    /// the verbs'.
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

    /// Says farewell. The end is [`Disconnected`](super::ConnectionEventKind::Disconnected), at
    /// both ends. An end that got that event calls this too, to confirm it.
    ///
    /// The queue pair goes on until it is [failed](QueuePair::fail) or dropped.
    ///
    /// # Errors
    ///
    /// The verb's, for example without a connection.
    #[doc(alias = "rdma_disconnect")]
    pub fn disconnect(&self) -> Result<()> {
        self.handle.disconnect()
    }

    /// Tells the connection manager that the peer's first message has arrived: the connection
    /// stands, even if the peer's confirmation was lost.
    ///
    /// # Errors
    ///
    /// The verb's, for example if the connection stands already.
    #[doc(alias = "rdma_notify")]
    #[doc(alias = "IBV_EVENT_COMM_EST")]
    pub fn notify_established(&self) -> Result<()> {
        self.handle.notify_established()
    }

    /// The vendor's options to offer to the peer with the next request or acceptance:
    /// [`enhancements`](PreparedQueuePair::enhancements) of the queue pair.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidArgument`] for options of no vendor, and the verb's.
    #[doc(alias = "rdma_set_local_ece")]
    pub fn offer_enhancements(&self, ours: EnhancedEstablishment) -> Result<()> {
        if ours.vendor == 0 {
            let reason = "they are of no vendor: there is nothing to offer";
            return Err(Error::invalid("vendor's options", reason));
        }
        self.handle.set_local_ece(ours.into())
    }

    /// The vendor's options that the peer offered with its request or acceptance, to
    /// [agree](PreparedQueuePair::agree) on; of vendor 0 if it offered none.
    ///
    /// # Errors
    ///
    /// The verb's.
    #[doc(alias = "rdma_get_remote_ece")]
    pub fn offered_enhancements(&self) -> Result<EnhancedEstablishment> {
        self.handle.remote_ece().map(EnhancedEstablishment::from)
    }

    /// Moves it, with the events that nobody took yet, to another channel.
    ///
    /// # Errors
    ///
    /// The verb's.
    #[doc(alias = "rdma_migrate_id")]
    pub fn migrate(&self, channel: &EventChannel) -> Result<()> {
        self.handle.migrate(channel.handle())
    }

    /// Begins to join a multicast group, to send and receive, or only to send. The end is
    /// [`MulticastJoined`](super::ConnectionEventKind::MulticastJoined) or
    /// [`MulticastError`](super::ConnectionEventKind::MulticastError), with `token`.
    ///
    /// To receive, a queue pair is attached to the group's GID and LID besides. The identifier must
    /// have a device: bind it, or resolve the group's address. Dropping it leaves the group.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidArgument`] without a device, and the verb's.
    #[doc(alias = "rdma_join_multicast")]
    #[doc(alias = "rdma_join_multicast_ex")]
    pub fn join_multicast(&self, group: SocketAddr, send_only: bool, token: usize) -> Result<()> {
        self.handle.join(group, send_only, token)
    }

    /// Leaves a multicast group.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidArgument`] for a group that it did not join, and the verb's.
    #[doc(alias = "rdma_leave_multicast")]
    pub fn leave_multicast(&self, group: SocketAddr) -> Result<()> {
        self.handle.leave(group)
    }

    /// Whether this and `other` are the same identifier.
    pub fn is(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.handle, &other.handle)
    }

    /// How errors name the other end.
    pub(super) fn peer_name(&self) -> String {
        match self.peer_address() {
            Some(peer) => peer.to_string(),
            None => "the peer".to_owned(),
        }
    }

    /// The C object, valid for as long as this identifier. It must not be used while another thread
    /// uses the identifier or takes events from its channel.
    pub fn as_raw(&self) -> *mut ibverbs_sys::rdma_cm_id {
        self.handle.as_raw()
    }
}

fn milliseconds(timeout: Duration) -> i32 {
    i32::try_from(timeout.as_micros().div_ceil(1000)).unwrap_or(i32::MAX)
}
