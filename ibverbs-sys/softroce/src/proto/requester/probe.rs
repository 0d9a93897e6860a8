use std::time::Duration;

use crate::proto::{Sequence, Time};

/// Detection of losses that the peer does not report by a NAK. The peer sends a NAK only when a
/// later packet arrives, and only one for each missing packet (IBTA 9.7.4.1.2). So the loss of the
/// last packets in flight, and the second loss of a packet, cause no NAK.
///
/// If no response arrives for some round trips, the oldest unanswered packet is sent again, as a
/// probe. The response shows which packets the peer has received. Without probes, the requester
/// would wait for the acknowledgement timeout, which is often a thousand times longer. Probes do
/// not count as retries, but their number is limited.
#[derive(Clone, Debug, Default)]
pub(super) struct Probe {
    /// Estimated round trip time. `None` before the first response.
    round_trip: Option<RoundTrip>,
    timed: Option<TimedPacket>,
    /// Measured round trip that [`take_sample`](Self::take_sample) has not returned yet.
    sample: Option<Sample>,
    at: Option<Time>,
    /// Number of probes since the last response.
    count: u32,
    /// Set if a probe must be sent.
    is_probe_due: bool,
    /// Sequence number after the packet that the last probe repeated.
    end: Option<Sequence>,
}

/// A sent packet whose round trip time, from its transmission to the response, is being measured.
#[derive(Clone, Copy, Debug)]
struct TimedPacket {
    sequence: Sequence,
    sent: Time,
    /// [Count of the packets](super::Requester::delivered) that the peer was known to have received
    /// when the packet was sent.
    delivered: Sequence,
}

/// A measured round trip time, and the number of packets that the peer received during this time.
/// The capacity of the path is estimated from both.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Sample {
    pub(super) time: Duration,
    /// Number of packets that the peer received in this time.
    pub(super) packets: u32,
}

/// Estimate of the round trip time to the peer: its mean and its mean deviation, in nanoseconds.
#[derive(Clone, Copy, Debug)]
struct RoundTrip {
    mean: u64,
    deviation: u64,
}

/// Minimum time in nanoseconds to wait for a response before a probe (repetition of the oldest
/// unanswered packet) is sent. A busy machine can delay the process of the peer for this long.
const MIN_PROBE_DELAY: u64 = 1_000_000;

/// Maximum measured round trip time in nanoseconds. A longer time counts as this time, so that the
/// calculation of the mean round trip time does not overflow 64 bits.
const MAX_ROUND_TRIP: u64 = 1 << 56;

/// Maximum number of consecutive probes to a peer that does not respond. After so many probes, only
/// the acknowledgement timeout causes a retransmission.
const MAX_PROBES: u32 = 3;

impl Probe {
    /// Records that packets were sent at the time `now`. Schedules the next probe (repetition of
    /// the oldest unanswered packet) within the acknowledgement timeout `timeout`.
    ///
    /// Begins to measure the round trip time of the packet `timed`, unless a measurement is in
    /// progress. The caller must ensure that this packet was sent for the first time, and requests
    /// a response. `delivered` is the present [count of received
    /// packets](super::Requester::delivered). The increase of this count during the round trip is
    /// also measured.
    pub(super) fn sent(
        &mut self,
        timed: Option<Sequence>,
        now: Time,
        timeout: Option<Duration>,
        delivered: Sequence,
    ) {
        if let (Some(sequence), None) = (timed, self.timed) {
            self.timed = Some(TimedPacket {
                sequence,
                sent: now,
                delivered,
            });
        }
        self.arm(now, timeout);
    }

    /// Records that all packets before `limit` are answered. `delivered` is the [count of received
    /// packets](super::Requester::delivered), and `waiting` is set if later packets are unanswered.
    ///
    /// Returns `true` if these later packets are lost. The later packets are lost if the response
    /// to a probe (repetition of the oldest unanswered packet) answers only the repeated packet.
    /// The peer would also have answered later packets that had arrived.
    pub(super) fn progress(
        &mut self,
        limit: Sequence,
        delivered: Sequence,
        waiting: bool,
        now: Time,
        timeout: Option<Duration>,
    ) -> bool {
        if let Some(timed) = self.timed
            && limit.distance(timed.sequence) > 0
        {
            let time = now - timed.sent;
            self.update(time);
            self.sample = Some(Sample {
                time,
                packets: delivered.distance(timed.delivered).max(0) as u32,
            });
            self.timed = None;
        }
        self.count = 0;
        self.is_probe_due = false;
        if waiting {
            self.arm(now, timeout);
        } else {
            self.at = None;
        }
        match self.end {
            Some(end) if limit.distance(end) >= 0 => {
                self.end = None;
                limit == end && waiting
            }
            _ => false,
        }
    }

    /// Handles a gap report (list of missing packets) of the peer, and schedules the next probe
    /// (repetition of the oldest unanswered packet). Cancels the round trip measurement, because
    /// the acknowledgement of the measured packet waits for the missing packets. `timeout` is the
    /// acknowledgement timeout.
    pub(super) fn reported(&mut self, now: Time, timeout: Option<Duration>) {
        self.timed = None;
        self.count = 0;
        self.is_probe_due = false;
        self.arm(now, timeout);
    }

    /// Removes and returns the last round trip time that was measured since the previous call.
    /// Returns `None` if no time was measured.
    pub(super) fn take_sample(&mut self) -> Option<Sample> {
        self.sample.take()
    }

    /// Returns whether this detector expects no response: no round trip is being measured, and no
    /// probe (repetition of the oldest unanswered packet) is scheduled or unanswered. If all
    /// packets are answered, [`progress`](Self::progress) then need not be called.
    #[inline]
    pub(super) fn is_idle(&self) -> bool {
        self.timed.is_none()
            && self.at.is_none()
            && self.count == 0
            && !self.is_probe_due
            && self.end.is_none()
    }

    /// Cancels the round trip measurement and the scheduled probe (repetition of the oldest
    /// unanswered packet), because all unanswered packets are sent again.
    pub(super) fn cancel(&mut self) {
        self.timed = None;
        self.at = None;
        self.is_probe_due = false;
        self.end = None;
    }

    /// Cancels the round trip measurement, because the arrival time of the next response is not
    /// known exactly.
    pub(super) fn cancel_measurement(&mut self) {
        self.timed = None;
    }

    /// Returns the time at which a probe (repetition of the oldest unanswered packet) must be sent,
    /// or `None` if no probe is scheduled.
    pub(super) fn at(&self) -> Option<Time> {
        self.at
    }

    /// Records that a probe (repetition of the oldest unanswered packet) must be sent, if the
    /// scheduled time of the probe has been reached at `now`.
    pub(super) fn handle_timeout(&mut self, now: Time) {
        if self.at.is_some_and(|at| at <= now) {
            self.at = None;
            self.is_probe_due = true;
            self.count += 1;
        }
    }

    /// Returns whether a probe (repetition of the oldest unanswered packet) must be sent.
    pub(super) fn is_due(&self) -> bool {
        self.is_probe_due
    }

    /// Records that a probe (repetition of the oldest unanswered packet) was sent. `end` is the
    /// sequence number after the packet. Schedules another probe, unless [`MAX_PROBES`] probes are
    /// unanswered, or the next response could only arrive after the acknowledgement timeout
    /// `timeout`.
    pub(super) fn probe_sent(&mut self, end: Sequence, now: Time, timeout: Option<Duration>) {
        self.is_probe_due = false;
        // The answer may be to the first transmission or to the probe, so it gives no round trip
        // time.
        self.timed = None;
        self.end = Some(end);
        self.arm(now, timeout);
    }

    fn arm(&mut self, now: Time, timeout: Option<Duration>) {
        self.at = None;
        if let (Some(round_trip), Some(timeout)) = (self.round_trip, timeout)
            && self.count < MAX_PROBES
        {
            let response_limit = Duration::from_nanos(round_trip.response_time() << self.count);
            self.at = (response_limit + response_limit < timeout).then(|| now + response_limit);
        }
    }

    /// Updates the estimate of the round trip time with a measured time (RFC 6298).
    fn update(&mut self, sample: Duration) {
        let sample = u64::try_from(sample.as_nanos())
            .unwrap_or(u64::MAX)
            .min(MAX_ROUND_TRIP);
        self.round_trip = Some(match self.round_trip {
            None => RoundTrip {
                mean: sample,
                deviation: sample / 2,
            },
            Some(RoundTrip { mean, deviation }) => RoundTrip {
                mean: (mean * 7 + sample) / 8,
                deviation: (deviation * 3 + mean.abs_diff(sample)) / 4,
            },
        });
    }
}

impl RoundTrip {
    /// Returns the time in nanoseconds within which a response is expected: the sum of twice the
    /// mean round trip time and four times its deviation, but at least [`MIN_PROBE_DELAY`].
    fn response_time(self) -> u64 {
        (2 * self.mean + 4 * self.deviation).max(MIN_PROBE_DELAY)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::Probe;
    use crate::proto::{Sequence, Time};

    const TIMEOUT: Option<Duration> = Some(Duration::from_millis(67));

    fn at(micros: u64) -> Time {
        Time::from_nanos(micros * 1000)
    }

    #[test]
    fn the_probe_timeout_is_a_multiple_of_the_measured_round_trip() {
        let mut probe = Probe::default();
        probe.sent(Some(Sequence::new(0)), at(0), TIMEOUT, Sequence::new(0));
        assert_eq!(probe.at(), None);
        probe.progress(Sequence::new(1), Sequence::new(1), false, at(2000), TIMEOUT);
        assert_eq!(probe.at(), None);
        probe.sent(Some(Sequence::new(1)), at(3000), TIMEOUT, Sequence::new(0));
        // The probe is due after twice the mean and four times the deviation.
        assert_eq!(probe.at(), Some(at(11_000)));
        probe.progress(Sequence::new(2), Sequence::new(2), true, at(5000), TIMEOUT);
        assert!(probe.at().unwrap() < at(13_000));
        probe.sent(
            Some(Sequence::new(2)),
            at(5000),
            Some(Duration::from_millis(8)),
            Sequence::new(0),
        );
        assert_eq!(probe.at(), None);
        probe.sent(Some(Sequence::new(2)), at(5000), None, Sequence::new(0));
        assert_eq!(probe.at(), None);
    }

    #[test]
    fn a_peer_that_does_not_answer_gets_few_probes() {
        let mut probe = Probe::default();
        probe.sent(Some(Sequence::new(0)), at(0), TIMEOUT, Sequence::new(0));
        probe.progress(Sequence::new(1), Sequence::new(1), false, at(10), TIMEOUT);
        probe.sent(Some(Sequence::new(1)), at(10), TIMEOUT, Sequence::new(0));
        let mut times = Vec::new();
        while let Some(due) = probe.at() {
            probe.handle_timeout(due);
            assert!(probe.is_due());
            probe.probe_sent(Sequence::new(2), due, TIMEOUT);
            times.push(due - at(10));
        }
        assert_eq!(times, [1, 3, 7].map(Duration::from_millis));
    }

    #[test]
    fn an_answer_that_only_the_probe_can_have_caused_is_recognized() {
        let mut probe = Probe::default();
        probe.probe_sent(Sequence::new(5), at(0), TIMEOUT);
        assert!(!probe.progress(Sequence::new(4), Sequence::new(4), true, at(1), TIMEOUT));
        assert!(probe.progress(Sequence::new(5), Sequence::new(5), true, at(1), TIMEOUT));
        assert!(!probe.progress(Sequence::new(5), Sequence::new(5), true, at(1), TIMEOUT));
        // The answer covers a packet after the probe, so the peer was only late. If no packet is
        // unanswered, none was lost.
        probe.probe_sent(Sequence::new(6), at(0), TIMEOUT);
        assert!(!probe.progress(Sequence::new(8), Sequence::new(8), true, at(1), TIMEOUT));
        probe.probe_sent(Sequence::new(9), at(0), TIMEOUT);
        assert!(!probe.progress(Sequence::new(9), Sequence::new(9), false, at(1), TIMEOUT));
    }
}
