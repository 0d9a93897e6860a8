//! Access flags: the operations that a device may perform on a memory region.

use std::fmt;

use ibverbs_sys::ibv_access_flags;

bitflags::bitflags! {
    /// The operations that a device may perform on registered memory, for this process and for
    /// peers (`ibv_access_flags`).
    ///
    /// Local reads are always allowed.
    #[doc(alias = "ibv_access_flags")]
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
    pub struct AccessFlags: u32 {
        /// The local device may write to the memory: received messages, the data of RDMA reads, and
        /// the results of atomics.
        const LOCAL_WRITE = ibv_access_flags::IBV_ACCESS_LOCAL_WRITE.0;
        /// Peers may write to the memory by RDMA. Requires [`Self::LOCAL_WRITE`].
        const REMOTE_WRITE = ibv_access_flags::IBV_ACCESS_REMOTE_WRITE.0;
        /// Peers may read the memory by RDMA.
        const REMOTE_READ = ibv_access_flags::IBV_ACCESS_REMOTE_READ.0;
        /// Peers may execute atomic operations on the memory. Requires [`Self::LOCAL_WRITE`].
        const REMOTE_ATOMIC = ibv_access_flags::IBV_ACCESS_REMOTE_ATOMIC.0;
        /// Memory windows may be bound to parts of the region. (A bound window grants access to
        /// peers.)
        #[doc(alias = "IBV_ACCESS_MW_BIND")]
        const WINDOW_BIND = ibv_access_flags::IBV_ACCESS_MW_BIND.0;
        /// The first byte of the region or window has the address 0 in requests.
        ///
        /// Not every device supports the flag for regions. The crate therefore registers a region
        /// with this flag at the explicit address 0, for which the memory must begin at the start
        /// of a page.
        const ZERO_BASED = ibv_access_flags::IBV_ACCESS_ZERO_BASED.0;
        /// The pages of the region are not pinned: the device faults a page in when it accesses the
        /// page.
        ///
        /// The operations that a device supports on such memory are reported by
        /// [`on_demand_paging`](crate::device::ExtendedDeviceAttributes::on_demand_paging).
        const ON_DEMAND = ibv_access_flags::IBV_ACCESS_ON_DEMAND.0;
        /// The whole region consists of huge pages. Meaningful only together with
        /// [`Self::ON_DEMAND`].
        const HUGETLB = ibv_access_flags::IBV_ACCESS_HUGETLB.0;
        /// The device's writes to the memory may become visible in an order other than the order in
        /// which the peer sent them.
        ///
        /// Relaxed ordering is faster on many machines. A program can then no longer detect the end
        /// of a transfer by polling memory: a flag that the peer wrote last may become visible
        /// before the data. Only a completion, of a receive or of a write with immediate data,
        /// proves that the data has arrived. Devices that cannot reorder writes ignore the flag; a
        /// program cannot query whether a device reorders.
        const RELAXED_ORDERING = ibv_access_flags::IBV_ACCESS_RELAXED_ORDERING.0;
        /// Peers may post flush operations, which complete when the peer's earlier writes are
        /// visible to all other readers of the memory (the processor and other devices).
        const FLUSH_GLOBAL = 1 << 8;
        /// Peers may request, by a flush operation, that their writes become persistent.
        const FLUSH_PERSISTENT = 1 << 9;

        const _ = !0;
    }
}

impl AccessFlags {
    /// All remote rights of a peer: RDMA write, RDMA read and atomics.
    pub const REMOTE: Self = Self::REMOTE_WRITE
        .union(Self::REMOTE_READ)
        .union(Self::REMOTE_ATOMIC);
}

impl fmt::Display for AccessFlags {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        bitflags::parser::to_writer(self, f)
    }
}
