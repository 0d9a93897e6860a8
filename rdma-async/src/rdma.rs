//! Connections, and what can be done on them.

use std::alloc::Layout;
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use rdma_core::{QueuePair, RemoteMemory};
use tokio::sync::oneshot;

use crate::connection::{Connection, Message, Poster, Push, Work};
use crate::device::RdmaDevice;
use crate::error::{Error, Result};
use crate::memory::{
    LocalMr, LocalMrReadAccess, LocalMrWriteAccess, RemoteMr, RemoteMrReadAccess,
    RemoteMrWriteAccess,
};
use crate::within::Within;
/// A connection to a peer.
///
/// Every operation takes `&self`, so that any number of tasks can use it at once. When more are
/// started than the send queue holds, they wait their turn. Dropping a future leaves its operation in
/// flight: its memory stays claimed until it has completed. A future that is forgotten
/// ([`std::mem::forget`]) after it was polled keeps its place in the send queue as well.
///
/// The runtime that it was made on serves it; on any other it can be used, and it ends with its own.
///
/// A connection that is dropped is kept in the background, for at most a second while its runtime runs,
/// until the peer's device has acknowledged all messages that were sent or posted, and the peer has
/// closed its end. Messages that the peer has not acknowledged by then are lost. Dropping the runtime
/// waits for these acknowledgements, for at most a second for each connection.
///
/// The first operation that fails ends the connection, as a queue pair does, and so does the peer's
/// going away; what is outstanding and what is started afterwards fails with the cause.
/// What the peer sent before is still received.
#[derive(Debug)]
pub struct Rdma {
    connection: Arc<Connection>,
    /// Takes the connection when this value is dropped.
    task: Option<oneshot::Sender<Arc<Connection>>>,
    local: SocketAddr,
    peer: SocketAddr,
}

impl Rdma {
    pub(crate) fn new(
        connection: Arc<Connection>,
        task: oneshot::Sender<Arc<Connection>>,
        local: SocketAddr,
        peer: SocketAddr,
    ) -> Self {
        Self {
            connection,
            task: Some(task),
            local,
            peer,
        }
    }

    /// This end's TCP address.
    pub fn local_address(&self) -> SocketAddr {
        self.local
    }

    /// The peer's TCP address.
    pub fn peer_address(&self) -> SocketAddr {
        self.peer
    }

    pub(crate) fn connection(&self) -> &Connection {
        &self.connection
    }

    /// Returns the device of the connection.
    pub fn device(&self) -> &RdmaDevice {
        self.connection.device()
    }

    /// The queue pair underneath.
    pub fn queue_pair(&self) -> &QueuePair {
        self.connection.queue_pair()
    }

    /// Why the connection has ended; `None` while it has not.
    pub fn failure(&self) -> Option<Error> {
        self.connection.failure().cloned()
    }

    /// Waits until the connection has ended, and returns why.
    pub async fn ended(&self) -> Error {
        self.connection.wait_for_end().await
    }

    /// Waits for an operation on this connection, for at most `limit` from when it begins to wait. An
    /// operation that takes longer ends the connection: its queue pair goes to the error state, so that
    /// the device touches the memory of no operation any more.
    ///
    /// The limit counts in milliseconds. An operation that ends without waiting costs nothing more.
    ///
    /// ```
    /// # use std::alloc::Layout;
    /// use std::time::Duration;
    /// # #[tokio::main]
    /// # async fn main() -> Result<(), rdma_async::Error> {
    /// # use rdma_async::RdmaBuilder;
    /// use rdma_async::{Error, Execution};
    /// # let mut listener = RdmaBuilder::default().bind("127.0.0.1:0").await?;
    /// # let address = listener.local_address()?;
    /// # let (client, server) =
    /// #     tokio::try_join!(RdmaBuilder::default().connect(address), listener.accept())?;
    /// // The peer sends nothing.
    /// let outcome = client.within(Duration::from_millis(20), client.receive()).await;
    /// assert!(matches!(outcome, Err(Error::DeadlineExceeded { .. })));
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// [`Error::DeadlineExceeded`], which says whether the peer may have executed the operation, and the
    /// errors of the operation.
    pub async fn within<T>(
        &self,
        limit: Duration,
        operation: impl Future<Output = Result<T>>,
    ) -> Result<T> {
        let operation = pin!(operation);
        Within::new(&self.connection, limit, operation).await
    }

    /// Waits until the peer has everything that was sent or posted, and drops the connection.
    ///
    /// The peer's program need not have received it: messages of one piece are in memory of the peer, and
    /// longer ones have been read.
    ///
    /// ```
    /// # use std::alloc::Layout;
    /// # #[tokio::main]
    /// # async fn main() -> Result<(), rdma_async::Error> {
    /// # use rdma_async::RdmaBuilder;
    /// # let mut listener = RdmaBuilder::default().bind("127.0.0.1:0").await?;
    /// # let address = listener.local_address()?;
    /// # let (client, server) =
    /// #     tokio::try_join!(RdmaBuilder::default().connect(address), listener.accept())?;
    /// let message = client.alloc_local_mr(Layout::new::<[u8; 8]>())?;
    /// client.post(&message).await?;
    /// client.close().await?;
    /// server.receive().await?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// Why the connection has ended, if that was before the peer had everything, and [`Error::Timeout`]
    /// if the peer takes longer than [`RdmaBuilder::response_timeout`](crate::RdmaBuilder::response_timeout).
    pub async fn close(self) -> Result<()> {
        self.connection.settle().await
    }

    /// Has messages of one piece handled by `handle` within the poll that finds them, before any task is
    /// woken. A message that `handle` returns is left to [`Self::receive`].
    ///
    /// The handler keeps every other completion of the runtime waiting, so it must be short, and must not
    /// block. If it panics, the connection ends. Messages that have arrived before this are left to
    /// [`Self::receive`].
    ///
    /// ```
    /// # use std::alloc::Layout;
    /// # #[tokio::main]
    /// # async fn main() -> Result<(), rdma_async::Error> {
    /// # use rdma_async::RdmaBuilder;
    /// # let mut listener = RdmaBuilder::default().bind("127.0.0.1:0").await?;
    /// # let address = listener.local_address()?;
    /// # let (client, server) =
    /// #     tokio::try_join!(RdmaBuilder::default().connect(address), listener.accept())?;
    /// // An echo: what cannot be posted at once is left to `receive`.
    /// server.handle_messages(|message, poster| match poster.try_post(&message.region) {
    ///     Ok(true) => None,
    ///     _ => Some(message),
    /// })?;
    /// let message = client.alloc_local_mr(Layout::new::<[u8; 8]>())?;
    /// client.send(&message).await?;
    /// client.receive().await?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// [`Error::InvalidArgument`] if the connection has a handler already.
    pub fn handle_messages(
        &self,
        handle: impl Fn(Message, &Poster<'_>) -> Option<Message> + Send + Sync + 'static,
    ) -> Result<()> {
        self.connection.handle_messages(handle)
    }

    /// Posts a message as [`Self::post`] does, if that needs no wait. Returns whether it was posted: not
    /// while the peer takes no more messages, nor while the send queue is full.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidArgument`] for a message that is longer than one piece, [`Error::Verbs`] if the
    /// device refuses it, and why the connection has ended.
    pub fn try_post(&self, message: &impl LocalMrReadAccess) -> Result<bool> {
        self.connection.try_post_message(message)
    }

    /// Allocates registered memory, zeroed. Memory that was dropped is used again.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidArgument`] for a size of 0, [`Error::Verbs`] if it cannot be registered.
    #[doc(alias = "ibv_reg_mr")]
    pub fn alloc_local_mr(&self, layout: Layout) -> Result<LocalMr> {
        self.device().alloc_local_mr(layout)
    }

    /// Allocates registered memory that holds what its last use left: for who overwrites it anyway.
    ///
    /// # Errors
    ///
    /// As [`Self::alloc_local_mr`].
    pub fn alloc_local_mr_stale(&self, layout: Layout) -> Result<LocalMr> {
        self.device().alloc_local_mr_stale(layout)
    }

    /// Has the peer allocate memory, zeroed, for this end to use.
    ///
    /// # Errors
    ///
    /// [`Error::Refused`] if the peer would lend more than its limit or has no memory,
    /// [`Error::Timeout`] if it does not answer, and why the connection has ended.
    pub async fn request_remote_mr(&self, layout: Layout) -> Result<RemoteMr> {
        if layout.size() == 0 {
            return Err(Error::invalid(
                "remote memory region",
                "0 bytes cannot be registered",
            ));
        }
        self.connection.request_remote(layout).await
    }

    /// Writes all of `local` to the start of `remote`.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidArgument`] if it does not fit, [`Error::Work`] if the peer's device refuses,
    /// and why the connection has ended.
    #[doc(alias = "IBV_WR_RDMA_WRITE")]
    pub async fn write(
        &self,
        local: &impl LocalMrReadAccess,
        remote: &mut impl RemoteMrWriteAccess,
    ) -> Result<()> {
        let remote = fits(local.length(), remote)?;
        if let Some(operation) = self.connection.try_write(local, remote)? {
            return operation.await.map(drop);
        }
        let push = Push::Write {
            remote,
            immediate: None,
        };
        self.connection.write(local, push).await
    }

    /// Writes like [`Self::write`], and gives the peer a number that
    /// [`Self::receive_write_immediate`] returns there.
    ///
    /// # Errors
    ///
    /// As [`Self::write`].
    #[doc(alias = "IBV_WR_RDMA_WRITE_WITH_IMM")]
    #[doc(alias = "write_with_imm")]
    pub async fn write_with_immediate(
        &self,
        local: &impl LocalMrReadAccess,
        remote: &mut impl RemoteMrWriteAccess,
        immediate: u32,
    ) -> Result<()> {
        let push = Push::Write {
            remote: fits(local.length(), remote)?,
            immediate: Some(immediate),
        };
        self.connection.write_and_tell(local, push).await
    }

    /// Waits for the peer's next write with a number, and returns the number.
    ///
    /// # Errors
    ///
    /// Why the connection has ended.
    #[doc(alias = "receive_write_imm")]
    pub async fn receive_write_immediate(&self) -> Result<u32> {
        self.connection.receive_write_immediate().await
    }

    /// Reads from the start of `remote` into all of `local`.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidArgument`] if `remote` is shorter, [`Error::Work`] if the peer's device
    /// refuses, and why the connection has ended.
    #[doc(alias = "IBV_WR_RDMA_READ")]
    pub async fn read(
        &self,
        local: &mut impl LocalMrWriteAccess,
        remote: &impl RemoteMrReadAccess,
    ) -> Result<()> {
        let remote = fits(local.length(), remote)?;
        if let Some(operation) = self.connection.try_read(local, remote)? {
            return operation.await.map(drop);
        }
        self.connection.read(local, Work::Read { remote }).await
    }

    /// Replaces the eight bytes of `remote` by `desired` if they are `expected`, at once, and returns
    /// what they were.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidArgument`] if `remote` is not eight bytes at an address that is a multiple of
    /// eight, [`Error::Work`] if the peer's device refuses, and why the connection has ended.
    #[doc(alias = "IBV_WR_ATOMIC_CMP_AND_SWP")]
    #[doc(alias = "atomic_cas")]
    pub async fn compare_and_swap(
        &self,
        remote: &mut impl RemoteMrWriteAccess,
        expected: u64,
        desired: u64,
    ) -> Result<u64> {
        word(remote)?;
        let work = Work::CompareAndSwap {
            remote: remote.memory(),
            expected,
            desired,
        };
        self.connection.perform_atomic(work).await
    }

    /// Adds to the eight bytes of `remote`, at once and wrapping, and returns what they were.
    ///
    /// # Errors
    ///
    /// As [`Self::compare_and_swap`].
    #[doc(alias = "IBV_WR_ATOMIC_FETCH_AND_ADD")]
    pub async fn fetch_and_add(
        &self,
        remote: &mut impl RemoteMrWriteAccess,
        add: u64,
    ) -> Result<u64> {
        word(remote)?;
        let remote = remote.memory();
        self.connection
            .perform_atomic(Work::FetchAndAdd { remote, add })
            .await
    }

    /// Sends a message, of any length; the peer receives it as one. Resolves when it has arrived.
    ///
    /// # Errors
    ///
    /// [`Error::Refused`] if it is longer than the peer receives, and why the connection has ended.
    #[doc(alias = "IBV_WR_SEND")]
    pub async fn send(&self, message: &impl LocalMrReadAccess) -> Result<()> {
        self.connection.send(message, None).await
    }

    /// Sends a message without waiting for it to arrive: resolves when the device has it. One too long
    /// for a single piece is waited for as by [`Self::send`]. If it does not arrive, the connection
    /// ends.
    ///
    /// # Errors
    ///
    /// As [`Self::send`].
    pub async fn post(&self, message: &impl LocalMrReadAccess) -> Result<()> {
        self.connection.post_message(message).await
    }

    /// Sends a message with a number.
    ///
    /// # Errors
    ///
    /// As [`Self::send`].
    #[doc(alias = "IBV_WR_SEND_WITH_IMM")]
    #[doc(alias = "send_with_imm")]
    pub async fn send_with_immediate(
        &self,
        message: &impl LocalMrReadAccess,
        immediate: u32,
    ) -> Result<()> {
        self.connection.send(message, Some(immediate)).await
    }

    /// Waits for the peer's next message. Cancel-safe: a message is received or still to be received.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidArgument`] for a message above the limit, and why the connection has ended.
    pub async fn receive(&self) -> Result<LocalMr> {
        self.connection.receive().await.map(|(message, _)| message)
    }

    /// Waits for the peer's next message, and returns the number with it, if it has one.
    ///
    /// # Errors
    ///
    /// As [`Self::receive`].
    #[doc(alias = "receive_with_imm")]
    pub async fn receive_with_immediate(&self) -> Result<(LocalMr, Option<u32>)> {
        self.connection.receive().await
    }

    /// Lends memory to the peer, which gets it from [`Self::receive_remote_mr`]. It comes back from
    /// [`Self::receive_local_mr`] if the peer sends it back. Dropping the future before it was sent
    /// drops the memory.
    ///
    /// # Errors
    ///
    /// [`Error::Verbs`] if an operation still has it, and why the connection has ended.
    pub async fn send_local_mr(&self, region: LocalMr) -> Result<()> {
        self.connection.offer(region).await
    }

    /// Gives memory back to the peer, which gets it from [`Self::receive_local_mr`]. Dropping the
    /// future before it was sent drops the memory, which lets the peer free it.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidArgument`] for memory that is not of this connection, and why the connection
    /// has ended.
    pub async fn send_remote_mr(&self, region: RemoteMr) -> Result<()> {
        self.connection.give_back(region).await
    }

    /// Waits for memory that the peer gives back: it requested it, or it was sent it. The peer's
    /// access has ended when this returns.
    ///
    /// # Errors
    ///
    /// Why the connection has ended.
    pub async fn receive_local_mr(&self) -> Result<LocalMr> {
        self.connection.receive_returned().await
    }

    /// Waits for memory that the peer lends.
    ///
    /// # Errors
    ///
    /// Why the connection has ended.
    pub async fn receive_remote_mr(&self) -> Result<RemoteMr> {
        self.connection.receive_offer().await
    }
}

impl Drop for Rdma {
    /// Hands the connection to its task, which keeps it until the peer has the last messages. Where
    /// the task has ended with its runtime, it has seen to that already.
    fn drop(&mut self) {
        if let Some(task) = self.task.take() {
            drop(task.send(Arc::clone(&self.connection)));
        }
    }
}

/// Returns the remote memory, which has room for `len` bytes.
#[inline]
pub(crate) fn fits(len: usize, remote: &impl RemoteMrReadAccess) -> Result<RemoteMemory> {
    let memory = remote.memory();
    if len as u64 <= memory.len {
        return Ok(memory);
    }
    Err(too_long(len, memory))
}

#[cold]
fn too_long(len: usize, memory: RemoteMemory) -> Error {
    let reason = format!("it has {} bytes, and the local memory {len}", memory.len);
    Error::invalid("remote memory", reason)
}

fn word(remote: &impl RemoteMrReadAccess) -> Result<()> {
    let memory = remote.memory();
    if memory.len == 8 && memory.address.is_multiple_of(8) {
        return Ok(());
    }
    let reason = format!(
        "an atomic needs eight bytes at a multiple of eight, and these are {} at {:#x}",
        memory.len, memory.address
    );
    Err(Error::invalid("remote memory", reason))
}
