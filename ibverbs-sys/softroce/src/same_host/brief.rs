#![forbid(unsafe_code)]
//! Briefs as they are in a slot of a ring.

use super::ring::WORDS;
use crate::proto::brief::SHORT;
use crate::proto::{Brief, Sequence, Short};

/// Bits of the first word, above the number of the queue pair.
const ACKNOWLEDGED: u64 = 1 << 24;
const MESSAGE: u64 = 1 << 25;
const IMMEDIATE: u64 = 1 << 26;
const SOLICITED: u64 = 1 << 27;

/// Where numbers of 24 bits begin.
const NUMBER: u64 = 0xff_ffff;
/// The first word: the queue pair, bits, and the message's number and length.
const SEQUENCE_AT: u32 = 32;
const LENGTH_AT: u32 = 56;
/// The second: immediate data and partition. The third: what is acknowledged. The others: the message.
const PARTITION_AT: u32 = 32;
const BYTES_AT: usize = 3;

const _: () = assert!(8 * (WORDS - BYTES_AT) == SHORT);

/// What a slot has to say for a brief.
#[inline]
pub(crate) fn encode(brief: &Brief) -> [u64; WORDS] {
    let mut words = [0; WORDS];
    words[0] = u64::from(brief.destination) & NUMBER;
    words[1] = u64::from(brief.partition_key) << PARTITION_AT;
    if let Some(sequence) = brief.acknowledged {
        words[0] |= ACKNOWLEDGED;
        words[2] = u64::from(sequence.value());
    }
    if let Some(message) = &brief.message {
        words[0] |= MESSAGE
            | u64::from(message.sequence.value()) << SEQUENCE_AT
            | u64::from(message.length) << LENGTH_AT;
        if message.solicited {
            words[0] |= SOLICITED;
        }
        if let Some(immediate) = message.immediate {
            words[0] |= IMMEDIATE;
            words[1] |= u64::from(u32::from_ne_bytes(immediate));
        }
        let (bytes, _) = message.bytes.as_chunks();
        for (word, bytes) in words[BYTES_AT..].iter_mut().zip(bytes) {
            *word = u64::from_ne_bytes(*bytes);
        }
    }
    words
}

/// What a slot says. None: nothing that makes sense.
#[inline]
pub(crate) fn decode(words: &[u64; WORDS]) -> Option<Brief> {
    let has = |bit| words[0] & bit != 0;
    let message = if has(MESSAGE) {
        let mut bytes = [0; SHORT];
        let (chunks, _) = bytes.as_chunks_mut();
        for (bytes, word) in chunks.iter_mut().zip(&words[BYTES_AT..]) {
            *bytes = word.to_ne_bytes();
        }
        Some(Short {
            sequence: Sequence::new((words[0] >> SEQUENCE_AT & NUMBER) as u32),
            immediate: has(IMMEDIATE).then_some((words[1] as u32).to_ne_bytes()),
            solicited: has(SOLICITED),
            length: Some((words[0] >> LENGTH_AT) as u8)
                .filter(|&length| usize::from(length) <= SHORT)?,
            bytes,
        })
    } else {
        None
    };
    Some(Brief {
        destination: (words[0] & NUMBER) as u32,
        partition_key: (words[1] >> PARTITION_AT) as u16,
        acknowledged: has(ACKNOWLEDGED).then_some(Sequence::new((words[2] & NUMBER) as u32)),
        message,
    })
}

#[cfg(all(test, not(loom)))]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn message() -> impl Strategy<Value = Short> {
        let bytes = any::<[u8; SHORT]>();
        let parts = (0..1_u32 << 24, any::<Option<[u8; 4]>>(), any::<bool>());
        (parts, 0..=SHORT as u8, bytes).prop_map(
            |((sequence, immediate, solicited), length, bytes)| Short {
                sequence: Sequence::new(sequence),
                immediate,
                solicited,
                length,
                bytes,
            },
        )
    }

    proptest! {
        #[test]
        fn what_is_said_is_heard(
            destination in 0..1_u32 << 24,
            partition_key: u16,
            acknowledged in proptest::option::of(0..1_u32 << 24),
            message in proptest::option::of(message()),
        ) {
            let brief = Brief {
                destination,
                partition_key,
                acknowledged: acknowledged.map(Sequence::new),
                message,
            };
            prop_assert_eq!(decode(&encode(&brief)), Some(brief));
        }

        #[test]
        fn nonsense_is_harmless(words: [u64; WORDS]) {
            if let Some(message) = decode(&words).and_then(|brief| brief.message) {
                prop_assert!(message.payload().len() <= SHORT);
            }
        }
    }
}
