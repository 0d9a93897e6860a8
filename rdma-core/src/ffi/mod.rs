//! The only place with `unsafe`: owners of verbs objects, and the memory that devices touch.
//!
//! Each handle owns exactly one verbs object, keeps its parents alive by `Arc`, and destroys it
//! once, when dropped. The functions on handles are safe: what the verb demands of its caller is
//! kept by the handle's own invariants, which the comments name.

mod access;
mod address_handle;
mod advice;
mod allocation;
mod batch;
mod borrowed;
mod channel;
pub(crate) mod cm;
mod completion_queue;
mod completion_record;
mod completion_session;
mod context;
mod counters;
mod device;
mod device_memory;
mod elements;
mod event;
mod exposed;
mod extended_queue;
mod flow;
mod fork;
mod from_raw;
mod in_flight;
mod multicast;
mod owner;
mod posting;
mod protection_domain;
mod queue_pair;
mod queue_pair_plan;
mod queue_pair_remains;
mod raw_completion;
mod receive_batch;
mod receive_ring;
mod region;
mod request;
mod request_id;
mod reregister;
mod ring;
mod send_batch;
mod send_ring;
mod shared;
mod shared_receive_queue;
mod shared_receive_slots;
mod slot_table;
mod slots_batch;
mod span;
mod stash;
mod unmapped;
mod xrc_domain;

pub(crate) use address_handle::{AddressHandleOwner, vector_of_completion};
pub(crate) use advice::advise;
pub(crate) use allocation::Allocation;
pub(crate) use borrowed::{Borrowed, BorrowedMut};
pub(crate) use channel::ChannelHandle;
pub(crate) use completion_queue::CompletionQueueHandle;
pub(crate) use completion_record::{empty_completion, raw_immediate, raw_invalidated_key};
pub(crate) use completion_session::Session;
pub(crate) use context::ContextHandle;
pub(crate) use counters::CountersHandle;
pub(crate) use device::{DeviceHandle, device_list, interface_name};
pub(crate) use device_memory::DeviceMemoryHandle;
pub(crate) use elements::ElementList;
pub(crate) use event::{DEVICE_SPEED_CHANGE, RawEvent};
pub(crate) use exposed::Exposed;
pub(crate) use extended_queue::ExtendedSettings;
pub(crate) use flow::FlowHandle;
pub(crate) use fork::{fork_init, fork_status};
pub(crate) use in_flight::Slots;
pub(crate) use multicast::AttachedQueuePair;
pub(crate) use owner::Backing;
pub use owner::{StableMemory, StableMemoryMut};
pub(crate) use protection_domain::{ProtectionDomainHandle, ThreadDomainHandle};
pub(crate) use queue_pair::{
    QueuePairHandle, QueuePairSizes, empty_attributes, gid_bytes, set_destination,
};
pub(crate) use queue_pair_plan::QueuePairPlan;
pub(crate) use receive_batch::ReceiveStaging;
pub(crate) use receive_ring::ReceiveRing;
pub(crate) use region::{RegionHandle, Registering};
pub(crate) use reregister::{Changes, Remains};
pub(crate) use ring::Unstaged;
pub(crate) use send_batch::SendStaging;
pub(crate) use send_ring::SendRing;
pub(crate) use shared::{Reading, Shared, Writing};
pub(crate) use shared_receive_queue::{SharedReceiveQueueHandle, SharedReceiveSizes};
pub(crate) use shared_receive_slots::SharedReceiveSlots;
pub(crate) use slot_table::Reserved;
pub(crate) use slots_batch::SlotsStaging;
pub(crate) use span::Span;
pub(crate) use unmapped::UnmappedHandle;
pub(crate) use xrc_domain::XrcDomainHandle;
