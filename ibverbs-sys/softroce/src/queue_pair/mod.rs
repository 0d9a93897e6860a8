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
//! | `direct` | messages between two queue pairs of the NIC, without packets |
//! | `shared` | the same with a queue pair of another process of the host, as far as it needs nobody there |
//! | `at_once` | of those, what is done while it is posted |
//! | `brief` | short messages to such a queue pair, and acknowledgements |
//! | `draft` | a send request while it is described, and its checks |
//! | `batch` | the requests of `ibv_wr_start` to `ibv_wr_complete` |
//! | `directory` | the queue pairs by their numbers |
#![forbid(unsafe_code)]

mod at_once;
mod batch;
mod brief;
mod create;
mod device;
mod direct;
mod directory;
mod draft;
mod error;
mod handles;
mod host;
mod modify;
mod object;
mod one_sided;
mod post;
mod shared;
#[cfg(test)]
mod tests;
mod transition;

pub(crate) use at_once::{Keys, List};
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
pub(crate) use one_sided::{Action, Data, OneSided};
pub(crate) use post::Sender;
