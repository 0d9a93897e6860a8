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
//! To a peer with which memory is shared short messages go as a [`Brief`], which is a packet without headers.
//!
//! Where a queue pair's peer is at hand there is a shorter way than packets: [`QueuePair::poll_direct`] hands a
//! part of a message, or all of it, to a [`Peer`], and has the answer when that returns. Both ways keep the same
//! sequence numbers, so they can follow each other within a message.
#![forbid(unsafe_code)]

mod attributes;
pub(crate) mod brief;
mod datagram;
mod direct;
mod endpoint;
#[cfg(any(test, fuzzing))]
pub(crate) mod fuzz;
mod host;
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
mod testing;
mod time;
mod timer;

pub use attributes::{AccessFlags, Attributes, Mtu, Service, State};
pub use brief::{Brief, Form, Partner, Prospect, Short, Utterance};
pub use direct::{Answer, Misplaced, Part, Peer, Place, Step};
pub use host::{Counter, Event, Host, LocalFault, Memory, RemoteFault, Withdrawal};
pub use path::{Arrival, Path};
pub use queue_pair::QueuePair;
pub use request::{
    Completion, CompletionStatus, GatherList, Inline, Payload, ReceiveRequest, Remote, Segment,
    SendOperation, SendRequest, WindowBinding, Work,
};
pub use run::Run;
pub use sequence::Sequence;
pub use time::Time;
