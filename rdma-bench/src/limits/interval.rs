//! The 95 % confidence interval of a median.

use serde::Serialize;

use crate::compare::outcome::middle;

/// The median of independent values, with a confidence interval. The interval contains the true
/// median (the median of the values' distribution) with a probability of at least 95 %, for every
/// distribution.
///
/// The interval goes from the k-th smallest to the k-th largest value. k is the largest number for
/// which the interval misses the true median with a probability of at most 5 %. This probability
/// follows from the binomial distribution, because each value is below the true median with a
/// probability of one half.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Interval {
    /// The median of the values.
    pub median: f64,
    /// The lower end of the interval.
    pub low: f64,
    /// The upper end of the interval.
    pub high: f64,
}

impl Interval {
    /// Minimum probability with which the confidence interval of a median contains the true median.
    pub const CONFIDENCE: f64 = 0.95;

    /// Returns the median of `values` with its confidence interval. Returns `None` for fewer than
    /// six values: even the range from their minimum to their maximum then contains the true median
    /// with a probability below 95 %.
    pub fn of(values: impl IntoIterator<Item = f64>) -> Option<Self> {
        let mut sorted: Vec<f64> = values.into_iter().collect();
        sorted.sort_unstable_by(f64::total_cmp);
        let below = rank(sorted.len())? - 1;
        Some(Self {
            median: middle(sorted.iter().copied())?,
            low: sorted[below],
            high: sorted[sorted.len() - 1 - below],
        })
    }
}

/// Returns the rank k for the confidence [`Interval`] of the median of `count` values: the interval
/// goes from the k-th smallest to the k-th largest value. Returns `None` for too few values: even
/// the interval of all values would contain the true median with a probability below
/// [`Interval::CONFIDENCE`].
fn rank(count: usize) -> Option<usize> {
    // The probability that exactly `k` values are below the true median, and that at most `k` are.
    let mut exactly = 0.5_f64.powi(i32::try_from(count).ok()?);
    let mut at_most = exactly;
    let mut k = 0;
    while 1.0 - 2.0 * at_most >= Interval::CONFIDENCE {
        k += 1;
        exactly *= (count + 1 - k) as f64 / k as f64;
        at_most += exactly;
    }
    (k > 0).then_some(k)
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    #[test]
    fn ranks_are_those_of_the_sign_test() {
        let known = [
            (5, None),
            (6, Some(1)),
            (7, Some(1)),
            (8, Some(1)),
            (9, Some(2)),
            (10, Some(2)),
            (11, Some(2)),
            (15, Some(4)),
            (23, Some(7)),
            (31, Some(10)),
        ];
        for (count, k) in known {
            assert_eq!(rank(count), k, "{count}");
        }
    }

    #[test]
    fn intervals_are_order_statistics() {
        for (count, low, high) in [(7, 1, 7), (9, 2, 8), (15, 4, 12), (31, 10, 22)] {
            // From the greatest value to the least: the order of the values does not matter.
            let found = Interval::of((1..=count).rev().map(f64::from)).unwrap();
            let expected = Interval {
                median: f64::from((count + 1) / 2),
                low: f64::from(low),
                high: f64::from(high),
            };
            assert_eq!(found, expected);
        }
        assert_eq!(Interval::of([1.0; 5]), None);
        assert_eq!(Interval::of([]), None);
    }
}
