//! [`Head`]: a received frame, with the ranges of its parts in the message.

use std::ops::Range;
use std::time::Duration;

use super::{CallId, FRAME_HEADER, LeaseId, Settings, Violation, kind, long, longer, split};

/// A parsed frame.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Head {
    Request {
        id: CallId,
        codec: u8,
        method: u32,
        /// Time until the caller stops waiting; `None` without a deadline.
        limit: Option<Duration>,
        metadata: Range<usize>,
        body: Range<usize>,
    },
    Response {
        id: CallId,
        codec: u8,
        is_error: bool,
        /// Number of the stream items that precede the response, if its call streams to the caller.
        items: Option<u32>,
        body: Range<usize>,
    },
    Status {
        id: CallId,
        status: u16,
        body: Range<usize>,
    },
    Items {
        id: CallId,
        codec: u8,
        /// Sequence number of the first item.
        first: u32,
        /// Number of items, each behind its length; 0 if the body is one item without its length.
        count: u16,
        body: Range<usize>,
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
    Settings {
        settings: Settings,
        /// Metadata of the connection.
        metadata: Range<usize>,
    },
    Goodbye {
        status: u16,
        body: Range<usize>,
    },
    Bulk(BulkHead),
}

/// A parsed frame of bulk memory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum BulkHead {
    Read {
        lease: LeaseId,
        tag: u32,
        at: u64,
        len: u32,
    },
    Write {
        lease: LeaseId,
        tag: u32,
        at: u64,
        body: Range<usize>,
    },
    Answer {
        lease: LeaseId,
        tag: u32,
        has_ended: bool,
        body: Range<usize>,
    },
    Revoke {
        lease: LeaseId,
    },
    Release {
        lease: LeaseId,
    },
}

impl Head {
    /// Parses a frame of `message` whose bytes after the header are `rest`.
    pub(super) fn parse(
        header: &[u8; FRAME_HEADER],
        message: &[u8],
        rest: Range<usize>,
    ) -> Result<Self, Violation> {
        let &[number, codec, a0, a1, ..] = header;
        let argument = u16::from_be_bytes([a0, a1]);
        let id = CallId {
            index: long(header, 8),
            generation: long(header, 12),
        };
        // Only the kinds with a body name a codec, and only some use the argument.
        let has_codec = matches!(number, kind::REQUEST | kind::RESPONSE | kind::ITEMS);
        let has_argument = matches!(
            number,
            kind::REQUEST
                | kind::RESPONSE
                | kind::STATUS
                | kind::ITEMS
                | kind::GOODBYE
                | kind::BULK_ANSWER
        );
        let has_id = !matches!(number, kind::SETTINGS | kind::GOODBYE);
        if !(kind::REQUEST..=kind::RELEASE).contains(&number) {
            return Err(Violation::Kind(number));
        }
        if (!has_codec && codec != 0)
            || (!has_argument && argument != 0)
            || (!has_id && (id.index != 0 || id.generation != 0))
        {
            return Err(Violation::Fields);
        }
        let part = |len| split(&rest, len).ok_or(Violation::Short);
        let word = |range: &Range<usize>| long(message, range.start);
        Ok(match number {
            kind::REQUEST => {
                let (numbers, rest) = part(8)?;
                let (metadata, body) =
                    split(&rest, usize::from(argument)).ok_or(Violation::Short)?;
                Self::Request {
                    id,
                    codec,
                    method: word(&numbers),
                    limit: match long(message, numbers.start + 4) {
                        0 | u32::MAX => None,
                        micros => Some(Duration::from_micros(micros.into())),
                    },
                    metadata,
                    body,
                }
            }
            kind::RESPONSE => {
                if argument & !(kind::IS_ERROR | kind::HAS_ITEMS) != 0 {
                    return Err(Violation::Fields);
                }
                let (numbers, body) = match argument & kind::HAS_ITEMS {
                    0 => part(0)?,
                    _ => part(4)?,
                };
                Self::Response {
                    id,
                    codec,
                    is_error: argument & kind::IS_ERROR != 0,
                    items: (!numbers.is_empty()).then(|| word(&numbers)),
                    body,
                }
            }
            kind::STATUS => Self::Status {
                id,
                status: argument,
                body: rest,
            },
            kind::ITEMS => {
                let (numbers, body) = part(4)?;
                Self::Items {
                    id,
                    codec,
                    first: word(&numbers),
                    count: argument,
                    body,
                }
            }
            kind::END if rest.len() == 4 => Self::End {
                id,
                items: word(&rest),
            },
            kind::WINDOW if rest.len() == 8 => Self::Window {
                id,
                items: word(&rest),
                bytes: long(message, rest.start + 4),
            },
            kind::CANCEL if rest.is_empty() => Self::Cancel { id },
            kind::SETTINGS => {
                let settings = message.get(rest.clone()).and_then(Settings::decode);
                let (_, metadata) = part(Settings::LEN).map_err(|_| Violation::Fields)?;
                Self::Settings {
                    settings: settings.ok_or(Violation::Fields)?,
                    metadata,
                }
            }
            kind::GOODBYE => Self::Goodbye {
                status: argument,
                body: rest,
            },
            kind::BULK_READ if rest.len() == 16 => Self::Bulk(BulkHead::Read {
                lease: LeaseId::from_words(id),
                tag: word(&rest),
                at: longer(message, rest.start + 4),
                len: long(message, rest.start + 12),
            }),
            kind::BULK_WRITE => {
                let (numbers, body) = part(12)?;
                Self::Bulk(BulkHead::Write {
                    lease: LeaseId::from_words(id),
                    tag: word(&numbers),
                    at: longer(message, numbers.start + 4),
                    body,
                })
            }
            kind::BULK_ANSWER if argument <= 1 => {
                let (numbers, body) = part(4)?;
                Self::Bulk(BulkHead::Answer {
                    lease: LeaseId::from_words(id),
                    tag: word(&numbers),
                    has_ended: argument == 1,
                    body,
                })
            }
            kind::REVOKE if rest.is_empty() => Self::Bulk(BulkHead::Revoke {
                lease: LeaseId::from_words(id),
            }),
            kind::RELEASE if rest.is_empty() => Self::Bulk(BulkHead::Release {
                lease: LeaseId::from_words(id),
            }),
            _ => return Err(Violation::Fields),
        })
    }
}
