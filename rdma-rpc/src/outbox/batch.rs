//! [`Batch`]: frames in one buffer, which is sent as one message.

use std::collections::VecDeque;

use super::Unplaced;
use crate::codec::{CodecError, Encodable};
use crate::error::Error;
use crate::link::Link;
use crate::payload::Buffer;
pub(crate) use crate::wire::BATCH;
use crate::wire::{CallId, Header, ITEM_LENGTH, MESSAGE_HEADER, write_message_header};

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
    /// The last frame, if further items of a stream can follow in it.
    run: Option<Run>,
}

/// Frame of consecutive items, whose header is written once all items are there.
#[derive(Debug)]
struct Run {
    header: ItemHeader,
    /// Position of the frame in the buffer.
    start: usize,
    count: u16,
}

/// An item of a stream to be sent, without its body.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ItemHeader {
    pub(crate) id: CallId,
    pub(crate) codec: u8,
    pub(crate) sequence: u32,
}

impl ItemHeader {
    /// Returns the header of a frame with `count` items that follow their lengths, of which this is
    /// the first.
    fn of_several(&self, count: u16) -> Header<'static> {
        Header::Items {
            id: self.id,
            codec: self.codec,
            first: self.sequence,
            count,
        }
    }

    /// Returns the header of a frame with this item alone, without its length.
    pub(crate) fn of_one(&self) -> Header<'static> {
        self.of_several(0)
    }
}

impl Run {
    /// Returns whether the item `header` can follow in this frame.
    fn is_followed_by(&self, header: &ItemHeader) -> bool {
        let next = ItemHeader {
            sequence: self.header.sequence.wrapping_add(self.count.into()),
            ..self.header
        };
        *header == next && self.count < u16::MAX
    }
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
            run: None,
        }
    }

    /// Encodes a frame behind the others. Returns the length of its body, or `None` if the frame
    /// does not fit.
    pub(super) fn push(
        &mut self,
        header: &Header<'_>,
        body: &(impl Encodable + ?Sized),
    ) -> Result<Option<usize>, CodecError> {
        self.end_run();
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

    /// Encodes an item of a stream behind the others, in the frame of the last item if that item
    /// precedes this one. Returns the length of the item, or `None` if it does not fit.
    pub(super) fn push_item(
        &mut self,
        header: &ItemHeader,
        body: &(impl Encodable + ?Sized),
    ) -> Result<Option<usize>, CodecError> {
        let follows = self
            .run
            .as_ref()
            .is_some_and(|run| run.is_followed_by(header));
        if !follows {
            self.end_run();
        }
        let front = if follows {
            0
        } else {
            header.of_several(1).len()
        };
        let bytes = self.buffer.bytes_mut().unwrap_or_default();
        let start = self.len + front;
        let Some(room) = bytes.get_mut(start..) else {
            return Ok(None);
        };
        let Some((length, room)) = room.split_first_chunk_mut::<ITEM_LENGTH>() else {
            return Ok(None);
        };
        let Some(len) = body.encode(room)? else {
            return Ok(None);
        };
        let Ok(short) = u16::try_from(len) else {
            return Ok(None);
        };
        *length = short.to_be_bytes();
        match &mut self.run {
            Some(run) => run.count += 1,
            none => {
                if self.frames == u16::MAX {
                    return Ok(None);
                }
                self.frames += 1;
                *none = Some(Run {
                    header: *header,
                    start: self.len,
                    count: 1,
                });
            }
        }
        self.len = start + ITEM_LENGTH + len;
        self.body = len;
        Ok(Some(len))
    }

    /// Writes the header of the last frame, if that frame has items.
    fn end_run(&mut self) {
        let Some(run) = self.run.take() else {
            return;
        };
        let header = run.header.of_several(run.count);
        let body = self.len - run.start - header.len();
        if let Some(bytes) = self.buffer.bytes_mut() {
            header.write(&mut bytes[run.start..], body);
        }
    }

    /// Writes the length and the message's header.
    pub(super) fn finish(mut self) -> Self {
        self.end_run();
        let (prefix, len, frames) = (self.prefix, self.len - self.prefix, self.frames);
        if let Some(bytes) = self.buffer.bytes_mut() {
            // At most the message limit, which fits.
            bytes[..prefix].copy_from_slice(&(len as u32).to_be_bytes()[..prefix]);
            write_message_header(&mut bytes[prefix..], frames);
        }
        self
    }

    /// Returns the number of frames.
    pub(super) fn frames(&self) -> u16 {
        self.frames
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::{Head, Reader};

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

    /// Returns the first item, the number of items and the body of each frame of a message.
    fn frames(message: &[u8]) -> Vec<(u32, u16, &[u8])> {
        let mut reader = Reader::begin(message).unwrap();
        let mut frames = Vec::new();
        while let Some(head) = reader.next(message).unwrap() {
            frames.push(match head {
                Head::Items {
                    first, count, body, ..
                } => (first, count, &message[body]),
                Head::End { items, .. } => (items, 0, &[][..]),
                other => panic!("{other:?}"),
            });
        }
        frames
    }

    #[test]
    fn consecutive_items_of_a_stream_share_a_frame() {
        let mut batch = Batch::new(Buffer::Heap(vec![0; BATCH]), 0);
        let push = |batch: &mut Batch, header, body: &[u8]| {
            assert_eq!(batch.push_item(&header, body).unwrap(), Some(body.len()));
        };
        push(&mut batch, item(0, u32::MAX), b"ab");
        push(&mut batch, item(0, 0), b"");
        push(&mut batch, item(0, 1), b"c");
        // The item between was sent by itself.
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
    fn an_item_that_does_not_fit_changes_nothing() {
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
