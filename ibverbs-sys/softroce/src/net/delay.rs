#![forbid(unsafe_code)]

use std::collections::BTreeMap;
use std::time::Duration;

use parking_lot::Mutex;

use super::outbox::Shipment;
use crate::proto::Time;
use crate::timers::Alarm;
use crate::wire::ip::Headers;

/// How many packets are held back at most.
const ROOM: usize = 16_384;

/// How long a packet waits for others to overtake it.
const PATIENCE: Duration = Duration::from_millis(1);

/// A packet that is not sent yet.
#[derive(Clone, Debug)]
pub(super) struct Packet {
    pub(super) headers: Headers,
    pub(super) tunnelled: bool,
    /// From BTH to ICRC.
    pub(super) bytes: Box<[u8]>,
    pub(super) shipment: Shipment,
}

/// Packets that are held back by accidents: until a time, or until others have passed them.
#[derive(Debug)]
pub(super) struct Delay {
    held: Mutex<Held>,
    alarm: Alarm,
}

#[derive(Debug, Default)]
struct Held {
    /// By time, and in order of coming where that is equal. The number: how many may still pass it.
    packets: BTreeMap<(Time, u64), (u8, Packet)>,
    /// How many of them wait to be passed.
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

    /// Of the timer for [`Delay::next_due`].
    pub(super) fn alarm(&self) -> &Alarm {
        &self.alarm
    }

    /// Holds a packet back for a time, and until so many others have passed; false if there is no room.
    pub(super) fn hold(&self, packet: Packet, overtaken: u8, now: Time, latency: Duration) -> bool {
        let mut held = self.held.lock();
        if held.packets.len() >= ROOM {
            return false;
        }
        let patience = if overtaken > 0 {
            PATIENCE
        } else {
            Duration::ZERO
        };
        let due = now + latency + patience;
        held.count += 1;
        let count = held.count;
        // With a latency it is time that lets others pass.
        let overtaken = if latency.is_zero() { overtaken } else { 0 };
        held.overtaken += usize::from(overtaken > 0);
        held.packets.insert((due, count), (overtaken, packet));
        true
    }

    /// A packet passes; those that have been passed often enough, and go behind it.
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

    /// Those whose time has come.
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

    /// When the first one's time comes.
    pub(super) fn next_due(&self) -> Option<Time> {
        let held = self.held.lock();
        held.packets.first_key_value().map(|(&(due, _), _)| due)
    }
}

#[cfg(test)]
mod tests {
    use super::super::route::Company;
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
            shipment: Shipment {
                endpoint: 0,
                to: (localhost, 1).into(),
                traffic_class: 0,
                hop_limit: None,
                company: Company::Any,
            },
        }
    }

    fn numbers(packets: Vec<Packet>) -> Vec<u8> {
        packets.iter().map(|packet| packet.bytes[0]).collect()
    }

    const NOW: Time = Time::from_nanos(1000);

    #[test]
    fn held_for_a_time_they_keep_their_order() {
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
    fn those_that_are_passed_go_behind_the_last_that_passes() {
        let delay = Delay::new();
        delay.hold(packet(1), 1, NOW, Duration::ZERO);
        delay.hold(packet(2), 2, NOW, Duration::ZERO);
        assert_eq!(numbers(delay.pass()), [1]);
        assert_eq!(numbers(delay.pass()), [2]);
        assert_eq!(numbers(delay.pass()), []);
    }

    #[test]
    fn one_that_nobody_passes_goes_when_its_time_has_come() {
        let delay = Delay::new();
        delay.hold(packet(1), 3, NOW, Duration::ZERO);
        assert_eq!(numbers(delay.take_due(NOW)), []);
        assert_eq!(numbers(delay.take_due(NOW + PATIENCE)), [1]);
        assert_eq!(numbers(delay.pass()), []);
    }

    #[test]
    fn there_is_a_bound() {
        let delay = Delay::new();
        assert!((0..ROOM).all(|_| delay.hold(packet(0), 0, NOW, PATIENCE)));
        assert!(!delay.hold(packet(0), 0, NOW, PATIENCE));
    }
}
