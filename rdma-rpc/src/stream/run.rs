//! [`Run`]: consecutive items of a stream that arrived in one frame.

use crate::codec::CodecError;
use crate::payload::{Body, BodyBuffer, RetainedBytes};
use crate::wire::{ITEM_PREFIX_LEN, Violation};

/// Consecutive items of a stream that arrived in one frame, and the number of items that the
/// program has taken.
#[derive(Debug)]
pub(crate) struct Run {
    codec: u8,
    /// Sequence number of the first item.
    first: u32,
    count: u32,
    /// Number of bytes of all items, excluding their lengths.
    bytes: u32,
    /// Number of items that were taken.
    taken: u32,
    /// Position of the next item, including its length, in `stored`.
    at: usize,
    stored: BodyBuffer,
    /// Set if each item in `stored` is preceded by its length. Otherwise `stored` is a single item.
    has_lengths: bool,
}

/// Encoded bytes of a received stream item, which are passed to the decoder. The decoder must copy
/// a short item, because its buffer is used again. A long item can stay in its receive buffer.
pub(crate) enum EncodedItem<'e> {
    /// Bytes in a buffer that is used again after the item was decoded.
    Bytes(&'e [u8]),
    /// Bytes with the receive buffer, which the decoded item may retain.
    Retained(RetainedBytes),
}

impl Run {
    /// Creates the list of the stream items in a received frame. `first` is the sequence number of
    /// the first item, and `count` the number of items, each preceded by its length. If `count` is
    /// 0, `body` is a single item. A short body is copied into `stored`. Fails if the lengths do
    /// not match the body.
    pub(super) fn new(
        first: u32,
        codec: u8,
        count: u16,
        body: Body<'_>,
        mut stored: BodyBuffer,
    ) -> Result<Self, Violation> {
        let has_lengths = count > 0;
        let len = body.bytes().len();
        let bytes = match has_lengths {
            true => len_of_items(count, body.bytes())?,
            false => len,
        };
        stored.set(body);
        Ok(Self {
            codec,
            first,
            count: u32::from(count).max(1),
            bytes: u32::try_from(bytes).unwrap_or(u32::MAX),
            taken: 0,
            at: 0,
            stored,
            has_lengths,
        })
    }

    pub(super) fn first(&self) -> u32 {
        self.first
    }

    pub(super) fn count(&self) -> u32 {
        self.count
    }

    pub(super) fn bytes(&self) -> u32 {
        self.bytes
    }

    /// Drops the items after the first `count` items of this frame, because the stream ends after
    /// these items.
    pub(super) fn truncate(&mut self, count: u32) {
        self.count = self.count.min(count);
    }

    pub(super) fn is_empty(&self) -> bool {
        self.taken >= self.count
    }

    /// Takes the next stream item of this frame and decodes it with `decode`. At least one item
    /// must be left. The item counts as taken even if `decode` panics.
    pub(super) fn take<T>(
        &mut self,
        decode: impl FnOnce(u8, EncodedItem<'_>) -> Result<T, CodecError>,
    ) -> Result<T, CodecError> {
        self.taken += 1;
        if !self.has_lengths {
            return match self.stored.take_retained() {
                Some(retained) => decode(self.codec, EncodedItem::Retained(retained)),
                None => decode(self.codec, EncodedItem::Bytes(self.stored.bytes())),
            };
        }
        // `new` has checked all lengths.
        let rest = self.stored.bytes().get(self.at..).unwrap_or_default();
        let (item, _) = split_item(rest).unwrap_or_default();
        self.at += ITEM_PREFIX_LEN + item.len();
        decode(self.codec, EncodedItem::Bytes(item))
    }

    /// Drops the items that were not yet taken from this frame. Returns the empty buffer that
    /// stored the items, so that a later frame can use its memory.
    pub(super) fn into_stored(mut self) -> BodyBuffer {
        self.stored.clear();
        self.stored
    }
}

/// Splits the first item off `bytes`, in which each item is preceded by its length. Returns the
/// item without its length, and the remaining bytes. Returns `None` if the item is incomplete.
fn split_item(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let (length, rest) = bytes.split_first_chunk::<ITEM_PREFIX_LEN>()?;
    rest.split_at_checked(usize::from(u16::from_be_bytes(*length)))
}

/// Returns the total length of the `count` items in `bytes`, without the length field before each
/// item. Fails unless `bytes` contains exactly these items.
fn len_of_items(count: u16, bytes: &[u8]) -> Result<usize, Violation> {
    let mut rest = bytes;
    for _ in 0..count {
        (_, rest) = split_item(rest).ok_or(Violation::Short)?;
    }
    if rest.is_empty() {
        Ok(bytes.len() - usize::from(count) * ITEM_PREFIX_LEN)
    } else {
        Err(Violation::Fields)
    }
}

#[cfg(test)]
mod tests {
    use std::panic::{AssertUnwindSafe, catch_unwind};

    use super::*;
    use crate::payload::Payload;

    fn run(count: u16, bytes: &[u8]) -> Result<Run, Violation> {
        Run::new(7, 1, count, Body::Short(bytes), BodyBuffer::default())
    }

    fn take(run: &mut Run) -> Vec<u8> {
        let decode = |_, item: EncodedItem<'_>| match item {
            EncodedItem::Bytes(bytes) => Ok(bytes.to_vec()),
            EncodedItem::Retained(retained) => Ok(Payload::from(retained).into_vec()),
        };
        run.take(decode).unwrap()
    }

    #[test]
    fn items_with_lengths_are_taken_in_order() {
        let mut run = run(3, &[0, 1, 5, 0, 0, 0, 2, 8, 9]).unwrap();
        assert_eq!((run.first(), run.count(), run.bytes()), (7, 3, 3));
        assert_eq!(take(&mut run), [5]);
        assert!(take(&mut run).is_empty());
        assert!(!run.is_empty());
        assert_eq!(take(&mut run), [8, 9]);
        assert!(run.is_empty());
    }

    #[test]
    fn an_item_without_a_length_is_the_whole_body() {
        let mut run = run(0, &[0, 1, 5]).unwrap();
        assert_eq!((run.count(), run.bytes()), (1, 3));
        assert_eq!(take(&mut run), [0, 1, 5]);
        assert!(run.is_empty());
    }

    #[test]
    fn an_item_whose_decoder_panics_is_taken() {
        let mut run = run(2, &[0, 1, 5, 0, 1, 6]).unwrap();
        let taken = catch_unwind(AssertUnwindSafe(|| {
            run.take(|_, _| -> Result<(), CodecError> { panic!("asked to") })
        }));
        assert!(taken.is_err());
        assert_eq!(take(&mut run), [6]);
        assert!(run.is_empty());
    }

    #[test]
    fn lengths_that_do_not_fit_the_body_are_refused() {
        assert!(matches!(run(1, &[0]), Err(Violation::Short)));
        assert!(matches!(run(1, &[0, 2, 5]), Err(Violation::Short)));
        assert!(matches!(run(2, &[0, 1, 5]), Err(Violation::Short)));
        assert!(matches!(run(1, &[0, 1, 5, 6]), Err(Violation::Fields)));
    }

    #[test]
    fn items_after_the_end_are_dropped() {
        let mut run = run(3, &[0, 1, 5, 0, 1, 6, 0, 1, 7]).unwrap();
        run.truncate(1);
        assert_eq!(take(&mut run), [5]);
        assert!(run.is_empty());
    }
}
