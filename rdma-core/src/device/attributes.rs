//! What a device can do.

use std::ffi::c_char;

use ibverbs_sys as sys;

/// What a device can do and how much of it (`ibv_query_device`).
#[doc(alias = "ibv_device_attr")]
#[derive(Debug, Clone, Copy)]
pub struct DeviceAttributes {
    raw: sys::ibv_device_attr,
}

/// Among what a device's atomics are atomic (`ibv_atomic_cap`).
#[doc(alias = "ibv_atomic_cap")]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum AtomicCapability {
    /// It has none.
    None,
    /// Among the operations of this device.
    Device,
    /// Among everything that accesses the memory, processors included.
    Global,
    /// A value that this crate does not know.
    Unknown(u32),
}

impl DeviceAttributes {
    pub(crate) fn new(raw: sys::ibv_device_attr) -> Self {
        Self { raw }
    }

    /// The firmware's version, as the vendor writes it.
    pub fn firmware_version(&self) -> String {
        let bytes = self.raw.fw_ver.iter().map(|&byte: &c_char| byte as u8);
        let text: Vec<u8> = bytes.take_while(|&byte| byte != 0).collect();
        String::from_utf8_lossy(&text).into_owned()
    }

    /// How many ports it has; their numbers begin with 1.
    pub fn ports(&self) -> u8 {
        self.raw.phys_port_cnt
    }

    /// The largest memory region, in bytes.
    pub fn max_region_size(&self) -> u64 {
        self.raw.max_mr_size
    }

    /// The most queue pairs.
    pub fn max_queue_pairs(&self) -> usize {
        usize::try_from(self.raw.max_qp).unwrap_or(0)
    }

    /// The most work requests outstanding on a send or receive queue.
    pub fn max_work_requests(&self) -> usize {
        usize::try_from(self.raw.max_qp_wr).unwrap_or(0)
    }

    /// The most scatter/gather elements of a request.
    pub fn max_elements(&self) -> usize {
        usize::try_from(self.raw.max_sge).unwrap_or(0)
    }

    /// The most completion queues.
    pub fn max_completion_queues(&self) -> usize {
        usize::try_from(self.raw.max_cq).unwrap_or(0)
    }

    /// The most entries of a completion queue.
    pub fn max_completions(&self) -> usize {
        usize::try_from(self.raw.max_cqe).unwrap_or(0)
    }

    /// The most memory regions.
    pub fn max_regions(&self) -> usize {
        usize::try_from(self.raw.max_mr).unwrap_or(0)
    }

    /// The most RDMA reads and atomics of a peer that a queue pair can have at work.
    pub fn max_incoming_reads(&self) -> u8 {
        u8::try_from(self.raw.max_qp_rd_atom).unwrap_or(u8::MAX)
    }

    /// The most RDMA reads and atomics that a queue pair can have outstanding.
    pub fn max_outgoing_reads(&self) -> u8 {
        u8::try_from(self.raw.max_qp_init_rd_atom).unwrap_or(u8::MAX)
    }

    /// Among what its atomics are atomic.
    pub fn atomics(&self) -> AtomicCapability {
        use sys::ibv_atomic_cap as raw;
        match self.raw.atomic_cap {
            raw::IBV_ATOMIC_NONE => AtomicCapability::None,
            raw::IBV_ATOMIC_HCA => AtomicCapability::Device,
            raw::IBV_ATOMIC_GLOB => AtomicCapability::Global,
            raw(other) => AtomicCapability::Unknown(other),
        }
    }

    /// The C struct.
    pub fn as_raw(&self) -> &sys::ibv_device_attr {
        &self.raw
    }
}
