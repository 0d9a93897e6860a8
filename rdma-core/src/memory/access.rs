//! Access flags: the operations that a device may perform on a memory region.

use std::fmt;

use ibverbs_sys::ibv_access_flags;

bitflags::bitflags! {
    /// Flags for the operations that the local device and peers (remote processes) may perform on
    /// registered memory or through a memory window (`ibv_access_flags`).
    ///
    /// The local device may always read the memory, so local reads need no flag.
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
        /// Memory windows may be bound to the region. A memory window is a remote key that grants
        /// peers access to a part of a region.
        #[doc(alias = "IBV_ACCESS_MW_BIND")]
        const WINDOW_BIND = ibv_access_flags::IBV_ACCESS_MW_BIND.0;
        /// The first byte of the region or window has the address 0 in requests.
        ///
        /// Not every device supports this flag for regions. The crate therefore registers such a
        /// region at the explicit address 0 instead of passing the flag to the device. The memory
        /// must then begin at the start of a page.
        const ZERO_BASED = ibv_access_flags::IBV_ACCESS_ZERO_BASED.0;
        /// The pages of the region are not pinned in memory. When the device accesses an absent
        /// page, a page fault loads the page (on-demand paging).
        ///
        /// [`on_demand_paging`](crate::device::ExtendedDeviceAttributes::on_demand_paging) returns
        /// the operations that a device supports on such memory.
        const ON_DEMAND = ibv_access_flags::IBV_ACCESS_ON_DEMAND.0;
        /// The whole region consists of huge pages. The flag has an effect only together with
        /// [`Self::ON_DEMAND`].
        const HUGETLB = ibv_access_flags::IBV_ACCESS_HUGETLB.0;
        /// The device's writes to the memory may become visible in an order other than the order in
        /// which the peer sent them.
        ///
        /// Relaxed ordering is faster on many machines. A program can then no longer detect the end
        /// of a transfer by polling memory: a flag that the peer wrote last may become visible
        /// before the data. Only a completion, of a receive or of a write with immediate data,
        /// proves that the data has arrived. Devices that cannot reorder writes ignore the flag. A
        /// program cannot query whether a device reorders writes.
        const RELAXED_ORDERING = ibv_access_flags::IBV_ACCESS_RELAXED_ORDERING.0;
        /// Peers may execute flush operations that make RDMA writes visible. Such a flush completes
        /// when the earlier writes of the same peer are visible to the processor and to all other
        /// devices.
        const FLUSH_GLOBAL = 1 << 8;
        /// Peers may execute flush operations that make RDMA writes persistent. Such a flush
        /// completes when the earlier writes of the same peer are in persistent memory.
        const FLUSH_PERSISTENT = 1 << 9;

        const _ = !0;
    }
}

impl AccessFlags {
    /// The union of the flags that let peers access the memory: RDMA write, RDMA read and atomics.
    pub const REMOTE: Self = Self::REMOTE_WRITE
        .union(Self::REMOTE_READ)
        .union(Self::REMOTE_ATOMIC);
}

impl fmt::Display for AccessFlags {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        bitflags::parser::to_writer(self, f)
    }
}
