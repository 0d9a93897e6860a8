//! Memory that is not pinned.

use bitflags::bitflags;

bitflags! {
    /// What a device can do with memory that is not pinned (`ibv_odp_general_caps`).
    #[doc(alias = "ibv_odp_general_caps")]
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
    pub struct OnDemandPaging: u64 {
        /// It has on-demand paging.
        const SUPPORT = 1;
        /// A region can be the whole address space.
        const IMPLICIT = 1 << 1;

        const _ = !0;
    }
}

bitflags! {
    /// What a transport can do with memory that is not pinned (`ibv_odp_transport_cap_bits`).
    #[doc(alias = "ibv_odp_transport_cap_bits")]
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
    pub struct OnDemandOperations: u32 {
        /// Send from it.
        const SEND = 1;
        /// Receive into it.
        const RECV = 1 << 1;
        /// RDMA write.
        const WRITE = 1 << 2;
        /// RDMA read.
        const READ = 1 << 3;
        /// Atomics.
        const ATOMIC = 1 << 4;
        /// Receive into it from a shared receive queue.
        const SRQ = 1 << 5;
        /// Flush.
        const FLUSH = 1 << 6;
        /// Atomic write.
        const ATOMIC_WRITE = 1 << 7;

        const _ = !0;
    }
}
