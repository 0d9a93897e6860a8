//! The wire format: messages, and the frames that a message consists of.
//!
//! The book's page "The wire format of rdma-rpc" describes the format byte by byte. Numbers are in
//! network byte order.

mod head;
mod header;
mod settings;

use std::ops::Range;

pub(crate) use self::head::{BulkHead, Head};
pub(crate) use self::header::{Header, write_message_header};
pub(crate) use self::settings::Settings;

/// The version of the format, in the first byte of every message.
pub(crate) const VERSION: u8 = 2;

/// Length of the header of a message in bytes.
pub(crate) const MESSAGE_HEADER: usize = 4;

/// Length of the header of a frame in bytes.
pub(crate) const FRAME_HEADER: usize = 16;

/// Call index of a one-way request, which occupies no slot of the caller and gets no answer.
pub(crate) const ONE_WAY: u32 = u32::MAX;

/// Number of a call: the index of its slot in the caller's table, and the generation of the slot.
///
/// The generation changes with each use of the slot, so that a late frame matches no later call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct CallId {
    pub(crate) index: u32,
    pub(crate) generation: u32,
}

impl CallId {
    /// Number of a one-way call.
    pub(crate) const ONE_WAY: Self = Self {
        index: ONE_WAY,
        generation: 0,
    };
}

/// Number of a lease of bulk memory, which its owner chooses. It takes the place of the call number
/// in the frames of bulk memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct LeaseId(pub(crate) u64);

impl LeaseId {
    fn to_words(self) -> CallId {
        CallId {
            index: (self.0 >> 32) as u32,
            generation: self.0 as u32,
        }
    }

    fn from_words(words: CallId) -> Self {
        Self(u64::from(words.index) << 32 | u64::from(words.generation))
    }
}

mod kind {
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

    /// Bits of the argument of a response.
    pub(super) const IS_ERROR: u16 = 1;
    pub(super) const HAS_ITEMS: u16 = 2;
}

/// Number of bytes of the length of an item that shares its frame with others.
pub(crate) const ITEM_LENGTH: usize = 2;

/// Maximum length of a message with several frames in bytes: the length up to which rdma-async
/// sends a message in one piece by default.
pub(crate) const BATCH: usize = 4096 + 256;

/// A violation of the format or of the protocol by the peer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Violation {
    #[error("the peer sent a message or a frame that is cut off")]
    Short,
    #[error(
        "the peer speaks version {0} of the protocol, or another protocol; this end speaks {VERSION}"
    )]
    Version(u8),
    #[error("the peer sent a frame of the unknown kind {0}")]
    Kind(u8),
    #[error("the peer sent a frame with a wrong field")]
    Fields,
    #[error("the peer sent a frame that belongs to the other end")]
    Direction,
    #[error("the peer used a call index that it was not given")]
    Index,
    #[error("the peer used a call number twice")]
    Repeated,
    #[error("the peer sent a stream item to a call that takes none, or beyond the window")]
    Window,
    #[error("the peer sent a message longer than the limit")]
    TooLong,
    #[error("the peer accessed bulk memory otherwise than it may")]
    Bulk,
}

/// Reads the frames of one received message, which may hold any bytes.
#[derive(Debug)]
pub(crate) struct Reader {
    at: usize,
    left: u16,
}

impl Reader {
    /// Reads the header of a message.
    pub(crate) fn begin(message: &[u8]) -> Result<Self, Violation> {
        let Some((&[version, zero, c0, c1], _)) = message.split_first_chunk::<MESSAGE_HEADER>()
        else {
            return Err(Violation::Short);
        };
        if version != VERSION {
            return Err(Violation::Version(version));
        }
        let left = u16::from_be_bytes([c0, c1]);
        // A long message has one frame. Otherwise a short frame could keep a long buffer alive.
        let is_too_long = left > 1 && message.len() > BATCH;
        if zero != 0 || left == 0 || is_too_long {
            return Err(Violation::Fields);
        }
        Ok(Self {
            at: MESSAGE_HEADER,
            left,
        })
    }

    /// Returns whether the next frame is the last one of the message.
    pub(crate) fn is_last(&self) -> bool {
        self.left == 1
    }

    /// Reads the next frame; `None` at the end of the message.
    pub(crate) fn next(&mut self, message: &[u8]) -> Result<Option<Head>, Violation> {
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
            .and_then(|rest| rest.first_chunk::<FRAME_HEADER>())
            .ok_or(Violation::Short)?;
        let start = self.at + FRAME_HEADER;
        let len = u32::from_be_bytes([header[4], header[5], header[6], header[7]]) as usize;
        let end = start.checked_add(len).filter(|&end| end <= message.len());
        let rest = start..end.ok_or(Violation::Short)?;
        self.at = rest.end;
        self.left -= 1;
        Head::parse(header, message, rest).map(Some)
    }
}

/// Returns the eight bytes at `at` as a number; the caller has checked the length.
fn longer(bytes: &[u8], at: usize) -> u64 {
    u64::from(long(bytes, at)) << 32 | u64::from(long(bytes, at + 4))
}

/// Returns the four bytes at `at` as a number; the caller has checked the length.
fn long(bytes: &[u8], at: usize) -> u32 {
    let word = bytes.get(at..).and_then(|rest| rest.first_chunk::<4>());
    word.map_or(0, |word| u32::from_be_bytes(*word))
}

/// Splits `len` bytes off the front of a range, or returns `None` if the range is shorter.
fn split(range: &Range<usize>, len: usize) -> Option<(Range<usize>, Range<usize>)> {
    let middle = range.start.checked_add(len).filter(|&at| at <= range.end)?;
    Some((range.start..middle, middle..range.end))
}

#[cfg(test)]
mod tests;
