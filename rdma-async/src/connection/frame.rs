//! What the two ends say to each other in messages.

use rdma_core::RemoteMemory;

/// How many bytes precede a message's payload.
pub(crate) const HEADER_LEN: usize = 16;
/// The largest frame without a payload.
pub(crate) const MAX_FRAME_LEN: usize = HEADER_LEN + 24;

/// One message. Numbers go in network byte order.
///
/// ```text
/// byte 0     1..2     2..4           4..6              6..8   8..16   16..
///      kind  reserved data credits   control credits   rsvd   id      body
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Frame {
    /// How many data and control messages the sender takes more than before.
    pub(crate) credits: Credits,
    pub(crate) kind: Kind,
}

/// Receives made ready again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Credits {
    pub(crate) data: u16,
    pub(crate) control: u16,
}

/// What a message says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// The payload behind the header is the application's.
    Data,
    /// The application's message is too long to send: read it there, and say when done.
    Rendezvous { id: u64, memory: RemoteMemory },
    /// A rendezvous' message was read, or will not be.
    RendezvousDone { id: u64, read: bool },
    /// Lend me memory.
    Request { id: u64, size: u64, align: u64 },
    /// Here it is, under this lease.
    Grant {
        id: u64,
        lease: u64,
        memory: RemoteMemory,
    },
    /// No.
    Refuse { id: u64, reason: Refusal },
    /// The application lends memory under this lease.
    Offer { lease: u64, memory: RemoteMemory },
    /// The lease ends, and the memory is for the application that lent it.
    Return { lease: u64 },
    /// The lease ends.
    Release { lease: u64 },
    /// Nothing but the credits.
    Credit,
}

/// Why a request for memory was refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Refusal {
    /// It would exceed what the peer lends.
    Limit,
    /// The size or alignment is impossible.
    Layout,
    /// The peer could not allocate or register it.
    Memory,
}

impl Refusal {
    pub(crate) fn text(self) -> &'static str {
        match self {
            Self::Limit => "it lends no more than its limit (RdmaBuilder::remote_memory_limit)",
            Self::Layout => "no memory has such a size and alignment",
            Self::Memory => "it could not allocate or register so much memory",
        }
    }
}

impl Frame {
    /// Writes it to the front of `room`, which has [`MAX_FRAME_LEN`] bytes, and returns its length.
    pub(crate) fn encode(&self, room: &mut [u8]) -> usize {
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
        };
        let (header, body) = room[..MAX_FRAME_LEN].split_at_mut(HEADER_LEN);
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
            Kind::Rendezvous { memory, .. } | Kind::Offer { memory, .. } => put(&memory.to_bytes()),
            Kind::Grant { lease, memory, .. } => {
                // A lease fits four bytes beside the memory.
                let mut bytes = [0; RemoteMemory::ENCODED_LEN + 4];
                bytes[..4].copy_from_slice(&(lease as u32).to_be_bytes());
                bytes[4..].copy_from_slice(&memory.to_bytes());
                put(&bytes)
            }
            Kind::RendezvousDone { read, .. } => put(&[u8::from(read)]),
            Kind::Refuse { reason, .. } => put(&[reason as u8]),
            Kind::Request { size, align, .. } => {
                let mut bytes = [0; 16];
                bytes[..8].copy_from_slice(&size.to_be_bytes());
                bytes[8..].copy_from_slice(&align.to_be_bytes());
                put(&bytes)
            }
            Kind::Data | Kind::Return { .. } | Kind::Release { .. } | Kind::Credit => HEADER_LEN,
        }
    }

    /// Reads it from the front of a message; `None` if it is none. What follows a [`Kind::Data`]
    /// header is the payload.
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
            (6, &[0]) => Kind::Refuse {
                id,
                reason: Refusal::Limit,
            },
            (6, &[1]) => Kind::Refuse {
                id,
                reason: Refusal::Layout,
            },
            (6, &[2]) => Kind::Refuse {
                id,
                reason: Refusal::Memory,
            },
            (7, body) => Kind::Offer {
                lease: id,
                memory: memory(body)?,
            },
            (8, []) => Kind::Return { lease: id },
            (9, []) => Kind::Release { lease: id },
            (10, []) => Kind::Credit,
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

    fn kinds() -> [Kind; 13] {
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
                reason: Refusal::Limit,
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
            Kind::Credit,
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
            let mut room = [0xee; MAX_FRAME_LEN];
            let len = frame.encode(&mut room);
            assert_eq!(Frame::decode(&room[..len]), Some(frame));
        }
    }

    #[test]
    fn cut_or_unknown_messages_are_refused() {
        for kind in kinds() {
            let mut room = [0; MAX_FRAME_LEN];
            let len = Frame {
                credits: Credits::default(),
                kind,
            }
            .encode(&mut room);
            for cut in 0..len {
                let decoded = Frame::decode(&room[..cut]);
                assert!(decoded.is_none(), "{kind:?} cut to {cut}: {decoded:?}");
            }
            room[0] = 99;
            assert_eq!(Frame::decode(&room[..len]), None);
        }
    }
}
