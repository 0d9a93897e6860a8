//! Messages between two queue pairs of this NIC: the thread that posts a message copies its bytes
//! and completes both sides.
//!
//! The thread holds the locks of both queue pairs meanwhile. A thread that needs both locks and
//! holds neither lock waits for the lock at the lower address first. So two threads that post
//! towards each other cannot deadlock. Usually a thread holds the lock of its own queue pair
//! already, and finds the other lock free. After about 64 KiB or 64 messages, both queue pairs are
//! unlocked for other threads.
//!
//! No handshake is necessary. Both sides keep the sequence numbers that packets would have. A range
//! of a message is moved directly if both sides expect the same sequence number and no packets are
//! in flight. Otherwise packets are sent, which detect errors and missing responses with the
//! retries of the attributes. Once the packets are acknowledged, the next range is moved directly.

use std::net::Ipv6Addr;
use std::ptr;
use std::sync::Arc;

use super::QueuePair;
use super::host::Environment;
use super::object::Inner;
use crate::counters::Flow;
use crate::proto::{self, Data, Part, PartOutcome, Path, SendOperation, SendProgress, Service};
use crate::spin::MutexGuard;
use crate::transfer::{Peer, Transfer, TransferHost, Volume, in_process};

/// A destination queue pair in the same process as the sending queue pair. The sender copies
/// messages directly to its receives or memory, without packets.
pub(super) struct LocalPeer {
    peer: Arc<QueuePair>,
    /// The path to the destination queue pair.
    path: Path,
    number: u32,
    /// Index of the destination's GID at which packets from this queue pair would arrive.
    local: u8,
    source: Ipv6Addr,
    /// Version of the sending queue pair for which the cached destination is valid. Each
    /// modification of the queue pair changes its version.
    own: u64,
    /// Version of the destination queue pair when the two were found to be connected to each other.
    /// `None` before the first check.
    theirs: Option<u64>,
}

/// Maximum number of messages that are executed directly while the two queue pairs stay locked.
/// With a larger number, other threads would wait longer for the locks. With a smaller number, the
/// cost of locking per message would be higher.
const MAX_DIRECT_MESSAGES: u64 = 64;
/// Number of payload bytes after which the sender stops copying, and unlocks both queue pairs.
/// Other threads then get the locks. Copying this number of bytes takes some microseconds.
const BYTES: u64 = 64 << 10;

impl QueuePair {
    /// Returns whether messages of this queue pair to its last destination are executed directly in
    /// a queue pair of this process, without packets. Datagrams to other destinations may be sent
    /// as packets.
    pub(crate) fn is_direct(&self) -> bool {
        self.device().is_direct() && self.inner.lock().link.is_some()
    }

    /// Returns the destination queue pair of the next message, for direct execution. Takes the
    /// destination out of the cache in `mine`, the locked state of this queue pair, or searches for
    /// it if the cache is empty or invalid. Afterwards the caller must put the destination back
    /// into the cache. Returns `None` if the destination is not in this process or is this queue
    /// pair itself, or if messages cannot be executed directly at present.
    pub(super) fn link(&self, mine: &mut Inner) -> Option<Box<LocalPeer>> {
        let may_have_one = mine.linked_peer.is_none()
            && self.device().is_direct()
            && supports_direct(self.service());
        if !may_have_one {
            return None;
        }
        let version = mine.version;
        let known = mine.link.take().filter(|link| link.own == version);
        let (path, number) = if self.service() == Service::UnreliableDatagram {
            let request = mine.transport.next_request()?;
            let SendOperation::Datagram {
                path, destination, ..
            } = request.operation
            else {
                return None;
            };
            (path, destination)
        } else if known.is_some() {
            return known;
        } else {
            let attributes = mine.transport.attributes();
            (attributes.path?, attributes.destination)
        };
        let known = known.filter(|link| link.number == number && link.path == path);
        if known.is_some() {
            return known;
        }
        let found = self.device().host_peer(&path, number)?;
        // A queue pair that is connected to itself uses packets, because it has only one lock.
        (!ptr::eq(&*found.queue_pair, self)).then(|| {
            Box::new(LocalPeer {
                peer: found.queue_pair,
                path,
                number,
                local: found.local,
                source: found.source,
                own: version,
                theirs: None,
            })
        })
    }

    /// Executes messages of this queue pair directly in the destination queue pair `link` of the
    /// same process, up to a limited number of bytes and messages. `mine` is the locked state of
    /// this queue pair. Puts `link` back into the cache if it is still valid. The result states the
    /// caller's next step: find the destination again and continue, send packets, or stop.
    pub(super) fn execute(
        &self,
        mine: &mut MutexGuard<'_, Inner>,
        mut link: Box<LocalPeer>,
    ) -> SendProgress {
        let mut theirs = self.lock_peer(mine, &link.peer);
        if mine.version != link.own {
            // Another thread has modified this queue pair while it was unlocked, so the destination
            // must be found again.
            return SendProgress::Transferred;
        }
        let version = theirs.version;
        if link.theirs != Some(version) && !connected(mine, &theirs, &link) {
            return SendProgress::PacketsOnly;
        }
        let step = self.execute_parts(mine, &link, &mut theirs);
        drop(theirs);
        link.theirs = Some(version);
        mine.link = Some(link);
        step
    }

    /// Locks the destination queue pair `peer` while this queue pair is locked, and returns the
    /// locked state of `peer`. `mine` is the locked state of this queue pair. This function can
    /// unlock `mine` and lock it again to prevent a deadlock. Another thread can then have changed
    /// this queue pair.
    fn lock_peer<'a>(
        &self,
        mine: &mut MutexGuard<'_, Inner>,
        peer: &'a QueuePair,
    ) -> MutexGuard<'a, Inner> {
        if let Some(theirs) = peer.inner.try_lock() {
            theirs
        } else if ptr::from_ref(self) < ptr::from_ref(peer) {
            peer.inner.lock()
        } else {
            MutexGuard::unlocked(mine, || peer.inner.lock())
        }
    }

    /// Executes messages of the locked queue pair `mine` in the locked destination queue pair
    /// `theirs`. Stops if no message is left, or if other threads must get the locks. The result
    /// states the caller's next step: call again for further messages, send packets, or stop.
    fn execute_parts(
        &self,
        mine: &mut Inner,
        link: &LocalPeer,
        theirs: &mut Inner,
    ) -> SendProgress {
        let peer = &*link.peer;
        let (Some(objects), Some(their_attached)) = (&mine.objects, &theirs.objects) else {
            return SendProgress::PacketsOnly;
        };
        mine.host_state.peer = Peer::SameProcess;
        let mut host = self.environment(objects, &mut mine.host_state);
        let mut end = LockedDestination {
            link,
            transport: &mut theirs.transport,
            host: peer.environment(their_attached, &mut theirs.host_state),
            volume: Volume::default(),
        };
        let now = || self.device().now();
        let transport = &mut mine.transport;
        let step = loop {
            if transport.next_step(now) != SendProgress::Transferred {
                break transport.next_step(now);
            }
            let upcoming = match transport.upcoming(now, &mut host) {
                Ok(upcoming) => upcoming,
                Err(step) => break step,
            };
            let Some(part) = in_process::next_part(transport, &upcoming) else {
                break SendProgress::PacketsOnly;
            };
            if !end.is_destination_of(&part) {
                break SendProgress::Transferred;
            }
            let packets = part.packets;
            let transfer = host.transfer(part.request, &upcoming);
            let outcome = end.transfer_part(&part, transfer, &host);
            let step = transport.conclude_part(&upcoming, packets, outcome, now, &mut host);
            if host.host_state.overrun || end.host.host_state.overrun {
                break SendProgress::Transferred;
            }
            let Volume {
                messages, bytes, ..
            } = end.volume;
            if step != SendProgress::Transferred
                || messages >= MAX_DIRECT_MESSAGES
                || bytes >= BYTES
            {
                break step;
            }
        };
        let volume = end.volume;
        peer.fail_if_overrun(end.transport, &mut end.host);
        self.fail_if_overrun(transport, &mut host);
        if volume != Volume::default() {
            mine.tally.add(Flow::Direct, &volume);
        }
        step
    }
}

/// Destination queue pair of a direct transfer (copy without packets), in the locked state. The
/// sending queue pair is locked, too.
struct LockedDestination<'a, 'h> {
    link: &'a LocalPeer,
    transport: &'a mut proto::QueuePair,
    host: Environment<'h>,
    /// Number of messages, bytes and copy operations that were executed.
    volume: Volume,
}

impl<'h> LockedDestination<'_, 'h> {
    /// Returns whether this queue pair is the destination of the message to which `part` belongs.
    /// Always returns `true` for a connection, because only datagrams can have different
    /// destinations.
    fn is_destination_of(&self, part: &Part<'_>) -> bool {
        match part.request.operation {
            SendOperation::Datagram {
                path, destination, ..
            } => path == self.link.path && destination == self.link.number,
            _ => true,
        }
    }

    fn transfer_part(
        &mut self,
        part: &Part<'_>,
        transfer: Transfer,
        sender: &Environment<'h>,
    ) -> PartOutcome {
        let mut copies = 1;
        let outcome = match part.request.operation {
            SendOperation::Datagram {
                path,
                destination,
                immediate,
                ..
            } => {
                // The headers and payload behind UDP: BTH, DETH, immediate data, and the message
                // with its pad.
                let headers = 20 + 4 * usize::from(immediate.is_some());
                let length = headers + part.length.next_multiple_of(4) as usize;
                let route = self.host.device.global_route(&path, destination, length);
                // The bytes of a datagram are first gathered in a buffer, which costs one more
                // copy.
                if let Data::Gathered(_) = part.request.payload.data() {
                    copies = 2;
                }
                let host = &mut self.host;
                self.transport.take_datagram(part, &route, host, sender)
            }
            _ => in_process::transfer_part(part, transfer, self.transport, &mut self.host, sender),
        };
        if outcome == PartOutcome::Executed {
            self.volume.add_part(part.length, part.ends, copies);
        }
        outcome
    }
}

/// Returns whether messages of the transport service `service` can be executed directly between two
/// queue pairs of this process, without packets.
fn supports_direct(service: Service) -> bool {
    match service {
        Service::ReliableConnection
        | Service::UnreliableConnection
        | Service::UnreliableDatagram => true,
        // The memory that requests to an XRC target may access depends on the queue that each
        // request names.
        Service::XrcInitiator | Service::XrcTarget => false,
    }
}

/// Returns whether the queue pairs `mine` and `theirs` accept packets from each other. Two queue
/// pairs of a connection must also use the same path, in opposite directions. `link` contains the
/// path from `mine` to `theirs`.
fn connected(mine: &Inner, theirs: &Inner, link: &LocalPeer) -> bool {
    let datagrams = mine.transport.service() == Service::UnreliableDatagram;
    let back = theirs.transport.attributes().path;
    // IBTA 9.6.1.4: a connection accepts only packets of its own path.
    let by_its_path =
        back.is_some_and(|back| back.destination == link.source && back.source == link.local);
    (datagrams || by_its_path) && mine.transport.is_connected_to(&theirs.transport)
}
