//! [`Payload`]: received bytes that stay in their receive buffer.

use std::fmt;
use std::ops::{Deref, Range};

use rdma_async::{LocalMr, LocalMrReadAccess, LocalMrWriteAccess};
use serde::de::{self, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// Memory of one message to be sent or received: registered memory for RDMA, heap memory for other
/// transports.
#[derive(Debug)]
pub(crate) enum Buffer {
    Region(LocalMr),
    Heap(Vec<u8>),
}

impl Buffer {
    /// Returns all bytes of this message buffer.
    pub(crate) fn bytes(&self) -> &[u8] {
        match self {
            Self::Region(region) => region.as_slice(),
            Self::Heap(bytes) => bytes,
        }
    }

    /// Returns the bytes of this message buffer for writing. Returns `None` while the device is
    /// perhaps still sending from the buffer.
    pub(crate) fn bytes_mut(&mut self) -> Option<&mut [u8]> {
        match self {
            Self::Region(region) => region.try_as_mut_slice().ok(),
            Self::Heap(bytes) => Some(bytes),
        }
    }
}

/// Unencoded bytes: the argument and the result of a method with `#[rpc(raw)]`.
///
/// The bytes of a long message are not copied: the payload keeps the receive buffer until it is
/// dropped. A payload of at most 64 bytes does not allocate.
pub struct Payload(PayloadMemory);

/// Maximum number of bytes that a payload stores within itself instead of on the heap. Enough for
/// typical small messages, and few enough that moving a payload is cheap.
const MAX_INLINE_LEN: usize = 64;

/// Storage of a payload's bytes: within the payload itself, or in a buffer that the payload owns.
enum PayloadMemory {
    Inline {
        bytes: [u8; MAX_INLINE_LEN],
        len: usize,
    },
    Retained(RetainedBytes),
}

/// Body of a received frame, together with the receive buffer that contains the body, so that the
/// body is not copied. Dropping this value frees the buffer for further messages.
#[derive(Debug)]
pub(crate) struct RetainedBytes {
    buffer: Buffer,
    range: Range<usize>,
}

impl RetainedBytes {
    fn new(buffer: Buffer, range: Range<usize>) -> Self {
        debug_assert!(range.end <= buffer.bytes().len());
        Self { buffer, range }
    }

    fn bytes(&self) -> &[u8] {
        &self.buffer.bytes()[self.range.clone()]
    }
}

impl Payload {
    /// Converts the payload to a vector. Copies the bytes, unless they fill a heap buffer, such as
    /// the vector from which the payload was created.
    pub fn into_vec(self) -> Vec<u8> {
        match self.0 {
            PayloadMemory::Retained(RetainedBytes {
                buffer: Buffer::Heap(bytes),
                range,
            }) if range == (0..bytes.len()) => bytes,
            memory => memory.bytes().to_vec(),
        }
    }
}

impl From<RetainedBytes> for Payload {
    fn from(retained: RetainedBytes) -> Self {
        Self(PayloadMemory::Retained(retained))
    }
}

impl PayloadMemory {
    fn bytes(&self) -> &[u8] {
        match self {
            Self::Inline { bytes, len } => &bytes[..*len],
            Self::Retained(retained) => retained.bytes(),
        }
    }
}

impl From<Vec<u8>> for Payload {
    fn from(bytes: Vec<u8>) -> Self {
        let range = 0..bytes.len();
        RetainedBytes::new(Buffer::Heap(bytes), range).into()
    }
}

impl From<&[u8]> for Payload {
    fn from(bytes: &[u8]) -> Self {
        let mut inline = [0; MAX_INLINE_LEN];
        let Some(room) = inline.get_mut(..bytes.len()) else {
            return bytes.to_vec().into();
        };
        room.copy_from_slice(bytes);
        Self(PayloadMemory::Inline {
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

/// Encodes the payload as one byte string, for structs and stream items that contain a payload.
/// Serde would encode a vector byte by byte.
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

/// Serde visitor that decodes a byte string to a [`Payload`], for structs and stream items that
/// contain a payload.
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

    /// Decodes a payload from a sequence of numbers, one for each byte. Called by the deserializers
    /// of text formats such as JSON, which represent bytes in this form.
    fn visit_seq<A: SeqAccess<'de>>(self, mut numbers: A) -> Result<Payload, A::Error> {
        let mut bytes = Vec::new();
        while let Some(byte) = numbers.next_element()? {
            bytes.push(byte);
        }
        Ok(bytes.into())
    }
}

/// A received message, whose bytes contain one or more frames.
#[derive(Debug)]
pub(crate) enum Message<'m> {
    /// Memory of the transport, which the transport uses again after the message was handled.
    Borrowed(&'m [u8]),
    /// Buffer that the message owns, so that a long body can keep the buffer.
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

/// Minimum length in bytes of the body of a received frame that stays in its receive buffer. A
/// shorter body is copied, because this costs less than allocating a new receive buffer.
const MIN_RETAINED_LEN: usize = 1024;

/// Body of a received frame: the encoded request, response or stream items.
#[derive(Debug)]
pub(crate) enum Body<'m> {
    /// A body in memory that is used again after the message was handled.
    Short(&'m [u8]),
    /// A long body that is the last of its message, with the message's buffer.
    Long(RetainedBytes),
}

impl<'m> Body<'m> {
    /// Returns the body at `range` of a received message. Usually the body borrows its bytes from
    /// the message. A long body instead takes the buffer of the message, if the message owns a
    /// buffer and the body is in the last frame (`is_last`). A long body has at least
    /// [`MIN_RETAINED_LEN`] bytes and at least half of the message.
    pub(crate) fn take(message: &'m mut Message<'_>, range: Range<usize>, is_last: bool) -> Self {
        if is_last
            && range.len() >= MIN_RETAINED_LEN
            && range.len() >= message.bytes().len() / 2
            && matches!(message, Message::Owned(_))
            && let Message::Owned(buffer) = std::mem::replace(message, Message::Borrowed(&[]))
        {
            return Self::Long(RetainedBytes::new(buffer, range));
        }
        Self::Short(message.bytes().get(range).unwrap_or_default())
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        match self {
            Self::Short(bytes) => bytes,
            Self::Long(retained) => retained.bytes(),
        }
    }
}

/// Storage for a received body until the program decodes it. Kept for later bodies, so that storing
/// a short body does not allocate.
#[derive(Debug, Default)]
pub(crate) struct BodyBuffer {
    bytes: Vec<u8>,
    retained: Option<RetainedBytes>,
}

/// Maximum capacity in bytes of the memory that a [`BodyBuffer`] keeps for the next body. Longer
/// memory is freed: otherwise one long body would occupy memory until the end of the connection.
const MAX_REUSED_LEN: usize = 16 << 10;

impl BodyBuffer {
    /// Stores `body`: copies the bytes of a [`Body::Short`], and takes the buffer of a
    /// [`Body::Long`].
    pub(crate) fn set(&mut self, body: Body<'_>) {
        self.bytes.clear();
        self.retained = None;
        match body {
            Body::Short(bytes) => self.bytes.extend_from_slice(bytes),
            Body::Long(retained) => self.retained = Some(retained),
        }
    }

    /// Takes the stored body, together with its receive buffer, if the body is long. Returns `None`
    /// for a short body: its bytes were copied, and [`Self::bytes`] returns them.
    pub(crate) fn take_retained(&mut self) -> Option<RetainedBytes> {
        self.retained.take()
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        match &self.retained {
            Some(retained) => retained.bytes(),
            None => &self.bytes,
        }
    }

    pub(crate) fn clear(&mut self) {
        self.retained = None;
        self.bytes.clear();
        if self.bytes.capacity() > MAX_REUSED_LEN {
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
