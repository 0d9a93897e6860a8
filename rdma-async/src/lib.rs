//! RDMA connections on tokio, whose operations are futures.
//!
//! Two ends connect over TCP or by another [`Connector`], and then transfer data by RDMA: messages
//! with boundaries, reads and writes of the peer's memory, atomics, and memory regions that one end
//! lends to the other.
//!
//! ```
//! use std::alloc::Layout;
//!
//! use rdma_async::{LocalMrReadAccess, LocalMrWriteAccess, RdmaBuilder};
//!
//! # #[tokio::main]
//! # async fn main() -> Result<(), rdma_async::Error> {
//! let mut listener = RdmaBuilder::default().bind("127.0.0.1:0").await?;
//! let address = listener.local_address()?;
//! let server = async {
//!     let rdma = listener.accept().await?;
//!     let region = rdma.receive_local_mr().await?;
//!     assert_eq!(region.as_slice(), [1; 8]);
//!     Ok::<_, rdma_async::Error>(rdma)
//! };
//! let client = async {
//!     let rdma = RdmaBuilder::default().connect(address).await?;
//!     let layout = Layout::new::<[u8; 8]>();
//!     let mut remote = rdma.request_remote_mr(layout).await?;
//!     let mut local = rdma.alloc_local_mr(layout)?;
//!     local.as_mut_slice().fill(1);
//!     rdma.write(&local, &mut remote).await?;
//!     rdma.send_remote_mr(remote).await?;
//!     Ok::<_, rdma_async::Error>(rdma)
//! };
//! tokio::try_join!(server, client)?;
//! # Ok(())
//! # }
//! ```
//!
//! # Features
//!
//! - **A device is opened once** ([`RdmaDevice`]). All connections of the device share its memory.
//!   Connections with the same runtime, completion mode and message length also share one
//!   completion queue, one shared receive queue and one task. An idle connection uses one file
//!   descriptor, for its TCP connection.
//! - **Memory is safe** even if futures are dropped, forgotten or cancelled: an operation in flight
//!   holds a claim on its memory until the device has finished. An operation borrows its memory, or
//!   owns it and returns it ([`Rdma::write_owned`]).
//! - **Memory of the program needs no copy**: a device registers owners such as `Vec<u8>` and
//!   `Arc<[u8]>` ([`RdmaDevice::register`]), and a [`RegistrationCache`] keeps the registrations.
//! - **Remote access ends at the device.** Lent memory has a registration or a memory window of
//!   its own, which ends before the memory is reused. A later access of the peer gets a remote
//!   access error.
//! - **Flow control**: each message needs a credit, a permission to send one message, which the
//!   receiver gives. Credits are returned in the headers of other messages.
//! - **A future polls once and then waits.** The task of the runtime polls for all waiting futures
//!   for a bounded time, and then sleeps until a completion event ([`CompletionMode`]).
//! - **Requests are batched**: the requests of one turn of the scheduler are posted to the device
//!   together, with one doorbell. If no request is in flight, a request is posted immediately.
//!   Requests of [`Rdma::post`] are batched too: run the runtime, or drop the connection, to send
//!   them.
//! - **Every wait can be limited**: [`Rdma::within`] ends the connection if an operation takes too
//!   long, [`Rdma::close`] waits for a limited time until the peer has received everything, and an
//!   idle connection detects that its peer is unreachable ([`RdmaBuilder::keep_alive`]).
//! - **A message can be handled within the poll** that finds it, before any task is woken:
//!   [`Rdma::handle_messages`].
//! - **Peers can be authenticated** before they get any memory ([`Authenticator`]). Peers that
//!   connect and send nothing do not block other peers.
//! - **Datagrams** go to any number of peers and multicast groups from one [`DatagramSocket`].
//! - **A task can keep many reads and writes in flight** without a future for each of them:
//!   [`Rdma::pipeline`].
//! - **No task starves other tasks**: operations count against tokio's cooperative budget, even if
//!   they complete immediately.
//! - **No operation allocates on the heap**, except requests for memory, transfers of memory, and
//!   messages longer than [`RdmaBuilder::message_length`], whose memory is lent to the peer until
//!   the peer has read it.
//!
//! # Limits
//!
//! A connection does not reconnect by itself; [`Reconnect`] replaces connections that have ended.
//! The peer can access only memory that was lent to that peer. Every message of the peer is
//! checked, and a peer that violates the protocol is disconnected.

#![forbid(unsafe_code)]

mod authentication;
mod builder;
mod cm;
mod connection;
mod connector;
mod datagram;
mod device;
mod error;
mod events;
mod exchange;
mod half_open;
mod handshake;
mod lend;
mod listener;
mod memory;
mod observe;
mod owned;
mod publish;
mod rdma;
mod reconnect;
mod reserve;
mod shard;
#[cfg(feature = "shared-secret")]
mod shared_secret;
mod stream;
#[cfg(all(test, not(loom_models)))]
mod testing;
mod vectored;
mod within;

pub use authentication::{Authenticator, End, Transcript};
pub use builder::{CompletionMode, RdmaBuilder};
pub use cm::{CmConnector, CmListener};
pub use connection::{Message, Pipeline, Poster};
pub use connector::{Connector, Listener, TcpConnector};
pub use datagram::{Datagram, DatagramAddress, DatagramPeer, DatagramSocket, GroupMember};
pub use device::RdmaDevice;
pub use error::{Error, Execution, Result};
pub use events::DeviceEvents;
pub use exchange::{Exchange, PreparedRdma};
pub use lend::Lent;
pub use listener::RdmaListener;
pub use memory::{
    CacheStatistics, GrantedMemory, LocalMr, LocalMrReadAccess, LocalMrSlice, LocalMrSliceMut,
    LocalMrWriteAccess, NotJoined, PoolOptions, PoolStatistics, RegistrationCache, RemoteMr,
    RemoteMrReadAccess, RemoteMrSlice, RemoteMrSliceMut, RemoteMrWriteAccess, SharedLocalMr,
    SharedRemoteMr,
};
pub use publish::{Announcer, Published, PublishedReader, ReaderRight};
pub use rdma::Rdma;
pub use reconnect::{Backoff, Reconnect};
pub use reserve::{Grant, Reserved};
#[cfg(feature = "shared-secret")]
pub use shared_secret::SharedSecret;
#[cfg(feature = "hyper")]
pub use stream::{Connecting, RdmaConnector};
pub use stream::{
    Incoming, NotReunited, OwnedReadHalf, OwnedWriteHalf, RdmaStream, ReadHalf, StreamChunk,
    WriteHalf,
};
