//! The format of messages: a [`Frame`] is the header of a message and, for a control message, the
//! body.

use std::fmt;

use rdma_core::RemoteMemory;

/// Length, in bytes, of the header of every message, which precedes the payload.
pub(crate) const HEADER_LEN: usize = 16;
/// Maximum length, in bytes, of a frame without payload: the header and the body of
/// [`Kind::Grant`].
pub(crate) const MAX_FRAME_LEN: usize = HEADER_LEN + 24;

/// Header and body of a message between the two ends. The body depends on the kind. Numbers are in
/// network byte order.
///
/// ```text
/// byte 0     1..2     2..4           4..6              6..8   8..16   16..
///      kind  reserved data credits   control credits   rsvd   id      body
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Frame {
    /// Credits that the sender returns to the receiver.
    pub(crate) credits: Credits,
    pub(crate) kind: Kind,
}

/// Credits (permissions to send one message each) that a frame returns: the numbers of further data
/// messages and control messages that the sender of the frame accepts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Credits {
    pub(crate) data: u16,
    pub(crate) control: u16,
}

/// Kind of a message, with the fields of its body. All kinds except [`Self::Data`],
/// [`Self::Rendezvous`] and [`Self::Offer`] are control messages. A control message needs a control
/// credit (permission to send).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Message of the application, whose bytes follow the header.
    Data,
    /// Long message of the application. The receiver reads it from `memory` and then sends
    /// [`Kind::RendezvousDone`].
    Rendezvous { id: u64, memory: RemoteMemory },
    /// Notification that the rendezvous `id` has ended. `read` is set if the message was read, and
    /// clear if the read failed.
    RendezvousDone { id: u64, read: bool },
    /// Request for memory of this size and alignment, in bytes.
    Request { id: u64, size: u64, align: u64 },
    /// Reply to [`Kind::Request`]: memory that is lent under this lease.
    Grant {
        id: u64,
        lease: u64,
        memory: RemoteMemory,
    },
    /// Reply to [`Kind::Request`]: the reason why no memory is lent.
    Refuse { id: u64, reason: Refusal },
    /// Offer of memory that the application lends under this lease.
    Offer { lease: u64, memory: RemoteMemory },
    /// Return of a lease. The application that lent the memory gets it back.
    Return { lease: u64 },
    /// Release of a lease. The end that lent the memory frees it.
    Release { lease: u64 },
    /// Revocation of a lease by the end that lent the memory. The receiver then returns or releases
    /// the lease.
    Revoke { lease: u64 },
    /// Message without a body, which only returns credits and probes the peer.
    Credit,
    /// Close of the connection: the sender sends no further messages. Used only by [in-band
    /// links](super::link). Other links announce the close by other means.
    Close,
    /// Advertisement of the [ring](super::ring) of the sender of this message: memory into which
    /// the receiver may write long pieces of a stream.
    Ring { memory: RemoteMemory },
    /// Slots of the ring of the sender of this message that the sender has read, as a bit mask. The
    /// receiver may write to these slots again.
    Returned { slots: u64 },
}

/// Reason why an end has refused its peer's request for memory, with the limit that the request
/// exceeds, if any.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Refusal {
    /// The peer lends at most this number of bytes on one connection.
    Bytes(u64),
    /// No memory can have the requested size and alignment.
    Layout,
    /// The peer could not allocate or register the memory.
    Memory,
    /// The peer lends at most this number of regions on one connection.
    Regions(u64),
    /// The peer lends at most this number of bytes to this end, on all connections together.
    PeerBytes(u64),
    /// The peer lends at most this number of bytes to all its peers together.
    AllPeersBytes(u64),
    /// The peer's registered memory has reached its limit, this number of bytes.
    PoolFull(u64),
}

impl Refusal {
    /// Returns the reason as two numbers of a [`Kind::Refuse`] message: the code of the reason, and
    /// the limit (of bytes, regions or the pool) that the request exceeds. The second number is 0
    /// if the reason is not a limit.
    fn to_numbers(self) -> (u8, u64) {
        match self {
            Self::Bytes(limit) => (0, limit),
            Self::Layout => (1, 0),
            Self::Memory => (2, 0),
            Self::Regions(limit) => (3, limit),
            Self::PeerBytes(limit) => (4, limit),
            Self::AllPeersBytes(limit) => (5, limit),
            Self::PoolFull(limit) => (6, limit),
        }
    }

    /// Converts two numbers of a [`Kind::Refuse`] message, a code and a limit, to the reason why
    /// memory was refused. Returns `None` for an unknown code. The inverse of [`Self::to_numbers`].
    fn from_numbers(number: u8, limit: u64) -> Option<Self> {
        Some(match number {
            0 => Self::Bytes(limit),
            1 => Self::Layout,
            2 => Self::Memory,
            3 => Self::Regions(limit),
            4 => Self::PeerBytes(limit),
            5 => Self::AllPeersBytes(limit),
            6 => Self::PoolFull(limit),
            _ => return None,
        })
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Bytes(limit) => write!(f, "it lends at most {limit} bytes on one connection"),
            Self::Layout => f.write_str("no memory can have this size and alignment"),
            Self::Memory => f.write_str("it could not allocate or register the memory"),
            Self::Regions(limit) => write!(f, "it lends at most {limit} regions on one connection"),
            Self::PeerBytes(limit) => write!(
                f,
                "it lends this peer at most {limit} bytes, on all connections together"
            ),
            Self::AllPeersBytes(limit) => {
                write!(f, "it lends at most {limit} bytes to all peers together")
            }
            Self::PoolFull(limit) => {
                write!(
                    f,
                    "its registered memory has reached the limit of {limit} bytes"
                )
            }
        }
    }
}

impl Frame {
    /// Encodes the frame to the start of `buffer`, which must have at least [`MAX_FRAME_LEN`]
    /// bytes. Returns the length of the frame.
    pub(crate) fn encode(&self, buffer: &mut [u8]) -> usize {
        let (kind, id) = match self.kind {
            Kind::Data => (1, 0),
            Kind::Rendezvous { id, .. } => (2, id),
            Kind::RendezvousDone { id, .. } => (3, id),
            Kind::Request { id, .. } => (4, id),
            Kind::Grant { id, .. } => (5, id),
            Kind::Refuse { id, .. } => (6, id),
            Kind::Offer { lease, .. } => (7, lease),
            Kind::Return { lease } => (8, lease),
            Kind::Release { lease } => (9, lease),
            Kind::Credit => (10, 0),
            Kind::Revoke { lease } => (11, lease),
            Kind::Close => (12, 0),
            Kind::Ring { .. } => (13, 0),
            Kind::Returned { slots } => (14, slots),
        };
        let (header, body) = buffer[..MAX_FRAME_LEN].split_at_mut(HEADER_LEN);
        header.fill(0);
        header[0] = kind;
        header[2..4].copy_from_slice(&self.credits.data.to_be_bytes());
        header[4..6].copy_from_slice(&self.credits.control.to_be_bytes());
        header[8..16].copy_from_slice(&id.to_be_bytes());
        let mut put = |bytes: &[u8]| {
            body[..bytes.len()].copy_from_slice(bytes);
            HEADER_LEN + bytes.len()
        };
        match self.kind {
            Kind::Rendezvous { memory, .. }
            | Kind::Offer { memory, .. }
            | Kind::Ring { memory } => put(&memory.to_bytes()),
            Kind::Grant { lease, memory, .. } => {
                // The body has four bytes for the id of the lease, which is less than 2^32.
                let mut bytes = [0; RemoteMemory::ENCODED_LEN + 4];
                bytes[..4].copy_from_slice(&(lease as u32).to_be_bytes());
                bytes[4..].copy_from_slice(&memory.to_bytes());
                put(&bytes)
            }
            Kind::RendezvousDone { read, .. } => put(&[u8::from(read)]),
            Kind::Refuse { reason, .. } => {
                let (number, limit) = reason.to_numbers();
                let mut bytes = [number; 9];
                bytes[1..].copy_from_slice(&limit.to_be_bytes());
                put(&bytes)
            }
            Kind::Request { size, align, .. } => {
                let mut bytes = [0; 16];
                bytes[..8].copy_from_slice(&size.to_be_bytes());
                bytes[8..].copy_from_slice(&align.to_be_bytes());
                put(&bytes)
            }
            Kind::Data
            | Kind::Return { .. }
            | Kind::Release { .. }
            | Kind::Revoke { .. }
            | Kind::Close
            | Kind::Returned { .. }
            | Kind::Credit => HEADER_LEN,
        }
    }

    /// Decodes a frame from the start of a message. Returns `None` if the frame is invalid. The
    /// bytes after a [`Kind::Data`] header are the payload.
    pub(crate) fn decode(message: &[u8]) -> Option<Self> {
        let (header, body) = message.split_at_checked(HEADER_LEN)?;
        let short = |at: usize| u16::from_be_bytes([header[at], header[at + 1]]);
        let id = u64::from_be_bytes(header[8..16].try_into().ok()?);
        let memory = |body: &[u8]| Some(RemoteMemory::from_bytes(body.try_into().ok()?));
        let kind = match (header[0], body) {
            (1, _) => Kind::Data,
            (2, body) => Kind::Rendezvous {
                id,
                memory: memory(body)?,
            },
            (3, &[read @ (0 | 1)]) => Kind::RendezvousDone {
                id,
                read: read == 1,
            },
            (4, body) => {
                let (size, align) = body.split_at_checked(8)?;
                let size = u64::from_be_bytes(size.try_into().ok()?);
                Kind::Request {
                    id,
                    size,
                    align: u64::from_be_bytes(align.try_into().ok()?),
                }
            }
            (5, body) => {
                let (lease, rest) = body.split_at_checked(4)?;
                let lease = u64::from(u32::from_be_bytes(lease.try_into().ok()?));
                Kind::Grant {
                    id,
                    lease,
                    memory: memory(rest)?,
                }
            }
            (6, &[number, ref limit @ ..]) => {
                let limit = u64::from_be_bytes(limit.try_into().ok()?);
                Kind::Refuse {
                    id,
                    reason: Refusal::from_numbers(number, limit)?,
                }
            }
            (7, body) => Kind::Offer {
                lease: id,
                memory: memory(body)?,
            },
            (8, []) => Kind::Return { lease: id },
            (9, []) => Kind::Release { lease: id },
            (10, []) => Kind::Credit,
            (11, []) => Kind::Revoke { lease: id },
            (12, []) => Kind::Close,
            (13, body) => Kind::Ring {
                memory: memory(body)?,
            },
            (14, []) => Kind::Returned { slots: id },
            _ => return None,
        };
        Some(Self {
            credits: Credits {
                data: short(2),
                control: short(4),
            },
            kind,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MEMORY: RemoteMemory = RemoteMemory {
        address: 1 << 40,
        len: 4096,
        rkey: 77,
    };

    fn kinds() -> [Kind; 21] {
        [
            Kind::Data,
            Kind::Rendezvous {
                id: 1 << 60,
                memory: MEMORY,
            },
            Kind::RendezvousDone { id: 2, read: true },
            Kind::RendezvousDone { id: 2, read: false },
            Kind::Request {
                id: 3,
                size: u64::MAX,
                align: 64,
            },
            Kind::Grant {
                id: 4,
                lease: 9,
                memory: MEMORY,
            },
            Kind::Refuse {
                id: 5,
                reason: Refusal::Bytes(1 << 40),
            },
            Kind::Refuse {
                id: 5,
                reason: Refusal::Regions(3),
            },
            Kind::Refuse {
                id: 5,
                reason: Refusal::PeerBytes(u64::MAX),
            },
            Kind::Refuse {
                id: 5,
                reason: Refusal::AllPeersBytes(4),
            },
            Kind::Refuse {
                id: 5,
                reason: Refusal::PoolFull(5),
            },
            Kind::Refuse {
                id: 5,
                reason: Refusal::Layout,
            },
            Kind::Refuse {
                id: 5,
                reason: Refusal::Memory,
            },
            Kind::Offer {
                lease: 6,
                memory: MEMORY,
            },
            Kind::Return { lease: 7 },
            Kind::Release { lease: 8 },
            Kind::Revoke { lease: 9 },
            Kind::Credit,
            Kind::Close,
            Kind::Ring { memory: MEMORY },
            Kind::Returned { slots: 1 << 63 },
        ]
    }

    #[test]
    fn every_kind_round_trips() {
        for kind in kinds() {
            let frame = Frame {
                credits: Credits {
                    data: 3,
                    control: 500,
                },
                kind,
            };
            let mut buffer = [0xee; MAX_FRAME_LEN];
            let len = frame.encode(&mut buffer);
            assert_eq!(Frame::decode(&buffer[..len]), Some(frame));
        }
    }

    #[test]
    fn cut_or_unknown_messages_are_refused() {
        for kind in kinds() {
            let mut buffer = [0; MAX_FRAME_LEN];
            let len = Frame {
                credits: Credits::default(),
                kind,
            }
            .encode(&mut buffer);
            for cut in 0..len {
                let decoded = Frame::decode(&buffer[..cut]);
                assert!(decoded.is_none(), "{kind:?} cut to {cut}: {decoded:?}");
            }
            buffer[0] = 99;
            assert_eq!(Frame::decode(&buffer[..len]), None);
        }
    }
}
