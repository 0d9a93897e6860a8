//! Remote procedure calls over RDMA, on tokio.
//!
//! A server routes calls by method name to async functions. A client calls these methods, any number at
//! once on one connection. Requests and responses can be of any serde type.
//!
//! ```
//! use rdma_rpc::{ApplicationError, Client, Router, Server};
//! use serde::{Deserialize, Serialize};
//!
//! #[derive(Serialize, Deserialize)]
//! struct Add {
//!     left: u64,
//!     right: u64,
//! }
//!
//! async fn add(request: Add) -> Result<u64, ApplicationError> {
//!     let overflow = || ApplicationError::new(1, "the sum is too large");
//!     request.left.checked_add(request.right).ok_or_else(overflow)
//! }
//!
//! # #[tokio::main]
//! # async fn main() -> Result<(), rdma_rpc::Error> {
//! let router = Router::new().route("arithmetic/add", add);
//! let server = Server::new(router).listen("127.0.0.1:0").await?;
//!
//! let client = Client::connect(server.local_address()).await?;
//! let sum: u64 = client.call("arithmetic/add", &Add { left: 1, right: 2 }).await?;
//! assert_eq!(sum, 3);
//!
//! server.shutdown().await;
//! # Ok(())
//! # }
//! ```
//!
//! # What it does
//!
//! - **Deadlines reach the server.** A call fails if its answer does not arrive in time
//!   ([`ClientBuilder::deadline`]), and the server drops a handler at the deadline of its call. The
//!   clocks of the two ends need not agree.
//! - **Errors are typed.** A handler's error reaches the caller with its code, message and details
//!   ([`ApplicationError`]). A panic of a handler fails only the call that it handles.
//! - **No call hangs.** The end of a connection fails every call on it at once, with the cause.
//! - **Load is bounded.** Each end limits calls, messages and connections. Calls beyond the limits wait
//!   or are refused, see [`Server`].
//! - **Servers shut down gracefully.** Running calls are finished, new calls are refused
//!   ([`ServerHandle::shutdown`]).
//! - **Few copies.** Values are encoded into the memory that they are sent from, and decoded from the
//!   memory that they were received in. Byte strings need no decoding at all ([`Client::call_raw`]).
//!
//! # What it does not do
//!
//! This crate does not reconnect and does not repeat calls: only the application knows whether a call
//! may run twice. It neither encrypts nor authenticates: any peer that can reach the server may call
//! its methods.

#![forbid(unsafe_code)]

mod application;
mod client;
mod codec;
mod error;
mod failure;
mod limits;
mod message;
mod server;
mod wire;

pub use application::ApplicationError;
pub use client::{Client, ClientBuilder};
pub use codec::{Codec, CodecError, Postcard};
pub use error::{Error, Result};
pub use message::Payload;
pub use server::{Context, Router, Server, ServerHandle};
