//! rdma-rpc under test: calls whose answer is what they were called with.

mod connection;

pub use connection::Connection;
