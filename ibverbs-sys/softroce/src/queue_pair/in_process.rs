//! Messages between two queue pairs of the NIC: the thread that posts copies them and completes both sides.
//!
//! The thread holds the locks of both queue pairs for that. Of two locks, a thread may wait for the one at the lower address
//! while it holds none, and for the other while it holds the first; so two threads that post towards each other cannot
//! wait for each other. Usually a thread holds its own lock anyway and finds the other one free, in whatever order. At most some
//! 64 KiB, or some tens of messages, are moved before both locks are free for others again.
//!
//! Nothing is agreed beforehand. Both sides keep the sequence numbers that packets would have, and a part of a message goes
//! directly if it is at the same number on both sides, with nothing on the way. Otherwise packets go, which find out what is
//! wrong, or that nobody answers, as often as the attributes say. Once they are answered, the next part goes directly again.

use std::net::Ipv6Addr;
use std::ptr;
use std::sync::Arc;

use super::QueuePair;
use super::host::Surroundings;
use super::object::Inner;
use crate::counters::Flow;
use crate::proto::{self, Data, Outcome, Part, Path, SendOperation, Service, Step};
use crate::spin::MutexGuard;
use crate::transfer::{Carrier, Peer, Transfer, Volume, in_process};

/// The queue pair of this NIC that a queue pair sends to.
pub(super) struct Link {
    peer: Arc<QueuePair>,
    /// The path to the peer.
    path: Path,
    number: u32,
    /// Index of the peer's GID that packets would arrive at.
    local: u8,
    source: Ipv6Addr,
    /// The version of this side that the link is for.
    own: u64,
    /// The version of the peer with which the two were found to be connected.
    theirs: Option<u64>,
}

/// Messages and bytes that are moved before other threads get at the queue pairs.
const MESSAGES: u64 = 64;
const BYTES: u64 = 64 << 10;

impl QueuePair {
    /// Returns whether messages go to a queue pair of this process, as far as is known.
    pub(crate) fn is_direct(&self) -> bool {
        self.device().is_direct() && self.inner.lock().link.is_some()
    }

    /// Takes the link to the queue pair of this process that the next message is for. The caller puts the link back.
    pub(super) fn link(&self, mine: &mut Inner) -> Option<Box<Link>> {
        let may_have_one =
            mine.partner.is_none() && self.device().is_direct() && has_direct(self.service());
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
        let found = self.device().neighbour(&path, number)?;
        // To itself a queue pair sends packets, since it has one lock.
        (!ptr::eq(&*found.queue_pair, self)).then(|| {
            Box::new(Link {
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

    /// Moves parts to the queue pair of a link.
    pub(super) fn move_to(&self, mine: &mut MutexGuard<'_, Inner>, mut link: Box<Link>) -> Step {
        let mut theirs = self.lock_peer(mine, &link.peer);
        if mine.version != link.own {
            // Another thread has changed this queue pair meanwhile.
            return Step::Moved;
        }
        let version = theirs.version;
        if link.theirs != Some(version) && !connected(mine, &theirs, &link) {
            return Step::Packets;
        }
        let step = self.move_parts(mine, &link, &mut theirs);
        drop(theirs);
        link.theirs = Some(version);
        mine.link = Some(link);
        step
    }

    /// Locks the peer beside this queue pair, which may be unlocked in between.
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

    /// Moves parts until there are no more, or until others get at the queue pairs.
    fn move_parts(&self, mine: &mut Inner, link: &Link, theirs: &mut Inner) -> Step {
        let peer = &*link.peer;
        let (Some(attached), Some(their_attached)) = (&mine.attached, &theirs.attached) else {
            return Step::Packets;
        };
        mine.notes.peer = Peer::SameProcess;
        let mut host = self.surroundings(attached, &mut mine.notes);
        let mut end = End {
            link,
            transport: &mut theirs.transport,
            host: peer.surroundings(their_attached, &mut theirs.notes),
            volume: Volume::default(),
        };
        let now = || self.device().now();
        let transport = &mut mine.transport;
        let step = loop {
            if transport.next_step(now) != Step::Moved {
                break transport.next_step(now);
            }
            let upcoming = match transport.upcoming(now, &mut host) {
                Ok(upcoming) => upcoming,
                Err(step) => break step,
            };
            let Some(part) = in_process::next_part(transport, &upcoming) else {
                break Step::Packets;
            };
            if !end.is_for(&part) {
                break Step::Moved;
            }
            let packets = part.packets;
            let transfer = host.transfer(part.request, &upcoming);
            let outcome = end.carry(&part, transfer, &host);
            let step = transport.conclude_part(&upcoming, packets, outcome, now, &mut host);
            if host.notes.overrun || end.host.notes.overrun {
                break Step::Moved;
            }
            let Volume {
                messages, bytes, ..
            } = end.volume;
            if step != Step::Moved || messages >= MESSAGES || bytes >= BYTES {
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

/// The peer while both queue pairs are locked.
struct End<'a, 'h> {
    link: &'a Link,
    transport: &'a mut proto::QueuePair,
    host: Surroundings<'h>,
    /// Amounts of the messages that were moved.
    volume: Volume,
}

impl<'h> End<'_, 'h> {
    /// Returns whether a part is for this queue pair.
    fn is_for(&self, part: &Part<'_>) -> bool {
        match part.request.operation {
            SendOperation::Datagram {
                path, destination, ..
            } => path == self.link.path && destination == self.link.number,
            _ => true,
        }
    }

    fn carry(&mut self, part: &Part<'_>, transfer: Transfer, sender: &Surroundings<'h>) -> Outcome {
        let mut copies = 1;
        let outcome = match part.request.operation {
            SendOperation::Datagram {
                path,
                destination,
                immediate,
                ..
            } => {
                // BTH, DETH, immediate data, and the message with its pad.
                let headers = 20 + 4 * usize::from(immediate.is_some());
                let length = headers + part.length.next_multiple_of(4) as usize;
                let route = self.host.device.global_route(&path, destination, length);
                // The bytes of a datagram are copied together before they are delivered.
                if let Data::Gathered(_) = part.request.payload.data() {
                    copies = 2;
                }
                let host = &mut self.host;
                self.transport.take_datagram(part, &route, host, sender)
            }
            _ => in_process::carry(part, transfer, self.transport, &mut self.host, sender),
        };
        if outcome == Outcome::Executed {
            self.volume.add_part(part.length, part.ends, copies);
        }
        outcome
    }
}

/// Returns whether queue pairs of this service have peers in the process that they can reach directly.
fn has_direct(service: Service) -> bool {
    match service {
        Service::ReliableConnection
        | Service::UnreliableConnection
        | Service::UnreliableDatagram => true,
        // The memory that an XRC target reaches is known from request to request.
        Service::XrcInitiator | Service::XrcTarget => false,
    }
}

/// Returns whether packets by the link reach a queue pair that takes them, and so do those in the other direction.
fn connected(mine: &Inner, theirs: &Inner, link: &Link) -> bool {
    let datagrams = mine.transport.service() == Service::UnreliableDatagram;
    let back = theirs.transport.attributes().path;
    // IBTA 9.6.1.4: a connection takes packets of its own path alone.
    let by_its_path =
        back.is_some_and(|back| back.destination == link.source && back.source == link.local);
    (datagrams || by_its_path) && mine.transport.is_connected_to(&theirs.transport)
}
