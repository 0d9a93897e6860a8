//! Tests of rdma-async, whose futures all run on tokio in one task of this thread.

mod atomic;
mod connection;
pub(crate) mod link;
mod read;
pub(crate) mod runtime;
mod send;
pub(crate) mod window;
mod write;

pub use connection::Connection;
