//! [`Rdma`]: a connection to a peer, and the operations on it.

use std::alloc::Layout;
use std::fmt;
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;
use std::task::Context;
use std::time::Duration;

use rdma_core::{QueuePair, RemoteMemory};
use tokio::sync::oneshot;

use crate::connection::{Connection, Message, Pipeline, Poster, Push, Work};
use crate::device::RdmaDevice;
use crate::error::{Error, Result};
use crate::memory::{
    GrantedMemory, LocalMr, LocalMrReadAccess, LocalMrWriteAccess, RemoteMr, RemoteMrReadAccess,
    RemoteMrWriteAccess,
};
use crate::observe::{observed, observed_arrival};
use crate::within::Within;

/// A connection to a peer: sends and receives messages, and accesses memory that the peer lends.
///
/// Every operation takes `&self`, so that any number of tasks can use the connection concurrently.
/// Operations that exceed the capacity of the send queue wait until there is room. Dropping a
/// future leaves its operation in flight. Until the operation has completed, the program cannot
/// change local memory that the operation reads, and cannot access local memory that the operation
/// writes. Forgetting a polled future ([`std::mem::forget`]) also leaves its operation in flight. A
/// forgotten future can occupy a credit (permission to send a message), or one of the 64 slots for
/// results of atomics, until the connection ends.
///
/// The connection is driven by the runtime on which it was created, and ends with that runtime.
/// Tasks of other runtimes can use it.
///
/// After a connection is dropped, its runtime keeps the connection in the background until the
/// peer's device has acknowledged all messages that were sent or posted, and the peer has closed
/// its end. The connection is kept for at most one second. After that second, messages without an
/// acknowledgement are lost. Dropping the runtime waits for these acknowledgements, at most one
/// second for each connection.
///
/// The connection ends if an operation fails or if the peer becomes unreachable. All outstanding
/// and later operations then fail. [`Error::execution`] returns whether the peer may have executed
/// the operation. Messages that arrived before can still be received.
pub struct Rdma {
    connection: Arc<Connection>,
    /// Channel through which the drop of this value passes the connection to its task.
    task: Option<oneshot::Sender<Arc<Connection>>>,
    local: SocketAddr,
    peer: SocketAddr,
}

impl fmt::Debug for Rdma {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Rdma")
            .field("local", &self.local)
            .field("peer", &self.peer)
            .field("queue_pair", &self.queue_pair().number())
            .field("failure", &self.connection.failure())
            .finish_non_exhaustive()
    }
}

impl Rdma {
    pub(crate) fn new(
        connection: Arc<Connection>,
        task: oneshot::Sender<Arc<Connection>>,
        local: SocketAddr,
        peer: SocketAddr,
    ) -> Self {
        connection
            .span()
            .record("peer", tracing::field::display(peer));
        Self {
            connection,
            task: Some(task),
            local,
            peer,
        }
    }

    /// Returns the address of this end: the address of the TCP connection or of the connection
    /// manager. If the connection uses neither ([`PreparedRdma`](crate::PreparedRdma),
    /// [`Exchange`](crate::Exchange)), returns the IP address of the GID, and port 0.
    pub fn local_address(&self) -> SocketAddr {
        self.local
    }

    /// Returns the address of the peer: the address of the TCP connection or of the connection
    /// manager. If the connection uses neither, returns the IP address of the peer's GID, and port
    /// 0.
    pub fn peer_address(&self) -> SocketAddr {
        self.peer
    }

    pub(crate) fn connection(&self) -> &Connection {
        &self.connection
    }

    pub(crate) fn connection_arc(&self) -> &Arc<Connection> {
        &self.connection
    }

    /// Returns the device that the connection uses, for example to allocate memory.
    pub fn device(&self) -> &RdmaDevice {
        self.connection.device()
    }

    /// Returns the queue pair that the connection uses, for example to query its number or state.
    pub fn queue_pair(&self) -> &QueuePair {
        self.connection.queue_pair()
    }

    /// Returns the tracing span of the connection, with its device, queue pair and peer. Events of
    /// the connection are in this span. A program can [enter](tracing::Span::enter) the span for
    /// its own events.
    pub fn span(&self) -> &tracing::Span {
        self.connection.span()
    }

    /// Returns the error that ended the connection, or `None` while the connection is open.
    pub fn failure(&self) -> Option<Error> {
        self.connection.failure().cloned()
    }

    /// Waits until the connection has ended, and returns the error that ended the connection.
    pub async fn ended(&self) -> Error {
        self.connection.wait_for_end().await
    }

    /// Runs an operation on this connection with a time limit. The time starts when the operation
    /// first has to wait. An operation that exceeds the limit ends the connection: the queue pair
    /// enters the error state, so that the device no longer accesses the memory of any operation.
    ///
    /// The limit is rounded up to milliseconds. Operations that complete without waiting have no
    /// extra cost.
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
    /// [`Error::DeadlineExceeded`] if the limit was exceeded. The errors of the operation.
    pub async fn within<T>(
        &self,
        limit: Duration,
        operation: impl Future<Output = Result<T>>,
    ) -> Result<T> {
        let operation = pin!(operation);
        Within::new(&self.connection, limit, operation).await
    }

    /// Waits until the peer has received everything that was sent or posted, and closes the
    /// connection.
    ///
    /// Messages of one piece (at most the peer's
    /// [`RdmaBuilder::message_length`](crate::RdmaBuilder::message_length) bytes) are then in the
    /// peer's memory, but the peer's program has perhaps not received them yet. Longer messages
    /// have been read by the peer.
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
    /// The error that ended the connection before all messages were received. [`Error::Timeout`]
    /// after [`RdmaBuilder::response_timeout`](crate::RdmaBuilder::response_timeout).
    pub async fn close(self) -> Result<()> {
        self.connection.wait_until_delivered().await
    }

    /// Sets a handler that is called for each message of one piece (at most
    /// [`RdmaBuilder::message_length`](crate::RdmaBuilder::message_length) bytes). The poll of the
    /// completion queue that finds the message calls the handler, before any task is woken. A
    /// message that the handler returns is delivered to [`Self::receive`].
    ///
    /// The handler delays every other completion of the runtime, so it must be short and must not
    /// block. If the handler panics, the connection ends. Messages that arrived before this call,
    /// and messages longer than one piece, are delivered to [`Self::receive`].
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
    /// // Echoes each message. A message that cannot be posted immediately goes to `receive`.
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
    /// [`Error::InvalidArgument`] if a handler was already set.
    pub fn handle_messages(
        &self,
        handle: impl Fn(Message, &Poster<'_>) -> Option<Message> + Send + Sync + 'static,
    ) -> Result<()> {
        self.connection.handle_messages(handle)
    }

    /// Posts a message like [`Self::post`], but never waits. Returns `false`, and posts nothing, if
    /// the send queue is full, or if no credit is available. A credit is a permission to send one
    /// message, which the peer gives.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidArgument`] if the message is longer than the peer's
    /// [`message_length`](crate::RdmaBuilder::message_length). [`Error::Verbs`] if the device
    /// refuses the request. Otherwise the error that ended the connection.
    pub fn try_post(&self, message: &impl LocalMrReadAccess) -> Result<bool> {
        self.connection.try_post_message(message)
    }

    /// Polls the completion queue for at most `limit` until `attempt` returns a value. Calls
    /// `attempt` after each poll that has found completions. Useful in a future that waits for a
    /// message to be handled ([`Self::handle_messages`]), before it returns `Pending`: if the
    /// message arrives within `limit`, polling is faster than a wakeup. `cx` is the context of the
    /// calling task.
    ///
    /// Returns `None` if no value was found. Always returns `None`, without polling, in the mode
    /// [`CompletionMode::Event`](crate::CompletionMode). Also returns `None`, without polling, when
    /// polling could delay another task:
    /// * The runtime has several threads.
    /// * Another future waits, for example for a message, or another task called this function
    ///   last.
    /// * The task has polled in each of its last seven calls, or has polled for `limit` without a
    ///   value in one of its last 16 calls.
    pub fn poll_briefly<T>(
        &self,
        cx: &Context<'_>,
        limit: Duration,
        attempt: impl FnMut() -> Option<T>,
    ) -> Option<T> {
        self.connection.poll_as_lone_task(cx, limit, attempt)
    }

    /// Allocates zeroed, registered memory for operations and messages. Memory of dropped regions
    /// is reused.
    ///
    /// # Errors
    ///
    /// The errors of [`RdmaDevice::alloc_local_mr`].
    #[doc(alias = "ibv_reg_mr")]
    pub fn alloc_local_mr(&self, layout: Layout) -> Result<LocalMr> {
        self.device().alloc_local_mr(layout)
    }

    /// Allocates registered memory of the size and alignment in `layout` for operations of this
    /// connection. The memory is not zeroed, and can contain data of an earlier region.
    ///
    /// # Errors
    ///
    /// The errors of [`RdmaDevice::alloc_local_mr_stale`].
    pub fn alloc_local_mr_stale(&self, layout: Layout) -> Result<LocalMr> {
        self.device().alloc_local_mr_stale(layout)
    }

    /// Requests zeroed memory from the peer, which allocates it and lends it to this end.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidArgument`] for a size of 0. [`Error::Refused`] if a limit of the peer would
    /// be exceeded, or if the peer cannot allocate the memory. [`Error::Refused`] also if the peer
    /// has not answered 4096 earlier requests. [`Error::Timeout`] if the peer does not answer.
    /// Otherwise the error that ended the connection.
    pub async fn request_remote_mr(&self, layout: Layout) -> Result<RemoteMr> {
        observed!(&self.connection, RequestMemory, layout.size(), {
            if layout.size() == 0 {
                return Err(Error::invalid(
                    "remote memory region",
                    "0 bytes cannot be registered",
                ));
            }
            self.connection.request_remote(layout).await
        })
    }

    /// Returns the amount of memory that the peer has requested and holds on this connection.
    pub fn granted_memory(&self) -> GrantedMemory {
        self.connection.granted_memory()
    }

    /// Creates a [`Pipeline`], by which one task can have up to `depth` reads and writes in flight
    /// at the same time. The depth is limited to the depth of the send queue
    /// ([`RdmaBuilder::send_depth`]).
    ///
    /// [`RdmaBuilder::send_depth`]: crate::RdmaBuilder::send_depth
    pub fn pipeline(&self, depth: usize) -> Pipeline<'_> {
        Pipeline::new(&self.connection, depth)
    }

    /// Writes all bytes of `local` to the start of `remote` by RDMA, and waits until the write has
    /// completed.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidArgument`] if `remote` is shorter than `local`. [`Error::Verbs`] if an
    /// operation is writing to `local`. [`Error::Work`] if the peer's device refuses the access.
    /// Otherwise the error that ended the connection.
    #[doc(alias = "IBV_WR_RDMA_WRITE")]
    pub async fn write(
        &self,
        local: &impl LocalMrReadAccess,
        remote: &mut impl RemoteMrWriteAccess,
    ) -> Result<()> {
        observed!(&self.connection, Write, local.length(), {
            let remote = check_remote(remote, local.length())?;
            if let Some(operation) = self.connection.try_write(local, remote)? {
                return operation.await.map(drop);
            }
            let push = Push::Write {
                remote,
                immediate: None,
            };
            self.connection.write(local, push).await
        })
    }

    /// Writes all bytes of `local` to the start of `remote`, like [`Self::write`], with the
    /// immediate data `immediate`. The peer receives the immediate data by
    /// [`Self::receive_write_immediate`]. Waits until the peer has a free receive, because the
    /// write consumes a receive of the peer, as a message does.
    ///
    /// # Errors
    ///
    /// The errors of [`Self::write`].
    #[doc(alias = "IBV_WR_RDMA_WRITE_WITH_IMM")]
    #[doc(alias = "write_with_imm")]
    pub async fn write_with_immediate(
        &self,
        local: &impl LocalMrReadAccess,
        remote: &mut impl RemoteMrWriteAccess,
        immediate: u32,
    ) -> Result<()> {
        observed!(&self.connection, WriteWithImmediate, local.length(), {
            let push = Push::Write {
                remote: check_remote(remote, local.length())?,
                immediate: Some(immediate),
            };
            self.connection.write_with_immediate(local, push).await
        })
    }

    /// Waits for the peer's next write with immediate data, and returns the immediate data.
    ///
    /// # Errors
    ///
    /// The error that ended the connection.
    #[doc(alias = "receive_write_imm")]
    pub async fn receive_write_immediate(&self) -> Result<u32> {
        observed!(&self.connection, ReceiveWriteImmediate, 0, {
            self.connection.receive_write_immediate().await
        })
    }

    /// Fills `local` with the bytes at the start of `remote` by RDMA, and waits until the read has
    /// completed. If the future is dropped, the read continues. Neither the program nor other
    /// operations can then access `local` until the read has completed.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidArgument`] if `remote` is shorter than `local`. [`Error::Verbs`] if an
    /// operation is using `local`. [`Error::Work`] if the peer's device refuses the access.
    /// Otherwise the error that ended the connection.
    #[doc(alias = "IBV_WR_RDMA_READ")]
    pub async fn read(
        &self,
        local: &mut impl LocalMrWriteAccess,
        remote: &impl RemoteMrReadAccess,
    ) -> Result<()> {
        observed!(&self.connection, Read, local.length(), {
            let remote = check_remote(remote, local.length())?;
            if let Some(operation) = self.connection.try_read(local, remote)? {
                return operation.await.map(drop);
            }
            self.connection.read(local, Work::Read { remote }).await
        })
    }

    /// Atomically compares the eight bytes of `remote` with `expected`, and replaces them by
    /// `desired` if they are equal. Returns the value of the bytes before the operation.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidArgument`] if `remote` is not eight bytes long or its address is not a
    /// multiple of eight. [`Error::Work`] if the peer's device refuses the access. Otherwise the
    /// error that ended the connection.
    #[doc(alias = "IBV_WR_ATOMIC_CMP_AND_SWP")]
    #[doc(alias = "atomic_cas")]
    pub async fn compare_and_swap(
        &self,
        remote: &mut impl RemoteMrWriteAccess,
        expected: u64,
        desired: u64,
    ) -> Result<u64> {
        observed!(&self.connection, CompareAndSwap, 8, {
            check_atomic(remote)?;
            let work = Work::CompareAndSwap {
                remote: remote.memory(),
                expected,
                desired,
            };
            self.connection.perform_atomic(work).await
        })
    }

    /// Atomically adds `add` to the eight bytes of `remote`, and returns the value of the bytes
    /// before the addition. The addition wraps on overflow.
    ///
    /// # Errors
    ///
    /// The errors of [`Self::compare_and_swap`].
    #[doc(alias = "IBV_WR_ATOMIC_FETCH_AND_ADD")]
    pub async fn fetch_and_add(
        &self,
        remote: &mut impl RemoteMrWriteAccess,
        add: u64,
    ) -> Result<u64> {
        observed!(&self.connection, FetchAndAdd, 8, {
            check_atomic(remote)?;
            let remote = remote.memory();
            self.connection
                .perform_atomic(Work::FetchAndAdd { remote, add })
                .await
        })
    }

    /// Sends a message of any length, which the peer receives as one message. A message of at most
    /// the peer's [`RdmaBuilder::message_length`](crate::RdmaBuilder::message_length) is sent in
    /// one piece: this function waits until the message has arrived in the peer's memory. A longer
    /// message is read by the peer: this function waits until the peer has read the message.
    ///
    /// # Errors
    ///
    /// [`Error::Refused`] if the message is above the peer's limit, or if the peer has no memory
    /// for the message. [`Error::Refused`] also if the peer has not answered 4096 earlier long
    /// messages and requests for memory. [`Error::Verbs`] if another operation is writing to the
    /// message. Otherwise the error that ended the connection.
    #[doc(alias = "IBV_WR_SEND")]
    pub async fn send(&self, message: &impl LocalMrReadAccess) -> Result<()> {
        observed!(&self.connection, Send, message.length(), {
            self.connection.send(message, None).await
        })
    }

    /// Sends a message without waiting for its arrival: waits only until the send queue accepts the
    /// message. If the message is longer than the peer's
    /// [`RdmaBuilder::message_length`](crate::RdmaBuilder::message_length), waits until the peer
    /// has read the message, like [`Self::send`]. If the message cannot be delivered, the
    /// connection ends.
    ///
    /// # Errors
    ///
    /// The errors of [`Self::send`].
    pub async fn post(&self, message: &impl LocalMrReadAccess) -> Result<()> {
        observed!(&self.connection, Send, message.length(), {
            self.connection.post_message(message).await
        })
    }

    /// Sends a message like [`Self::send`], with the immediate data `immediate`, which the peer
    /// receives by [`Self::receive_with_immediate`].
    ///
    /// # Errors
    ///
    /// The errors of [`Self::send`].
    #[doc(alias = "IBV_WR_SEND_WITH_IMM")]
    #[doc(alias = "send_with_imm")]
    pub async fn send_with_immediate(
        &self,
        message: &impl LocalMrReadAccess,
        immediate: u32,
    ) -> Result<()> {
        observed!(&self.connection, Send, message.length(), {
            self.connection.send(message, Some(immediate)).await
        })
    }

    /// Waits for the peer's next message, and returns it. Cancel-safe: dropping the future loses no
    /// message.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidArgument`] for a message above
    /// [`message_limit`](crate::RdmaBuilder::message_limit). [`Error::Verbs`] if no memory can be
    /// registered for the message. Otherwise the error that ended the connection.
    pub async fn receive(&self) -> Result<LocalMr> {
        observed_arrival!(&self.connection, Receive, LocalMrReadAccess::length, {
            self.connection.receive().await.map(|(message, _)| message)
        })
    }

    /// Waits for the peer's next message, and returns it with its immediate data, if any.
    ///
    /// # Errors
    ///
    /// The errors of [`Self::receive`].
    #[doc(alias = "receive_with_imm")]
    pub async fn receive_with_immediate(&self) -> Result<(LocalMr, Option<u32>)> {
        observed_arrival!(
            &self.connection,
            Receive,
            |(message, _)| message.length(),
            { self.connection.receive().await }
        )
    }

    /// Lends memory to the peer, which receives it by [`Self::receive_remote_mr`]. When the peer
    /// has returned the memory, [`Self::receive_local_mr`] returns it. If the future is dropped
    /// before the memory was sent, the memory is dropped.
    ///
    /// # Errors
    ///
    /// [`Error::Verbs`] if an operation is still using the memory or the device cannot register it.
    /// Otherwise the error that ended the connection.
    pub async fn send_local_mr(&self, region: LocalMr) -> Result<()> {
        observed!(&self.connection, OfferMemory, region.length(), {
            self.connection.offer(region).await
        })
    }

    /// Gives memory that the peer has lent to this end back to the peer. The peer's program gets
    /// the memory from [`Self::receive_local_mr`], or from [`Self::reserve`] if that call has lent
    /// the memory. If the future is dropped before the message was sent, the memory is only
    /// released, and the peer can free the memory.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidArgument`] for memory that was not lent on this connection. Otherwise the
    /// error that ended the connection.
    pub async fn send_remote_mr(&self, region: RemoteMr) -> Result<()> {
        observed!(&self.connection, ReturnMemory, region.length(), {
            self.connection.give_back(region).await
        })
    }

    /// Waits for memory that the peer returns, and returns this memory. The peer had requested the
    /// memory, or [`Self::send_local_mr`] has lent the memory to the peer. The peer can no longer
    /// access the memory. Requested memory counts towards the limits of the peer until this
    /// function returns the memory.
    ///
    /// # Errors
    ///
    /// The error that ended the connection.
    pub async fn receive_local_mr(&self) -> Result<LocalMr> {
        observed_arrival!(
            &self.connection,
            ReceiveReturnedMemory,
            LocalMrReadAccess::length,
            { self.connection.receive_returned().await }
        )
    }

    /// Waits for memory that the peer lends by [`Self::send_local_mr`] or
    /// [`Grant::offer`](crate::Grant::offer), and returns this memory.
    ///
    /// # Errors
    ///
    /// The error that ended the connection.
    pub async fn receive_remote_mr(&self) -> Result<RemoteMr> {
        observed_arrival!(
            &self.connection,
            ReceiveOfferedMemory,
            RemoteMrReadAccess::length,
            { self.connection.receive_offer().await }
        )
    }
}

impl Drop for Rdma {
    /// Passes the connection to its control task, which keeps the connection until the peer has
    /// received the last messages. Does nothing if the runtime has ended: the control task was then
    /// dropped with the runtime, and that drop has already waited for the peer.
    fn drop(&mut self) {
        if let Some(task) = self.task.take() {
            drop(task.send(Arc::clone(&self.connection)));
        }
    }
}

/// Checks that the peer has not ended the access to `remote`, and that `remote` has at least `len`
/// bytes. Returns the address, length and key of `remote`.
#[inline]
pub(crate) fn check_remote(remote: &impl RemoteMrReadAccess, len: usize) -> Result<RemoteMemory> {
    let memory = remote.memory();
    if remote.lease_has_ended() {
        return Err(Error::LeaseEnded);
    }
    if len as u64 <= memory.len {
        return Ok(memory);
    }
    Err(too_long(len, memory))
}

#[cold]
fn too_long(len: usize, memory: RemoteMemory) -> Error {
    let reason = format!("{} bytes, fewer than the local memory's {len}", memory.len);
    Error::invalid("remote memory", reason)
}

/// Checks that `remote` can be the target of an atomic operation: the peer still lends the memory,
/// and the memory has eight bytes at an address that is a multiple of eight.
fn check_atomic(remote: &impl RemoteMrReadAccess) -> Result<()> {
    let memory = remote.memory();
    if remote.lease_has_ended() {
        return Err(Error::LeaseEnded);
    }
    if memory.len == 8 && memory.address.is_multiple_of(8) {
        return Ok(());
    }
    let reason = format!(
        "an atomic needs 8 bytes at a multiple of 8, not {} bytes at {:#x}",
        memory.len, memory.address
    );
    Err(Error::invalid("remote memory", reason))
}
