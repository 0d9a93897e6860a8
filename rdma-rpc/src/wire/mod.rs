//! The wire format: a message consists of a header and one or more frames.
//!
//! The page "The wire format of rdma-rpc" of the book describes the format byte by byte. Numbers
//! are in network byte order.

mod header;
mod received;
mod settings;

use std::ops::Range;

pub(crate) use self::header::{Header, write_message_header};
pub(crate) use self::received::{BulkFrame, Frame};
pub(crate) use self::settings::Settings;

/// Version of the wire format, in the first byte of every message. An end refuses messages of any
/// other version.
pub(crate) const VERSION: u8 = 2;

/// Length of a message header in bytes: the version, an unused byte, and the number of frames.
pub(crate) const MESSAGE_HEADER_LEN: usize = 4;

/// Length in bytes of the fields that every frame has: the kind, the codec, an argument, the length
/// of the rest, and the ID of the call or lease.
pub(crate) const FRAME_HEADER_LEN: usize = 16;

/// Call index in the ID of every one-way request. A one-way request occupies no slot of the call
/// table and gets no answer. Higher than the index of any slot.
pub(crate) const ONE_WAY: u32 = u32::MAX;

/// Identifier of a call on its connection: the index of its slot in the caller's table, and the
/// generation (use count) of the slot.
///
/// The generation changes with each use of the slot, so that a late frame does not match a later
/// call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct CallId {
    pub(crate) index: u32,
    pub(crate) generation: u32,
}

impl CallId {
    /// Identifier of all one-way calls. One identifier suffices, because one-way calls get no
    /// answer that must be matched with its call.
    pub(crate) const ONE_WAY: Self = Self {
        index: ONE_WAY,
        generation: 0,
    };
}

/// Identifier of a lease, the temporary permission of the peer to access the memory of a
/// [`Bulk`](crate::Bulk). Chosen by the owner of the memory. Frames about bulk memory contain the
/// lease ID in place of the call ID.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct LeaseId(pub(crate) u64);

impl LeaseId {
    /// Returns the 64 bits of this lease ID as a [`CallId`], the type of the ID field in the header
    /// of every frame.
    fn to_words(self) -> CallId {
        CallId {
            index: (self.0 >> 32) as u32,
            generation: self.0 as u32,
        }
    }

    /// Converts `words`, the ID field of a received frame about bulk memory, to the lease ID in
    /// this field. The field has the type [`CallId`], because most frames contain a call ID. The
    /// reverse of [`Self::to_words`].
    fn from_words(words: CallId) -> Self {
        Self(u64::from(words.index) << 32 | u64::from(words.generation))
    }
}

/// Values of the first byte of a frame, and flags in the argument of responses.
mod frame_kind {
    pub(super) const REQUEST: u8 = 1;
    pub(super) const RESPONSE: u8 = 2;
    pub(super) const STATUS: u8 = 3;
    pub(super) const ITEMS: u8 = 4;
    pub(super) const END: u8 = 5;
    pub(super) const WINDOW: u8 = 6;
    pub(super) const CANCEL: u8 = 7;
    pub(super) const SETTINGS: u8 = 8;
    pub(super) const GOODBYE: u8 = 9;
    pub(super) const BULK_READ: u8 = 10;
    pub(super) const BULK_WRITE: u8 = 11;
    pub(super) const BULK_ANSWER: u8 = 12;
    pub(super) const REVOKE: u8 = 13;
    pub(super) const RELEASE: u8 = 14;

    /// Flag in the header of a response frame: the body is an error of the service instead of a
    /// success value.
    pub(super) const IS_ERROR: u16 = 1;
    /// Flag in the header of a response frame for a method whose handler sends a stream. If set,
    /// the header is followed by the number of items that the handler has sent.
    pub(super) const HAS_ITEMS: u16 = 2;
}

/// Length in bytes of the prefix of each item in a frame with several items. The prefix contains
/// the length of the item. Two bytes suffice, because such a frame has at most [`MAX_BATCH_LEN`]
/// bytes.
pub(crate) const ITEM_PREFIX_LEN: usize = 2;

/// Maximum length in bytes of a message with several frames. Equal to the default length up to
/// which rdma-async sends a message in one piece. A longer message costs an additional exchange
/// with the peer.
pub(crate) const MAX_BATCH_LEN: usize = 4096 + 256;

/// A violation of the wire format or of the protocol by the peer. The connection ends with this
/// reason.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Violation {
    /// A message or a frame is truncated.
    #[error("the peer sent a message or a frame that is cut off")]
    Short,
    /// The message has another version of the format.
    #[error(
        "the peer uses version {0} of the protocol, or another protocol; this end uses version {VERSION}"
    )]
    Version(u8),
    /// The kind of a frame is unknown.
    #[error("the peer sent a frame of the unknown kind {0}")]
    Kind(u8),
    /// A field of a frame has an invalid value.
    #[error("the peer sent a frame with a wrong field")]
    Fields,
    /// The client sent a frame that only a server may send, or the reverse.
    #[error("the peer sent a frame that only the other end may send")]
    Direction,
    /// A call index exceeds the number of slots.
    #[error("the peer used a call index that it was not given")]
    Index,
    /// A call ID, settings or stream items were sent twice.
    #[error("the peer used a call number twice, or sent an item or its settings twice")]
    Repeated,
    /// A frame refers to a stream that its call does not have, or a stream item exceeds the window.
    #[error("the peer sent a stream item to a call that takes none, or beyond the window")]
    Window,
    /// A message exceeds the limit of the receiver.
    #[error("the peer sent a message longer than the limit")]
    TooLong,
    /// An access to bulk memory was not permitted.
    #[error("the peer accessed bulk memory without permission")]
    Bulk,
}

/// Reader that parses the frames of one received message, which may contain arbitrary bytes.
#[derive(Debug)]
pub(crate) struct FrameReader {
    at: usize,
    left: u16,
}

impl FrameReader {
    /// Creates a reader for the frames of `message`. Fails if the header of the message is invalid.
    pub(crate) fn new(message: &[u8]) -> Result<Self, Violation> {
        let Some((&[version, zero, c0, c1], _)) = message.split_first_chunk::<MESSAGE_HEADER_LEN>()
        else {
            return Err(Violation::Short);
        };
        if version != VERSION {
            return Err(Violation::Version(version));
        }
        let left = u16::from_be_bytes([c0, c1]);
        // A long message has one frame. Otherwise a short frame could retain a long buffer.
        let is_too_long = left > 1 && message.len() > MAX_BATCH_LEN;
        if zero != 0 || left == 0 || is_too_long {
            return Err(Violation::Fields);
        }
        Ok(Self {
            at: MESSAGE_HEADER_LEN,
            left,
        })
    }

    /// Returns whether exactly one frame of the message is left, so that the next frame is the
    /// last.
    pub(crate) fn is_last(&self) -> bool {
        self.left == 1
    }

    /// Parses the next frame of `message`, and returns the frame, or `None` after the last frame.
    /// `message` must be the message for which the reader was created, because the reader stores
    /// only its position in the message.
    pub(crate) fn next(&mut self, message: &[u8]) -> Result<Option<Frame>, Violation> {
        if self.left == 0 {
            let is_whole = self.at == message.len();
            return if is_whole {
                Ok(None)
            } else {
                Err(Violation::Fields)
            };
        }
        let header = message
            .get(self.at..)
            .and_then(|rest| rest.first_chunk::<FRAME_HEADER_LEN>())
            .ok_or(Violation::Short)?;
        let start = self.at + FRAME_HEADER_LEN;
        let len = u32::from_be_bytes([header[4], header[5], header[6], header[7]]) as usize;
        let end = start.checked_add(len).filter(|&end| end <= message.len());
        let rest = start..end.ok_or(Violation::Short)?;
        self.at = rest.end;
        self.left -= 1;
        Frame::parse(header, message, rest).map(Some)
    }
}

/// Decodes the `u64` in network byte order at the offset `at` of `bytes`. The caller must have
/// checked the length of `bytes`.
fn read_u64(bytes: &[u8], at: usize) -> u64 {
    u64::from(read_u32(bytes, at)) << 32 | u64::from(read_u32(bytes, at + 4))
}

/// Decodes the `u32` in network byte order at the offset `at` of `bytes`. The caller must have
/// checked the length of `bytes`.
fn read_u32(bytes: &[u8], at: usize) -> u32 {
    let word = bytes.get(at..).and_then(|rest| rest.first_chunk::<4>());
    word.map_or(0, |word| u32::from_be_bytes(*word))
}

/// Splits a range after its first `len` bytes, and returns both parts. Returns `None` if the range
/// has fewer than `len` bytes.
fn split(range: &Range<usize>, len: usize) -> Option<(Range<usize>, Range<usize>)> {
    let middle = range.start.checked_add(len).filter(|&at| at <= range.end)?;
    Some((range.start..middle, middle..range.end))
}

#[cfg(test)]
mod tests;
