#![forbid(unsafe_code)]

use std::collections::BTreeMap;
use std::time::Duration;

use parking_lot::Mutex;

use super::outbox::SendParameters;
use crate::proto::Time;
use crate::timers::Alarm;
use crate::wire::ip::Headers;

/// Maximum number of packets that injected faults hold back at a time. Further packets are dropped,
/// so that a high latency does not take unlimited memory.
const MAX_HELD_PACKETS: usize = 16_384;

/// Maximum time for which a packet is held back until other packets have overtaken it. If fewer
/// packets follow, the packet is sent after this time.
const MAX_WAIT: Duration = Duration::from_millis(1);

/// A packet that was held back and has not been sent yet, with the data that is needed to send it.
#[derive(Clone, Debug)]
pub(super) struct Packet {
    pub(super) headers: Headers,
    pub(super) tunnelled: bool,
    /// Bytes from the BTH to the ICRC.
    pub(super) bytes: Box<[u8]>,
    pub(super) parameters: SendParameters,
}

/// Packets that injected faults hold back, until a time or until a number of other packets have
/// been sent. Causes the faults `latency` and `reorder` of
/// [`NetworkFaults`](crate::fault::NetworkFaults).
#[derive(Debug)]
pub(super) struct Delay {
    held: Mutex<HeldPackets>,
    alarm: Alarm,
}

#[derive(Debug, Default)]
struct HeldPackets {
    /// Held-back packets, ordered by the time at which each is due, then by arrival. Each comes
    /// with the number of packets that must still be sent before it.
    packets: BTreeMap<(Time, u64), (u8, Packet)>,
    /// Number of packets that are held back until other packets have overtaken them.
    overtaken: usize,
    count: u64,
}

impl Delay {
    pub(super) fn new() -> Self {
        Self {
            held: Mutex::default(),
            alarm: Alarm::new(),
        }
    }

    /// Returns the state of the NIC's timer for the time that [`Delay::next_due`] returns.
    pub(super) fn alarm(&self) -> &Alarm {
        &self.alarm
    }

    /// Holds a packet back for `latency`, and until `overtaken` other packets have been sent.
    /// Returns `false`, and drops the packet, if [`MAX_HELD_PACKETS`] packets are held back
    /// already.
    pub(super) fn hold(&self, packet: Packet, overtaken: u8, now: Time, latency: Duration) -> bool {
        let mut held = self.held.lock();
        if held.packets.len() >= MAX_HELD_PACKETS {
            return false;
        }
        let patience = if overtaken > 0 {
            MAX_WAIT
        } else {
            Duration::ZERO
        };
        let due = now + latency + patience;
        held.count += 1;
        let count = held.count;
        // With a latency, packets are reordered by their due times, so packets that overtake are
        // not counted.
        let overtaken = if latency.is_zero() { overtaken } else { 0 };
        held.overtaken += usize::from(overtaken > 0);
        held.packets.insert((due, count), (overtaken, packet));
        true
    }

    /// Counts a sent packet. Removes and returns the held-back packets that have now been overtaken
    /// by enough other packets. The caller must send them next.
    pub(super) fn pass(&self) -> Vec<Packet> {
        let mut held = self.held.lock();
        if held.overtaken == 0 {
            return Vec::new();
        }
        let mut released = Vec::new();
        for (&key, (left, _)) in &mut held.packets {
            if *left > 0 {
                *left -= 1;
                if *left == 0 {
                    released.push(key);
                }
            }
        }
        held.overtaken -= released.len();
        let packets = released.iter().filter_map(|key| held.packets.remove(key));
        packets.map(|(_, packet)| packet).collect()
    }

    /// Removes and returns the packets that are due at `now`, which the caller must send.
    pub(super) fn take_due(&self, now: Time) -> Vec<Packet> {
        let mut held = self.held.lock();
        let mut due = Vec::new();
        while let Some(entry) = held.packets.first_entry()
            && entry.key().0 <= now
        {
            let (left, packet) = entry.remove();
            held.overtaken -= usize::from(left > 0);
            due.push(packet);
        }
        due
    }

    /// Returns the time at which the next packet is due, for which a timer must be set. Returns
    /// `None` if no packet is held back.
    pub(super) fn next_due(&self) -> Option<Time> {
        let held = self.held.lock();
        held.packets.first_key_value().map(|(&(due, _), _)| due)
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

    const NOW: Time = Time::from_nanos(1000);

    #[test]
    fn delayed_packets_keep_their_order() {
        let delay = Delay::new();
        for number in 0..3 {
            assert!(delay.hold(packet(number), 0, NOW, Duration::from_nanos(50)));
        }
        assert!(delay.hold(packet(3), 0, NOW, Duration::from_nanos(40)));
        assert_eq!(delay.next_due(), Some(Time::from_nanos(1040)));
        assert_eq!(numbers(delay.pass()), []);
        assert_eq!(numbers(delay.take_due(Time::from_nanos(1049))), [3]);
        assert_eq!(numbers(delay.take_due(Time::from_nanos(1050))), [0, 1, 2]);
        assert_eq!(delay.next_due(), None);
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
        assert_eq!(numbers(delay.take_due(NOW)), []);
        assert_eq!(numbers(delay.take_due(NOW + MAX_WAIT)), [1]);
        assert_eq!(numbers(delay.pass()), []);
    }

    #[test]
    fn the_number_of_delayed_packets_is_limited() {
        let delay = Delay::new();
        assert!((0..MAX_HELD_PACKETS).all(|_| delay.hold(packet(0), 0, NOW, MAX_WAIT)));
        assert!(!delay.hold(packet(0), 0, NOW, MAX_WAIT));
    }
}
