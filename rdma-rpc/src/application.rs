//! The error that a handler returns to its caller.

use std::convert::Infallible;
use std::fmt;

use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::codec::{Codec, CodecError, Postcard};

/// An error that a handler returns and its caller receives: a code, a message, and details of any type.
///
/// A handler may return any error type that converts into this type.
///
/// ```
/// use rdma_rpc::ApplicationError;
///
/// enum StoreError {
///     NotFound,
///     Full { bytes: u64 },
/// }
///
/// impl From<StoreError> for ApplicationError {
///     fn from(error: StoreError) -> Self {
///         match error {
///             StoreError::NotFound => Self::new(1, "no such key"),
///             StoreError::Full { bytes } => Self::new(2, "the store is full").with_details(&bytes),
///         }
///     }
/// }
///
/// let error = ApplicationError::from(StoreError::Full { bytes: 4096 });
/// assert_eq!(error.code(), 2);
/// assert_eq!(error.details::<u64>().unwrap(), 4096);
/// ```
///
/// `Debug` prints the same text as `Display`.
#[derive(Clone, PartialEq, Eq, thiserror::Error)]
#[error("{message} (code {code})")]
pub struct ApplicationError {
    code: u32,
    message: String,
    details: Vec<u8>,
}

impl fmt::Debug for ApplicationError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl ApplicationError {
    /// Creates an error without details. The application defines the meaning of `code`.
    pub fn new(code: u32, message: impl Into<String>) -> Self {
        Self {
            code,
            message: message.into(),
            details: Vec::new(),
        }
    }

    /// Adds details, encoded with [`Postcard`]. If the details cannot be encoded, logs an error and
    /// returns `self` without them.
    #[must_use]
    pub fn with_details<T: Serialize + ?Sized>(mut self, details: &T) -> Self {
        match encode(details) {
            Ok(bytes) => self.details = bytes,
            Err(error) => {
                tracing::error!(%error, code = self.code, "an error's details are left out");
            }
        }
        self
    }

    /// Returns the code.
    pub fn code(&self) -> u32 {
        self.code
    }

    /// Returns the message.
    pub fn message(&self) -> &str {
        &self.message
    }

    /// Returns whether the error has details.
    pub fn has_details(&self) -> bool {
        !self.details.is_empty()
    }

    /// Decodes the details.
    ///
    /// # Errors
    ///
    /// If the error has no details, or they cannot be decoded as `T`.
    pub fn details<T: DeserializeOwned>(&self) -> Result<T, CodecError> {
        Postcard::decode(&self.details)
    }

    /// Encodes the error as the body of a failure message:
    ///
    /// ```text
    /// byte 0..4   4..8               8..
    ///      code   message's length   the message, in UTF-8; then the details
    /// ```
    pub(crate) fn to_bytes(&self) -> Vec<u8> {
        let len = u32::try_from(self.message.len()).unwrap_or(u32::MAX);
        let message = &self.message.as_bytes()[..len as usize];
        let numbers = [self.code.to_be_bytes(), len.to_be_bytes()].concat();
        [&numbers, message, &self.details].concat()
    }

    /// Decodes the body of a failure message, which may hold any bytes; `None` if it is too short.
    pub(crate) fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let (&code, rest) = bytes.split_first_chunk::<4>()?;
        let (&len, rest) = rest.split_first_chunk::<4>()?;
        let len = usize::try_from(u32::from_be_bytes(len)).ok()?;
        let (message, details) = rest.split_at_checked(len)?;
        Some(Self {
            code: u32::from_be_bytes(code),
            message: String::from_utf8_lossy(message).into_owned(),
            details: details.to_vec(),
        })
    }
}

fn encode<T: Serialize + ?Sized>(value: &T) -> Result<Vec<u8>, CodecError> {
    let mut bytes = vec![0; Postcard::encoded_len(value)?];
    match Postcard::encode(value, &mut bytes)? {
        Some(len) => bytes.truncate(len),
        None => return Err(CodecError::new("it is longer than it said")),
    }
    Ok(bytes)
}

impl From<Infallible> for ApplicationError {
    fn from(never: Infallible) -> Self {
        match never {}
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn anything_is_parsed_without_panicking(bytes in prop::collection::vec(any::<u8>(), 0..64)) {
            drop(ApplicationError::from_bytes(&bytes));
        }

        #[test]
        fn errors_round_trip(code: u32, message: String, details: Option<(u8, String)>) {
            let mut error = ApplicationError::new(code, message);
            if let Some(details) = &details {
                error = error.with_details(details);
            }
            prop_assert_eq!(ApplicationError::from_bytes(&error.to_bytes()), Some(error.clone()));
            prop_assert_eq!(error.details().ok(), details);
        }

        #[test]
        fn cut_errors_are_refused(cut in 0_usize..12) {
            let bytes = ApplicationError::new(1, "four").to_bytes();
            prop_assert_eq!(ApplicationError::from_bytes(&bytes[..cut]), None);
        }
    }
}
