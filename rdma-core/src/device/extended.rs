//! Extended device attributes, which only newer devices and drivers report.

use std::ops::{Deref, RangeInclusive};
use std::time::Duration;

use ibverbs_sys as sys;

use super::{
    AtomicSizes, DeviceAttributes, DeviceCapabilities, HashFields, HashFunctions,
    OnDemandOperations, OnDemandPaging, QueuePairKinds, RawPacketCapabilities, TagMatchingFlags,
};

/// The capabilities and limits of a device that `ibv_query_device_ex` reports. The type
/// dereferences to the basic [`DeviceAttributes`]. A value that the device or its driver does not
/// report is zero, empty or `None`.
///
/// ```
/// let context = rdma_core::Context::open_default()?;
/// let attributes = context.extended_attributes()?;
/// match attributes.max_device_memory() {
///     0 => println!("{} has no memory of its own", context.name()),
///     bytes => println!("{} has {bytes} bytes of memory of its own", context.name()),
/// }
/// # Ok::<(), rdma_core::Error>(())
/// ```
#[doc(alias = "ibv_device_attr_ex")]
#[derive(Debug, Clone, Copy)]
pub struct ExtendedDeviceAttributes {
    basic: DeviceAttributes,
    raw: sys::ibv_device_attr_ex,
}

/// The operations that a device supports on memory with on-demand paging, for each transport.
#[doc(alias = "ibv_odp_caps")]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct OnDemandCapabilities {
    /// The support for on-demand paging that does not depend on the transport.
    pub general: OnDemandPaging,
    /// The operations that reliable connections (RC) support.
    pub reliable_connected: OnDemandOperations,
    /// The operations that unreliable connections (UC) support.
    pub unreliable_connected: OnDemandOperations,
    /// The operations that datagram queue pairs (UD) support.
    pub datagram: OnDemandOperations,
    /// The operations that extended reliable connections (XRC) support.
    pub xrc: OnDemandOperations,
}

/// The limits of TCP segmentation offload (TSO), which splits large sends into packets.
#[doc(alias = "ibv_tso_caps")]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct SegmentationCapabilities {
    /// Maximum payload of a segmented send in bytes.
    pub max_payload: u32,
    /// The queue pair types that support segmentation.
    pub queue_pairs: QueuePairKinds,
}

/// The limits of receive side scaling (RSS), which distributes received packets over queues.
#[doc(alias = "ibv_rss_caps")]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct ReceiveScalingCapabilities {
    /// The queue pair types whose received packets the device can distribute.
    pub queue_pairs: QueuePairKinds,
    /// Maximum number of indirection tables, which assign packets to queues by their hash.
    pub max_tables: u32,
    /// Maximum number of queues in an indirection table.
    pub max_table_size: u32,
    /// The packet fields from which the device can compute the hash.
    pub fields: HashFields,
    /// The hash functions that the device offers.
    pub functions: HashFunctions,
}

/// The limits of packet pacing, by which a device limits the rate at which a queue pair sends.
#[doc(alias = "ibv_packet_pacing_caps")]
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct PacingCapabilities {
    /// The range of supported rates in kbit/s.
    pub kilobits_per_second: RangeInclusive<u32>,
    /// The queue pair types that support rate limits.
    pub queue_pairs: QueuePairKinds,
}

/// The limits of tag matching, by which a device assigns each received message to a posted receive
/// with the same tag.
#[doc(alias = "ibv_tm_caps")]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct TagMatchingCapabilities {
    /// Maximum length of the header of a rendezvous request in bytes.
    pub max_rendezvous_header: u32,
    /// Maximum number of tags in a list.
    pub max_tags: u32,
    /// The transports that support tag matching.
    pub flags: TagMatchingFlags,
    /// Maximum number of outstanding operations on tag lists.
    pub max_operations: u32,
    /// Maximum number of scatter/gather elements of a tagged receive.
    pub max_elements: u32,
}

/// The limits of completion event moderation, by which one event reports several completions.
#[doc(alias = "ibv_cq_moderation_caps")]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct ModerationCapabilities {
    /// Maximum number of completions that one event can combine.
    pub max_count: u16,
    /// Maximum delay of a completion event.
    pub max_period: Duration,
}

/// The operand sizes for which the device can issue atomic operations over PCI. Such an operation
/// is also atomic with regard to accesses of processors.
#[doc(alias = "ibv_pci_atomic_caps")]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct PciAtomicCapabilities {
    /// Operand sizes of fetch-and-add.
    pub fetch_add: AtomicSizes,
    /// Operand sizes of swap.
    pub swap: AtomicSizes,
    /// Operand sizes of compare-and-swap.
    pub compare_swap: AtomicSizes,
}

impl ExtendedDeviceAttributes {
    pub(crate) fn new(raw: sys::ibv_device_attr_ex) -> Self {
        let basic = DeviceAttributes::new(raw.orig_attr);
        Self { basic, raw }
    }

    /// Returns the optional capabilities that the device supports.
    pub fn capabilities(&self) -> DeviceCapabilities {
        let extended = DeviceCapabilities::from_bits_retain(self.raw.device_cap_flags_ex);
        extended | self.basic.capabilities()
    }

    /// Returns the operations that the device supports on memory with on-demand paging.
    pub fn on_demand_paging(&self) -> OnDemandCapabilities {
        let caps = &self.raw.odp_caps;
        let of = OnDemandOperations::from_bits_retain;
        OnDemandCapabilities {
            general: OnDemandPaging::from_bits_retain(caps.general_caps),
            reliable_connected: of(caps.per_transport_caps.rc_odp_caps),
            unreliable_connected: of(caps.per_transport_caps.uc_odp_caps),
            datagram: of(caps.per_transport_caps.ud_odp_caps),
            xrc: of(self.raw.xrc_odp_caps),
        }
    }

    /// Returns the mask of the bits that are valid in a completion's timestamp, or `None` if
    /// completions have no timestamps. [`Context::clock`](crate::Context::clock) returns the clock
    /// that the timestamps come from.
    pub fn timestamp_mask(&self) -> Option<u64> {
        Some(self.raw.completion_timestamp_mask).filter(|&mask| mask != 0)
    }

    /// Returns the frequency of the device's clock in kHz, or `None` if the device does not report
    /// the frequency.
    #[doc(alias = "hca_core_clock")]
    pub fn clock_kilohertz(&self) -> Option<u64> {
        Some(self.raw.hca_core_clock).filter(|&frequency| frequency != 0)
    }

    /// Returns the limits of TCP segmentation offload (TSO), or `None` if the device does not
    /// support TSO.
    pub fn segmentation(&self) -> Option<SegmentationCapabilities> {
        let caps = &self.raw.tso_caps;
        (caps.max_tso != 0).then(|| SegmentationCapabilities {
            max_payload: caps.max_tso,
            queue_pairs: QueuePairKinds::from_bits_retain(caps.supported_qpts),
        })
    }

    /// Returns the limits of receive side scaling (RSS), or `None` if the device does not support
    /// RSS.
    pub fn receive_side_scaling(&self) -> Option<ReceiveScalingCapabilities> {
        let caps = &self.raw.rss_caps;
        (caps.supported_qpts != 0).then(|| ReceiveScalingCapabilities {
            queue_pairs: QueuePairKinds::from_bits_retain(caps.supported_qpts),
            max_tables: caps.max_rwq_indirection_tables,
            max_table_size: caps.max_rwq_indirection_table_size,
            fields: HashFields::from_bits_retain(caps.rx_hash_fields_mask),
            functions: HashFunctions::from_bits_retain(caps.rx_hash_function),
        })
    }

    /// Returns the maximum number of receive work queues, which receive side scaling uses.
    #[doc(alias = "max_wq_type_rq")]
    pub fn max_receive_work_queues(&self) -> u32 {
        self.raw.max_wq_type_rq
    }

    /// Returns the limits of packet pacing, or `None` if the device does not support packet pacing.
    pub fn pacing(&self) -> Option<PacingCapabilities> {
        let caps = &self.raw.packet_pacing_caps;
        (caps.qp_rate_limit_max != 0).then(|| PacingCapabilities {
            kilobits_per_second: caps.qp_rate_limit_min..=caps.qp_rate_limit_max,
            queue_pairs: QueuePairKinds::from_bits_retain(caps.supported_qpts),
        })
    }

    /// Returns the optional features that the device supports for raw packets.
    pub fn raw_packets(&self) -> RawPacketCapabilities {
        RawPacketCapabilities::from_bits_retain(self.raw.raw_packet_caps)
    }

    /// Returns the limits of tag matching, or `None` if the device does not support tag matching.
    pub fn tag_matching(&self) -> Option<TagMatchingCapabilities> {
        let caps = &self.raw.tm_caps;
        (caps.max_num_tags != 0).then(|| TagMatchingCapabilities {
            max_rendezvous_header: caps.max_rndv_hdr_size,
            max_tags: caps.max_num_tags,
            flags: TagMatchingFlags::from_bits_retain(caps.flags),
            max_operations: caps.max_ops,
            max_elements: caps.max_sge,
        })
    }

    /// Returns the limits of completion event moderation, or `None` if the device does not support
    /// moderation.
    pub fn moderation(&self) -> Option<ModerationCapabilities> {
        let caps = &self.raw.cq_mod_caps;
        (caps.max_cq_count != 0 && caps.max_cq_period != 0).then(|| ModerationCapabilities {
            max_count: caps.max_cq_count,
            max_period: Duration::from_micros(caps.max_cq_period.into()),
        })
    }

    /// Returns the maximum size of device memory in bytes; 0 if the device has no memory for
    /// programs.
    #[doc(alias = "max_dm_size")]
    pub fn max_device_memory(&self) -> u64 {
        self.raw.max_dm_size
    }

    /// Returns the operand sizes with which the device can issue atomic operations over PCI.
    pub fn pci_atomics(&self) -> PciAtomicCapabilities {
        let caps = &self.raw.pci_atomic_caps;
        PciAtomicCapabilities {
            fetch_add: AtomicSizes::from_bits_retain(caps.fetch_add),
            swap: AtomicSizes::from_bits_retain(caps.swap),
            compare_swap: AtomicSizes::from_bits_retain(caps.compare_swap),
        }
    }

    /// Returns the number of ports of the device. Unlike the result of [`DeviceAttributes::ports`],
    /// the number can be larger than 255.
    #[doc(alias = "phys_port_cnt_ex")]
    pub fn all_ports(&self) -> u32 {
        self.raw.phys_port_cnt_ex.max(self.basic.ports().into())
    }

    /// Returns the attributes as a C struct.
    pub fn as_raw(&self) -> &sys::ibv_device_attr_ex {
        &self.raw
    }
}

impl Deref for ExtendedDeviceAttributes {
    type Target = DeviceAttributes;

    fn deref(&self) -> &DeviceAttributes {
        &self.basic
    }
}
