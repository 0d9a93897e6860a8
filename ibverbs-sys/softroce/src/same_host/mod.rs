//! The way between two processes of one host and one user: memory that both have mapped.
//!
//! | module | is |
//! |---|---|
//! | `directory`, `letter` | how they find each other, and what they tell and hand over |
//! | `admission` | the limits on what others can cost by doing so |
//! | `segment`, `ring`, `brief` | the memory of a link: a ring of messages in each direction |
//! | `backlog` | who waits for room in it |
//! | `wake`, `bells`, `vigil` | waking a process that sleeps, and no other; and of its threads the one that sleeps for it |
//! | `regions`, `board` | the tables in which a process tells what memory peers may reach |
//! | `admitted`, `visitor`, `epoch` | who may copy from and to memory here, and that a copy has ended |
//! | `access` | reading and writing a peer's memory |
//! | `link` | all of that, of one pair of processes |
//! | `shared`, `process` | mappings, and copies by the kernel: what needs `unsafe` |
//!
//! # What a peer can do
//! A peer is a process of the same user that this one could be debugged by: it can do anything to
//! this process anyway. But it may have errors, and it may die at any instruction. So what it writes is
//! copied before it is checked, and checked before it is used; nothing waits for it longer than it
//! lives; and no file of it is mapped that could become shorter.

mod access;
mod admission;
mod admitted;
mod backlog;
mod bells;
mod board;
pub(crate) mod brief;
mod directory;
mod epoch;
mod events;
#[cfg(any(test, fuzzing))]
pub(crate) mod fuzz;
mod guests;
mod handshake;
mod letter;
mod link;
mod links;
mod local;
mod neighbourhood;
mod process;
mod regions;
mod ring;
mod segment;
mod shared;
mod sockets;
mod sync;
#[cfg(any(test, fuzzing))]
mod testing;
#[cfg(all(test, not(loom)))]
mod tests;
mod vigil;
mod visitor;
mod wake;

pub(crate) use access::{Access, Atomic, Knowledge, Target, Visit};
pub(crate) use backlog::Kept;
pub use bells::Bell;
pub(crate) use bells::Bells;
pub(crate) use epoch::{Lane, Lanes};
pub use link::Link;
pub(crate) use link::{Failure, Said};
pub(crate) use local::Own;
pub use neighbourhood::Neighbourhood;
pub(crate) use neighbourhood::{Accesses, Known};
pub(crate) use process::forget;
pub(crate) use regions::{FilePlace, Publication, QueuePair, Region};
pub(crate) use ring::Line;
