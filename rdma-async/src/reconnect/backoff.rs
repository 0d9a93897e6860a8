//! [`Backoff`]: the pauses between attempts to connect.

use std::time::Duration;

use tokio::time::{Instant, sleep};

use crate::error::{Error, Result};

/// The pauses between attempts to connect: each is up to twice as long as the one before, and
/// between half of its length and its length, at random, so that many clients of a server do not
/// connect at once.
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
    /// Sets the length of the first pause. The default is 50 ms.
    pub fn first(mut self, pause: Duration) -> Self {
        self.first = pause;
        self
    }

    /// Sets the maximum length of a pause. The default is 5 s.
    pub fn longest(mut self, pause: Duration) -> Self {
        self.longest = pause;
        self
    }

    /// Sets the time after which no further attempt begins, or `None` for no limit. The default is
    /// 60 s. An attempt that has begun ends after
    /// [`RdmaBuilder::connect_timeout`](crate::RdmaBuilder::connect_timeout).
    pub fn limit(mut self, limit: Option<Duration>) -> Self {
        self.limit = limit;
        self
    }

    /// Begins a sequence of pauses.
    pub(super) fn begin(&self) -> Pauses {
        Pauses {
            backoff: *self,
            next: self.first,
            end: self
                .limit
                .and_then(|limit| Instant::now().checked_add(limit)),
        }
    }

    /// Begins a sequence of pauses without a limit.
    pub(super) fn endless(&self) -> Pauses {
        Pauses {
            end: None,
            ..self.begin()
        }
    }
}

/// A sequence of pauses.
#[derive(Debug)]
pub(super) struct Pauses {
    backoff: Backoff,
    next: Duration,
    end: Option<Instant>,
}

impl Pauses {
    /// Begins the sequence anew, with its first pause.
    pub(super) fn reset(&mut self) {
        self.next = self.backoff.first;
    }

    /// Waits for the next pause. Returns `failure` if the limit would be exceeded.
    pub(super) async fn wait(&mut self, failure: Option<Error>) -> Result<()> {
        let pause = self.pause();
        if self.end.is_some_and(|end| Instant::now() + pause > end) {
            let limit = self.backoff.limit.unwrap_or_default();
            let what = "connecting again";
            return Err(failure.unwrap_or(Error::Timeout { what, limit }));
        }
        sleep(pause).await;
        Ok(())
    }

    /// Returns the length of the next pause.
    fn pause(&mut self) -> Duration {
        let length = self.next.min(self.backoff.longest);
        self.next = length.saturating_mul(2);
        // Without random numbers, the pause has its full length.
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
        for most in [10, 20, 40, 65, 65] {
            let pause = pauses.pause();
            assert!(
                ms(most) / 2 <= pause && pause <= ms(most),
                "{pause:?}, {most}"
            );
        }
        pauses.reset();
        assert!(pauses.pause() <= ms(10));
    }

    #[tokio::test]
    async fn the_limit_ends_with_the_failure() {
        let backoff = Backoff::default().limit(Some(Duration::ZERO));
        let failure = Error::disconnected("a failure");
        let end = backoff.begin().wait(Some(failure)).await.unwrap_err();
        assert!(end.to_string().contains("a failure"), "{end}");
        let endless = backoff.first(Duration::ZERO).endless().wait(None).await;
        assert!(endless.is_ok());
    }
}
