//! What newer devices can do.

use std::ops::{Deref, RangeInclusive};
use std::time::Duration;

use ibverbs_sys as sys;

use super::{
    AtomicSizes, DeviceAttributes, DeviceCapabilities, HashFields, HashFunctions,
    OnDemandOperations, OnDemandPaging, QueuePairKinds, RawPacketCapabilities, TagMatchingFlags,
};

/// What a device can do, with what `ibv_query_device_ex` tells beyond [`DeviceAttributes`], which
/// this derefs to. What the device or its driver does not tell is zero, empty or `None`.
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

/// What a device can do with memory that is not pinned: each transport's operations.
#[doc(alias = "ibv_odp_caps")]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct OnDemandCapabilities {
    /// Whether there is any.
    pub general: OnDemandPaging,
    /// Reliable connections.
    pub reliable_connected: OnDemandOperations,
    /// Unreliable connections.
    pub unreliable_connected: OnDemandOperations,
    /// Datagrams.
    pub datagram: OnDemandOperations,
    /// Extended reliable connections.
    pub xrc: OnDemandOperations,
}

/// Splitting large sends of TCP into packets.
#[doc(alias = "ibv_tso_caps")]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct SegmentationCapabilities {
    /// The largest payload to split, in bytes.
    pub max_payload: u32,
    /// With which queue pairs.
    pub queue_pairs: QueuePairKinds,
}

/// Spreading received packets over queues.
#[doc(alias = "ibv_rss_caps")]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct SpreadingCapabilities {
    /// With which queue pairs.
    pub queue_pairs: QueuePairKinds,
    /// The most indirection tables.
    pub max_tables: u32,
    /// The most queues in one table.
    pub max_table_size: u32,
    /// By which of a packet's fields.
    pub fields: HashFields,
    /// By which functions of them.
    pub functions: HashFunctions,
}

/// Limiting the rate of a queue pair.
#[doc(alias = "ibv_packet_pacing_caps")]
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct PacingCapabilities {
    /// The rates to choose from, in kbit/s.
    pub kilobits_per_second: RangeInclusive<u32>,
    /// With which queue pairs.
    pub queue_pairs: QueuePairKinds,
}

/// Matching messages to receives by their tags.
#[doc(alias = "ibv_tm_caps")]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct TagMatchingCapabilities {
    /// The largest header of a rendezvous request, in bytes.
    pub max_rendezvous_header: u32,
    /// The most tags in a list.
    pub max_tags: u32,
    /// What it works with.
    pub flags: TagMatchingFlags,
    /// The most operations on lists outstanding.
    pub max_operations: u32,
    /// The most scatter/gather elements of a receive with a tag.
    pub max_elements: u32,
}

/// Announcing completions not one by one.
#[doc(alias = "ibv_cq_moderation_caps")]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct ModerationCapabilities {
    /// After how many completions at most.
    pub max_count: u16,
    /// After which time at most.
    pub max_period: Duration,
}

/// Atomics on memory behind PCI.
#[doc(alias = "ibv_pci_atomic_caps")]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct PciAtomicCapabilities {
    /// Fetch and add.
    pub fetch_add: AtomicSizes,
    /// Swap.
    pub swap: AtomicSizes,
    /// Compare and swap.
    pub compare_swap: AtomicSizes,
}

impl ExtendedDeviceAttributes {
    pub(crate) fn new(raw: sys::ibv_device_attr_ex) -> Self {
        let basic = DeviceAttributes::new(raw.orig_attr);
        Self { basic, raw }
    }

    /// What it can do beyond what every device can.
    pub fn capabilities(&self) -> DeviceCapabilities {
        let extended = DeviceCapabilities::from_bits_retain(self.raw.device_cap_flags_ex);
        extended | self.basic.capabilities()
    }

    /// What it can do with memory that is not pinned.
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

    /// Which bits of a completion's timestamp count; `None` where completions have none. The
    /// timestamps are of the clock that [`Context::clock`](crate::Context::clock) reads.
    pub fn timestamp_mask(&self) -> Option<u64> {
        Some(self.raw.completion_timestamp_mask).filter(|&mask| mask != 0)
    }

    /// How fast its clock ticks, in kHz; `None` where it does not tell.
    #[doc(alias = "hca_core_clock")]
    pub fn clock_kilohertz(&self) -> Option<u64> {
        Some(self.raw.hca_core_clock).filter(|&frequency| frequency != 0)
    }

    /// Splitting large sends of TCP into packets.
    pub fn segmentation(&self) -> Option<SegmentationCapabilities> {
        let caps = &self.raw.tso_caps;
        (caps.max_tso != 0).then(|| SegmentationCapabilities {
            max_payload: caps.max_tso,
            queue_pairs: QueuePairKinds::from_bits_retain(caps.supported_qpts),
        })
    }

    /// Spreading received packets over queues.
    pub fn spreading(&self) -> Option<SpreadingCapabilities> {
        let caps = &self.raw.rss_caps;
        (caps.supported_qpts != 0).then(|| SpreadingCapabilities {
            queue_pairs: QueuePairKinds::from_bits_retain(caps.supported_qpts),
            max_tables: caps.max_rwq_indirection_tables,
            max_table_size: caps.max_rwq_indirection_table_size,
            fields: HashFields::from_bits_retain(caps.rx_hash_fields_mask),
            functions: HashFunctions::from_bits_retain(caps.rx_hash_function),
        })
    }

    /// The most work queues for receiving, which spreading needs.
    #[doc(alias = "max_wq_type_rq")]
    pub fn max_receive_work_queues(&self) -> u32 {
        self.raw.max_wq_type_rq
    }

    /// Limiting the rate of a queue pair.
    pub fn pacing(&self) -> Option<PacingCapabilities> {
        let caps = &self.raw.packet_pacing_caps;
        (caps.qp_rate_limit_max != 0).then(|| PacingCapabilities {
            kilobits_per_second: caps.qp_rate_limit_min..=caps.qp_rate_limit_max,
            queue_pairs: QueuePairKinds::from_bits_retain(caps.supported_qpts),
        })
    }

    /// What it can do with raw packets.
    pub fn raw_packets(&self) -> RawPacketCapabilities {
        RawPacketCapabilities::from_bits_retain(self.raw.raw_packet_caps)
    }

    /// Matching messages to receives by their tags.
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

    /// Announcing completions not one by one.
    pub fn moderation(&self) -> Option<ModerationCapabilities> {
        let caps = &self.raw.cq_mod_caps;
        (caps.max_cq_count != 0 && caps.max_cq_period != 0).then(|| ModerationCapabilities {
            max_count: caps.max_cq_count,
            max_period: Duration::from_micros(caps.max_cq_period.into()),
        })
    }

    /// How much memory of its own it has, in bytes.
    #[doc(alias = "max_dm_size")]
    pub fn max_device_memory(&self) -> u64 {
        self.raw.max_dm_size
    }

    /// Atomics on memory behind PCI.
    pub fn pci_atomics(&self) -> PciAtomicCapabilities {
        let caps = &self.raw.pci_atomic_caps;
        PciAtomicCapabilities {
            fetch_add: AtomicSizes::from_bits_retain(caps.fetch_add),
            swap: AtomicSizes::from_bits_retain(caps.swap),
            compare_swap: AtomicSizes::from_bits_retain(caps.compare_swap),
        }
    }

    /// How many ports it has, also where they are more than [`DeviceAttributes::ports`] can say.
    #[doc(alias = "phys_port_cnt_ex")]
    pub fn all_ports(&self) -> u32 {
        self.raw.phys_port_cnt_ex.max(self.basic.ports().into())
    }

    /// The C struct.
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
