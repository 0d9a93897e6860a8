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

/// Bytes of a message that were copied when the message was posted.
pub type Inline = SmallVec<[u8; 64]>;

/// Location of the bytes of a message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Payload {
    /// In memory regions.
    Gathered(GatherList),
    /// In the request.
    Inline(Inline),
}

/// Bytes of a message that is posted now or was posted before.
#[derive(Clone, Copy, Debug)]
pub enum Data<'a> {
    /// In memory regions.
    Gathered(&'a [Segment]),
    /// These bytes.
    Inline(&'a [u8]),
}

impl Payload {
    /// Returns the bytes.
    #[inline]
    pub fn data(&self) -> Data<'_> {
        match self {
            Self::Gathered(list) => Data::Gathered(list),
            Self::Inline(bytes) => Data::Inline(bytes),
        }
    }
}

impl Data<'_> {
    /// Returns the number of bytes, or `None` if there are more than a request can have.
    #[inline(always)]
    pub(crate) fn length(&self) -> Option<u32> {
        match self {
            Self::Gathered([only]) => Some(only.length),
            Self::Gathered(list) => {
                (list.iter()).try_fold(0, |total: u32, segment| total.checked_add(segment.length))
            }
            Self::Inline(bytes) => u32::try_from(bytes.len()).ok(),
        }
    }

    /// Returns a copy.
    #[inline(always)]
    pub(super) fn to_payload(self) -> Payload {
        match self {
            // Mostly it is one.
            Self::Gathered(&[only]) => {
                let mut list = GatherList::new();
                list.push(only);
                Payload::Gathered(list)
            }
            Self::Gathered(list) => Payload::Gathered(GatherList::from_slice(list)),
            Self::Inline(bytes) => Payload::Inline(Inline::from_slice(bytes)),
        }
    }
}

/// Memory of the peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Remote {
    /// First byte, counted as the region counts.
    pub address: u64,
    /// The remote key.
    pub key: u32,
}

/// A binding of a memory window to a range of a region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WindowBinding {
    /// Present key of the window.
    pub window: u32,
    /// Key of the window after the binding. Of a type 2 window, the caller chooses the low byte.
    pub key: u32,
    /// The region's local key.
    pub region: u32,
    /// First byte.
    pub address: u64,
    /// Bytes.
    pub length: u64,
    /// Operations that peers may do by the window.
    pub access: AccessFlags,
}

/// Operation of a send request.
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
        /// Path to the peer.
        path: Path,
        /// Number of the peer's queue pair.
        destination: u32,
        /// Queue key to send; with the top bit set the queue pair's own is sent (IBTA 10.2.5).
        queue_key: u32,
    },
    /// Writes to the peer's memory.
    Write {
        /// Place of the bytes at the peer.
        remote: Remote,
        /// Immediate data, for which the peer takes a receive request.
        immediate: Option<[u8; 4]>,
    },
    /// Reads the peer's memory.
    Read {
        /// Place of the bytes at the peer.
        remote: Remote,
    },
    /// Compares eight bytes of the peer with a value, and swaps if they are equal.
    CompareSwap {
        /// Place of the bytes at the peer.
        remote: Remote,
        /// Value that the bytes must have.
        compare: u64,
        /// New value.
        swap: u64,
    },
    /// Adds to eight bytes of the peer.
    FetchAdd {
        /// Place of the bytes at the peer.
        remote: Remote,
        /// Number to add.
        add: u64,
    },
    /// Binds a memory window.
    Bind(WindowBinding),
    /// Invalidates a key of this side.
    LocalInvalidate {
        /// The key.
        key: u32,
    },
}

/// A request of the send queue.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SendRequest {
    /// The caller's number for the request.
    pub id: u64,
    /// Operation.
    pub operation: SendOperation,
    /// The bytes of the message, or the place for those of the response.
    pub payload: Payload,
    /// Number of bytes of the message.
    pub length: u32,
    /// The shared receive queue at the target of an XRC queue pair.
    pub xrc_srq: Option<u32>,
    /// Set if a successful end is reported, too.
    pub signaled: bool,
    /// Set if the completion of the peer raises a solicited event.
    pub solicited: bool,
    /// Set if the request waits for the reads and atomics before it.
    pub fence: bool,
}

/// A request of a receive queue.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReceiveRequest {
    /// The caller's number for the request.
    pub id: u64,
    /// Memory for the message.
    pub segments: GatherList,
    /// Number of bytes of the memory.
    pub length: u64,
}

impl ReceiveRequest {
    /// Makes a request with this number, for a message that goes to `segments`.
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

/// Result of a request: `ibv_wc_status` with its numbers.
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

/// Kind of a completed request: `ibv_wc_opcode`.
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

/// The end of a request, as an `ibv_wc` reports it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Completion {
    /// The caller's number for the request.
    pub id: u64,
    /// Result. Beside an error, only the number is valid.
    pub status: CompletionStatus,
    /// Kind of the request.
    pub work: Work,
    /// Number of bytes that were received, read or written.
    pub length: u32,
    /// Immediate data.
    pub immediate: Option<[u8; 4]>,
    /// Key that the peer's message invalidated.
    pub invalidated: Option<u32>,
    /// Number of the sending queue pair, of a datagram.
    pub source: u32,
    /// Set if a GRH is in front of the message.
    pub route: bool,
    /// Set if the peer asked for a solicited event.
    pub solicited: bool,
}

impl Completion {
    /// Makes the completion of the request with this number, without bytes.
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
