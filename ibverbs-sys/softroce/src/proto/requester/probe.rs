use std::time::Duration;

use crate::proto::{Sequence, Time};

/// Looks for what was lost without a trace: the end of what is on the way, of which no later packet tells, or a
/// packet that was lost a second time, of which a peer tells but once (IBTA 9.7.4.1.2).
///
/// The oldest packet goes again when nothing was heard for some round trips. Its answer tells how far the peer
/// is. Without it only the acknowledgement timeout would help, which is meant for peers that are gone: it is often
/// a thousand times longer. Probes are no retries and are not counted as such; to a peer that is gone go only few.
#[derive(Clone, Debug, Default)]
pub(super) struct Probe {
    /// Known from the first answer on.
    round_trip: Option<RoundTrip>,
    /// A packet that went once, and when.
    timed: Option<(Sequence, Time)>,
    at: Option<Time>,
    /// Probes since something was heard.
    count: u32,
    /// A probe is to go.
    due: bool,
    /// The number after what the probe asked about.
    end: Option<Sequence>,
}

/// How long an answer takes, and how much that varies, in nanoseconds.
#[derive(Clone, Copy, Debug)]
struct RoundTrip {
    mean: u64,
    deviation: u64,
}

/// Peers are programs: they may not run for so many nanoseconds.
const SHORTEST: u64 = 1_000_000;

/// What is reckoned with has room in a word.
const LONGEST: u64 = 1 << 56;

/// Probes to a peer that does not answer.
const MOST: u32 = 3;

impl Probe {
    /// The packet `sequence` goes; `new` if it does for the first time.
    pub(super) fn sent(
        &mut self,
        sequence: Sequence,
        new: bool,
        now: Time,
        timeout: Option<Duration>,
    ) {
        if new && self.timed.is_none() {
            self.timed = Some((sequence, now));
        }
        self.arm(now, timeout);
    }

    /// All before `limit` is answered, and something is on the way. True if that was the probe's answer, and
    /// says of nothing behind it.
    pub(super) fn progress(
        &mut self,
        limit: Sequence,
        waiting: bool,
        now: Time,
        timeout: Option<Duration>,
    ) -> bool {
        if let Some((sequence, sent)) = self.timed
            && limit.distance(sequence) > 0
        {
            self.learn(now - sent);
            self.timed = None;
        }
        self.count = 0;
        self.due = false;
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

    /// Returns whether nothing was timed or asked for since [`progress`](Self::progress) was called with nothing on the way, so
    /// that a call would change nothing.
    #[inline]
    pub(super) fn is_unused(&self) -> bool {
        self.timed.is_none()
            && self.at.is_none()
            && self.count == 0
            && !self.due
            && self.end.is_none()
    }

    /// What is on the way is given up and goes again.
    pub(super) fn gone_back(&mut self) {
        self.timed = None;
        self.at = None;
        self.due = false;
        self.end = None;
    }

    /// What is answered next is not measured: when that comes is not known exactly.
    pub(super) fn forgo_measuring(&mut self) {
        self.timed = None;
    }

    /// When to look.
    pub(super) fn at(&self) -> Option<Time> {
        self.at
    }

    /// The time is `now`.
    pub(super) fn handle_timeout(&mut self, now: Time) {
        if self.at.is_some_and(|at| at <= now) {
            self.at = None;
            self.due = true;
            self.count += 1;
        }
    }

    /// A probe shall go.
    pub(super) fn is_due(&self) -> bool {
        self.due
    }

    /// It went, and asks about all before `end`.
    pub(super) fn went(&mut self, end: Sequence, now: Time, timeout: Option<Duration>) {
        self.due = false;
        // An answer now could be that of either.
        self.timed = None;
        self.end = Some(end);
        self.arm(now, timeout);
    }

    fn arm(&mut self, now: Time, timeout: Option<Duration>) {
        self.at = None;
        if let (Some(round_trip), Some(timeout)) = (self.round_trip, timeout)
            && self.count < MOST
        {
            let patience = Duration::from_nanos(round_trip.patience() << self.count);
            self.at = (patience + patience < timeout).then(|| now + patience);
        }
    }

    /// The usual estimate (RFC 6298).
    fn learn(&mut self, sample: Duration) {
        let sample = u64::try_from(sample.as_nanos())
            .unwrap_or(u64::MAX)
            .min(LONGEST);
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
    /// For how long an answer is no surprise.
    fn patience(self) -> u64 {
        (2 * self.mean + 4 * self.deviation).max(SHORTEST)
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
    fn waits_for_some_round_trips_once_it_knows_them() {
        let mut probe = Probe::default();
        probe.sent(Sequence::new(0), true, at(0), TIMEOUT);
        assert_eq!(probe.at(), None);
        probe.progress(Sequence::new(1), false, at(2000), TIMEOUT);
        assert_eq!(probe.at(), None);
        probe.sent(Sequence::new(1), true, at(3000), TIMEOUT);
        // Twice the mean and four times the deviation.
        assert_eq!(probe.at(), Some(at(11_000)));
        probe.progress(Sequence::new(2), true, at(5000), TIMEOUT);
        assert!(probe.at().unwrap() < at(13_000));
        probe.sent(
            Sequence::new(2),
            true,
            at(5000),
            Some(Duration::from_millis(8)),
        );
        assert_eq!(probe.at(), None);
        probe.sent(Sequence::new(2), true, at(5000), None);
        assert_eq!(probe.at(), None);
    }

    #[test]
    fn a_peer_that_is_gone_gets_few() {
        let mut probe = Probe::default();
        probe.sent(Sequence::new(0), true, at(0), TIMEOUT);
        probe.progress(Sequence::new(1), false, at(10), TIMEOUT);
        probe.sent(Sequence::new(1), true, at(10), TIMEOUT);
        let mut times = Vec::new();
        while let Some(due) = probe.at() {
            probe.handle_timeout(due);
            assert!(probe.is_due());
            probe.went(Sequence::new(2), due, TIMEOUT);
            times.push(due - at(10));
        }
        assert_eq!(times, [1, 3, 7].map(Duration::from_millis));
    }

    #[test]
    fn an_answer_that_says_of_nothing_else_is_recognised() {
        let mut probe = Probe::default();
        probe.went(Sequence::new(5), at(0), TIMEOUT);
        assert!(!probe.progress(Sequence::new(4), true, at(1), TIMEOUT));
        assert!(probe.progress(Sequence::new(5), true, at(1), TIMEOUT));
        assert!(!probe.progress(Sequence::new(5), true, at(1), TIMEOUT));
        // The peer was only late, or there is nothing behind.
        probe.went(Sequence::new(6), at(0), TIMEOUT);
        assert!(!probe.progress(Sequence::new(8), true, at(1), TIMEOUT));
        probe.went(Sequence::new(9), at(0), TIMEOUT);
        assert!(!probe.progress(Sequence::new(9), false, at(1), TIMEOUT));
    }
}
