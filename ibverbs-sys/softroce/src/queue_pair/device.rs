use std::fmt;
use std::net::Ipv6Addr;
use std::ops::RangeInclusive;
use std::sync::Arc;

use super::QueuePair;
use crate::counters::Tally;
use crate::memory;
use crate::net::SharedVolume;
use crate::proto::{Counter, Mtu, Path, Run, Time};
use crate::receive;
use crate::same_host::{HostPeers, Link};

/// Interface through which queue pairs use their NIC: memory, GIDs, time, counters, and paths to
/// other queue pairs.
pub trait Adapter: fmt::Debug + Send + Sync {
    /// Returns the registry of the NIC's memory regions and windows.
    fn memory(&self) -> &memory::Registry;

    /// Returns the shared receive queues of the NIC, found by number. XRC requests name these
    /// queues by their numbers.
    fn shared_queues(&self) -> &receive::SharedQueueDirectory;

    /// Returns the active MTU of the port, which is the upper limit for the path MTU of queue
    /// pairs.
    fn mtu(&self) -> Mtu;

    /// Returns the GID with the index `index` in the port's GID table, or `None` if the entry is
    /// empty or does not exist.
    fn gid(&self, index: u8) -> Option<Ipv6Addr>;

    /// Returns whether the NIC can send packets on `path`: the local GID exists, and both GIDs are
    /// of the same kind (IPv4 or IPv6).
    fn can_send_on(&self, path: &Path) -> bool;

    /// Makes the NIC accept packets from the queue pair with the number `_number` at the other end
    /// of `_path`. A queue pair of this NIC calls this function when the program connects it to
    /// that queue pair. By default does nothing.
    fn connect(&self, _path: &Path, _number: u32) {}

    /// Reverses one call of [`connect`](Self::connect): a local queue pair is no longer connected
    /// to the queue pair with the number `_number` at the other end of `_path`. By default does
    /// nothing.
    fn disconnect(&self, _path: &Path, _number: u32) {}

    /// Returns the largest path MTU of packets that are sent from the GID with the index `_gid`.
    /// The result can be lower than the MTU of the port, because the network of this GID can have a
    /// lower limit. By default returns the port's [`mtu`](Self::mtu).
    fn mtu_of(&self, _gid: u8) -> Mtu {
        self.mtu()
    }

    /// Begins a check that packets of maximum length reach the peer on another host. Packets of
    /// length `_mtu` (path MTU) are sent on `_path` to the queue pair with the number `_number`. If
    /// long packets are lost, the user gets a message. By default does nothing.
    fn check_path_mtu(&self, _path: &Path, _number: u32, _mtu: Mtu) {}

    /// Makes the NIC receive packets at all its GIDs. Called when a datagram queue pair becomes
    /// ready to receive, because such a queue pair has no fixed path. By default does nothing.
    fn receive_everywhere(&self) {}

    /// Returns two limits for the number of unacknowledged packets of a queue pair. The lower limit
    /// applies while the capacity of the network path is unknown. The higher limit applies after a
    /// measurement has shown that the path can hold this number of packets. `mtu` is the path MTU
    /// of the queue pair, and `gid` is the index of the GID from which the queue pair sends.
    fn windows(&self, gid: u8, mtu: Mtu) -> RangeInclusive<u32>;

    /// Returns the current time of the NIC's clock, on which all timeouts are based.
    fn now(&self) -> Time;

    /// Returns the current time of the NIC's clock, at low cost, with an error of some
    /// milliseconds. Suitable for timeouts that are much longer than the error.
    fn coarse_now(&self) -> Time {
        self.now()
    }

    /// Adds `by` to the statistics counter `counter` of the device.
    fn count(&self, counter: Counter, by: u64);

    /// Creates a set of counters for an owner that counts often, such as a queue pair. Threads then
    /// do not contend for shared counters. The totals of the device include these counters.
    fn tally(&self) -> Tally;

    /// Returns whether messages to queue pairs of this process are currently executed directly,
    /// without packets. Returns `false` if packets are needed to inject faults or to write a
    /// capture file. By default returns `false`.
    fn is_direct(&self) -> bool {
        false
    }

    /// Returns the queue pair of this NIC that would receive packets on the path `_path` with the
    /// destination number `_number`. Returns `None` if this NIC has no such queue pair, or if the
    /// path leads to another NIC. By default returns `None`.
    fn host_peer(&self, _path: &Path, _number: u32) -> Option<HostPeer> {
        None
    }

    /// Returns whether messages to other processes of the host currently use shared memory. Returns
    /// `false` while faults are injected or packets are captured.
    fn is_shared(&self) -> bool {
        false
    }

    /// Returns the link (memory shared with another process) to the process that would receive
    /// packets on `_path` to the queue pair with the number `_number`. Returns `None` if no memory
    /// is shared with that process. By default returns `None`.
    fn link_to_peer(&self, _path: &Path, _number: u32) -> Option<Arc<Link>> {
        None
    }

    /// Returns the links (shared memory) to other processes of the host, or `None` if this NIC
    /// shares no memory with other processes.
    fn host_peers(&self) -> Option<&HostPeers> {
        None
    }

    /// Returns the global routing header (GRH) that the receiver of a packet would get. The packet
    /// is sent on `_path` to the queue pair with the number `_number`, and has `_length` bytes
    /// after the UDP header. By default returns zeros.
    fn global_route(&self, _path: &Path, _number: u32, _length: usize) -> [u8; 40] {
        [0; 40]
    }
}

/// A queue pair of the same NIC as the sending queue pair, found as the destination of a packet.
#[derive(Debug)]
pub struct HostPeer {
    /// The queue pair at the end of the path.
    pub queue_pair: Arc<QueuePair>,
    /// Index of the local GID at which the packets arrive.
    pub local: u8,
    /// GID from which the packets come.
    pub source: Ipv6Addr,
}

/// Sender of the packets that a queue pair produces. The sender may send several packets by one
/// system call, or through shared memory.
pub(crate) trait Outgoing {
    /// Adds a packet that will be sent, and returns `true`. Calls `write` to append the bytes of
    /// the packet to a buffer, without the IP and UDP headers and the checksum. `write` returns the
    /// packet's path, or `None` if there is no packet to send. Returns `false` if `write` has
    /// returned `None`. Also returns `false`, without calling `write`, if no more packets can be
    /// sent now.
    fn push(&mut self, write: impl FnOnce(&mut Vec<u8>) -> Option<Path>) -> bool;

    /// Adds the packets of `run`, which are consecutive packets of equal size, or only the first of
    /// them. Calls `write` with the number of packets and a buffer, which has a part of equal
    /// length for each packet. `write` must write a packet to the beginning of each part, or return
    /// `false`. Returns `false` if no packets were added. The caller must then add the next packet
    /// by [`push`](Self::push).
    fn push_run(&mut self, run: &Run, write: impl FnOnce(usize, &mut [u8]) -> bool) -> bool {
        let _ = (run, write);
        false
    }

    /// Sends all packets that were added to this sender, in order.
    fn flush(&mut self);

    /// Returns whether this sender defers wakeups of peer processes for messages in shared memory.
    /// The caller or the engine (background thread) then sends the wakeups later. By default
    /// returns `false`.
    fn defers_wakeups(&self) -> bool {
        false
    }

    /// Sends datagrams that are added from now on through shared memory, if their receivers share
    /// memory with this process. By default does nothing.
    fn share_datagrams(&mut self) {}

    /// Sends packets that are added from now on through the shared memory of `link`. All these
    /// packets must be sent by the queue pair with the number `queue_pair`. `tag` contains the
    /// indices of the packets' GIDs, from which the peer process finds the GIDs. By default does
    /// nothing.
    fn use_link(&mut self, link: &Arc<Link>, tag: u16, queue_pair: u32) {
        let _ = (link, tag, queue_pair);
    }

    /// Returns the number and the total length of the packets that were sent through shared memory
    /// since the last call of this function.
    fn take_shared_volume(&mut self) -> SharedVolume {
        SharedVolume::default()
    }
}

#[cfg(test)]
pub(super) mod tests {
    use std::net::{Ipv4Addr, Ipv6Addr};
    use std::ops::RangeInclusive;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering};

    use super::Adapter;
    use crate::counters::{Counters, Tally};
    use crate::memory::Registry;
    use crate::proto::{Counter, Mtu, Path, Time};
    use crate::receive::SharedQueueDirectory;

    /// A test device with two GIDs, an MTU of 2048 bytes, and no network.
    #[derive(Debug, Default)]
    pub(in crate::queue_pair) struct TestDevice {
        pub(in crate::queue_pair) memory: Registry,
        pub(in crate::queue_pair) shared_queues: SharedQueueDirectory,
        /// Set if the network interface has a low MTU.
        pub(in crate::queue_pair) has_low_mtu: AtomicBool,
    }

    impl Adapter for TestDevice {
        fn memory(&self) -> &Registry {
            &self.memory
        }

        fn shared_queues(&self) -> &SharedQueueDirectory {
            &self.shared_queues
        }

        fn mtu(&self) -> Mtu {
            Mtu::Mtu2048
        }

        fn mtu_of(&self, _: u8) -> Mtu {
            match self.has_low_mtu.load(Ordering::Relaxed) {
                true => Mtu::Mtu512,
                false => self.mtu(),
            }
        }

        fn gid(&self, index: u8) -> Option<Ipv6Addr> {
            match index {
                0 => Some(Ipv4Addr::new(127, 1, 2, 3).to_ipv6_mapped()),
                1 => Some("fd00::1".parse().unwrap()),
                _ => None,
            }
        }

        fn can_send_on(&self, path: &Path) -> bool {
            let own = self.gid(path.source);
            own.is_some_and(|own| {
                own.to_ipv4_mapped().is_some() == path.destination.to_ipv4_mapped().is_some()
            })
        }

        fn windows(&self, _: u8, mtu: Mtu) -> RangeInclusive<u32> {
            let packets = (64 * 1024 / mtu.bytes()) as u32;
            packets..=packets
        }

        fn now(&self) -> Time {
            Time::from_nanos(1)
        }

        fn count(&self, _: Counter, _: u64) {}

        fn tally(&self) -> Tally {
            Arc::<Counters>::default().tally()
        }
    }
}
