//! Memory that processes of one host and one user share in pairs, and through which they exchange
//! messages and data.
//!
//! | module | contents |
//! |---|---|
//! | `host_peers` | the interface to the rest of the crate: all peers of a NIC, and what the NIC publishes to them |
//! | `peer_directory`, `links` | the processes of the host that are known by their addresses, and the links to them |
//! | `handshake`, `local`, `handshake_message` | the handshake that begins a link, what this process hands over, and the messages |
//! | `pending`, `admission` | pending handshakes that other processes began, and the limits on the resources that they take |
//! | `sockets`, `events` | the sockets by which processes find each other, and the events that the engine waits for |
//! | `link` | a link: the shared memory, tables and connection of a pair of processes |
//! | `segment`, `ring`, `ring_message` | the shared memory of a link: a ring of messages in each direction |
//! | `backlog` | queue pairs and messages that wait for room in a ring |
//! | `wake`, `wake_target` | wakeups of a sleeping peer, and the choice of the thread that is woken for a process |
//! | `regions`, `record_array` | the tables in which a process publishes the memory that peers may reach |
//! | `withdrawal` | windows that are withdrawn from peers without blocking a thread |
//! | `access` | one-sided reads and writes of a peer's memory |
//! | `admitted`, `copying_peer` | the peers that may copy from and to memory of this process, and the wait until their copies have
//! ended |
//! | `shared`, `process` | mappings, and copies by the kernel: the modules that need `unsafe` |
//!
//! # What a peer can do
//! A peer is a process of the same user that could debug this process, so it can do anything to
//! this process anyway. But a peer may have errors, and may die at any instruction. Therefore:
//! - data that a peer writes is copied before it is checked, and checked before it is used;
//! - no thread waits for a peer that has ended;
//! - a file of a peer is mapped only if the peer cannot shorten it.

mod access;
mod admission;
mod admitted;
mod backlog;
mod copying_peer;
mod events;
#[cfg(any(test, fuzzing))]
pub(crate) mod fuzz;
mod handshake;
mod handshake_message;
mod host_peers;
mod link;
mod links;
mod local;
#[cfg(all(test, loom))]
mod models;
mod peer_directory;
mod pending;
mod process;
mod record_array;
mod regions;
mod ring;
pub(crate) mod ring_message;
mod segment;
mod shared;
mod sockets;
#[cfg(any(test, fuzzing))]
mod testing;
#[cfg(all(test, not(loom)))]
mod tests;
mod wake;
mod wake_target;
mod withdrawal;

pub(crate) use access::{Access, CachedRecords, Connection, CopySession, Target};
pub(crate) use backlog::DelayedPacket;
pub(crate) use handshake_message::{MAX_LIST, without_interface};
pub(crate) use host_peers::CachedLinks;
pub use host_peers::HostPeers;
pub use link::Link;
pub(crate) use link::{Received, SendError};
pub(crate) use local::ProcessResources;
pub(crate) use regions::{Publication, QueuePair};
pub(crate) use wake_target::CHECK_INTERVAL;
