//! Events of the connection manager, copied out of librdmacm's memory.

use std::slice;
use std::sync::Arc;

use ibverbs_sys as sys;
use sys::rdma_cm_event_type as raw_kind;

use super::id::IdHandle;

/// An event, which is acknowledged already.
#[derive(Debug)]
pub(crate) struct RawEvent {
    /// The identifier that it is about: the listening one of a connection request.
    pub(crate) id: Arc<IdHandle>,
    /// The new identifier of a connection request.
    pub(crate) request: Option<Arc<IdHandle>>,
    pub(crate) details: Details,
}

/// What an event says besides which identifier it is about.
#[derive(Debug)]
pub(crate) struct Details {
    pub(crate) kind: raw_kind,
    pub(crate) status: i32,
    pub(crate) private_data: Vec<u8>,
    pub(crate) parameters: RawParameters,
    /// The number that the join was given, of a multicast event.
    pub(crate) token: usize,
}

/// The parameters that come with an event.
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

/// Copies what the event at `event` says. `datagram` tells whether its identifier is for datagrams.
///
/// # Safety
///
/// `rdma_get_cm_event` gave the event, and it is not acknowledged yet.
pub(super) unsafe fn copied(event: *const sys::rdma_cm_event, datagram: bool) -> Details {
    // SAFETY: the event is valid until it is acknowledged (man page of rdma_get_cm_event).
    let (kind, status, parameters) = unsafe { ((*event).event, (*event).status, (*event).param) };
    let multicast = matches!(
        kind,
        raw_kind::RDMA_CM_EVENT_MULTICAST_JOIN | raw_kind::RDMA_CM_EVENT_MULTICAST_ERROR
    );
    // A rejection is written as that of a connection whatever the identifier is.
    let datagram = multicast || (datagram && kind != raw_kind::RDMA_CM_EVENT_REJECTED);
    let (mut parameters, data, len) = if datagram {
        // SAFETY: both variants are plain bytes that the library zeroed before it wrote one.
        let ud = unsafe { parameters.ud };
        (
            RawParameters::Datagram(ud),
            ud.private_data,
            ud.private_data_len,
        )
    } else {
        // SAFETY: as above.
        let conn = unsafe { parameters.conn };
        (
            RawParameters::Connected(conn),
            conn.private_data,
            conn.private_data_len,
        )
    };
    // The copies must not hold a pointer to what is about to be freed.
    match &mut parameters {
        RawParameters::Connected(conn) => conn.private_data = std::ptr::null(),
        RawParameters::Datagram(ud) => ud.private_data = std::ptr::null(),
    }
    // Of a multicast event this pointer is the number that the join was given.
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
