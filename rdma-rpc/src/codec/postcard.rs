//! [`Postcard`]: the default codec.

use serde::Serialize;
use serde::de::DeserializeOwned;

use super::{Codec, CodecError, Decode, Encode};

/// The [Postcard](https://docs.rs/postcard) format of serde values. This compact binary format is
/// the default codec.
///
/// For byte strings, use `bytes::Bytes` or `serde_bytes::ByteBuf`, which are copied as a whole: a
/// `Vec<u8>` is encoded and decoded byte by byte. Alternatively, use a [`Payload`](crate::Payload)
/// and `#[rpc(raw)]`.
///
/// # Types that a peer can misuse
///
/// With untrusted peers, do not use a type that contains itself, such as a tree: values are decoded
/// recursively without a limit, so a long request can exhaust the stack, which aborts the process.
/// Do not use sequences of zero-sized values, such as `Vec<()>`: their length is not limited by the
/// length of the request.
///
/// # Changes of types
///
/// Encoded values contain neither field names nor lengths, so both ends must use the same types.
/// The only compatible change is a new variant at the end of an enum: an older end fails to decode
/// this variant, but does not confuse it with another variant. Any other change needs a new method,
/// or a type with explicit versions: `enum Order { V1(OrderV1), V2(OrderV2) }`.
#[derive(Debug, Clone, Copy, Default)]
pub struct Postcard;

impl Codec for Postcard {
    const ID: u8 = 1;
}

impl<T: Serialize + ?Sized> Encode<T> for Postcard {
    fn encode(value: &T, room: &mut [u8]) -> Result<Option<usize>, CodecError> {
        match postcard::to_slice(value, room) {
            Ok(written) => Ok(Some(written.len())),
            Err(postcard::Error::SerializeBufferFull) => Ok(None),
            Err(error) => Err(CodecError::new(error)),
        }
    }

    fn encoded_len(value: &T) -> Result<usize, CodecError> {
        let flavor = postcard::ser_flavors::Size::default();
        postcard::serialize_with_flavor(value, flavor).map_err(CodecError::new)
    }
}

impl<T: DeserializeOwned> Decode<T> for Postcard {
    #[cfg(feature = "reflection")]
    fn schema() -> Option<crate::Schema> {
        crate::reflection::schema::<T>()
    }

    fn decode(bytes: &[u8]) -> Result<T, CodecError> {
        match postcard::take_from_bytes(bytes) {
            Ok((value, [])) => Ok(value),
            Ok((_, rest)) => Err(CodecError::new(format!(
                "{} bytes follow the value",
                rest.len()
            ))),
            Err(error) => Err(CodecError::new(error)),
        }
    }
}

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

    fn decode<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, CodecError> {
        Postcard::decode(bytes)
    }

    proptest! {
        #[test]
        fn arbitrary_bytes_are_decoded_without_panicking(bytes in prop::collection::vec(any::<u8>(), 0..100)) {
            drop(decode::<Shape>(&bytes));
            drop(decode::<Vec<(String, Shape)>>(&bytes));
        }

        #[test]
        fn values_round_trip(few: Vec<u64>, maybe: Option<i16>) {
            let value = Shape::Numbers { few, maybe };
            let len = Postcard::encoded_len(&value).unwrap();
            let mut room = vec![0; len];
            prop_assert_eq!(Postcard::encode(&value, &mut room).unwrap(), Some(len));
            prop_assert_eq!(decode::<Shape>(&room).unwrap(), value.clone());
            prop_assert_eq!(Postcard::encode(&value, &mut room[1..]).unwrap(), None);
        }
    }

    #[test]
    fn a_length_beyond_the_input_is_refused_without_allocating_it() {
        let error = decode::<Vec<u64>>(&[0xff, 0xff, 0xff, 0xff, 0x7f]).unwrap_err();
        assert!(!error.to_string().is_empty());
    }

    #[test]
    fn bytes_after_the_value_are_refused() {
        let error = decode::<u8>(&[1, 2, 3]).unwrap_err();
        assert_eq!(error.to_string(), "2 bytes follow the value");
    }
}
