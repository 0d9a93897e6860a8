//! [`Payload`]: received bytes, in the memory that they were received in.

use std::fmt;
use std::ops::{Deref, Range};

use rdma_async::{LocalMr, LocalMrReadAccess, LocalMrWriteAccess};
use serde::de::{self, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// Memory of one message: registered memory of RDMA, or memory of the heap.
#[derive(Debug)]
pub(crate) enum Buffer {
    Region(LocalMr),
    Heap(Vec<u8>),
}

impl Buffer {
    pub(crate) fn bytes(&self) -> &[u8] {
        match self {
            Self::Region(region) => region.as_slice(),
            Self::Heap(bytes) => bytes,
        }
    }

    /// Returns the bytes for writing; `None` while the device is still sending them.
    pub(crate) fn bytes_mut(&mut self) -> Option<&mut [u8]> {
        match self {
            Self::Region(region) => region.try_as_mut_slice().ok(),
            Self::Heap(bytes) => Some(bytes),
        }
    }
}

/// Unencoded bytes: the argument and the result of methods with `#[rpc(raw)]`.
///
/// The bytes of a long message stay in the memory that they were received in. They were not copied,
/// and this memory receives no other message until the payload is dropped. A payload of at most 256
/// bytes allocates nothing.
pub struct Payload(Memory);

/// Number of bytes up to which a payload holds its bytes itself.
const INLINE: usize = 256;

/// Memory of a payload.
#[expect(
    clippy::large_enum_variant,
    reason = "a small payload must not allocate"
)]
enum Memory {
    Inline { bytes: [u8; INLINE], len: usize },
    Kept(Kept),
}

/// Bytes of a message in the memory that they were received in.
#[derive(Debug)]
pub(crate) struct Kept {
    buffer: Buffer,
    range: Range<usize>,
}

impl Kept {
    fn new(buffer: Buffer, range: Range<usize>) -> Self {
        debug_assert!(range.end <= buffer.bytes().len());
        Self { buffer, range }
    }

    fn bytes(&self) -> &[u8] {
        &self.buffer.bytes()[self.range.clone()]
    }
}

impl Payload {
    /// Returns the bytes as a vector, which is a copy unless they are one already.
    pub fn into_vec(self) -> Vec<u8> {
        match self.0 {
            Memory::Kept(Kept {
                buffer: Buffer::Heap(bytes),
                range,
            }) if range == (0..bytes.len()) => bytes,
            memory => memory.bytes().to_vec(),
        }
    }
}

impl From<Kept> for Payload {
    fn from(kept: Kept) -> Self {
        Self(Memory::Kept(kept))
    }
}

impl Memory {
    fn bytes(&self) -> &[u8] {
        match self {
            Self::Inline { bytes, len } => &bytes[..*len],
            Self::Kept(kept) => kept.bytes(),
        }
    }
}

impl From<Vec<u8>> for Payload {
    fn from(bytes: Vec<u8>) -> Self {
        let range = 0..bytes.len();
        Kept::new(Buffer::Heap(bytes), range).into()
    }
}

impl From<&[u8]> for Payload {
    fn from(bytes: &[u8]) -> Self {
        let mut inline = [0; INLINE];
        let Some(room) = inline.get_mut(..bytes.len()) else {
            return bytes.to_vec().into();
        };
        room.copy_from_slice(bytes);
        Self(Memory::Inline {
            bytes: inline,
            len: bytes.len(),
        })
    }
}

impl Deref for Payload {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        self.0.bytes()
    }
}

impl AsRef<[u8]> for Payload {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

impl PartialEq for Payload {
    fn eq(&self, other: &Self) -> bool {
        **self == **other
    }
}

impl Eq for Payload {}

impl fmt::Debug for Payload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Payload")
            .field("len", &self.len())
            .finish_non_exhaustive()
    }
}

/// Encodes the bytes as such, and not one by one as serde encodes a vector: for structs, and for
/// items of streams.
impl Serialize for Payload {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_bytes(self)
    }
}

impl<'de> Deserialize<'de> for Payload {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_byte_buf(BytesVisitor)
    }
}

/// Visitor that collects bytes.
struct BytesVisitor;

impl<'de> Visitor<'de> for BytesVisitor {
    type Value = Payload;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("bytes")
    }

    fn visit_bytes<E: de::Error>(self, bytes: &[u8]) -> Result<Payload, E> {
        Ok(bytes.into())
    }

    fn visit_byte_buf<E: de::Error>(self, bytes: Vec<u8>) -> Result<Payload, E> {
        Ok(bytes.into())
    }

    /// Collects the numbers to which a format for text converts bytes.
    fn visit_seq<A: SeqAccess<'de>>(self, mut numbers: A) -> Result<Payload, A::Error> {
        let mut bytes = Vec::new();
        while let Some(byte) = numbers.next_element()? {
            bytes.push(byte);
        }
        Ok(bytes.into())
    }
}

/// A received message.
#[derive(Debug)]
pub(crate) enum Message<'m> {
    /// Memory of the transport, which the message leaves after it was handled.
    Borrowed(&'m [u8]),
    Owned(Buffer),
}

impl Message<'_> {
    pub(crate) fn bytes(&self) -> &[u8] {
        match self {
            Self::Borrowed(bytes) => bytes,
            Self::Owned(buffer) => buffer.bytes(),
        }
    }
}

/// Number of bytes from which a body stays in the memory that it was received in.
const KEPT: usize = 1024;

/// Body of a received frame.
#[derive(Debug)]
pub(crate) enum Body<'m> {
    Short(&'m [u8]),
    /// A long body that is the last of its message, with the message's memory.
    Long(Kept),
}

impl<'m> Body<'m> {
    /// Returns the body `range` of a message. Takes the memory of the message if the body is long
    /// and the last one.
    pub(crate) fn take(message: &'m mut Message<'_>, range: Range<usize>, is_last: bool) -> Self {
        if is_last
            && range.len() >= KEPT
            && range.len() >= message.bytes().len() / 2
            && matches!(message, Message::Owned(_))
            && let Message::Owned(buffer) = std::mem::replace(message, Message::Borrowed(&[]))
        {
            return Self::Long(Kept::new(buffer, range));
        }
        Self::Short(message.bytes().get(range).unwrap_or_default())
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        match self {
            Self::Short(bytes) => bytes,
            Self::Long(kept) => kept.bytes(),
        }
    }
}

/// Received bytes in reused memory, until their reader decodes them.
#[derive(Debug, Default)]
pub(crate) struct Stored {
    bytes: Vec<u8>,
    kept: Option<Kept>,
}

/// Capacity in bytes above which reused memory is freed.
const REUSED: usize = 16 << 10;

impl Stored {
    /// Stores a body: a copy of a short one, or the memory of a long one.
    pub(crate) fn set(&mut self, body: Body<'_>) {
        self.bytes.clear();
        self.kept = None;
        match body {
            Body::Short(bytes) => self.bytes.extend_from_slice(bytes),
            Body::Long(kept) => self.kept = Some(kept),
        }
    }

    /// Returns the memory of a long body.
    pub(crate) fn take_kept(&mut self) -> Option<Kept> {
        self.kept.take()
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        match &self.kept {
            Some(kept) => kept.bytes(),
            None => &self.bytes,
        }
    }

    pub(crate) fn clear(&mut self) {
        self.kept = None;
        self.bytes.clear();
        if self.bytes.capacity() > REUSED {
            self.bytes = Vec::new();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn payloads_are_encoded_as_bytes() {
        let payload = Payload::from(vec![1, 2, 200]);
        let encoded = postcard::to_stdvec(&payload).unwrap();
        assert_eq!(encoded, [3, 1, 2, 200]);
        assert_eq!(postcard::from_bytes::<Payload>(&encoded).unwrap(), payload);
        let too_short = postcard::from_bytes::<Payload>(&encoded[..3]);
        assert!(too_short.is_err());
    }

    #[cfg(feature = "json")]
    #[test]
    fn payloads_are_lists_of_numbers_in_text() {
        let payload = Payload::from(vec![1, 2, 200]);
        let text = serde_json::to_string(&payload).unwrap();
        assert_eq!(text, "[1,2,200]");
        assert_eq!(serde_json::from_str::<Payload>(&text).unwrap(), payload);
        assert!(serde_json::from_str::<Payload>("[1,256]").is_err());
    }
}
