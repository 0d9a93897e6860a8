//! The limits of the device, which `ibv_query_device` reports and all checks use.
#![forbid(unsafe_code)]

/// Maximum queue pairs of the device.
pub const MAX_QP: usize = 1 << 16;
/// Maximum outstanding work requests of a send queue or a receive queue.
pub const MAX_QP_WR: u32 = 1 << 14;
/// Maximum scatter/gather elements of a request.
pub const MAX_SGE: u32 = 32;
/// Maximum scatter/gather elements of an RDMA read request.
pub const MAX_SGE_RD: u32 = 32;
/// Maximum inline data of a request in bytes.
pub const MAX_INLINE: u32 = 1024;
/// Maximum length of a message in bytes (IBTA 9.7.1).
pub const MAX_MESSAGE: u32 = 1 << 30;
/// Maximum outstanding RDMA reads and atomics that a queue pair accepts from its peer.
pub const MAX_QP_RD_ATOM: u8 = 16;
/// Maximum outstanding RDMA reads and atomics that a queue pair sends to its peer.
pub const MAX_QP_INIT_RD_ATOM: u8 = 16;
/// Maximum completion queues of the device.
pub const MAX_CQ: usize = 1 << 16;
/// Maximum entries of a completion queue.
pub const MAX_CQE: u32 = (1 << 22) - 1;
/// Number of completion vectors of the device.
pub const COMPLETION_VECTORS: u32 = 1;
/// Maximum completions that moderation combines in one completion event.
pub const MAX_MODERATION_COUNT: u16 = u16::MAX;
/// Maximum delay of a completion event by moderation, in microseconds.
pub const MAX_MODERATION_PERIOD: u16 = u16::MAX;
/// Maximum memory regions of the device.
pub const MAX_MR: usize = 1 << 20;
/// Maximum length of a memory region in bytes.
pub const MAX_MR_SIZE: u64 = u64::MAX;
/// Maximum memory windows of the device.
pub const MAX_MW: usize = 1 << 20;
/// Total size of the device memory (`ibv_alloc_dm`) in bytes.
pub const MAX_DM_SIZE: u64 = 16 << 20;
/// Maximum protection domains of the device.
pub const MAX_PD: usize = 1 << 16;
/// Maximum address handles of the device.
pub const MAX_AH: usize = 1 << 20;
/// Maximum shared receive queues of the device.
pub const MAX_SRQ: usize = 1 << 16;
/// Maximum outstanding work requests of a shared receive queue.
pub const MAX_SRQ_WR: u32 = 1 << 15;
/// Maximum scatter/gather elements of a request of a shared receive queue.
pub const MAX_SRQ_SGE: u32 = 32;
/// Maximum XRC domains of the device.
pub const MAX_XRCD: usize = 1 << 16;
/// Maximum multicast groups to which queue pairs are attached.
pub const MAX_MCAST_GRP: usize = 1 << 13;
/// Maximum queue pairs that are attached to a multicast group.
pub const MAX_MCAST_QP_ATTACH: usize = 56;
/// Maximum attachments of queue pairs to multicast groups, counted over all groups.
pub const MAX_TOTAL_MCAST_QP_ATTACH: usize = MAX_MCAST_GRP * MAX_MCAST_QP_ATTACH;
/// Number of entries of the partition key table.
pub const MAX_PKEYS: u16 = 1;
/// Bit mask of the supported page sizes in bytes: all powers of two from 4 KiB on.
pub const PAGE_SIZE_CAP: u64 = !0xfff;
/// Maximum time until this device acknowledges a packet, as the exponent `n` of 4.096 us * 2^n.
pub const LOCAL_CA_ACK_DELAY: u8 = 15;
/// Frequency in kHz of the clock of completion timestamps, which counts nanoseconds.
pub const HCA_CORE_CLOCK: u64 = 1_000_000;
/// Mask of the valid bits of a completion timestamp.
pub const TIMESTAMP_MASK: u64 = u64::MAX;
/// Number of physical ports of the device.
pub const PORTS: u8 = 1;
