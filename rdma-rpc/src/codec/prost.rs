//! [`Prost`]: Protocol Buffers, behind the feature `prost`.

use prost::Message;

use super::{Codec, CodecError, Decode, Encode};

/// [Protocol Buffers](https://protobuf.dev): values are [`prost::Message`]s.
///
/// A method has at most one argument. The argument, the result and the error must be messages.
///
/// # Changes of types
///
/// The rules of Protocol Buffers apply: a field is identified by its number, and the number of a
/// removed field must not be used again. An end ignores fields that it does not know.
#[derive(Debug, Clone, Copy, Default)]
pub struct Prost;

impl Codec for Prost {
    const ID: u8 = 3;
}

impl<T: Message> Encode<T> for Prost {
    fn encode(value: &T, mut room: &mut [u8]) -> Result<Option<usize>, CodecError> {
        let len = value.encoded_len();
        // The only error of encoding is a buffer that is too short.
        Ok(value.encode(&mut room).is_ok().then_some(len))
    }

    fn encoded_len(value: &T) -> Result<usize, CodecError> {
        Ok(value.encoded_len())
    }
}

impl<T: Message + Default> Decode<T> for Prost {
    fn decode(bytes: &[u8]) -> Result<T, CodecError> {
        T::decode(bytes).map_err(CodecError::new)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_round_trip_and_a_full_buffer_is_reported() {
        // prost implements `Message` for strings, as the message `StringValue`.
        let value = "text".to_owned();
        let len = Prost::encoded_len(&value).unwrap();
        let mut room = vec![0; len];
        assert_eq!(Prost::encode(&value, &mut room).unwrap(), Some(len));
        let decoded: String = Prost::decode(&room).unwrap();
        assert_eq!(decoded, value);
        assert_eq!(Prost::encode(&value, &mut room[1..]).unwrap(), None);
        let wrong: Result<String, _> = Prost::decode(&[0xff]);
        assert!(wrong.is_err());
    }
}
