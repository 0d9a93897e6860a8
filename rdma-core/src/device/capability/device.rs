//! What devices can do, and with which queue pairs.

use bitflags::bitflags;

bitflags! {
    /// What a device can do beyond what every one can (`ibv_device_cap_flags`).
    #[doc(alias = "ibv_device_cap_flags")]
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
    pub struct DeviceCapabilities: u64 {
        /// A queue pair's capacities can be changed.
        const RESIZE_MAX_WR = 1;
        /// Its ports count wrong P_Keys.
        const BAD_PKEY_CNTR = 1 << 1;
        /// Its ports count wrong Q_Keys.
        const BAD_QKEY_CNTR = 1 << 2;
        /// Raw packets can go to groups.
        const RAW_MULTI = 1 << 3;
        /// Connections can move to another path by themselves.
        const AUTO_PATH_MIG = 1 << 4;
        /// A queue pair can move to another port.
        const CHANGE_PHY_PORT = 1 << 5;
        /// A datagram's address handle must be of the queue pair's port.
        const UD_AV_PORT_ENFORCE = 1 << 6;
        /// A change of a queue pair's state can say the state that it is in.
        const CURR_QP_STATE_MOD = 1 << 7;
        /// A port can be shut down.
        const SHUTDOWN_PORT = 1 << 8;
        /// A port's initialisation can be chosen.
        const INIT_TYPE = 1 << 9;
        /// It tells when a port becomes active.
        const PORT_ACTIVE_EVENT = 1 << 10;
        /// It has a GUID for the whole system.
        const SYS_IMAGE_GUID = 1 << 11;
        /// A receiver without receives says so to a reliable sender.
        const RC_RNR_NAK_GEN = 1 << 12;
        /// Shared receive queues can be resized.
        const SRQ_RESIZE = 1 << 13;
        /// A completion queue can announce after so many completions.
        const N_NOTIFY_CQ = 1 << 14;
        /// Memory windows of type 1.
        const MEM_WINDOW = 1 << 17;
        /// Checksums of IP over UD queue pairs.
        const UD_IP_CSUM = 1 << 18;
        /// Extended reliable connections.
        const XRC = 1 << 20;
        /// Send with invalidate, local invalidate and fast registration.
        const MEM_MGT_EXTENSIONS = 1 << 21;
        /// Memory windows of type 2A.
        const MEM_WINDOW_TYPE_2A = 1 << 23;
        /// Memory windows of type 2B, which belong to one queue pair.
        const MEM_WINDOW_TYPE_2B = 1 << 24;
        /// Checksums of IP over RC queue pairs.
        const RC_IP_CSUM = 1 << 25;
        /// Checksums of IP in raw packets.
        const RAW_IP_CSUM = 1 << 26;
        /// Flows of packets can be steered to queue pairs.
        const MANAGED_FLOW_STEERING = 1 << 29;
        /// Raw packets can be received with their frame check sequence.
        const RAW_SCATTER_FCS = 1 << 34;
        /// Writes over PCI can be padded to full cache lines.
        const PCI_WRITE_END_PADDING = 1 << 36;
        /// A flush can make data visible to everybody.
        const FLUSH_GLOBAL = 1 << 38;
        /// A flush can make data survive a loss of power.
        const FLUSH_PERSISTENT = 1 << 39;
        /// RDMA writes of 8 bytes that are atomic.
        const ATOMIC_WRITE = 1 << 40;
        /// In a confidential guest its traffic goes through buffers of the host.
        const CC_DMA_BOUNCE = 1 << 41;

        const _ = !0;
    }
}

bitflags! {
    /// A set of kinds of queue pairs, as capabilities tell it: bit `n` is `ibv_qp_type` `n`.
    #[doc(alias = "supported_qpts")]
    #[doc(alias = "ibv_is_qpt_supported")]
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
    pub struct QueuePairKinds: u32 {
        /// Reliable connection.
        const RC = 1 << 2;
        /// Unreliable connection.
        const UC = 1 << 3;
        /// Unreliable datagram.
        const UD = 1 << 4;
        /// Raw Ethernet packets.
        const RAW_PACKET = 1 << 8;
        /// The initiator of an extended reliable connection.
        const XRC_SEND = 1 << 9;
        /// The target of an extended reliable connection.
        const XRC_RECV = 1 << 10;

        const _ = !0;
    }
}

bitflags! {
    /// Sizes of atomics over PCI (`ibv_pci_atomic_op_size`).
    #[doc(alias = "ibv_pci_atomic_op_size")]
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
    pub struct AtomicSizes: u16 {
        /// 4 bytes.
        const BYTES_4 = 1;
        /// 8 bytes.
        const BYTES_8 = 1 << 1;
        /// 16 bytes.
        const BYTES_16 = 1 << 2;

        const _ = !0;
    }
}
