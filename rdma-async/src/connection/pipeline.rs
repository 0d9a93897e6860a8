//! [`Pipeline`]: reads and writes of one task that are in flight at the same time.

use std::collections::VecDeque;
use std::fmt;
use std::future::poll_fn;

use rdma_core::memory::Claim;
use tokio::task::coop::poll_proceed;

use super::Connection;
use super::send_state::{NotAccepted, UNAWAITED};
use super::work::{Memory, Push, Work};
use crate::error::Result;
use crate::memory::{
    LocalMrReadAccess, LocalMrWriteAccess, RemoteMrReadAccess, RemoteMrWriteAccess, claim_read,
    claim_write,
};
use crate::observe::observed;
use crate::rdma::check_remote;

/// Pipeline of RDMA reads and writes of one task, which are in flight at the same time. Created by
/// [`Rdma::pipeline`](crate::Rdma::pipeline).
///
/// An operation resolves when its request is accepted. The request is accepted immediately while
/// fewer requests than the depth of the pipeline are in flight. Otherwise the operation first waits
/// for the oldest request. Requests are posted in batches with one doorbell, and only the last
/// request of a batch has a completion of its own. A small write therefore takes a fraction of the
/// time of [`Rdma::write`](crate::Rdma::write).
///
/// Local memory is claimed until its request has completed. Until then, the program cannot change
/// the memory, and cannot access memory into which a read writes. The claim has certainly ended
/// after [`Self::finish`], or after the pipeline has accepted a number of further operations equal
/// to its depth. Memory that is not longer than the connection's inline limit is copied for a write
/// instead, and can be changed immediately.
///
/// If a request fails, the connection ends. The operation that waits for the failed request returns
/// the error of that request. Later operations and [`Self::finish`] return the error that ended the
/// connection. Dropping a pipeline leaves its requests in flight.
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
///     let mut part = remote.get_mut(number * 4096..(number + 1) * 4096).expect("a part");
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
    /// Numbers of the requests that may be in flight, oldest first.
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
    /// Creates a pipeline with up to `depth` requests in flight. The depth is at least 1, and at
    /// most the depth of the send queue.
    pub(crate) fn new(connection: &'c Connection, depth: usize) -> Self {
        let depth = depth.clamp(1, connection.settings.send_depth.max(1) as usize);
        Self {
            connection,
            depth,
            requests: VecDeque::with_capacity(depth),
        }
    }

    /// Writes all bytes of `local` to the start of `remote` by RDMA. Resolves when the write is in
    /// the send queue, and does not wait for its completion, see [`Self::finish`].
    ///
    /// # Errors
    ///
    /// - The errors of [`Rdma::write`](crate::Rdma::write).
    /// - The errors of earlier operations of the pipeline.
    #[doc(alias = "IBV_WR_RDMA_WRITE")]
    pub async fn write(
        &mut self,
        local: &impl LocalMrReadAccess,
        remote: &mut impl RemoteMrWriteAccess,
    ) -> Result<()> {
        let connection = self.connection;
        observed!(connection, Write, local.length(), {
            let push = Push::Write {
                remote: check_remote(remote, local.length())?,
                immediate: None,
            };
            self.wait_for_room().await?;
            if local.length() > connection.inline {
                let claim = claim_read(local)?.into();
                return self.submit_held(Work::Push(push), claim).await;
            }
            let bytes = local.try_as_slice()?;
            self.submit(|| connection.submit_copied(push, [bytes, &[]], UNAWAITED))
                .await
        })
    }

    /// Submits an RDMA read from the start of `remote` into all of `local`, without waiting for the
    /// read to complete. Waits only while the pipeline's maximum number of requests (its depth) are
    /// in flight, or while the send queue is full. `local` contains the bytes once [`Self::finish`]
    /// has returned.
    ///
    /// # Errors
    ///
    /// - The errors of [`Rdma::read`](crate::Rdma::read).
    /// - The errors of earlier operations of the pipeline.
    #[doc(alias = "IBV_WR_RDMA_READ")]
    pub async fn read(
        &mut self,
        local: &mut impl LocalMrWriteAccess,
        remote: &impl RemoteMrReadAccess,
    ) -> Result<()> {
        observed!(self.connection, Read, local.length(), {
            let remote = check_remote(remote, local.length())?;
            self.wait_for_room().await?;
            let claim = claim_write(local)?.into();
            self.submit_held(Work::Read { remote }, claim).await
        })
    }

    /// Waits until all reads and writes of the pipeline have completed. Afterwards, their local
    /// memory can be used again.
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

    /// Waits until the number of requests in flight is below the depth of the pipeline.
    #[inline]
    async fn wait_for_room(&mut self) -> Result<()> {
        self.connection.charge().await;
        match self.requests.front() {
            Some(&oldest) if self.requests.len() == self.depth => self.wait_for(oldest).await,
            _ => Ok(()),
        }
    }

    /// Waits until the request `number` and all earlier requests have completed. Then removes all
    /// completed requests from the pipeline's list of requests in flight.
    async fn wait_for(&mut self, number: u64) -> Result<()> {
        let connection = self.connection;
        if connection.sender.is_staged(number) {
            // Posted now, because this task submits no further request in this turn.
            connection.post_staged();
        }
        connection.operation(number, None).await?;
        let has_ended = |number: &u64| connection.sender.has_ended(*number);
        while self.requests.front().is_some_and(has_ended) {
            self.requests.pop_front();
        }
        Ok(())
    }

    /// Submits a request for the operation `work`. The request holds `claim`, the right to its
    /// local memory, until it completes. Does not wait for the request. A failure of the request
    /// ends the connection.
    async fn submit_held(&mut self, work: Work, claim: Claim) -> Result<()> {
        let connection = self.connection;
        let mut memory: Option<Memory> = Some((None, Some(claim)));
        self.submit(|| connection.submit_or_restore(work, &mut memory, UNAWAITED, None))
            .await
    }

    /// Calls `attempt` until the send queue accepts the request. `attempt` returns the number of
    /// the request, which is then added to the list of requests in flight. Waits between the calls
    /// while the send queue is full.
    async fn submit(
        &mut self,
        mut attempt: impl FnMut() -> Result<u64, NotAccepted>,
    ) -> Result<()> {
        self.connection.check_open()?;
        let number = match attempt() {
            Ok(number) => number,
            Err(first) => self.connection.retry(first, attempt).await?,
        };
        self.requests.push_back(number);
        Ok(())
    }
}

impl Connection {
    /// Counts an operation against the number of operations that tokio lets a task perform without
    /// a pause (cooperative budget). If the number is used up, first lets other tasks run.
    #[inline]
    async fn charge(&self) {
        if self.count_poll() {
            poll_fn(|cx| poll_proceed(cx).map(|turn| turn.made_progress())).await;
        }
    }
}
