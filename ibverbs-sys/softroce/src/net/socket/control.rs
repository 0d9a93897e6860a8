use std::mem;
use std::net::SocketAddr;

use libc::{c_int, cmsghdr};

use super::Burst;

/// Socket option from linux/udp.h: the size in bytes of the datagrams into which the kernel splits
/// a message.
pub(super) const UDP_SEGMENT: c_int = 103;
/// Socket option from linux/udp.h: the kernel merges received datagrams of equal size into one
/// message.
pub(super) const UDP_GRO: c_int = 104;

/// A control message (`cmsg(3)`) of a sent or received message of a socket: a header field or an
/// option for the kernel, such as the hop limit. The value has at most the size of a C `int`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct ControlMessage {
    header: cmsghdr,
    value: [u8; size_of::<c_int>()],
}

// Checks that the layout equals that of the macros of cmsg(3).
const _: () = {
    // SAFETY: these functions only calculate.
    unsafe {
        assert!(size_of::<ControlMessage>() == libc::CMSG_SPACE(size_of::<c_int>() as _) as usize);
        assert!(size_of::<ControlMessage>() == libc::CMSG_SPACE(size_of::<u16>() as _) as usize);
        assert!(mem::offset_of!(ControlMessage, value) == libc::CMSG_LEN(0) as usize);
    }
};

/// Ancillary data of a sent or received datagram (`msg_control` of `sendmsg`): its traffic class,
/// hop limit and segment size.
pub(super) type ControlMessages = [ControlMessage; 3];

/// Header fields of received datagrams that the kernel reports as ancillary data of `recvmsg`: the
/// traffic class, the hop limit, and the length of datagrams that were received together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct ControlValues {
    pub(super) traffic_class: u8,
    pub(super) hop_limit: u8,
    /// Length in bytes of each datagram except the last, if several datagrams were received as one
    /// message.
    pub(super) segment: Option<usize>,
}

impl ControlMessage {
    // SAFETY: all fields are integers, for which zero is valid.
    pub(super) const NONE: Self = unsafe { mem::zeroed() };

    fn int(level: c_int, kind: c_int, value: c_int) -> Self {
        Self::new(level, kind, size_of::<c_int>(), value.to_ne_bytes())
    }

    fn short(level: c_int, kind: c_int, value: u16) -> Self {
        let [low, high] = value.to_ne_bytes();
        Self::new(level, kind, size_of::<u16>(), [low, high, 0, 0])
    }

    fn new(level: c_int, kind: c_int, size: usize, value: [u8; 4]) -> Self {
        let mut control = Self::NONE;
        // SAFETY: this function only calculates.
        control.header.cmsg_len = unsafe { libc::CMSG_LEN(size as _) } as _;
        control.header.cmsg_level = level;
        control.header.cmsg_type = kind;
        control.value = value;
        control
    }

    /// Writes to `controls` the control messages (`cmsg(3)`) for sending `burst`: its traffic
    /// class, its hop limit, and the size of the datagrams into which the kernel splits it. Returns
    /// their number.
    pub(super) fn set(controls: &mut ControlMessages, burst: &Burst<'_>) -> usize {
        let (level, class, limit) = match burst.to {
            SocketAddr::V4(_) => (libc::IPPROTO_IP, libc::IP_TOS, libc::IP_TTL),
            SocketAddr::V6(_) => (libc::IPPROTO_IPV6, libc::IPV6_TCLASS, libc::IPV6_HOPLIMIT),
        };
        let mut set = 0;
        let mut put = |control| {
            controls[set] = control;
            set += 1;
        };
        if burst.traffic_class != 0 {
            put(Self::int(level, class, burst.traffic_class.into()));
        }
        if let Some(hop_limit) = burst.hop_limit {
            put(Self::int(level, limit, hop_limit.into()));
        }
        if let Some(segment) = burst.segment {
            put(Self::short(libc::SOL_UDP, UDP_SEGMENT, segment));
        }
        set
    }

    /// Returns the traffic class, the hop limit and the datagram size of a received message. The
    /// kernel reports these values in the control messages (`cmsg(3)`) `controls`.
    pub(super) fn read(controls: &[Self]) -> ControlValues {
        let mut said = ControlValues::default();
        for control in controls {
            let int = c_int::from_ne_bytes(control.value);
            match (control.header.cmsg_level, control.header.cmsg_type) {
                // The value of this message is a single byte.
                (libc::IPPROTO_IP, libc::IP_TOS) => said.traffic_class = control.value[0],
                (libc::IPPROTO_IP, libc::IP_TTL) | (libc::IPPROTO_IPV6, libc::IPV6_HOPLIMIT) => {
                    said.hop_limit = int as u8;
                }
                (libc::IPPROTO_IPV6, libc::IPV6_TCLASS) => said.traffic_class = int as u8,
                (libc::SOL_UDP, UDP_GRO) => said.segment = usize::try_from(int).ok(),
                _ => {}
            }
        }
        said
    }
}
