use std::fmt;

use super::Opcode;

/// Length in bytes of a base transport header (BTH), with which every packet begins.
pub(crate) const BASE: usize = 12;

/// Base transport header (BTH): the first 12 bytes of every packet (IBTA 9.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bth {
    /// Operation of the packet, with its transport service.
    pub opcode: Opcode,
    /// Set if the receiver must raise a solicited completion event.
    pub solicited: bool,
    /// Migration state bit, which devices without path migration always set.
    pub migrated: bool,
    /// Number of bytes, 0 to 3, that pad the payload to a multiple of four.
    pub pad: u8,
    /// Partition key. The receiver drops a packet of another partition.
    pub partition_key: u16,
    /// Number of the destination queue pair (24 bits).
    pub destination: u32,
    /// Set if the packet requests an acknowledgement.
    pub acknowledge: bool,
    /// Packet sequence number (24 bits).
    pub sequence: u32,
}

/// RDMA extended transport header (RETH, 16 bytes) of a request such as a read or a write:
/// identifies the memory of the responder that the request accesses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reth {
    /// Address of the first byte in the responder's memory.
    pub address: u64,
    /// Remote key of the responder's memory.
    pub key: u32,
    /// Length of the whole message in bytes.
    pub length: u32,
}

/// Flush extended transport header (FETH, 4 bytes): the parameters of a flush of the memory that
/// the RETH names (IBTA annex A19).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Feth {
    /// Placement types, 4 bits: 1 for global visibility, 2 for persistence.
    pub placement: u8,
    /// Selectivity level, 2 bits: 0 for the range of the RETH, 1 for the whole memory region.
    pub level: u8,
}

/// Acknowledgement extended transport header (AETH, 4 bytes), by which a responder acknowledges or
/// refuses requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Aeth {
    /// Code by which the responder accepts or refuses a packet.
    pub syndrome: Syndrome,
    /// Message sequence number (MSN, 24 bits): the number of messages that the responder has
    /// executed.
    pub message_sequence: u32,
}

/// Syndrome: the first byte of an [`Aeth`], which encodes whether a packet was accepted (IBTA
/// 9.7.5.2.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Syndrome {
    /// Acknowledgement, with the responder's end-to-end credit code (31: credits are not used).
    Ack {
        /// Credit code (5 bits), which encodes the number of receives that the responder has
        /// posted.
        credits: u8,
    },
    /// RNR NAK: the responder has no receive posted. The timer code determines how long the
    /// requester must wait.
    ReceiverNotReady {
        /// Timer code (5 bits), which encodes the time that the requester must wait.
        timer: u8,
    },
    /// Negative acknowledgement.
    Nak(Nak),
}

/// Reason for which the responder sends a negative acknowledgement (IBTA table 47).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "the specification's own names")]
pub enum Nak {
    SequenceError,
    InvalidRequest,
    RemoteAccessError,
    RemoteOperationalError,
    InvalidRdRequest,
}

/// Atomic extended transport header (AtomicETH, 28 bytes) of a compare-and-swap or fetch-and-add
/// request: contains the memory and the operands of the operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AtomicEth {
    /// Address of the eight bytes in the responder's memory.
    pub address: u64,
    /// Remote key of the responder's memory.
    pub key: u32,
    /// New value of a compare-and-swap, or addend of a fetch-and-add.
    pub swap_or_add: u64,
    /// Value that a compare-and-swap compares. 0 for a fetch-and-add.
    pub compare: u64,
}

/// Datagram extended transport header (DETH, 8 bytes), which contains the queue key and the number
/// of the sending queue pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Deth {
    /// Queue key that the receiving queue pair checks.
    pub queue_key: u32,
    /// Number of the queue pair that sent the datagram (24 bits).
    pub source: u32,
}

/// Transport headers of a packet. The opcode determines the headers that a packet contains (IBTA
/// tables 38 and following). The creator of a packet must set every header that its opcode
/// requires.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// Base transport header, present in every packet.
    pub bth: Bth,
    /// Number of the shared receive queue, in all XRC requests (XRCETH).
    pub xrc_srq: Option<u32>,
    /// Datagram header, present in datagrams.
    pub deth: Option<Deth>,
    /// Flush header, present in flushes.
    pub feth: Option<Feth>,
    /// RDMA header, present in read requests, atomic writes and flushes, and in the first or only
    /// packet of a write.
    pub reth: Option<Reth>,
    /// Atomic header, present in atomic requests.
    pub atomic: Option<AtomicEth>,
    /// Acknowledgement header, present in acknowledgements and in all read responses except middle
    /// responses.
    pub aeth: Option<Aeth>,
    /// Previous value of the eight bytes (AtomicAckETH), present in responses to atomics.
    pub original: Option<u64>,
    /// Immediate data (ImmDt), in the byte order of the sender.
    pub immediate: Option<[u8; 4]>,
    /// Key that the receiver must invalidate (IETH), present in sends with invalidate.
    pub invalidate: Option<u32>,
}

/// Decoded packet: the transport headers and the payload, without the pad and the checksum (ICRC)
/// that follow the payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Packet<'a> {
    /// Transport headers.
    pub header: Header,
    /// Payload without pad.
    pub payload: &'a [u8],
}

/// Reason why bytes are not a valid packet. A receiver drops invalid packets without a response
/// (IBTA 9.6).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Malformed {
    /// The packet is shorter than its headers, or its length is not a multiple of four.
    Length,
    /// The opcode belongs to no supported service.
    Opcode,
    /// The transport version is not 0.
    Version,
    /// The pad is longer than the payload.
    Pad,
    /// The packet has a payload, but its operation does not permit one.
    Payload,
    /// The AETH contains a reserved code.
    Syndrome,
}

impl fmt::Display for Malformed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Length => "the packet's length does not fit its headers",
            Self::Opcode => "the packet's opcode is unknown",
            Self::Version => "the packet's transport version is not 0",
            Self::Pad => "the packet has more pad than payload",
            Self::Payload => "the packet has a payload where its operation has none",
            Self::Syndrome => "the packet's acknowledgement has a reserved syndrome",
        })
    }
}

impl std::error::Error for Malformed {}

impl Syndrome {
    /// Decodes the syndrome, the first byte of an [`Aeth`]: bits 6 and 5 are the kind of the
    /// acknowledgement, and bits 4 to 0 its value. Returns `None` for reserved codes. Bit 7 is
    /// always 0 (IBTA 9.7.5.2.1).
    pub const fn from_byte(byte: u8) -> Option<Self> {
        let value = byte & 0x1f;
        match byte >> 5 {
            0b000 => Some(Self::Ack { credits: value }),
            0b001 => Some(Self::ReceiverNotReady { timer: value }),
            0b011 => match Nak::from_code(value) {
                Some(nak) => Some(Self::Nak(nak)),
                None => None,
            },
            _ => None,
        }
    }

    /// Encodes this syndrome as the first byte of an [`Aeth`] (acknowledgement header). The upper
    /// bits are the kind of the syndrome, and the lower five bits its value: credits, timer or
    /// reason.
    pub const fn to_byte(self) -> u8 {
        match self {
            Self::Ack { credits } => credits & 0x1f,
            Self::ReceiverNotReady { timer } => 0b001 << 5 | timer & 0x1f,
            Self::Nak(nak) => 0b011 << 5 | nak.to_code(),
        }
    }
}

impl Nak {
    const fn from_code(code: u8) -> Option<Self> {
        match code {
            0 => Some(Self::SequenceError),
            1 => Some(Self::InvalidRequest),
            2 => Some(Self::RemoteAccessError),
            3 => Some(Self::RemoteOperationalError),
            4 => Some(Self::InvalidRdRequest),
            _ => None,
        }
    }

    const fn to_code(self) -> u8 {
        match self {
            Self::SequenceError => 0,
            Self::InvalidRequest => 1,
            Self::RemoteAccessError => 2,
            Self::RemoteOperationalError => 3,
            Self::InvalidRdRequest => 4,
        }
    }
}

impl Bth {
    /// Creates the BTH of a packet to the queue pair with the number `destination`: default
    /// partition, no pad, no acknowledgement requested, no solicited event, and no path migration.
    pub const fn new(opcode: Opcode, destination: u32, sequence: u32) -> Self {
        Self {
            opcode,
            solicited: false,
            migrated: true,
            pad: 0,
            partition_key: 0xffff,
            destination,
            acknowledge: false,
            sequence,
        }
    }

    /// Encodes this header as the bytes of a packet. Reserved bits are 0.
    pub fn to_bytes(&self) -> [u8; BASE] {
        let flags =
            u8::from(self.solicited) << 7 | u8::from(self.migrated) << 6 | (self.pad & 3) << 4;
        let mut bytes = [0; BASE];
        bytes[..2].copy_from_slice(&[self.opcode.to_byte(), flags]);
        bytes[2..4].copy_from_slice(&self.partition_key.to_be_bytes());
        bytes[4..8].copy_from_slice(&low_24(self.destination));
        let sequence = self.sequence & 0xff_ffff | u32::from(self.acknowledge) << 31;
        bytes[8..].copy_from_slice(&sequence.to_be_bytes());
        bytes
    }

    fn parse(reader: &mut Reader<'_>) -> Result<Self, Malformed> {
        let [opcode, flags] = reader.take()?;
        let partition_key = u16::from_be_bytes(reader.take()?);
        let destination = u32::from_be_bytes(reader.take()?) & 0xff_ffff;
        let sequence = u32::from_be_bytes(reader.take()?);
        // The opcode is defined only for transport version 0.
        if flags & 0x0f != 0 {
            return Err(Malformed::Version);
        }
        Ok(Self {
            opcode: Opcode::from_byte(opcode).ok_or(Malformed::Opcode)?,
            solicited: flags & 0x80 != 0,
            migrated: flags & 0x40 != 0,
            pad: flags >> 4 & 3,
            partition_key,
            destination,
            acknowledge: sequence >> 31 != 0,
            sequence: sequence & 0xff_ffff,
        })
    }
}

impl Reth {
    fn emit(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.address.to_be_bytes());
        out.extend_from_slice(&self.key.to_be_bytes());
        out.extend_from_slice(&self.length.to_be_bytes());
    }

    fn parse(reader: &mut Reader<'_>) -> Result<Self, Malformed> {
        Ok(Self {
            address: u64::from_be_bytes(reader.take()?),
            key: u32::from_be_bytes(reader.take()?),
            length: u32::from_be_bytes(reader.take()?),
        })
    }
}

impl Feth {
    fn emit(self, out: &mut Vec<u8>) {
        let bits = u32::from(self.placement & 0xf) | u32::from(self.level & 3) << 4;
        out.extend_from_slice(&bits.to_be_bytes());
    }

    fn parse(reader: &mut Reader<'_>) -> Result<Self, Malformed> {
        let [.., bits] = reader.take::<4>()?;
        Ok(Self {
            placement: bits & 0xf,
            level: bits >> 4 & 3,
        })
    }
}

impl AtomicEth {
    fn emit(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.address.to_be_bytes());
        out.extend_from_slice(&self.key.to_be_bytes());
        out.extend_from_slice(&self.swap_or_add.to_be_bytes());
        out.extend_from_slice(&self.compare.to_be_bytes());
    }

    fn parse(reader: &mut Reader<'_>) -> Result<Self, Malformed> {
        Ok(Self {
            address: u64::from_be_bytes(reader.take()?),
            key: u32::from_be_bytes(reader.take()?),
            swap_or_add: u64::from_be_bytes(reader.take()?),
            compare: u64::from_be_bytes(reader.take()?),
        })
    }
}

impl Aeth {
    fn emit(&self, out: &mut Vec<u8>) {
        let [_, message_sequence @ ..] = self.message_sequence.to_be_bytes();
        out.push(self.syndrome.to_byte());
        out.extend_from_slice(&message_sequence);
    }

    fn parse(reader: &mut Reader<'_>) -> Result<Self, Malformed> {
        let [syndrome, high, middle, low] = reader.take()?;
        Ok(Self {
            syndrome: Syndrome::from_byte(syndrome).ok_or(Malformed::Syndrome)?,
            message_sequence: u32::from_be_bytes([0, high, middle, low]),
        })
    }
}

impl Deth {
    fn emit(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.queue_key.to_be_bytes());
        out.extend_from_slice(&low_24(self.source));
    }

    fn parse(reader: &mut Reader<'_>) -> Result<Self, Malformed> {
        Ok(Self {
            queue_key: u32::from_be_bytes(reader.take()?),
            source: u32::from_be_bytes(reader.take()?) & 0xff_ffff,
        })
    }
}

impl Header {
    /// Creates headers that consist of a BTH without extension headers.
    pub const fn new(bth: Bth) -> Self {
        Self {
            bth,
            xrc_srq: None,
            deth: None,
            feth: None,
            reth: None,
            atomic: None,
            aeth: None,
            original: None,
            immediate: None,
            invalidate: None,
        }
    }

    /// Returns the number of pad bytes that must follow a payload of `payload` bytes. The pad makes
    /// the length a multiple of four.
    pub const fn pad_for(payload: usize) -> u8 {
        (payload.wrapping_neg() & 3) as u8
    }

    /// Returns the length in bytes of all transport headers that the opcode requires, including the
    /// BTH.
    #[expect(clippy::len_without_is_empty, reason = "a header is never empty")]
    pub const fn len(&self) -> usize {
        self.bth.opcode.header_len()
    }

    /// Appends the transport headers that the opcode requires to `out`, in the order of IBTA 5.2
    /// and table 38: the base transport header (BTH), and then the extended headers. Reserved bits
    /// are 0. The caller appends the payload, the pad and the ICRC.
    pub fn emit(&self, out: &mut Vec<u8>) {
        let opcode = self.bth.opcode;
        debug_assert_eq!(
            [
                self.xrc_srq.is_some(),
                self.deth.is_some(),
                self.feth.is_some(),
                self.reth.is_some(),
                self.atomic.is_some(),
                self.aeth.is_some(),
                self.original.is_some(),
                self.immediate.is_some(),
                self.invalidate.is_some(),
            ],
            [
                opcode.has_xrc_srq(),
                opcode.has_deth(),
                opcode.has_feth(),
                opcode.has_reth(),
                opcode.has_atomic(),
                opcode.has_aeth(),
                opcode.has_original(),
                opcode.has_immediate(),
                opcode.has_invalidate(),
            ],
            "the extension headers of {opcode:?}",
        );
        out.extend_from_slice(&self.bth.to_bytes());
        if let Some(number) = self.xrc_srq {
            out.extend_from_slice(&low_24(number));
        }
        if let Some(deth) = &self.deth {
            deth.emit(out);
        }
        if let Some(feth) = self.feth {
            feth.emit(out);
        }
        if let Some(reth) = &self.reth {
            reth.emit(out);
        }
        if let Some(atomic) = &self.atomic {
            atomic.emit(out);
        }
        if let Some(aeth) = &self.aeth {
            aeth.emit(out);
        }
        if let Some(original) = self.original {
            out.extend_from_slice(&original.to_be_bytes());
        }
        if let Some(immediate) = self.immediate {
            out.extend_from_slice(&immediate);
        }
        if let Some(key) = self.invalidate {
            out.extend_from_slice(&key.to_be_bytes());
        }
    }

    fn parse(reader: &mut Reader<'_>) -> Result<Self, Malformed> {
        let mut header = Self::new(Bth::parse(reader)?);
        let opcode = header.bth.opcode;
        if opcode.has_xrc_srq() {
            header.xrc_srq = Some(u32::from_be_bytes(reader.take()?) & 0xff_ffff);
        }
        if opcode.has_deth() {
            header.deth = Some(Deth::parse(reader)?);
        }
        if opcode.has_feth() {
            header.feth = Some(Feth::parse(reader)?);
        }
        if opcode.has_reth() {
            header.reth = Some(Reth::parse(reader)?);
        }
        if opcode.has_atomic() {
            header.atomic = Some(AtomicEth::parse(reader)?);
        }
        if opcode.has_aeth() {
            header.aeth = Some(Aeth::parse(reader)?);
        }
        if opcode.has_original() {
            header.original = Some(u64::from_be_bytes(reader.take()?));
        }
        if opcode.has_immediate() {
            header.immediate = Some(reader.take()?);
        }
        if opcode.has_invalidate() {
            header.invalidate = Some(u32::from_be_bytes(reader.take()?));
        }
        Ok(header)
    }
}

impl<'a> Packet<'a> {
    /// Parses a packet from BTH to pad, without its ICRC. Reserved bits and the content of the pad
    /// are ignored, as IBTA 9.2 requires. Checks that depend on the queue pair (sequence, path MTU,
    /// keys) are left to the caller.
    pub fn parse(bytes: &'a [u8]) -> Result<Self, Malformed> {
        let mut reader = Reader { bytes };
        let header = Header::parse(&mut reader)?;
        let padded = reader.bytes;
        // All headers are multiples of four bytes, and so is the payload with its pad.
        if !padded.len().is_multiple_of(4) {
            return Err(Malformed::Length);
        }
        let payload = padded
            .len()
            .checked_sub(usize::from(header.bth.pad))
            .and_then(|len| padded.get(..len))
            .ok_or(Malformed::Pad)?;
        // A pad without a payload is invalid too.
        if !padded.is_empty() && !header.bth.opcode.has_payload() {
            return Err(Malformed::Payload);
        }
        Ok(Self { header, payload })
    }

    /// Appends the transport headers, the payload and the pad bytes of this packet to `out`. The
    /// caller appends the checksum (ICRC).
    pub fn emit(&self, out: &mut Vec<u8>) {
        self.header.emit(out);
        out.extend_from_slice(self.payload);
        out.resize(out.len() + usize::from(self.header.bth.pad & 3), 0);
    }
}

/// Encodes a field of 24 bits: returns a reserved zero byte, and the low 24 bits of `value`.
const fn low_24(value: u32) -> [u8; 4] {
    (value & 0xff_ffff).to_be_bytes()
}

/// Parser of a packet: the bytes of the packet that have not been parsed yet.
struct Reader<'a> {
    bytes: &'a [u8],
}

impl Reader<'_> {
    fn take<const N: usize>(&mut self) -> Result<[u8; N], Malformed> {
        let (head, tail) = self.bytes.split_first_chunk().ok_or(Malformed::Length)?;
        self.bytes = tail;
        Ok(*head)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn some_if<T: fmt::Debug + Clone + 'static>(
        there: bool,
        strategy: impl Strategy<Value = T> + 'static,
    ) -> BoxedStrategy<Option<T>> {
        if there {
            strategy.prop_map(Some).boxed()
        } else {
            Just(None).boxed()
        }
    }

    fn syndrome() -> impl Strategy<Value = Syndrome> {
        prop_oneof![
            (0..32_u8).prop_map(|credits| Syndrome::Ack { credits }),
            (0..32_u8).prop_map(|timer| Syndrome::ReceiverNotReady { timer }),
            (0..5_u8).prop_map(|code| Syndrome::Nak(Nak::from_code(code).unwrap())),
        ]
    }

    prop_compose! {
        fn bth(opcode: Opcode, payload: usize)(
            flags in any::<(bool, bool, bool)>(),
            partition_key in any::<u16>(),
            destination in 0..1_u32 << 24,
            sequence in 0..1_u32 << 24,
        ) -> Bth {
            let (solicited, migrated, acknowledge) = flags;
            let pad = Header::pad_for(payload);
            Bth { opcode, solicited, migrated, pad, partition_key, destination, acknowledge, sequence }
        }
    }

    prop_compose! {
        fn header(opcode: Opcode, payload: usize)(
            bth in bth(opcode, payload),
            xrc_srq in some_if(opcode.has_xrc_srq(), 0..1_u32 << 24),
            deth in some_if(opcode.has_deth(), (any::<u32>(), 0..1_u32 << 24)
                .prop_map(|(queue_key, source)| Deth { queue_key, source })),
            feth in some_if(opcode.has_feth(), (0..16_u8, 0..4_u8)
                .prop_map(|(placement, level)| Feth { placement, level })),
            reth in some_if(opcode.has_reth(), any::<(u64, u32, u32)>()
                .prop_map(|(address, key, length)| Reth { address, key, length })),
            atomic in some_if(opcode.has_atomic(), any::<(u64, u32, u64, u64)>().prop_map(
                |(address, key, swap_or_add, compare)| AtomicEth { address, key, swap_or_add, compare },
            )),
            aeth in some_if(opcode.has_aeth(), (syndrome(), 0..1_u32 << 24)
                .prop_map(|(syndrome, message_sequence)| Aeth { syndrome, message_sequence })),
            original in some_if(opcode.has_original(), any::<u64>()),
            immediate in some_if(opcode.has_immediate(), any::<[u8; 4]>()),
            invalidate in some_if(opcode.has_invalidate(), any::<u32>()),
        ) -> Header {
            Header { bth, xrc_srq, deth, feth, reth, atomic, aeth, original, immediate, invalidate }
        }
    }

    fn opcode() -> impl Strategy<Value = Opcode> {
        proptest::sample::select(Opcode::all().collect::<Vec<_>>())
    }

    fn packet() -> impl Strategy<Value = (Header, Vec<u8>)> {
        opcode().prop_flat_map(|opcode| {
            let longest = if opcode.has_payload() { 100 } else { 0 };
            proptest::collection::vec(any::<u8>(), 0..=longest)
                .prop_flat_map(move |payload| (header(opcode, payload.len()), Just(payload)))
        })
    }

    fn emitted(header: &Header, payload: &[u8]) -> Vec<u8> {
        let mut bytes = Vec::new();
        Packet {
            header: *header,
            payload,
        }
        .emit(&mut bytes);
        bytes
    }

    fn acknowledge() -> Header {
        let opcode = Opcode::from_byte(0x11).unwrap();
        let mut header = Header::new(Bth::new(opcode, 0x12_3456, 0xab_cdef));
        header.aeth = Some(Aeth {
            syndrome: Syndrome::Ack { credits: 31 },
            message_sequence: 7,
        });
        header
    }

    fn send(pad: u8) -> Header {
        let opcode = Opcode::from_byte(0x04).unwrap();
        Header {
            aeth: None,
            bth: Bth {
                opcode,
                pad,
                ..acknowledge().bth
            },
            ..acknowledge()
        }
    }

    #[test]
    fn fields_are_encoded_at_the_offsets_of_the_specification() {
        // An XRC packet, the last of a write with immediate data: BTH, XRCETH, ImmDt.
        let mut header = Header::new(Bth {
            opcode: Opcode::from_byte(0xa9).unwrap(),
            solicited: true,
            migrated: true,
            pad: 3,
            partition_key: 0x8001,
            destination: 0x01_0203,
            acknowledge: true,
            sequence: 0x04_0506,
        });
        header.xrc_srq = Some(0x0a_0b0c);
        header.immediate = Some(*b"imm!");
        let bytes = [
            0xa9, 0xf0, 0x80, 0x01, 0, 1, 2, 3, 0x80, 4, 5, 6, 0, 0x0a, 0x0b, 0x0c, b'i', b'm',
            b'm', b'!', 9, 0, 0, 0,
        ];
        assert_eq!(emitted(&header, &[9]), bytes);
        assert_eq!(
            Packet::parse(&bytes),
            Ok(Packet {
                header,
                payload: &[9]
            })
        );

        // Atomic acknowledgement: BTH, AETH, AtomicAckETH.
        let mut header = acknowledge();
        header.bth.opcode = Opcode::from_byte(0x12).unwrap();
        header.original = Some(0x0102_0304_0506_0708);
        header.aeth = Some(Aeth {
            syndrome: Syndrome::Nak(Nak::RemoteAccessError),
            message_sequence: 5,
        });
        let bytes = emitted(&header, &[]);
        assert_eq!(bytes[12..], [0x62, 0, 0, 5, 1, 2, 3, 4, 5, 6, 7, 8]);

        // A flush: BTH, FETH, RETH.
        let mut header = Header::new(Bth::new(Opcode::from_byte(0x1c).unwrap(), 1, 2));
        header.feth = Some(Feth {
            placement: 2,
            level: 1,
        });
        header.reth = Some(Reth {
            address: 0x0102_0304_0506_0708,
            key: 0x090a_0b0c,
            length: 0x0d0e_0f10,
        });
        let bytes = emitted(&header, &[]);
        assert_eq!(bytes[12..16], [0, 0, 0, 0x12]);
        assert_eq!(
            bytes[16..],
            [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16]
        );
    }

    #[test]
    fn syndromes_agree_with_the_specification() {
        let mut known = 0;
        for byte in 0..=u8::MAX {
            if let Some(syndrome) = Syndrome::from_byte(byte) {
                assert_eq!(syndrome.to_byte(), byte);
                known += 1;
            }
        }
        assert_eq!(known, 32 + 32 + 5);
        assert_eq!(
            Syndrome::from_byte(0x1f),
            Some(Syndrome::Ack { credits: 31 })
        );
        assert_eq!(
            Syndrome::from_byte(0x21),
            Some(Syndrome::ReceiverNotReady { timer: 1 })
        );
        assert_eq!(
            Syndrome::from_byte(0x60),
            Some(Syndrome::Nak(Nak::SequenceError))
        );
        assert_eq!(
            Syndrome::from_byte(0x63),
            Some(Syndrome::Nak(Nak::RemoteOperationalError))
        );
        assert_eq!(Syndrome::from_byte(0x40), None);
        assert_eq!(Syndrome::from_byte(0x80), None);
    }

    #[test]
    fn padding_fills_the_last_word() {
        assert_eq!(
            [0, 1, 2, 3, 4, 4096].map(Header::pad_for),
            [0, 3, 2, 1, 0, 0]
        );
    }

    #[test]
    fn the_error_of_an_invalid_packet_names_the_cause() {
        let good = emitted(&acknowledge(), &[]);
        let refusal = |change: &dyn Fn(&mut Vec<u8>)| {
            let mut bytes = good.clone();
            change(&mut bytes);
            Packet::parse(&bytes).err()
        };
        assert_eq!(refusal(&|_| ()), None);
        assert_eq!(refusal(&|bytes| bytes[0] = 0x15), Some(Malformed::Opcode));
        assert_eq!(refusal(&|bytes| bytes[0] = 0x81), Some(Malformed::Opcode));
        assert_eq!(refusal(&|bytes| bytes[1] |= 1), Some(Malformed::Version));
        assert_eq!(refusal(&|bytes| bytes[1] |= 0x10), Some(Malformed::Pad));
        assert_eq!(
            refusal(&|bytes| bytes[12] = 0x40),
            Some(Malformed::Syndrome)
        );
        assert_eq!(
            refusal(&|bytes| bytes.extend([0; 4])),
            Some(Malformed::Payload)
        );
        assert_eq!(
            refusal(&|bytes| bytes.truncate(15)),
            Some(Malformed::Length)
        );
        assert_eq!(refusal(&|bytes| bytes.clear()), Some(Malformed::Length));

        let words = emitted(&send(0), b"word");
        assert_eq!(
            Packet::parse(&words).map(|packet| packet.payload.len()),
            Ok(4)
        );
        assert_eq!(Packet::parse(&words[..15]), Err(Malformed::Length));
    }

    #[test]
    fn reserved_bits_and_padding_are_ignored() {
        let header = send(3);
        let mut bytes = emitted(&header, &[1]);
        bytes[4] = 0xff;
        bytes[8] = 0x7f;
        bytes[13..].fill(0xff);
        assert_eq!(
            Packet::parse(&bytes),
            Ok(Packet {
                header,
                payload: &[1]
            })
        );
    }

    proptest! {
        #[test]
        fn every_packet_is_decoded_as_encoded((header, payload) in packet()) {
            let bytes = emitted(&header, &payload);
            prop_assert_eq!(bytes.len(), header.len() + payload.len() + usize::from(header.bth.pad));
            let packet = Packet::parse(&bytes);
            prop_assert_eq!(packet, Ok(Packet { header, payload: &payload }));
        }

        #[test]
        fn a_truncated_packet_is_never_decoded_as_the_original((header, payload) in packet(), cut in any::<prop::sample::Index>()) {
            let bytes = emitted(&header, &payload);
            let short = &bytes[..cut.index(bytes.len())];
            if let Ok(packet) = Packet::parse(short) {
                prop_assert_eq!(packet.header, header);
                prop_assert!(packet.payload.len() < payload.len().max(1));
            }
        }

        #[test]
        fn arbitrary_bytes_do_not_cause_a_panic(
            opcode in opcode(), bytes in proptest::collection::vec(any::<u8>(), 0..100), known in any::<bool>(),
        ) {
            let mut bytes = bytes;
            if let (true, [first, flags, ..]) = (known, &mut bytes[..]) {
                *first = opcode.to_byte();
                *flags &= 0xf0;
            }
            if let Ok(packet) = Packet::parse(&bytes) {
                let again = emitted(&packet.header, packet.payload);
                prop_assert_eq!(again.len(), bytes.len());
                prop_assert_eq!(Packet::parse(&again), Ok(packet));
            }
        }
    }
}
