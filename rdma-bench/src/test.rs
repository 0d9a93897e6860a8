//! The tests that can be run. A test is an operation and the quantity to measure.

use std::fmt;

use serde::{Deserialize, Serialize};

/// The RDMA operation or remote procedure call that a test measures.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Verb {
    /// A send, which consumes a receive of the peer.
    Send,
    /// An RDMA write.
    Write,
    /// An RDMA read.
    Read,
    /// An atomic fetch-and-add of eight bytes.
    FetchAndAdd,
    /// An atomic compare-and-swap of eight bytes.
    CompareAndSwap,
    /// A remote procedure call that returns its argument.
    Echo,
    /// An item of a stream that a remote procedure call returns.
    Item,
    /// A remote procedure call that returns its argument. Argument and result are bulk memory.
    Bulk,
}

impl Verb {
    /// Returns whether the operation is an atomic operation.
    pub fn is_atomic(self) -> bool {
        matches!(self, Self::FetchAndAdd | Self::CompareAndSwap)
    }

    /// Returns whether the operation is one-sided: the device of the peer executes it without the
    /// peer's program.
    pub fn is_one_sided(self) -> bool {
        !matches!(self, Self::Send | Self::Echo | Self::Item | Self::Bulk)
    }

    /// Returns whether the operation is a remote procedure call or an item of a stream that a call
    /// returns. Only rdma-rpc has these operations.
    pub fn is_call(self) -> bool {
        matches!(self, Self::Echo | Self::Item | Self::Bulk)
    }

    /// Returns whether the peer's device responds to this operation with data, as to reads and
    /// atomic operations. A device limits the number of such operations that are outstanding on a
    /// queue pair.
    pub fn has_response(self) -> bool {
        self == Self::Read || self.is_atomic()
    }
}

/// The quantity that a test measures.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Metric {
    /// The duration of one operation.
    Latency,
    /// The rate of operations.
    Bandwidth,
}

impl Metric {
    /// Returns the unit of a test's main result, as tables and JSON documents show it.
    pub fn unit(self) -> &'static str {
        match self {
            Self::Latency => "usec",
            Self::Bandwidth => "messages/sec",
        }
    }
}

/// A test: an operation and the quantity to measure.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Test {
    /// The operation to measure.
    pub verb: Verb,
    /// The quantity to measure.
    pub metric: Metric,
}

impl Test {
    /// Returns the title of this test, as perftest writes it in the header of a report.
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
            Verb::Item => "RPC_Item",
            Verb::Bulk => "RPC_Bulk",
        };
        format!("{verb} {metric} Test")
    }

    /// Returns the name of perftest's program that measures the test.
    pub fn perftest_program(self) -> String {
        format!("ib_{self}")
    }

    /// Returns whether this test reports half of the round trip of a message as its latency, as
    /// perftest does for sends and writes.
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
            Verb::Item => "item",
            Verb::Bulk => "bulk",
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
