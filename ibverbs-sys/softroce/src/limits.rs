//! What the device has, and at most how many: what `ibv_query_device` reports and every check goes by.
#![forbid(unsafe_code)]

/// Queue pairs.
pub const MAX_QP: usize = 1 << 16;
/// Requests of a send or receive queue.
pub const MAX_QP_WR: u32 = 1 << 14;
/// Segments of a request.
pub const MAX_SGE: u32 = 32;
/// Segments of a read.
pub const MAX_SGE_RD: u32 = 32;
/// Bytes that a request can hold itself.
pub const MAX_INLINE: u32 = 1024;
/// Bytes of a message (IBTA 9.7.1).
pub const MAX_MESSAGE: u32 = 1 << 30;
/// Reads and atomics of a peer that a queue pair remembers.
pub const MAX_QP_RD_ATOM: u8 = 16;
/// Reads and atomics that a queue pair has under way to its peer.
pub const MAX_QP_INIT_RD_ATOM: u8 = 16;
/// Completion queues.
pub const MAX_CQ: usize = 1 << 16;
/// Entries of a completion queue.
pub const MAX_CQE: u32 = (1 << 22) - 1;
/// Completion vectors.
pub const COMPLETION_VECTORS: u32 = 1;
/// Completions that an event can wait for.
pub const MAX_MODERATION_COUNT: u16 = u16::MAX;
/// Microseconds that an event can wait.
pub const MAX_MODERATION_PERIOD: u16 = u16::MAX;
/// Memory regions.
pub const MAX_MR: usize = 1 << 20;
/// Bytes of a memory region.
pub const MAX_MR_SIZE: u64 = u64::MAX;
/// Memory windows.
pub const MAX_MW: usize = 1 << 20;
/// Bytes of device memory.
pub const MAX_DM_SIZE: u64 = 16 << 20;
/// Protection domains.
pub const MAX_PD: usize = 1 << 16;
/// Address handles.
pub const MAX_AH: usize = 1 << 20;
/// Shared receive queues.
pub const MAX_SRQ: usize = 1 << 16;
/// Requests of a shared receive queue.
pub const MAX_SRQ_WR: u32 = 1 << 15;
/// Segments of a request of a shared receive queue.
pub const MAX_SRQ_SGE: u32 = 32;
/// XRC domains.
pub const MAX_XRCD: usize = 1 << 16;
/// Multicast groups.
pub const MAX_MCAST_GRP: usize = 1 << 13;
/// Queue pairs of a multicast group.
pub const MAX_MCAST_QP_ATTACH: usize = 56;
/// Memberships of all multicast groups.
pub const MAX_TOTAL_MCAST_QP_ATTACH: usize = MAX_MCAST_GRP * MAX_MCAST_QP_ATTACH;
/// Partition keys.
pub const MAX_PKEYS: u16 = 1;
/// Page sizes: all from 4 KiB on.
pub const PAGE_SIZE_CAP: u64 = !0xfff;
/// Exponent of the time that an acknowledgement may take here, 4.096 us * 2^15.
pub const LOCAL_CA_ACK_DELAY: u8 = 15;
/// The clock of completion timestamps counts nanoseconds: a million kHz.
pub const HCA_CORE_CLOCK: u64 = 1_000_000;
/// Bits of a completion timestamp that count.
pub const TIMESTAMP_MASK: u64 = u64::MAX;
/// Physical ports.
pub const PORTS: u8 = 1;
