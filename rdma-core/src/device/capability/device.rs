//! Capabilities of devices, and the queue pair types that they apply to.

use bitflags::bitflags;

bitflags! {
    /// The optional capabilities of a device (`ibv_device_cap_flags`).
    #[doc(alias = "ibv_device_cap_flags")]
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
    pub struct DeviceCapabilities: u64 {
        /// The capacities of a queue pair can be changed.
        const RESIZE_MAX_WR = 1;
        /// The ports count packets with wrong P_Keys.
        const BAD_PKEY_CNTR = 1 << 1;
        /// The ports count packets with wrong Q_Keys.
        const BAD_QKEY_CNTR = 1 << 2;
        /// Raw packet queue pairs support multicast.
        const RAW_MULTI = 1 << 3;
        /// Connections support automatic path migration.
        const AUTO_PATH_MIG = 1 << 4;
        /// A queue pair can be moved to another port of the device.
        const CHANGE_PHY_PORT = 1 << 5;
        /// The device checks that the address handle of a datagram uses the queue pair's port.
        const UD_AV_PORT_ENFORCE = 1 << 6;
        /// A request to modify a queue pair can contain the state that the program assumes the
        /// queue pair to be in.
        const CURR_QP_STATE_MOD = 1 << 7;
        /// A port can be shut down by software.
        const SHUTDOWN_PORT = 1 << 8;
        /// Programs can request a type of initialisation for a port.
        const INIT_TYPE = 1 << 9;
        /// An asynchronous event reports that a port becomes active.
        const PORT_ACTIVE_EVENT = 1 << 10;
        /// The device has a system image GUID.
        const SYS_IMAGE_GUID = 1 << 11;
        /// Reliable connected queue pairs send a receiver-not-ready NAK if no receive is posted.
        const RC_RNR_NAK_GEN = 1 << 12;
        /// Shared receive queues can be resized.
        const SRQ_RESIZE = 1 << 13;
        /// A completion queue can delay its event until a number of completions is available.
        const N_NOTIFY_CQ = 1 << 14;
        /// Memory windows of type 1 are supported.
        const MEM_WINDOW = 1 << 17;
        /// For unreliable datagram (UD) queue pairs, the device computes and checks IP checksums.
        const UD_IP_CSUM = 1 << 18;
        /// Extended reliable connections (XRC) are supported.
        const XRC = 1 << 20;
        /// Send with invalidate, local invalidate and fast registration are supported.
        const MEM_MGT_EXTENSIONS = 1 << 21;
        /// Memory windows of type 2A are supported.
        const MEM_WINDOW_TYPE_2A = 1 << 23;
        /// Memory windows of type 2B, which belong to one queue pair and one protection domain, are
        /// supported.
        const MEM_WINDOW_TYPE_2B = 1 << 24;
        /// For reliable connected (RC) queue pairs, the device computes and checks IP checksums.
        const RC_IP_CSUM = 1 << 25;
        /// For raw packets, the device computes and checks IP checksums.
        const RAW_IP_CSUM = 1 << 26;
        /// Flow steering is supported: rules of the program direct packets to queue pairs.
        const MANAGED_FLOW_STEERING = 1 << 29;
        /// Raw packets can be received with their frame check sequence.
        const RAW_SCATTER_FCS = 1 << 34;
        /// The device can pad its writes over PCI to whole cache lines.
        const PCI_WRITE_END_PADDING = 1 << 36;
        /// A flush operation can make earlier writes visible to the whole system of the peer.
        const FLUSH_GLOBAL = 1 << 38;
        /// A flush operation can make earlier writes persistent.
        const FLUSH_PERSISTENT = 1 << 39;
        /// The atomic write is supported: an RDMA write of 8 bytes that takes effect as a whole.
        const ATOMIC_WRITE = 1 << 40;
        /// In a confidential guest, DMA of the device uses bounce buffers that are shared with the
        /// host.
        const CC_DMA_BOUNCE = 1 << 41;

        const _ = !0;
    }
}

bitflags! {
    /// The set of queue pair types that support a capability. Bit `n` stands for the type with the
    /// number `n` in `ibv_qp_type`.
    #[doc(alias = "supported_qpts")]
    #[doc(alias = "ibv_is_qpt_supported")]
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
    pub struct QueuePairKinds: u32 {
        /// The set contains reliable connected (RC) queue pairs.
        const RC = 1 << 2;
        /// The set contains unreliable connected (UC) queue pairs.
        const UC = 1 << 3;
        /// The set contains unreliable datagram (UD) queue pairs.
        const UD = 1 << 4;
        /// The set contains queue pairs for raw Ethernet packets.
        const RAW_PACKET = 1 << 8;
        /// The set contains initiators of extended reliable connections (XRC).
        const XRC_SEND = 1 << 9;
        /// The set contains targets of extended reliable connections (XRC).
        const XRC_RECV = 1 << 10;

        const _ = !0;
    }
}

bitflags! {
    /// The operand sizes with which a device can issue atomics over PCI (`ibv_pci_atomic_op_size`).
    #[doc(alias = "ibv_pci_atomic_op_size")]
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
    pub struct AtomicSizes: u16 {
        /// Atomics with operands of 4 bytes are supported.
        const BYTES_4 = 1;
        /// Atomics with operands of 8 bytes are supported.
        const BYTES_8 = 1 << 1;
        /// Atomics with operands of 16 bytes are supported.
        const BYTES_16 = 1 << 2;

        const _ = !0;
    }
}
