//! Tests of rdma-core, in which one thread posts requests and polls completion queues.

mod atomic;
mod completions;
mod connection;
mod memory;
mod peer;
mod posting;
mod read;
mod receives;
mod second_queue_pair;
mod send;
mod write;

pub use connection::Connection;
