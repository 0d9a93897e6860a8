//! RDMA as futures, on tokio.
//!
//! Two ends connect over TCP, and from then on move bytes by RDMA: messages with kept boundaries,
//! reads and writes of each other's memory, atomics, and memory handed from one to the other.
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
//! # What it does
//!
//! - **A device is opened once** ([`RdmaDevice`]) and shared by all connections that are made from it:
//!   its memory, and for each runtime one completion queue, one shared receive queue and one task. An
//!   idle connection keeps one descriptor, that of its TCP connection.
//! - **Memory is safe**, whatever is dropped, forgotten or cancelled: an operation in flight holds a
//!   claim on its memory until the device is done with it. Operations borrow their memory, or own it
//!   and give it back ([`Rdma::write_owned`]).
//! - **A grant ends at the device.** Memory is lent by a registration of its own, which is removed
//!   before the memory is anybody else's; a peer that comes late gets a remote access error.
//! - **No sender overruns a receiver**: messages have credits, which travel with other messages.
//! - **A future polls once and then waits.** The task of the runtime polls for all futures that wait, for
//!   a bounded time, and then sleeps until the device announces a completion: [`CompletionMode`].
//! - **Requests of one turn of the scheduler leave together**, under one doorbell; a request that finds
//!   none in flight leaves at once. Requests that nobody awaits, as those of [`Rdma::post`], leave with
//!   the turn too, so the runtime must be driven on, or the connection dropped.
//! - **Every wait can have an end**: [`Rdma::within`] ends the connection of an operation that takes too
//!   long, [`Rdma::close`] waits until the peer has everything, and an idle connection notices that its
//!   peer is gone ([`RdmaBuilder::keep_alive`]).
//! - **A message can be handled within the poll** that finds it, before any task is woken:
//!   [`Rdma::handle_messages`].
//! - **No task keeps the others waiting**: operations count against tokio's budget, also those that
//!   are done at once.
//! - Nothing of this crate allocates for an operation; asking for and handing over memory does, and so
//!   does a message above [`RdmaBuilder::message_length`], whose memory is lent to the peer until it has
//!   read it.
//!
//! # What it does not do
//!
//! It does not reconnect. It trusts the peer with the memory that it lends it, and no other: what a
//! peer says is checked, and one that breaks the protocol is disconnected.

#![forbid(unsafe_code)]

mod builder;
mod connection;
mod device;
mod error;
mod handshake;
mod listener;
mod memory;
mod owned;
mod rdma;
mod shard;
mod vectored;
mod within;

pub use builder::{CompletionMode, RdmaBuilder};
pub use connection::{Message, Poster};
pub use device::RdmaDevice;
pub use error::{Error, Execution, Result};
pub use listener::RdmaListener;
pub use memory::{
    LocalMr, LocalMrReadAccess, LocalMrSlice, LocalMrSliceMut, LocalMrWriteAccess, NotJoined,
    RemoteMr, RemoteMrReadAccess, RemoteMrSlice, RemoteMrSliceMut, RemoteMrWriteAccess,
    SharedRemoteMr,
};
pub use rdma::Rdma;
