//! The lock: a word in memory of the server, which names its holder.
//!
//! The word is 0 while nobody holds the lock. Else its upper half is the number of the holder, and
//! its lower half changes each time the holder renews its lease. A worker that has seen the same
//! word for the time of the lease takes the lock: the holder has died, or does no longer act as the
//! holder. So the clocks of the hosts need not agree; they only have to run at about the same
//! speed.

use std::time::{Duration, Instant};

use rdma_async::{Rdma, RemoteMr};
use tokio::time::sleep;

/// Time between two attempts to take the lock.
const PAUSE: Duration = Duration::from_millis(1);

/// Lock of one worker.
#[derive(Debug)]
pub(crate) struct Lock<'a> {
    pub(crate) rdma: &'a Rdma,
    pub(crate) word: RemoteMr,
    pub(crate) id: u32,
    pub(crate) lease: Duration,
}

/// The lock, held by this worker.
#[derive(Debug)]
#[must_use = "the lock is held until it is released, or its lease ends"]
pub(crate) struct Held<'l, 'a> {
    lock: &'l mut Lock<'a>,
    word: u64,
    renewed: Instant,
}

impl<'a> Lock<'a> {
    /// Waits until this worker holds the lock.
    pub(crate) async fn take(&mut self) -> anyhow::Result<Held<'_, 'a>> {
        let own = u64::from(self.id) << 32;
        let mut seen = (0, Instant::now());
        loop {
            // The lease begins before the lock is taken, so that it ends here before it ends for
            // others.
            let begun = Instant::now();
            let is_over = seen.1.elapsed() >= self.lease;
            let expected = if is_over { seen.0 } else { 0 };
            let found = self
                .rdma
                .compare_and_swap(&mut self.word, expected, own)
                .await?;
            if found == expected {
                return Ok(Held {
                    lock: self,
                    word: own,
                    renewed: begun,
                });
            }
            if found != seen.0 {
                seen = (found, Instant::now());
            }
            sleep(PAUSE).await;
        }
    }
}

impl Held<'_, '_> {
    /// Returns an error if half of the lease has passed: another worker may soon take the lock. A
    /// worker calls this before each access to what the lock protects.
    pub(crate) fn check(&self) -> anyhow::Result<()> {
        let held = self.renewed.elapsed();
        anyhow::ensure!(
            held < self.lock.lease / 2,
            "the lock was held for {held:.1?}"
        );
        Ok(())
    }

    /// Renews the lease.
    pub(crate) async fn renew(&mut self) -> anyhow::Result<()> {
        let begun = Instant::now();
        // The lower half wraps without changing the upper one.
        let next = (self.word & !0xffff_ffff) | (self.word.wrapping_add(1) & 0xffff_ffff);
        self.replace(next).await?;
        self.renewed = begun;
        Ok(())
    }

    /// Releases the lock.
    pub(crate) async fn release(mut self) -> anyhow::Result<()> {
        self.replace(0).await
    }

    async fn replace(&mut self, next: u64) -> anyhow::Result<()> {
        let Lock { rdma, word, .. } = &mut *self.lock;
        let found = rdma.compare_and_swap(word, self.word, next).await?;
        anyhow::ensure!(found == self.word, "another worker has taken the lock");
        self.word = next;
        Ok(())
    }
}
