//! Remote procedure calls over RDMA, on tokio.
//!
//! The attribute [`service`](macro@service) on a trait makes the client and the server of a service.
//!
//! ```
//! use rdma_rpc::{CallError, Context, Error, Server};
//! use serde::{Deserialize, Serialize};
//!
//! #[derive(Debug, PartialEq, Serialize, Deserialize)]
//! enum MathError {
//!     Overflow,
//! }
//!
//! #[rdma_rpc::service]
//! trait Math {
//!     async fn add(&self, cx: &Context, left: u64, right: u64) -> Result<u64, MathError>;
//! }
//!
//! struct Checked;
//!
//! impl Math for Checked {
//!     async fn add(&self, _: &Context, left: u64, right: u64) -> Result<u64, MathError> {
//!         left.checked_add(right).ok_or(MathError::Overflow)
//!     }
//! }
//!
//! # #[tokio::main]
//! # async fn main() -> Result<(), Error> {
//! let server = Server::new(MathServer::new(Checked)).listen("rdma://127.0.0.1:0").await?;
//!
//! let client = MathClient::connect(server.address()).await?;
//! assert_eq!(client.add(1, 2).await.ok(), Some(3));
//! let error = client.add(1, u64::MAX).await.unwrap_err();
//! assert_eq!(error.service(), Some(MathError::Overflow));
//!
//! server.shutdown().await;
//! # Ok(())
//! # }
//! ```
//!
//! # What it does
//!
//! - **Calls of every kind**: one request and one response, streams of items in either direction or in
//!   both ([`Sender`], [`Receiver`], [`Streaming`]), and one-way calls.
//! - **Errors are typed.** The service's error reaches the caller with its type
//!   ([`CallError::Service`]), apart from the errors of the framework ([`Error`]). A panic of a handler
//!   fails only the call that it handles.
//! - **Deadlines reach the server**, which drops a handler at the deadline of its call. The clocks of
//!   the two ends need not agree. Dropping the future of a call cancels its handler.
//! - **No call hangs.** The end of a connection fails every call on it at once, with the cause.
//! - **Load is bounded.** Each end limits calls, messages, streams and connections. Calls beyond the
//!   limits wait or are refused, see [`Server`].
//! - **Servers shut down gracefully.** Running calls are finished, new calls are refused
//!   ([`ServerHandle::shutdown`]).
//! - **Few copies and no allocations.** Values are encoded into the memory that they are sent from.
//!   Requests are decoded from the memory that they were received in, within the poll that finds them,
//!   and their handler is polled there. Requests and responses of one turn of the scheduler leave in one
//!   message. Byte strings need no decoding at all (`#[rpc(raw)]`, [`Payload`]).
//! - **Transports**: RDMA, TCP, and memory of the process for tests: [`Address`].
//!
//! # What it does not do
//!
//! This crate does not reconnect and does not repeat calls: only the application knows whether a call
//! may run twice. It neither encrypts nor authenticates: any peer that can reach the server may call
//! its methods.

#![forbid(unsafe_code)]

mod address;
mod client;
mod codec;
mod core;
mod deadlines;
mod error;
mod limits;
mod link;
mod metadata;
mod method;
mod outbox;
mod payload;
mod server;
mod status;
mod stream;
mod wire;

pub use rdma_rpc_macros::service;

pub use address::{Address, Peer, ToAddress, Transport};
pub use client::{Client, ClientBuilder, Response, Streaming};
#[cfg(feature = "json")]
pub use codec::Json;
#[cfg(feature = "prost")]
pub use codec::Prost;
pub use codec::{Codec, CodecError, Decode, Encode, Postcard, Raw};
pub use error::{CallError, Error, Result};
pub use metadata::Metadata;
pub use payload::Payload;
pub use server::{Context, Server, ServerHandle, Service};
pub use stream::{Receiver, Sender};

/// Items that generated code uses. They are no part of the crate's interface.
#[doc(hidden)]
pub mod generated {
    pub use crate::codec::{Typed, Unencoded};
    pub use crate::method::MethodInfo;
    pub use crate::server::{Call, Methods};

    /// Checks, where a type stands in a service, that its codec can encode and decode it.
    pub fn check<C: crate::Encode<T> + crate::Decode<T>, T>() {}
}
