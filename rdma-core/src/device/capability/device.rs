//! Capabilities of devices, and the queue pair types that they apply to.

use bitflags::bitflags;

bitflags! {
    /// The optional capabilities of a device (`ibv_device_cap_flags`).
    #[doc(alias = "ibv_device_cap_flags")]
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
    pub struct DeviceCapabilities: u64 {
        /// The device can change the maximum numbers of work requests of an existing queue pair.
        const RESIZE_MAX_WR = 1;
        /// The ports count packets with wrong P_Keys.
        const BAD_PKEY_CNTR = 1 << 1;
        /// The ports count packets with wrong Q_Keys.
        const BAD_QKEY_CNTR = 1 << 2;
        /// Raw packet queue pairs support multicast.
        const RAW_MULTI = 1 << 3;
        /// Connections support automatic path migration: a connection moves to an alternate path
        /// after a failure.
        const AUTO_PATH_MIG = 1 << 4;
        /// A queue pair can be moved to another port of the device.
        const CHANGE_PHY_PORT = 1 << 5;
        /// The device checks that the address handle of a datagram uses the queue pair's port.
        const UD_AV_PORT_ENFORCE = 1 << 6;
        /// A request to modify a queue pair can contain the state that the program expects. The
        /// device checks that the queue pair is in this state.
        const CURR_QP_STATE_MOD = 1 << 7;
        /// A port can be shut down by software.
        const SHUTDOWN_PORT = 1 << 8;
        /// A port of the device can request a type of initialisation from the subnet manager, such
        /// as one that keeps existing settings.
        const INIT_TYPE = 1 << 9;
        /// An asynchronous event reports that a port becomes active.
        const PORT_ACTIVE_EVENT = 1 << 10;
        /// The device has a system image GUID, which identifies the system that contains the
        /// device.
        const SYS_IMAGE_GUID = 1 << 11;
        /// Reliable connected queue pairs send a receiver-not-ready NAK if no receive is posted.
        const RC_RNR_NAK_GEN = 1 << 12;
        /// Shared receive queues can be resized.
        const SRQ_RESIZE = 1 << 13;
        /// The device can delay the event of a completion queue until a given number of completions
        /// is available.
        const N_NOTIFY_CQ = 1 << 14;
        /// The device supports memory windows of type 1.
        const MEM_WINDOW = 1 << 17;
        /// For unreliable datagram (UD) queue pairs, the device computes and checks IP checksums.
        const UD_IP_CSUM = 1 << 18;
        /// The device supports extended reliable connections (XRC).
        const XRC = 1 << 20;
        /// The device supports the operations send with invalidate, local invalidate and fast
        /// registration of memory.
        const MEM_MGT_EXTENSIONS = 1 << 21;
        /// The device supports memory windows of type 2A, which belong to one queue pair.
        const MEM_WINDOW_TYPE_2A = 1 << 23;
        /// The device supports memory windows of type 2B, which belong to one queue pair and one
        /// protection domain.
        const MEM_WINDOW_TYPE_2B = 1 << 24;
        /// For reliable connected (RC) queue pairs, the device computes and checks IP checksums.
        const RC_IP_CSUM = 1 << 25;
        /// For raw packets, the device computes and checks IP checksums.
        const RAW_IP_CSUM = 1 << 26;
        /// The device supports flow steering: rules of the program direct packets to queue pairs.
        const MANAGED_FLOW_STEERING = 1 << 29;
        /// The device can deliver received raw packets together with their frame check sequence
        /// (checksum).
        const RAW_SCATTER_FCS = 1 << 34;
        /// The device can pad its writes over PCI to whole cache lines.
        const PCI_WRITE_END_PADDING = 1 << 36;
        /// A flush operation can make earlier writes visible to the whole system of the peer.
        const FLUSH_GLOBAL = 1 << 38;
        /// A flush operation can make earlier writes persistent.
        const FLUSH_PERSISTENT = 1 << 39;
        /// The device supports the atomic write: an RDMA write of 8 bytes that takes effect as a
        /// whole.
        const ATOMIC_WRITE = 1 << 40;
        /// This machine is a confidential guest (a virtual machine with encrypted memory), and the
        /// DMA of the device uses bounce buffers that are shared with the host. This flag reports a
        /// state, not a capability.
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
        /// Reliable connected (RC) queue pairs support the capability.
        const RC = 1 << 2;
        /// Unreliable connected (UC) queue pairs support the capability.
        const UC = 1 << 3;
        /// Unreliable datagram (UD) queue pairs support the capability.
        const UD = 1 << 4;
        /// Queue pairs for raw Ethernet packets support the capability.
        const RAW_PACKET = 1 << 8;
        /// Queue pairs that send over extended reliable connections (XRC) support the capability.
        const XRC_SEND = 1 << 9;
        /// Queue pairs that receive over extended reliable connections (XRC) support the
        /// capability.
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
