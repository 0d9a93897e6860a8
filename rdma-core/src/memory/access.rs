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

        const _ = !0;
    }
}

impl AccessFlags {
    /// Everything a peer can be allowed: write, read and atomics.
    pub const REMOTE: Self = Self::REMOTE_WRITE
        .union(Self::REMOTE_READ)
        .union(Self::REMOTE_ATOMIC);
}

impl fmt::Display for AccessFlags {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        bitflags::parser::to_writer(self, f)
    }
}
