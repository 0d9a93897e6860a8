//! rdma-core under test: requests posted and completion queues polled by this thread.

mod atomic;
mod completions;
mod connection;
mod pump;
mod read;
mod send;
mod spread;
mod write;

pub use connection::Connection;
pub use spread::Spread;
