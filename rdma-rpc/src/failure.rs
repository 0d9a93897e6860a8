//! Failures that a server sends in place of a response.

use crate::application::ApplicationError;
use crate::error::Error;

/// The reason why a server sends no response to a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Failure {
    /// The handler returned an error.
    Application(ApplicationError),
    /// The server has no method of the requested name.
    UnknownMethod,
    /// The request could not be decoded.
    BadRequest(String),
    /// The handler panicked.
    Panicked,
    /// The server has reached its limit of concurrent calls.
    Overloaded,
    /// The server accepts no new calls.
    ShuttingDown,
    /// The request is longer than the server's limit.
    RequestTooLarge { limit: u64 },
    /// The response is longer than the limit of the server or of the client.
    ResponseTooLarge { len: u64 },
    /// The response could not be encoded or sent.
    BadResponse(String),
}

impl Failure {
    /// Returns the status code for the header, and the body that follows the header.
    pub(crate) fn to_parts(&self) -> (u16, Vec<u8>) {
        match self {
            Self::Application(error) => (1, error.to_bytes()),
            Self::UnknownMethod => (2, Vec::new()),
            Self::BadRequest(reason) => (3, reason.as_bytes().to_vec()),
            Self::Panicked => (4, Vec::new()),
            Self::Overloaded => (5, Vec::new()),
            Self::ShuttingDown => (6, Vec::new()),
            Self::RequestTooLarge { limit } => (7, limit.to_be_bytes().to_vec()),
            Self::ResponseTooLarge { len } => (8, len.to_be_bytes().to_vec()),
            Self::BadResponse(reason) => (9, reason.as_bytes().to_vec()),
        }
    }

    /// Decodes a received status code and body, which may hold anything; `None` if they are not a valid
    /// failure.
    pub(crate) fn from_parts(status: u16, body: &[u8]) -> Option<Self> {
        let text = || String::from_utf8_lossy(body).into_owned();
        let number = || body.try_into().ok().map(u64::from_be_bytes);
        Some(match status {
            1 => Self::Application(ApplicationError::from_bytes(body)?),
            2 => Self::UnknownMethod,
            3 => Self::BadRequest(text()),
            4 => Self::Panicked,
            5 => Self::Overloaded,
            6 => Self::ShuttingDown,
            7 => Self::RequestTooLarge { limit: number()? },
            8 => Self::ResponseTooLarge { len: number()? },
            9 => Self::BadResponse(text()),
            _ => return None,
        })
    }

    /// Returns the client's error for a call of `method` whose request had `len` bytes.
    pub(crate) fn into_error(self, method: &str, len: usize) -> Error {
        let size = |bytes: u64| usize::try_from(bytes).unwrap_or(usize::MAX);
        match self {
            Self::Application(error) => Error::Application(error),
            Self::UnknownMethod => Error::UnknownMethod {
                method: method.to_owned(),
            },
            Self::BadRequest(reason) => Error::BadRequest { reason },
            Self::Panicked => Error::Panicked,
            Self::Overloaded => Error::Overloaded,
            Self::ShuttingDown => Error::ShuttingDown,
            Self::RequestTooLarge { limit } => Error::TooLarge {
                what: "request",
                len,
                limit: Some(size(limit)),
            },
            Self::ResponseTooLarge { len } => Error::TooLarge {
                what: "response",
                len: size(len),
                limit: None,
            },
            Self::BadResponse(reason) => Error::BadResponse { reason },
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn anything_is_parsed_without_panicking(
            status in 0_u16..12,
            body in prop::collection::vec(any::<u8>(), 0..64),
        ) {
            drop(Failure::from_parts(status, &body));
        }
    }

    #[test]
    fn failures_round_trip() {
        let application = ApplicationError::new(7, "no such key").with_details(&"key");
        for failure in [
            Failure::Application(application),
            Failure::UnknownMethod,
            Failure::BadRequest("too short".to_owned()),
            Failure::Panicked,
            Failure::Overloaded,
            Failure::ShuttingDown,
            Failure::RequestTooLarge { limit: 4096 },
            Failure::ResponseTooLarge { len: u64::MAX },
            Failure::BadResponse("no length".to_owned()),
        ] {
            let (status, body) = failure.to_parts();
            assert_eq!(Failure::from_parts(status, &body), Some(failure));
        }
    }

    #[test]
    fn unknown_and_cut_failures_are_refused() {
        assert_eq!(Failure::from_parts(0, b""), None);
        assert_eq!(Failure::from_parts(99, b""), None);
        assert_eq!(Failure::from_parts(7, b"1234567"), None);
        assert_eq!(Failure::from_parts(1, b"1234567"), None);
    }
}
