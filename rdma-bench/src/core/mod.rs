//! rdma-core under test: requests posted and completion queues polled by this thread.

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
