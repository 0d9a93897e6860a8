use smallvec::SmallVec;

use super::{AccessFlags, Path};

/// Range of local memory: one scatter/gather element (`ibv_sge`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct Segment {
    /// Address of the first byte. In a zero-based region, the distance from the region's first
    /// byte.
    pub address: u64,
    /// Length in bytes.
    pub length: u32,
    /// Local key of the memory region that contains the range.
    pub key: u32,
}

impl Segment {
    /// A segment of length zero, with the address 0 and the key 0, as the initial value of an array
    /// element.
    pub(crate) const EMPTY: Self = Self {
        address: 0,
        length: 0,
        key: 0,
    };

    /// Returns the memory ranges that contain `length` bytes of a message, beginning with byte
    /// `offset` of the message. The scatter/gather list `list` names the memory of the whole
    /// message.
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

/// Scatter/gather list: the local memory of a message.
pub type GatherList = SmallVec<[Segment; 4]>;

/// Creates a scatter/gather list of one segment.
#[inline(always)]
fn one(segment: Segment) -> GatherList {
    let unused = Segment::EMPTY;
    GatherList::from_buf_and_len([segment, unused, unused, unused], 1)
}

/// Inline data: bytes of a message that were copied into the request when the request was posted.
pub type Inline = SmallVec<[u8; 128]>;

/// Bytes of a posted message: inline data, or a scatter/gather list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Payload {
    /// Scatter/gather list of the memory that contains the bytes.
    Gathered(GatherList),
    /// Bytes that are stored in the request itself.
    Inline(Inline),
}

/// Bytes of a message that are borrowed from the caller or from a queued request. The type is the
/// borrowed form of [`Payload`].
#[derive(Clone, Copy, Debug)]
pub enum Data<'a> {
    /// Scatter/gather list of the memory that contains the bytes.
    Gathered(&'a [Segment]),
    /// Bytes that the request contains itself (inline data).
    Inline(&'a [u8]),
}

impl Payload {
    /// Returns a borrowed view of the payload: the bytes of an inline message, or the
    /// scatter/gather list of any other message.
    #[inline]
    pub fn data(&self) -> Data<'_> {
        match self {
            Self::Gathered(list) => Data::Gathered(list),
            Self::Inline(bytes) => Data::Inline(bytes),
        }
    }
}

impl Data<'_> {
    /// Returns the length of the message in bytes, or `None` if it is 2^32 or more.
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

    /// Copies the scatter/gather list or the inline bytes to an owned payload, which a queued
    /// request keeps.
    #[inline(always)]
    pub(super) fn to_payload(self) -> Payload {
        match self {
            // Most lists have one segment.
            Self::Gathered(&[only]) => Payload::Gathered(one(only)),
            Self::Gathered(list) => Payload::Gathered(GatherList::from_slice(list)),
            Self::Inline(bytes) => Payload::Inline(Inline::from_slice(bytes)),
        }
    }
}

/// Address and remote key of memory of the peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Remote {
    /// Address of the first byte. In a zero-based region, the distance from the region's first
    /// byte.
    pub address: u64,
    /// Remote key (rkey) of the peer's region or window, which permits the access.
    pub key: u32,
}

/// Parameters of a flush (IBTA annex A19). Before a flush completes, earlier writes to a range of
/// the peer's memory become visible, persistent, or both.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Flush {
    /// First byte of the flushed range in the peer's memory.
    pub remote: Remote,
    /// Length of the range in bytes.
    pub length: u32,
    /// Placement types: the bits of `ibv_placement_type`.
    pub placement: u8,
    /// Selectivity level: whether the range or the whole memory region is flushed. A value of
    /// `ibv_selectivity_level`.
    pub level: u8,
}

impl Flush {
    /// Bit of [`placement`](Self::placement) for a flush that makes earlier writes visible to the
    /// whole host (`IBV_FLUSH_GLOBAL`).
    pub(crate) const GLOBAL: u8 = 1;
    /// Bit of [`placement`](Self::placement) for a flush that makes earlier writes persistent
    /// (`IBV_FLUSH_PERSISTENT`).
    pub(crate) const PERSISTENT: u8 = 2;
    /// Value of [`level`](Self::level) for a flush of a range of addresses (`IBV_FLUSH_RANGE`).
    pub(crate) const RANGE: u8 = 0;
    /// Value of [`level`](Self::level) for a flush of the whole memory region or window, instead of
    /// a range of addresses (`IBV_FLUSH_MR`).
    pub(crate) const REGION: u8 = 1;

    /// Returns the access flags that a memory region needs for a flush. Each bit of `placement`
    /// selects an effect of the flush: [global visibility](Self::GLOBAL) or
    /// [persistence](Self::PERSISTENT). Returns `None` if no bit or an unknown bit is set.
    pub(crate) fn rights(placement: u8) -> Option<AccessFlags> {
        if placement == 0 || placement & !(Self::GLOBAL | Self::PERSISTENT) != 0 {
            return None;
        }
        let mut rights = AccessFlags::empty();
        rights.set(AccessFlags::FLUSH_GLOBAL, placement & Self::GLOBAL != 0);
        let is_persistent = placement & Self::PERSISTENT != 0;
        rights.set(AccessFlags::FLUSH_PERSISTENT, is_persistent);
        Some(rights)
    }
}

/// Parameters of binding a memory window to a range of a memory region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WindowBinding {
    /// Key of the window before the binding.
    pub window: u32,
    /// Key of the window after the binding. The caller chooses the low byte of a type 2 window's
    /// key.
    pub key: u32,
    /// Local key of the region to which the window is bound.
    pub region: u32,
    /// Address of the first byte of the window.
    pub address: u64,
    /// Length of the window in bytes.
    pub length: u64,
    /// Operations that peers may execute through the window.
    pub access: AccessFlags,
}

/// Operation of a send request, with its parameters.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SendOperation {
    /// Sends a message.
    Send {
        /// Immediate data that the message carries.
        immediate: Option<[u8; 4]>,
        /// Remote key that the peer invalidates. A message with such a key has no immediate data.
        invalidate: Option<u32>,
    },
    /// Sends a datagram.
    Datagram {
        /// Immediate data that the datagram carries.
        immediate: Option<[u8; 4]>,
        /// Path to the peer.
        path: Path,
        /// Number of the peer's queue pair.
        destination: u32,
        /// Queue key in the packet. If the top bit is set, the queue pair's own key is sent instead
        /// (IBTA 10.2.5).
        queue_key: u32,
    },
    /// Writes to memory of the peer (RDMA write).
    Write {
        /// Memory of the peer to which the bytes are written.
        remote: Remote,
        /// Immediate data. A write with immediate data consumes a posted receive of the peer.
        immediate: Option<[u8; 4]>,
    },
    /// Reads memory of the peer (RDMA read).
    Read {
        /// Memory of the peer from which the bytes are read.
        remote: Remote,
    },
    /// Compares eight bytes of the peer's memory with a value. If they are equal, replaces the
    /// eight bytes by another value (atomic).
    CompareSwap {
        /// Location of the eight bytes in the peer's memory.
        remote: Remote,
        /// Value with which the eight bytes are compared.
        compare: u64,
        /// Value that replaces the eight bytes.
        swap: u64,
    },
    /// Adds a number to eight bytes of the peer's memory (atomic).
    FetchAdd {
        /// Location of the eight bytes in the peer's memory.
        remote: Remote,
        /// Number that is added to the eight bytes.
        add: u64,
    },
    /// Writes eight bytes of the peer's memory atomically.
    AtomicWrite {
        /// Location of the eight bytes in the peer's memory.
        remote: Remote,
        /// New content of the eight bytes.
        bytes: [u8; 8],
    },
    /// Waits until earlier writes have taken effect at the peer.
    Flush(Flush),
    /// Binds a memory window.
    Bind(WindowBinding),
    /// Invalidates a key of this side's memory (a local invalidate).
    LocalInvalidate {
        /// Key to invalidate.
        key: u32,
    },
}

/// A work request of the send queue: an operation, and the local bytes or memory for it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SendRequest {
    /// Work request ID, which the program has chosen, and which the completion contains.
    pub id: u64,
    /// Operation of the request, with its parameters.
    pub operation: SendOperation,
    /// Bytes of the message. For a read or an atomic operation, the local memory for the result.
    /// Empty for an atomic write and a flush.
    pub payload: Payload,
    /// Length of the payload in bytes.
    pub length: u32,
    /// Number of the XRC shared receive queue at the peer that receives the message. `None` for
    /// other services.
    pub xrc_srq: Option<u32>,
    /// Set if the request generates a completion even if it succeeds.
    pub signaled: bool,
    /// Set if the completion at the peer raises a solicited event.
    pub solicited: bool,
    /// Set if the request waits until all earlier reads and atomics have completed.
    pub fence: bool,
}

/// A work request of a receive queue: memory for one message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReceiveRequest {
    /// Work request ID, which the program has chosen, and which the completion contains.
    pub id: u64,
    /// Memory in which the received message is stored.
    pub segments: GatherList,
    /// Length of the memory in bytes.
    pub length: u64,
}

impl ReceiveRequest {
    /// Creates a receive request with the work request ID `id`. The received message is written to
    /// `segments`.
    #[inline]
    pub fn new(id: u64, segments: &[Segment]) -> Self {
        // Most lists have one segment.
        let (list, length) = if let &[only] = segments {
            (one(only), only.length.into())
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

/// Status of a completed request: the values of `ibv_wc_status`.
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
pub enum CompletionOpcode {
    Send,
    Write,
    Read,
    CompareSwap,
    FetchAdd,
    AtomicWrite,
    Flush,
    Bind,
    LocalInvalidate,
    Receive,
    ReceiveWithImmediate,
}

/// Work completion of a request, as `ibv_wc` reports it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Completion {
    /// Work request ID that the program has chosen for the request.
    pub id: u64,
    /// Status of the request. If the status is an error, the only other valid field is `id`.
    pub status: CompletionStatus,
    /// Kind of the request.
    pub opcode: CompletionOpcode,
    /// Length in bytes of the message that was received, sent, read or written.
    pub length: u32,
    /// Immediate data in the message of the peer.
    pub immediate: Option<[u8; 4]>,
    /// Key that the message of the peer invalidated.
    pub invalidated: Option<u32>,
    /// Number of the queue pair that sent the message. Valid only for datagrams.
    pub source: u32,
    /// Kind of the network header before a received datagram. `None` for all other completions.
    pub network: Option<NetworkHeader>,
    /// Set if the peer requested a solicited event.
    pub solicited: bool,
}

/// Kind of the network header that precedes a datagram in the memory of the receive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NetworkHeader {
    /// An IPv6 header, which has the form of a GRH.
    Ipv6,
    /// An IPv4 header in the last 20 of 40 bytes (IBTA annex A17.4.5.1).
    Ipv4,
}

impl NetworkHeader {
    /// Returns the kind of the network header in `route`, the 40 bytes that precede a datagram:
    /// IPv6 or IPv4.
    pub(super) fn of(route: &[u8; 40]) -> Self {
        if route[0] >> 4 == 6 {
            Self::Ipv6
        } else {
            Self::Ipv4
        }
    }
}

impl Completion {
    /// Creates the completion of the request with the ID `id`, with length zero and without
    /// immediate data.
    #[inline]
    pub fn new(id: u64, status: CompletionStatus, opcode: CompletionOpcode) -> Self {
        Self {
            id,
            status,
            opcode,
            length: 0,
            immediate: None,
            invalidated: None,
            source: 0,
            network: None,
            solicited: false,
        }
    }
}
