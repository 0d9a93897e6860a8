//! Operations that take ownership of their local memory and return the memory with the result.

use crate::error::Result;
use crate::memory::{LocalMr, RemoteMrReadAccess, RemoteMrWriteAccess};
use crate::rdma::Rdma;

/// Operations that own their local memory while they run, like operations of io_uring crates. The
/// future borrows no local memory, so it can run in another task. If a future is dropped, its
/// memory is reused after the operation has completed.
///
/// ```
/// # use std::alloc::Layout;
/// # #[tokio::main]
/// # async fn main() -> Result<(), rdma_async::Error> {
/// # use rdma_async::RdmaBuilder;
/// use std::sync::Arc;
/// # let mut listener = RdmaBuilder::default().bind("127.0.0.1:0").await?;
/// # let address = listener.local_address()?;
/// # let (client, server) =
/// #     tokio::try_join!(RdmaBuilder::default().connect(address), listener.accept())?;
/// let client = Arc::new(client);
/// let layout = Layout::from_size_align(4096, 8).expect("a valid layout");
/// let remote = client.request_remote_mr(layout).await?.share();
/// let mut writes = Vec::new();
/// for part in 0..4 {
///     let (client, to) = (Arc::clone(&client), remote.get(part * 1024..(part + 1) * 1024));
///     let memory = client.alloc_local_mr(Layout::new::<[u8; 1024]>())?;
///     writes.push(tokio::spawn(async move {
///         let mut to = to.expect("a part of the memory");
///         client.write_owned(memory, &mut to).await
///     }));
/// }
/// for write in writes {
///     let (outcome, _memory) = write.await.expect("the task does not panic");
///     outcome?;
/// }
/// # Ok(())
/// # }
/// ```
impl Rdma {
    /// Writes all bytes of `local` to the start of `remote` by RDMA, like [`Self::write`]. Returns
    /// `local` together with the result, so that a spawned task can own the region.
    ///
    /// # Errors
    ///
    /// The errors of [`Self::write`].
    #[doc(alias = "IBV_WR_RDMA_WRITE")]
    pub async fn write_owned(
        &self,
        local: LocalMr,
        remote: &mut impl RemoteMrWriteAccess,
    ) -> (Result<()>, LocalMr) {
        (self.write(&local, remote).await, local)
    }

    /// Writes all bytes of `local` to the start of `remote` with immediate data, like
    /// [`Self::write_with_immediate`]. Returns `local` together with the result.
    ///
    /// # Errors
    ///
    /// The errors of [`Self::write_with_immediate`].
    #[doc(alias = "IBV_WR_RDMA_WRITE_WITH_IMM")]
    pub async fn write_with_immediate_owned(
        &self,
        local: LocalMr,
        remote: &mut impl RemoteMrWriteAccess,
        immediate: u32,
    ) -> (Result<()>, LocalMr) {
        let outcome = self.write_with_immediate(&local, remote, immediate).await;
        (outcome, local)
    }

    /// Fills `local` with the bytes at the start of `remote` by RDMA, like [`Self::read`]. Returns
    /// `local` together with the result.
    ///
    /// # Errors
    ///
    /// The errors of [`Self::read`].
    #[doc(alias = "IBV_WR_RDMA_READ")]
    pub async fn read_owned(
        &self,
        mut local: LocalMr,
        remote: &impl RemoteMrReadAccess,
    ) -> (Result<()>, LocalMr) {
        (self.read(&mut local, remote).await, local)
    }

    /// Sends a message like [`Self::send`]. Returns the memory of the message together with the
    /// result.
    ///
    /// # Errors
    ///
    /// The errors of [`Self::send`].
    #[doc(alias = "IBV_WR_SEND")]
    pub async fn send_owned(&self, message: LocalMr) -> (Result<()>, LocalMr) {
        (self.send(&message).await, message)
    }
}
