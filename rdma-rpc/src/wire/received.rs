//! [`Frame`]: a parsed frame of a received message.

use std::ops::Range;
use std::time::Duration;

use super::{
    CallId, FRAME_HEADER_LEN, LeaseId, Settings, Violation, frame_kind, read_u32, read_u64, split,
};

/// A parsed frame of a received message. Metadata and body are not copied: the frame contains the
/// ranges of their bytes in the message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Frame {
    /// A call of a method.
    Request {
        id: CallId,
        codec: u8,
        method: u32,
        /// Time limit of the call; `None` without a deadline.
        limit: Option<Duration>,
        metadata: Range<usize>,
        body: Range<usize>,
    },
    /// The result or the service's error of a call.
    Response {
        id: CallId,
        codec: u8,
        is_error: bool,
        /// Number of stream items that precede the response; `None` if the handler sends no stream.
        items: Option<u32>,
        body: Range<usize>,
    },
    /// The reason for which a call has no response.
    Status {
        id: CallId,
        status: u16,
        body: Range<usize>,
    },
    /// Consecutive items of a stream.
    Items {
        id: CallId,
        codec: u8,
        /// Sequence number of the first item.
        first: u32,
        /// Number of items, each preceded by its length. 0 if the body is a single item without a
        /// length.
        count: u16,
        body: Range<usize>,
    },
    /// The end of the caller's stream, with the total number of its items.
    End { id: CallId, items: u32 },
    /// Additional numbers of items and bytes that the receiver of a stream allows its peer to send.
    Window { id: CallId, items: u32, bytes: u32 },
    /// The cancellation of a call by its caller.
    Cancel { id: CallId },
    /// The limits of the peer, which are its first frame.
    Settings {
        settings: Settings,
        /// Metadata of the connection.
        metadata: Range<usize>,
    },
    /// The announcement that the sender closes the connection, with the reason.
    Goodbye { status: u16, body: Range<usize> },
    /// A frame about bulk memory.
    Bulk(BulkFrame),
}

/// A parsed frame about bulk memory, which one end lends to the other. `lease` identifies the
/// memory, and `at` is an offset in the memory in bytes. `tag` is the number of a request, which
/// the answer repeats.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum BulkFrame {
    /// A request of the borrower for the bytes of a piece of leased memory.
    Read {
        lease: LeaseId,
        tag: u32,
        at: u64,
        len: u32,
    },
    /// A piece to be written to leased memory.
    Write {
        lease: LeaseId,
        tag: u32,
        at: u64,
        body: Range<usize>,
    },
    /// The result of a read or write of a piece.
    Answer {
        lease: LeaseId,
        tag: u32,
        /// Set if the lease has ended, so that no byte was read or written.
        has_ended: bool,
        body: Range<usize>,
    },
    /// The owner's request that the borrower stop accessing the memory.
    Revoke { lease: LeaseId },
    /// The confirmation of the borrower that it no longer accesses the memory.
    Release { lease: LeaseId },
}

impl Frame {
    /// Parses a frame of `message`. `header` are the fields that every frame has, and `rest` is the
    /// range of the bytes after them.
    pub(super) fn parse(
        header: &[u8; FRAME_HEADER_LEN],
        message: &[u8],
        rest: Range<usize>,
    ) -> Result<Self, Violation> {
        let &[number, codec, a0, a1, ..] = header;
        let argument = u16::from_be_bytes([a0, a1]);
        let id = CallId {
            index: read_u32(header, 8),
            generation: read_u32(header, 12),
        };
        // Only some kinds of frames use the codec, the argument or the ID. Unused fields must be
        // zero.
        let has_codec = matches!(
            number,
            frame_kind::REQUEST | frame_kind::RESPONSE | frame_kind::ITEMS
        );
        let has_argument = matches!(
            number,
            frame_kind::REQUEST
                | frame_kind::RESPONSE
                | frame_kind::STATUS
                | frame_kind::ITEMS
                | frame_kind::GOODBYE
                | frame_kind::BULK_ANSWER
        );
        let has_id = !matches!(number, frame_kind::SETTINGS | frame_kind::GOODBYE);
        if !(frame_kind::REQUEST..=frame_kind::RELEASE).contains(&number) {
            return Err(Violation::Kind(number));
        }
        if (!has_codec && codec != 0)
            || (!has_argument && argument != 0)
            || (!has_id && (id.index != 0 || id.generation != 0))
        {
            return Err(Violation::Fields);
        }
        let part = |len| split(&rest, len).ok_or(Violation::Short);
        let word = |range: &Range<usize>| read_u32(message, range.start);
        Ok(match number {
            frame_kind::REQUEST => {
                let (numbers, rest) = part(8)?;
                let (metadata, body) =
                    split(&rest, usize::from(argument)).ok_or(Violation::Short)?;
                Self::Request {
                    id,
                    codec,
                    method: word(&numbers),
                    limit: match read_u32(message, numbers.start + 4) {
                        0 | u32::MAX => None,
                        micros => Some(Duration::from_micros(micros.into())),
                    },
                    metadata,
                    body,
                }
            }
            frame_kind::RESPONSE => {
                if argument & !(frame_kind::IS_ERROR | frame_kind::HAS_ITEMS) != 0 {
                    return Err(Violation::Fields);
                }
                let (numbers, body) = match argument & frame_kind::HAS_ITEMS {
                    0 => part(0)?,
                    _ => part(4)?,
                };
                Self::Response {
                    id,
                    codec,
                    is_error: argument & frame_kind::IS_ERROR != 0,
                    items: (!numbers.is_empty()).then(|| word(&numbers)),
                    body,
                }
            }
            frame_kind::STATUS => Self::Status {
                id,
                status: argument,
                body: rest,
            },
            frame_kind::ITEMS => {
                let (numbers, body) = part(4)?;
                Self::Items {
                    id,
                    codec,
                    first: word(&numbers),
                    count: argument,
                    body,
                }
            }
            frame_kind::END if rest.len() == 4 => Self::End {
                id,
                items: word(&rest),
            },
            frame_kind::WINDOW if rest.len() == 8 => Self::Window {
                id,
                items: word(&rest),
                bytes: read_u32(message, rest.start + 4),
            },
            frame_kind::CANCEL if rest.is_empty() => Self::Cancel { id },
            frame_kind::SETTINGS => {
                let settings = message.get(rest.clone()).and_then(Settings::decode);
                let (_, metadata) = part(Settings::LEN).map_err(|_| Violation::Fields)?;
                Self::Settings {
                    settings: settings.ok_or(Violation::Fields)?,
                    metadata,
                }
            }
            frame_kind::GOODBYE => Self::Goodbye {
                status: argument,
                body: rest,
            },
            frame_kind::BULK_READ if rest.len() == 16 => Self::Bulk(BulkFrame::Read {
                lease: LeaseId::from_words(id),
                tag: word(&rest),
                at: read_u64(message, rest.start + 4),
                len: read_u32(message, rest.start + 12),
            }),
            frame_kind::BULK_WRITE => {
                let (numbers, body) = part(12)?;
                Self::Bulk(BulkFrame::Write {
                    lease: LeaseId::from_words(id),
                    tag: word(&numbers),
                    at: read_u64(message, numbers.start + 4),
                    body,
                })
            }
            frame_kind::BULK_ANSWER if argument <= 1 => {
                let (numbers, body) = part(4)?;
                Self::Bulk(BulkFrame::Answer {
                    lease: LeaseId::from_words(id),
                    tag: word(&numbers),
                    has_ended: argument == 1,
                    body,
                })
            }
            frame_kind::REVOKE if rest.is_empty() => Self::Bulk(BulkFrame::Revoke {
                lease: LeaseId::from_words(id),
            }),
            frame_kind::RELEASE if rest.is_empty() => Self::Bulk(BulkFrame::Release {
                lease: LeaseId::from_words(id),
            }),
            _ => return Err(Violation::Fields),
        })
    }
}
