//! [`Batch`]: frames in one buffer, which is sent as one message.

use std::collections::VecDeque;

use super::Unplaced;
use crate::codec::{CodecError, Encodable};
use crate::error::Error;
use crate::link::Link;
use crate::payload::Buffer;
pub(crate) use crate::wire::BATCH;
use crate::wire::{Header, MESSAGE_HEADER, write_message_header};

/// Number of spare buffers that are kept: one for each request of a send queue.
const SPARE: usize = 64;

/// Message under construction, or one that waits to be sent.
///
/// ```text
/// byte 0..4              4..8               8..
///      length, TCP only  message's header   frames
/// ```
#[derive(Debug)]
pub(crate) struct Batch {
    buffer: Buffer,
    /// Length of the message with its prefix.
    len: usize,
    frames: u16,
    /// Length of the body of the last frame.
    body: usize,
    /// Number of bytes that were written to a TCP socket.
    pub(crate) sent: usize,
    /// Length of the prefix, which holds the length of the message.
    prefix: usize,
}

impl Batch {
    /// Opens a batch in a spare buffer that the transport no longer uses, or in a new one.
    pub(super) fn open(link: &Link, spare: &mut VecDeque<Buffer>) -> Result<Self, Error> {
        let is_free = spare
            .front_mut()
            .is_some_and(|buffer| buffer.bytes_mut().is_some());
        let kept = if is_free { spare.pop_front() } else { None };
        let prefix = link.prefix();
        let buffer = match kept {
            Some(buffer) => buffer,
            None => link.allocate(prefix + BATCH)?,
        };
        Ok(Self::new(buffer, prefix))
    }

    /// Creates a message of one frame that is longer than a batch.
    pub(super) fn of_one(
        link: &Link,
        header: &Header<'_>,
        body: &(impl Encodable + ?Sized),
        limit: usize,
    ) -> Result<Self, Unplaced> {
        let body_len = body.encoded_len().map_err(Unplaced::Codec)?;
        let len = (MESSAGE_HEADER + header.len()).saturating_add(body_len);
        let limit = limit.min(u32::MAX as usize);
        if len > limit {
            return Err(Unplaced::TooLarge { len, limit });
        }
        let prefix = link.prefix();
        let buffer = link.allocate(prefix + len).map_err(Unplaced::Transport)?;
        let mut batch = Self::new(buffer, prefix);
        if batch.push(header, body).map_err(Unplaced::Codec)?.is_none() {
            let changed = CodecError::new("its encoded length changes with each encoding");
            return Err(Unplaced::Codec(changed));
        }
        Ok(batch.finish())
    }

    fn new(buffer: Buffer, prefix: usize) -> Self {
        Self {
            buffer,
            len: prefix + MESSAGE_HEADER,
            frames: 0,
            body: 0,
            sent: 0,
            prefix,
        }
    }

    /// Encodes a frame behind the others. Returns the length of its body, or `None` if the frame does
    /// not fit.
    pub(super) fn push(
        &mut self,
        header: &Header<'_>,
        body: &(impl Encodable + ?Sized),
    ) -> Result<Option<usize>, CodecError> {
        let bytes = self.buffer.bytes_mut().unwrap_or_default();
        let Some(room) = bytes.get_mut(self.len..) else {
            return Ok(None);
        };
        let front = header.len();
        let Some(rest) = room.get_mut(front..).filter(|_| self.frames < u16::MAX) else {
            return Ok(None);
        };
        let Some(len) = body.encode(rest)? else {
            return Ok(None);
        };
        header.write(room, len);
        self.len += front + len;
        self.frames += 1;
        self.body = len;
        Ok(Some(len))
    }

    /// Writes the length and the message's header.
    pub(super) fn finish(mut self) -> Self {
        let (prefix, len, frames) = (self.prefix, self.len - self.prefix, self.frames);
        if let Some(bytes) = self.buffer.bytes_mut() {
            // At most the message limit, which fits.
            bytes[..prefix].copy_from_slice(&(len as u32).to_be_bytes()[..prefix]);
            write_message_header(&mut bytes[prefix..], frames);
        }
        self
    }

    pub(super) fn is_empty(&self) -> bool {
        self.frames == 0
    }

    /// Returns the length of the message, with its prefix.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Returns the length of the body of the last frame.
    pub(crate) fn body_len(&self) -> usize {
        self.body
    }

    /// Returns the bytes that are left to be sent.
    pub(crate) fn rest(&self) -> &[u8] {
        self.buffer
            .bytes()
            .get(self.sent..self.len)
            .unwrap_or_default()
    }

    /// Returns the buffer, whose first [`Self::len`] bytes are the message.
    pub(crate) fn buffer(&mut self) -> &mut Buffer {
        &mut self.buffer
    }

    /// Keeps the buffer for a later batch. Memory of RDMA is still being sent: it goes to the end.
    pub(super) fn recycle(self, link: &Link, spare: &mut VecDeque<Buffer>) {
        if spare.len() < SPARE && self.buffer.bytes().len() == link.prefix() + BATCH {
            spare.push_back(self.buffer);
        }
    }
}
