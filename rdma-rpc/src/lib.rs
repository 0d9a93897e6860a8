//! Remote procedure calls over RDMA, on tokio.
//!
//! The attribute [`service`](macro@service) on a trait generates the client and the server of a
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
//! # Features
//!
//! - **Calls of every kind**: one request and one response, streams of items in either direction or
//!   in both ([`Sender`], [`Receiver`], [`Streaming`]), and one-way calls.
//! - **Typed errors.** The service's error reaches the caller with its type
//!   ([`CallError::Service`]), separate from the errors of the framework ([`Error`]). A panic of a
//!   handler fails only its call.
//! - **Deadlines are enforced on both sides.** The server drops a handler at the deadline of its
//!   call. The clocks of the two ends need not be synchronized. Dropping the future of a call
//!   cancels its handler.
//! - **Every call ends.** When a connection ends, each call on it fails immediately, with the
//!   cause.
//! - **Bounded load.** Each end limits calls, messages, streams and connections. Calls beyond the
//!   limits wait or are refused, see [`Server`].
//! - **Graceful shutdown.** Running calls may finish, and new calls are refused
//!   ([`ServerHandle::shutdown`]).
//! - **Few copies and no allocations.** A value is encoded directly into the send buffer. A request
//!   is decoded from the receive buffer and its handler is polled for the first time within the
//!   poll that receives the request. Requests and responses of tasks that are ready at the same
//!   time share a message. Byte strings are not encoded (`#[rpc(raw)]`, [`Payload`]).
//! - **Long data is not copied**: the peer reads or writes an argument or result of type [`Bulk`]
//!   one-sided, under a lease that ends with the call.
//! - **Several servers**: [`ClientBuilder::connect_any`] distributes calls and reconnects. A call
//!   that its server has not started is sent to another server.
//! - **Access control**: servers authenticate connections and intercept calls. TCP connections can
//!   be encrypted by TLS.
//! - **Transports**: RDMA, TCP, and memory of the process for tests, see [`Address`].
//!
//! # Limits
//!
//! This crate does not repeat a call that may have been executed, unless its method has
//! `#[rpc(once)]`: only the application can decide whether a call may run twice. RDMA connections
//! are not encrypted. Without [`Server::authenticate`], any peer that can reach the server may call
//! its methods.

#![forbid(unsafe_code)]

// The attribute `service` generates paths that begin with `::rdma_rpc`, also within this crate.
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

/// Generates a client type `…Client` and a server type `…Server` from a trait.
///
/// A method is an `async fn` that takes `&self`, optionally `&Context`, and owned arguments, and
/// that returns `Result<T, E>`. The service's codec must encode and decode the arguments, `T` and
/// `E`. The codec is [`Postcard`] unless the attribute names another one:
/// `#[rdma_rpc::service(codec = rdma_rpc::Json)]`. An argument [`Receiver<T>`](Receiver) is a
/// stream from the caller to the handler, and an argument [`Sender<T>`](Sender) is a stream from
/// the handler to the caller.
///
/// | attribute of a method | effect |
/// |---|---|
/// | `#[rpc(oneway)]` | The method has no result, and its caller does not wait for the handler. |
/// | `#[rpc(raw)]` | The argument is a [`Payload`] and the result is a byte string; neither is encoded. |
/// | `#[rpc(once)]` | The server executes a call at most once, see below. |
/// | `#[rpc(id = 7)]` | Sets the number of the method; the default is a hash of its name. |
///
/// # At most once
///
/// If the connection ends before the response to a call of a method with `#[rpc(once)]`, a [client
/// that reconnects](ClientBuilder::connect_any) sends the call again to the same server, until the
/// deadline of the call. The server executes the call at most once: its handler continues without
/// the connection, and the repeated call gets its answer. If the server process was restarted or
/// has dropped the answer, the call is not executed again and fails with
/// [`Error::ExecutionUnknown`]. The result and the error of such a method must be `Clone`, `Send`
/// and `Sync`. The results cannot contain a [`Bulk`]: a call that returns a bulk fails with
/// [`Error::BadResponse`]. A bulk in an argument is accessible until the connection of its request
/// ends, even if the handler continues.
///
/// A server keeps at most 256 unacknowledged answers of a client, for at most 1024 clients, and in
/// total about 256 MiB. Of the 65,536 clients whose answers were removed last, the server keeps the
/// highest sequence number of an executed call, and refuses all requests up to this number. Of
/// earlier clients, the server keeps nothing. The server then refuses repeated requests of unknown
/// clients, and first requests on connections that were accepted before the last 65,536
/// removals.
///
/// A handler counts against the limits of the server until the handler ends, even if its call was
/// cancelled. The number of running handlers of a client is limited to the
/// [concurrency](Server::concurrency) of the server, but at least 256. Further calls fail with
/// [`Error::Overloaded`]. If each of the 1024 clients has a running handler, the first call of
/// another client fails with the same error. [`ServerHandle::shutdown`] does not wait for handlers
/// whose call was cancelled or whose connection has ended.
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
pub use outbox::SendCounts;
pub use payload::Payload;
#[cfg(feature = "reflection")]
pub use reflection::{
    CallCounts, Fields, Format, MethodDescription, Reflection, ReflectionClient, ReflectionServer,
    Schema, TypeDescription, TypeFormat,
};
pub use server::{CallInfo, Context, Server, ServerHandle, Service};
pub use stream::{Receiver, Sender};

/// Items for generated code, which are not part of the public interface.
#[doc(hidden)]
pub mod generated {
    pub use crate::codec::{RawCodec, ServiceCodec};
    pub use crate::method::MethodInfo;
    pub use crate::once::execute_once;
    pub use crate::server::{Call, Methods, Role};

    /// Registers a type in the signature of a method for reflection. `role` is the part of the
    /// signature, `name` the name of the argument or stream, and `text` the source text of the
    /// type.
    ///
    /// Generated code also calls this function so that the compiler checks that the codec supports
    /// the type. An error is then reported at the position of the type in the trait.
    pub fn check<C: crate::Encode<T> + crate::Decode<T>, T>(
        methods: &mut Methods,
        method: &'static MethodInfo,
        role: Role,
        [name, text]: [&'static str; 2],
    ) {
        methods.describe::<C, T>(method, role, [name, text]);
    }
}
