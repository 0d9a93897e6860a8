//! [`Header`]: a frame to be sent, without its body.

use std::time::Duration;

use super::{CallId, FRAME_HEADER_LEN, LeaseId, MESSAGE_HEADER_LEN, Settings, VERSION, frame_kind};

/// Header of a frame to be sent: all fields except the body. The variants correspond to those of
/// [`Frame`](super::Frame).
#[derive(Debug, Clone, Copy)]
pub(crate) enum Header<'a> {
    Request {
        id: CallId,
        codec: u8,
        method: u32,
        limit: Option<Duration>,
        /// Encoded metadata of at most 65535 bytes.
        metadata: &'a [u8],
    },
    Response {
        id: CallId,
        codec: u8,
        is_error: bool,
        items: Option<u32>,
    },
    Status {
        id: CallId,
        status: u16,
    },
    Items {
        id: CallId,
        codec: u8,
        /// Sequence number of the first item.
        first: u32,
        /// Number of items, each preceded by its length. 0 if the body is a single item without a
        /// length.
        count: u16,
    },
    End {
        id: CallId,
        items: u32,
    },
    Window {
        id: CallId,
        items: u32,
        bytes: u32,
    },
    Cancel {
        id: CallId,
    },
    Settings(Settings),
    Goodbye {
        status: u16,
    },
    BulkRead {
        lease: LeaseId,
        /// Number of this request for one piece, which the answer repeats.
        tag: u32,
        at: u64,
        len: u32,
    },
    BulkWrite {
        lease: LeaseId,
        tag: u32,
        at: u64,
    },
    BulkAnswer {
        lease: LeaseId,
        tag: u32,
        /// Set if the lease has ended, so that no byte was read or written.
        has_ended: bool,
    },
    Revoke {
        lease: LeaseId,
    },
    Release {
        lease: LeaseId,
    },
}

impl Header<'_> {
    /// Returns the length of the encoded header in bytes. The body of the frame follows the header.
    pub(crate) fn len(&self) -> usize {
        FRAME_HEADER_LEN
            + match self {
                Self::Request { metadata, .. } => 8 + metadata.len(),
                Self::Response { items, .. } => 4 * usize::from(items.is_some()),
                Self::Items { .. } | Self::End { .. } => 4,
                Self::Window { .. } => 8,
                Self::Settings(_) => Settings::LEN,
                Self::BulkRead { .. } => 16,
                Self::BulkWrite { .. } => 12,
                Self::BulkAnswer { .. } => 4,
                Self::Status { .. }
                | Self::Cancel { .. }
                | Self::Goodbye { .. }
                | Self::Revoke { .. }
                | Self::Release { .. } => 0,
            }
    }

    /// Writes the header of a frame whose body has `body` bytes to the start of `room`, which must
    /// have at least [`Self::len`] bytes.
    pub(crate) fn write(&self, room: &mut [u8], body: usize) {
        const NONE: CallId = CallId {
            index: 0,
            generation: 0,
        };
        let (number, codec, argument, id) = match *self {
            Self::Request {
                id,
                codec,
                metadata,
                ..
            } => (
                frame_kind::REQUEST,
                codec,
                u16::try_from(metadata.len()).unwrap_or(u16::MAX),
                id,
            ),
            Self::Response {
                id,
                codec,
                is_error,
                items,
            } => {
                let error = frame_kind::IS_ERROR * u16::from(is_error);
                let items = frame_kind::HAS_ITEMS * u16::from(items.is_some());
                (frame_kind::RESPONSE, codec, error | items, id)
            }
            Self::Status { id, status } => (frame_kind::STATUS, 0, status, id),
            Self::Items {
                id, codec, count, ..
            } => (frame_kind::ITEMS, codec, count, id),
            Self::End { id, .. } => (frame_kind::END, 0, 0, id),
            Self::Window { id, .. } => (frame_kind::WINDOW, 0, 0, id),
            Self::Cancel { id } => (frame_kind::CANCEL, 0, 0, id),
            Self::Settings(_) => (frame_kind::SETTINGS, 0, 0, NONE),
            Self::Goodbye { status } => (frame_kind::GOODBYE, 0, status, NONE),
            Self::BulkRead { lease, .. } => (frame_kind::BULK_READ, 0, 0, lease.to_words()),
            Self::BulkWrite { lease, .. } => (frame_kind::BULK_WRITE, 0, 0, lease.to_words()),
            Self::BulkAnswer {
                lease, has_ended, ..
            } => (
                frame_kind::BULK_ANSWER,
                0,
                has_ended.into(),
                lease.to_words(),
            ),
            Self::Revoke { lease } => (frame_kind::REVOKE, 0, 0, lease.to_words()),
            Self::Release { lease } => (frame_kind::RELEASE, 0, 0, lease.to_words()),
        };
        let front = self.len();
        let rest = u32::try_from(front - FRAME_HEADER_LEN + body).unwrap_or(u32::MAX);
        let [a0, a1] = argument.to_be_bytes();
        room[..4].copy_from_slice(&[number, codec, a0, a1]);
        room[4..8].copy_from_slice(&rest.to_be_bytes());
        room[8..12].copy_from_slice(&id.index.to_be_bytes());
        room[12..16].copy_from_slice(&id.generation.to_be_bytes());
        let room = &mut room[FRAME_HEADER_LEN..front];
        match *self {
            Self::Request {
                method,
                limit,
                metadata,
                ..
            } => {
                room[..4].copy_from_slice(&method.to_be_bytes());
                room[4..8].copy_from_slice(&micros(limit).to_be_bytes());
                room[8..].copy_from_slice(metadata);
            }
            Self::Response {
                items: Some(items), ..
            }
            | Self::End { items, .. } => room.copy_from_slice(&items.to_be_bytes()),
            Self::Items { first, .. } => room.copy_from_slice(&first.to_be_bytes()),
            Self::Window { items, bytes, .. } => {
                room[..4].copy_from_slice(&items.to_be_bytes());
                room[4..].copy_from_slice(&bytes.to_be_bytes());
            }
            Self::Settings(settings) => room.copy_from_slice(&settings.encode()),
            Self::BulkRead { tag, at, len, .. } => {
                room[..4].copy_from_slice(&tag.to_be_bytes());
                room[4..12].copy_from_slice(&at.to_be_bytes());
                room[12..].copy_from_slice(&len.to_be_bytes());
            }
            Self::BulkWrite { tag, at, .. } => {
                room[..4].copy_from_slice(&tag.to_be_bytes());
                room[4..].copy_from_slice(&at.to_be_bytes());
            }
            Self::BulkAnswer { tag, .. } => room.copy_from_slice(&tag.to_be_bytes()),
            _ => {}
        }
    }
}

/// Encodes the time limit of a call as a number of microseconds, for a request frame. Returns 0 for
/// `None`, and at least 1 otherwise. For a limit of 71 minutes or more, returns `u32::MAX`, which
/// the receiver treats as no limit.
fn micros(limit: Option<Duration>) -> u32 {
    limit.map_or(0, |limit| {
        u32::try_from(limit.as_micros()).unwrap_or(u32::MAX).max(1)
    })
}

/// Writes the header of a message that contains `frames` frames to the start of `room`, the buffer
/// of the message.
pub(crate) fn write_message_header(room: &mut [u8], frames: u16) {
    let [c0, c1] = frames.to_be_bytes();
    room[..MESSAGE_HEADER_LEN].copy_from_slice(&[VERSION, 0, c0, c1]);
}
