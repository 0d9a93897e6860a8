//! Queue pairs as programs use them: the states of `ibv_modify_qp`, the checks of posted requests,
//! and the objects that join the queues, the [transport](crate::proto) and the NIC.
//!
//! | file | contents |
//! |---|---|
//! | `transition` | the legal state transitions, and the attributes of each |
//! | `modify` | checks of attribute values, and their conversion |
//! | `create` | checks of what each type needs, and of the limits |
//! | `object` | the queue pair itself |
//! | `post` | posting to the send queue and the receive queue |
//! | `host` | the services that the transport requires: memory, receive requests, completions, events |
//! | `handles` | the open devices that know a queue pair: several for an XRC target |
//! | `device` | the services that a queue pair requires from the NIC |
//! | `advance` | execution and transmission of queued requests, by each path in order |
//! | `in_process` | messages between two queue pairs of this NIC |
//! | `same_host` | messages to a queue pair of another process of the host |
//! | `publication` | the record of a queue pair that other processes read |
//! | `posted` | one-sided requests that are executed while they are posted |
//! | `draft` | a send request under construction, and its checks |
//! | `batch` | the requests between `ibv_wr_start` and `ibv_wr_complete` |
//! | `directory` | the queue pairs by their numbers |
#![forbid(unsafe_code)]

mod advance;
mod batch;
mod create;
mod device;
mod directory;
mod draft;
mod error;
mod handles;
mod host;
mod in_process;
mod modify;
mod object;
mod post;
mod posted;
mod publication;
mod same_host;
#[cfg(test)]
mod tests;
mod transition;

pub(crate) use batch::Batch;
pub(crate) use create::{Creation, service_of};
pub(crate) use device::Outgoing;
pub use device::{Adapter, HostPeer};
pub use directory::{Exhausted, QueuePairDirectory, Recent};
pub(crate) use draft::{Address, Draft, Rules, SendFlags};
pub(crate) use error::{CreateError, PostError};
pub(crate) use handles::Handle;
pub(crate) use modify::{Modification, number_of};
pub use object::QueuePair;
pub(crate) use post::Sender;
pub(crate) use posted::PostedList;
