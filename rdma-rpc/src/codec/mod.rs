//! Encoding of requests, responses, errors and stream items.

#[cfg(feature = "json")]
mod json;
mod postcard;
#[cfg(feature = "prost")]
mod prost;
mod raw;

use std::error::Error as StdError;
use std::fmt;
use std::sync::Arc;

#[cfg(feature = "json")]
pub use self::json::Json;
pub use self::postcard::Postcard;
#[cfg(feature = "prost")]
pub use self::prost::Prost;
pub use self::raw::Raw;
use crate::bulk;
use crate::payload::Payload;

/// A data format for the values in messages. A codec is a type without fields. A service names its
/// codec, as in `#[rdma_rpc::service(codec = rdma_rpc::Json)]`. The default codec is [`Postcard`].
///
/// Every request, response and item contains the number of its codec, so that the first call
/// detects a mismatch between the two ends. A codec implements [`Encode`] and [`Decode`] for the
/// types that the format can represent.
///
/// ```
/// use rdma_rpc::{Codec, CodecError, Decode, Encode};
///
/// /// Numbers of eight bytes, the least significant one first.
/// struct LittleEndian;
///
/// impl Codec for LittleEndian {
///     const ID: u8 = 64;
/// }
///
/// impl Encode<u64> for LittleEndian {
///     fn encode(value: &u64, room: &mut [u8]) -> Result<Option<usize>, CodecError> {
///         Ok(room.first_chunk_mut().map(|room| {
///             *room = value.to_le_bytes();
///             room.len()
///         }))
///     }
///
///     fn encoded_len(_: &u64) -> Result<usize, CodecError> {
///         Ok(8)
///     }
/// }
///
/// impl Decode<u64> for LittleEndian {
///     fn decode(bytes: &[u8]) -> Result<u64, CodecError> {
///         let bytes = bytes.try_into().map_err(CodecError::new)?;
///         Ok(u64::from_le_bytes(bytes))
///     }
/// }
/// ```
pub trait Codec: 'static {
    /// Number that identifies the codec in messages, so that an end detects that its peer uses
    /// another codec. Numbers up to 63 are reserved for this crate.
    const ID: u8;
}

/// A codec that can encode values of type `T`, such as the requests and responses that a program
/// sends.
pub trait Encode<T: ?Sized>: Codec {
    /// Encodes a value into the start of `room` and returns the encoded length in bytes, or `None`
    /// if `room` is too short.
    ///
    /// # Errors
    ///
    /// If the value cannot be represented in this format.
    fn encode(value: &T, room: &mut [u8]) -> Result<Option<usize>, CodecError>;

    /// Returns the encoded length of a value in bytes: the length that [`Self::encode`] returns.
    /// Called in order to allocate memory for a value that does not fit into a short message.
    ///
    /// # Errors
    ///
    /// If the value cannot be represented in this format.
    fn encoded_len(value: &T) -> Result<usize, CodecError>;
}

/// A codec that can decode values of type `T`, such as the requests and responses that a program
/// receives.
pub trait Decode<T>: Codec {
    /// Decodes a value from `bytes`, which must contain exactly one value. The bytes come from the
    /// peer and may be arbitrary.
    ///
    /// # Errors
    ///
    /// If `bytes` are not exactly one encoded value of type `T`.
    fn decode(bytes: &[u8]) -> Result<T, CodecError>;

    /// Returns the structure of the type `T`, such as its fields and their types, for the
    /// [reflection service](crate::Reflection). Returns `None` if the structure is unknown.
    #[cfg(feature = "reflection")]
    fn schema() -> Option<crate::Schema> {
        None
    }

    /// Decodes a value from a payload. The value may take ownership of the payload's memory, to
    /// avoid a copy.
    ///
    /// # Errors
    ///
    /// The errors of [`Self::decode`].
    fn decode_payload(payload: Payload) -> Result<T, CodecError> {
        Self::decode(&payload)
    }
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
    /// Creates a codec error from its cause: another error, or a text that describes the cause.
    pub fn new(cause: impl Into<Box<dyn StdError + Send + Sync>>) -> Self {
        Self(Arc::from(cause.into()))
    }

    /// Returns the error for a received body that cannot be decoded because the two ends use
    /// different codecs. The peer has used the codec number `received`, and this end expects the
    /// codec number `own`.
    pub(crate) fn codec_mismatch(received: u8, own: u8) -> Self {
        Self::new(format!("the codec is {received} and not {own}"))
    }
}

/// Codecs of the request, response and error of a method. Generated code names one of the
/// implementations, `ServiceCodec` or `RawCodec`.
#[doc(hidden)]
pub trait MethodCodecs: 'static {
    /// Codec of the method's request.
    type Request: Codec;
    /// Codec of the method's response.
    type Response: Codec;
    /// Codec of the service's errors.
    type Error: Codec;
}

/// The codecs of a method without the attribute `#[rpc(raw)]`. The request, the response and the
/// error are all encoded with the service's codec `C`.
#[doc(hidden)]
#[derive(Debug)]
pub struct ServiceCodec<C>(std::marker::PhantomData<C>);

impl<C: Codec> MethodCodecs for ServiceCodec<C> {
    type Request = C;
    type Response = C;
    type Error = C;
}

/// The codecs of a method with the attribute `#[rpc(raw)]`. The request and the response are raw
/// bytes ([`Raw`]). Only errors are encoded with the service's codec `C`.
#[doc(hidden)]
#[derive(Debug)]
pub struct RawCodec<C>(std::marker::PhantomData<C>);

impl<C: Codec> MethodCodecs for RawCodec<C> {
    type Request = Raw;
    type Response = Raw;
    type Error = C;
}

/// The body of a frame to be sent, such as a request. Encoded directly into the send buffer,
/// without a copy.
pub(crate) trait Encodable {
    /// Encodes this body of a frame into `room`, and returns the length of the encoded body in
    /// bytes. Returns `None` if `room` is too short.
    fn encode(&self, room: &mut [u8]) -> Result<Option<usize>, CodecError>;
    /// Returns the encoded length of this body in bytes. Used to allocate a buffer for a long body,
    /// which does not fit into a message with other frames.
    fn encoded_len(&self) -> Result<usize, CodecError>;
}

/// A value to be sent, with pointers to the functions that encode the value. With these pointers,
/// the code that sends the value is not generic over the codec.
pub(crate) struct TypedBody<'v, T: ?Sized> {
    value: &'v T,
    encode: fn(&T, &mut [u8]) -> Result<Option<usize>, CodecError>,
    encoded_len: fn(&T) -> Result<usize, CodecError>,
}

impl<'v, T: ?Sized> TypedBody<'v, T> {
    pub(crate) fn new<C: Encode<T>>(value: &'v T) -> Self {
        Self {
            value,
            encode: C::encode,
            encoded_len: C::encoded_len,
        }
    }
}

impl<T: ?Sized> Encodable for TypedBody<'_, T> {
    fn encode(&self, room: &mut [u8]) -> Result<Option<usize>, CodecError> {
        complete((self.encode)(self.value, room)?)
    }

    fn encoded_len(&self) -> Result<usize, CodecError> {
        complete((self.encoded_len)(self.value)?)
    }
}

/// Returns `encoded`, the result of encoding a value on this thread. Fails if the value contains a
/// [`Bulk`](crate::Bulk) (lent memory) that the peer does not yet have permission to access,
/// because `encoded` is then incomplete. The sender then grants the permission, and encodes the
/// value again.
fn complete<T>(encoded: T) -> Result<T, CodecError> {
    if bulk::is_incomplete() {
        return Err(CodecError::new("a bulk in the value was not lent"));
    }
    Ok(encoded)
}

impl Encodable for [u8] {
    fn encode(&self, room: &mut [u8]) -> Result<Option<usize>, CodecError> {
        <Raw as Encode<[u8]>>::encode(self, room)
    }

    fn encoded_len(&self) -> Result<usize, CodecError> {
        Ok(self.len())
    }
}
