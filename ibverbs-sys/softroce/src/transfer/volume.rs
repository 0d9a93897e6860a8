//! Amounts of messages, bytes and copy operations, for the statistics counters.

use super::{MAX_COPY, MessagePart, PayloadForm};
use crate::wire::{Opcode, Transport};

/// Amount of data that was transferred in one direction (sent or received), in one of the ways of
/// [`Transfer`](super::Transfer).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Volume {
    /// Number of messages that were transferred completely.
    pub(crate) messages: u64,
    /// Number of message bytes, including the bytes of incomplete messages.
    pub(crate) bytes: u64,
    /// Number of copy operations of this process. Counted only for ways of transfer in which the
    /// number differs between messages.
    pub(crate) copies: u64,
}

impl Volume {
    /// Adds a part of a message to these counters. The part has `length` bytes, which this process
    /// has copied in `copies` operations. If the length is zero, the operations are not counted.
    /// `ends` must be set for the last part of the message. The message itself is counted with this
    /// part.
    #[inline]
    pub(crate) fn add_part(&mut self, length: u32, ends: bool, copies: u64) {
        self.messages += u64::from(ends);
        self.bytes += u64::from(length);
        if length > 0 {
            self.copies += copies;
        }
    }

    /// Adds a message to these counters: a whole message of `length` bytes that was read from the
    /// memory of the peer or written to it.
    #[inline]
    pub(crate) fn add_one_sided(&mut self, length: u32) {
        self.add_part(length, true, length.div_ceil(MAX_COPY).into());
    }

    /// Adds a packet with `length` bytes of a message to these counters. A response packet adds
    /// only bytes, because each message is counted with its last request packet. Packets with
    /// manufacturer opcodes are not counted, because they contain no message bytes.
    #[inline]
    pub(crate) fn add_packet(&mut self, opcode: Opcode, length: usize) {
        if opcode.transport != Transport::Manufacturer {
            self.messages += u64::from(opcode.is_request() && opcode.ends_message());
            self.bytes += length as u64;
        }
    }
}

/// Amounts of data that a queue pair has sent through the shared ring without packet headers, for
/// each way of transfer.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Sent {
    pub(crate) slot: Volume,
    pub(crate) ring: Volume,
    pub(crate) descriptor: Volume,
    pub(crate) written: Volume,
}

impl Sent {
    /// Counts a message, or part of a message, that was sent through the shared ring. The
    /// [form](PayloadForm) of the payload determines which counter is increased.
    pub(crate) fn add(&mut self, message: &MessagePart<'_>) {
        let length = message.length();
        match message.form {
            PayloadForm::Whole => self.slot.add_part(length, true, 0),
            PayloadForm::Chunks(part) => self.ring.add_part(length, part.ends, 0),
            PayloadForm::Write => self.ring.add_part(length, true, 0),
            PayloadForm::Fetch(part) => self.descriptor.add_part(length, part.ends, 0),
            PayloadForm::Written => self.written.add_one_sided(length),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::Operation;

    #[test]
    fn a_message_of_several_packets_is_one_message() {
        let mut volume = Volume::default();
        let of = |operation| Opcode::new(Transport::ReliableConnection, operation);
        for (operation, length) in [
            (Operation::SendFirst, 1024),
            (Operation::SendMiddle, 1024),
            (Operation::SendLast, 5),
            (Operation::ReadRequest, 0),
            (Operation::ReadResponseOnly, 7),
            (Operation::Acknowledge, 0),
            (Operation::AtomicAcknowledge, 0),
            (Operation::FetchAdd, 0),
        ] {
            volume.add_packet(of(operation), length);
        }
        volume.add_packet(Opcode::SKIP, 0);
        let expected = Volume {
            messages: 3,
            bytes: 2060,
            copies: 0,
        };
        assert_eq!(volume, expected);
    }

    #[test]
    fn one_sided_operations_are_copied_in_parts_and_empty_ones_are_not_copied() {
        for (length, copies) in [(0, 0), (1, 1), (MAX_COPY, 1), (MAX_COPY + 1, 2)] {
            let mut volume = Volume::default();
            volume.add_one_sided(length);
            assert_eq!((volume.messages, volume.copies), (1, copies), "{length}");
            assert_eq!(volume.bytes, u64::from(length));
        }
    }
}
