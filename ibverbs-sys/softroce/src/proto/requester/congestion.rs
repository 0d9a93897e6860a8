use std::time::Duration;

use super::pipe::Pipe;

/// Congestion control by round trip times. Sets the window (limit on packets in flight) so that
/// several senders share a network link and lose few packets. A long round trip time shows that
/// packets wait in a queue of the network.
///
/// The capacity of the queue is unknown until the queue overflows, which causes a loss. The round
/// trip time at that moment belongs to a full queue. From then on, the window changes in each round
/// trip, unless the queue is almost empty. The window grows by an amount that does not depend on
/// its size, and shrinks by a fraction of its size. The fraction is larger if the queue is fuller.
/// A large window thus shrinks by more packets than a small window, so the windows of the senders
/// approach each other.
///
/// The assumed round trip time of a full queue is increased slowly, so that the queue overflows
/// again at some time. All senders then halve their windows, and measure shorter round trip times.
/// The new measurements correct wrong measurements: a sender that began while packets waited in the
/// queue may not have measured the shortest time before.
#[derive(Clone, Debug, Default)]
pub(super) struct Congestion {
    /// The last two measured round trip times in nanoseconds, the later one last.
    times: [u64; 2],
    /// Round trip time in nanoseconds with a full queue. `None` before the first overflow.
    full: Option<u64>,
    /// Value of `full` directly after the last overflow. Each later measurement increases `full`
    /// but not this value. 0 before the first overflow.
    full_at_overflow: u64,
}

/// Number of units in a packet. Window sizes are computed in units, so that a window can also
/// change by a fraction of a packet.
pub(super) const UNITS: u64 = 1024;

/// Constant part of the growth of the window (limit on packets in flight), in [units](UNITS): four
/// packets. While the queue in the network is almost empty, the window grows in each round trip by
/// this constant plus 1/32 of the window's size ([`INCREASE`]). Without the constant part, a small
/// window would grow by less than one packet.
const EMPTY_GROWTH: u64 = 4 * UNITS;

/// Minimum growth of the window (limit on packets in flight) in one round trip: a quarter of a
/// packet, in [units](UNITS). Applies while the queue of packets in the network is at least a
/// quarter full. Faster growth of many senders together would overflow a short queue.
const MIN_GROWTH: u64 = UNITS / 4;

/// Maximum growth of the window (limit on packets in flight) in one round trip: 64 packets, in
/// [units](UNITS). Does not apply while the queue of packets in the network is almost empty.
const MAX_GROWTH: u64 = 64 * UNITS;

/// Divisor of the shrinking of the window (limit on packets in flight). While the queue of packets
/// in the network is full, the window shrinks by 1/16 of its size in each round trip. Otherwise the
/// window shrinks by less.
const DECREASE: u64 = 16;

/// Divisor of the window size for the growth of the window (limit on packets in flight). While the
/// queue in the network is almost empty, the window grows in each round trip by 1/32 of its size
/// plus [`EMPTY_GROWTH`].
const INCREASE: u64 = 32;

/// Divisor for raising the estimated round trip time of a full queue in the network: each measured
/// round trip adds 1/2048 of the estimate. An estimate that is too short would otherwise remain.
/// When the estimate has become too long, the queue overflows, and the true time is measured.
const GROWTH_TIME: u64 = 2048;

impl Congestion {
    /// Records the measured round trip time `time`. Also raises the estimated round trip time of a
    /// full queue in the network: slightly with each call, and to at least the shorter one of the
    /// last two measured times. An estimate that is too short thus does not remain.
    pub(super) fn measured(&mut self, time: Duration) {
        let nanos = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        self.times = match self.times {
            [_, 0] => [nanos; 2],
            [_, last] => [last, nanos],
        };
        let standing = self.standing();
        self.full = (self.full).map(|full| full.saturating_add(full / GROWTH_TIME).max(standing));
    }

    /// Records a loss of packets. Returns whether a full queue in the network is the likely reason.
    /// If so, also updates the round trip time of a full queue.
    ///
    /// The longer one of the last two round trip times decides. This time must exceed the shortest
    /// time (recorded by `pipe`) by at least an eighth, and by at least half of the excess that a
    /// full queue causes. The recorded time of a full queue rises while no queue overflows. So the
    /// excess of a full queue counts as at most twice the excess at the last overflow.
    pub(super) fn handle_loss(&mut self, pipe: &Pipe) -> bool {
        let [one, last] = self.times;
        let time = one.max(last);
        let Some(shortest) = pipe.shortest() else {
            return false;
        };
        if time < shortest.saturating_add(shortest / 8) {
            return false;
        }
        let known = self.full.unwrap_or(0);
        let at_overflow = self.full_at_overflow.saturating_sub(shortest);
        let queue = known.saturating_sub(shortest);
        let queue = queue.min(at_overflow.saturating_mul(2));
        let known = shortest.saturating_add(queue);
        let full = if time - shortest >= queue / 4 * 3 {
            time
        } else if time - shortest >= queue / 2 {
            // The known time may be too long.
            known - (known - time) / 4
        } else {
            return false;
        };
        self.full = Some(full);
        self.full_at_overflow = full;
        true
    }

    /// Returns the new window size in [units](UNITS) after a measured round trip with a window of
    /// `size` packets. The window grows while the queue in the network is short, and shrinks while
    /// the queue is long: the last round trip times are then far above the shortest time, which
    /// `pipe` has recorded. Returns `None` before a full queue has caused the first loss.
    pub(super) fn next_size(&self, size: u32, pipe: &Pipe) -> Option<u64> {
        let (full, shortest) = (self.full?, pipe.shortest()?);
        let size = u64::from(size) * UNITS;
        if self.times[1] < shortest.saturating_add(full.saturating_sub(shortest) / 4) {
            return Some(size + size / INCREASE + EMPTY_GROWTH);
        }
        // Below this round trip time, the window does not shrink. Half of the time with a full
        // queue does not depend on the shortest time, of which senders may have different
        // measurements.
        let least = shortest.max(full / 2);
        let queue = full.saturating_sub(least).max(1);
        let fill = u128::from(self.standing().saturating_sub(least)) * 256 / u128::from(queue);
        let fill = fill.min(256) as u64;
        let cut = (size / DECREASE * fill.pow(3)) >> 24;
        let least_growth = if fill < 64 { UNITS } else { MIN_GROWTH };
        // One packet for each millisecond of the round trip.
        let growth = full / (1_000_000 / UNITS);
        Some(size - cut + growth.clamp(least_growth, MAX_GROWTH))
    }

    /// Returns whether the round trip time with a full queue in the network is known. The time is
    /// measured when packets are lost because the queue is full.
    pub(super) fn knows_queue(&self) -> bool {
        self.full.is_some()
    }

    /// Returns an estimate of the present round trip time in nanoseconds: the shorter one of the
    /// last two measured times. A single long time is ignored: the reason may only be that the
    /// peer's process was scheduled late.
    fn standing(&self) -> u64 {
        self.times[0].min(self.times[1])
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::proto::Time;

    const SHORTEST: Duration = Duration::from_micros(100);

    /// Creates the measurements of a sender for a test: first the round trip time [`SHORTEST`], as
    /// with an empty queue in the network, then the round trip times `times` in microseconds.
    fn sender(times: &[u64]) -> (Congestion, Pipe) {
        let (mut congestion, mut pipe) = (Congestion::default(), Pipe::default());
        let times = times.iter().map(|&micros| Duration::from_micros(micros));
        for time in [SHORTEST].into_iter().chain(times) {
            pipe.measured(time, 64, Time::default());
            congestion.measured(time);
        }
        (congestion, pipe)
    }

    #[test]
    fn a_loss_without_a_queue_is_not_congestion() {
        let (mut congestion, pipe) = sender(&[105, 110]);
        assert!(!congestion.handle_loss(&pipe));
        assert_eq!(congestion.next_size(64, &pipe), None);
    }

    #[test]
    fn a_loss_with_a_short_queue_is_not_congestion_if_the_queue_was_longer_before() {
        let (mut congestion, mut pipe) = sender(&[150, 180]);
        assert!(congestion.handle_loss(&pipe));
        for _ in 0..2 {
            congestion.measured(Duration::from_micros(130));
            pipe.measured(Duration::from_micros(130), 64, Time::default());
        }
        assert!(!congestion.handle_loss(&pipe));
    }

    #[test]
    fn an_overflow_is_noticed_after_a_long_time_with_an_empty_queue() {
        let (mut congestion, pipe) = sender(&[150, 180]);
        assert!(congestion.handle_loss(&pipe));
        for _ in 0..100_000 {
            congestion.measured(SHORTEST);
        }
        congestion.measured(Duration::from_micros(180));
        assert!(congestion.handle_loss(&pipe));
    }

    #[test]
    fn the_window_grows_while_the_queue_is_short_and_shrinks_while_the_queue_is_long() {
        let (mut congestion, pipe) = sender(&[380, 400]);
        assert!(congestion.handle_loss(&pipe));
        let mut change = |micros| {
            congestion.measured(Duration::from_micros(micros));
            congestion.measured(Duration::from_micros(micros));
            congestion.next_size(64, &pipe).unwrap() as i64 - 64 * UNITS as i64
        };
        assert_eq!(change(100), (2 * UNITS + EMPTY_GROWTH) as i64);
        assert_eq!(change(200), UNITS as i64);
        assert!((1..UNITS as i64).contains(&change(260)));
        assert!(change(380) < 0);
    }

    #[test]
    fn one_long_round_trip_does_not_shrink_the_window() {
        let (mut congestion, pipe) = sender(&[900, 1000]);
        assert!(congestion.handle_loss(&pipe));
        congestion.measured(Duration::from_micros(400));
        congestion.measured(Duration::from_millis(50));
        assert!(congestion.next_size(64, &pipe) > Some(64 * UNITS));
    }

    #[test]
    fn windows_of_senders_that_share_a_queue_approach_each_other() {
        let (mut congestion, pipe) = sender(&[900, 1000]);
        assert!(congestion.handle_loss(&pipe));
        let mut sizes = [200 * UNITS, 10 * UNITS];
        for _ in 0..1000 {
            // One packet takes 5 us, and a full queue has 180 packets.
            let time = SHORTEST.as_micros() as u64 + (sizes[0] + sizes[1]) / UNITS * 5;
            congestion.measured(Duration::from_micros(time.min(1000)));
            for size in &mut sizes {
                let packets = (*size / UNITS) as u32;
                *size = congestion.next_size(packets, &pipe).unwrap() + *size % UNITS;
            }
        }
        assert!(sizes[0] < 3 * sizes[1], "{sizes:?}");
    }

    #[test]
    fn any_measurement_and_loss_is_accepted() {
        let extremes = [0, 1, 1000, u64::MAX / 4, u64::MAX / 2];
        for one in extremes {
            for other in extremes {
                let (mut congestion, mut pipe) = (Congestion::default(), Pipe::default());
                for nanos in [one, other, one] {
                    let time = Duration::from_nanos(nanos);
                    pipe.measured(time, u32::MAX, Time::default());
                    congestion.measured(time);
                    congestion.handle_loss(&pipe);
                    congestion.next_size(1 << 20, &pipe);
                }
            }
        }
    }
}
