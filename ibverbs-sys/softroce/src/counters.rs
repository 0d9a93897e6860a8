#![forbid(unsafe_code)]
//! The device's counters, under the names that the kernel and its drivers give them
//! (`/sys/class/infiniband/DEVICE/ports/1/{counters,hw_counters}`).

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;

use crate::per_process::PerProcess;
use crate::proto::Counter;

/// Returns the counters of the process's device, all zero before it is opened.
pub fn counters() -> &'static Counters {
    Counters::of_process()
}

static COUNTERS: PerProcess<Arc<Counters>> = PerProcess::new(Arc::default);

/// Leaves the parent's counters alone, in a child of `fork`: the child's begin at zero.
pub(crate) fn forget() {
    COUNTERS.forget();
}

/// The counters of a device. They only grow, and wrap at 2^64.
#[derive(Debug, Default)]
pub struct Counters {
    values: Values,
    /// Counts of owners that count often, which are added to `values` for a total; by address, so that one can be
    /// removed.
    tallies: Mutex<HashMap<usize, Arc<Values>>>,
}

type Values = [AtomicU64; Counter::COUNT];

/// Counters to which a single owner adds: this needs no atomic read-modify-write instruction.
#[derive(Debug)]
pub struct Tally {
    counters: Arc<Counters>,
    values: Arc<Values>,
}

impl Counters {
    pub(crate) fn of_process() -> &'static Arc<Self> {
        COUNTERS.get()
    }

    /// Adds to a counter.
    pub(crate) fn count(&self, counter: Counter, by: u64) {
        self.values[counter as usize].fetch_add(by, Ordering::Relaxed);
    }

    /// Makes counters for an owner that counts often.
    pub(crate) fn tally(self: &Arc<Self>) -> Tally {
        let values = Arc::<Values>::default();
        let tally = Tally {
            counters: Arc::clone(self),
            values: Arc::clone(&values),
        };
        self.tallies.lock().insert(tally.key(), values);
        tally
    }

    /// Returns the value of a counter.
    pub fn value(&self, counter: Counter) -> u64 {
        let tallies = self.tallies.lock();
        (tallies.values().map(|values| &**values))
            .chain([&self.values])
            .map(|values| values[counter as usize].load(Ordering::Relaxed))
            .fold(0, u64::wrapping_add)
    }

    /// Returns the value of the counter with this name; `None` if there is no such counter.
    ///
    /// `port_xmit_data` and `port_rcv_data` are in words of four bytes, as IBTA 16.1.3.5 defines
    /// them and as the kernel shows them.
    pub fn named(&self, name: &str) -> Option<u64> {
        self.all()
            .find_map(|(known, value)| (known == name).then_some(value))
    }

    /// Returns all counters with their names.
    pub fn all(&self) -> impl Iterator<Item = (&'static str, u64)> + '_ {
        NAMES.iter().map(|&(counter, name)| {
            let value = self.value(counter);
            match counter {
                Counter::SentBytes | Counter::ReceivedBytes => (name, value / 4),
                _ => (name, value),
            }
        })
    }
}

impl Tally {
    /// Adds to a counter.
    #[inline]
    pub(crate) fn count(&mut self, counter: Counter, by: u64) {
        let value = &self.values[counter as usize];
        let after = value.load(Ordering::Relaxed).wrapping_add(by);
        value.store(after, Ordering::Relaxed);
    }

    fn key(&self) -> usize {
        Arc::as_ptr(&self.values).addr()
    }
}

impl Drop for Tally {
    /// Adds the owner's counts to the device's, so that the totals stay.
    fn drop(&mut self) {
        let mut tallies = self.counters.tallies.lock();
        tallies.remove(&self.key());
        for (total, value) in self.counters.values.iter().zip(&*self.values) {
            total.fetch_add(value.load(Ordering::Relaxed), Ordering::Relaxed);
        }
    }
}

/// The standard port counters, then names of mlx5 and rxe, then what only a device without hardware
/// counts.
const NAMES: [(Counter, &str); Counter::COUNT] = [
    (Counter::SentPackets, "port_xmit_packets"),
    (Counter::ReceivedPackets, "port_rcv_packets"),
    (Counter::SentBytes, "port_xmit_data"),
    (Counter::ReceivedBytes, "port_rcv_data"),
    (Counter::SendDiscarded, "port_xmit_discards"),
    (Counter::Malformed, "port_rcv_errors"),
    (Counter::DuplicateRequest, "duplicate_request"),
    (Counter::OutOfSequenceRequest, "out_of_sequence"),
    (Counter::ReceivedSequenceNak, "packet_seq_err"),
    (Counter::ImpliedNak, "implied_nak_seq_err"),
    (Counter::AcknowledgementTimeout, "local_ack_timeout_err"),
    (Counter::ReceivedRnr, "rnr_nak_retry_err"),
    (Counter::ReceiveDropped, "out_of_buffer"),
    (Counter::RemoteAccessErrors, "resp_remote_access_errors"),
    (Counter::WrongIcrc, "rx_icrc_encapsulated"),
    (Counter::SentRnr, "send_rnr_err"),
    (Counter::RetryExceeded, "retry_exceeded_err"),
    (Counter::RnrRetryExceeded, "retry_rnr_exceeded_err"),
    (
        Counter::RemoteInvalidRequests,
        "resp_remote_invalid_requests",
    ),
    (Counter::Retransmitted, "retransmitted_packets"),
    (Counter::Unaddressed, "unaddressed_packets"),
    (Counter::DirectMessages, "direct_messages"),
    (Counter::SharedMessages, "shared_messages"),
    (Counter::SharedSentPackets, "shared_xmit_packets"),
    (Counter::SharedReceivedPackets, "shared_rcv_packets"),
    (Counter::SharedWakings, "shared_wakings"),
    (Counter::SharedChannelWakings, "shared_channel_wakings"),
];

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn every_counter_has_one_name() {
        let counters: HashSet<usize> = NAMES.iter().map(|&(counter, _)| counter as usize).collect();
        let names: HashSet<&str> = NAMES.iter().map(|&(_, name)| name).collect();
        assert_eq!(
            (counters.len(), names.len()),
            (Counter::COUNT, Counter::COUNT)
        );
    }

    #[test]
    fn what_owners_count_is_counted_once_and_stays() {
        let counters = Arc::<Counters>::default();
        let (mut one, mut other) = (counters.tally(), counters.tally());
        one.count(Counter::SentPackets, 3);
        other.count(Counter::SentPackets, 4);
        counters.count(Counter::SentPackets, 1);
        assert_eq!(counters.value(Counter::SentPackets), 8);
        drop(one);
        assert_eq!(counters.value(Counter::SentPackets), 8);
        other.count(Counter::SentPackets, 2);
        drop(other);
        assert_eq!(counters.value(Counter::SentPackets), 10);
    }

    #[test]
    fn data_is_told_in_words() {
        let counters = Counters::default();
        counters.count(Counter::SentBytes, 1028);
        counters.count(Counter::SentPackets, 1);
        assert_eq!(counters.value(Counter::SentBytes), 1028);
        assert_eq!(counters.named("port_xmit_data"), Some(257));
        assert_eq!(counters.named("port_xmit_packets"), Some(1));
        assert_eq!(counters.named("port_xmit_pockets"), None);
    }
}
