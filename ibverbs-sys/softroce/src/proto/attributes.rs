use std::time::Duration;

use bitflags::bitflags;

use super::{Path, Sequence};

/// Transport service of a queue pair. An XRC queue pair either sends or receives requests, but not
/// both.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Service {
    /// Reliable connection.
    ReliableConnection,
    /// Unreliable connection.
    UnreliableConnection,
    /// Unreliable datagram.
    UnreliableDatagram,
    /// XRC initiator: sends requests only.
    XrcInitiator,
    /// XRC target: receives requests only.
    XrcTarget,
}

/// State of a queue pair (IBTA 10.3.1). The state determines whether the queue pair sends and
/// receives packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[expect(missing_docs, reason = "the specification's own names")]
pub enum State {
    Reset,
    Init,
    ReadyToReceive,
    ReadyToSend,
    SendQueueDrained,
    SendQueueError,
    Error,
}

/// Path MTU: the maximum payload of a packet, one of the five sizes that the specification defines.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[expect(missing_docs, reason = "a name is its number of bytes")]
pub enum Mtu {
    Mtu256,
    Mtu512,
    Mtu1024,
    Mtu2048,
    Mtu4096,
}

impl Mtu {
    /// Returns the path MTU as a number of bytes.
    pub const fn bytes(self) -> usize {
        match self {
            Self::Mtu256 => 256,
            Self::Mtu512 => 512,
            Self::Mtu1024 => 1024,
            Self::Mtu2048 => 2048,
            Self::Mtu4096 => 4096,
        }
    }
}

bitflags! {
    /// Access rights to memory: a bit set with the values of `ibv_access_flags`. Each memory
    /// region, memory window and queue pair has such a set. The rights apply to the program itself
    /// and to its peers.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub struct AccessFlags: u32 {
        /// Allows local writes.
        const LOCAL_WRITE = 1;
        /// Allows RDMA writes by peers.
        const REMOTE_WRITE = 1 << 1;
        /// Allows RDMA reads by peers.
        const REMOTE_READ = 1 << 2;
        /// Allows atomics by peers.
        const REMOTE_ATOMIC = 1 << 3;
        /// Allows binding memory windows to the region.
        const MW_BIND = 1 << 4;
        /// Makes the addresses in requests offsets from the first byte of the region.
        const ZERO_BASED = 1 << 5;
        /// Registers the memory for on-demand paging: pages of the memory may be unmapped at
        /// registration and later. An access to an unmapped page fails.
        const ON_DEMAND = 1 << 6;
        /// Uses huge pages for the memory.
        const HUGETLB = 1 << 7;
        /// Allows peers to request flushes for global visibility. Such a flush makes earlier writes
        /// visible to all processors and devices of this host.
        const FLUSH_GLOBAL = 1 << 8;
        /// Allows peers to request flushes for persistence. After such a flush, the bytes of
        /// earlier writes survive a power failure.
        const FLUSH_PERSISTENT = 1 << 9;
        /// Allows the device to reorder its accesses (relaxed ordering).
        const RELAXED_ORDERING = 1 << 20;
    }
}

/// Attributes of a queue pair that the transport uses. Most attributes are set by `ibv_modify_qp`.
#[derive(Clone, Debug)]
pub struct Attributes {
    /// Number of the peer's queue pair.
    pub destination: u32,
    /// Path to the peer, or `None` before the program has set a path.
    pub path: Option<Path>,
    /// Path MTU: the maximum payload of a packet on the path.
    pub path_mtu: Mtu,
    /// Partition key in the packets of the queue pair. Received packets must belong to the same
    /// partition.
    pub partition_key: u16,
    /// Queue key of a datagram queue pair: received datagrams must contain it.
    pub queue_key: u32,
    /// Sequence number of the first packet that this side sends. The value takes effect at the
    /// transition to ready to send.
    pub send_sequence: Sequence,
    /// Sequence number of the first packet that the peer sends. The value takes effect at the
    /// transition to ready to receive.
    pub receive_sequence: Sequence,
    /// Time to wait for an acknowledgement before packets are sent again. If `None`, the wait has
    /// no limit.
    pub ack_timeout: Option<Duration>,
    /// Maximum number of consecutive retransmissions without a response, from 0 to 7.
    pub retry_count: u8,
    /// Maximum number of retries after RNR NAKs, from 0 to 6. The value 7 means no limit.
    pub rnr_retry: u8,
    /// RNR timer code that this side sends in an RNR NAK when no receive is posted. The code
    /// determines how long the peer must wait before it tries again.
    pub min_rnr_timer: u8,
    /// Maximum number of outstanding RDMA reads and atomics that this side sends as the requester.
    pub max_initiated: u8,
    /// Maximum number of outstanding RDMA reads and atomics that this side accepts from the peer.
    /// The responder stores up to this number of requests, so that it can send a lost response
    /// again.
    pub max_accepted: u8,
    /// Remote operations that the peer may execute through this queue pair.
    pub access: AccessFlags,
    /// Maximum number of unacknowledged packets on a path whose capacity is unknown.
    pub window: u32,
    /// Maximum number of unacknowledged packets on any path. The limit rises from `window` towards
    /// this value only while round trip measurements show that the path can hold more packets.
    pub max_window: u32,
    /// Limit for keeping packets that arrive after a missing packet, in sequence numbers. A packet
    /// is kept until the missing packets arrive if its distance from the first missing packet is
    /// less than this limit. With 0, no packet is kept.
    pub max_kept: u32,
    /// Set if every send request generates a completion, signaled or not.
    pub signal_all: bool,
    /// Set if receives are taken from a shared receive queue.
    pub shared_receive: bool,
}

impl Default for Attributes {
    /// Returns the attributes of a new queue pair. A transition to RESET restores these values,
    /// except for the attributes that are set when the queue pair is created.
    fn default() -> Self {
        Self {
            destination: 0,
            path: None,
            path_mtu: Mtu::Mtu256,
            partition_key: 0xffff,
            queue_key: 0,
            send_sequence: Sequence::default(),
            receive_sequence: Sequence::default(),
            ack_timeout: None,
            retry_count: 0,
            rnr_retry: 0,
            min_rnr_timer: 0,
            max_initiated: 0,
            max_accepted: 0,
            access: AccessFlags::empty(),
            window: 128,
            max_window: 128,
            max_kept: 0,
            signal_all: false,
            shared_receive: false,
        }
    }
}
