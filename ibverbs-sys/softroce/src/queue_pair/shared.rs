//! Reads, writes and atomics in the memory of a queue pair of another process of the host: the thread that posts
//! carries them out, and no other thread has to do anything.
//!
//! The other process publishes its queue pairs and its memory to all processes that it shares memory with. If the
//! published rights do not allow a request, it goes by packets, which find out why; so does everything that takes a
//! receive at the other side. Requests that were carried out here have sequence numbers that the other side does not
//! know of: it is told of them before the next packet.

use std::sync::Arc;

use super::QueuePair;
use super::device::Outgoing;
use super::host::{Attached, Notes, Surroundings};
use super::object::Inner;
use super::one_sided::{Executor, OneSided, STRIDE, Undone};
use crate::context::Refusal;
use crate::counters::Tally;
use crate::net;
use crate::proto::{
    self, AccessFlags, Answer, CompletionStatus, Counter, Misplaced, Part, Peer, Remote, Segment,
    SendRequest, Service, State, Step,
};
use crate::same_host::{self, Knowledge, Link, Target};

/// The queue pair in another process that a queue pair is connected to.
pub(super) struct Partner {
    pub(super) link: Arc<Link>,
    pub(super) target: Target,
    pub(super) known: Knowledge,
    /// Tag with which packets there name their GIDs.
    pub(super) tag: Option<u16>,
    /// The connection of the other side that this one has found to be its own.
    pub(super) generation: Option<u32>,
    /// The version of this side that it is of.
    own: u64,
}

impl Partner {
    /// Returns whether this is still the partner, for this version of this side.
    #[inline]
    fn is_of(&self, version: u64) -> bool {
        self.own == version && !self.link.is_dead()
    }
}

/// A queue pair that knows which one in another process it is connected to.
pub(super) struct Near<'a> {
    pub(super) transport: &'a mut proto::QueuePair,
    pub(super) attached: &'a Attached,
    pub(super) notes: &'a mut Notes,
    pub(super) partner: &'a mut Partner,
    pub(super) tally: &'a mut Tally,
}

/// The information about a queue pair that other processes have.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Told {
    /// Told at present.
    told: Option<same_host::QueuePair>,
    /// Others may go by what was told, at present or earlier.
    may_be_used: bool,
    /// Number of times that the queue pair became ready.
    generation: u32,
    /// The sequence number that was expected then.
    first: u32,
}

/// Messages that are moved before others get at the queue pair.
const MESSAGES: u32 = 64;

impl QueuePair {
    /// Moves what needs nobody at the other side, if that is a process of the host.
    pub(super) fn carry_away(&self, mine: &mut Inner) -> Step {
        if !self.is_connection() || mine.transport.awaits_receipt() {
            return Step::Packets;
        }
        let Some(partner) = self.partner(mine) else {
            return Step::Packets;
        };
        let Some(attached) = &mine.attached else {
            mine.partner = Some(partner);
            return Step::Packets;
        };
        let first = mine.transport.attributes().send_sequence;
        let mut host = self.surroundings(attached, &mut mine.notes);
        let mut away = Away {
            partner,
            first,
            messages: 0,
        };
        let step = loop {
            let step = (mine.transport).poll_direct(|| self.device().now(), &mut host, &mut away);
            if host.notes.overrun || step == Step::Moved && away.messages >= MESSAGES {
                break Step::Moved;
            }
            if step != Step::Moved {
                break step;
            }
        };
        self.fail_if_overrun(&mut mine.transport, &mut host);
        if away.messages > 0 {
            mine.tally
                .count(Counter::SharedMessages, away.messages.into());
        }
        mine.partner = Some(away.partner);
        step
    }

    /// Returns whether other processes can reach memory by the queue pair.
    pub(super) fn is_connection(&self) -> bool {
        matches!(
            self.service(),
            Service::ReliableConnection | Service::UnreliableConnection
        )
    }

    /// Has packets go through shared memory if its peer is there. Of datagrams each may go to another peer.
    pub(super) fn choose_way(&self, mine: &mut Inner, outgoing: &mut impl Outgoing) {
        if self.service() == Service::UnreliableDatagram {
            if self.device().is_shared() {
                outgoing.share_datagrams();
            }
            return;
        }
        if let Some(partner) = self.partner(mine) {
            if let Some(tag) = partner.tag {
                outgoing.through(&partner.link, tag, self.number());
            }
            mine.partner = Some(partner);
        }
    }

    /// Returns the objects that are needed to reach the peer at once. `None`: the peer is not known, or cannot be used
    /// at present.
    #[inline]
    pub(super) fn near<'a>(&self, mine: &'a mut Inner) -> Option<Near<'a>> {
        let Inner {
            transport,
            attached: Some(attached),
            notes,
            version,
            partner: Some(partner),
            tally,
            ..
        } = mine
        else {
            return None;
        };
        (partner.is_of(*version) && self.device().is_shared()).then_some(Near {
            transport,
            attached,
            notes,
            partner,
            tally,
        })
    }

    /// Returns whether the queue pair shares memory with its peer, as far as is known.
    pub(crate) fn is_shared(&self) -> bool {
        let inner = self.inner.lock();
        let attributes = inner.transport.attributes();
        let found = attributes
            .path
            .and_then(|path| self.device().partner(&path, attributes.destination));
        self.service() != Service::UnreliableDatagram && found.is_some()
    }

    /// Takes the partner that the queue pair is connected to. The caller puts it back.
    pub(super) fn partner(&self, mine: &mut Inner) -> Option<Partner> {
        if mine.partner.is_none() && self.device().neighbourhood().is_none() {
            return None;
        }
        let version = mine.version;
        if let Some(known) = mine.partner.take() {
            if known.is_of(version) && self.device().is_shared() {
                return Some(known);
            }
            if known.own == version && known.link.is_dead() {
                mine.transport.peer_is_gone();
            }
        }
        let attributes = mine.transport.attributes();
        let (path, number) = (attributes.path?, attributes.destination);
        let link = self.device().partner(&path, number)?;
        Some(Partner {
            tag: net::tag(&path, &link),
            link,
            target: Target {
                number,
                gid: path.destination,
                own_number: self.number(),
                own_gid: self.device().gid(path.source)?,
                is_unreliable: self.service() == Service::UnreliableConnection,
            },
            known: Knowledge::default(),
            generation: None,
            own: version,
        })
    }

    /// Tells other processes what they may do, after anything has changed.
    pub(super) fn tell(&self, inner: &mut Inner) {
        let Some(neighbourhood) = self.device().neighbourhood() else {
            return;
        };
        let wanted = self.to_tell(inner);
        if wanted == inner.told.told {
            return;
        }
        if inner.told.told.is_some() {
            neighbourhood.retract_queue_pair(self.number());
        }
        if let Some(wanted) = &wanted {
            neighbourhood.publish_queue_pair(wanted);
        }
        inner.told.told = wanted;
        inner.told.may_be_used = true;
    }

    /// Takes back what other processes were told, and waits until none of them goes by it any more: before the queue
    /// pair is reset or destroyed. Busy: one does not end; then all is as it was.
    pub(crate) fn vacate(&self) -> Result<(), Refusal> {
        let Some(neighbourhood) = self.device().neighbourhood() else {
            return Ok(());
        };
        // Also where nothing is told at the moment: who failed did not wait.
        {
            let told = &mut self.inner.lock().told;
            if !std::mem::take(&mut told.may_be_used) {
                return Ok(());
            }
            if told.told.take().is_some() {
                neighbourhood.retract_queue_pair(self.number());
            }
        }
        let result = neighbourhood.wait_for_visitors();
        if result.is_err() {
            self.stay();
        }
        result
    }

    /// Tells other processes of the queue pair again, after it was to be reset or destroyed and was not.
    pub(crate) fn stay(&self) {
        let mut inner = self.inner.lock();
        inner.told.may_be_used = true;
        self.tell(&mut inner);
    }

    fn to_tell(&self, inner: &Inner) -> Option<same_host::QueuePair> {
        let attributes = inner.transport.attributes();
        let takes = matches!(
            inner.transport.state(),
            State::ReadyToReceive | State::ReadyToSend | State::SendQueueDrained
        );
        if !takes || !self.is_connection() {
            return None;
        }
        let path = attributes.path?;
        let mut access = attributes.access;
        if attributes.max_accepted == 0 {
            access -= AccessFlags::REMOTE_READ | AccessFlags::REMOTE_ATOMIC;
        }
        Some(same_host::QueuePair {
            number: self.number(),
            peer: attributes.destination,
            own_gid: self.device().gid(path.source)?,
            peer_gid: path.destination,
            is_unreliable: self.service() == Service::UnreliableConnection,
            access,
            domain: self.domain()?.number(),
            first: inner.told.first,
            generation: inner.told.generation,
        })
    }
}

impl Told {
    /// Notes that the queue pair becomes ready, and expects this sequence number first.
    pub(super) fn connect(&mut self, first: u32) {
        self.generation = self.generation.wrapping_add(1);
        self.first = first;
    }
}

impl proto::Partner<Surroundings<'_>> for Partner {
    fn write(
        &mut self,
        request: &SendRequest,
        remote: Remote,
        host: &Surroundings<'_>,
    ) -> Option<()> {
        let generation = self.connection()?;
        let request = OneSided::write(request, remote);
        self.execute(&request, generation, host).ok()
    }

    fn fetch(
        &mut self,
        from: &[Segment],
        to: &[Segment],
        offset: u32,
        host: &Surroundings<'_>,
    ) -> Result<(), Misplaced> {
        let generation = self.connection().ok_or(Misplaced::There)?;
        let Self {
            link,
            target,
            known,
            ..
        } = self;
        let mut visit = (link.visit(target, generation, known)).ok_or(Misplaced::There)?;
        let mut offset = offset;
        for segment in from {
            let fetched = host.with_segments(to, offset, segment.length, true, &mut |pieces| {
                visit.fetch(segment, pieces)
            });
            // Packets find out why, if it is an error at all: memory on demand may not be there yet.
            fetched.flatten().ok_or(Misplaced::There)?;
            offset += segment.length;
        }
        visit.was_valid().then_some(()).ok_or(Misplaced::There)
    }
}

impl Partner {
    /// Returns the generation of the other side's connection to this one.
    fn connection(&self) -> Option<u32> {
        let known = self.generation;
        known.or_else(|| Some(self.link.connection(&self.target)?.generation))
    }

    /// Carries out all of a request.
    fn execute(
        &mut self,
        request: &OneSided<'_>,
        generation: u32,
        host: &Surroundings<'_>,
    ) -> Result<(), Undone> {
        let Self {
            link,
            target,
            known,
            ..
        } = self;
        let domain = host.attached.domain.as_ref().ok_or(Undone::Left)?.id();
        let length = request.data.length().ok_or(Undone::Left)?;
        let mut done = 0;
        loop {
            let end = length.min(done + STRIDE);
            let executor = Executor {
                domain,
                regions: host.device.memory().regions(host.number),
            };
            let mut visit = link.visit(target, generation, known).ok_or(Undone::Left)?;
            executor.execute(request, done..end, &mut visit)?;
            if end == length {
                return Ok(());
            }
            done = end;
        }
    }
}

/// The other side, of which nobody is there.
struct Away {
    partner: Partner,
    /// The number that this side began with.
    first: crate::proto::Sequence,
    messages: u32,
}

impl Peer<Surroundings<'_>> for Away {
    fn take(&mut self, part: &Part<'_>, sender: &mut Surroundings<'_>) -> Answer {
        let Some(request) = OneSided::of(part.request).filter(|_| part.starts && part.ends) else {
            return Answer::Packets;
        };
        let Some(generation) = self.generation(part) else {
            return Answer::Packets;
        };
        match self.partner.execute(&request, generation, sender) {
            Ok(()) => {
                self.messages += 1;
                Answer::Unseen
            }
            Err(Undone::Lost) => Answer::Failed(CompletionStatus::LocalProtection),
            Err(Undone::Left) => Answer::Packets,
        }
    }

    fn most(&self) -> u32 {
        u32::MAX
    }
}

impl Away {
    /// Returns the connection of the other side, if its peer is this side.
    fn generation(&mut self, part: &Part<'_>) -> Option<u32> {
        if let known @ Some(_) = self.partner.generation {
            return known;
        }
        let connection = self.partner.link.connection(&self.partner.target)?;
        // At the beginning packets would find out that the two do not count alike.
        let begins = part.sequence == self.first;
        if begins && connection.first != part.sequence.value() {
            return None;
        }
        self.partner.generation = Some(connection.generation);
        self.partner.generation
    }
}
