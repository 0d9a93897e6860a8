//! Ways to transfer a message from a queue pair to its peer on the same host without packets, and
//! the choice between them.
//!
//! | file | content |
//! |---|---|
//! | `choice` | chooses the [`Transfer`] of a request, from the request and the location of the peer |
//! | `one_sided` | executes reads, writes and atomics in the memory of this process or another one |
//! | `two_sided` | the sources of the bytes of messages that consume a receive |
//! | `in_process` | transfers parts to a queue pair of this process |
//! | `ring_message` | ring slots to another process: messages, descriptors of messages, and acknowledgements |
//! | `volume` | amounts of messages and bytes, for the counters |
//!
//! This module works on the [transport](crate::proto) and its [host](crate::proto::Host), and uses
//! no queue pair objects, locks or shared memory, so tests and the simulation run the same code.
#![forbid(unsafe_code)]

mod choice;
pub(crate) mod in_process;
mod one_sided;
pub(crate) mod ring_message;
mod two_sided;
mod volume;

#[cfg(test)]
mod tests;

pub(crate) use choice::{
    Kind, MAX_CHUNKS_PART, MAX_MAPPED_PART, MAX_SLOT_BYTES, Peer, RequestProperties, Transfer,
    choose, depends_on_memory, may_offer,
};
pub(crate) use one_sided::{Action, Atomic, MAX_COPY, MemoryAccess, OneSided, OneSidedError};
pub(crate) use ring_message::{
    ChunkedRange, MessagePart, PartFlags, PayloadForm, PeerMemory, Polled, RingMessage,
    RingSendError,
};
pub(crate) use volume::{Sent, Volume};

use crate::proto::{Host, SendRequest, Upcoming};

/// A [`Host`] that also chooses the [`Transfer`] of each request, for example packets or a copy
/// from memory to memory. The host chooses because it knows the location of the peer.
pub(crate) trait TransferHost: Host {
    /// Returns the way in which the next bytes of a request go to the peer, for example as packets
    /// or through shared memory. `upcoming` is the position of these bytes. Implementations call
    /// [`choose`], and may return [`Transfer::Packets`] instead of the result of `choose`.
    fn transfer(&self, request: &SendRequest, upcoming: &Upcoming) -> Transfer;
}
