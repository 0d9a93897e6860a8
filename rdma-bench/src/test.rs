//! The tests by name.

use std::fmt;

use serde::{Deserialize, Serialize};

/// An operation to measure.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Verb {
    /// Send and receive.
    Send,
    /// RDMA write.
    Write,
    /// RDMA read.
    Read,
    /// Fetch-and-add of eight bytes.
    FetchAndAdd,
    /// Compare-and-swap of eight bytes.
    CompareAndSwap,
    /// A remote procedure call whose answer is what it was called with.
    Echo,
}

impl Verb {
    /// Whether it is one of the atomics.
    pub fn is_atomic(self) -> bool {
        matches!(self, Self::FetchAndAdd | Self::CompareAndSwap)
    }

    /// Whether the peer's device answers it without the peer's program.
    pub fn is_one_sided(self) -> bool {
        !matches!(self, Self::Send | Self::Echo)
    }

    /// Whether it counts against the reads and atomics that a queue pair may have outstanding.
    pub fn has_response(self) -> bool {
        self == Self::Read || self.is_atomic()
    }
}

/// What to measure of an operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Metric {
    /// How long one takes.
    Latency,
    /// How many can be done.
    Bandwidth,
}

impl Metric {
    /// What its figures are in, where one stands for a test.
    pub fn unit(self) -> &'static str {
        match self {
            Self::Latency => "usec",
            Self::Bandwidth => "messages/sec",
        }
    }
}

/// A test: what to measure of which operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Test {
    /// The operation.
    pub verb: Verb,
    /// What to measure of it.
    pub metric: Metric,
}

impl Test {
    /// Its title, as perftest writes it.
    pub fn title(self) -> String {
        let metric = match self.metric {
            Metric::Latency => "Latency",
            Metric::Bandwidth => "BW",
        };
        let verb = match self.verb {
            Verb::Send => "Send",
            Verb::Write => "RDMA_Write",
            Verb::Read => "RDMA_Read",
            Verb::FetchAndAdd => "Atomic FETCH_AND_ADD",
            Verb::CompareAndSwap => "Atomic CMP_AND_SWAP",
            Verb::Echo => "RPC_Echo",
        };
        format!("{verb} {metric} Test")
    }

    /// The name of perftest's program for it.
    pub fn perftest_program(self) -> String {
        format!("ib_{self}")
    }

    /// Whether its latency is half of a round trip.
    pub fn is_half_round_trip(self) -> bool {
        matches!(self.verb, Verb::Send | Verb::Write)
    }
}

impl fmt::Display for Test {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let verb = match self.verb {
            Verb::Send => "send",
            Verb::Write => "write",
            Verb::Read => "read",
            Verb::FetchAndAdd | Verb::CompareAndSwap => "atomic",
            Verb::Echo => "echo",
        };
        let metric = match self.metric {
            Metric::Latency => "lat",
            Metric::Bandwidth => "bw",
        };
        write!(f, "{verb}_{metric}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_perftests() {
        let test = |verb, metric| Test { verb, metric };
        let send = test(Verb::Send, Metric::Latency);
        assert_eq!(send.title(), "Send Latency Test");
        assert_eq!(send.perftest_program(), "ib_send_lat");
        let atomic = test(Verb::CompareAndSwap, Metric::Bandwidth);
        assert_eq!(atomic.title(), "Atomic CMP_AND_SWAP BW Test");
        assert_eq!(atomic.perftest_program(), "ib_atomic_bw");
        assert!(send.is_half_round_trip() && !atomic.is_half_round_trip());
    }
}
