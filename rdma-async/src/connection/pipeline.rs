//! [`Pipeline`]: reads and writes of one task that are in flight together.

use std::collections::VecDeque;
use std::fmt;
use std::future::poll_fn;

use rdma_core::memory::Claim;
use tokio::task::coop::poll_proceed;

use super::Connection;
use super::send_state::{AwaitedBy, NotAccepted, PostTime};
use super::work::{Memory, Push, Work};
use crate::error::Result;
use crate::memory::{
    LocalMrReadAccess, LocalMrWriteAccess, RemoteMrReadAccess, RemoteMrWriteAccess, claim_read,
    claim_write,
};
use crate::observe::observed;
use crate::rdma::fits;

/// Mode of the requests of a pipeline: no future waits for a request while there is room for more.
const HOW: (AwaitedBy, PostTime) = (AwaitedBy::Nothing, PostTime::AtTurnEnd);

/// Reads and writes of one task that are in flight together.
///
/// An operation resolves when its request is accepted. While fewer requests than the depth of the
/// pipeline are in flight, that is immediately; otherwise the operation first waits for the oldest
/// request. Requests leave in groups under one doorbell, and only the last request of a group has a
/// completion of its own, so a small write takes a fraction of the time of
/// [`Rdma::write`](crate::Rdma::write).
///
/// Local memory is claimed until its request has completed: its bytes can be accessed, and used by
/// another operation, after [`Self::finish`], or after as many further operations as the pipeline
/// is deep. Memory of at most the connection's inline limit is copied instead, and can be changed at
/// once.
///
/// If a request fails, the connection ends. The operation that waits for the failed request returns
/// its error; later operations and [`Self::finish`] return the error that ended the connection.
/// Dropping a pipeline leaves its requests in flight.
///
/// ```
/// # use std::alloc::Layout;
/// # #[tokio::main]
/// # async fn main() -> Result<(), rdma_async::Error> {
/// # use rdma_async::{RdmaBuilder, RemoteMrWriteAccess};
/// # let mut listener = RdmaBuilder::default().bind("127.0.0.1:0").await?;
/// # let address = listener.local_address()?;
/// # let (client, server) =
/// #     tokio::try_join!(RdmaBuilder::default().connect(address), listener.accept())?;
/// let page = client.alloc_local_mr(Layout::new::<[u8; 4096]>())?;
/// let mut remote = client.request_remote_mr(Layout::new::<[u8; 100 * 4096]>()).await?;
/// let mut pipeline = client.pipeline(64);
/// for number in 0..100 {
///     let mut part = remote.get_mut(number * 4096..(number + 1) * 4096).expect("it is large enough");
///     pipeline.write(&page, &mut part).await?;
/// }
/// pipeline.finish().await?;
/// # Ok(())
/// # }
/// ```
#[doc(alias = "ibv_post_send")]
pub struct Pipeline<'c> {
    connection: &'c Connection,
    depth: usize,
    /// Numbers of the requests that have not been found to have ended, oldest first.
    requests: VecDeque<u64>,
}

impl fmt::Debug for Pipeline<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pipeline")
            .field("depth", &self.depth)
            .field("requests", &self.requests.len())
            .finish_non_exhaustive()
    }
}

impl<'c> Pipeline<'c> {
    /// Creates a pipeline of at least one and at most as many requests as the send queue has room
    /// for.
    pub(crate) fn new(connection: &'c Connection, depth: usize) -> Self {
        let depth = depth.clamp(1, connection.settings.send_depth.max(1) as usize);
        Self {
            connection,
            depth,
            requests: VecDeque::with_capacity(depth),
        }
    }

    /// Writes all bytes of `local` to the start of `remote`. Resolves when the write is accepted.
    ///
    /// # Errors
    ///
    /// The errors of [`Rdma::write`](crate::Rdma::write), and those of earlier operations of the
    /// pipeline.
    #[doc(alias = "IBV_WR_RDMA_WRITE")]
    pub async fn write(
        &mut self,
        local: &impl LocalMrReadAccess,
        remote: &mut impl RemoteMrWriteAccess,
    ) -> Result<()> {
        let connection = self.connection;
        observed!(connection, Write, local.length(), {
            let push = Push::Write {
                remote: fits(local.length(), remote)?,
                immediate: None,
            };
            self.wait_for_room().await?;
            if local.length() > connection.inline {
                let claim = claim_read(local)?.into();
                return self.submit_held(Work::Push(push), claim).await;
            }
            let bytes = local.try_as_slice()?;
            self.submit(|| connection.submit_copied(push, [bytes, &[]], HOW))
                .await
        })
    }

    /// Reads from the start of `remote` into `local`. Resolves when the read is accepted; `local` is
    /// filled when the request has completed.
    ///
    /// # Errors
    ///
    /// The errors of [`Rdma::read`](crate::Rdma::read), and those of earlier operations of the
    /// pipeline.
    #[doc(alias = "IBV_WR_RDMA_READ")]
    pub async fn read(
        &mut self,
        local: &mut impl LocalMrWriteAccess,
        remote: &impl RemoteMrReadAccess,
    ) -> Result<()> {
        observed!(self.connection, Read, local.length(), {
            let remote = fits(local.length(), remote)?;
            self.wait_for_room().await?;
            let claim = claim_write(local)?.into();
            self.submit_held(Work::Read { remote }, claim).await
        })
    }

    /// Waits until all requests have completed.
    ///
    /// # Errors
    ///
    /// The errors of the operations that were in flight.
    pub async fn finish(&mut self) -> Result<()> {
        if let Some(&last) = self.requests.back() {
            self.wait_for(last).await?;
        }
        Ok(())
    }

    /// Waits until fewer requests than the depth are in flight.
    #[inline]
    async fn wait_for_room(&mut self) -> Result<()> {
        self.connection.charge().await;
        match self.requests.front() {
            Some(&oldest) if self.requests.len() == self.depth => self.wait_for(oldest).await,
            _ => Ok(()),
        }
    }

    /// Waits until this request and those before it have completed, and removes all requests that
    /// have completed.
    async fn wait_for(&mut self, number: u64) -> Result<()> {
        let connection = self.connection;
        if connection.sender.is_staged(number) {
            // This task submits no further request in this turn.
            connection.post_staged();
        }
        connection.operation(number, None).await?;
        let has_ended = |number: &u64| connection.sender.has_ended(*number);
        while self.requests.front().is_some_and(has_ended) {
            self.requests.pop_front();
        }
        Ok(())
    }

    /// Submits a request that claims memory until it has completed.
    async fn submit_held(&mut self, work: Work, claim: Claim) -> Result<()> {
        let connection = self.connection;
        let mut memory: Option<Memory> = Some((None, Some(claim)));
        self.submit(|| connection.submit_kept(work, &mut memory, HOW, None))
            .await
    }

    /// Submits a request by `attempt`, which is repeated while requests of other tasks fill the send
    /// queue.
    async fn submit(
        &mut self,
        mut attempt: impl FnMut() -> Result<u64, NotAccepted>,
    ) -> Result<()> {
        self.connection.checked()?;
        let number = match attempt() {
            Ok(number) => number,
            Err(first) => self.connection.retry(first, attempt).await?,
        };
        self.requests.push_back(number);
        Ok(())
    }
}

impl Connection {
    /// Charges an operation to tokio's budget, and lets other tasks run when it is used up.
    #[inline]
    async fn charge(&self) {
        if self.counts() {
            poll_fn(|cx| poll_proceed(cx).map(|turn| turn.made_progress())).await;
        }
    }
}
