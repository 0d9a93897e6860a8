//! The numbers of retries and the retry delays of connections.

use std::time::Duration;

use super::Limit;

/// The retry parameters of a connection. Both ways of connecting use these parameters: the exchange
/// of endpoints by the programs, and the connection manager.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Retries {
    /// Maximum number of retransmissions of a request that the peer does not acknowledge. After the
    /// last retransmission, the connection fails.
    pub(crate) unanswered: u8,
    /// Maximum number of retries after receiver-not-ready (RNR) responses; 7 means no limit. The
    /// peer sends such a response if no receive is posted for the request.
    pub(crate) not_ready: u8,
    /// Code of the minimum time that the peer waits before a retry after a receiver-not-ready (RNR)
    /// response of this side (IBTA volume 1, table 45).
    pub(crate) not_ready_timer: u8,
}

impl Default for Retries {
    fn default() -> Self {
        Self {
            // Not 7, with which the kernel's Soft-RoCE device retries without a limit.
            unanswered: 6,
            not_ready: 7,
            not_ready_timer: 12,
        }
    }
}

impl Retries {
    pub(crate) fn limits(self) -> [Limit; 3] {
        let (unanswered, not_ready) = (self.unanswered.into(), self.not_ready.into());
        [
            Limit("number of retries", unanswered, 7),
            Limit("number of receiver-not-ready retries", not_ready, 7),
            Limit("receiver-not-ready timer", self.not_ready_timer.into(), 31),
        ]
    }
}

/// Returns the receiver-not-ready (RNR) delay that `code` stands for (IBTA volume 1, table 45).
pub(super) fn delay_of(code: u8) -> Duration {
    let hundredths_of_ms = match code {
        0 => 65_536,
        1 => 1,
        // From 0.02 ms on, each pair of codes is n and 1.5 n, and n doubles with the next pair.
        code if code % 2 == 0 => 1 << (code / 2),
        code => (1 << (code / 2)) * 3 / 2,
    };
    Duration::from_micros(10 * hundredths_of_ms)
}

/// Returns the code of the shortest receiver-not-ready (RNR) delay that is at least `delay`. If all
/// delays are shorter, returns the code of the longest delay.
pub(super) fn code_of(delay: Duration) -> u8 {
    (1..32).find(|&code| delay_of(code) >= delay).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Checks that the codes of receiver-not-ready (RNR) delays mean the delays in table 45 of the
    /// specification.
    #[test]
    fn receiver_not_ready_delays_are_those_of_the_table() {
        for (code, micros) in [
            (0, 655_360),
            (1, 10),
            (2, 20),
            (3, 30),
            (4, 40),
            (5, 60),
            (6, 80),
            (7, 120),
            (12, 640),
            (13, 960),
            (14, 1280),
            (20, 10_240),
            (21, 15_360),
            (30, 327_680),
            (31, 491_520),
        ] {
            let delay = Duration::from_micros(micros);
            assert_eq!(delay_of(code), delay, "{code}");
            assert_eq!(code_of(delay), code);
        }
        let code = |micros| code_of(Duration::from_micros(micros));
        assert_eq!((code(0), code(11), code(1_000_000)), (1, 2, 0));
    }
}
