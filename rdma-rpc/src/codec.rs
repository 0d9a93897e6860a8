//! Encoding of requests and responses.

use std::error::Error as StdError;
use std::fmt;
use std::sync::Arc;

use serde::Serialize;
use serde::de::DeserializeOwned;

/// A format of requests and responses.
///
/// Every request and response names its codec, so that a mismatch between the two ends is detected at
/// the first call. Implementations are types without data: they are selected as type parameters of
/// [`Client::codec`](crate::Client::codec) and [`Router::codec`](crate::Router::codec).
pub trait Codec: 'static {
    /// Identifies the codec in messages. Numbers up to 63 are reserved for this crate.
    const ID: u8;

    /// Encodes a value into the start of `room` and returns its encoded length in bytes; `None` if the
    /// value does not fit.
    ///
    /// # Errors
    ///
    /// If the value cannot be represented in this format.
    fn encode<T: Serialize + ?Sized>(
        value: &T,
        room: &mut [u8],
    ) -> Result<Option<usize>, CodecError>;

    /// Returns the encoded length of a value in bytes.
    ///
    /// # Errors
    ///
    /// If the value cannot be represented in this format.
    fn encoded_len<T: Serialize + ?Sized>(value: &T) -> Result<usize, CodecError>;

    /// Decodes a value from `bytes`, which must hold that value and nothing else. `bytes` come from the
    /// peer and may hold anything.
    ///
    /// # Errors
    ///
    /// If `bytes` are not exactly one encoded value of type `T`.
    fn decode<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, CodecError>;
}

/// An error of encoding a value or decoding received bytes. Clones share their cause.
///
/// `Debug` prints the same text as `Display`.
#[derive(Clone, thiserror::Error)]
#[error("{0}")]
pub struct CodecError(Arc<dyn StdError + Send + Sync>);

impl fmt::Debug for CodecError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl CodecError {
    /// Creates an error from its cause, which may be a string.
    pub fn new(cause: impl Into<Box<dyn StdError + Send + Sync>>) -> Self {
        Self(Arc::from(cause.into()))
    }
}

/// The [Postcard](https://docs.rs/postcard) format, which is compact and the default.
///
/// For byte strings, use `bytes::Bytes` or `serde_bytes::ByteBuf`, which are copied as a whole: a
/// `Vec<u8>` is encoded and decoded byte by byte.
#[derive(Debug, Clone, Copy, Default)]
pub struct Postcard;

impl Codec for Postcard {
    const ID: u8 = 1;

    fn encode<T: Serialize + ?Sized>(
        value: &T,
        room: &mut [u8],
    ) -> Result<Option<usize>, CodecError> {
        match postcard::to_slice(value, room) {
            Ok(written) => Ok(Some(written.len())),
            Err(postcard::Error::SerializeBufferFull) => Ok(None),
            Err(error) => Err(CodecError::new(error)),
        }
    }

    fn encoded_len<T: Serialize + ?Sized>(value: &T) -> Result<usize, CodecError> {
        let flavor = postcard::ser_flavors::Size::default();
        postcard::serialize_with_flavor(value, flavor).map_err(CodecError::new)
    }

    fn decode<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, CodecError> {
        match postcard::take_from_bytes(bytes) {
            Ok((value, [])) => Ok(value),
            Ok((_, rest)) => Err(CodecError::new(format!(
                "{} bytes are left over behind the value",
                rest.len()
            ))),
            Err(error) => Err(CodecError::new(error)),
        }
    }
}

/// The codec ID of unencoded bodies: [`Client::call_raw`](crate::Client::call_raw).
pub(crate) const RAW: u8 = 0;

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde::Deserialize;

    use super::*;

    #[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
    enum Shape {
        Nothing,
        Text(String),
        Numbers { few: Vec<u64>, maybe: Option<i16> },
    }

    proptest! {
        #[test]
        fn anything_is_decoded_without_panicking(bytes in prop::collection::vec(any::<u8>(), 0..100)) {
            drop(Postcard::decode::<Shape>(&bytes));
            drop(Postcard::decode::<Vec<(String, Shape)>>(&bytes));
        }

        #[test]
        fn values_round_trip(few: Vec<u64>, maybe: Option<i16>) {
            let value = Shape::Numbers { few, maybe };
            let len = Postcard::encoded_len(&value).unwrap();
            let mut room = vec![0; len];
            prop_assert_eq!(Postcard::encode(&value, &mut room).unwrap(), Some(len));
            prop_assert_eq!(Postcard::decode::<Shape>(&room).unwrap(), value.clone());
            prop_assert_eq!(Postcard::encode(&value, &mut room[1..]).unwrap(), None);
        }
    }

    #[test]
    fn a_length_that_is_not_there_is_refused_without_allocating_it() {
        let error = Postcard::decode::<Vec<u64>>(&[0xff, 0xff, 0xff, 0xff, 0x7f]).unwrap_err();
        assert!(!error.to_string().is_empty());
    }

    #[test]
    fn what_is_left_over_is_refused() {
        let error = Postcard::decode::<u8>(&[1, 2, 3]).unwrap_err();
        assert_eq!(error.to_string(), "2 bytes are left over behind the value");
    }
}
