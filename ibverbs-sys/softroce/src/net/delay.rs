#![forbid(unsafe_code)]

use std::collections::BTreeMap;
use std::time::Duration;

use parking_lot::Mutex;

use super::outbox::{Batch, SendParameters};
use crate::proto::Time;
use crate::timers::Alarm;
use crate::wire::ip::Headers;

/// Maximum number of packets that injected faults hold back at a time. Further packets are dropped,
/// so that a high latency does not take unlimited memory.
const MAX_HELD_PACKETS: usize = 16_384;

/// Maximum time for which a packet is held back until other packets have overtaken it. If fewer
/// packets follow, the packet is sent after this time.
const MAX_WAIT: Duration = Duration::from_millis(1);

/// A packet that is held back by an injected fault, to be sent later. Contains all data that is
/// needed to send the packet.
#[derive(Clone, Debug)]
pub(super) struct Packet {
    pub(super) headers: Headers,
    pub(super) tunnelled: bool,
    /// Bytes from the BTH to the ICRC.
    pub(super) bytes: Box<[u8]>,
    pub(super) parameters: SendParameters,
}

/// Packets that injected faults hold back together, and that are sent together later.
#[derive(Debug)]
pub(super) enum Held {
    /// A packet that is held back until other packets have overtaken it.
    Overtaken {
        /// Number of later packets that must still be sent before this packet.
        left: u8,
        packet: Packet,
    },
    /// All packets of an outbox, which are held back until the configured latency has passed.
    Batch(Box<Batch>),
}

/// Packets that injected faults hold back. A packet is sent at a given time, or after a given
/// number of other packets. Causes the faults `latency` and `reorder` of
/// [`NetworkFaults`](crate::fault::NetworkFaults).
#[derive(Debug)]
pub(super) struct Delay {
    held: Mutex<HeldPackets>,
    /// Locked while packets that are due are removed and sent, so that threads cannot send them in
    /// another order.
    sending: Mutex<()>,
    alarm: Alarm,
}

#[derive(Debug, Default)]
struct HeldPackets {
    /// Held-back packets, ordered by the time at which each is due, then by arrival.
    due: BTreeMap<(Time, u64), Held>,
    /// Number of packets that are held back.
    packets: usize,
    /// Number of packets that are held back until other packets have overtaken them.
    overtaken: usize,
    count: u64,
}

impl HeldPackets {
    /// Adds the packets `held`, which injected faults hold back, to this list, until the time
    /// `due`. Returns `held` as the error if the list would then have more than
    /// [`MAX_HELD_PACKETS`] packets.
    fn insert(&mut self, due: Time, held: Held) -> Result<(), Held> {
        let packets = held.packets();
        if self.packets + packets > MAX_HELD_PACKETS {
            return Err(held);
        }
        self.packets += packets;
        self.overtaken += held.overtaken();
        self.count += 1;
        self.due.insert((due, self.count), held);
        Ok(())
    }

    /// Removes and returns the packets with the key `key`. The key consists of the time at which
    /// the packets must be sent, and a number in the order of their addition. Returns `None` if no
    /// packets have this key. The caller must update the counter `overtaken`, which this function
    /// does not change.
    fn remove(&mut self, key: (Time, u64)) -> Option<Held> {
        let held = self.due.remove(&key)?;
        self.packets -= held.packets();
        Some(held)
    }
}

impl Held {
    fn packets(&self) -> usize {
        match self {
            Self::Overtaken { .. } => 1,
            Self::Batch(batch) => batch.packets(),
        }
    }

    fn overtaken(&self) -> usize {
        usize::from(matches!(self, Self::Overtaken { left: 1.., .. }))
    }
}

impl Delay {
    pub(super) fn new() -> Self {
        Self {
            held: Mutex::default(),
            sending: Mutex::default(),
            alarm: Alarm::new(),
        }
    }

    /// Returns the state of the NIC's timer for the packets that injected faults hold back. The
    /// timer expires when the next of these packets must be sent ([`Delay::next_due`]).
    pub(super) fn alarm(&self) -> &Alarm {
        &self.alarm
    }

    /// Holds a packet back, as an injected fault, so that later packets overtake it. Without a
    /// configured `latency`, the packet is sent after `overtaken` other packets, but at most
    /// [`MAX_WAIT`] later. With a latency, the packet is sent [`MAX_WAIT`] after the latency has
    /// passed. Returns `false`, and drops the packet, if too many packets are held back.
    pub(super) fn hold(&self, packet: Packet, overtaken: u8, now: Time, latency: Duration) -> bool {
        // With a latency, packets are reordered by their due times, so packets that overtake are
        // not counted.
        let left = if latency.is_zero() { overtaken } else { 0 };
        let held = Held::Overtaken { left, packet };
        let due = now + latency + MAX_WAIT;
        self.held.lock().insert(due, held).is_ok()
    }

    /// Holds all packets of an outbox back for the time `latency`, as an injected fault. If more
    /// than [`MAX_HELD_PACKETS`] packets would then be held back, holds no packet back, and returns
    /// the packets as the error. The caller must then drop these packets.
    pub(super) fn hold_batch(
        &self,
        batch: Box<Batch>,
        now: Time,
        latency: Duration,
    ) -> Result<(), Box<Batch>> {
        let held = self.held.lock().insert(now + latency, Held::Batch(batch));
        match held {
            Err(Held::Batch(batch)) => Err(batch),
            _ => Ok(()),
        }
    }

    /// Records that a packet was sent, and returns the held packets that must be sent next.
    /// Injected faults hold a packet back until a given number of later packets was sent. The
    /// returned packets are those for which the last of the later packets has now been sent.
    pub(super) fn pass(&self) -> Vec<Packet> {
        let mut held = self.held.lock();
        if held.overtaken == 0 {
            return Vec::new();
        }
        let mut released = Vec::new();
        for (&key, held) in &mut held.due {
            if let Held::Overtaken {
                left: left @ 1.., ..
            } = held
            {
                *left -= 1;
                if *left == 0 {
                    released.push(key);
                }
            }
        }
        held.overtaken -= released.len();
        let packets = released.into_iter().filter_map(|key| held.remove(key));
        let packets = packets.filter_map(|held| match held {
            Held::Overtaken { packet, .. } => Some(packet),
            Held::Batch(_) => None,
        });
        packets.collect()
    }

    /// Removes the packets that must be sent by the time `now`, and passes them to `send` in the
    /// order of their times. A lock ensures that only one thread at a time sends these packets,
    /// because two threads could change the order.
    pub(super) fn send_due(&self, now: Time, send: impl FnOnce(Vec<Held>)) {
        let _sending = self.sending.lock();
        let due = self.take_due(now);
        if !due.is_empty() {
            send(due);
        }
    }

    fn take_due(&self, now: Time) -> Vec<Held> {
        let mut held = self.held.lock();
        let mut due = Vec::new();
        while let Some((&key, _)) = held.due.first_key_value()
            && key.0 <= now
            && let Some(first) = held.remove(key)
        {
            held.overtaken -= first.overtaken();
            due.push(first);
        }
        due
    }

    /// Returns the time at which the next packet that is held back must be sent. The caller must
    /// set a timer for this time. Returns `None` if no packet is held back.
    pub(super) fn next_due(&self) -> Option<Time> {
        let held = self.held.lock();
        held.due.first_key_value().map(|(&(due, _), _)| due)
    }
}

#[cfg(test)]
mod tests {
    use super::super::route::Batching;
    use super::*;
    use crate::wire::ip::Route;

    fn packet(number: u8) -> Packet {
        let localhost = std::net::Ipv4Addr::LOCALHOST;
        let route = Route {
            source: localhost.to_ipv6_mapped(),
            destination: localhost.to_ipv6_mapped(),
            source_port: 1,
            destination_port: 1,
            traffic_class: 0,
            hop_limit: 1,
            flow_label: 0,
        };
        Packet {
            headers: route.headers(12),
            tunnelled: false,
            bytes: Box::new([number]),
            parameters: SendParameters {
                endpoint: 0,
                to: (localhost, 1).into(),
                traffic_class: 0,
                hop_limit: None,
                batching: Batching::Any,
            },
        }
    }

    fn numbers(packets: Vec<Packet>) -> Vec<u8> {
        packets.iter().map(|packet| packet.bytes[0]).collect()
    }

    /// Removes from `delay` all packets that must be sent by the time `now`. Returns the first
    /// bytes of the packets that [`Delay::hold`] has held back: their numbers in the test. Packets
    /// that [`Delay::hold_batch`] has held back are removed, but not returned.
    fn due(delay: &Delay, now: Time) -> Vec<u8> {
        let all = delay.take_due(now).into_iter();
        let packets = all.filter_map(|held| match held {
            Held::Overtaken { packet, .. } => Some(packet),
            Held::Batch(_) => None,
        });
        numbers(packets.collect())
    }

    const NOW: Time = Time::from_nanos(1000);

    #[test]
    fn batches_are_sent_in_their_order_after_the_latency() {
        let delay = Delay::new();
        for nanos in [50, 50, 40] {
            let latency = Duration::from_nanos(nanos);
            assert!(delay.hold_batch(Box::default(), NOW, latency).is_ok());
        }
        assert_eq!(delay.next_due(), Some(Time::from_nanos(1040)));
        assert_eq!(numbers(delay.pass()), []);
        assert_eq!(delay.take_due(Time::from_nanos(1049)).len(), 1);
        let mut sent = 0;
        delay.send_due(Time::from_nanos(1050), |due| sent = due.len());
        assert_eq!((sent, delay.next_due()), (2, None));
    }

    #[test]
    fn an_overtaken_packet_is_later_than_the_latency() {
        let delay = Delay::new();
        let latency = Duration::from_nanos(50);
        assert!(delay.hold(packet(1), 1, NOW, latency));
        assert!(delay.hold_batch(Box::default(), NOW, latency).is_ok());
        assert_eq!(numbers(delay.pass()), []);
        assert_eq!(due(&delay, NOW + latency), []);
        assert_eq!(due(&delay, NOW + latency + MAX_WAIT), [1]);
    }

    #[test]
    fn an_overtaken_packet_follows_the_last_packet_that_overtakes() {
        let delay = Delay::new();
        delay.hold(packet(1), 1, NOW, Duration::ZERO);
        delay.hold(packet(2), 2, NOW, Duration::ZERO);
        assert_eq!(numbers(delay.pass()), [1]);
        assert_eq!(numbers(delay.pass()), [2]);
        assert_eq!(numbers(delay.pass()), []);
    }

    #[test]
    fn a_packet_that_is_not_overtaken_is_sent_at_its_deadline() {
        let delay = Delay::new();
        delay.hold(packet(1), 3, NOW, Duration::ZERO);
        assert_eq!(due(&delay, NOW), []);
        assert_eq!(due(&delay, NOW + MAX_WAIT), [1]);
        assert_eq!(numbers(delay.pass()), []);
    }

    #[test]
    fn the_number_of_delayed_packets_is_limited() {
        let delay = Delay::new();
        let hold = || delay.hold(packet(0), 1, NOW, MAX_WAIT);
        assert!((0..MAX_HELD_PACKETS).all(|_| hold()));
        assert!(!hold());
    }
}
