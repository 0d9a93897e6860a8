#![forbid(unsafe_code)]
//! Counters of the device, under the names that the kernel and its drivers use
//! (`/sys/class/infiniband/DEVICE/ports/1/{counters,hw_counters}`), and counters of the paths that
//! messages take.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;

use crate::per_process::PerProcess;
use crate::proto::Counter;
use crate::transfer::Volume;

/// Returns the counters of the process's device. All are zero before the device is opened.
///
/// Besides the kernel's counters, the result contains counts of messages, bytes and copies for each
/// path to peers on the same host:
///
/// | path | counters |
/// |---|---|
/// | to a queue pair of this process | `direct_{messages,bytes,copies}` |
/// | read, write or atomic in the memory of another process | `shared_messages`, `one_sided_{bytes,copies}` |
/// | bytes in a slot of the ring | `slot_{xmit,rcv}_{messages,bytes}` |
/// | addresses of the bytes in a slot of the ring, for the receiver to copy | `descriptor_{xmit,rcv}_{messages,bytes}`, `descriptor_rcv_copies` |
/// | write with immediate data whose bytes the sender writes to the memory of the peer | `written_{xmit,rcv}_{messages,bytes}`, `written_xmit_copies` |
/// | packets through the ring | `ring_{xmit,rcv}_{messages,bytes}` |
///
/// - `xmit` counts messages of this process's send queues, and `rcv` messages that peers have sent
///   to it. The sender and the receiver of a direct message are in this process, so the message is
///   counted once. A process in whose memory a peer reads, writes or executes atomic operations is
///   not involved and counts nothing.
/// - A message is counted when its last range or packet is transferred. Retransmissions count again
///   as sent. All packets that arrive are counted. On the other paths, only data that the receiver
///   accepts is counted.
/// - Bytes are those of messages, without headers. A read counts the bytes that it returns, and an
///   atomic operation counts the eight bytes of its result. In packets, a read request is a message
///   of the requester without bytes, and its response adds bytes but no message.
/// - A copy is one copy operation of this process, which copies a range of a message from memory to
///   memory. The range has at most 64 KiB for a direct message, 64 KiB if the receiver copies from
///   memory of the device, 256 KiB if the receiver copies from other memory, and 1 MiB otherwise.
///   So a send of at most 64 KiB by descriptor counts one copy in both processes together. A range
///   without bytes counts no copy. A direct datagram counts two copies, into a packet and out of
///   it, or one if its bytes are inline, even if the receiver drops the datagram. Copies that fail
///   are not counted, nor are the copies of inline bytes into a request. A copy through a small
///   buffer, as from or to memory with on-demand paging, is one copy.
/// - Paths without a counter of copies have a constant number of them. Slot: one by each side, into
///   the ring and out of it. Packets: two by each side, into a packet and into the ring, and out of
///   the ring and out of the packet. Descriptor: none by the sender. Written: none by the receiver.
pub fn counters() -> &'static Counters {
    Counters::of_process()
}

static COUNTERS: PerProcess<Arc<Counters>> = PerProcess::new(Arc::default);

/// Replaces the counters in a child of `fork` by new counters with the value zero. The parent's
/// counters do not change.
pub(crate) fn reset_in_child() {
    COUNTERS.reset_in_child();
}

/// Counters of a device. Each counter only grows, and wraps to zero at 2^64. [`counters()`] returns
/// the counters of this process's device.
#[derive(Debug)]
pub struct Counters {
    values: Values,
    /// Separate counters of queue pairs and other owners that count often, by the addresses of the
    /// counters. The value of a counter is the sum of its values here and in `values`.
    tallies: Mutex<HashMap<usize, Arc<Values>>>,
}

type Values = [AtomicU64; Counter::COUNT];

/// Returns the initial values of all counters: zeroes. (An array of this length does not implement
/// `Default`.)
fn zeros() -> Values {
    [const { AtomicU64::new(0) }; Counter::COUNT]
}

impl Default for Counters {
    fn default() -> Self {
        Self {
            values: zeros(),
            tallies: Mutex::default(),
        }
    }
}

/// Counters with a single owner, such as a queue pair. The owner adds to the counters without an
/// atomic read-modify-write instruction. [`Counters::value`] includes these counters in the totals
/// of the device.
#[derive(Debug)]
pub struct Tally {
    counters: Arc<Counters>,
    values: Arc<Values>,
}

/// Path and direction of a message. A path is a direct copy in the process, a copy between
/// processes, or one of several ways through shared memory. Each value has its own counters for
/// messages, bytes and copies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Flow {
    Direct,
    OneSided,
    SlotSent,
    SlotReceived,
    DescriptorSent,
    DescriptorReceived,
    WrittenSent,
    WrittenReceived,
    RingSent,
    RingReceived,
}

impl Flow {
    /// Returns the three counters for this path and direction: of messages, of bytes and of copy
    /// operations. The third counter is `None` if every message on the path needs the same number
    /// of copies.
    #[inline]
    const fn counters(self) -> (Counter, Counter, Option<Counter>) {
        use Counter as C;
        match self {
            Self::Direct => (C::DirectMessages, C::DirectBytes, Some(C::DirectCopies)),
            Self::OneSided => (C::SharedMessages, C::OneSidedBytes, Some(C::OneSidedCopies)),
            Self::SlotSent => (C::SlotSentMessages, C::SlotSentBytes, None),
            Self::SlotReceived => (C::SlotReceivedMessages, C::SlotReceivedBytes, None),
            Self::DescriptorSent => (C::DescriptorSentMessages, C::DescriptorSentBytes, None),
            Self::DescriptorReceived => (
                C::DescriptorReceivedMessages,
                C::DescriptorReceivedBytes,
                Some(C::DescriptorReceivedCopies),
            ),
            Self::WrittenSent => (
                C::WrittenSentMessages,
                C::WrittenSentBytes,
                Some(C::WrittenSentCopies),
            ),
            Self::WrittenReceived => (C::WrittenReceivedMessages, C::WrittenReceivedBytes, None),
            Self::RingSent => (C::RingSentMessages, C::RingSentBytes, None),
            Self::RingReceived => (C::RingReceivedMessages, C::RingReceivedBytes, None),
        }
    }
}

impl Counters {
    pub(crate) fn of_process() -> &'static Arc<Self> {
        COUNTERS.get()
    }

    /// Adds `by` to the counter `counter` of the device. Any thread may call this function.
    pub(crate) fn count(&self, counter: Counter, by: u64) {
        self.values[counter as usize].fetch_add(by, Ordering::Relaxed);
    }

    /// Creates counters for one owner that counts often, such as a queue pair. Only the owner adds
    /// to these counters, so the owner needs no atomic read-modify-write instruction. The totals of
    /// the device include the counters.
    pub(crate) fn tally(self: &Arc<Self>) -> Tally {
        let values = Arc::new(zeros());
        let tally = Tally {
            counters: Arc::clone(self),
            values: Arc::clone(&values),
        };
        self.tallies.lock().insert(tally.key(), values);
        tally
    }

    /// Returns the total of the counter `counter`: the sum of the device's own value and the values
    /// in all tallies (separate counters of queue pairs and other objects).
    pub fn value(&self, counter: Counter) -> u64 {
        let tallies = self.tallies.lock();
        (tallies.values().map(|values| &**values))
            .chain([&self.values])
            .map(|values| values[counter as usize].load(Ordering::Relaxed))
            .fold(0, u64::wrapping_add)
    }

    /// Returns the value of the counter with the given name, or `None` if no counter has this name.
    ///
    /// `port_xmit_data` and `port_rcv_data` are in words of four bytes, as IBTA 16.1.3.5 defines
    /// them and as the kernel shows them.
    pub fn named(&self, name: &str) -> Option<u64> {
        self.all()
            .find_map(|(known, value)| (known == name).then_some(value))
    }

    /// Returns the names and the values of all counters of the device.
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
    /// Adds `by` to the counter `counter` in this tally. The totals of the device include the
    /// value.
    #[inline]
    pub(crate) fn count(&mut self, counter: Counter, by: u64) {
        let value = &self.values[counter as usize];
        let after = value.load(Ordering::Relaxed).wrapping_add(by);
        value.store(after, Ordering::Relaxed);
    }

    /// Adds `volume` (numbers of messages, bytes and copy operations) to the counters of `flow`, a
    /// path and direction of messages.
    #[inline]
    pub(crate) fn add(&mut self, flow: Flow, volume: &Volume) {
        let (messages, bytes, copies) = flow.counters();
        self.count(messages, volume.messages);
        self.count(bytes, volume.bytes);
        if let Some(copies) = copies {
            self.count(copies, volume.copies);
        }
    }

    fn key(&self) -> usize {
        Arc::as_ptr(&self.values).addr()
    }
}

impl Drop for Tally {
    /// Adds the values of these counters to the values of the whole device. So the device's totals
    /// stay the same when the owner of these counters is destroyed, for example a queue pair.
    fn drop(&mut self) {
        let mut tallies = self.counters.tallies.lock();
        tallies.remove(&self.key());
        for (total, value) in self.counters.values.iter().zip(&*self.values) {
            total.fetch_add(value.load(Ordering::Relaxed), Ordering::Relaxed);
        }
    }
}

/// Names of all counters. A counter that other devices also have has the same name there. The names
/// come from the standard port counters and from the drivers mlx5 and rxe. The last counters exist
/// only in softroce.
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
    (Counter::DirectBytes, "direct_bytes"),
    (Counter::DirectCopies, "direct_copies"),
    (Counter::SharedMessages, "shared_messages"),
    (Counter::OneSidedBytes, "one_sided_bytes"),
    (Counter::OneSidedCopies, "one_sided_copies"),
    (Counter::SharedSentPackets, "shared_xmit_packets"),
    (Counter::SharedReceivedPackets, "shared_rcv_packets"),
    (Counter::SlotSentMessages, "slot_xmit_messages"),
    (Counter::SlotSentBytes, "slot_xmit_bytes"),
    (Counter::SlotReceivedMessages, "slot_rcv_messages"),
    (Counter::SlotReceivedBytes, "slot_rcv_bytes"),
    (Counter::DescriptorSentMessages, "descriptor_xmit_messages"),
    (Counter::DescriptorSentBytes, "descriptor_xmit_bytes"),
    (
        Counter::DescriptorReceivedMessages,
        "descriptor_rcv_messages",
    ),
    (Counter::DescriptorReceivedBytes, "descriptor_rcv_bytes"),
    (Counter::DescriptorReceivedCopies, "descriptor_rcv_copies"),
    (Counter::WrittenSentMessages, "written_xmit_messages"),
    (Counter::WrittenSentBytes, "written_xmit_bytes"),
    (Counter::WrittenSentCopies, "written_xmit_copies"),
    (Counter::WrittenReceivedMessages, "written_rcv_messages"),
    (Counter::WrittenReceivedBytes, "written_rcv_bytes"),
    (Counter::RingSentMessages, "ring_xmit_messages"),
    (Counter::RingSentBytes, "ring_xmit_bytes"),
    (Counter::RingReceivedMessages, "ring_rcv_messages"),
    (Counter::RingReceivedBytes, "ring_rcv_bytes"),
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
    fn every_path_and_direction_has_its_own_counters() {
        let counters = Arc::<Counters>::default();
        let volume = Volume {
            messages: 1,
            bytes: 20,
            copies: 300,
        };
        let mut all = HashSet::new();
        for (flow, name, copies) in [
            (Flow::Direct, "direct", Some("direct_copies")),
            (Flow::OneSided, "one_sided", Some("one_sided_copies")),
            (Flow::SlotSent, "slot_xmit", None),
            (Flow::SlotReceived, "slot_rcv", None),
            (Flow::DescriptorSent, "descriptor_xmit", None),
            (
                Flow::DescriptorReceived,
                "descriptor_rcv",
                Some("descriptor_rcv_copies"),
            ),
            (
                Flow::WrittenSent,
                "written_xmit",
                Some("written_xmit_copies"),
            ),
            (Flow::WrittenReceived, "written_rcv", None),
            (Flow::RingSent, "ring_xmit", None),
            (Flow::RingReceived, "ring_rcv", None),
        ] {
            counters.tally().add(flow, &volume);
            let messages = match flow {
                Flow::OneSided => "shared_messages".to_owned(),
                _ => format!("{name}_messages"),
            };
            for (counter, value) in [
                (Some(messages), volume.messages),
                (Some(format!("{name}_bytes")), volume.bytes),
                (copies.map(str::to_owned), volume.copies),
            ] {
                let Some(counter) = counter else {
                    continue;
                };
                assert_eq!(counters.named(&counter), Some(value), "{counter}");
                assert!(all.insert(counter));
            }
        }
        let others = counters.all().filter(|(name, _)| !all.contains(*name));
        assert_eq!(others.map(|(_, value)| value).sum::<u64>(), 0);
    }

    #[test]
    fn counts_of_owners_are_added_once_and_kept_after_their_end() {
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
    fn data_counters_are_in_words_of_four_bytes() {
        let counters = Counters::default();
        counters.count(Counter::SentBytes, 1028);
        counters.count(Counter::SentPackets, 1);
        assert_eq!(counters.value(Counter::SentBytes), 1028);
        assert_eq!(counters.named("port_xmit_data"), Some(257));
        assert_eq!(counters.named("port_xmit_packets"), Some(1));
        assert_eq!(counters.named("port_xmit_pockets"), None);
    }
}
