//! Tests of rdma-core, in which one thread posts requests and polls completion queues.

mod atomic;
mod beside;
mod completions;
mod connection;
mod memory;
mod peer;
mod pump;
mod read;
mod receives;
mod send;
mod write;

pub use connection::Connection;
