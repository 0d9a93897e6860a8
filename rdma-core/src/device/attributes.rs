//! What a device can do, and how much of it.

use std::ffi::{c_char, c_int};
use std::time::Duration;

use ibverbs_sys as sys;

use super::DeviceCapabilities;

/// What a device can do and how much of it (`ibv_query_device`).
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

    /// The GUID of the node, as a number.
    pub fn node_guid(&self) -> u64 {
        u64::from_be(self.raw.node_guid)
    }

    /// The GUID of the system that the device is a part of, as a number.
    pub fn system_image_guid(&self) -> u64 {
        u64::from_be(self.raw.sys_image_guid)
    }

    /// The vendor, by its IEEE number.
    pub fn vendor_id(&self) -> u32 {
        self.raw.vendor_id
    }

    /// The vendor's number for the kind of device.
    pub fn vendor_part_id(&self) -> u32 {
        self.raw.vendor_part_id
    }

    /// The hardware's version.
    pub fn hardware_version(&self) -> u32 {
        self.raw.hw_ver
    }

    /// How many ports it has; their numbers begin with 1.
    pub fn ports(&self) -> u8 {
        self.raw.phys_port_cnt
    }

    /// What it can do beyond what every device can. [`ExtendedDeviceAttributes`] has those of newer
    /// devices too.
    ///
    /// [`ExtendedDeviceAttributes`]: super::ExtendedDeviceAttributes
    pub fn capabilities(&self) -> DeviceCapabilities {
        DeviceCapabilities::from_bits_retain(self.raw.device_cap_flags.into())
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

    /// The largest memory region, in bytes.
    pub fn max_region_size(&self) -> u64 {
        self.raw.max_mr_size
    }

    /// The sizes of pages that it can map: bit `n` is `1 << n` bytes.
    pub fn page_sizes(&self) -> u64 {
        self.raw.page_size_cap
    }

    /// The most queue pairs.
    pub fn max_queue_pairs(&self) -> usize {
        count(self.raw.max_qp)
    }

    /// The most work requests outstanding on a send or receive queue.
    pub fn max_work_requests(&self) -> usize {
        count(self.raw.max_qp_wr)
    }

    /// The most scatter/gather elements of a request.
    pub fn max_elements(&self) -> usize {
        count(self.raw.max_sge)
    }

    /// The most scatter/gather elements of an RDMA read.
    pub fn max_read_elements(&self) -> usize {
        count(self.raw.max_sge_rd)
    }

    /// The most completion queues.
    pub fn max_completion_queues(&self) -> usize {
        count(self.raw.max_cq)
    }

    /// The most entries of a completion queue.
    pub fn max_completions(&self) -> usize {
        count(self.raw.max_cqe)
    }

    /// The most memory regions.
    pub fn max_regions(&self) -> usize {
        count(self.raw.max_mr)
    }

    /// The most memory windows.
    pub fn max_windows(&self) -> usize {
        count(self.raw.max_mw)
    }

    /// The most protection domains.
    pub fn max_protection_domains(&self) -> usize {
        count(self.raw.max_pd)
    }

    /// The most RDMA reads and atomics of a peer that a queue pair can have at work.
    pub fn max_incoming_reads(&self) -> u8 {
        u8::try_from(self.raw.max_qp_rd_atom).unwrap_or(u8::MAX)
    }

    /// The most RDMA reads and atomics that a queue pair can have outstanding.
    pub fn max_outgoing_reads(&self) -> u8 {
        u8::try_from(self.raw.max_qp_init_rd_atom).unwrap_or(u8::MAX)
    }

    /// The most RDMA reads and atomics of peers that the whole device can have at work.
    pub fn max_incoming_reads_in_all(&self) -> usize {
        count(self.raw.max_res_rd_atom)
    }

    /// The most queue pairs for raw Ethernet packets.
    pub fn max_raw_packet_queue_pairs(&self) -> usize {
        count(self.raw.max_raw_ethy_qp)
    }

    /// The most multicast groups.
    pub fn max_multicast_groups(&self) -> usize {
        count(self.raw.max_mcast_grp)
    }

    /// The most queue pairs of a multicast group.
    pub fn max_queue_pairs_per_group(&self) -> usize {
        count(self.raw.max_mcast_qp_attach)
    }

    /// The most queue pairs of all multicast groups together.
    pub fn max_group_members(&self) -> usize {
        count(self.raw.max_total_mcast_qp_attach)
    }

    /// The most address handles.
    pub fn max_address_handles(&self) -> usize {
        count(self.raw.max_ah)
    }

    /// The most shared receive queues.
    pub fn max_shared_receive_queues(&self) -> usize {
        count(self.raw.max_srq)
    }

    /// The most work requests outstanding on a shared receive queue.
    pub fn max_shared_receive_requests(&self) -> usize {
        count(self.raw.max_srq_wr)
    }

    /// The most scatter/gather elements of a request of a shared receive queue.
    pub fn max_shared_receive_elements(&self) -> usize {
        count(self.raw.max_srq_sge)
    }

    /// The most partitions, which is the length of a port's P_Key table.
    pub fn max_pkeys(&self) -> u16 {
        self.raw.max_pkeys
    }

    /// How long after a packet its acknowledgement can leave at worst: what a peer's timeout must
    /// allow for (IBTA 11.2.1.2, "Local CA ACK Delay").
    pub fn ack_delay(&self) -> Duration {
        four_microseconds_to_the(self.raw.local_ca_ack_delay)
    }

    /// The C struct, which also has the fields of what no device has any more: reliable datagrams
    /// (`max_ee`, `max_rdd`), fast memory regions of old (`max_fmr`), raw IPv6.
    pub fn as_raw(&self) -> &sys::ibv_device_attr {
        &self.raw
    }
}

fn count(value: c_int) -> usize {
    usize::try_from(value).unwrap_or(0)
}

/// 4.096 µs times 2 to this power: how IBTA writes times. The power has five bits.
pub(super) fn four_microseconds_to_the(exponent: u8) -> Duration {
    Duration::from_nanos(4096 << (exponent & 0x1f))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_powers_of_two_of_four_microseconds() {
        assert_eq!(four_microseconds_to_the(0), Duration::from_nanos(4096));
        assert_eq!(
            four_microseconds_to_the(14),
            Duration::from_nanos(4096 << 14)
        );
        assert_eq!(four_microseconds_to_the(31).as_secs(), 8796);
    }
}
