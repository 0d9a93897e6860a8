//! Capabilities for on-demand paging.

use bitflags::bitflags;

bitflags! {
    /// The features of on-demand paging that a device supports independently of the transport
    /// (`ibv_odp_general_caps`). With on-demand paging, registered memory is not pinned.
    #[doc(alias = "ibv_odp_general_caps")]
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
    pub struct OnDemandPaging: u64 {
        /// The device supports on-demand paging.
        const SUPPORT = 1;
        /// The device supports a memory region that covers the whole address space of the process.
        const IMPLICIT = 1 << 1;

        const _ = !0;
    }
}

bitflags! {
    /// The operations that a device can execute, over one type of transport, on memory registered
    /// for on-demand paging (`ibv_odp_transport_cap_bits`).
    #[doc(alias = "ibv_odp_transport_cap_bits")]
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
    pub struct OnDemandOperations: u32 {
        /// The device can send from memory registered for on-demand paging.
        const SEND = 1;
        /// The device can receive into memory registered for on-demand paging.
        const RECV = 1 << 1;
        /// The device can execute RDMA writes from or to memory registered for on-demand paging.
        const WRITE = 1 << 2;
        /// The device can execute RDMA reads from or into memory registered for on-demand paging.
        const READ = 1 << 3;
        /// The device can execute atomics on memory registered for on-demand paging.
        const ATOMIC = 1 << 4;
        /// The device supports receives of a shared receive queue into memory registered for
        /// on-demand paging.
        const SRQ = 1 << 5;
        /// The device can execute flush operations on memory registered for on-demand paging.
        const FLUSH = 1 << 6;
        /// The device can execute atomic writes to memory registered for on-demand paging.
        const ATOMIC_WRITE = 1 << 7;

        const _ = !0;
    }
}
