//! Latency and bandwidth of RDMA between two processes, measured as perftest measures them.
//!
//! The program `rdma-bench` takes perftest's flags and prints perftest's columns. Without a host
//! the program is the server and waits. With a host the program is the client.
//!
//! ```text
//! rdma-bench send_lat -d rxe_0 -s 8
//! rdma-bench send_lat -d rxe_0 -s 8 192.168.0.1
//! ```
//!
//! # Definitions
//!
//! The definitions are those of perftest, so that results can be compared with those of its C
//! programs:
//!
//! | test | latency | bandwidth |
//! |---|---|---|
//! | send | half of the round trip of a message and its echo | one way; the receiver reports its own |
//! | write | half of the round trip; each process polls for the last byte that its peer writes | one way |
//! | write, `--write_with_imm` | half of the round trip; each process waits for the completion of a receive | one way; the receiver reports its own |
//! | read, atomics | from posting to completion | one way |
//!
//! - `send_lat --beside BYTES` has a second queue pair, on which the client sends messages of that
//!   size, up to `-t` at the same time. One thread of each process posts on both queue pairs and
//!   polls their completion queues. Each message on the second queue pair is signaled. The
//!   bandwidth of these messages is measured at the client from the first post to the last answer
//!   of the latency test, and at the server from the first of these messages to the last.
//! - `echo_lat --beside BYTES` transfers bulk memory of that size on the same connection during the
//!   test, by one call of `bulk_bw` after the other. The bandwidth of these calls is measured at
//!   the client from the start of the test to the last of them.
//! - A latency sample is the time between the timestamps taken before two consecutive posts. The
//!   typical latency is the median. The slowest sample is left out of the maximum, and the two
//!   slowest samples are left out of mean and deviation.
//! - A bandwidth test keeps up to 128 messages (the depth of the send queue) in flight. One message
//!   in 100 is signaled, or every message above 8 KiB. The average is over the time from the first
//!   post to the last completion. The peak is the best rate between any post and any later
//!   completion. A MiB is 2^20 bytes, and a Gb is 10^9 bits.
//!
//! The layers above rdma-core use futures, which changes what is timed:
//!
//! | `--layer` | what differs |
//! |---|---|
//! | `async` | a write's latency is always that of a write with immediate data, because a receiver on rdma-async notices no other write; a latency sample includes waking the task; bandwidth is that of as many tasks as the depth, each of which awaits one operation after the other, so every operation is signaled, or with `--pipeline` that of one task with a pipeline of this depth; there is no peak |
//! | `rpc` | `echo_lat` is the whole round trip of one call at a time, `echo_bw` that of 64 at the same time, by default; bytes are counted one way; `bulk_bw` is `echo_bw` with bulk memory |
//!
//! Each process runs on one thread unless `--threads` sets another number. These layers use the
//! default completion mode of rdma-async unless `--completion` sets another.
//!
//! # Parts
//!
//! [`session`] runs a test between two processes: they agree on a [`Plan`] over TCP ([`control`]),
//! the layer under test connects and measures ([`core`], [`asynchronous`], [`rpc`]), and [`report`]
//! prints the results. [`overview`] runs every layer once, for a table without a verdict.
//! [`compare`] runs perftest and this program in turns. [`limits`] compares softroce with other
//! ways to move data on the same machine: copies, system calls, sockets and other programs.

#![forbid(unsafe_code)]

pub mod asynchronous;
pub mod compare;
pub mod control;
pub mod core;
mod error;
pub mod limits;
pub mod machine;
pub mod overview;
mod plan;
mod recorder;
pub mod report;
pub mod rpc;
pub mod session;
mod settings;
pub mod statistics;
mod test;

pub use error::{Error, Result};
pub use plan::{Layer, Length, Memory, Plan};
pub use recorder::Recorder;
pub use settings::{Completion, Settings};
pub use test::{Metric, Test, Verb};
