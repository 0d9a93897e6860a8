//! The wire format of RPC messages.
//!
//! Every RPC message is one message of rdma-async. Numbers are in network byte order.
//!
//! ```text
//! byte 0         1      2..4       4       5..8   8..16   16..24           24..
//!      version   kind   argument   codec   zero   id      deadline in us   method, body
//!
//! kind           argument             what follows
//! 1  request     method's length      the method's name, in UTF-8; then the body
//! 2  response    0                    the body
//! 3  failure     status, see Failure  details of the failure
//! 4  goodbye     0                    nothing
//! ```
//!
//! The caller chooses the id, and the answer repeats it. The deadline is the time from the arrival of
//! the request until the caller stops waiting, or 0 if the call has no deadline. It is a duration, so
//! the clocks of the two ends need not agree. The codec is that of the body. A goodbye is the last
//! message of a server, which reads no more requests.

use std::ops::Range;
use std::time::Duration;

/// The version of the format, in the first byte of every message.
const VERSION: u8 = 1;

/// The length of the header of every message in bytes.
pub(crate) const HEADER_LEN: usize = 24;

/// The longest method name, in bytes.
pub(crate) const METHOD_LIMIT: usize = 1024;

/// The parsed header of a received message, with the ranges of its parts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Head {
    Request {
        id: u64,
        deadline: Option<Duration>,
        codec: u8,
        /// The method's name, which is valid UTF-8.
        method: Range<usize>,
        body: Range<usize>,
    },
    Response {
        id: u64,
        codec: u8,
        body: Range<usize>,
    },
    Failure {
        id: u64,
        status: u16,
        body: Range<usize>,
    },
    Goodbye,
}

/// A violation of the wire format or the protocol by the peer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Violation {
    #[error("the peer sent a message shorter than a header")]
    Short,
    #[error("the peer speaks another version of this protocol, or another protocol")]
    Version,
    #[error("the peer sent a message of an unknown kind")]
    Kind,
    #[error("the peer sent a header with fields set that its kind does not have")]
    Fields,
    #[error("the peer sent a method name that is too long, incomplete or not UTF-8")]
    Method,
    #[error("the peer sent a request to a client")]
    Request,
    #[error("the peer sent an answer to a server")]
    Answer,
}

impl Head {
    /// Parses the header of a received message, which may hold any bytes.
    pub(crate) fn parse(message: &[u8]) -> Result<Self, Violation> {
        let (header, rest) = message
            .split_first_chunk::<HEADER_LEN>()
            .ok_or(Violation::Short)?;
        let &[version, kind, a0, a1, codec, z0, z1, z2, ..] = header;
        let argument = u16::from_be_bytes([a0, a1]);
        let long = |at: usize| {
            let bytes = header[at..at + 8].try_into().expect("eight bytes");
            u64::from_be_bytes(bytes)
        };
        let (id, deadline) = (long(8), long(16));
        if version != VERSION {
            return Err(Violation::Version);
        }
        if !(1..=4).contains(&kind) {
            return Err(Violation::Kind);
        }
        if [z0, z1, z2] != [0; 3] || (kind != 1 && deadline != 0) {
            return Err(Violation::Fields);
        }
        let body = HEADER_LEN..message.len();
        match kind {
            1 => {
                let len = usize::from(argument);
                let name = rest.get(..len).filter(|_| len <= METHOD_LIMIT);
                if name.is_none_or(|name| std::str::from_utf8(name).is_err()) {
                    return Err(Violation::Method);
                }
                Ok(Self::Request {
                    id,
                    deadline: (deadline != 0).then(|| Duration::from_micros(deadline)),
                    codec,
                    method: HEADER_LEN..HEADER_LEN + len,
                    body: HEADER_LEN + len..message.len(),
                })
            }
            2 if argument == 0 => Ok(Self::Response { id, codec, body }),
            3 if codec == 0 => Ok(Self::Failure {
                id,
                status: argument,
                body,
            }),
            4 if argument == 0 && codec == 0 && id == 0 && rest.is_empty() => Ok(Self::Goodbye),
            _ => Err(Violation::Fields),
        }
    }
}

/// The header of a message to be sent. The method's name and the body are written separately, after the
/// header.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Header {
    Request {
        id: u64,
        deadline: Duration,
        codec: u8,
        /// The length of the method's name in bytes, at most [`METHOD_LIMIT`].
        method_len: u16,
    },
    Response {
        id: u64,
        codec: u8,
    },
    Failure {
        id: u64,
        status: u16,
    },
    Goodbye,
}

impl Header {
    pub(crate) fn to_bytes(self) -> [u8; HEADER_LEN] {
        let (kind, argument, codec, id, deadline) = match self {
            Self::Request {
                id,
                deadline,
                codec,
                method_len,
            } => {
                // 0 would mean that the call has no deadline.
                let deadline = u64::try_from(deadline.as_micros()).unwrap_or(u64::MAX);
                (1, method_len, codec, id, deadline.max(1))
            }
            Self::Response { id, codec } => (2, 0, codec, id, 0),
            Self::Failure { id, status } => (3, status, 0, id, 0),
            Self::Goodbye => (4, 0, 0, 0, 0),
        };
        let mut bytes = [0; HEADER_LEN];
        bytes[0] = VERSION;
        bytes[1] = kind;
        bytes[2..4].copy_from_slice(&argument.to_be_bytes());
        bytes[4] = codec;
        bytes[8..16].copy_from_slice(&id.to_be_bytes());
        bytes[16..].copy_from_slice(&deadline.to_be_bytes());
        bytes
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn message(header: Header, rest: &[u8]) -> Vec<u8> {
        [&header.to_bytes()[..], rest].concat()
    }

    fn request(id: u64, deadline: Duration, method: &str, body: &[u8]) -> Vec<u8> {
        let header = Header::Request {
            id,
            deadline,
            codec: 1,
            method_len: u16::try_from(method.len()).unwrap(),
        };
        message(header, &[method.as_bytes(), body].concat())
    }

    proptest! {
        #[test]
        fn anything_is_parsed_without_panicking(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            drop(Head::parse(&bytes));
        }

        #[test]
        fn parts_of_what_is_nearly_a_message_are_inside_of_it(
            start in prop::array::uniform8(0_u8..6),
            rest in prop::collection::vec(any::<u8>(), 0..80),
        ) {
            let mut bytes = [&start[..], &rest].concat();
            bytes[0] = VERSION;
            bytes[5..8].fill(0);
            match Head::parse(&bytes) {
                Ok(Head::Request { method, body, .. }) => {
                    prop_assert!(std::str::from_utf8(&bytes[method]).is_ok());
                    prop_assert!(body.end == bytes.len() && body.start <= body.end);
                }
                Ok(Head::Response { body, .. } | Head::Failure { body, .. }) => {
                    prop_assert_eq!(body, HEADER_LEN..bytes.len());
                }
                Ok(Head::Goodbye) | Err(_) => {}
            }
        }

        #[test]
        fn requests_round_trip(
            id: u64,
            micros in 1..u64::MAX,
            method in ".{0,64}",
            body in prop::collection::vec(any::<u8>(), 0..64),
        ) {
            let deadline = Duration::from_micros(micros);
            let bytes = request(id, deadline, &method, &body);
            let start = HEADER_LEN + method.len();
            prop_assert_eq!(Head::parse(&bytes), Ok(Head::Request {
                id,
                deadline: Some(deadline),
                codec: 1,
                method: HEADER_LEN..start,
                body: start..bytes.len(),
            }));
        }

        #[test]
        fn cut_requests_are_refused(cut in 0..HEADER_LEN + 4) {
            let bytes = request(7, Duration::from_secs(1), "call", b"");
            prop_assert!(Head::parse(&bytes[..cut]).is_err());
        }
    }

    #[test]
    fn answers_round_trip() {
        let body = HEADER_LEN..HEADER_LEN + 3;
        assert_eq!(
            Head::parse(&message(Header::Response { id: 9, codec: 1 }, b"abc")),
            Ok(Head::Response {
                id: 9,
                codec: 1,
                body: body.clone()
            })
        );
        assert_eq!(
            Head::parse(&message(Header::Failure { id: 9, status: 4 }, b"abc")),
            Ok(Head::Failure {
                id: 9,
                status: 4,
                body
            })
        );
        assert_eq!(
            Head::parse(&message(Header::Goodbye, b"")),
            Ok(Head::Goodbye)
        );
    }

    #[test]
    fn what_is_wrong_is_told() {
        let good = request(1, Duration::from_millis(5), "call", b"body");
        let spoiled = |at: usize, value: u8| {
            let mut bytes = good.clone();
            bytes[at] = value;
            Head::parse(&bytes).unwrap_err()
        };
        assert_eq!(Head::parse(&good[..23]), Err(Violation::Short));
        assert_eq!(spoiled(0, 2), Violation::Version);
        assert_eq!(spoiled(1, 0), Violation::Kind);
        assert_eq!(spoiled(1, 5), Violation::Kind);
        assert_eq!(spoiled(1, 4), Violation::Fields);
        assert_eq!(spoiled(6, 1), Violation::Fields);
        assert_eq!(spoiled(3, 9), Violation::Method);
        assert_eq!(spoiled(2, 0xff), Violation::Method);
        assert_eq!(spoiled(HEADER_LEN, 0xff), Violation::Method);
        assert_eq!(
            Head::parse(&message(Header::Goodbye, b"!")),
            Err(Violation::Fields)
        );
    }

    #[test]
    fn no_deadline_is_shorter_than_the_shortest() {
        let bytes = request(1, Duration::from_nanos(1), "call", b"");
        let Ok(Head::Request { deadline, .. }) = Head::parse(&bytes) else {
            panic!("it is a request");
        };
        assert_eq!(deadline, Some(Duration::from_micros(1)));
    }
}
