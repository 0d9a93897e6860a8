//! Vectored reads and writes: several pieces of local memory, one contiguous part of remote memory.

use rdma_core::memory::Claim;

use crate::connection::{Push, Work};
use crate::error::{Error, Result};
use crate::memory::{
    LocalMrReadAccess, LocalMrWriteAccess, RemoteMrReadAccess, RemoteMrWriteAccess, claim_read,
    claim_write,
};
use crate::observe::observed;
use crate::rdma::{Rdma, fits};

/// Operations on several pieces of local memory, whose bytes follow each other in remote memory. Each
/// piece is a request of its own. Requests that wait for the end of the turn share a doorbell, and the
/// operation resolves when the last request has completed.
impl Rdma {
    /// Writes pieces of local memory, one after the other, to the start of `remote`.
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
    /// [`Error::InvalidArgument`] if the pieces are longer than `remote`, [`Error::Verbs`] if an
    /// operation is writing to a piece, [`Error::Work`] if the peer's device refuses the access, and
    /// the error that ended the connection. Pieces before the failed one may have been written.
    #[doc(alias = "ibv_sge")]
    #[doc(alias = "sg_list")]
    pub async fn write_vectored<M: LocalMrReadAccess>(
        &self,
        pieces: &[&M],
        remote: &mut impl RemoteMrWriteAccess,
    ) -> Result<()> {
        let len = pieces.iter().map(|piece| piece.length()).sum::<usize>();
        observed!(self.connection(), Write, len, {
            fits(len, remote)?;
            let mut at = 0;
            let mut last = None;
            for piece in pieces.iter().filter(|piece| piece.length() > 0) {
                let part = remote.memory().slice(at..at + piece.length())?;
                at += piece.length();
                let push = Push::Write {
                    remote: part,
                    immediate: None,
                };
                let claim = claim_read(*piece)?.into();
                last = Some(self.begin_piece(last, Work::Push(push), claim).await?);
            }
            self.finish_pieces(last).await
        })
    }

    /// Reads from the start of `remote` into pieces of local memory, one after the other.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidArgument`] if `remote` is shorter than the pieces, [`Error::Verbs`] if an
    /// operation is using a piece, [`Error::Work`] if the peer's device refuses the access, and the
    /// error that ended the connection. Pieces before the failed one may have been filled.
    #[doc(alias = "ibv_sge")]
    #[doc(alias = "sg_list")]
    pub async fn read_vectored<M: LocalMrWriteAccess>(
        &self,
        pieces: &mut [&mut M],
        remote: &impl RemoteMrReadAccess,
    ) -> Result<()> {
        let len = pieces.iter().map(|piece| piece.length()).sum::<usize>();
        observed!(self.connection(), Read, len, {
            fits(len, remote)?;
            let mut at = 0;
            let mut last = None;
            for piece in pieces.iter_mut().filter(|piece| piece.length() > 0) {
                let part = remote.memory().slice(at..at + piece.length())?;
                at += piece.length();
                let claim = claim_write(*piece)?.into();
                let work = Work::Read { remote: part };
                last = Some(self.begin_piece(last, work, claim).await?);
            }
            self.finish_pieces(last).await
        })
    }

    /// Begins the operation of a piece, after that of the piece with the number `earlier`. If this
    /// fails, the peer may have executed the earlier one.
    async fn begin_piece(&self, earlier: Option<u64>, work: Work, claim: Claim) -> Result<u64> {
        let begun = self.connection().begin_held(work, claim).await;
        begun.map_err(|error| match earlier {
            Some(_) => error.of_posted(),
            None => error,
        })
    }

    /// Waits until the operations of all pieces have ended. If the last one fails, the peer may have
    /// executed the others.
    async fn finish_pieces(&self, last: Option<u64>) -> Result<()> {
        let finished = self.connection().finish(last).await;
        finished.map_err(Error::of_posted)
    }
}
