#![forbid(unsafe_code)]
//! The encoding of ring messages (short messages without packet headers) as words. Each ring
//! message is in a slot (one cache line) of a ring.

use super::ring::WORDS;
use crate::proto::Sequence;
use crate::transfer::{MAX_SLOT_BYTES, MessagePart, PartFlags, PayloadForm, RingMessage};

/// Flag in the first word of a message in shared memory: the message acknowledges messages that the
/// other process has sent earlier. The 24 bits below the flag are the queue pair number.
const ACKNOWLEDGED: u64 = 1 << 24;
/// Flag in the first word of a slot (cache line of a ring): the slot contains a message. A slot
/// without this flag contains only an acknowledgement.
const MESSAGE: u64 = 1 << 25;
/// Flag in the first word of a message in shared memory: the second word contains immediate data.
const IMMEDIATE: u64 = 1 << 26;
/// Flag in the first word of a message in shared memory: the completion of the message raises an
/// event even if the receiver has requested events for solicited messages only.
const SOLICITED: u64 = 1 << 27;
/// Flag in the first word of a slot (cache line of a ring): the payload is not in the slot. The
/// receiver copies the payload from chunks of the ring or from the sender's memory. If [`WRITTEN`]
/// is also set, the message is a write with immediate data ([`PayloadForm::Write`]).
const FETCH: u64 = 1 << 28;
/// Flag in the first word of a slot (cache line of a ring): the sender has written the payload into
/// the receiver's memory.
const WRITTEN: u64 = 1 << 29;
/// Flag in the first word of a slot (cache line of a ring): the slot contains the first part of a
/// message.
const STARTS: u64 = 1 << 30;
/// Flag in the first word of a slot (cache line of a ring): the slot contains the last part of a
/// message.
const ENDS: u64 = 1 << 31;
/// Flag in the second word of a slot (cache line of a ring): the message is a Send with Invalidate,
/// which invalidates a memory key of the receiver.
const INVALIDATES: u64 = 1 << 48;
/// Flag in the second word of a slot (cache line of a ring): the payload is in chunks of the shared
/// memory instead of the slot.
const CHUNKS: u64 = 1 << 49;

/// Mask of a 24-bit number in a word of a slot (cache line of a ring). The number is a queue pair
/// number or a sequence number.
const NUMBER_MASK: u64 = 0xff_ffff;
/// Bit offset of the message's sequence number in the first word of a message in shared memory.
const SEQUENCE_AT: u32 = 32;
/// Bit offset of the payload length in the first word of a message in shared memory. The length is
/// in bytes.
const LENGTH_AT: u32 = 56;
/// Offset in bits of the partition key, in the second word of a slot (cache line of a ring). The 32
/// bits below the partition key are the immediate data.
const PARTITION_AT: u32 = 32;
/// Index of the first payload word of a message in shared memory. The words before it are the
/// header.
const BYTES_AT: usize = 3;

const _: () = assert!(8 * (WORDS - BYTES_AT) == MAX_SLOT_BYTES);

/// Encodes a [`RingMessage`] as the words of a slot (one cache line of a ring).
#[inline(always)]
pub(crate) fn encode(ring_message: &RingMessage<'_>) -> [u64; WORDS] {
    let mut words = [0; WORDS];
    words[0] = u64::from(ring_message.destination) & NUMBER_MASK;
    words[1] = u64::from(ring_message.partition_key) << PARTITION_AT;
    if let Some(sequence) = ring_message.acknowledged {
        words[0] |= ACKNOWLEDGED;
        words[2] = u64::from(sequence.value());
    }
    if let Some(message) = &ring_message.message {
        words[0] |= MESSAGE
            | u64::from(message.sequence.value()) << SEQUENCE_AT
            | (message.payload.len() as u64) << LENGTH_AT;
        if message.solicited {
            words[0] |= SOLICITED;
        }
        match message.form {
            PayloadForm::Whole => {}
            PayloadForm::Written => words[0] |= WRITTEN,
            // The two flags together have no other meaning.
            PayloadForm::Write => words[0] |= FETCH | WRITTEN,
            PayloadForm::Chunks(part) | PayloadForm::Fetch(part) => {
                words[0] |= FETCH;
                words[0] |= if part.starts { STARTS } else { 0 };
                words[0] |= if part.ends { ENDS } else { 0 };
                words[1] |= if part.invalidates { INVALIDATES } else { 0 };
                if matches!(message.form, PayloadForm::Chunks(_)) {
                    words[1] |= CHUNKS;
                }
            }
        }
        if let Some(immediate) = message.immediate {
            words[0] |= IMMEDIATE;
            words[1] |= u64::from(u32::from_ne_bytes(immediate));
        }
        let (whole, rest) = message.payload.as_chunks();
        let mut room = words[BYTES_AT..].iter_mut();
        for (bytes, word) in whole.iter().zip(&mut room) {
            *word = u64::from_ne_bytes(*bytes);
        }
        if let (Some(word), false) = (room.next(), rest.is_empty()) {
            let mut bytes = [0; 8];
            bytes[..rest.len()].copy_from_slice(rest);
            *word = u64::from_ne_bytes(bytes);
        }
    }
    words
}

/// Decodes a [`RingMessage`] from the words of a slot (one cache line of a ring). Copies the
/// payload to `room`, which the result borrows. Returns `None` if the payload is longer than
/// [`MAX_SLOT_BYTES`].
#[inline]
pub(crate) fn decode<'a>(
    words: &[u64; WORDS],
    room: &'a mut [u8; MAX_SLOT_BYTES],
) -> Option<RingMessage<'a>> {
    let has = |bit| words[0] & bit != 0;
    let message = if has(MESSAGE) {
        let length = usize::from((words[0] >> LENGTH_AT) as u8);
        if length > MAX_SLOT_BYTES {
            return None;
        }
        let (chunks, _) = room.as_chunks_mut();
        for (bytes, word) in chunks.iter_mut().zip(&words[BYTES_AT..]) {
            *bytes = word.to_ne_bytes();
        }
        let form = match (has(FETCH), has(WRITTEN)) {
            (false, false) => PayloadForm::Whole,
            (false, true) => PayloadForm::Written,
            (true, true) => PayloadForm::Write,
            (true, false) => {
                let part = PartFlags {
                    starts: has(STARTS),
                    ends: has(ENDS),
                    invalidates: words[1] & INVALIDATES != 0,
                };
                if words[1] & CHUNKS != 0 {
                    PayloadForm::Chunks(part)
                } else {
                    PayloadForm::Fetch(part)
                }
            }
        };
        Some(MessagePart {
            form,
            sequence: Sequence::new((words[0] >> SEQUENCE_AT & NUMBER_MASK) as u32),
            immediate: has(IMMEDIATE).then_some((words[1] as u32).to_ne_bytes()),
            solicited: has(SOLICITED),
            payload: &room[..length],
        })
    } else {
        None
    };
    Some(RingMessage {
        destination: (words[0] & NUMBER_MASK) as u32,
        partition_key: (words[1] >> PARTITION_AT) as u16,
        acknowledged: has(ACKNOWLEDGED).then_some(Sequence::new((words[2] & NUMBER_MASK) as u32)),
        message,
    })
}

#[cfg(all(test, not(loom)))]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Returns a strategy that generates each [`PayloadForm`] (way in which a ring message
    /// transfers its payload), for a property test of the encoding.
    fn form() -> impl Strategy<Value = PayloadForm> {
        let part = any::<[bool; 3]>().prop_map(|[starts, ends, invalidates]| PartFlags {
            starts,
            ends,
            invalidates,
        });
        prop_oneof![
            Just(PayloadForm::Whole),
            Just(PayloadForm::Write),
            Just(PayloadForm::Written),
            part.clone().prop_map(PayloadForm::Chunks),
            part.prop_map(PayloadForm::Fetch),
        ]
    }

    /// Returns a strategy that generates random contents of messages, for a property test: sequence
    /// number, form, immediate data, solicited flag and payload.
    fn message() -> impl Strategy<Value = (u32, PayloadForm, Option<[u8; 4]>, bool, Vec<u8>)> {
        let bytes = proptest::collection::vec(any::<u8>(), 0..=MAX_SLOT_BYTES);
        (
            0..1_u32 << 24,
            form(),
            any::<Option<[u8; 4]>>(),
            any::<bool>(),
            bytes,
        )
    }

    proptest! {
        #[test]
        fn a_message_is_decoded_as_encoded(
            destination in 0..1_u32 << 24,
            partition_key: u16,
            acknowledged in proptest::option::of(0..1_u32 << 24),
            message in proptest::option::of(message()),
        ) {
            let ring_message = RingMessage {
                destination,
                partition_key,
                acknowledged: acknowledged.map(Sequence::new),
                message: message.as_ref().map(|(sequence, form, immediate, solicited, payload)| MessagePart {
                    form: *form,
                    sequence: Sequence::new(*sequence),
                    immediate: *immediate,
                    solicited: *solicited,
                    payload,
                }),
            };
            let mut room = [0xa5; MAX_SLOT_BYTES];
            prop_assert_eq!(decode(&encode(&ring_message), &mut room), Some(ring_message));
        }

        #[test]
        fn invalid_words_are_decoded_without_a_panic(words: [u64; WORDS]) {
            let mut room = [0; MAX_SLOT_BYTES];
            if let Some(message) = decode(&words, &mut room).and_then(|ring_message| ring_message.message) {
                prop_assert!(message.payload.len() <= MAX_SLOT_BYTES);
            }
        }
    }
}
