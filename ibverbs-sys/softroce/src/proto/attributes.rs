use std::time::Duration;

use bitflags::bitflags;

use super::{Path, Sequence};

/// What a queue pair promises, and which half of it there is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Service {
    /// Reliable connection.
    ReliableConnection,
    /// Unreliable connection.
    UnreliableConnection,
    /// Unreliable datagram.
    UnreliableDatagram,
    /// The sending half of an extended reliable connection.
    XrcInitiator,
    /// The receiving half of an extended reliable connection.
    XrcTarget,
}

/// The states of a queue pair (IBTA 10.3.1).
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

/// The largest payload of a packet.
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
    /// In bytes.
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
    /// What may be done to memory: the bits of `ibv_access_flags`.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub struct AccessFlags: u32 {
        /// Local writes.
        const LOCAL_WRITE = 1;
        /// RDMA writes by peers.
        const REMOTE_WRITE = 1 << 1;
        /// RDMA reads by peers.
        const REMOTE_READ = 1 << 2;
        /// Atomics by peers.
        const REMOTE_ATOMIC = 1 << 3;
        /// Memory windows may be bound to it.
        const MW_BIND = 1 << 4;
        /// Peers count addresses from zero.
        const ZERO_BASED = 1 << 5;
        /// On-demand paging.
        const ON_DEMAND = 1 << 6;
        /// Huge pages.
        const HUGETLB = 1 << 7;
        /// Relaxed ordering.
        const RELAXED_ORDERING = 1 << 20;
    }
}

/// What `ibv_modify_qp` sets, as far as the transport goes by it.
#[derive(Clone, Debug)]
pub struct Attributes {
    /// The peer's queue pair.
    pub destination: u32,
    /// The way to the peer.
    pub path: Option<Path>,
    /// Largest payload.
    pub path_mtu: Mtu,
    /// Partition key.
    pub partition_key: u16,
    /// Queue key of a datagram queue pair.
    pub queue_key: u32,
    /// Sequence number of the next packet to be sent.
    pub send_sequence: Sequence,
    /// Sequence number of the next packet expected.
    pub receive_sequence: Sequence,
    /// How long to wait for an acknowledgement; none: for ever.
    pub ack_timeout: Option<Duration>,
    /// How often to send again without an answer, 0 to 7.
    pub retry_count: u8,
    /// How often to send again to a receiver that is not ready, 0 to 6; 7: without end.
    pub rnr_retry: u8,
    /// The timer code that a peer is told when there is no receive posted.
    pub min_rnr_timer: u8,
    /// How many reads and atomics may be under way to the peer.
    pub max_initiated: u8,
    /// How many reads and atomics of the peer are remembered.
    pub max_accepted: u8,
    /// What the peer may do through this queue pair.
    pub access: AccessFlags,
    /// How many packets may be on the way unacknowledged.
    pub window: u32,
    /// Every send request gives a completion, signaled or not.
    pub signal_all: bool,
    /// Receives come from a shared queue.
    pub shared_receive: bool,
}

impl Default for Attributes {
    /// Those of a queue pair in RESET.
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
            signal_all: false,
            shared_receive: false,
        }
    }
}
