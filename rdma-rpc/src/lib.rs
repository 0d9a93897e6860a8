//! Remote procedure calls over RDMA, on tokio.
//!
//! The attribute [`service`](macro@service) on a trait makes the client and the server of a
//! service.
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
//! - **Calls of every kind**: one request and one response, streams of items in either direction or
//!   in both ([`Sender`], [`Receiver`], [`Streaming`]), and one-way calls.
//! - **Errors are typed.** The service's error reaches the caller with its type
//!   ([`CallError::Service`]), apart from the errors of the framework ([`Error`]). A panic of a
//!   handler fails only the call that it handles.
//! - **Deadlines reach the server**, which drops a handler at the deadline of its call. The clocks
//!   of the two ends need not agree. Dropping the future of a call cancels its handler.
//! - **No call hangs.** The end of a connection fails every call on it at once, with the cause.
//! - **Load is bounded.** Each end limits calls, messages, streams and connections. Calls beyond
//!   the limits wait or are refused, see [`Server`].
//! - **Servers shut down gracefully.** Running calls are finished, new calls are refused
//!   ([`ServerHandle::shutdown`]).
//! - **Few copies and no allocations.** Values are encoded into the memory that they are sent from.
//!   Requests are decoded from the memory that they were received in, within the poll that finds
//!   them, and their handler is polled there. Requests and responses of one turn of the scheduler
//!   leave in one message. Byte strings need no decoding at all (`#[rpc(raw)]`, [`Payload`]).
//! - **Long data is not copied**: an argument or result of the type [`Bulk`] is read or written
//!   one-sided, under a lease that ends with the call.
//! - **Several servers**: [`ClientBuilder::connect_any`] distributes calls, connects again, and
//!   sends a call that its server has not started to another one.
//! - **Access is controlled**: servers authenticate connections and intercept calls; TCP can be
//!   encrypted by TLS.
//! - **Transports**: RDMA, TCP, and memory of the process for tests: [`Address`].
//!
//! # What it does not do
//!
//! This crate does not repeat calls that may have been executed, except those of methods with
//! `#[rpc(once)]`: only the application knows whether a call may run twice. It does not encrypt
//! RDMA. Without [`Server::authenticate`], any peer that can reach the server may call its methods.

#![forbid(unsafe_code)]

// The services of this crate use the attribute, whose code names the crate.
extern crate self as rdma_rpc;

mod address;
mod bulk;
mod client;
mod codec;
mod core;
mod deadlines;
mod error;
#[cfg(any(test, fuzzing))]
#[doc(hidden)]
pub mod fuzz;
mod health;
#[cfg(test)]
mod hostile;
mod limits;
mod link;
mod metadata;
mod method;
mod observe;
mod once;
mod outbox;
mod payload;
#[cfg(feature = "reflection")]
mod reflection;
mod server;
mod status;
mod stream;
mod wire;

/// Makes a service of a trait: the client `…Client` and the server `…Server`.
///
/// A method is an `async fn` with `&self`, an optional `&Context`, owned arguments, and the result
/// `Result<T, E>`. The arguments, `T` and `E` are types of the service's codec, which is
/// [`Postcard`] unless the attribute names another one:
/// `#[rdma_rpc::service(codec = rdma_rpc::Json)]`. A method may have a stream from the caller, an
/// argument [`Receiver<T>`](Receiver), and a stream to the caller, an argument
/// [`Sender<T>`](Sender).
///
/// | attribute of a method | meaning |
/// |---|---|
/// | `#[rpc(oneway)]` | The method has no result, and its caller does not wait for it. |
/// | `#[rpc(raw)]` | The argument is a [`Payload`] and the result any bytes, which are not encoded. |
/// | `#[rpc(once)]` | The method is executed at most once, see below. |
/// | `#[rpc(id = 7)]` | The number of the method, which is otherwise a hash of its name. |
///
/// # At most once
///
/// A call of a method with `#[rpc(once)]` is sent again if its connection ends before the answer,
/// by a [client that connects again](ClientBuilder::connect_any), to the same server, until its
/// deadline. The server executes it at most once: a repeated call gets the answer of the first one,
/// whose handler goes on without the connection. A server that was started anew, or that has
/// dropped the answer, executes nothing, and the call fails with [`Error::ExecutionUnknown`]. The
/// result and the error of such a method are `Clone`, `Send` and `Sync`. A server keeps the last
/// 256 answers of a client that the client has not yet, for 1024 clients, and at most about 256 MiB
/// of them.
///
/// A handler counts for the limits of the server until it ends, even if its call was cancelled. A
/// client can have as many running handlers as the [concurrency](Server::concurrency) of the
/// server, but at least 256; a further call fails with [`Error::Overloaded`]. So does the first
/// call of a further client while each of the 1024 clients has a running handler.
/// [`ServerHandle::shutdown`] does not wait for handlers whose call was cancelled or whose
/// connection has ended.
///
/// ```
/// use rdma_rpc::{Address, Receiver, Sender, Server};
///
/// #[rdma_rpc::service]
/// trait Numbers {
///     /// Sends the squares of the caller's numbers, and returns how many there were.
///     async fn squares(&self, numbers: Receiver<u32>, squares: Sender<u64>) -> Result<u64, String>;
/// }
///
/// struct Squares;
///
/// impl Numbers for Squares {
///     async fn squares(
///         &self,
///         mut numbers: Receiver<u32>,
///         mut squares: Sender<u64>,
///     ) -> Result<u64, String> {
///         let mut count = 0;
///         while let Some(Ok(number)) = numbers.next().await {
///             let square = u64::from(number) * u64::from(number);
///             squares.send(square).await.map_err(|error| error.to_string())?;
///             count += 1;
///         }
///         Ok(count)
///     }
/// }
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let server = Server::new(NumbersServer::new(Squares)).listen(Address::memory()).await?;
/// let client = NumbersClient::connect(server.address()).await?;
/// let (mut numbers, mut squares) = client.squares().await?;
/// for number in 1..=3 {
///     numbers.send(number).await?;
/// }
/// // Dropping the sender ends its stream.
/// drop(numbers);
/// while let Some(square) = squares.next().await {
///     println!("{}", square?);
/// }
/// assert_eq!(squares.finish().await?, 3);
/// # Ok(())
/// # }
/// ```
pub use rdma_rpc_macros::service;

pub use address::{Address, Peer, ToAddress, Transport};
pub use bulk::{Bulk, BulkMemory};
pub use client::{
    Balance, Client, ClientBuilder, Endpoint, Reply, Request, Response, Streaming, ToEndpoint,
};
#[cfg(feature = "json")]
pub use codec::Json;
#[cfg(feature = "prost")]
pub use codec::Prost;
pub use codec::{Codec, CodecError, Decode, Encode, Postcard, Raw};
pub use error::{BulkError, CallError, Error, Result};
pub use health::{Health, HealthClient, HealthServer, HealthState, HealthStates};
pub use metadata::Metadata;
#[cfg(feature = "trace")]
pub use observe::TraceContext;
pub use outbox::Sent;
pub use payload::Payload;
#[cfg(feature = "reflection")]
pub use reflection::{
    CallCounts, Fields, Format, MethodDescription, Reflection, ReflectionClient, ReflectionServer,
    Schema, TypeDescription, TypeFormat,
};
pub use server::{CallInfo, Context, Server, ServerHandle, Service};
pub use stream::{Receiver, Sender};

/// Items that generated code uses. They are no part of the crate's interface.
#[doc(hidden)]
pub mod generated {
    pub use crate::codec::{Typed, Unencoded};
    pub use crate::method::MethodInfo;
    pub use crate::once::once;
    pub use crate::server::{Call, Methods, Role};

    /// Checks, where a type stands in a service, that its codec can encode and decode it, and
    /// describes the type for reflection: its name in the trait, and its text.
    pub fn check<C: crate::Encode<T> + crate::Decode<T>, T>(
        methods: &mut Methods,
        method: &'static MethodInfo,
        role: Role,
        [name, text]: [&'static str; 2],
    ) {
        methods.describe::<C, T>(method, role, [name, text]);
    }
}
