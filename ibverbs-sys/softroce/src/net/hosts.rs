#![forbid(unsafe_code)]
//! Knowledge of other hosts: the UDP ports of their devices.
//!
//! Several processes of a host may use one address. Each process has a UDP port of its own, and the
//! queue pair numbers of the process contain the [slot](crate::address) of the port. Network cards
//! and kernel drivers always use the base port, and their queue pair numbers may have any value.
//!
//! So packets to a number with the slot 0 go to the base port in both cases. For any other number,
//! the port depends on the host: packets of this crate come from the ports of slots, and other
//! packets do not. A host may send both kinds, if the kernel's driver is loaded there. The first
//! 65,536 numbers of that driver have the slot 0, so the ports of slots are right for this host,
//! too. Packets to an unknown host are sent to both ports in turn. A connection repeats the packets
//! that do not arrive.

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::RwLock;

use crate::address::{self, Ports};
use crate::proto::Time;

/// UDP ports that the devices of other hosts use. Packets to a host must be sent to these ports.
/// The ports are learned from the source ports of the packets that the host sends.
#[derive(Debug, Default)]
pub(super) struct Hosts {
    /// Hosts that have sent a packet. The value is `true` if at least one packet came from the port
    /// of a slot (the port of a softroce device).
    known: RwLock<HashMap<IpAddr, bool>>,
    /// Number of changes of `known`. A cache of routes is outdated if this number has changed since
    /// the cache was filled.
    changes: AtomicU64,
}

/// Time for which packets to an unknown host are sent to one of two possible UDP ports. Afterwards,
/// the packets are sent to the other port for the same time. Devices of softroce use all ports of a
/// range, and other RDMA devices use only the first port of this range. A connection repeats the
/// packets that went to the wrong port.
const PORT_TRIAL_TIME: Duration = Duration::from_millis(32);

/// Maximum number of hosts whose UDP ports are remembered, which bounds the memory. If more hosts
/// send packets, the ports of all hosts are forgotten, and are learned again from later packets.
const MAX_HOSTS: usize = 1 << 16;

impl Hosts {
    /// Returns the UDP ports that the RDMA devices of the host `host` use, and `true` if the ports
    /// are certain. For a host that has sent no packet, the ports are a guess. The guess changes
    /// with the time `now`, so that packets are sent to both possible ports in turn. The ports of a
    /// loopback address are always certain.
    pub(super) fn ports(&self, host: IpAddr, now: impl FnOnce() -> Time) -> (Ports, bool) {
        if host.is_loopback() {
            return (Ports::Slots, true);
        }
        let (has_slots, is_certain) = match self.known.read().get(&host) {
            Some(&has_slots) => (has_slots, true),
            None => {
                let turn = now().as_nanos() / PORT_TRIAL_TIME.as_nanos() as u64;
                (turn.is_multiple_of(2), false)
            }
        };
        let ports = if has_slots { Ports::Slots } else { Ports::Base };
        (ports, is_certain)
    }

    /// Records which UDP ports another host uses, after a packet has come from the address and port
    /// `from`. A port of the softroce range, which begins with `base`, shows that the host has
    /// softroce devices. Later packets to the host are sent to these ports.
    pub(super) fn record(&self, base: u16, from: SocketAddr) {
        let host = from.ip();
        if host.is_loopback() {
            return;
        }
        let has_slots = address::slot_of_port(base, from.port()).is_some();
        let is_known = |known: &bool| *known || !has_slots;
        if self.known.read().get(&host).is_some_and(is_known) {
            return;
        }
        let mut known = self.known.write();
        if known.len() >= MAX_HOSTS {
            known.clear();
        }
        known.insert(host, has_slots);
        self.changes.fetch_add(1, Ordering::Release);
    }

    /// Returns a number that changes whenever the UDP ports of a host become known. A cached result
    /// of [`ports`](Self::ports) is outdated if the number has changed.
    pub(super) fn changes(&self) -> u64 {
        self.changes.load(Ordering::Acquire)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_ports_of_a_host_follow_from_its_packets() {
        let hosts = Hosts::default();
        let host: IpAddr = "10.1.2.3".parse().unwrap();
        let at = |millis| move || Time::default() + Duration::from_millis(millis);
        assert_eq!(hosts.ports(host, at(0)), (Ports::Slots, false));
        assert_eq!(hosts.ports(host, at(40)), (Ports::Base, false));
        assert_eq!(hosts.ports(host, at(70)), (Ports::Slots, false));
        for (port, ports, changes) in [
            (49_152, Ports::Base, 1),
            (49_153, Ports::Base, 1),
            (4991, Ports::Slots, 2),
            (4791, Ports::Slots, 2),
            (49_152, Ports::Slots, 2),
        ] {
            hosts.record(4791, SocketAddr::new(host, port));
            assert_eq!(hosts.ports(host, at(40)), (ports, true));
            assert_eq!(hosts.changes(), changes);
        }
    }

    #[test]
    fn devices_with_loopback_addresses_have_slots() {
        let hosts = Hosts::default();
        hosts.record(4791, "127.0.0.1:50000".parse().unwrap());
        let host: IpAddr = "127.0.0.1".parse().unwrap();
        assert_eq!(hosts.ports(host, Time::default), (Ports::Slots, true));
    }
}
