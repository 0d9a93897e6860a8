//! Events of connection identifiers.

use std::fmt;

use ibverbs_sys::rdma_cm_event_type as raw_kind;

use super::request::ConnectionRequest;
use super::{ConnectionId, EventStatus, RejectReason};
use crate::address::AddressVector;
use crate::ffi::cm::{RawEvent, RawParameters};

/// An event that librdmacm reported for a connection identifier.
///
/// The event has already been acknowledged and holds no resources of librdmacm.
#[doc(alias = "rdma_cm_event")]
#[derive(Debug)]
pub struct ConnectionEvent {
    /// The connection identifier to which the event belongs. For a [connect
    /// request](ConnectionEventKind::ConnectRequest), it is the listening identifier.
    pub id: ConnectionId,
    /// The type of the event, with its data.
    pub kind: ConnectionEventKind,
}

/// The type of an event of a connection identifier, with its data (`rdma_cm_event_type`).
#[doc(alias = "rdma_cm_event_type")]
#[derive(Debug)]
#[non_exhaustive]
pub enum ConnectionEventKind {
    /// The address was resolved, and the connection identifier now has a device.
    #[doc(alias = "RDMA_CM_EVENT_ADDR_RESOLVED")]
    AddressResolved,
    /// The address could not be resolved.
    #[doc(alias = "RDMA_CM_EVENT_ADDR_ERROR")]
    AddressError(EventStatus),
    /// The route was resolved, and the connection identifier can connect.
    #[doc(alias = "RDMA_CM_EVENT_ROUTE_RESOLVED")]
    RouteResolved,
    /// The route could not be resolved.
    #[doc(alias = "RDMA_CM_EVENT_ROUTE_ERROR")]
    RouteError(EventStatus),
    /// A peer requests a connection to this listening identifier.
    #[doc(alias = "RDMA_CM_EVENT_CONNECT_REQUEST")]
    ConnectRequest(ConnectionRequest),
    /// The peer accepted the connect request. The program must now
    /// [establish](ConnectionId::establish) the connection.
    #[doc(alias = "RDMA_CM_EVENT_CONNECT_RESPONSE")]
    ConnectResponse(PeerParameters),
    /// The connection could not be established.
    #[doc(alias = "RDMA_CM_EVENT_CONNECT_ERROR")]
    ConnectError(EventStatus),
    /// The peer does not respond.
    #[doc(alias = "RDMA_CM_EVENT_UNREACHABLE")]
    Unreachable(EventStatus),
    /// The peer rejected the connection.
    #[doc(alias = "RDMA_CM_EVENT_REJECTED")]
    Rejected {
        /// The reason that the peer or its connection manager gave for the rejection.
        reason: RejectReason,
        /// The private data that the peer's program sent with the rejection, padded with zeros.
        private_data: Vec<u8>,
    },
    /// The connection is established. For a datagram identifier, this event instead reports the
    /// peer's queue pair.
    #[doc(alias = "RDMA_CM_EVENT_ESTABLISHED")]
    Established(PeerParameters),
    /// The peer has disconnected or exited, or has confirmed that this side disconnected.
    #[doc(alias = "RDMA_CM_EVENT_DISCONNECTED")]
    Disconnected,
    /// The device is being removed: the program must drop the connection identifier and every
    /// object of the device.
    #[doc(alias = "RDMA_CM_EVENT_DEVICE_REMOVAL")]
    DeviceRemoval,
    /// The multicast group was joined.
    #[doc(alias = "RDMA_CM_EVENT_MULTICAST_JOIN")]
    MulticastJoined(MulticastMember),
    /// The multicast group could not be joined, or the membership was lost.
    #[doc(alias = "RDMA_CM_EVENT_MULTICAST_ERROR")]
    MulticastError {
        /// The token that the program passed to [`ConnectionId::join_multicast`].
        token: usize,
        /// The status that describes the failure.
        status: EventStatus,
    },
    /// The local address of the connection identifier moved to another device.
    #[doc(alias = "RDMA_CM_EVENT_ADDR_CHANGE")]
    AddressChange,
    /// The time-wait period has ended: the network contains no more packets of the connection, and
    /// the queue pair can be reused.
    #[doc(alias = "RDMA_CM_EVENT_TIMEWAIT_EXIT")]
    TimewaitExit,
    /// An event of a type that this crate does not know, as the number from librdmacm.
    Unknown(u32),
}

/// The parameters that the peer sent in its connect request or acceptance: private data, queue pair
/// number, and limits of RDMA reads.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PeerParameters {
    /// The private data of the peer's program, padded with zeros to the capacity of the message.
    pub private_data: Vec<u8>,
    /// The number of the peer's queue pair.
    #[doc(alias = "qp_num")]
    pub queue_pair: u32,
    /// Maximum number of RDMA reads and atomics that the peer will have outstanding. This side must
    /// be able to process this number at the same time.
    #[doc(alias = "responder_resources")]
    pub incoming_reads: u8,
    /// Maximum number of outstanding RDMA reads and atomics of this side that the peer can process.
    #[doc(alias = "initiator_depth")]
    pub outgoing_reads: u8,
    /// Maximum number of times that this side retries a request for which the peer had no receive
    /// posted.
    #[doc(alias = "rnr_retry_count")]
    pub rnr_retries: u8,
    /// Set if the peer's queue pair uses a shared receive queue.
    #[doc(alias = "srq")]
    pub shared_receives: bool,
    /// Set if the peer declares that it supports end-to-end flow control.
    pub flow_control: bool,
    /// The address for datagrams to the peer, or `None` if the identifier is for connections.
    pub datagram: Option<DatagramPeer>,
}

/// The data that a program needs to send datagrams to a peer's queue pair.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DatagramPeer {
    /// The address vector of the path to the peer's port.
    #[doc(alias = "ah_attr")]
    pub address: AddressVector,
    /// The queue key of the peer's queue pair.
    pub qkey: u32,
}

/// A multicast group that the program has joined, with the addresses for datagrams to the group.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MulticastMember {
    /// The token that the program passed to [`ConnectionId::join_multicast`].
    pub token: usize,
    /// The address vector of the path to the group. The vector contains the GID and LID of the
    /// group.
    #[doc(alias = "ah_attr")]
    pub address: AddressVector,
    /// The destination queue pair number of datagrams to the group. This number addresses every
    /// member.
    #[doc(alias = "qp_num")]
    pub queue_pair: u32,
    /// The queue key of the group.
    pub qkey: u32,
}

impl ConnectionEvent {
    pub(crate) fn from_raw(raw: RawEvent) -> Self {
        let RawEvent {
            id,
            request,
            details,
        } = raw;
        let id = ConnectionId::from_handle(id);
        let status = EventStatus(details.status);
        let token = details.token;
        let (kind, data, parameters) = (details.kind, details.private_data, details.parameters);
        let kind = match (kind, request) {
            (raw_kind::RDMA_CM_EVENT_CONNECT_REQUEST, Some(request)) => {
                let request = ConnectionId::from_handle(request);
                let peer = PeerParameters::from_raw(parameters, data);
                let request = ConnectionRequest::new(request, id.clone(), peer);
                ConnectionEventKind::ConnectRequest(request)
            }
            (raw_kind::RDMA_CM_EVENT_ADDR_RESOLVED, _) => ConnectionEventKind::AddressResolved,
            (raw_kind::RDMA_CM_EVENT_ADDR_ERROR, _) => ConnectionEventKind::AddressError(status),
            (raw_kind::RDMA_CM_EVENT_ROUTE_RESOLVED, _) => ConnectionEventKind::RouteResolved,
            (raw_kind::RDMA_CM_EVENT_ROUTE_ERROR, _) => ConnectionEventKind::RouteError(status),
            (raw_kind::RDMA_CM_EVENT_CONNECT_RESPONSE, _) => {
                ConnectionEventKind::ConnectResponse(PeerParameters::from_raw(parameters, data))
            }
            (raw_kind::RDMA_CM_EVENT_CONNECT_ERROR, _) => ConnectionEventKind::ConnectError(status),
            (raw_kind::RDMA_CM_EVENT_UNREACHABLE, _) => ConnectionEventKind::Unreachable(status),
            (raw_kind::RDMA_CM_EVENT_REJECTED, _) => ConnectionEventKind::Rejected {
                reason: RejectReason::from_raw(details.status),
                private_data: data,
            },
            (raw_kind::RDMA_CM_EVENT_ESTABLISHED, _) => {
                ConnectionEventKind::Established(PeerParameters::from_raw(parameters, data))
            }
            (raw_kind::RDMA_CM_EVENT_DISCONNECTED, _) => ConnectionEventKind::Disconnected,
            (raw_kind::RDMA_CM_EVENT_DEVICE_REMOVAL, _) => ConnectionEventKind::DeviceRemoval,
            (raw_kind::RDMA_CM_EVENT_MULTICAST_JOIN, _) => match parameters {
                RawParameters::Datagram(ud) => {
                    ConnectionEventKind::MulticastJoined(MulticastMember {
                        token,
                        address: AddressVector::from_raw(&ud.ah_attr),
                        queue_pair: ud.qp_num,
                        qkey: ud.qkey,
                    })
                }
                RawParameters::Connected(_) => ConnectionEventKind::Unknown(kind.0),
            },
            (raw_kind::RDMA_CM_EVENT_MULTICAST_ERROR, _) => {
                ConnectionEventKind::MulticastError { token, status }
            }
            (raw_kind::RDMA_CM_EVENT_ADDR_CHANGE, _) => ConnectionEventKind::AddressChange,
            (raw_kind::RDMA_CM_EVENT_TIMEWAIT_EXIT, _) => ConnectionEventKind::TimewaitExit,
            (raw_kind(other), _) => ConnectionEventKind::Unknown(other),
        };
        Self { id, kind }
    }
}

impl PeerParameters {
    pub(crate) fn from_raw(raw: RawParameters, private_data: Vec<u8>) -> Self {
        match raw {
            RawParameters::Connected(raw) => Self {
                private_data,
                queue_pair: raw.qp_num,
                incoming_reads: raw.responder_resources,
                outgoing_reads: raw.initiator_depth,
                rnr_retries: raw.rnr_retry_count,
                shared_receives: raw.srq != 0,
                flow_control: raw.flow_control != 0,
                datagram: None,
            },
            RawParameters::Datagram(raw) => Self {
                private_data,
                queue_pair: raw.qp_num,
                incoming_reads: 0,
                outgoing_reads: 0,
                rnr_retries: 0,
                shared_receives: false,
                flow_control: false,
                datagram: Some(DatagramPeer {
                    address: AddressVector::from_raw(&raw.ah_attr),
                    qkey: raw.qkey,
                }),
            },
        }
    }
}

impl fmt::Display for ConnectionEventKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = match self {
            Self::AddressResolved => "address resolved",
            Self::AddressError(status) => return write!(f, "address error: {status}"),
            Self::RouteResolved => "route resolved",
            Self::RouteError(status) => return write!(f, "route error: {status}"),
            Self::ConnectRequest(_) => "connect request",
            Self::ConnectResponse(_) => "connect response",
            Self::ConnectError(status) => return write!(f, "connect error: {status}"),
            Self::Unreachable(status) => return write!(f, "unreachable: {status}"),
            Self::Rejected { reason, .. } => return write!(f, "rejected: {reason}"),
            Self::Established(_) => "established",
            Self::Disconnected => "disconnected",
            Self::DeviceRemoval => "device removal",
            Self::MulticastJoined(_) => "multicast group joined",
            Self::MulticastError { status, .. } => return write!(f, "multicast error: {status}"),
            Self::AddressChange => "address change",
            Self::TimewaitExit => "timewait exit",
            Self::Unknown(value) => return write!(f, "event {value}"),
        };
        f.write_str(text)
    }
}
