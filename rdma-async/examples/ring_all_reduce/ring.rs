//! The ring: the connections of a rank to its neighbours, and the steps of the reduction.

use anyhow::Context as _;
use futures_util::future::try_join_all;
use rdma_async::{LocalMr, LocalMrReadAccess, Rdma};

use crate::vector::{Vector, add};

/// Connections of one rank.
#[derive(Debug)]
pub(crate) struct Ring {
    pub(crate) rank: usize,
    pub(crate) ranks: usize,
    /// Connection to the rank that gets the chunks of this one.
    pub(crate) next: Rdma,
    /// Connection to the rank whose chunks this one gets.
    pub(crate) previous: Rdma,
}

impl Ring {
    /// Replaces the vector by the sum of the vectors of all ranks.
    pub(crate) async fn reduce(&self, vector: &mut Vector) -> anyhow::Result<()> {
        let chunk = |back: usize| (self.rank + 2 * self.ranks - back) % self.ranks;
        for step in 0..self.ranks - 1 {
            let (sent, received) = vector.two_chunks(chunk(step), chunk(step + 1));
            self.pass(sent, received, |own, other| add(own, &other))
                .await?;
        }
        // The chunk behind that of this rank is complete.
        for step in 0..self.ranks - 1 {
            let (sent, received) = vector.two_chunks(chunk(step + self.ranks - 1), chunk(step));
            // A message is in memory of its own, which becomes a part of the vector.
            self.pass(sent, received, |own, other| *own = other).await?;
        }
        Ok(())
    }

    /// Sends the pieces of a chunk to the next rank, and hands each piece from the previous rank to
    /// `take`, with the piece of the vector at its place.
    async fn pass(
        &self,
        sent: &[LocalMr],
        received: &mut [LocalMr],
        take: impl Fn(&mut LocalMr, LocalMr),
    ) -> anyhow::Result<()> {
        // All at once, so that the receiver can read ahead. Those for which the receiver has no
        // room yet may overtake each other, so each has its number.
        let sending = async {
            let numbered = (0..).zip(sent);
            let sends = numbered.map(|(at, piece)| self.next.send_with_immediate(piece, at));
            try_join_all(sends).await?;
            anyhow::Ok(())
        };
        let receiving = async {
            for _ in 0..received.len() {
                let (other, at) = self.previous.receive_with_immediate().await?;
                let at = at.context("a piece without a number")? as usize;
                let piece = received.get_mut(at).context("a piece too many")?;
                anyhow::ensure!(
                    other.length() == piece.length(),
                    "a piece of another length"
                );
                take(piece, other);
            }
            anyhow::Ok(())
        };
        tokio::try_join!(sending, receiving)?;
        Ok(())
    }
}
