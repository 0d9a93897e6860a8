//! Messages between two queue pairs of the NIC without packets: the thread that posts copies them and completes both
//! sides.
//!
//! It holds both queue pairs' locks for that. Of two that it needs it may wait for the one at the lower address first, and
//! for the other with that one in hand; so two threads that post towards each other cannot wait for each other. Usually
//! it has one anyway and finds the other open, in whatever order. Not more than some 64 KiB, or some tens of messages,
//! are moved before both are open to others again.
//!
//! Nothing is agreed beforehand. Both sides keep the sequence numbers that packets would have, and a part of a message goes
//! directly if it is at the same number on both sides, with nothing on the way. Else packets go, which sort out
//! what is wrong, or find nobody as often as the attributes say. Once they are answered, the next part goes directly again.

use std::net::Ipv6Addr;
use std::ptr;
use std::sync::Arc;

use super::QueuePair;
use super::host::Surroundings;
use super::object::Inner;
use crate::proto::{self, Answer, Counter, Host, Part, Path, Peer, SendOperation, Service, Step};
use crate::spin::MutexGuard;

/// Whom a queue pair talks to directly.
pub(super) struct Link {
    peer: Arc<QueuePair>,
    /// The way there.
    path: Path,
    number: u32,
    /// How packets would arrive there.
    local: u8,
    source: Ipv6Addr,
    /// The version of this side that it is of.
    own: u64,
    /// The version of the peer's side with which the two were found to be connected.
    theirs: Option<u64>,
}

/// Messages and bytes that are moved before others get at the queue pairs.
const MESSAGES: u32 = 64;
const BYTES: u64 = 64 << 10;

impl QueuePair {
    /// Moves what can go directly. What is left can go by packets, or cannot go now.
    pub(super) fn carry(&self, mine: &mut MutexGuard<'_, Inner>) -> Step {
        loop {
            let step = mine.transport.has_direct(|| self.device().now());
            if step != Step::Moved {
                return step;
            }
            let is_direct =
                mine.partner.is_none() && self.device().is_direct() && has_direct(self.service());
            let Some(link) = is_direct.then(|| self.link(mine)).flatten() else {
                if mine.transport.next_is_send() {
                    return Step::Packets;
                }
                match self.carry_away(mine) {
                    Step::Moved => {
                        MutexGuard::bump(mine);
                        continue;
                    }
                    step => return step,
                }
            };
            match self.carry_over(mine, link) {
                Step::Moved => MutexGuard::bump(mine),
                step => return step,
            }
        }
    }

    /// Whether its messages go directly, as far as is known.
    pub(crate) fn is_direct(&self) -> bool {
        self.device().is_direct() && self.inner.lock().link.is_some()
    }

    /// The one that the next message is for. It is taken out and is to be put back.
    fn link(&self, mine: &mut Inner) -> Option<Box<Link>> {
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
        // To itself a queue pair sends packets: it has one lock.
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

    fn carry_over(&self, mine: &mut MutexGuard<'_, Inner>, mut link: Box<Link>) -> Step {
        let mut theirs = self.lock_peer(mine, &link.peer);
        if mine.version != link.own {
            // Somebody changed this one meanwhile.
            return Step::Moved;
        }
        let version = theirs.version;
        if link.theirs != Some(version) && !connected(mine, &theirs, &link) {
            return Step::Packets;
        }
        let step = self.carry_with(mine, &link, &mut theirs);
        drop(theirs);
        link.theirs = Some(version);
        mine.link = Some(link);
        step
    }

    /// The peer's lock beside the own one, which may be open in between.
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

    /// Moves parts until there are no more, or others shall have their turn.
    fn carry_with(&self, mine: &mut Inner, link: &Link, theirs: &mut Inner) -> Step {
        let peer = &*link.peer;
        let (Some(attached), Some(their_attached)) = (&mine.attached, &theirs.attached) else {
            return Step::Packets;
        };
        let mut host = self.surroundings(attached, &mut mine.notes);
        let mut end = End {
            link,
            transport: &mut theirs.transport,
            host: peer.surroundings(their_attached, &mut theirs.notes),
            messages: 0,
            bytes: 0,
            elsewhere: false,
        };
        let step = loop {
            let step = mine
                .transport
                .poll_direct(|| self.device().now(), &mut host, &mut end);
            let overrun = host.notes.overrun || end.host.notes.overrun;
            if end.elsewhere || overrun {
                break Step::Moved;
            }
            if step != Step::Moved || end.messages >= MESSAGES || end.bytes >= BYTES {
                break step;
            }
        };
        let messages = end.messages;
        peer.fail_if_overrun(end.transport, &mut end.host);
        self.fail_if_overrun(&mut mine.transport, &mut host);
        if messages > 0 {
            host.count(Counter::DirectMessages, messages.into());
        }
        step
    }
}

/// The peer while both are locked.
struct End<'a, 'h> {
    link: &'a Link,
    transport: &'a mut proto::QueuePair,
    host: Surroundings<'h>,
    messages: u32,
    bytes: u64,
    /// What is next is for another one.
    elsewhere: bool,
}

impl<'h> Peer<Surroundings<'h>> for End<'_, 'h> {
    fn take(&mut self, part: &Part<'_>, sender: &mut Surroundings<'h>) -> Answer {
        let answer = match part.request.operation {
            SendOperation::Datagram {
                path,
                destination,
                immediate,
                ..
            } => {
                if path != self.link.path || destination != self.link.number {
                    self.elsewhere = true;
                    return Answer::Packets;
                }
                // BTH, DETH, immediate data, and the message with its pad.
                let headers = 20 + 4 * usize::from(immediate.is_some());
                let length = headers + part.length.next_multiple_of(4) as usize;
                let route = self.host.device.global_route(&path, destination, length);
                let host = &mut self.host;
                self.transport.take_datagram(part, &route, host, sender)
            }
            _ => self.transport.take(part, &mut self.host, sender),
        };
        if answer == Answer::Done {
            self.messages += u32::from(part.ends);
            self.bytes += u64::from(part.length);
        }
        answer
    }
}

/// Whether queue pairs of this service have peers that they can talk to directly.
fn has_direct(service: Service) -> bool {
    match service {
        Service::ReliableConnection
        | Service::UnreliableConnection
        | Service::UnreliableDatagram => true,
        // Which memory an XRC target reaches is known from request to request.
        Service::XrcInitiator | Service::XrcTarget => false,
    }
}

/// Whether packets that go by the link reach a queue pair that takes them, and so do those the other way around.
fn connected(mine: &Inner, theirs: &Inner, link: &Link) -> bool {
    let datagrams = mine.transport.service() == Service::UnreliableDatagram;
    let back = theirs.transport.attributes().path;
    // IBTA 9.6.1.4: a connection takes packets of its own path alone.
    let by_its_path =
        back.is_some_and(|back| back.destination == link.source && back.source == link.local);
    (datagrams || by_its_path) && mine.transport.is_connected_to(&theirs.transport)
}
