//! [`Json`]: serde values in JSON, behind the feature `json`.

use std::io::{self, Write};

use serde::Serialize;
use serde::de::DeserializeOwned;

use super::{Codec, CodecError, Decode, Encode};

/// [JSON](https://www.json.org) of serde values: readable text, but longer and slower than
/// [`Postcard`](crate::Postcard).
///
/// # Changes of types
///
/// Fields have names. A struct may gain a field of type `Option` or with `#[serde(default)]`, and
/// may lose a field that the other end does not require. Fields may be reordered. A method with a
/// single struct as its argument can therefore gain optional arguments. A method with several
/// arguments cannot.
#[derive(Debug, Clone, Copy, Default)]
pub struct Json;

impl Codec for Json {
    const ID: u8 = 2;
}

/// Writer that counts the bytes and discards them. Used to determine the length of an encoded
/// value.
struct Counter(usize);

impl Write for Counter {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0 += bytes.len();
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl<T: Serialize + ?Sized> Encode<T> for Json {
    fn encode(value: &T, room: &mut [u8]) -> Result<Option<usize>, CodecError> {
        let len = room.len();
        let mut rest = room;
        match serde_json::to_writer(&mut rest, value) {
            Ok(()) => Ok(Some(len - rest.len())),
            // The only I/O error of a slice is that it is full.
            Err(error) if error.is_io() => Ok(None),
            Err(error) => Err(CodecError::new(error)),
        }
    }

    fn encoded_len(value: &T) -> Result<usize, CodecError> {
        let mut counter = Counter(0);
        serde_json::to_writer(&mut counter, value).map_err(CodecError::new)?;
        Ok(counter.0)
    }
}

impl<T: DeserializeOwned> Decode<T> for Json {
    #[cfg(feature = "reflection")]
    fn schema() -> Option<crate::Schema> {
        crate::reflection::schema::<T>()
    }

    fn decode(bytes: &[u8]) -> Result<T, CodecError> {
        serde_json::from_slice(bytes).map_err(CodecError::new)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_round_trip_and_a_full_buffer_is_reported() {
        let value = ("text".to_owned(), 7_u32);
        let len = Json::encoded_len(&value).unwrap();
        let mut room = vec![0; len];
        assert_eq!(Json::encode(&value, &mut room).unwrap(), Some(len));
        let decoded: (String, u32) = Json::decode(&room).unwrap();
        assert_eq!(decoded, value);
        assert_eq!(Json::encode(&value, &mut room[1..]).unwrap(), None);
        let wrong: Result<u32, _> = Json::decode(&room);
        assert!(wrong.is_err());
    }
}
