//! Messages in registered memory.

use std::alloc::Layout;
use std::fmt;
use std::ops::{Deref, Range};

use rdma_async::{LocalMr, LocalMrReadAccess, LocalMrWriteAccess, Rdma};
use serde::Serialize;

use crate::codec::{Codec, CodecError};
use crate::wire::{HEADER_LEN, Header};

/// How much memory a message gets that may turn out to fit; what does not fit is measured.
const FIRST_ROOM: usize = 4096;

/// The bytes of a request or a response, in the memory that they were received in.
///
/// While it lives, that memory receives nothing else; other memory has taken its place.
pub struct Payload {
    region: LocalMr,
    range: Range<usize>,
}

impl Payload {
    /// The part of a message that `range` is.
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

/// Why a message could not be made.
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

/// Makes messages in a connection's memory.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Composer<'c> {
    pub(crate) rdma: &'c Rdma,
    /// How long a message may be.
    pub(crate) limit: usize,
}

impl Composer<'_> {
    /// A message with a body that is encoded in place.
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

    /// A message with a body that is copied.
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
    /// Writes what is in front of the body.
    fn finish(mut region: LocalMr, len: usize, header: Header, method: &str) -> Self {
        let bytes = region.as_mut_slice();
        bytes[..HEADER_LEN].copy_from_slice(&header.to_bytes());
        bytes[HEADER_LEN..][..method.len()].copy_from_slice(method.as_bytes());
        Self { region, len }
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Hands it to the device; a long one is waited for until the peer has it.
    pub(crate) async fn post(&self, rdma: &Rdma) -> rdma_async::Result<()> {
        rdma.post(&self.part()).await
    }

    /// Sends it and waits until it has arrived, and with it everything before.
    pub(crate) async fn send(&self, rdma: &Rdma) -> rdma_async::Result<()> {
        rdma.send(&self.part()).await
    }

    fn part(&self) -> rdma_async::LocalMrSlice<'_> {
        self.region
            .get(0..self.len)
            .expect("a message is inside of its memory")
    }
}
