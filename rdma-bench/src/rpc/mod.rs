//! Tests of rdma-rpc by calls that return their argument.

mod connection;

pub use connection::Connection;
