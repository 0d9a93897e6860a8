//! rdma-rpc under test: calls that return their argument.

mod connection;

pub use connection::Connection;
