use super::Packet;
use super::header::BASE;

/// Received packets that are handled in one step: a single packet, or several packets from the
/// middle of a message that have the same length. The headers of these packets differ only in the
/// sequence number and the acknowledgement request.
#[derive(Clone, Copy, Debug)]
pub struct Run<'a> {
    first: Packet<'a>,
    /// Bytes of all packets, beginning with the BTH of the first packet. Empty for a single packet.
    bytes: &'a [u8],
    /// Number of bytes from the beginning of a packet to the beginning of the next packet.
    stride: usize,
    count: usize,
    /// Set if at least one of the packets requests an acknowledgement.
    acknowledge: bool,
}

impl<'a> Run<'a> {
    /// Creates a [`Run`] (packets that are handled in one step) that consists of the single packet
    /// `packet`.
    pub fn of_packet(packet: Packet<'a>) -> Self {
        Self {
            first: packet,
            bytes: &[],
            stride: 0,
            count: 1,
            acknowledge: packet.header.bth.acknowledge,
        }
    }

    /// Collects as many packets as possible into a [`Run`], a group of packets that are handled in
    /// one step. `datagrams` contains received datagrams of `stride` bytes each, and `first` is the
    /// first packet, already parsed. The run ends before a packet that is not the next middle
    /// packet of the same message. It also ends before a datagram that `is_right` rejects, for
    /// example because of a wrong checksum.
    pub fn gather(
        first: Packet<'a>,
        datagrams: &'a [u8],
        stride: usize,
        mut is_right: impl FnMut(&[u8]) -> bool,
    ) -> Self {
        let mut run = Self::of_packet(first);
        let bth = &first.header.bth;
        let is_plain = bth.opcode.is_middle() && first.header.len() == BASE && bth.pad == 0;
        if !is_plain || stride < BASE + first.payload.len() {
            return run;
        }
        (run.bytes, run.stride) = (datagrams, stride);
        let mut rest = datagrams.chunks_exact(stride);
        let Some(head) = rest.next().and_then(<[u8]>::first_chunk::<BASE>) else {
            return run;
        };
        for datagram in rest {
            let Some((acknowledge, sequence)) = continues_run(head, datagram) else {
                break;
            };
            if sequence != (bth.sequence + run.count as u32) & SEQUENCE_MASK || !is_right(datagram)
            {
                break;
            }
            run.count += 1;
            run.acknowledge |= acknowledge;
        }
        run
    }

    /// Returns the first packet of this run, in parsed form.
    pub fn first(&self) -> &Packet<'a> {
        &self.first
    }

    /// Returns the number of packets in this run, at least 1. A run consists of received packets of
    /// one message that are handled together.
    pub fn count(&self) -> usize {
        self.count
    }

    /// Returns whether at least one packet of this run requests an acknowledgement.
    pub fn acknowledge(&self) -> bool {
        self.acknowledge
    }

    /// Returns the payloads of all packets of this run, in order.
    pub fn payloads(&self) -> impl Iterator<Item = &'a [u8]> + Clone + use<'a> {
        let Self {
            first,
            bytes,
            stride,
            count,
            ..
        } = *self;
        let length = first.payload.len();
        let others = (1..count).map(move |number| {
            let begin = number * stride + BASE;
            &bytes[begin..begin + length]
        });
        std::iter::once(first.payload).chain(others)
    }

    /// Returns all packets of this run, in parsed form and in order.
    pub fn packets(&self) -> impl Iterator<Item = Packet<'a>> {
        let Self {
            first,
            bytes,
            stride,
            ..
        } = *self;
        self.payloads().enumerate().map(move |(number, payload)| {
            let mut packet = Packet { payload, ..first };
            if number > 0 {
                let bth = &mut packet.header.bth;
                bth.sequence = (bth.sequence + number as u32) & SEQUENCE_MASK;
                bth.acknowledge = bytes[number * stride + FLAGS_OFFSET] & ACKNOWLEDGE != 0;
            }
            packet
        })
    }
}

/// Mask of the 24 bits of a packet sequence number, for arithmetic with wraparound.
const SEQUENCE_MASK: u32 = 0xff_ffff;

/// Offset of the byte with the acknowledgement request bit, in bytes from the beginning of a
/// packet. The sequence number follows this byte.
const FLAGS_OFFSET: usize = 8;

/// Mask of the acknowledgement request bit, by which a packet requests an acknowledgement. The bit
/// is in the byte before the sequence number of the base transport header (BTH).
const ACKNOWLEDGE: u8 = 0x80;

/// Sets the acknowledgement request bit in the BTH of the encoded packet `packet`.
pub(crate) fn request_acknowledgement(packet: &mut [u8]) {
    packet[FLAGS_OFFSET] |= ACKNOWLEDGE;
}

/// Compares `packet` with `head`, the base transport header (BTH) of the first packet of a run. If
/// the BTHs differ at most in the acknowledgement request and the sequence number, returns these
/// two fields of `packet`. Otherwise returns `None`.
fn continues_run(head: &[u8; BASE], packet: &[u8]) -> Option<(bool, u32)> {
    let bth = packet.first_chunk::<BASE>()?;
    let [flags, sequence @ ..] = *bth.last_chunk::<4>()?;
    let is_same = bth[..FLAGS_OFFSET] == head[..FLAGS_OFFSET]
        && (flags ^ head[FLAGS_OFFSET]) & !ACKNOWLEDGE == 0;
    let [high, middle, low] = sequence;
    is_same.then_some((
        flags & ACKNOWLEDGE != 0,
        u32::from_be_bytes([0, high, middle, low]),
    ))
}

#[cfg(test)]
mod tests {
    use super::super::{Bth, Header, Opcode, Operation, Transport};
    use super::*;

    const PAYLOAD: usize = 64;
    const STRIDE: usize = BASE + PAYLOAD + 4;

    /// Returns datagrams for the tests, one after another. Each element of `packets` contains
    /// fields of a packet's header: the operation, the sequence number, and `true` to request an
    /// acknowledgement. The last four bytes of a datagram are its index, instead of a checksum.
    fn datagrams(packets: &[(Operation, u32, bool)]) -> Vec<u8> {
        let mut bytes = Vec::new();
        for (place, &(operation, sequence, acknowledge)) in packets.iter().enumerate() {
            let opcode = Opcode::new(Transport::ReliableConnection, operation);
            let header = Header::new(Bth {
                acknowledge,
                ..Bth::new(opcode, 0x1234, sequence)
            });
            let payload = &[place as u8; PAYLOAD];
            Packet { header, payload }.emit(&mut bytes);
            bytes.extend_from_slice(&(place as u32).to_be_bytes());
        }
        bytes
    }

    fn gathered(bytes: &[u8]) -> Run<'_> {
        let first = Packet::parse(&bytes[..STRIDE - 4]).unwrap();
        Run::gather(first, bytes, STRIDE, |_| true)
    }

    #[test]
    fn middle_packets_form_a_run_and_are_decoded_one_by_one() {
        use Operation::WriteMiddle as M;
        let packets = [
            (M, 0xff_fffe, false),
            (M, 0xff_ffff, true),
            (M, 0, false),
            (Operation::WriteLast, 1, true),
        ];
        let bytes = datagrams(&packets);
        let run = gathered(&bytes);
        assert_eq!((run.count(), run.acknowledge()), (3, true));
        for (place, packet) in run.packets().enumerate() {
            let begin = place * STRIDE;
            let alone = Packet::parse(&bytes[begin..begin + STRIDE - 4]);
            assert_eq!(alone, Ok(packet));
        }
        assert_eq!(run.packets().count(), 3);
        assert_eq!(run.payloads().map(|payload| payload[0]).max(), Some(2));
    }

    #[test]
    fn a_packet_with_a_different_header_ends_a_run() {
        use Operation::{SendMiddle, WriteMiddle as M};
        for (other, number) in [(M, 7), (M, 9), (SendMiddle, 8)] {
            let bytes = datagrams(&[(M, 6, false), (M, 7, false), (other, number, false)]);
            assert_eq!(gathered(&bytes).count(), 2, "{other:?} {number}");
        }
        let good = datagrams(&[(M, 6, false), (M, 7, false)]);
        assert!(!gathered(&good).acknowledge());
        // Changes each bit of the BTH in turn, except the acknowledgement request.
        for bit in (0..8 * BASE).filter(|&bit| bit != 8 * 8) {
            let mut bytes = good.clone();
            bytes[STRIDE + bit / 8] ^= 0x80 >> (bit % 8);
            assert_eq!(gathered(&bytes).count(), 1, "bit {bit}");
        }
        let right = |datagram: &[u8]| datagram[STRIDE - 1] != 1;
        let first = *gathered(&good).first();
        assert_eq!(Run::gather(first, &good, STRIDE, right).count(), 1);
        // The last packet is truncated.
        assert_eq!(gathered(&good[..2 * STRIDE - 1]).count(), 1);
    }

    #[test]
    fn other_packets_are_not_in_a_run() {
        for operation in [Operation::WriteLast, Operation::SendOnly] {
            let bytes = datagrams(&[(operation, 1, false), (operation, 2, false)]);
            let run = gathered(&bytes);
            assert_eq!((run.count(), run.packets().count()), (1, 1));
        }
    }
}
