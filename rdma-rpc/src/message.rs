//! Messages in registered memory, as they are sent and received.

use std::alloc::Layout;
use std::fmt;
use std::ops::{Deref, Range};

use rdma_async::{LocalMr, LocalMrReadAccess, LocalMrWriteAccess, Rdma};
use serde::Serialize;

use crate::codec::{Codec, CodecError};
use crate::wire::{HEADER_LEN, Header};

/// Size in bytes of the first memory that a message is encoded into. A message that does not fit is
/// measured and encoded again.
const FIRST_ROOM: usize = 4096;

/// The body of a request or a response, in the memory that it was received in.
///
/// This memory receives no other message until the payload is dropped; other memory is used in its
/// place.
pub struct Payload {
    region: LocalMr,
    range: Range<usize>,
}

impl Payload {
    /// Creates a payload from the bytes `range` of a received message.
    pub(crate) fn new(region: LocalMr, range: Range<usize>) -> Self {
        debug_assert!(range.end <= region.length());
        Self { region, range }
    }
}

impl Deref for Payload {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.region.as_slice()[self.range.clone()]
    }
}

impl AsRef<[u8]> for Payload {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

impl fmt::Debug for Payload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Payload")
            .field("len", &self.range.len())
            .finish_non_exhaustive()
    }
}

/// A message that is ready to be sent.
#[derive(Debug)]
pub(crate) struct Outgoing {
    region: LocalMr,
    len: usize,
}

/// An error of composing a message.
#[derive(Debug)]
pub(crate) enum ComposeError {
    Codec(CodecError),
    TooLarge { len: usize, limit: usize },
    Memory(rdma_async::Error),
}

impl From<rdma_async::Error> for ComposeError {
    fn from(error: rdma_async::Error) -> Self {
        Self::Memory(error)
    }
}

/// Composes messages in the registered memory of a connection.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Composer<'c> {
    pub(crate) rdma: &'c Rdma,
    /// The maximum length of a message in bytes.
    pub(crate) limit: usize,
}

impl Composer<'_> {
    /// Composes a message whose body is `value`, encoded directly into the message.
    pub(crate) fn encoded<C: Codec, T: Serialize + ?Sized>(
        self,
        header: Header,
        method: &str,
        value: &T,
    ) -> Result<Outgoing, ComposeError> {
        let front = HEADER_LEN + method.len();
        let room = FIRST_ROOM.min(self.limit);
        if front < room {
            let mut region = self.allocate(room)?;
            let body = &mut region.as_mut_slice()[front..];
            if let Some(len) = C::encode(value, body).map_err(ComposeError::Codec)? {
                return Ok(Outgoing::finish(region, front + len, header, method));
            }
        }
        let len = front.saturating_add(C::encoded_len(value).map_err(ComposeError::Codec)?);
        let mut region = self.allocate(len)?;
        let body = &mut region.as_mut_slice()[front..];
        match C::encode(value, body).map_err(ComposeError::Codec)? {
            Some(len) => Ok(Outgoing::finish(region, front + len, header, method)),
            None => Err(ComposeError::Codec(CodecError::new(
                "it takes another number of bytes each time",
            ))),
        }
    }

    /// Composes a message whose body is a copy of `body`.
    pub(crate) fn copied(
        self,
        header: Header,
        method: &str,
        body: &[u8],
    ) -> Result<Outgoing, ComposeError> {
        let front = HEADER_LEN + method.len();
        let len = front.saturating_add(body.len());
        let mut region = self.allocate(len)?;
        region.as_mut_slice()[front..].copy_from_slice(body);
        Ok(Outgoing::finish(region, len, header, method))
    }

    fn allocate(self, len: usize) -> Result<LocalMr, ComposeError> {
        let limit = self.limit;
        let layout = Layout::from_size_align(len, 8)
            .ok()
            .filter(|_| len <= limit)
            .ok_or(ComposeError::TooLarge { len, limit })?;
        Ok(self.rdma.alloc_local_mr_stale(layout)?)
    }
}

impl Outgoing {
    /// Writes the header and the method name in front of the body.
    fn finish(mut region: LocalMr, len: usize, header: Header, method: &str) -> Self {
        let bytes = region.as_mut_slice();
        bytes[..HEADER_LEN].copy_from_slice(&header.to_bytes());
        bytes[HEADER_LEN..][..method.len()].copy_from_slice(method.as_bytes());
        Self { region, len }
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Posts the message and returns when the device has accepted it. If the message is too long for
    /// rdma-async to send in one piece, waits until the peer has received it.
    pub(crate) async fn post(&self, rdma: &Rdma) -> rdma_async::Result<()> {
        rdma.post(&self.part()).await
    }

    /// Sends the message and waits until it and all earlier messages have reached the peer.
    pub(crate) async fn send(&self, rdma: &Rdma) -> rdma_async::Result<()> {
        rdma.send(&self.part()).await
    }

    fn part(&self) -> rdma_async::LocalMrSlice<'_> {
        self.region
            .get(0..self.len)
            .expect("a message is inside of its memory")
    }
}
