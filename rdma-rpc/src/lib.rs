//! Remote procedure calls over RDMA, on tokio.
//!
//! A server routes calls by the names of their methods to async functions; a client calls them, any
//! number at once on one connection. Requests and responses are any serde types.
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
//! - **Deadlines travel.** A call waits so long for its answer ([`ClientBuilder::deadline`]), and the
//!   server drops work that nobody waits for any more. The two ends' clocks need not agree.
//! - **Errors are typed.** A handler's error reaches the caller with its code, message and details
//!   ([`ApplicationError`]); its panic is an error of that call and disturbs nothing else.
//! - **Nothing waits for ever.** The end of a connection fails every call on it at once, with the cause.
//! - **Load is bounded.** Each end has limits for calls, messages and connections; beyond them calls
//!   wait their turn or are refused, see [`Server`].
//! - **A server ends in order**: the calls that run are finished, new ones refused
//!   ([`ServerHandle::shutdown`]).
//! - **Few copies.** Values are encoded in the memory that they are sent from, and decoded from the
//!   memory that they were received in; bytes need not be decoded at all ([`Client::call_raw`]).
//!
//! # What it does not do
//!
//! It does not reconnect, and does not repeat a call: whether it may is for the application to say.
//! It does not encrypt or authenticate: whoever reaches the server may call it.

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
