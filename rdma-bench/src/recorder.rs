//! Records the timestamps of a latency test.

use std::time::{Duration, Instant};

use hdrhistogram::Histogram;

use crate::plan::Length;
use crate::statistics::Latency;

/// A recorder of one timestamp for each iteration of a latency test. The recorder also determines
/// when the test is over.
#[derive(Debug)]
pub struct Recorder {
    taken: usize,
    first: Instant,
    last: Instant,
    kept: Kept,
}

#[derive(Debug)]
enum Kept {
    /// All timestamps, in memory that was written to before the test, so that no page fault
    /// disturbs the test.
    Stamps(Vec<Instant>),
    /// A histogram of the times between timestamps, and the duration of the test. Used if the
    /// number of iterations is not known before the test.
    Histogram(Histogram<u64>, Duration),
}

impl Recorder {
    /// Creates a recorder for a latency test with the given number of iterations or the given
    /// duration.
    pub fn new(length: Length) -> Self {
        let now = Instant::now();
        let kept = match length {
            Length::Iterations(count) => Kept::Stamps(vec![now; count]),
            Length::Duration(duration) => {
                let histogram = Histogram::new(3).expect("3 significant digits are allowed");
                Kept::Histogram(histogram, duration)
            }
        };
        Self {
            taken: 0,
            first: now,
            last: now,
            kept,
        }
    }

    /// Returns whether the test needs another iteration, because its number of iterations or its
    /// duration is not reached.
    #[inline]
    pub fn needs_more(&self) -> bool {
        match &self.kept {
            Kept::Stamps(stamps) => self.taken < stamps.len(),
            Kept::Histogram(_, duration) => {
                self.taken == 0 || self.last.duration_since(self.first) < *duration
            }
        }
    }

    /// Records that the next iteration of the latency test begins now. The caller must call this
    /// function immediately before it posts the request of the iteration.
    #[inline]
    pub fn record(&mut self) {
        let now = Instant::now();
        match &mut self.kept {
            Kept::Stamps(stamps) => stamps[self.taken] = now,
            Kept::Histogram(..) if self.taken == 0 => self.first = now,
            Kept::Histogram(histogram, _) => {
                let nanos = now.duration_since(self.last).as_nanos() as u64;
                histogram.saturating_record(nanos);
            }
        }
        self.last = now;
        self.taken += 1;
    }

    /// Returns the number of timestamps that were recorded so far, one for each iteration of the
    /// test.
    #[inline]
    pub fn count(&self) -> usize {
        self.taken
    }

    /// Returns the statistics of the recorded latencies, each divided by `parts`. In tests that
    /// report half of a round trip, `parts` is 2. Returns `None` if there are too few samples.
    pub fn latency(&self, parts: u32) -> Option<Latency> {
        match &self.kept {
            Kept::Stamps(stamps) => Latency::from_times(&stamps[..self.taken], parts),
            Kept::Histogram(histogram, _) => {
                Latency::from_histogram(histogram, self.last - self.first, parts)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn iterations_are_counted() {
        let mut recorder = Recorder::new(Length::Iterations(6));
        while recorder.needs_more() {
            recorder.record();
        }
        assert_eq!(recorder.latency(1).unwrap().iterations, 6);
    }

    #[test]
    fn time_runs_out() {
        let length = Duration::from_millis(2);
        let mut recorder = Recorder::new(Length::Duration(length));
        while recorder.needs_more() {
            recorder.record();
        }
        let latency = recorder.latency(1).unwrap();
        assert!(latency.duration.unwrap() >= length);
        assert_eq!(latency.iterations, recorder.count() - 1);
    }
}
