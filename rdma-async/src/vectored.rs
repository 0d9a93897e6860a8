//! Vectored reads and writes: transfers between several pieces of local memory and one contiguous
//! range of remote memory.

use rdma_core::memory::Claim;

use crate::connection::{Push, Work};
use crate::error::{Error, Result};
use crate::memory::{
    LocalMrReadAccess, LocalMrWriteAccess, RemoteMrReadAccess, RemoteMrWriteAccess, claim_read,
    claim_write,
};
use crate::observe::observed;
use crate::rdma::{Rdma, check_remote};

/// Transfers between several pieces of local memory and one contiguous range of remote memory. Each
/// piece is a request of its own. If no request is in flight, the first request is posted
/// immediately. The other requests are posted in batches with one doorbell. An operation is
/// complete when its last request has completed.
impl Rdma {
    /// Writes pieces of local memory, one after another, to the start of `remote`.
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
    /// let header = client.alloc_local_mr(Layout::new::<[u8; 16]>())?;
    /// let body = client.alloc_local_mr(Layout::new::<[u8; 1000]>())?;
    /// let mut remote = client.request_remote_mr(Layout::new::<[u8; 1016]>()).await?;
    /// client.write_vectored(&[&header, &body], &mut remote).await?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// Before anything is written: [`Error::InvalidArgument`] if the pieces are longer than
    /// `remote`. [`Error::Verbs`] if an operation is writing to a piece.
    ///
    /// [`Error::Work`] if the peer's device refuses the access. Otherwise the error that ended the
    /// connection. In both cases, the peer's memory has perhaps been written in part.
    #[doc(alias = "ibv_sge")]
    #[doc(alias = "sg_list")]
    pub async fn write_vectored<M: LocalMrReadAccess>(
        &self,
        pieces: &[&M],
        remote: &mut impl RemoteMrWriteAccess,
    ) -> Result<()> {
        let len = pieces.iter().map(|piece| piece.length()).sum::<usize>();
        observed!(self.connection(), Write, len, {
            check_remote(remote, len)?;
            let mut at = 0;
            let mut requests = Vec::with_capacity(pieces.len());
            for piece in pieces.iter().filter(|piece| piece.length() > 0) {
                let part = remote.memory().slice(at..at + piece.length())?;
                at += piece.length();
                let push = Push::Write {
                    remote: part,
                    immediate: None,
                };
                requests.push((Work::Push(push), claim_read(*piece)?.into()));
            }
            self.perform_pieces(requests).await
        })
    }

    /// Reads from the start of `remote` into pieces of local memory, one after another.
    ///
    /// # Errors
    ///
    /// Before anything is read: [`Error::InvalidArgument`] if the pieces are longer than `remote`.
    /// [`Error::Verbs`] if an operation is using a piece.
    ///
    /// [`Error::Work`] if the peer's device refuses the access. Otherwise the error that ended the
    /// connection. In both cases, some pieces have perhaps been filled.
    #[doc(alias = "ibv_sge")]
    #[doc(alias = "sg_list")]
    pub async fn read_vectored<M: LocalMrWriteAccess>(
        &self,
        pieces: &mut [&mut M],
        remote: &impl RemoteMrReadAccess,
    ) -> Result<()> {
        let len = pieces.iter().map(|piece| piece.length()).sum::<usize>();
        observed!(self.connection(), Read, len, {
            check_remote(remote, len)?;
            let mut at = 0;
            let mut requests = Vec::with_capacity(pieces.len());
            for piece in pieces.iter_mut().filter(|piece| piece.length() > 0) {
                let part = remote.memory().slice(at..at + piece.length())?;
                at += piece.length();
                requests.push((Work::Read { remote: part }, claim_write(*piece)?.into()));
            }
            self.perform_pieces(requests).await
        })
    }

    /// Submits the requests of all pieces, and waits until the last request has completed. The
    /// caller must have claimed the memory of all pieces, so that nothing is transferred if a claim
    /// fails. After an error, the peer has perhaps executed earlier requests.
    async fn perform_pieces(&self, requests: Vec<(Work, Claim)>) -> Result<()> {
        let mut last = None;
        for (work, claim) in requests {
            let begun = self.connection().begin_held(work, claim).await;
            last = Some(begun.map_err(|error| match last {
                Some(_) => self.fail_partial(error),
                None => error,
            })?);
        }
        let finished = self.connection().finish(last).await;
        finished.map_err(Error::of_posted)
    }

    /// Ends the connection, because the send queue has accepted only some requests of a vectored
    /// operation. Otherwise these requests would continue after the operation has failed. Returns
    /// the error of the operation.
    fn fail_partial(&self, error: Error) -> Error {
        self.connection().fail(error.clone());
        error.of_posted()
    }
}
