use std::time::Duration;

use crate::proto::Time;

/// Estimate of the capacity of the network path: the number of packets that are in flight when the
/// path is full and no packet waits in a queue.
///
/// The capacity is the product of the rate at which the peer acknowledges packets and the shortest
/// round trip time. While round trips take the shortest time, the path may not be full, and the
/// true capacity may be higher than the estimate.
#[derive(Clone, Debug, Default)]
pub(super) struct Pipe {
    shortest: Option<Shortest>,
    /// Estimated capacity in packets. Decreases slowly while the measurements are lower, because a
    /// program may send little.
    capacity: u32,
    /// Set if the last measured round trip was so long that packets have waited in a queue.
    is_full: bool,
}

/// The shortest recent round trip time in nanoseconds, and the time of its measurement.
#[derive(Clone, Copy, Debug)]
struct Shortest {
    nanos: u64,
    at: Time,
}

/// Minimum plausible round trip time in nanoseconds. A shorter measured time is wrong and is
/// ignored: the clock was read too early.
const MIN_ROUND_TRIP: u64 = 1_000;

/// Maximum age of the shortest round trip time. The next measurement replaces an older value even
/// if the measured time is longer, because the route has perhaps changed.
const MAX_AGE: Duration = Duration::from_secs(10);

impl Pipe {
    /// Updates the estimated capacity of the path with a measurement made at the time `now`:
    /// `packets` packets were acknowledged in one round trip of the duration `round_trip`.
    pub(super) fn measured(&mut self, round_trip: Duration, packets: u32, now: Time) {
        let nanos = u64::try_from(round_trip.as_nanos()).unwrap_or(u64::MAX);
        if nanos < MIN_ROUND_TRIP {
            return;
        }
        let known = self
            .shortest
            .filter(|known| known.nanos < nanos && now - known.at < MAX_AGE);
        let shortest = known.unwrap_or(Shortest { nanos, at: now });
        self.shortest = Some(shortest);
        let product = u128::from(packets) * u128::from(shortest.nanos) / u128::from(nanos);
        let measured = u32::try_from(product).unwrap_or(u32::MAX);
        self.capacity = measured.max(self.capacity - self.capacity / 32);
        self.is_full = nanos > shortest.nanos + shortest.nanos / 4;
    }

    /// Returns the shortest recent round trip time in nanoseconds, or `None` before the first
    /// measurement.
    pub(super) fn shortest(&self) -> Option<u64> {
        self.shortest.map(|shortest| shortest.nanos)
    }

    /// Returns whether packets waited in a queue of the path during the last measured round trip.
    /// In this case, a larger window would only increase the waiting time.
    pub(super) fn is_full(&self) -> bool {
        self.is_full
    }

    /// Returns the estimated capacity of the network path in packets, or 0 before the first
    /// measurement.
    pub(super) fn capacity(&self) -> u32 {
        self.capacity
    }

    /// Returns the number of packets in flight with which the sender should fill the path. The
    /// result is the estimated capacity if packets waited in a queue during the last measured round
    /// trip. Otherwise, the true capacity can be higher, and the result is one and a half times the
    /// estimate.
    pub(super) fn fill(&self) -> u32 {
        let margin = if self.is_full { 0 } else { self.capacity / 2 };
        self.capacity.saturating_add(margin)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ROUND_TRIP: Duration = Duration::from_millis(2);

    fn at(round: u64) -> Time {
        Time::default() + ROUND_TRIP * round as u32
    }

    /// Simulates a sender on a path that transfers at most `most` packets in a round trip. In each
    /// of `rounds` round trips, the sender has [`Pipe::fill`] plus `base` packets in flight.
    /// Returns the number of packets in flight for each round trip.
    fn windows(most: u32, base: u32, rounds: u64) -> Vec<u32> {
        let mut pipe = Pipe::default();
        // The first window is small, so its packets wait in no queue.
        pipe.measured(ROUND_TRIP, 16, at(0));
        let round = |round| {
            let window = base + pipe.fill();
            let waits = f64::from(window) / f64::from(most);
            pipe.measured(ROUND_TRIP.mul_f64(waits.max(1.0)), window, at(round));
            window
        };
        (0..rounds).map(round).collect()
    }

    #[test]
    fn the_estimate_grows_to_the_capacity_of_the_path() {
        let windows = windows(2000, 100, 100);
        let full = windows.iter().position(|&window| window >= 2000).unwrap();
        assert!(full < 12, "{windows:?}");
        let last = *windows.last().unwrap();
        assert!((2000..2200).contains(&last), "{windows:?}");
        assert!(windows.iter().all(|&window| window < 3200), "{windows:?}");
    }

    #[test]
    fn the_estimate_of_a_short_path_is_low() {
        let windows = windows(30, 100, 100);
        assert!(windows.iter().all(|&window| window < 180), "{windows:?}");
    }

    #[test]
    fn the_estimate_shrinks_with_the_path_and_the_minimum_round_trip_expires() {
        let mut pipe = Pipe::default();
        for round in 0..10 {
            pipe.measured(ROUND_TRIP, 1000, at(round));
        }
        assert_eq!(pipe.capacity(), 1000);
        for round in 10..100 {
            pipe.measured(ROUND_TRIP, 100, at(round));
        }
        assert!(pipe.capacity() < 120);
        // 6,000 round trips are 12 s.
        pipe.measured(ROUND_TRIP * 2, 100, at(6000));
        assert_eq!(pipe.shortest.unwrap().nanos, 4_000_000);
    }
}
