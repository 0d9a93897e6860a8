//! Paths from a queue pair to its peer that need no packets, and the choice among them.
//!
//! | file | content |
//! |---|---|
//! | `choice` | the decision: a request, and what is known of the peer, to a [`Transfer`] |
//! | `one_sided` | the executor of reads, writes and atomics, in the memory of this process or of another one |
//! | `two_sided` | the executor of messages that take a receive request: where their bytes come from |
//! | `in_process` | parts for a queue pair of this process |
//! | `brief` | slots of the ring to another process: messages, descriptors of messages, and acknowledgements |
//! | `volume` | the amounts of messages and bytes, for the counters |
//!
//! Everything here works on the [transport](crate::proto) and its [host](crate::proto::Host), and knows no queue pair object, no
//! lock and no shared memory; so tests and the simulation run the same code.
#![forbid(unsafe_code)]

pub(crate) mod brief;
mod choice;
pub(crate) mod in_process;
mod one_sided;
mod two_sided;
mod volume;

#[cfg(test)]
mod tests;

pub(crate) use brief::{Brief, Form, PartOf, PeerMemory, Polled, Portion, Short, Unsent};
pub(crate) use choice::{
    Kind, PART_CHUNKS, PART_MAPPED, Peer, SHORT, Transfer, Work, choose, depends_on_memory,
};
pub(crate) use one_sided::{Action, Atomic, OneSided, Reach, STRIDE, Undone};
pub(crate) use volume::{Sent, Volume};

use crate::proto::{Host, SendRequest, Upcoming};

/// A [`Host`] that knows the path of each request.
pub(crate) trait Carrier: Host {
    /// Returns the path of the next part of a request, as [`choose`] does.
    fn transfer(&self, request: &SendRequest, upcoming: &Upcoming) -> Transfer;
}
