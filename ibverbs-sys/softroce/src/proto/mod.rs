//! The transport as state machines: what a queue pair answers to a packet, what it sends, and when
//! it does so again. There is no socket here, no clock and no unsafe code: a caller hands in the
//! time and the packets that came, takes the packets that are to go, and is asked for memory,
//! receive requests and room for completions through [`Host`]. The same calls in the same order
//! give the same packets, so a network with virtual time can test all of it.
//!
//! ```text
//!   post ──> ┌───────────┐ ──> poll_transmit ──> packets
//!            │ QueuePair │
//! packets ──>│  receive  │ ──> Host: memory, receive requests, completions, events
//!    time ──>└───────────┘ ──> next_timeout
//! ```
//!
//! The bytes of a message can also reach the peer without packets, [part](Part) by part: the caller (module `transfer`) carries them,
//! and the transport keeps the books. Both use the same sequence numbers, so they can follow each other within a message.
#![forbid(unsafe_code)]

mod attributes;
mod datagram;
mod endpoint;
#[cfg(any(test, fuzzing))]
pub(crate) mod fuzz;
mod host;
mod part;
mod path;
mod queue_pair;
mod receipt;
mod request;
mod requester;
mod responder;
mod run;
mod sequence;
#[cfg(any(test, fuzzing))]
#[cfg_attr(not(test), allow(dead_code))]
pub(crate) mod testing;
mod time;
mod timer;

pub use attributes::{AccessFlags, Attributes, Mtu, Service, State};
pub use host::{
    Counter, Event, Host, LocalFault, Memory, Misplaced, Place, RemoteFault, Withdrawal,
};
pub use part::{Incoming, Kind, NotTaken, Outcome, Part, Posted, Prospect, Source, Step, Upcoming};
pub use path::{Arrival, Path};
pub use queue_pair::QueuePair;
pub use request::{
    Completion, CompletionStatus, Data, GatherList, Inline, Payload, ReceiveRequest, Remote,
    Segment, SendOperation, SendRequest, WindowBinding, Work,
};
pub use run::Run;
pub use sequence::Sequence;
pub use time::Time;
