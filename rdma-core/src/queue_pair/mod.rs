//! Queue pairs: making and connecting them, and posting work to them.
//!
//! A queue pair is made with [`ProtectionDomain::queue_pair`](crate::ProtectionDomain::queue_pair)
//! as a [`PreparedQueuePair`], which can receive but not send; the two ends exchange their
//! [`Endpoint`]s by any means, and [`PreparedQueuePair::connect`] gives the [`QueuePair`].
//!
//! Work is posted through a queue that keeps the memory of each request until it has completed:
//!
//! | queue | shared | a request's memory |
//! |---|---|---|
//! | [`SendQueue`], [`ReceiveQueue`] | one owner, `&mut self` | a ring in the order of posting; requests may be unsignaled |
//! | [`ConcurrentSendQueue`], [`ConcurrentReceiveQueue`] | any thread, `&self`, no lock | a slot, reserved before posting |
//!
//! A batch ([`SendQueue::batch`] and its like) hands many requests to the device in one call.
//! Requests with borrowed memory are posted in a [`QueuePair::scope`], which waits for them.

#![forbid(unsafe_code)]

mod attribute_mask;
mod attributes;
mod batch;
mod builder;
mod concurrent;
mod concurrent_batch;
mod connect;
mod connected;
mod control;
mod datagram;
mod diagnosis;
mod endpoint;
mod establishment;
mod inline;
mod manual;
mod modification;
mod modify;
mod operations;
mod parts;
mod prepared;
mod queues;
mod refusal;
mod request;
mod scope;
mod state;
mod transition;
mod transport;

pub use crate::ffi::{
    RawElements, RawPostError, RawSendRequest, RawSession, Scope, raw_receive_request,
};
pub use attribute_mask::AttributeMask;
pub use attributes::{Arrival, DataOrder, QueuePairAttributes};
pub use batch::{BatchError, ReceiveBatch, SendBatch, Unposted};
pub use builder::QueuePairBuilder;
pub use concurrent::{ConcurrentReceiveQueue, ConcurrentSendQueue, ReservedSlot};
pub use concurrent_batch::{ConcurrentReceiveBatch, ConcurrentSendBatch};
pub use connect::ConnectOptions;
pub use connected::QueuePair;
pub use control::RateLimit;
pub use datagram::DatagramOptions;
pub use endpoint::Endpoint;
pub use establishment::EnhancedEstablishment;
pub use inline::InlineData;
pub use manual::ManualQueuePair;
pub use modification::{AlternatePath, MigrationState, Modification, QueuePairCapacities};
pub(crate) use modify::modify;
pub use operations::{QueuePairCreateFlags, SendOperations};
pub use prepared::PreparedQueuePair;
pub use queues::{PostError, ReceiveQueue, Retired, SendQueue};
pub use refusal::{ModificationFlaw, RefusedModification};
pub(crate) use request::{Description, KeepAlive, Operation, Outcome, SendFlags, Target};
pub use request::{Placement, SendRequest};
pub use scope::{CompletedRequest, FailedRequest, PendingRequest};
pub use state::QueuePairState;
pub use transport::Transport;
