//! Computes latency and bandwidth from timestamps, by perftest's definitions.

use std::time::{Duration, Instant};

use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};

/// The number of slowest samples that the mean and the deviation of the latency leave out, as in
/// perftest. The reported maximum is the second-slowest sample.
const TAIL: usize = 2;

/// The latency statistics of a run, in microseconds. A run with a number of iterations keeps all
/// samples. Some statistics then leave out one or two of the slowest samples, as in perftest (see
/// each field). A run with a duration keeps only a histogram, and its statistics include all
/// operations.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Latency {
    /// Number of operations. If the samples were kept, this number includes the last operation,
    /// which has no sample.
    pub iterations: usize,
    /// The minimum latency.
    pub min: f64,
    /// The maximum latency, without the slowest sample.
    pub max: f64,
    /// The median latency.
    pub typical: f64,
    /// The mean latency, without the slowest two samples.
    pub average: f64,
    /// The standard deviation of the latency, without the slowest two samples.
    pub deviation: f64,
    /// The 99th percentile of the latency.
    pub percentile_99: f64,
    /// The 99.9th percentile of the latency.
    pub percentile_99_9: f64,
    /// Every sample in chronological order. Empty if samples were not kept.
    pub samples: Vec<f64>,
    /// The duration of the run, if the test was started with a duration.
    pub duration: Option<Duration>,
}

impl Latency {
    /// Computes the latency statistics from the timestamps of consecutive iterations. Each latency
    /// is the time between two timestamps, divided by `parts`. In tests that report half of a round
    /// trip, `parts` is 2.
    ///
    /// Returns `None` for fewer than four timestamps, because some statistics leave out two
    /// samples.
    pub fn from_times(stamps: &[Instant], parts: u32) -> Option<Self> {
        let micros = |pair: &[Instant]| (pair[1] - pair[0]).as_secs_f64() * 1e6 / f64::from(parts);
        Self::of_samples(stamps.len(), stamps.windows(2).map(micros).collect())
    }

    fn of_samples(iterations: usize, samples: Vec<f64>) -> Option<Self> {
        let kept = samples.len().checked_sub(TAIL).filter(|kept| *kept > 0)?;
        let mut sorted = samples.clone();
        sorted.sort_unstable_by(f64::total_cmp);
        let average = sorted[..kept].iter().sum::<f64>() / kept as f64;
        let squares = sorted[..kept]
            .iter()
            .map(|sample| (sample - average).powi(2));
        let rank = |share: f64| sorted[((kept as f64 * share).ceil() as usize).min(kept)];
        Some(Self {
            iterations,
            min: sorted[0],
            max: sorted[kept],
            typical: median(&sorted),
            average,
            deviation: (squares.sum::<f64>() / kept as f64).sqrt(),
            percentile_99: rank(0.99),
            percentile_99_9: rank(0.999),
            samples,
            duration: None,
        })
    }

    /// Computes the latency statistics of a run that took `duration` from a histogram of the times
    /// between timestamps, in nanoseconds. A latency is such a time divided by `parts`: by 2 if the
    /// test reports half of a round trip. Returns `None` if the histogram is empty.
    pub fn from_histogram(
        histogram: &Histogram<u64>,
        duration: Duration,
        parts: u32,
    ) -> Option<Self> {
        if histogram.is_empty() {
            return None;
        }
        let micros = |nanos: f64| nanos / 1e3 / f64::from(parts);
        let quantile = |share: f64| micros(histogram.value_at_quantile(share) as f64);
        let iterations = usize::try_from(histogram.len()).unwrap_or(usize::MAX);
        Some(Self {
            iterations,
            min: micros(histogram.min() as f64),
            max: micros(histogram.max() as f64),
            typical: quantile(0.5),
            average: micros(duration.as_nanos() as f64 / histogram.len() as f64),
            deviation: micros(histogram.stdev()),
            percentile_99: quantile(0.99),
            percentile_99_9: quantile(0.999),
            samples: Vec::new(),
            duration: Some(duration),
        })
    }

    /// Returns the operations per second of a run that was started with a duration. A round trip
    /// counts as one operation.
    pub fn rate(&self) -> f64 {
        let seconds = self.duration.unwrap_or_default().as_secs_f64();
        self.iterations as f64 / seconds
    }
}

/// Returns the median of the sorted numbers `sorted`. If their count is even, returns the lower of
/// the two middle numbers.
pub fn median(sorted: &[f64]) -> f64 {
    sorted[(sorted.len() - 1) / 2]
}

/// The bandwidth statistics of a run: its average and its peak message rate.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Bandwidth {
    /// Number of messages that were measured.
    pub iterations: usize,
    /// Messages per second over the whole run.
    pub average: f64,
    /// Messages per second in the interval with the best rate, or 0 if the peak was not measured.
    pub peak: f64,
    /// Average number of requests in a message of remote procedure calls, or `None` for other
    /// tests.
    pub calls_per_message: Option<f64>,
}

impl Bandwidth {
    /// Computes the average bandwidth of `iterations` messages that together took `duration`. The
    /// result has no peak rate.
    pub fn over(iterations: usize, duration: Duration) -> Self {
        Self {
            iterations,
            average: iterations as f64 / duration.as_secs_f64(),
            peak: 0.0,
            calls_per_message: None,
        }
    }

    /// Computes the average and the peak rate of a run. `posted` and `completed` have the times at
    /// which each message was posted and completed. An unsignaled message completes with the next
    /// signaled message. The peak is the highest rate of any sequence of successive messages, from
    /// the post of its first message to the completion of its last.
    pub fn from_times(posted: &[Instant], completed: &[Instant]) -> Self {
        let (Some(first), Some(last)) = (posted.first(), completed.last()) else {
            return Self::over(0, Duration::ZERO);
        };
        let since = |stamp: &Instant| (*stamp - *first).as_nanos() as u64;
        let begun: Vec<u64> = posted.iter().map(since).collect();
        // Of messages that completed at the same time, the last one gives the highest rate.
        let mut ends: Vec<(usize, u64)> = Vec::new();
        for (message, stamp) in completed.iter().map(since).enumerate() {
            match ends.last_mut() {
                Some((last, time)) if *time == stamp => *last = message,
                _ => ends.push((message, stamp)),
            }
        }
        let mut peak = 0.0_f64;
        for (end, time) in ends {
            for (start, posted) in begun[..=end].iter().enumerate() {
                let count = (end - start + 1) as f64;
                peak = peak.max(count / (time - posted).max(1) as f64);
            }
        }
        Self {
            peak: peak * 1e9,
            ..Self::over(posted.len(), *last - *first)
        }
    }

    /// Converts `rate`, a number of messages of `size` bytes per second, to MiB per second.
    pub fn mebibytes(rate: f64, size: usize) -> f64 {
        rate * size as f64 / f64::from(1 << 20)
    }

    /// Converts `rate`, a number of messages of `size` bytes per second, to Gb per second.
    pub fn gigabits(rate: f64, size: usize) -> f64 {
        rate * size as f64 * 8.0 / 1e9
    }
}

/// The size and the bandwidth of the background traffic of a latency test with the option
/// `--beside`. The traffic consists of messages on a second queue pair, or of transfers of bulk
/// memory on the same connection.
#[derive(Debug, Clone, PartialEq)]
pub struct Bulk {
    /// The size in bytes of a message, or of the bulk memory.
    pub size: usize,
    /// The bandwidth of the messages or transfers of bulk memory.
    pub bandwidth: Bandwidth,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn close(left: f64, right: f64) {
        assert!((left - right).abs() < 5e-3, "{left} is not {right}");
    }

    /// Checks that the statistics equal the summary that `ib_read_lat -n 20 -U` printed for these
    /// samples. Only the expected deviation is not from that summary, because perftest truncated it
    /// to whole microseconds.
    #[test]
    fn perftests_samples_give_perftests_summary() {
        let samples = [
            1435.06, 143.631, 82.1781, 73.9002, 71.3747, 69.9617, 66.9952, 68.3281, 68.9394,
            68.268, 64.7904, 65.6924, 68.9996, 68.5686, 65.6323, 63.4375, 64.5399, 64.3595, 66.885,
        ];
        let found = Latency::of_samples(20, samples.to_vec()).unwrap();
        close(found.min, 63.44);
        close(found.max, 143.63);
        close(found.average, 68.40);
        close(found.percentile_99, 143.63);
        close(found.percentile_99_9, 143.63);
        assert!((found.typical - 68.27).abs() < 0.1);
        close(found.deviation, 4.34);
    }

    #[test]
    fn percentiles_of_many_samples_are_ranks_of_the_kept_ones() {
        let samples: Vec<f64> = (0..999).map(f64::from).collect();
        let found = Latency::of_samples(1000, samples).unwrap();
        close(found.percentile_99, 988.0);
        close(found.percentile_99_9, 997.0);
        close(found.max, 997.0);
        close(found.typical, 499.0);
    }

    #[test]
    fn stamps_become_half_round_trips() {
        let start = Instant::now();
        let stamps: Vec<_> = (0..10)
            .map(|step| start + Duration::from_micros(20 * step))
            .collect();
        let found = Latency::from_times(&stamps, 2).unwrap();
        assert_eq!((found.iterations, found.samples.len()), (10, 9));
        close(found.typical, 10.0);
        close(found.deviation, 0.0);
        assert!(Latency::from_times(&stamps[..3], 2).is_none());
    }

    #[test]
    fn a_histogram_gives_mean_and_rate_over_its_time() {
        let mut histogram = Histogram::new(3).unwrap();
        histogram.record_n(20_000, 100_000).unwrap();
        let found = Latency::from_histogram(&histogram, Duration::from_secs(2), 2).unwrap();
        close(found.average, 10.0);
        close(found.rate(), 50_000.0);
        assert!((found.typical - 10.0).abs() < 0.02);
    }

    #[test]
    fn average_is_over_all_and_peak_over_the_best_stretch() {
        let start = Instant::now();
        let at = |micros: u64| start + Duration::from_micros(micros);
        // Four messages in 100 us, four more in 300 us.
        let posted = [
            at(0),
            at(1),
            at(2),
            at(3),
            at(100),
            at(101),
            at(102),
            at(103),
        ];
        let completed = [
            at(100),
            at(100),
            at(100),
            at(100),
            at(400),
            at(400),
            at(400),
            at(400),
        ];
        let found = Bandwidth::from_times(&posted, &completed);
        assert_eq!(found.iterations, 8);
        close(found.average, 20_000.0);
        close(found.peak, 40_000.0);
    }

    #[test]
    fn units_are_perftests() {
        close(Bandwidth::mebibytes(1000.0, 1 << 20), 1000.0);
        close(Bandwidth::gigabits(1e6, 125), 1.0);
    }
}
