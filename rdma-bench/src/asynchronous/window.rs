//! The state that the concurrent loops of a bandwidth test share: the number of operations left to
//! start, and the measured time.

use std::cell::Cell;
use std::time::{Duration, Instant};

use futures_util::TryStreamExt;
use futures_util::stream::FuturesUnordered;

use super::runtime::Progress;
use crate::error::{Error, Result};
use crate::plan::Length;
use crate::statistics::Bandwidth;

/// Number of completed operations after which a bandwidth test without a time limit reads the clock
/// again. Reading the clock after every operation would take a noticeable part of the time.
const PERIOD: usize = 16;

/// State that the concurrent loops of a bandwidth test share. Each loop runs one operation after
/// the other, so the number of loops is the window: the number of outstanding operations.
#[derive(Debug)]
pub(crate) struct Window {
    /// Number of operations that no loop has started yet.
    left: Cell<usize>,
    limit: Option<Duration>,
    done: Cell<usize>,
    begun: Cell<Option<Instant>>,
    last: Cell<Instant>,
    progress: Progress,
}

impl Window {
    /// Creates the state for a test of the given length (a number of operations or a duration).
    /// `progress` counts the completed operations, to detect a stall. The measured time starts when
    /// [`Self::begin`] is called, or otherwise when the first operation completes.
    pub(crate) fn new(length: Length, progress: &Progress) -> Self {
        let (left, limit) = match length {
            Length::Iterations(count) => (count, None),
            Length::Duration(duration) => (usize::MAX, Some(duration)),
        };
        Self {
            left: Cell::new(left),
            limit,
            done: Cell::new(0),
            begun: Cell::new(None),
            last: Cell::new(Instant::now()),
            progress: progress.clone(),
        }
    }

    /// Returns this state without a limit of operations or time. Used by a process that measures
    /// until the peer has finished.
    pub(crate) fn unlimited(self) -> Self {
        Self {
            limit: None,
            ..self
        }
    }

    pub(crate) fn begin(&self) {
        let now = Instant::now();
        self.begun.set(Some(now));
        self.last.set(now);
    }

    /// Claims the next operation of the test, which the caller must then start. Returns `false` if
    /// all operations are claimed or the time limit is reached. The caller must then stop.
    #[inline]
    pub(crate) fn claim(&self) -> bool {
        let over = match (self.limit, self.begun.get()) {
            (Some(limit), Some(begun)) => self.last.get() - begun >= limit,
            _ => false,
        };
        match self.left.get().checked_sub(1) {
            Some(left) if !over => {
                self.left.set(left);
                true
            }
            _ => false,
        }
    }

    /// Records that an operation has completed, and sets the end of the measured time to now. In a
    /// test with a fixed number of operations, most calls leave the end unchanged, because reading
    /// the clock takes long. The calls for the last operations always set the end.
    #[inline]
    pub(crate) fn complete(&self) {
        let done = self.done.get() + 1;
        self.done.set(done);
        self.progress.increment();
        // Reading the clock takes a noticeable part of an operation's time. If the number of
        // operations is known, the clock is read after every [`PERIOD`] operations, and after each
        // of the last operations.
        if self.limit.is_none() && self.left.get() > 0 && !done.is_multiple_of(PERIOD) && done > 1 {
            return;
        }
        let now = Instant::now();
        if self.begun.get().is_none() {
            self.begun.set(Some(now));
        }
        self.last.set(now);
    }

    /// Sets the end of the measured time to now. A test with a pipeline calls this function after
    /// its last operation has completed. Such a test calls [`Self::complete`] when the pipeline
    /// accepts an operation, which is before the operation completes.
    pub(crate) fn end(&self) {
        self.last.set(Instant::now());
    }

    /// Runs the futures `loops` concurrently until all have finished. Each future is a loop that
    /// reuses its memory for every operation.
    pub(crate) async fn run_all<F>(&self, loops: impl IntoIterator<Item = F>) -> Result<()>
    where
        F: Future<Output = Result<()>>,
    {
        let mut loops: FuturesUnordered<F> = loops.into_iter().collect();
        while loops.try_next().await?.is_some() {}
        Ok(())
    }

    /// Returns the bandwidth over the time from the start of the measurement to the last
    /// completion. Fails if no operation has completed.
    pub(crate) fn bandwidth(&self) -> Result<Bandwidth> {
        match (self.done.get(), self.begun.get()) {
            (0, _) | (_, None) => Err(Error::Unsupported("nothing to measure".into())),
            (done, Some(begun)) => Ok(Bandwidth::over(done, self.last.get() - begun)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::asynchronous::runtime::build;

    fn run_all(window: &Window, depth: usize) -> usize {
        let most = Cell::new(0);
        let outstanding = Cell::new(0);
        let one = async || {
            while window.claim() {
                outstanding.set(outstanding.get() + 1);
                most.set(most.get().max(outstanding.get()));
                tokio::task::yield_now().await;
                outstanding.set(outstanding.get() - 1);
                window.complete();
            }
            Ok(())
        };
        let loops = (0..depth).map(|_| one());
        build(1).unwrap().block_on(window.run_all(loops)).unwrap();
        most.get()
    }

    #[test]
    fn as_many_as_asked_for_with_as_many_outstanding_as_loops() {
        let window = Window::new(Length::Iterations(100), &Progress::default());
        window.begin();
        assert_eq!(run_all(&window, 8), 8);
        assert_eq!(window.bandwidth().unwrap().iterations, 100);
    }

    #[test]
    fn time_runs_out_but_not_without_a_limit() {
        let length = Length::Duration(Duration::from_millis(2));
        let window = Window::new(length, &Progress::default());
        window.begin();
        run_all(&window, 4);
        assert!(!window.claim());
        let window = Window::new(length, &Progress::default()).unlimited();
        window.begin();
        std::thread::sleep(Duration::from_millis(3));
        window.complete();
        assert!(window.claim());
    }

    #[test]
    fn nothing_is_no_result() {
        let window = Window::new(Length::Iterations(5), &Progress::default());
        assert!(window.bandwidth().is_err());
    }
}
