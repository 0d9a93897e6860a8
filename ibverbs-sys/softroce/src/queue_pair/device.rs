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

/// The NIC, as a queue pair on it uses it.
pub trait Device: fmt::Debug + Send + Sync {
    /// Returns the regions and windows.
    fn memory(&self) -> &memory::Registry;

    /// Returns the shared receive queues by their numbers, for XRC.
    fn shared_queues(&self) -> &receive::Directory;

    /// Returns the size of the largest packet.
    fn mtu(&self) -> Mtu;

    /// Returns the entry of the GID table; `None` if the entry is empty or does not exist.
    fn gid(&self, index: u8) -> Option<Ipv6Addr>;

    /// Returns whether packets can go this way at all: the local GID exists, and the peer's is of the same kind.
    fn reaches(&self, path: &Path) -> bool;

    /// Receives packets of the queue pair at the end of this path from now on; called once for each queue pair that is
    /// connected to it.
    fn connect(&self, _path: &Path, _number: u32) {}

    /// Ends one call of [`connect`](Self::connect).
    fn disconnect(&self, _path: &Path, _number: u32) {}

    /// Returns how many packets of this size may be on the way to a peer without acknowledgement.
    fn window(&self, mtu: Mtu) -> u32;

    /// Returns the time.
    fn now(&self) -> Time;

    /// Returns the time, cheaply, and with an error of some milliseconds: for waits that are much longer.
    fn coarse_now(&self) -> Time {
        self.now()
    }

    /// Adds to a counter.
    fn count(&self, counter: Counter, by: u64);

    /// Makes counters for an owner that counts often.
    fn tally(&self) -> Tally;

    /// Returns whether messages to queue pairs of this NIC go without packets now.
    fn is_direct(&self) -> bool {
        false
    }

    /// Returns the queue pair of this NIC that packets to `number` would come to by this way.
    fn neighbour(&self, _path: &Path, _number: u32) -> Option<Neighbour> {
        None
    }

    /// Returns whether messages go through memory that is shared with other processes of the host now.
    fn is_shared(&self) -> bool {
        false
    }

    /// Returns the process of the host that packets to `number` would come to by this way, if memory is shared with it.
    fn partner(&self, _path: &Path, _number: u32) -> Option<Arc<Link>> {
        None
    }

    /// Returns the processes of the host that memory is shared with.
    fn neighbourhood(&self) -> Option<&Neighbourhood> {
        None
    }

    /// Returns the GRH of a packet that goes this way to `number`, with the given number of bytes behind the UDP
    /// header, as its receiver finds it.
    fn global_route(&self, _path: &Path, _number: u32, _length: usize) -> [u8; 40] {
        [0; 40]
    }
}

/// A queue pair of the same NIC, at the end of a way.
#[derive(Debug)]
pub struct Neighbour {
    /// The queue pair.
    pub queue_pair: Arc<QueuePair>,
    /// Index of the GID that packets arrive at.
    pub local: u8,
    /// The GID that they come from.
    pub source: Ipv6Addr,
}

/// Where a queue pair's packets go.
pub(crate) trait Outgoing {
    /// Takes the packet that `write` appends, from BTH to pad, and says the way of; whether there was one.
    fn push(&mut self, write: impl FnOnce(&mut Vec<u8>) -> Option<Path>) -> bool;

    /// Takes packets of a run, which `write` writes to so many equal parts of what it is given. False: none.
    fn push_run(&mut self, run: &Run, write: impl FnOnce(usize, &mut [u8]) -> bool) -> bool {
        let _ = (run, write);
        false
    }

    /// Sends what was taken, in that order.
    fn flush(&mut self);

    /// Returns whether wakeups of processes that share memory are deferred.
    fn is_quiet(&self) -> bool {
        false
    }

    /// Sends each datagram pushed from now on through memory shared with its receiver, if there is such memory.
    fn share_datagrams(&mut self) {}

    /// Sends the packets pushed from now on through memory shared with this process, as those of one queue pair. The
    /// tag tells the peer their GIDs.
    fn through(&mut self, link: &Arc<Link>, tag: u16, queue_pair: u32) {
        let _ = (link, tag, queue_pair);
    }

    /// Takes the amount of packets that went through shared memory since the last call.
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

    /// Two GIDs, packets of 2048 bytes, and no network.
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
