//! The lock: a word in the server's memory that identifies the holder.
//!
//! The word is 0 while the lock is free. Otherwise, its upper half is the number of the holder, and
//! its lower half changes each time the holder takes the lock or renews its lease, so that a word
//! does not recur in a later lease. A worker that has read an unchanged word for the duration of
//! the lease takes the lock: the holder has died, or no longer uses the lock. The clocks of the
//! hosts need not be synchronized; they must only run at about the same speed.

use std::time::{Duration, Instant};

use rdma_async::{Rdma, RemoteMr};
use tokio::time::sleep;

/// Time between two attempts to take the lock. Short compared with a lease, so that a free lock is
/// not idle for long.
const RETRY_INTERVAL: Duration = Duration::from_millis(1);

/// The lock, as one worker uses it: the connection to the server, the word of the lock in the
/// server's memory, the number of the worker, and the duration of the lease.
#[derive(Debug)]
pub(crate) struct Lock<'a> {
    rdma: &'a Rdma,
    word: RemoteMr,
    id: u32,
    lease: Duration,
    /// Number of leases that this worker has begun or renewed. Wraps to 0.
    leases: u32,
}

/// Proof that this worker holds the lock, until its lease ends or [`Self::release`] is called.
#[derive(Debug)]
#[must_use = "the lock is held until it is released or its lease ends"]
pub(crate) struct Held<'l, 'a> {
    lock: &'l mut Lock<'a>,
    word: u64,
    renewed: Instant,
}

impl<'a> Lock<'a> {
    /// Returns the lock whose word is `word`, for the worker with the number `id`.
    pub(crate) fn new(rdma: &'a Rdma, word: RemoteMr, id: u32, lease: Duration) -> Self {
        Self {
            rdma,
            word,
            id,
            lease,
            leases: 0,
        }
    }

    /// Returns a word that identifies this worker, and that differs from the words of its last
    /// leases.
    fn next_word(&mut self) -> u64 {
        self.leases = self.leases.wrapping_add(1);
        u64::from(self.id) << 32 | u64::from(self.leases)
    }

    /// Takes the lock, after waiting until it is free or the lease of its holder has expired.
    pub(crate) async fn take(&mut self) -> anyhow::Result<Held<'_, 'a>> {
        let own = self.next_word();
        let mut seen = (0, Instant::now());
        loop {
            // The lease is measured from before the attempt, so that it ends at this worker before
            // it ends at the other workers.
            let begun = Instant::now();
            let has_expired = seen.1.elapsed() >= self.lease;
            let expected = if has_expired { seen.0 } else { 0 };
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
            sleep(RETRY_INTERVAL).await;
        }
    }
}

impl Held<'_, '_> {
    /// Returns an error if half of the lease has passed, because another worker may soon take the
    /// lock. A worker must call this function before each access to the protected data.
    pub(crate) fn check(&self) -> anyhow::Result<()> {
        let held = self.renewed.elapsed();
        anyhow::ensure!(
            held < self.lock.lease / 2,
            "the lock was held for {held:.1?}"
        );
        Ok(())
    }

    /// Renews the lease, so that it lasts for its full duration from now. Fails if another worker
    /// has taken the lock.
    pub(crate) async fn renew(&mut self) -> anyhow::Result<()> {
        let begun = Instant::now();
        let next = self.lock.next_word();
        self.replace(next).await?;
        self.renewed = begun;
        Ok(())
    }

    /// Releases the lock, so that another worker can take it. Fails if another worker has taken the
    /// lock.
    pub(crate) async fn release(mut self) -> anyhow::Result<()> {
        self.replace(0).await
    }

    /// Replaces the word of the lock by `next`. Fails if another worker has taken the lock, because
    /// its lease had expired.
    async fn replace(&mut self, next: u64) -> anyhow::Result<()> {
        let Lock { rdma, word, .. } = &mut *self.lock;
        let found = rdma.compare_and_swap(word, self.word, next).await?;
        anyhow::ensure!(found == self.word, "another worker has taken the lock");
        self.word = next;
        Ok(())
    }
}
