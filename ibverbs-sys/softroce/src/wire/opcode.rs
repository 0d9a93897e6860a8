/// Transport service of a packet: bits 7 to 5 of the opcode in the BTH (IBTA table 38).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Transport {
    /// Reliable connection, 0b000.
    ReliableConnection,
    /// Unreliable connection, 0b001.
    UnreliableConnection,
    /// Unreliable datagram, 0b011.
    UnreliableDatagram,
    /// Extended reliable connection, 0b101.
    ExtendedReliableConnection,
    /// Opcodes that are reserved for manufacturers, 0b110. This device uses four of them. A send
    /// without payload requests a receipt: a confirmation that the receiver has taken the earlier
    /// packets of an unreliable service from its socket. An acknowledgement is the receipt. These
    /// two packets are sent by sockets, and affect only the number of packets that a sender has in
    /// flight. A write without payload ([`Opcode::SKIP`]) announces sequence numbers that were used
    /// without packets. A read response of one packet ([`Opcode::GAPS`]) lists the packets that a
    /// responder misses.
    Manufacturer,
}

/// Operation of a packet: bits 4 to 0 of the opcode in the BTH.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
#[expect(missing_docs, reason = "the specification's own names")]
pub enum Operation {
    SendFirst = 0x00,
    SendMiddle = 0x01,
    SendLast = 0x02,
    SendLastImmediate = 0x03,
    SendOnly = 0x04,
    SendOnlyImmediate = 0x05,
    WriteFirst = 0x06,
    WriteMiddle = 0x07,
    WriteLast = 0x08,
    WriteLastImmediate = 0x09,
    WriteOnly = 0x0a,
    WriteOnlyImmediate = 0x0b,
    ReadRequest = 0x0c,
    ReadResponseFirst = 0x0d,
    ReadResponseMiddle = 0x0e,
    ReadResponseLast = 0x0f,
    ReadResponseOnly = 0x10,
    Acknowledge = 0x11,
    AtomicAcknowledge = 0x12,
    CompareSwap = 0x13,
    FetchAdd = 0x14,
    SendLastInvalidate = 0x16,
    SendOnlyInvalidate = 0x17,
    Flush = 0x1c,
    AtomicWrite = 0x1d,
}

/// Opcode of a packet: a transport service and one of its operations.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Opcode {
    /// Transport service.
    pub transport: Transport,
    /// Operation of the packet, which the service must have.
    pub operation: Operation,
}

impl Transport {
    /// All [`Transport`] services that this device supports.
    pub const ALL: [Self; 5] = [
        Self::ReliableConnection,
        Self::UnreliableConnection,
        Self::UnreliableDatagram,
        Self::ExtendedReliableConnection,
        Self::Manufacturer,
    ];

    const fn from_bits(bits: u8) -> Option<Self> {
        match bits {
            0b000 => Some(Self::ReliableConnection),
            0b001 => Some(Self::UnreliableConnection),
            0b011 => Some(Self::UnreliableDatagram),
            0b101 => Some(Self::ExtendedReliableConnection),
            0b110 => Some(Self::Manufacturer),
            _ => None,
        }
    }

    const fn to_bits(self) -> u8 {
        match self {
            Self::ReliableConnection => 0b000,
            Self::UnreliableConnection => 0b001,
            Self::UnreliableDatagram => 0b011,
            Self::ExtendedReliableConnection => 0b101,
            Self::Manufacturer => 0b110,
        }
    }

    /// Returns whether packets of this transport service may contain the operation `operation`
    /// (IBTA table 38, annex A14 for XRC).
    pub const fn has(self, operation: Operation) -> bool {
        use Operation as O;
        match self {
            Self::ReliableConnection | Self::ExtendedReliableConnection => true,
            Self::UnreliableConnection => operation as u8 <= O::WriteOnlyImmediate as u8,
            Self::UnreliableDatagram => matches!(operation, O::SendOnly | O::SendOnlyImmediate),
            Self::Manufacturer => {
                matches!(
                    operation,
                    O::SendOnly | O::WriteOnly | O::Acknowledge | O::ReadResponseOnly
                )
            }
        }
    }
}

impl Operation {
    /// All operations that a packet can contain, in ascending order of their numbers in the opcode.
    pub const ALL: [Self; 25] = [
        Self::SendFirst,
        Self::SendMiddle,
        Self::SendLast,
        Self::SendLastImmediate,
        Self::SendOnly,
        Self::SendOnlyImmediate,
        Self::WriteFirst,
        Self::WriteMiddle,
        Self::WriteLast,
        Self::WriteLastImmediate,
        Self::WriteOnly,
        Self::WriteOnlyImmediate,
        Self::ReadRequest,
        Self::ReadResponseFirst,
        Self::ReadResponseMiddle,
        Self::ReadResponseLast,
        Self::ReadResponseOnly,
        Self::Acknowledge,
        Self::AtomicAcknowledge,
        Self::CompareSwap,
        Self::FetchAdd,
        Self::SendLastInvalidate,
        Self::SendOnlyInvalidate,
        Self::Flush,
        Self::AtomicWrite,
    ];

    const fn from_bits(bits: u8) -> Option<Self> {
        // All other numbers are reserved.
        match bits {
            0x00..=0x14 => Some(Self::ALL[bits as usize]),
            0x16 => Some(Self::SendLastInvalidate),
            0x17 => Some(Self::SendOnlyInvalidate),
            0x1c => Some(Self::Flush),
            0x1d => Some(Self::AtomicWrite),
            _ => None,
        }
    }
}

impl Opcode {
    /// Opcode of a packet that tells the peer to skip sequence numbers: the messages with these
    /// numbers were executed without packets, in the peer's memory. Such a packet is accepted only
    /// if it arrives through memory that is shared with the peer. Otherwise any process could send
    /// such a packet to the socket and make a connection lose messages.
    pub const SKIP: Self = Self::new(Transport::Manufacturer, Operation::WriteOnly);

    /// Opcode of a gap report, by which a responder tells the requester which packets are missing.
    /// The responder keeps the packets after the gap. A gap report acknowledges nothing, so a
    /// forged report can only cause superfluous or late retransmissions.
    pub const GAPS: Self = Self::new(Transport::Manufacturer, Operation::ReadResponseOnly);

    /// Creates the opcode of the operation `operation` of the service `transport`.
    pub const fn new(transport: Transport, operation: Operation) -> Self {
        Self {
            transport,
            operation,
        }
    }

    /// Decodes the first byte of a BTH. Returns `None` for opcodes that belong to no supported
    /// service: opcodes of reliable datagrams, of congestion notifications and of other
    /// manufacturers, and undefined opcodes.
    pub const fn from_byte(byte: u8) -> Option<Self> {
        match (
            Transport::from_bits(byte >> 5),
            Operation::from_bits(byte & 0x1f),
        ) {
            (Some(transport), Some(operation)) if transport.has(operation) => Some(Self {
                transport,
                operation,
            }),
            _ => None,
        }
    }

    /// Encodes this opcode as the first byte of the base transport header (BTH): the transport
    /// service in bits 7 to 5, and the operation in bits 4 to 0.
    pub const fn to_byte(self) -> u8 {
        self.transport.to_bits() << 5 | self.operation as u8
    }

    /// Returns all valid opcodes, in ascending order of their bytes.
    pub fn all() -> impl Iterator<Item = Self> {
        (0..=u8::MAX).filter_map(Self::from_byte)
    }

    /// Returns whether a packet with this opcode is the first packet of a message with several
    /// packets.
    pub const fn is_first(self) -> bool {
        use Operation as O;
        matches!(
            self.operation,
            O::SendFirst | O::WriteFirst | O::ReadResponseFirst
        )
    }

    /// Returns whether a packet with this opcode is between the first and the last packet of a
    /// message.
    pub const fn is_middle(self) -> bool {
        use Operation as O;
        matches!(
            self.operation,
            O::SendMiddle | O::WriteMiddle | O::ReadResponseMiddle
        )
    }

    /// Returns whether a packet with this opcode is the last packet of a message with several
    /// packets.
    pub const fn is_last(self) -> bool {
        use Operation as O;
        matches!(
            self.operation,
            O::SendLast
                | O::SendLastImmediate
                | O::SendLastInvalidate
                | O::WriteLast
                | O::WriteLastImmediate
                | O::ReadResponseLast
        )
    }

    /// Returns whether a packet with this opcode is a whole message: neither
    /// [first](Self::is_first), [middle](Self::is_middle) nor [last](Self::is_last). Read requests,
    /// atomics, atomic writes, flushes and acknowledgements count as whole messages too.
    pub const fn is_only(self) -> bool {
        !self.is_first() && !self.is_middle() && !self.is_last()
    }

    /// Returns whether a packet with this opcode is the first or only packet of a message.
    pub const fn starts_message(self) -> bool {
        self.is_first() || self.is_only()
    }

    /// Returns whether a packet with this opcode is the last or only packet of a message.
    pub const fn ends_message(self) -> bool {
        self.is_last() || self.is_only()
    }

    /// Returns whether a packet with this opcode belongs to a send.
    pub const fn is_send(self) -> bool {
        use Operation as O;
        matches!(
            self.operation,
            O::SendFirst
                | O::SendMiddle
                | O::SendLast
                | O::SendLastImmediate
                | O::SendLastInvalidate
                | O::SendOnly
                | O::SendOnlyImmediate
                | O::SendOnlyInvalidate
        )
    }

    /// Returns whether a packet with this opcode belongs to an RDMA write. An atomic write is
    /// another operation.
    pub const fn is_write(self) -> bool {
        use Operation as O;
        matches!(
            self.operation,
            O::WriteFirst
                | O::WriteMiddle
                | O::WriteLast
                | O::WriteLastImmediate
                | O::WriteOnly
                | O::WriteOnlyImmediate
        )
    }

    /// Returns whether a packet with this opcode is a compare-and-swap or a fetch-and-add.
    pub const fn is_atomic(self) -> bool {
        matches!(self.operation, Operation::CompareSwap | Operation::FetchAdd)
    }

    /// Returns whether a packet with this opcode is a read response. Responses to RDMA reads,
    /// atomic writes and flushes are read responses, and so is a gap report ([`Opcode::GAPS`]).
    pub const fn is_read_response(self) -> bool {
        use Operation as O;
        matches!(
            self.operation,
            O::ReadResponseFirst
                | O::ReadResponseMiddle
                | O::ReadResponseLast
                | O::ReadResponseOnly
        )
    }

    /// Returns whether a packet with this opcode is sent by the responder to the requester.
    pub const fn is_response(self) -> bool {
        self.is_read_response()
            || matches!(
                self.operation,
                Operation::Acknowledge | Operation::AtomicAcknowledge
            )
    }

    /// Returns whether a packet with this opcode is sent by the requester to the responder.
    pub const fn is_request(self) -> bool {
        !self.is_response()
    }

    /// Returns whether a packet with this opcode has an XRC extended transport header (XRCETH),
    /// which contains the number of a shared receive queue. All requests of extended reliable
    /// connections (XRC) have this header (IBTA annex A14).
    pub const fn has_xrc_srq(self) -> bool {
        matches!(self.transport, Transport::ExtendedReliableConnection) && self.is_request()
    }

    /// Returns whether a packet with this opcode has a DETH (datagram extended transport header).
    pub const fn has_deth(self) -> bool {
        match self.transport {
            Transport::UnreliableDatagram => true,
            Transport::Manufacturer => self.is_send(),
            _ => false,
        }
    }

    /// Returns whether a packet with this opcode is an atomic write.
    pub const fn is_atomic_write(self) -> bool {
        matches!(self.operation, Operation::AtomicWrite)
    }

    /// Returns whether a packet with this opcode is a flush.
    pub const fn is_flush(self) -> bool {
        matches!(self.operation, Operation::Flush)
    }

    /// Returns whether a packet with this opcode has a flush extended transport header (FETH). Only
    /// flush requests have this header (IBTA annex A19).
    pub const fn has_feth(self) -> bool {
        self.is_flush()
    }

    /// Returns whether a packet with this opcode has a RETH (RDMA extended transport header). Read
    /// requests, atomic writes, flushes and the first packets of writes have this header.
    pub const fn has_reth(self) -> bool {
        matches!(self.operation, Operation::ReadRequest)
            || self.is_atomic_write()
            || self.is_flush()
            || self.is_write() && self.starts_message()
    }

    /// Returns whether a packet with this opcode has an AtomicETH (atomic extended transport
    /// header). Only atomic requests have this header.
    pub const fn has_atomic(self) -> bool {
        self.is_atomic()
    }

    /// Returns whether a packet with this opcode has an AETH (acknowledgement extended transport
    /// header).
    pub const fn has_aeth(self) -> bool {
        self.is_response() && !self.is_middle()
    }

    /// Returns whether a packet with this opcode has an AtomicAckETH. The response to an atomic
    /// operation has this header, which contains the previous value of the memory.
    pub const fn has_original(self) -> bool {
        matches!(self.operation, Operation::AtomicAcknowledge)
    }

    /// Returns whether a packet with this opcode has immediate data (a header of four bytes,
    /// ImmDt).
    pub const fn has_immediate(self) -> bool {
        use Operation as O;
        matches!(
            self.operation,
            O::SendLastImmediate
                | O::SendOnlyImmediate
                | O::WriteLastImmediate
                | O::WriteOnlyImmediate
        )
    }

    /// Returns whether a packet with this opcode has an IETH (invalidate extended transport
    /// header). This header contains the key that a send with invalidate invalidates.
    pub const fn has_invalidate(self) -> bool {
        matches!(
            self.operation,
            Operation::SendLastInvalidate | Operation::SendOnlyInvalidate
        )
    }

    /// Returns whether a packet with this opcode may have a payload, because it is a send, a write,
    /// an atomic write or a read response.
    pub const fn has_payload(self) -> bool {
        self.is_send() || self.is_write() || self.is_atomic_write() || self.is_read_response()
    }

    /// Returns the length in bytes of all transport headers of a packet with this opcode, including
    /// the BTH: 12 to 44.
    pub const fn header_len(self) -> usize {
        let mut len = 12;
        if self.has_xrc_srq() {
            len += 4;
        }
        if self.has_deth() {
            len += 8;
        }
        if self.has_feth() {
            len += 4;
        }
        if self.has_reth() {
            len += 16;
        }
        if self.has_atomic() {
            len += 28;
        }
        if self.has_aeth() {
            len += 4;
        }
        if self.has_original() {
            len += 8;
        }
        if self.has_immediate() {
            len += 4;
        }
        if self.has_invalidate() {
            len += 4;
        }
        len
    }
}

#[cfg(test)]
mod tests {
    use super::{Opcode, Operation, Transport};

    #[test]
    fn every_opcode_is_decoded_as_encoded() {
        for byte in 0..=u8::MAX {
            if let Some(opcode) = Opcode::from_byte(byte) {
                assert_eq!(opcode.to_byte(), byte);
            }
        }
        for transport in Transport::ALL {
            for operation in Operation::ALL {
                let opcode = Opcode::new(transport, operation);
                let back = Opcode::from_byte(opcode.to_byte());
                assert_eq!(back, transport.has(operation).then_some(opcode));
            }
        }
    }

    #[test]
    fn exactly_the_bytes_of_table_38_are_opcodes() {
        let reliable = (0x00..=0x14).chain([0x16, 0x17, 0x1c, 0x1d]);
        let expected: Vec<u8> = reliable
            .clone()
            .chain(0x20..=0x2b)
            .chain([0x64, 0x65])
            .chain(reliable.map(|low| 0xa0 | low))
            // The opcodes for manufacturers that this device uses.
            .chain([0xc4, 0xca, 0xd0, 0xd1])
            .collect();
        let bytes: Vec<u8> = Opcode::all().map(Opcode::to_byte).collect();
        assert_eq!(bytes, expected);
    }

    #[test]
    fn header_lengths_agree_with_the_specification() {
        // Lengths of headers by IBTA 9.2 and table 38: BTH 12, DETH 8, RETH 16, AtomicETH 28, AETH
        // 4, AtomicAckETH 8, ImmDt 4, IETH 4, XRCETH 4, FETH 4.
        let lengths: [(u8, usize); 52] = [
            (0x1c, 32),
            (0x1d, 28),
            (0xbc, 36),
            (0xbd, 32),
            (0x00, 12),
            (0x01, 12),
            (0x02, 12),
            (0x03, 16),
            (0x04, 12),
            (0x05, 16),
            (0x06, 28),
            (0x07, 12),
            (0x08, 12),
            (0x09, 16),
            (0x0a, 28),
            (0x0b, 32),
            (0x0c, 28),
            (0x0d, 16),
            (0x0e, 12),
            (0x0f, 16),
            (0x10, 16),
            (0x11, 16),
            (0x12, 24),
            (0x13, 40),
            (0x14, 40),
            (0x16, 16),
            (0x17, 16),
            (0x20, 12),
            (0x23, 16),
            (0x26, 28),
            (0x2b, 32),
            (0x64, 20),
            (0x65, 24),
            (0xa0, 16),
            (0xa1, 16),
            (0xa3, 20),
            (0xa6, 32),
            (0xa7, 16),
            (0xa9, 20),
            (0xaa, 32),
            (0xab, 36),
            (0xac, 32),
            (0xad, 16),
            (0xae, 12),
            (0xb1, 16),
            (0xb2, 24),
            (0xb3, 44),
            (0xb4, 44),
            (0xb6, 20),
            (0xb7, 20),
            (0xc4, 20),
            (0xd1, 16),
        ];
        for (byte, length) in lengths {
            let opcode = Opcode::from_byte(byte).expect("exists");
            assert_eq!(opcode.header_len(), length, "{opcode:?}");
        }
    }

    #[test]
    fn every_opcode_has_one_position_in_its_message() {
        for opcode in Opcode::all() {
            let places = [
                opcode.is_first(),
                opcode.is_middle(),
                opcode.is_last(),
                opcode.is_only(),
            ];
            assert_eq!(
                places.into_iter().filter(|place| *place).count(),
                1,
                "{opcode:?}"
            );
            assert_ne!(opcode.is_request(), opcode.is_response());
        }
    }
}
