//! [`Raw`]: the codec for unencoded bytes.

use super::{Codec, CodecError, Decode, Encode};
use crate::payload::Payload;

/// Codec of methods with `#[rpc(raw)]`: the encoded form of a byte string is the byte string
/// itself.
#[derive(Debug, Clone, Copy, Default)]
pub struct Raw;

impl Codec for Raw {
    const ID: u8 = 0;
}

impl<T: AsRef<[u8]> + ?Sized> Encode<T> for Raw {
    fn encode(value: &T, room: &mut [u8]) -> Result<Option<usize>, CodecError> {
        let bytes = value.as_ref();
        Ok(room.get_mut(..bytes.len()).map(|room| {
            room.copy_from_slice(bytes);
            bytes.len()
        }))
    }

    fn encoded_len(value: &T) -> Result<usize, CodecError> {
        Ok(value.as_ref().len())
    }
}

impl Decode<Payload> for Raw {
    fn decode(bytes: &[u8]) -> Result<Payload, CodecError> {
        Ok(bytes.into())
    }

    fn decode_payload(payload: Payload) -> Result<Payload, CodecError> {
        Ok(payload)
    }
}
