//! The RoCEv2 transport as a sans-IO state machine: how a queue pair responds to packets, what it
//! sends, and when it sends again. This module has no socket, no clock and no unsafe code. The
//! caller passes in the time and the received packets, and takes the packets to send. Memory,
//! receives, completions and events come through [`Host`]. The same calls in the same order give
//! the same packets, so tests can use a simulated network with virtual time.
//!
//! ```text
//!   post ──> ┌───────────┐ ──> poll_transmit ──> packets
//!            │ QueuePair │
//! packets ──>│  receive  │ ──> Host: memory, receive requests, completions, events
//!    time ──>└───────────┘ ──> next_timeout
//! ```
//!
//! The bytes of a message can also reach a peer on this host without packets, in [parts](Part):
//! ranges of the message. Then the caller (module `transfer`) copies the bytes from memory to
//! memory, and the transport keeps sequence numbers, windows and completions. Parts and packets use
//! the same sequence numbers, so they can follow each other within a message.
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
    CopyError, Counter, Event, Host, LocalFault, Memory, RemoteFault, Sink, Withdrawal,
};
pub use part::{
    Incoming, Kind, Part, PartOutcome, PartRefusal, SendProgress, Source, TransmitUrgency,
    UnqueuedMessage, Upcoming,
};
pub use path::{Arrival, Path};
pub use queue_pair::QueuePair;
pub use request::{
    Completion, CompletionOpcode, CompletionStatus, Data, Flush, GatherList, Inline, NetworkHeader,
    Payload, ReceiveRequest, Remote, Segment, SendOperation, SendRequest, WindowBinding,
};
pub use run::Run;
pub use sequence::Sequence;
pub use time::Time;
