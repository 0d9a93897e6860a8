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

#![forbid(unsafe_code)]

mod batch;
mod builder;
mod concurrent;
mod concurrent_batch;
mod connect;
mod connected;
mod datagram;
mod endpoint;
mod inline;
mod operations;
mod queues;
mod request;
mod state;
mod transport;

pub use batch::{BatchError, ReceiveBatch, SendBatch, Unposted};
pub use builder::{PreparedQueuePair, QueuePairBuilder};
pub use concurrent::{ConcurrentReceiveQueue, ConcurrentSendQueue, ReservedSlot};
pub use concurrent_batch::{ConcurrentReceiveBatch, ConcurrentSendBatch};
pub use connect::ConnectOptions;
pub use connected::QueuePair;
pub use datagram::DatagramOptions;
pub use endpoint::Endpoint;
pub use inline::InlineData;
pub use operations::SendOperations;
pub use queues::{PostError, ReceiveQueue, Retired, SendQueue};
pub(crate) use request::{Description, KeepAlive, Operation, SendFlags, Target};
pub use request::{Placement, SendRequest};
pub use state::QueuePairState;
pub use transport::Transport;
