//! [`Status`]: the reason that a server sends if a call has no response.

use std::borrow::Cow;
use std::time::Duration;

use crate::error::Error;

/// Reason for which a call has no response. The server sends the status instead of the response. In
/// a frame, a status consists of a number that identifies the reason, and a body: a text, two
/// numbers, or nothing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Status {
    UnknownMethod,
    BadRequest(Cow<'static, str>),
    Panicked,
    Overloaded(Cow<'static, str>),
    ShuttingDown,
    TooLarge { len: u64, limit: u64 },
    BadResponse(Cow<'static, str>),
    DeadlineExceeded,
    Cancelled,
    Denied(Cow<'static, str>),
    ExecutionUnknown,
}

/// Maximum length of the text of a status in bytes, so that a status always fits into a batch with
/// other frames. A longer text, such as a long error, is truncated.
const MAX_TEXT_LEN: usize = 512;

impl Status {
    /// Encodes the status for a frame. Returns the number of the status, and the body of the frame.
    /// The body contains the reason as a text, or the two numbers of [`Self::TooLarge`]. The body
    /// of any other status is empty.
    pub(crate) fn to_parts(&self) -> (u16, Cow<'_, [u8]>) {
        let text = |number, text: &'_ str| {
            let ends = (0..=MAX_TEXT_LEN.min(text.len())).rev();
            let end = ends.into_iter().find(|&end| text.is_char_boundary(end));
            let text = &text[..end.unwrap_or(0)];
            (number, Cow::Owned(text.as_bytes().to_vec()))
        };
        let none = |number| (number, Cow::Borrowed(&[][..]));
        match self {
            Self::UnknownMethod => none(1),
            Self::BadRequest(reason) => text(2, reason),
            Self::Panicked => none(3),
            Self::Overloaded(reason) => text(4, reason),
            Self::ShuttingDown => none(5),
            Self::TooLarge { len, limit } => {
                let numbers = [len.to_be_bytes(), limit.to_be_bytes()].concat();
                (6, Cow::Owned(numbers))
            }
            Self::BadResponse(reason) => text(7, reason),
            Self::DeadlineExceeded => none(8),
            Self::Cancelled => none(9),
            Self::Denied(reason) => text(10, reason),
            Self::ExecutionUnknown => none(11),
        }
    }

    /// Decodes the status with this number and body from a received frame, which may contain
    /// arbitrary bytes. Returns `None` if the number is unknown or the body is malformed.
    pub(crate) fn from_parts(number: u16, body: &[u8]) -> Option<Self> {
        let text = || {
            let body = body.get(..MAX_TEXT_LEN).unwrap_or(body);
            Cow::Owned(String::from_utf8_lossy(body).into_owned())
        };
        Some(match number {
            1 => Self::UnknownMethod,
            2 => Self::BadRequest(text()),
            3 => Self::Panicked,
            4 => Self::Overloaded(text()),
            5 => Self::ShuttingDown,
            6 => {
                let (len, limit) = body.split_first_chunk::<8>()?;
                Self::TooLarge {
                    len: u64::from_be_bytes(*len),
                    limit: u64::from_be_bytes(limit.try_into().ok()?),
                }
            }
            7 => Self::BadResponse(text()),
            8 => Self::DeadlineExceeded,
            9 => Self::Cancelled,
            10 => Self::Denied(text()),
            11 => Self::ExecutionUnknown,
            _ => return None,
        })
    }

    /// Converts the status to the error that the caller gets. `method` and `limit` are the name of
    /// the called method and the time limit of the call, for the text of the error.
    pub(crate) fn into_error(self, method: Cow<'static, str>, limit: Duration) -> Error {
        let size = |bytes: u64| usize::try_from(bytes).unwrap_or(usize::MAX);
        match self {
            Self::UnknownMethod => Error::UnknownMethod { method },
            Self::BadRequest(reason) => Error::BadRequest {
                reason: reason.into(),
            },
            Self::Panicked => Error::Panicked,
            Self::Overloaded(reason) => Error::Overloaded {
                reason: reason.into(),
            },
            Self::ShuttingDown => Error::ShuttingDown,
            Self::TooLarge { len, limit } => Error::TooLarge {
                len: size(len),
                limit: size(limit),
            },
            Self::BadResponse(reason) => Error::BadResponse {
                reason: reason.into(),
            },
            Self::DeadlineExceeded => Error::DeadlineExceeded { method, limit },
            Self::Cancelled => Error::Cancelled,
            Self::ExecutionUnknown => Error::ExecutionUnknown { method },
            Self::Denied(reason) => Error::Denied {
                reason: reason.into(),
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn arbitrary_bytes_are_decoded_without_panicking(
            number in 0_u16..12,
            body in prop::collection::vec(any::<u8>(), 0..600),
        ) {
            drop(Status::from_parts(number, &body));
        }
    }

    #[test]
    fn statuses_round_trip() {
        for status in [
            Status::UnknownMethod,
            Status::BadRequest("too short".into()),
            Status::Panicked,
            Status::Overloaded("too many".into()),
            Status::ShuttingDown,
            Status::TooLarge {
                len: u64::MAX,
                limit: 4096,
            },
            Status::BadResponse("no length".into()),
            Status::DeadlineExceeded,
            Status::Cancelled,
        ] {
            let (number, body) = status.to_parts();
            assert_eq!(Status::from_parts(number, &body), Some(status));
        }
    }

    #[test]
    fn unknown_and_truncated_statuses_are_refused() {
        assert_eq!(Status::from_parts(0, b""), None);
        assert_eq!(Status::from_parts(99, b""), None);
        assert_eq!(Status::from_parts(6, b"123456789012345"), None);
    }

    #[test]
    fn a_long_reason_is_truncated_at_a_character_boundary() {
        let reason = "ü".repeat(MAX_TEXT_LEN);
        let status = Status::BadRequest(reason.into());
        let (_, body) = status.to_parts();
        assert!(body.len() <= MAX_TEXT_LEN && std::str::from_utf8(&body).is_ok());
    }
}
