//! [`Backoff`]: exponentially growing pauses between attempts to connect.

use std::time::Duration;

use tokio::time::{Instant, sleep, timeout_at};

use crate::error::{Error, Result};

/// Pauses between attempts to connect: an exponential backoff with random variation.
///
/// The length of the pauses doubles from [`Self::first`] up to [`Self::longest`]. Each pause lasts
/// a random time between half of its length and its length, so that many clients of a server do not
/// connect at the same time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use]
pub struct Backoff {
    first: Duration,
    longest: Duration,
    limit: Option<Duration>,
}

impl Default for Backoff {
    fn default() -> Self {
        Self {
            first: Duration::from_millis(50),
            longest: Duration::from_secs(5),
            limit: Some(Duration::from_secs(60)),
        }
    }
}

impl Backoff {
    /// Sets the length of the first pause between two attempts to connect. The default is 50 ms.
    pub fn first(mut self, pause: Duration) -> Self {
        self.first = pause;
        self
    }

    /// Sets the maximum length of a pause between two attempts to connect. The default is 5 s.
    pub fn longest(mut self, pause: Duration) -> Self {
        self.longest = pause;
        self
    }

    /// Sets the time after which no further attempt to connect begins, or `None` for no limit. The
    /// default is 60 s. The duration of a single attempt is limited by
    /// [`RdmaBuilder::connect_timeout`](crate::RdmaBuilder::connect_timeout).
    pub fn limit(mut self, limit: Option<Duration>) -> Self {
        self.limit = limit;
        self
    }

    /// Begins a sequence of pauses between attempts to connect. The time limit of the sequence
    /// starts now.
    pub(super) fn begin(&self) -> Pauses {
        Pauses {
            backoff: *self,
            next: self.first,
            end: self
                .limit
                .and_then(|limit| Instant::now().checked_add(limit)),
        }
    }

    /// Begins a sequence of growing pauses between attempts to connect. Ignores the
    /// [limit](Self::limit) of the total time. Used for connections that are kept open forever.
    pub(super) fn begin_unlimited(&self) -> Pauses {
        Pauses {
            end: None,
            ..self.begin()
        }
    }
}

/// Sequence of pauses between the attempts of one task to connect. The lengths of the pauses
/// double, up to the maximum.
#[derive(Debug)]
pub(super) struct Pauses {
    backoff: Backoff,
    /// Length of the next pause, before it is limited to [`Backoff::longest`].
    next: Duration,
    /// Time after which no attempt begins.
    end: Option<Instant>,
}

impl Pauses {
    /// Resets the pauses between attempts to connect, because a connection was established: the
    /// next pause is the shortest again.
    pub(super) fn reset(&mut self) {
        self.next = self.backoff.first;
    }

    /// Waits for `future`, and returns its output. Fails with [`Error::Timeout`] at the time limit.
    pub(super) async fn within_limit<F: Future>(&self, future: F) -> Result<F::Output> {
        match self.end {
            None => Ok(future.await),
            Some(end) => timeout_at(end, future).await.map_err(|_| self.exceeded()),
        }
    }

    /// Returns the error for the end of the time limit.
    fn exceeded(&self) -> Error {
        Error::Timeout {
            what: "connecting again",
            limit: self.backoff.limit.unwrap_or_default(),
        }
    }

    /// Sleeps for the next pause between two attempts to connect. If the pause would exceed the
    /// time limit, returns an error immediately. The error is `failure`, the error of the last
    /// attempt, or [`Error::Timeout`] if `failure` is `None`.
    pub(super) async fn wait(&mut self, failure: Option<Error>) -> Result<()> {
        let pause = self.next_pause();
        if self.end.is_some_and(|end| Instant::now() + pause > end) {
            return Err(failure.unwrap_or_else(|| self.exceeded()));
        }
        sleep(pause).await;
        Ok(())
    }

    /// Returns the duration of the next pause: a random time from half of the current length up to
    /// this length. Then doubles the current length, for the following pause.
    fn next_pause(&mut self) -> Duration {
        let length = self.next.min(self.backoff.longest);
        self.next = length.saturating_mul(2);
        // If the system has no random numbers, the pause has its full length.
        let random = getrandom::u32().unwrap_or(u32::MAX);
        length / 2 + (length / 2).mul_f64(f64::from(random) / f64::from(u32::MAX))
    }
}

#[cfg(all(test, not(loom_models)))]
mod tests {
    use super::*;

    #[test]
    fn pauses_grow_to_the_longest() {
        let ms = Duration::from_millis;
        let backoff = Backoff::default().first(ms(10)).longest(ms(65));
        let mut pauses = backoff.begin();
        for max in [10, 20, 40, 65, 65] {
            let pause = pauses.next_pause();
            assert!(ms(max) / 2 <= pause && pause <= ms(max), "{pause:?}, {max}");
        }
        pauses.reset();
        assert!(pauses.next_pause() <= ms(10));
    }

    #[tokio::test]
    async fn a_pause_beyond_the_limit_returns_the_failure() {
        let backoff = Backoff::default().limit(Some(Duration::ZERO));
        let failure = Error::disconnected("a failure");
        let end = backoff.begin().wait(Some(failure)).await.unwrap_err();
        assert!(end.to_string().contains("a failure"), "{end}");
        let mut unlimited = backoff.first(Duration::ZERO).begin_unlimited();
        assert!(unlimited.wait(None).await.is_ok());
    }
}
