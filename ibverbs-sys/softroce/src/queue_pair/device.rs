use std::fmt;
use std::net::Ipv6Addr;
use std::sync::Arc;

use super::QueuePair;
use crate::counters::Tally;
use crate::memory;
use crate::net::Shares;
use crate::proto::{Counter, Mtu, Path, Run, Time};
use crate::receive;
use crate::same_host::{Link, Neighbourhood};

/// The services that a queue pair requires from its NIC.
pub trait Device: fmt::Debug + Send + Sync {
    /// Returns the registry of memory regions and windows.
    fn memory(&self) -> &memory::Registry;

    /// Returns the shared receive queues by their numbers, for XRC.
    fn shared_queues(&self) -> &receive::Directory;

    /// Returns the maximum path MTU.
    fn mtu(&self) -> Mtu;

    /// Returns an entry of the GID table, or `None` if the entry is empty or does not exist.
    fn gid(&self, index: u8) -> Option<Ipv6Addr>;

    /// Returns whether a path is usable: the local GID exists, and both GIDs are of the same kind.
    fn reaches(&self, path: &Path) -> bool;

    /// Begins to receive packets of the queue pair at the end of this path. Called once for each queue pair that is connected
    /// to it.
    fn connect(&self, _path: &Path, _number: u32) {}

    /// Reverses one call of [`connect`](Self::connect).
    fn disconnect(&self, _path: &Path, _number: u32) {}

    /// Returns the maximum unacknowledged packets of this size in flight to a peer.
    fn window(&self, mtu: Mtu) -> u32;

    /// Returns the current time.
    fn now(&self) -> Time;

    /// Returns the current time with an error of some milliseconds, at low cost. Suitable for timeouts that are much longer.
    fn coarse_now(&self) -> Time {
        self.now()
    }

    /// Adds to a counter.
    fn count(&self, counter: Counter, by: u64);

    /// Creates counters for an owner that counts often.
    fn tally(&self) -> Tally;

    /// Returns whether messages to queue pairs of this NIC are moved directly, without packets, at present.
    fn is_direct(&self) -> bool {
        false
    }

    /// Returns the queue pair of this NIC that packets on this path to `number` would reach, or `None` if there is none.
    fn neighbour(&self, _path: &Path, _number: u32) -> Option<Neighbour> {
        None
    }

    /// Returns whether shared memory is used for messages to other processes of the host at present.
    fn is_shared(&self) -> bool {
        false
    }

    /// Returns the link to the process of the host that packets on this path to `number` would reach, or `None` if no memory is
    /// shared with it.
    fn partner(&self, _path: &Path, _number: u32) -> Option<Arc<Link>> {
        None
    }

    /// Returns the other processes of the host, if this NIC shares memory with them.
    fn neighbourhood(&self) -> Option<&Neighbourhood> {
        None
    }

    /// Returns the GRH of a packet on this path to `number`, as its receiver would see it. `length` is the number of bytes
    /// after the UDP header.
    fn global_route(&self, _path: &Path, _number: u32, _length: usize) -> [u8; 40] {
        [0; 40]
    }
}

/// A queue pair of the same NIC at the end of a path.
#[derive(Debug)]
pub struct Neighbour {
    /// Queue pair at the end of the path.
    pub queue_pair: Arc<QueuePair>,
    /// Index of the GID at which packets arrive.
    pub local: u8,
    /// GID that the packets come from.
    pub source: Ipv6Addr,
}

/// Destination of the packets of a queue pair.
pub(crate) trait Outgoing {
    /// Accepts the packet that `write` appends, from the BTH to the pad. `write` returns the packet's path, or `None` if there
    /// is no packet. Returns whether there was a packet.
    fn push(&mut self, write: impl FnOnce(&mut Vec<u8>) -> Option<Path>) -> bool;

    /// Accepts a run of packets. `write` gets the number of packets and a buffer with one equal part for each. Returns whether
    /// packets were accepted.
    fn push_run(&mut self, run: &Run, write: impl FnOnce(usize, &mut [u8]) -> bool) -> bool {
        let _ = (run, write);
        false
    }

    /// Sends the accepted packets, in order.
    fn flush(&mut self);

    /// Returns whether wakeups of processes that share memory are deferred.
    fn is_quiet(&self) -> bool {
        false
    }

    /// Sends each datagram accepted from now on through memory shared with its receiver, if there is such memory.
    fn share_datagrams(&mut self) {}

    /// Sends the packets accepted from now on through the memory of a link, as those of one queue pair. `tag` names their GIDs
    /// to the peer.
    fn through(&mut self, link: &Arc<Link>, tag: u16, queue_pair: u32) {
        let _ = (link, tag, queue_pair);
    }

    /// Returns the volume of packets that were sent through shared memory since the last call, and resets it.
    fn take_shares(&mut self) -> Shares {
        Shares::default()
    }
}

#[cfg(test)]
pub(super) mod tests {
    use std::net::{Ipv4Addr, Ipv6Addr};
    use std::sync::Arc;

    use super::Device;
    use crate::counters::{Counters, Tally};
    use crate::memory::Registry;
    use crate::proto::{Counter, Mtu, Path, Time};
    use crate::receive::Directory;

    /// A device with two GIDs, an MTU of 2048 bytes, and no network.
    #[derive(Debug, Default)]
    pub(in crate::queue_pair) struct TestDevice {
        pub(in crate::queue_pair) memory: Registry,
        pub(in crate::queue_pair) shared_queues: Directory,
    }

    impl Device for TestDevice {
        fn memory(&self) -> &Registry {
            &self.memory
        }

        fn shared_queues(&self) -> &Directory {
            &self.shared_queues
        }

        fn mtu(&self) -> Mtu {
            Mtu::Mtu2048
        }

        fn gid(&self, index: u8) -> Option<Ipv6Addr> {
            match index {
                0 => Some(Ipv4Addr::new(127, 1, 2, 3).to_ipv6_mapped()),
                1 => Some("fd00::1".parse().unwrap()),
                _ => None,
            }
        }

        fn reaches(&self, path: &Path) -> bool {
            let own = self.gid(path.source);
            own.is_some_and(|own| {
                own.to_ipv4_mapped().is_some() == path.destination.to_ipv4_mapped().is_some()
            })
        }

        fn window(&self, mtu: Mtu) -> u32 {
            (64 * 1024 / mtu.bytes()) as u32
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
