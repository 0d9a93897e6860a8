use smallvec::SmallVec;

use super::{AccessFlags, Path};

/// A piece of local memory: `ibv_sge`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct Segment {
    /// First byte, counted as the region counts.
    pub address: u64,
    /// Bytes.
    pub length: u32,
    /// The local key.
    pub key: u32,
}

impl Segment {
    /// Returns the parts of a list that hold `length` bytes from `offset` on.
    pub(crate) fn parts(list: &[Self], offset: u32, length: u32) -> impl Iterator<Item = Self> {
        let (mut skip, mut left) = (offset, length);
        list.iter().filter_map(move |segment| {
            let begin = skip.min(segment.length);
            skip -= begin;
            let length = left.min(segment.length - begin);
            left -= length;
            (length > 0).then(|| Self {
                address: segment.address.wrapping_add(begin.into()),
                length,
                key: segment.key,
            })
        })
    }
}

/// The pieces of a message, in order.
pub type GatherList = SmallVec<[Segment; 4]>;

/// The bytes of a message that were copied when it was posted.
pub type Inline = SmallVec<[u8; 64]>;

/// Where a message's bytes are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Payload {
    /// In memory regions.
    Gathered(GatherList),
    /// In the request.
    Inline(Inline),
}

/// Memory of the peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Remote {
    /// First byte, counted as the region counts.
    pub address: u64,
    /// The remote key.
    pub key: u32,
}

/// A memory window's new place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WindowBinding {
    /// The window's key as it is.
    pub window: u32,
    /// Its key from now on (of a type 2 window the low byte is the caller's choice).
    pub key: u32,
    /// The region's local key.
    pub region: u32,
    /// First byte.
    pub address: u64,
    /// Bytes.
    pub length: u64,
    /// What peers may do.
    pub access: AccessFlags,
}

/// What a send request does.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SendOperation {
    /// Sends a message.
    Send {
        /// Immediate data.
        immediate: Option<[u8; 4]>,
        /// A key for the peer to invalidate; excludes immediate data.
        invalidate: Option<u32>,
    },
    /// Sends a datagram.
    Datagram {
        /// Immediate data.
        immediate: Option<[u8; 4]>,
        /// The way.
        path: Path,
        /// The queue pair there.
        destination: u32,
        /// Queue key to send; with the top bit set the queue pair's own is sent (IBTA 10.2.5).
        queue_key: u32,
    },
    /// Writes into the peer's memory.
    Write {
        /// Where.
        remote: Remote,
        /// Immediate data, for which the peer spends a receive request.
        immediate: Option<[u8; 4]>,
    },
    /// Reads the peer's memory.
    Read {
        /// Where.
        remote: Remote,
    },
    /// Compares eight bytes of the peer with a value, and swaps if they are equal.
    CompareSwap {
        /// Where.
        remote: Remote,
        /// What it must be.
        compare: u64,
        /// What it becomes.
        swap: u64,
    },
    /// Adds to eight bytes of the peer.
    FetchAdd {
        /// Where.
        remote: Remote,
        /// How much.
        add: u64,
    },
    /// Binds a memory window.
    Bind(WindowBinding),
    /// Makes a key of this side invalid.
    LocalInvalidate {
        /// The key.
        key: u32,
    },
}

/// A request of the send queue.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SendRequest {
    /// The caller's number for it.
    pub id: u64,
    /// What to do.
    pub operation: SendOperation,
    /// The message, or where the answer goes.
    pub payload: Payload,
    /// The message's length in bytes.
    pub length: u32,
    /// The shared receive queue at the target of an XRC queue pair.
    pub xrc_srq: Option<u32>,
    /// A success shall be told too.
    pub signaled: bool,
    /// The peer's completion shall raise an event.
    pub solicited: bool,
    /// Waits for the reads and atomics before it.
    pub fence: bool,
}

/// A request of a receive queue.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReceiveRequest {
    /// The caller's number for it.
    pub id: u64,
    /// Where the message goes.
    pub segments: GatherList,
    /// Bytes there is room for.
    pub length: u64,
}

impl ReceiveRequest {
    /// A request with this number, for a message that goes there.
    #[inline]
    pub fn new(id: u64, segments: &[Segment]) -> Self {
        // Mostly it is one.
        let (list, length) = if let &[only] = segments {
            let mut list = GatherList::new();
            list.push(only);
            (list, only.length.into())
        } else {
            let lengths = segments.iter().map(|segment| u64::from(segment.length));
            (segments.into(), lengths.sum())
        };
        Self {
            id,
            segments: list,
            length,
        }
    }
}

/// How a request ended: `ibv_wc_status` with its numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u32)]
#[expect(missing_docs, reason = "the specification's own names")]
pub enum CompletionStatus {
    Success = 0,
    LocalLength = 1,
    LocalQueuePairOperation = 2,
    LocalProtection = 4,
    Flushed = 5,
    MemoryWindowBind = 6,
    BadResponse = 7,
    LocalAccess = 8,
    RemoteInvalidRequest = 9,
    RemoteAccess = 10,
    RemoteOperation = 11,
    RetryExceeded = 12,
    RnrRetryExceeded = 13,
    RemoteAborted = 16,
    Fatal = 19,
    ResponseTimeout = 20,
    General = 21,
}

/// What a completed request was: `ibv_wc_opcode`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[expect(missing_docs, reason = "the specification's own names")]
pub enum Work {
    Send,
    Write,
    Read,
    CompareSwap,
    FetchAdd,
    Bind,
    LocalInvalidate,
    Receive,
    ReceiveWithImmediate,
}

/// The end of a request: what becomes an `ibv_wc`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Completion {
    /// The request's number.
    pub id: u64,
    /// How it ended. Only the number counts beside an error.
    pub status: CompletionStatus,
    /// What it was.
    pub work: Work,
    /// Bytes that were received, read or written.
    pub length: u32,
    /// Immediate data.
    pub immediate: Option<[u8; 4]>,
    /// The key that the peer had invalidated.
    pub invalidated: Option<u32>,
    /// Sender's queue pair, of a datagram.
    pub source: u32,
    /// A GRH is in front of the message.
    pub route: bool,
    /// The peer asked for an event.
    pub solicited: bool,
}

impl Completion {
    /// The end of the request with this number, with nothing in it.
    #[inline]
    pub fn new(id: u64, status: CompletionStatus, work: Work) -> Self {
        Self {
            id,
            status,
            work,
            length: 0,
            immediate: None,
            invalidated: None,
            source: 0,
            route: false,
            solicited: false,
        }
    }
}
