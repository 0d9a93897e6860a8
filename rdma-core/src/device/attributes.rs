//! The basic attributes of devices: capabilities and limits.

use std::ffi::{c_char, c_int};
use std::time::Duration;

use ibverbs_sys as sys;

use super::DeviceCapabilities;

/// The capabilities and limits of a device (`ibv_query_device`).
///
/// ```
/// let context = rdma_core::Context::open_default()?;
/// let attributes = context.attributes()?;
/// println!("{} queue pairs on {} ports", attributes.max_queue_pairs(), attributes.ports());
/// # Ok::<(), rdma_core::Error>(())
/// ```
#[doc(alias = "ibv_device_attr")]
#[derive(Debug, Clone, Copy)]
pub struct DeviceAttributes {
    raw: sys::ibv_device_attr,
}

/// The memory accesses with regard to which the atomic operations of a device are atomic
/// (`ibv_atomic_cap`).
#[doc(alias = "ibv_atomic_cap")]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum AtomicCapability {
    /// The device does not support atomics.
    None,
    /// Atomics are atomic with regard to other operations of this device.
    Device,
    /// Atomics are atomic with regard to all accesses to the memory, including accesses by
    /// processors.
    Global,
    /// A value that this crate does not know.
    Unknown(u32),
}

impl DeviceAttributes {
    pub(crate) fn new(raw: sys::ibv_device_attr) -> Self {
        Self { raw }
    }

    /// Returns the firmware version, in the vendor's format.
    pub fn firmware_version(&self) -> String {
        let bytes = self.raw.fw_ver.iter().map(|&byte: &c_char| byte as u8);
        let text: Vec<u8> = bytes.take_while(|&byte| byte != 0).collect();
        String::from_utf8_lossy(&text).into_owned()
    }

    /// Returns the node GUID, a globally unique number that identifies the device.
    pub fn node_guid(&self) -> u64 {
        u64::from_be(self.raw.node_guid)
    }

    /// Returns the system image GUID, a globally unique number that identifies the system that
    /// contains the device.
    pub fn system_image_guid(&self) -> u64 {
        u64::from_be(self.raw.sys_image_guid)
    }

    /// Returns the IEEE id of the vendor.
    pub fn vendor_id(&self) -> u32 {
        self.raw.vendor_id
    }

    /// Returns the number by which the vendor identifies the model of the device.
    pub fn vendor_part_id(&self) -> u32 {
        self.raw.vendor_part_id
    }

    /// Returns the hardware version of the device, in the vendor's numbering.
    pub fn hardware_version(&self) -> u32 {
        self.raw.hw_ver
    }

    /// Returns the number of ports. Port numbers begin with 1.
    pub fn ports(&self) -> u8 {
        self.raw.phys_port_cnt
    }

    /// Returns the optional capabilities that the device supports. [`ExtendedDeviceAttributes`]
    /// also reports capabilities that only newer drivers report.
    ///
    /// [`ExtendedDeviceAttributes`]: super::ExtendedDeviceAttributes
    pub fn capabilities(&self) -> DeviceCapabilities {
        DeviceCapabilities::from_bits_retain(self.raw.device_cap_flags.into())
    }

    /// Returns the memory accesses with regard to which the device's atomic operations are atomic:
    /// accesses by the same device, or all accesses.
    pub fn atomics(&self) -> AtomicCapability {
        use sys::ibv_atomic_cap as raw;
        match self.raw.atomic_cap {
            raw::IBV_ATOMIC_NONE => AtomicCapability::None,
            raw::IBV_ATOMIC_HCA => AtomicCapability::Device,
            raw::IBV_ATOMIC_GLOB => AtomicCapability::Global,
            raw(other) => AtomicCapability::Unknown(other),
        }
    }

    /// Returns the maximum size of a memory region in bytes.
    pub fn max_region_size(&self) -> u64 {
        self.raw.max_mr_size
    }

    /// Returns the supported page sizes: bit `n` means pages of `1 << n` bytes.
    pub fn page_sizes(&self) -> u64 {
        self.raw.page_size_cap
    }

    /// Returns the maximum number of queue pairs of the device.
    pub fn max_queue_pairs(&self) -> usize {
        count(self.raw.max_qp)
    }

    /// Returns the maximum number of outstanding work requests in the send queue, and in the
    /// receive queue, of a queue pair.
    pub fn max_work_requests(&self) -> usize {
        count(self.raw.max_qp_wr)
    }

    /// Returns the maximum number of scatter/gather elements (separate memory ranges) of a work
    /// request.
    pub fn max_elements(&self) -> usize {
        count(self.raw.max_sge)
    }

    /// Returns the maximum number of scatter/gather elements of an RDMA read.
    pub fn max_read_elements(&self) -> usize {
        count(self.raw.max_sge_rd)
    }

    /// Returns the maximum number of completion queues of the device.
    pub fn max_completion_queues(&self) -> usize {
        count(self.raw.max_cq)
    }

    /// Returns the maximum number of entries of a completion queue.
    pub fn max_completions(&self) -> usize {
        count(self.raw.max_cqe)
    }

    /// Returns the maximum number of memory regions that can be registered with the device at the
    /// same time.
    pub fn max_regions(&self) -> usize {
        count(self.raw.max_mr)
    }

    /// Returns the maximum number of memory windows that can exist on the device at the same time.
    pub fn max_windows(&self) -> usize {
        count(self.raw.max_mw)
    }

    /// Returns the maximum number of protection domains of the device.
    pub fn max_protection_domains(&self) -> usize {
        count(self.raw.max_pd)
    }

    /// Returns the maximum number of concurrent RDMA reads and atomics that a queue pair can
    /// process for its peer.
    pub fn max_incoming_reads(&self) -> u8 {
        u8::try_from(self.raw.max_qp_rd_atom).unwrap_or(u8::MAX)
    }

    /// Returns the maximum number of outstanding RDMA reads and atomics of a queue pair.
    pub fn max_outgoing_reads(&self) -> u8 {
        u8::try_from(self.raw.max_qp_init_rd_atom).unwrap_or(u8::MAX)
    }

    /// Returns the maximum number of concurrent RDMA reads and atomics that the device can process
    /// for all peers.
    pub fn max_incoming_reads_in_all(&self) -> usize {
        count(self.raw.max_res_rd_atom)
    }

    /// Returns the maximum number of queue pairs of the device that send and receive raw Ethernet
    /// packets.
    pub fn max_raw_packet_queue_pairs(&self) -> usize {
        count(self.raw.max_raw_ethy_qp)
    }

    /// Returns the maximum number of multicast groups of the device.
    pub fn max_multicast_groups(&self) -> usize {
        count(self.raw.max_mcast_grp)
    }

    /// Returns the maximum number of queue pairs in a multicast group.
    pub fn max_queue_pairs_per_group(&self) -> usize {
        count(self.raw.max_mcast_qp_attach)
    }

    /// Returns the maximum number of queue pairs in all multicast groups together.
    pub fn max_group_members(&self) -> usize {
        count(self.raw.max_total_mcast_qp_attach)
    }

    /// Returns the maximum number of address handles that can exist on the device at the same time.
    pub fn max_address_handles(&self) -> usize {
        count(self.raw.max_ah)
    }

    /// Returns the maximum number of shared receive queues of the device.
    pub fn max_shared_receive_queues(&self) -> usize {
        count(self.raw.max_srq)
    }

    /// Returns the maximum number of outstanding receives of a shared receive queue.
    pub fn max_shared_receive_requests(&self) -> usize {
        count(self.raw.max_srq_wr)
    }

    /// Returns the maximum number of scatter/gather elements of a request of a shared receive
    /// queue.
    pub fn max_shared_receive_elements(&self) -> usize {
        count(self.raw.max_srq_sge)
    }

    /// Returns the maximum number of partitions, which is the length of a port's P_Key table.
    pub fn max_pkeys(&self) -> u16 {
        self.raw.max_pkeys
    }

    /// Returns the maximum time that the device takes to acknowledge a received packet. The
    /// acknowledgement timeout of a peer must be longer (IBTA 11.2.1.2, "Local CA ACK Delay").
    pub fn ack_delay(&self) -> Duration {
        duration_of_exponent(self.raw.local_ca_ack_delay)
    }

    /// Returns the attributes as a C struct. The struct also has fields for features that no
    /// current device supports: reliable datagrams (`max_ee`, `max_rdd`), the old fast memory
    /// regions (`max_fmr`) and raw IPv6.
    pub fn as_raw(&self) -> &sys::ibv_device_attr {
        &self.raw
    }
}

fn count(value: c_int) -> usize {
    usize::try_from(value).unwrap_or(0)
}

/// Returns the duration that the five-bit code `exponent` of the IBTA specification stands for:
/// 4.096 µs times 2 to the power of `exponent`.
pub(super) fn duration_of_exponent(exponent: u8) -> Duration {
    Duration::from_nanos(4096 << (exponent & 0x1f))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_powers_of_two_of_four_microseconds() {
        assert_eq!(duration_of_exponent(0), Duration::from_nanos(4096));
        assert_eq!(duration_of_exponent(14), Duration::from_nanos(4096 << 14));
        assert_eq!(duration_of_exponent(31).as_secs(), 8796);
    }
}
