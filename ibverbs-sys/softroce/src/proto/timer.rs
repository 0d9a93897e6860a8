use std::time::Duration;

use super::Time;

/// Waiting times in units of ten microseconds, indexed by the timer code of an RNR NAK (IBTA
/// 9.7.5.2.8, table 45).
const RECEIVER_NOT_READY: [u32; 32] = [
    65536, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536,
    2048, 3072, 4096, 6144, 8192, 12288, 16384, 24576, 32768, 49152,
];

/// Returns the time for which a requester waits after an RNR NAK (receiver not ready) with the
/// timer code `code`.
pub(super) fn rnr_wait(code: u8) -> Duration {
    let units = RECEIVER_NOT_READY[usize::from(code & 31)];
    Duration::from_micros(u64::from(units) * 10)
}

/// Rate limiter that divides packets into bursts with pauses between them. Used where no window
/// limits the packets in flight: for unreliable services, and for responses that are longer than
/// the window. Without pauses, the buffer of the receiving socket would drop most of a large
/// message.
#[derive(Clone, Debug, Default)]
pub(super) struct Pacer {
    left: u32,
    again: Time,
    /// Set while a packet waits for the next burst.
    paused: bool,
}

impl Pacer {
    /// Returns whether a packet may be sent at the time `now`. If so, counts the packet as sent.
    /// Packets are sent in bursts of `burst` packets. A pause after each burst makes `interval` the
    /// average time per packet.
    pub(super) fn take(&mut self, now: Time, burst: u32, interval: Duration) -> bool {
        if self.left == 0 {
            self.paused = now < self.again;
            if self.paused {
                return false;
            }
            self.left = burst.max(1);
            self.again = now + interval * self.left;
        }
        self.left -= 1;
        true
    }

    /// Records that no packet waits to be sent after the pause between two bursts.
    /// [`resume_at`](Self::resume_at) then returns `None`.
    pub(super) fn clear_waiting(&mut self) {
        self.paused = false;
    }

    /// Returns the time at which the pause between two bursts ends and more packets may be sent.
    /// Returns `None` if no packet waits for this time.
    pub(super) fn resume_at(&self) -> Option<Time> {
        self.paused.then_some(self.again)
    }
}

/// A pause until a condition is checked again, for example whether another process still copies
/// bytes. Used where no other thread or process reports that the condition has changed.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Pause {
    /// Length of a requested pause that has not begun.
    requested: Option<Duration>,
    end: Option<Time>,
}

impl Pause {
    /// Requests a pause of `length` until the caller checks a condition again. The pause starts at
    /// the next call of [`begin`](Self::begin), because the present time is not known here.
    pub(super) fn request(&mut self, length: Duration) {
        self.requested = Some(length);
    }

    /// Begins the pause that was [requested](Self::request), if there was such a request. `now`
    /// returns the present time.
    pub(super) fn begin(&mut self, now: impl FnOnce() -> Time) {
        if let Some(length) = self.requested.take() {
            self.end = Some(now() + length);
        }
    }

    /// Returns the time at which this pause ends and the caller must continue. Returns `None` if no
    /// pause is in progress.
    #[inline]
    pub(super) fn end(&self) -> Option<Time> {
        self.end
    }

    /// Ends this pause if its end has been reached at the time `now`.
    pub(super) fn handle_timeout(&mut self, now: Time) {
        if self.end.is_some_and(|end| end <= now) {
            self.end = None;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::{Pacer, RECEIVER_NOT_READY, rnr_wait};
    use crate::proto::Time;

    #[test]
    fn timer_values_agree_with_the_table_of_the_specification() {
        assert_eq!(rnr_wait(0), Duration::from_micros(655_360));
        assert_eq!(rnr_wait(1), Duration::from_micros(10));
        assert_eq!(rnr_wait(14), Duration::from_micros(1_280));
        assert_eq!(rnr_wait(31), Duration::from_micros(491_520));
        assert_eq!(rnr_wait(33), rnr_wait(1));
        assert!(RECEIVER_NOT_READY[1..].is_sorted());
    }

    #[test]
    fn bursts_do_not_exceed_the_configured_rate() {
        let mut pacer = Pacer::default();
        let interval = Duration::from_micros(1);
        let mut now = Time::from_nanos(0);
        let mut sent = 0;
        while now < Time::from_nanos(1_000_000) {
            while pacer.take(now, 10, interval) {
                sent += 1;
            }
            now = pacer.resume_at().expect("the burst is over");
        }
        assert_eq!(sent, 1000);
    }
}
