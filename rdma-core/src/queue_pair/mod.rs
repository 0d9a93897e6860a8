//! Queue pairs: creation, connection, and posting of requests.
//!
//! [`ProtectionDomain::queue_pair`](crate::ProtectionDomain::queue_pair) creates a queue pair as a
//! [`PreparedQueuePair`], which can receive but not send. The two sides exchange their
//! [`Endpoint`]s by a means of their choice, and [`PreparedQueuePair::connect`] returns the
//! [`QueuePair`]. For a transport without a peer ([`Transport`]), [`PreparedQueuePair::activate`]
//! returns the [`QueuePair`].
//!
//! # States
//!
//! | type | [`QueuePairState`] | queues | converts to |
//! |---|---|---|---|
//! | [`ManualQueuePair`], by [`QueuePairBuilder::create`] | any | none | [`prepared`](ManualQueuePair::prepared) in INIT, [`connected`](ManualQueuePair::connected) or [`activated`](ManualQueuePair::activated) in RTS |
//! | [`PreparedQueuePair`], by [`QueuePairBuilder::build`] | INIT | receives | [`connect`](PreparedQueuePair::connect), [`activate`](PreparedQueuePair::activate), [`manual`](PreparedQueuePair::manual) |
//! | [`QueuePair`] | RTS, SQD, SQE, ERR | all | [`reset`](QueuePair::reset), if it is the only handle |
//!
//! A [`QueuePair`] can be [paused](QueuePair::pause) and [resumed](QueuePair::resume),
//! [recovered](QueuePair::recover) from a failed send queue, moved to the [error
//! state](QueuePair::fail), [drained](QueuePair::drain), and converted back by
//! [`QueuePair::reset`]. A [`Modification`] changes single attributes. If the device refuses a
//! modification, the error [`RefusedModification`] lists the mistakes in the modification:
//! violations of the specification's tables and of the device's limits.
//!
//! # Threads
//!
//! Every type of this module is `Send`, except the types that belong to one thread: a request of a
//! [`Scope`] and a [`RawSession`]. Verbs are thread-safe on a queue pair, so the queue pair types
//! are also `Sync`, and clones of a [`QueuePair`] refer to the same queue pair. Methods that need
//! exclusive access take `&mut self`.
//!
//! # Posting
//!
//! Requests are posted through a queue that keeps the memory of each request until it has
//! completed:
//!
//! | queue | access | storage of a request's memory |
//! |---|---|---|
//! | [`SendQueue`], [`ReceiveQueue`] | one owner, `&mut self` | a ring in the order of posting |
//! | [`ConcurrentSendQueue`], [`ConcurrentReceiveQueue`] | any thread, `&self`, no lock | a slot; for sends, reserved before posting |
//!
//! A batch ([`SendQueue::batch`] and similar methods) posts many requests in one call of the
//! driver. Requests with borrowed memory are posted in a [`QueuePair::scope`], which waits for
//! their completion.

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
mod keep_alive;
mod limit;
mod manual;
mod map;
mod modification;
mod modify;
mod operation;
mod operations;
mod parts;
mod prepared;
mod queues;
mod refusal;
mod request;
mod retries;
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
pub use concurrent::{
    CompletedMemory, CompletedSlots, ConcurrentReceiveQueue, ConcurrentSendQueue, DetachedSlot,
    ReservedSlot,
};
pub use concurrent_batch::{ConcurrentReceiveBatch, ConcurrentSendBatch};
pub use connect::ConnectOptions;
pub use connected::QueuePair;
pub use control::RateLimit;
pub use datagram::DatagramOptions;
pub use endpoint::Endpoint;
pub use establishment::EnhancedEstablishment;
pub use inline::InlineData;
pub(crate) use keep_alive::{KeepAlive, Outcome, Segmented};
pub(crate) use limit::Limit;
pub use manual::ManualQueuePair;
pub use map::QueuePairMap;
pub use modification::{AlternatePath, MigrationState, Modification, QueuePairCapacities};
pub(crate) use modify::modify;
pub(crate) use operation::Operation;
pub use operation::Placement;
pub use operations::{QueuePairCreateFlags, SendOperations};
pub use prepared::PreparedQueuePair;
pub use queues::{PostError, ReceiveQueue, Retired, SendQueue};
pub use refusal::{ModificationFlaw, RefusedModification};
pub use request::SendRequest;
pub(crate) use request::{Description, SendFlags, Target};
pub(crate) use retries::Retries;
pub use scope::{CompletedRequest, FailedRequest, PendingRequest};
pub use state::QueuePairState;
pub use transport::Transport;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::Buffer;

    #[test]
    fn types_are_send_and_sync_as_documented() {
        fn is_send<T: Send>() {}
        fn is_sync<T: Sync>() {}
        is_send::<SendQueue<Buffer>>();
        is_sync::<SendQueue<Buffer>>();
        is_send::<ReceiveQueue<Buffer>>();
        is_sync::<ReceiveQueue<Buffer>>();
        is_send::<SendRequest<Buffer>>();
        is_sync::<SendRequest<Buffer>>();
        is_send::<SendBatch<'_, Buffer>>();
        is_send::<ReceiveBatch<'_, Buffer>>();
        is_send::<ConcurrentSendBatch<'_, Buffer>>();
        is_send::<ConcurrentReceiveBatch<'_, Buffer>>();
        // The memory type of a concurrent queue need not be `Sync`: only one thread at a time has
        // access to the memory of a request.
        is_sync::<ConcurrentSendQueue<std::cell::Cell<u8>>>();
        is_sync::<ConcurrentReceiveQueue<std::cell::Cell<u8>>>();
        is_send::<RawElements>();
    }
}
