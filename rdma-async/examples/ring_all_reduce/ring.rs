//! [`Ring`]: the connections of a rank to the next and the previous rank, and the steps of the
//! reduction.

use futures_util::future::try_join_all;
use rdma_async::{LocalMr, LocalMrReadAccess, Rdma};

use crate::vector::{Vector, add};

/// Connections of one rank in the ring.
#[derive(Debug)]
pub(crate) struct Ring {
    pub(crate) rank: usize,
    pub(crate) ranks: usize,
    /// Connection to the next rank, to which this rank sends.
    pub(crate) next: Rdma,
    /// Connection to the previous rank, from which this rank receives.
    pub(crate) previous: Rdma,
}

impl Ring {
    /// Replaces the vector by the sum of the vectors of all ranks.
    pub(crate) async fn reduce(&self, vector: &mut Vector) -> anyhow::Result<()> {
        let chunk = |back: usize| (self.rank + 2 * self.ranks - back) % self.ranks;
        for step in 0..self.ranks - 1 {
            let (sent, received) = vector.two_chunks(chunk(step), chunk(step + 1));
            self.pass(sent, received, |own, other| {
                add(own, &other);
                Ok(())
            })
            .await?;
        }
        // The chunk with the number of the next rank is now complete.
        for step in 0..self.ranks - 1 {
            let (sent, received) = vector.two_chunks(chunk(step + self.ranks - 1), chunk(step));
            self.pass(sent, received, |own, other| {
                // The memory of the message becomes a part of the vector, without copying.
                *own = other;
                Ok(())
            })
            .await?;
        }
        Ok(())
    }

    /// Sends the pieces of the chunk `sent` to the next rank. For each piece from the previous
    /// rank, calls `take` with the corresponding piece of the chunk `received`.
    async fn pass(
        &self,
        sent: &[LocalMr],
        received: &mut [LocalMr],
        take: impl Fn(&mut LocalMr, LocalMr) -> anyhow::Result<()>,
    ) -> anyhow::Result<()> {
        // All pieces are sent without waiting, in order, so that the receiver can read ahead.
        let sending = async {
            try_join_all(sent.iter().map(|piece| self.next.send(piece))).await?;
            anyhow::Ok(())
        };
        let receiving = async {
            for piece in received {
                let other = self.previous.receive().await?;
                anyhow::ensure!(
                    other.length() == piece.length(),
                    "a piece has a wrong length"
                );
                take(piece, other)?;
            }
            anyhow::Ok(())
        };
        tokio::try_join!(sending, receiving)?;
        Ok(())
    }
}
