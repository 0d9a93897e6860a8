//! Tests of rdma-rpc: calls that return their argument, and streams of items.

mod connection;

pub use connection::Connection;
