//! The limits of the device, which `ibv_query_device(3)` and related verbs report to programs, and
//! which all checks use.
#![forbid(unsafe_code)]

/// Maximum number of queue pairs of the device (`max_qp` of `ibv_query_device(3)`). Tables with an
/// entry for each queue pair have this length. The number of queue pair numbers is twice this
/// number, so that the number of a destroyed queue pair is not reused soon.
pub const MAX_QP: usize = 1 << 15;
/// Maximum number of outstanding work requests of a send queue or a receive queue (`max_qp_wr` of
/// `ibv_query_device(3)`).
pub const MAX_QP_WR: u32 = 1 << 14;
/// Maximum number of scatter/gather elements of a request (`max_sge` of `ibv_query_device(3)`).
pub const MAX_SGE: u32 = 32;
/// Maximum number of scatter/gather elements of an RDMA read request (`max_sge_rd` of
/// `ibv_query_device(3)`). The limit equals that of other requests.
pub const MAX_SGE_RD: u32 = 32;
/// Maximum number of bytes that a send request can contain as inline data. `ibv_create_qp(3)`
/// rejects a higher `max_inline_data`.
pub const MAX_INLINE: u32 = 1024;
/// Maximum length of a message in bytes (IBTA 9.7.1; `max_msg_sz` of `ibv_query_port(3)`).
pub const MAX_MESSAGE: u32 = 1 << 30;
/// Maximum number of outstanding RDMA reads and atomics that a queue pair accepts from its peer
/// (`max_qp_rd_atom` of `ibv_query_device(3)`).
pub const MAX_QP_RD_ATOM: u8 = 16;
/// Maximum number of outstanding RDMA reads and atomics that a queue pair sends to its peer
/// (`max_qp_init_rd_atom` of `ibv_query_device(3)`).
pub const MAX_QP_INIT_RD_ATOM: u8 = 16;
/// Maximum number of completion queues of the device (`max_cq` of `ibv_query_device(3)`).
pub const MAX_CQ: usize = 1 << 16;
/// Maximum number of entries of a completion queue (`max_cqe` of `ibv_query_device(3)`): the
/// largest number that fits into the 22 bits for an index in the queue.
pub const MAX_CQE: u32 = (1 << 22) - 1;
/// Number of completion vectors of the device (`num_comp_vectors` of `ibv_context`). One is enough,
/// because the device has no interrupts that could be distributed over processors.
pub const COMPLETION_VECTORS: u32 = 1;
/// Maximum number of completions that can share one completion event (moderation): the largest
/// value of the 16-bit field `cq_count` of `ibv_modify_cq(3)`.
pub const MAX_MODERATION_COUNT: u16 = u16::MAX;
/// Maximum time in microseconds for which moderation delays a completion event: the maximum of the
/// field in `ibv_modify_cq(3)`.
pub const MAX_MODERATION_PERIOD: u16 = u16::MAX;
/// Maximum number of memory regions of the device (`max_mr` of `ibv_query_device(3)`).
pub const MAX_MR: usize = 1 << 20;
/// Maximum length of a memory region in bytes (`max_mr_size` of `ibv_query_device(3)`). The device
/// itself sets no limit.
pub const MAX_MR_SIZE: u64 = u64::MAX;
/// Maximum number of memory windows of the device (`max_mw` of `ibv_query_device(3)`).
pub const MAX_MW: usize = 1 << 20;
/// Maximum total size in bytes of the device memory that a process can allocate by
/// `ibv_alloc_dm(3)` (`max_dm_size` of `ibv_query_device_ex(3)`). Such memory belongs to the
/// device, not to the program.
pub const MAX_DM_SIZE: u64 = 16 << 20;
/// Maximum number of protection domains of the device (`max_pd` of `ibv_query_device(3)`).
pub const MAX_PD: usize = 1 << 16;
/// Maximum number of address handles of the device (`max_ah` of `ibv_query_device(3)`).
pub const MAX_AH: usize = 1 << 20;
/// Maximum number of shared receive queues of the device (`max_srq` of `ibv_query_device(3)`).
pub const MAX_SRQ: usize = 1 << 16;
/// Maximum number of outstanding work requests of a shared receive queue (`max_srq_wr` of
/// `ibv_query_device(3)`).
pub const MAX_SRQ_WR: u32 = 1 << 15;
/// Maximum number of scatter/gather elements of a request of a shared receive queue (`max_srq_sge`
/// of `ibv_query_device(3)`).
pub const MAX_SRQ_SGE: u32 = 32;
/// Maximum number of XRC domains of the device. No verb reports or checks this number.
pub const MAX_XRCD: usize = 1 << 16;
/// Maximum number of multicast groups to which queue pairs of the device can be attached
/// (`max_mcast_grp` of `ibv_query_device(3)`).
pub const MAX_MCAST_GRP: usize = 1 << 13;
/// Maximum number of queue pairs that are attached to one multicast group (`max_mcast_qp_attach` of
/// `ibv_query_device(3)`).
pub const MAX_MCAST_QP_ATTACH: usize = 56;
/// Maximum number of attachments of queue pairs to multicast groups, counted over all groups
/// (`max_total_mcast_qp_attach` of `ibv_query_device(3)`).
pub const MAX_TOTAL_MCAST_QP_ATTACH: usize = MAX_MCAST_GRP * MAX_MCAST_QP_ATTACH;
/// Number of entries of the port's partition key table, which contains only the default key.
pub const MAX_PKEYS: u16 = 1;
/// Bit mask of the supported page sizes in bytes: all powers of two from 4 KiB on.
pub const PAGE_SIZE_CAP: u64 = !0xfff;
/// Maximum time until this device acknowledges a packet, as the exponent `n` of 4.096 us * 2^n. The
/// value 15 is 134 ms. A program adds this time to the round trip time when it chooses a timeout
/// for acknowledgements.
pub const LOCAL_CA_ACK_DELAY: u8 = 15;
/// Frequency in kHz of the clock of completion timestamps (`hca_core_clock` of
/// `ibv_query_device_ex(3)`). The clock ticks once per nanosecond, which is 1,000,000 kHz.
pub const HCA_CORE_CLOCK: u64 = 1_000_000;
/// Bit mask of the valid bits of a completion timestamp (`completion_timestamp_mask` of
/// `ibv_query_device_ex(3)`). All 64 bits are valid.
pub const TIMESTAMP_MASK: u64 = u64::MAX;
/// Number of physical ports of the device. The only port has the number 1.
pub const PORTS: u8 = 1;
