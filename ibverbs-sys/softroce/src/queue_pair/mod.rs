//! The queue pair that programs hold: the state machine of `ibv_modify_qp`, the checks of what is
//! posted, and the [transport](crate::proto) between its queues and the NIC.
//!
//! | file | is |
//! |---|---|
//! | `transition` | which state follows which, and which attributes go with it |
//! | `modify` | the attributes' values |
//! | `create` | what each type needs, and the limits |
//! | `object` | the queue pair itself |
//! | `post` | its queues, for who posts to them |
//! | `host` | what the transport asks of its surroundings |
//! | `handles` | who knows a queue pair: several, of an XRC target |
//! | `device` | what is asked of the NIC |
//! | `advance` | executing and sending what is queued, by the paths in their order |
//! | `in_process` | messages between two queue pairs of the NIC |
//! | `same_host` | messages to a queue pair of another process of the host |
//! | `publication` | the record of a queue pair that other processes read |
//! | `posted` | one-sided work that is executed while it is posted |
//! | `draft` | a send request while it is described, and its checks |
//! | `batch` | the requests of `ibv_wr_start` to `ibv_wr_complete` |
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
pub use device::{Device, Neighbour};
pub use directory::{Directory, Exhausted, Recent};
pub(crate) use draft::{Address, Draft, Rules, SendFlags};
pub(crate) use error::{CreateError, PostError};
pub(crate) use handles::Handle;
pub(crate) use modify::{Modification, number_of};
pub use object::QueuePair;
pub(crate) use post::Sender;
pub(crate) use posted::List;
