//! [`Ring`]: the connections of a rank to the next and the previous rank, and the steps of the
//! reduction.

use anyhow::Context as _;
use futures_util::future::try_join_all;
use rdma_async::{LocalMr, LocalMrReadAccess, Rdma};

use crate::vector::{Vector, add};

/// Place of one rank (process) in the ring: its number, and its connections to its two neighbors.
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
    /// Replaces this rank's vector by the sum of the vectors of all ranks, which must call this
    /// function at the same time.
    pub(crate) async fn reduce(&self, vector: &mut Vector) -> anyhow::Result<()> {
        let chunk = |back: usize| (self.rank + 2 * self.ranks - back) % self.ranks;
        for step in 0..self.ranks - 1 {
            let (sent, received) = vector.two_chunks(chunk(step), chunk(step + 1));
            self.pass(sent, received, |own, other| add(own, &other))
                .await?;
        }
        // The chunk with the number of the next rank is now complete.
        for step in 0..self.ranks - 1 {
            let (sent, received) = vector.two_chunks(chunk(step + self.ranks - 1), chunk(step));
            // The memory of the message becomes a part of the vector, without copying.
            self.pass(sent, received, |own, other| *own = other).await?;
        }
        Ok(())
    }

    /// Sends the pieces of the chunk `sent` to the next rank. For each piece from the previous
    /// rank, calls `take` with the corresponding piece of the chunk `received`.
    async fn pass(
        &self,
        sent: &[LocalMr],
        received: &mut [LocalMr],
        take: impl Fn(&mut LocalMr, LocalMr),
    ) -> anyhow::Result<()> {
        // All pieces are sent concurrently, so that the receiver can read ahead. Sends that wait
        // for a credit can overtake each other, so each message carries the index of its piece.
        let sending = async {
            let numbered = (0..).zip(sent);
            let sends = numbered.map(|(at, piece)| self.next.send_with_immediate(piece, at));
            try_join_all(sends).await?;
            anyhow::Ok(())
        };
        let receiving = async {
            for _ in 0..received.len() {
                let (other, at) = self.previous.receive_with_immediate().await?;
                let at = at.context("a piece has no index")? as usize;
                let piece = received
                    .get_mut(at)
                    .context("a piece has an index that is too large")?;
                anyhow::ensure!(
                    other.length() == piece.length(),
                    "a piece has a wrong length"
                );
                take(piece, other);
            }
            anyhow::Ok(())
        };
        tokio::try_join!(sending, receiving)?;
        Ok(())
    }
}
