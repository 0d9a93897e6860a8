//! What a device may do with a memory region.

use std::fmt;

use ibverbs_sys::ibv_access_flags;

bitflags::bitflags! {
    /// What a device may do with registered memory (`ibv_access_flags`).
    ///
    /// Local reads are always allowed.
    #[doc(alias = "ibv_access_flags")]
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
    pub struct AccessFlags: u32 {
        /// The local device may write: receives, RDMA reads, results of atomics.
        const LOCAL_WRITE = ibv_access_flags::IBV_ACCESS_LOCAL_WRITE.0;
        /// Peers may write by RDMA. Needs [`Self::LOCAL_WRITE`].
        const REMOTE_WRITE = ibv_access_flags::IBV_ACCESS_REMOTE_WRITE.0;
        /// Peers may read by RDMA.
        const REMOTE_READ = ibv_access_flags::IBV_ACCESS_REMOTE_READ.0;
        /// Peers may do atomics. Needs [`Self::LOCAL_WRITE`].
        const REMOTE_ATOMIC = ibv_access_flags::IBV_ACCESS_REMOTE_ATOMIC.0;
        /// Memory windows may be bound to parts of the region.
        #[doc(alias = "IBV_ACCESS_MW_BIND")]
        const WINDOW_BIND = ibv_access_flags::IBV_ACCESS_MW_BIND.0;
        /// The first byte of the region or window has the address 0 in requests.
        ///
        /// Not every device honours the flag for regions, so a region is registered at the explicit
        /// address 0 instead. The memory begins at the start of a page, therefore.
        const ZERO_BASED = ibv_access_flags::IBV_ACCESS_ZERO_BASED.0;
        /// Pages are not pinned: the device faults them in when it needs them.
        ///
        /// What a device can do with such memory it tells:
        /// [`on_demand_paging`](crate::ExtendedDeviceAttributes::on_demand_paging).
        const ON_DEMAND = ibv_access_flags::IBV_ACCESS_ON_DEMAND.0;
        /// The region is in huge pages throughout; for [`Self::ON_DEMAND`] regions.
        const HUGETLB = ibv_access_flags::IBV_ACCESS_HUGETLB.0;
        /// What the device writes may become visible in another order than it was sent.
        ///
        /// Faster on many machines, and it takes away what programs rely on when they poll memory:
        /// a flag that was written last may be seen first. Only a completion, of a receive or of a
        /// write with immediate data, then tells that the data is there. Devices that cannot
        /// reorder ignore it; which those are is not known in advance.
        const RELAXED_ORDERING = ibv_access_flags::IBV_ACCESS_RELAXED_ORDERING.0;
        /// Peers may have what they wrote made visible globally, by a flush request.
        const FLUSH_GLOBAL = 1 << 8;
        /// Peers may have what they wrote made persistent, by a flush request.
        const FLUSH_PERSISTENT = 1 << 9;

        const _ = !0;
    }
}

impl AccessFlags {
    /// Everything a peer can be allowed to do to the bytes: write, read and atomics.
    pub const REMOTE: Self = Self::REMOTE_WRITE
        .union(Self::REMOTE_READ)
        .union(Self::REMOTE_ATOMIC);
}

impl fmt::Display for AccessFlags {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        bitflags::parser::to_writer(self, f)
    }
}
