//! Events of the connection manager, copied out of librdmacm's memory.

use std::slice;
use std::sync::Arc;

use ibverbs_sys as sys;
use sys::rdma_cm_event_type as raw_kind;

use super::id::IdHandle;

/// A copy of a connection manager event (`rdma_cm_event`). The original event has already been
/// acknowledged.
#[derive(Debug)]
pub(crate) struct RawEvent {
    /// The identifier to which the event belongs, or the listening identifier if the event is a
    /// connect request.
    pub(crate) id: Arc<IdHandle>,
    /// The new identifier that a connect request creates, or `None` for other events.
    pub(crate) request: Option<Arc<IdHandle>>,
    pub(crate) details: Details,
}

/// The content of a connection manager event, except for the identifiers to which the event
/// belongs.
#[derive(Debug)]
pub(crate) struct Details {
    pub(crate) kind: raw_kind,
    pub(crate) status: i32,
    pub(crate) private_data: Vec<u8>,
    pub(crate) parameters: RawParameters,
    /// The token that the program passed when it joined the multicast group, or 0 if the event is
    /// not a multicast event.
    pub(crate) token: usize,
}

/// The peer's parameters in a connection manager event: `Connected` for communication over a
/// connection, `Datagram` for communication by datagrams.
#[derive(Clone, Copy)]
pub(crate) enum RawParameters {
    Connected(sys::rdma_conn_param),
    Datagram(sys::rdma_ud_param),
}

impl std::fmt::Debug for RawParameters {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Connected(_) => "Connected(..)",
            Self::Datagram(_) => "Datagram(..)",
        })
    }
}

/// Copies the content of `event`, so that the event can be acknowledged. `datagram` must be `true`
/// if the identifier of the event is for datagrams, and `false` if the identifier is for a
/// connection.
///
/// # Safety
///
/// `event` must have been returned by `rdma_get_cm_event`, and must not be acknowledged yet.
pub(super) unsafe fn copied(event: *const sys::rdma_cm_event, datagram: bool) -> Details {
    // SAFETY: the event is valid until it is acknowledged (man page of rdma_get_cm_event).
    let (kind, status, parameters) = unsafe { ((*event).event, (*event).status, (*event).param) };
    let multicast = matches!(
        kind,
        raw_kind::RDMA_CM_EVENT_MULTICAST_JOIN | raw_kind::RDMA_CM_EVENT_MULTICAST_ERROR
    );
    // A rejection contains connection parameters, whatever the kind of the identifier.
    let datagram = multicast || (datagram && kind != raw_kind::RDMA_CM_EVENT_REJECTED);
    let (mut parameters, data, len) = if datagram {
        // SAFETY: both variants are plain bytes that the library zeroed before it wrote a variant.
        let ud = unsafe { parameters.ud };
        (
            RawParameters::Datagram(ud),
            ud.private_data,
            ud.private_data_len,
        )
    } else {
        // SAFETY: both variants are plain bytes that the library zeroed before it wrote a variant.
        let conn = unsafe { parameters.conn };
        (
            RawParameters::Connected(conn),
            conn.private_data,
            conn.private_data_len,
        )
    };
    // The copied parameters must not point to the private data, because the acknowledgement frees
    // the private data.
    match &mut parameters {
        RawParameters::Connected(conn) => conn.private_data = std::ptr::null(),
        RawParameters::Datagram(ud) => ud.private_data = std::ptr::null(),
    }
    // In a multicast event this pointer is the token that the program passed when it joined the
    // group.
    let private_data = if multicast || data.is_null() || len == 0 {
        Vec::new()
    } else {
        // SAFETY: the event holds this many bytes of private data until it is acknowledged.
        unsafe { slice::from_raw_parts(data.cast::<u8>(), usize::from(len)) }.to_vec()
    };
    Details {
        kind,
        status,
        private_data,
        parameters,
        token: if multicast { data as usize } else { 0 },
    }
}
