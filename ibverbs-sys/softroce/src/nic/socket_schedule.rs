use std::time::Duration;

use crate::proto::Time;

/// Times at which a polling thread checks the UDP sockets, if the process also shares memory with
/// peers. A check is a system call, and takes longer than receiving a message through shared
/// memory. So after checks that find no packet, checks are made less often.
#[derive(Debug, Default)]
pub(super) struct SocketSchedule {
    /// Time of the last check of the sockets.
    checked: Time,
    /// Present minimum interval between two checks of the sockets.
    interval: Duration,
}

/// Maximum interval between two checks of the sockets while no messages arrive through shared
/// memory. If the thread polls continuously, a packet in a socket waits at most for this time.
const IDLE_INTERVAL: Duration = Duration::from_micros(20);

/// Maximum interval between two checks of the sockets while messages arrive through shared memory.
/// The interval is so short that a polling thread finds packets in the sockets before the engine
/// (background thread) does.
const BUSY_INTERVAL: Duration = Duration::from_micros(100);

impl SocketSchedule {
    /// Returns whether a polling thread can omit a check of the sockets at the time `now`, because
    /// the last check was recent. `busy` is `true` if messages have just arrived through shared
    /// memory. If the last check found no packet, the next check is then due only after
    /// [`BUSY_INTERVAL`].
    pub(super) fn may_omit(&self, now: Time, busy: bool) -> bool {
        let is_quiet = !self.interval.is_zero();
        now - self.checked
            < if busy && is_quiet {
                BUSY_INTERVAL
            } else {
                self.interval
            }
    }

    /// Records that a check of the sockets at the time `now` found `received` packets. After a
    /// check without packets, the interval between checks doubles, up to [`IDLE_INTERVAL`]. After a
    /// check with packets, the interval is 0, so that the next poll checks the sockets again.
    pub(super) fn record_check(&mut self, now: Time, received: usize) {
        self.checked = now;
        self.interval = match received {
            0 => (2 * self.interval).clamp(Duration::from_micros(1), IDLE_INTERVAL),
            _ => Duration::ZERO,
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn checks_are_omitted_for_a_bounded_time_while_no_packet_arrives() {
        let at = |micros: u64| Time::from_nanos(1000 * micros);
        let mut sockets = SocketSchedule::default();
        assert!(!sockets.may_omit(at(1000), false));
        for _ in 0..10 {
            sockets.record_check(at(1000), 0);
        }
        assert!(sockets.may_omit(at(1019), false) && !sockets.may_omit(at(1020), false));
        // The maximum interval also holds while messages arrive through shared memory.
        assert!(sockets.may_omit(at(1099), true) && !sockets.may_omit(at(1100), true));
        sockets.record_check(at(2000), 1);
        assert!(!sockets.may_omit(at(2000), false) && !sockets.may_omit(at(2000), true));
    }
}
