//! [`Batch`]: a buffer with frames that is sent as one message.

use std::collections::VecDeque;

use super::AppendError;
use crate::codec::{CodecError, Encodable};
use crate::error::Error;
use crate::link::Link;
use crate::payload::Buffer;
pub(crate) use crate::wire::MAX_BATCH_LEN;
use crate::wire::{CallId, Header, ITEM_PREFIX_LEN, MESSAGE_HEADER_LEN, write_message_header};

/// Maximum number of buffers of sent messages that a connection keeps for later messages. Equal to
/// the default number of messages that the device can be sending at the same time. Until the device
/// has sent a message, the message's buffer cannot be used again.
const MAX_SPARE_BUFFERS: usize = 64;

/// A message that is under construction or waits to be sent. A batch contains the frames of several
/// calls, or one long frame.
///
/// ```text
/// byte 0..4              4..8               8..
///      length, TCP only  message header     frames
/// ```
#[derive(Debug)]
pub(crate) struct Batch {
    buffer: Buffer,
    /// Length in bytes of the message including its prefix (its length over TCP).
    len: usize,
    frames: u16,
    /// Length of the body of the last frame, in bytes.
    body: usize,
    /// Number of bytes that were written to the socket. Used only by TCP.
    pub(crate) sent: usize,
    /// Length in bytes of the prefix, which contains the length of the message over TCP.
    prefix: usize,
    /// Last frame of the message if further items of its stream can be added to the frame.
    items: Option<ItemFrame>,
}

/// Frame under construction with consecutive items of a stream. The header contains the number of
/// items, so it is written after the last item was added.
#[derive(Debug)]
struct ItemFrame {
    header: ItemHeader,
    /// Position of the frame in the buffer.
    start: usize,
    count: u16,
}

/// Call, codec and sequence number of a stream item to be sent, from which the header of its frame
/// is created.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ItemHeader {
    pub(crate) id: CallId,
    pub(crate) codec: u8,
    pub(crate) sequence: u32,
}

impl ItemHeader {
    /// Returns the header of a frame with `count` consecutive stream items, each preceded by its
    /// length. `self` describes the first item.
    fn run_header(&self, count: u16) -> Header<'static> {
        Header::Items {
            id: self.id,
            codec: self.codec,
            first: self.sequence,
            count,
        }
    }

    /// Returns the header of a frame with a single stream item, which `self` describes. No length
    /// precedes the item, because the item is the rest of the frame.
    pub(crate) fn single_header(&self) -> Header<'static> {
        self.run_header(0)
    }
}

impl ItemFrame {
    /// Returns whether the item with the header `header` can be added to this frame: the item is
    /// the next item of the same stream, and the frame is not full.
    fn is_followed_by(&self, header: &ItemHeader) -> bool {
        let next = ItemHeader {
            sequence: self.header.sequence.wrapping_add(self.count.into()),
            ..self.header
        };
        *header == next && self.count < u16::MAX
    }
}

impl Batch {
    /// Creates an empty batch, a message to which frames are appended. Uses the oldest buffer in
    /// `spare` if the network device has finished sending from this buffer. Otherwise allocates a
    /// new buffer.
    pub(super) fn open(link: &Link, spare: &mut VecDeque<Buffer>) -> Result<Self, Error> {
        let is_free = spare
            .front_mut()
            .is_some_and(|buffer| buffer.bytes_mut().is_some());
        let kept = if is_free { spare.pop_front() } else { None };
        let prefix = link.prefix();
        let buffer = match kept {
            Some(buffer) => buffer,
            None => link.allocate(prefix + MAX_BATCH_LEN)?,
        };
        Ok(Self::new(buffer, prefix))
    }

    /// Creates a separate message for a frame that does not fit into a batch. Fails if the message
    /// would have more than `limit` bytes.
    pub(super) fn new_long(
        link: &Link,
        header: &Header<'_>,
        body: &(impl Encodable + ?Sized),
        limit: usize,
    ) -> Result<Self, AppendError> {
        let body_len = body.encoded_len().map_err(AppendError::Codec)?;
        let len = (MESSAGE_HEADER_LEN + header.len()).saturating_add(body_len);
        let limit = limit.min(u32::MAX as usize);
        if len > limit {
            return Err(AppendError::TooLarge { len, limit });
        }
        let prefix = link.prefix();
        let buffer = link
            .allocate(prefix + len)
            .map_err(AppendError::Transport)?;
        let mut batch = Self::new(buffer, prefix);
        if batch
            .push(header, body)
            .map_err(AppendError::Codec)?
            .is_none()
        {
            let changed = CodecError::new("its encoded length is not constant");
            return Err(AppendError::Codec(changed));
        }
        Ok(batch.finish())
    }

    fn new(buffer: Buffer, prefix: usize) -> Self {
        Self {
            buffer,
            len: prefix + MESSAGE_HEADER_LEN,
            frames: 0,
            body: 0,
            sent: 0,
            prefix,
            items: None,
        }
    }

    /// Appends a frame with the header `header` and the encoded `body` to this message. Returns the
    /// length of the encoded `body` in bytes. Returns `None` if the frame does not fit into the
    /// rest of the buffer, or the message has the maximum number of frames.
    pub(super) fn push(
        &mut self,
        header: &Header<'_>,
        body: &(impl Encodable + ?Sized),
    ) -> Result<Option<usize>, CodecError> {
        self.end_items();
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

    /// Appends a stream item to this message. If the last frame of the message ends with the
    /// preceding item of the same stream, adds the item to that frame. Returns the length of the
    /// encoded item in bytes, or `None` if the item does not fit into the rest of the buffer.
    pub(super) fn push_item(
        &mut self,
        header: &ItemHeader,
        body: &(impl Encodable + ?Sized),
    ) -> Result<Option<usize>, CodecError> {
        let follows = self
            .items
            .as_ref()
            .is_some_and(|items| items.is_followed_by(header));
        if !follows {
            self.end_items();
        }
        let front = if follows {
            0
        } else {
            header.run_header(1).len()
        };
        let bytes = self.buffer.bytes_mut().unwrap_or_default();
        let start = self.len + front;
        let Some(room) = bytes.get_mut(start..) else {
            return Ok(None);
        };
        let Some((length, room)) = room.split_first_chunk_mut::<ITEM_PREFIX_LEN>() else {
            return Ok(None);
        };
        let Some(len) = body.encode(room)? else {
            return Ok(None);
        };
        let Ok(short) = u16::try_from(len) else {
            return Ok(None);
        };
        *length = short.to_be_bytes();
        match &mut self.items {
            Some(items) => items.count += 1,
            none => {
                if self.frames == u16::MAX {
                    return Ok(None);
                }
                self.frames += 1;
                *none = Some(ItemFrame {
                    header: *header,
                    start: self.len,
                    count: 1,
                });
            }
        }
        self.len = start + ITEM_PREFIX_LEN + len;
        self.body = len;
        Ok(Some(len))
    }

    /// Completes the last frame of this message if the frame contains stream items: writes its
    /// header with their number. No more items can then be added to this frame.
    fn end_items(&mut self) {
        let Some(items) = self.items.take() else {
            return;
        };
        let header = items.header.run_header(items.count);
        let body = self.len - items.start - header.len();
        if let Some(bytes) = self.buffer.bytes_mut() {
            header.write(&mut bytes[items.start..], body);
        }
    }

    /// Completes the message by writing its length and its header, so that it can be sent.
    pub(super) fn finish(mut self) -> Self {
        self.end_items();
        let (prefix, len, frames) = (self.prefix, self.len - self.prefix, self.frames);
        if let Some(bytes) = self.buffer.bytes_mut() {
            // The message limit ensures that the length fits.
            bytes[..prefix].copy_from_slice(&(len as u32).to_be_bytes()[..prefix]);
            write_message_header(&mut bytes[prefix..], frames);
        }
        self
    }

    /// Returns the number of frames in the message.
    pub(super) fn frames(&self) -> u16 {
        self.frames
    }

    pub(super) fn is_empty(&self) -> bool {
        self.frames == 0
    }

    /// Returns the length of the message in bytes. Includes the prefix with the length that
    /// precedes each message on a byte stream such as TCP.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Returns the length of the message in bytes, or [`MAX_BATCH_LEN`] if the message is longer.
    pub(super) fn short_len(&self) -> usize {
        self.len.min(MAX_BATCH_LEN)
    }

    /// Returns the length in bytes of the body of the frame that was added last to this message.
    pub(crate) fn body_len(&self) -> usize {
        self.body
    }

    /// Returns the bytes of the message that were not written to the socket yet.
    pub(crate) fn rest(&self) -> &[u8] {
        self.buffer
            .bytes()
            .get(self.sent..self.len)
            .unwrap_or_default()
    }

    /// Returns the buffer of the batch, whose first [`Self::len`] bytes are the message to be sent.
    pub(crate) fn buffer(&mut self) -> &mut Buffer {
        &mut self.buffer
    }

    /// Adds the buffer of this message to the end of `spare`, the list of buffers for later
    /// messages. The oldest buffers of the list are used first, because the device is perhaps still
    /// reading the newest. Drops a buffer of an unusual length, or any buffer if `spare` is full.
    pub(super) fn recycle(self, link: &Link, spare: &mut VecDeque<Buffer>) {
        if spare.len() < MAX_SPARE_BUFFERS
            && self.buffer.bytes().len() == link.prefix() + MAX_BATCH_LEN
        {
            spare.push_back(self.buffer);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::{Frame, FrameReader};

    fn item(index: u32, sequence: u32) -> ItemHeader {
        ItemHeader {
            id: CallId {
                index,
                generation: 9,
            },
            codec: 1,
            sequence,
        }
    }

    /// Returns the sequence number of the first item, the number of items and the body of each
    /// frame of a message.
    fn frames(message: &[u8]) -> Vec<(u32, u16, &[u8])> {
        let mut reader = FrameReader::new(message).unwrap();
        let mut frames = Vec::new();
        while let Some(frame) = reader.next(message).unwrap() {
            frames.push(match frame {
                Frame::Items {
                    first, count, body, ..
                } => (first, count, &message[body]),
                Frame::End { items, .. } => (items, 0, &[][..]),
                other => panic!("{other:?}"),
            });
        }
        frames
    }

    #[test]
    fn consecutive_items_of_a_stream_share_a_frame() {
        let mut batch = Batch::new(Buffer::Heap(vec![0; MAX_BATCH_LEN]), 0);
        let push = |batch: &mut Batch, header, body: &[u8]| {
            assert_eq!(batch.push_item(&header, body).unwrap(), Some(body.len()));
        };
        push(&mut batch, item(0, u32::MAX), b"ab");
        push(&mut batch, item(0, 0), b"");
        push(&mut batch, item(0, 1), b"c");
        // The item in between was sent as a separate message.
        push(&mut batch, item(0, 3), b"e");
        push(&mut batch, item(1, 4), b"of another stream");
        let end = Header::End {
            id: item(0, 0).id,
            items: 7,
        };
        batch.push(&end, &[][..]).unwrap();
        push(&mut batch, item(1, 5), b"behind a frame");
        let batch = batch.finish();
        let expected: [(u32, u16, &[u8]); 5] = [
            (u32::MAX, 3, b"\0\x02ab\0\0\0\x01c"),
            (3, 1, b"\0\x01e"),
            (4, 1, b"\0\x11of another stream"),
            (7, 0, b""),
            (5, 1, b"\0\x0ebehind a frame"),
        ];
        assert_eq!(frames(batch.rest()), expected);
    }

    #[test]
    fn an_item_that_does_not_fit_leaves_the_batch_unchanged() {
        let mut batch = Batch::new(Buffer::Heap(vec![0; 40]), 0);
        assert_eq!(
            batch.push_item(&item(0, 0), &[1; 10][..]).unwrap(),
            Some(10)
        );
        assert_eq!(batch.push_item(&item(0, 1), &[2; 10][..]).unwrap(), None);
        let batch = batch.finish();
        let body = [&[0, 10][..], &[1; 10]].concat();
        assert_eq!(frames(batch.rest()), [(0, 1, &*body)]);
    }
}
