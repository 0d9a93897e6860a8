//! Safe, synchronous RDMA.
//!
//! Every verbs object is an owned value that keeps its parents alive, so that nothing is destroyed
//! too early and no lifetimes are in the way:
//!
//! ```text
//! Device -> Context -> ProtectionDomain -> Buffer, ExposedMemory, MemoryWindow
//!              |              |
//!              |              +----------> PreparedQueuePair -> QueuePair -> SendQueue, ReceiveQueue
//!              |              +----------> SharedReceiveQueue, AddressHandle
//!              +-> CompletionChannel, CompletionQueue, XrcDomain
//! ```
//!
//! # What it does
//!
//! - Objects are made by their parents and destroyed when the last handle is dropped, in an order
//!   that works whatever the order of the drops.
//! - Posting takes the memory by value and completing gives it back, so that safe code cannot look
//!   at memory that the device is writing, nor free it: [`memory`] has the rules.
//! - Ports and GIDs are chosen, with the reason logged, unless the program says which:
//!   [`Context::address`].
//! - Errors name the verb, the object, the `errno` and what to do.
//! - No allocation, hash or lock of this crate for an operation, but for completions that are polled
//!   by one part of the program, a scope or a drain, and are another's, and for a thread's first
//!   [batch](SendBatch).
//! - Objects are [`Send`], and `Sync` where the verbs are.
//!
//! # Three ways to post
//!
//! | way | memory of a request | cost of this crate |
//! |---|---|---|
//! | [`SendQueue`], [`ReceiveQueue`] and their concurrent kin | moved in, and back with the completion | a slot |
//! | [`QueuePair::scope`] | borrowed, for as long as the scope | a slot, and a wait at the end |
//! | [`QueuePair::post_send_raw`] and its kin, `unsafe` | what the pointers say | none |
//!
//! All three take batches, and either of verbs' posting functions. The book's table of capabilities
//! lists everything that verbs have, and where each part of it is shown to work.
//!
//! # What it does not do
//!
//! This crate knows no runtime and spawns no thread. Its methods wait only where their documentation
//! says so, such as [`CompletionChannel::wait`], [`AsyncEvents::wait`] and the blocking half of
//! [`cm`].
//!
//! # Example
//!
//! Two queue pairs of one process, and eight bytes from one to the other:
//!
//! ```
//! use rdma_core::{AccessFlags, ConnectOptions, Context, SendRequest, WorkCompletion};
//!
//! let context = Context::open_default()?;
//! let domain = context.protection_domain()?;
//! let (left, right) = (domain.queue_pair().build()?, domain.queue_pair().build()?);
//! let (to_right, to_left) = (right.endpoint(), left.endpoint());
//! let options = ConnectOptions::default();
//! let (left, _right) = (left.connect(&to_right, &options)?, right.connect(&to_left, &options)?);
//!
//! let target = domain.allocate(8)?.expose(AccessFlags::REMOTE_WRITE)?;
//! let mut source = domain.allocate(8)?;
//! source.copy_from_slice(b"verbatim");
//!
//! let mut queue = left.send_queue();
//! queue.post(SendRequest::write(source, target.remote())).map_err(|refused| refused.error)?;
//! let mut room = [WorkCompletion::default()];
//! let source = loop {
//!     if let [completion] = left.send_completions().poll(&mut room)? {
//!         completion.result()?;
//!         break queue.complete(completion).next();
//!     }
//! };
//! let target = target.revoke()?;
//! assert_eq!(source.as_deref(), Some(&*target));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Trust
//!
//! Everything here is sound against any peer: memory that peers can write is never a Rust slice,
//! and no device writes to memory that is a slice. The crate relies on the device and its driver to
//! keep the promises of verbs, above all not to touch memory after its deregistration or its queue
//! pair's destruction. [`memory`] tells what that means, what depends on a correct peer, what
//! relaxed ordering takes away and what `fork` does.
//!
//! # Environment
//!
//! | variable | meaning |
//! |---|---|
//! | `RDMA_DEVICE` | the device, and perhaps port, of [`Context::open_default`]: see [`DeviceSelector`] |
//! | `RDMA_GID_INDEX` | the GID index where the program names none: a number, or `auto` |

#![deny(unsafe_code)]

pub mod address;
pub mod cm;
pub mod completion;
mod context;
pub mod device;
mod error;
mod event;
#[allow(
    unsafe_code,
    reason = "the one place that calls verbs and owns what devices touch"
)]
mod ffi;
pub mod memory;
mod protection_domain;
pub mod queue_pair;
pub mod receive;
mod refused;

pub use address::{
    AddressHandle, AddressVector, Counter, Counters, DatagramHeader, Destination, EthernetMatch,
    Flow, FlowRule, GlobalRouteHeader, GroupMembership, Ipv4Header, Ipv4Match, Ipv6Match,
    PortMatch, StaticRate, multicast_gid,
};
pub use cm::{
    AddressInfo, AddressQuery, Connection, ConnectionError, ConnectionEvent, ConnectionEventKind,
    ConnectionId, ConnectionIdOption, ConnectionParameters, ConnectionRequest, ConnectionStep,
    Connector, DatagramPeer, EventChannel, EventStatus, Incoming, Listener, ListenerBuilder,
    MulticastMember, PeerParameters, PortSpace, PreparedConnection, RejectReason, ResolvedPeer,
};
pub use completion::{
    CompletionChannel, CompletionFields, CompletionQueue, CompletionQueueBuilder,
    CompletionQueueId, CompletionTag, ExtendedCompletion, ExtendedCompletionQueue,
    ExtendedCompletionQueueBuilder, PolledCompletions, StatusClass, WorkCompletion, WorkError,
    WorkOpcode, WorkStatus,
};
pub use context::Context;
pub use device::{
    AddressChoice, AtomicCapability, AtomicSizes, Device, DeviceAttributes, DeviceCapabilities,
    DeviceClock, DeviceInfo, DeviceSelector, ExtendedDeviceAttributes, Gid, GidEntry, GidType,
    HashFields, HashFunctions, LinkLayer, LinkSpeed, LinkWidth, LocalAddress,
    ModerationCapabilities, Mtu, NodeType, OnDemandCapabilities, OnDemandOperations,
    OnDemandPaging, PacingCapabilities, PartitionKey, PciAtomicCapabilities, PhysicalState,
    PortAttributes, PortCapabilities, PortCapabilities2, PortFlags, PortInfo, PortState, Protocol,
    QueuePairKinds, RawPacketCapabilities, SegmentationCapabilities, SpreadingCapabilities,
    TagMatchingCapabilities, TagMatchingFlags, TransportType, devices,
};
pub use error::{Errno, Error, Result};
pub use event::{AsyncEvent, AsyncEventObject, AsyncEvents};
pub use memory::{
    AccessFlags, Buffer, BufferSlice, BufferSliceMut, Claim, DetachedMemory, DeviceMemory,
    ExposedMemory, ForkStatus, FrozenBuffer, Gather, HostMemory, HostMemoryBuilder, HugePages,
    LeaseState, Left, LentMemory, MemoryWindow, Pages, Part, Prefetch, ReadClaim, Registration,
    RemoteMemory, ReregisterError, Reregistered, Reregistration, Scatter, SharedBuffer,
    StableMemory, StableMemoryMut, UnmappedRegion, VolatileSlice, WindowLease, WindowType,
    WriteClaim, fork_init, fork_status,
};
pub use memory::{AtomicResult, BorrowedMemory, Tagged};
pub use protection_domain::{ProtectionDomain, ThreadDomain};
pub use queue_pair::{
    AlternatePath, Arrival, AttributeMask, ConcurrentReceiveQueue, ConcurrentSendQueue,
    ConnectOptions, DataOrder, DatagramOptions, DetachedSlot, Endpoint, EnhancedEstablishment,
    ManualQueuePair, MigrationState, Modification, ModificationFlaw, PostError, PreparedQueuePair,
    QueuePair, QueuePairAttributes, QueuePairBuilder, QueuePairCapacities, QueuePairCreateFlags,
    QueuePairMap, QueuePairState, RateLimit, ReceiveQueue, RefusedModification, ReservedSlot,
    SendOperations, SendQueue, SendRequest, Transport,
};
pub use queue_pair::{
    BatchError, CompletedMemory, CompletedRequest, CompletedSlots, ConcurrentReceiveBatch,
    ConcurrentSendBatch, FailedRequest, InlineData, PendingRequest, Placement, RawElements,
    RawPostError, RawSendRequest, RawSession, ReceiveBatch, Scope, SendBatch, Unposted,
    raw_receive_request,
};
pub use receive::{
    SharedReceiveBatch, SharedReceiveQueue, SharedReceiveQueueAttributes,
    SharedReceiveQueueBuilder, SharedReceiveQueueId, XrcDomain, XrcDomainOpening,
};
pub use refused::Refused;
