use super::Opcode;

/// Base transport header: 12 bytes at the front of every packet (IBTA 9.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bth {
    /// What the packet does.
    pub opcode: Opcode,
    /// The receiver shall raise an event for it.
    pub solicited: bool,
    /// The migration state bit, always set by a device without path migration.
    pub migrated: bool,
    /// Bytes added to the payload to fill its last word, 0 to 3.
    pub pad: u8,
    /// Partition key.
    pub partition_key: u16,
    /// The queue pair that it is for, 24 bits.
    pub destination: u32,
    /// The sender wants an acknowledgement.
    pub acknowledge: bool,
    /// Packet sequence number, 24 bits.
    pub sequence: u32,
}

/// RDMA extended transport header, 16 bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reth {
    /// First byte at the responder.
    pub address: u64,
    /// The remote key.
    pub key: u32,
    /// Bytes of the whole message.
    pub length: u32,
}

/// Acknowledge extended transport header, 4 bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Aeth {
    /// What is acknowledged, or why not.
    pub syndrome: Syndrome,
    /// Message sequence number, 24 bits.
    pub message_sequence: u32,
}

/// The first byte of an [`Aeth`] (IBTA 9.7.5.2.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Syndrome {
    /// Positive, with the responder's end-to-end credit code (31: credits are not used).
    Ack {
        /// The credit code, 5 bits.
        credits: u8,
    },
    /// The responder has no receive posted; the timer code says when to come again.
    ReceiverNotReady {
        /// The timer code, 5 bits.
        timer: u8,
    },
    /// Negative.
    Nak(Nak),
}

/// Why a request was refused (IBTA table 47).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "the specification's own names")]
pub enum Nak {
    SequenceError,
    InvalidRequest,
    RemoteAccessError,
    RemoteOperationalError,
    InvalidRdRequest,
}

/// Atomic extended transport header, 28 bytes; what the two last words mean is the opcode's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AtomicEth {
    /// The eight bytes at the responder.
    pub address: u64,
    /// The remote key.
    pub key: u32,
    /// Swap or add data.
    pub swap_or_add: u64,
    /// Compare data; 0 for a fetch-and-add.
    pub compare: u64,
}

/// Datagram extended transport header, 8 bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Deth {
    /// Queue key.
    pub queue_key: u32,
    /// The sender's queue pair, 24 bits.
    pub source: u32,
}

/// The transport headers of a packet. Which are there follows from the opcode
/// (IBTA tables 38 and following); one that is missing where the opcode has it, is an error of the caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// Of every packet.
    pub bth: Bth,
    /// Of all XRC requests: the shared receive queue's number.
    pub xrc_srq: Option<u32>,
    /// Of datagrams.
    pub deth: Option<Deth>,
    /// Of read requests and of the first or only packet of a write.
    pub reth: Option<Reth>,
    /// Of atomic requests.
    pub atomic: Option<AtomicEth>,
    /// Of acknowledgements, and of all read responses but middle ones.
    pub aeth: Option<Aeth>,
    /// Of atomic acknowledgements: what the eight bytes were.
    pub original: Option<u64>,
    /// Immediate data, as the four bytes that the sender gave.
    pub immediate: Option<[u8; 4]>,
    /// Of sends with invalidate: the key to invalidate.
    pub invalidate: Option<u32>,
}

/// A packet from BTH to the end of its payload, without pad and ICRC.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Packet<'a> {
    /// Its headers.
    pub header: Header,
    /// Its payload.
    pub payload: &'a [u8],
}
