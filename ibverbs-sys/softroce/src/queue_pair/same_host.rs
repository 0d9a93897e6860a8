//! Messages to a queue pair of another process of the host. The posting thread executes one-sided
//! requests in shared memory, and sends messages as ring messages (short messages without packet
//! headers) in the ring that both processes share.
//!
//! The other process publishes its queue pairs and its memory to all processes that it shares
//! memory with. If the published access rights do not permit a request, the request is sent as
//! packets, which find the reason. One-sided requests consume sequence numbers without the peer's
//! knowledge. A packet announces these sequence numbers to the peer before the next message.

use std::ops::Range;
use std::sync::Arc;

use smallvec::SmallVec;

use super::QueuePair;
use super::device::Outgoing;
use super::host::{Environment, HostState, UsedObjects};
use super::object::Inner;
use crate::context::DomainId;
use crate::counters::{Flow, Tally};
use crate::memory::{Piece, Regions};
use crate::net;
use crate::proto::{
    self, Arrival, CompletionStatus, CopyError, Counter, Data, Host, PartOutcome, Remote, Segment,
    SendProgress, SendRequest, Sequence, Service, Sink, State, Time, TransmitUrgency,
    UnqueuedMessage,
};
use crate::same_host::{Access, CachedRecords, Connection, CopySession, Link, Target};
use crate::transfer::ring_message::{
    self, MessagePart, PayloadForm, PeerMemory, RingMessage, SEGMENTS, SlotContent,
};
use crate::transfer::{
    Atomic, ChunkedRange, Kind, MAX_CHUNKS_PART, MAX_COPY, MAX_MAPPED_PART, MAX_SLOT_BYTES,
    MemoryAccess, OneSided, OneSidedError, Peer, Polled, RequestProperties, RingSendError, Sent,
    Transfer, TransferHost, Volume, depends_on_memory, may_offer,
};

/// The connected queue pair in another process of the host, and the link (shared memory) to that
/// process.
pub(super) struct LinkedPeer {
    pub(super) link: Arc<Link>,
    pub(super) target: Target,
    pub(super) known: CachedRecords,
    /// Number from which the peer process determines the GIDs of this connection's packets.
    tag: u16,
    /// Generation number of the peer's connection, which differs for each later connection of the
    /// peer. `None` until [`check_agreement`](Self::check_agreement) has found that the peer is
    /// connected to this queue pair.
    pub(super) generation: Option<u32>,
    /// State of the peer's connection when the peer's published record was last read.
    found: Option<Connection>,
    /// Version of this queue pair for which the cached peer is valid. Each modification of the
    /// queue pair changes the version, so the peer is then searched again.
    own: u64,
}

/// Locked state of a queue pair that is needed to send a request directly to a peer process of the
/// host. Such a request does not wait in the send queue.
pub(super) struct DirectPost<'a> {
    pub(super) transport: &'a mut proto::QueuePair,
    pub(super) objects: &'a UsedObjects,
    pub(super) host_state: &'a mut HostState,
    pub(super) linked_peer: &'a mut LinkedPeer,
    pub(super) tally: &'a mut Tally,
}

/// Maximum number of messages that are executed before the queue pair is unlocked for other
/// threads. The limit keeps the wait of these threads short.
const MAX_MESSAGES: u64 = 64;

impl QueuePair {
    /// Executes queued RDMA reads, writes and atomics directly in the peer's memory, if the peer is
    /// in another process of this host. `mine` is the locked state of the queue pair. The result
    /// states the caller's next step: call this function again, send packets or ring messages
    /// (short messages in shared memory), or stop.
    pub(super) fn execute_queued(&self, mine: &mut Inner) -> SendProgress {
        if !self.is_connection() || mine.transport.awaits_receipt() {
            return SendProgress::PacketsOnly;
        }
        let Some(mut linked_peer) = self.take_linked_peer(mine) else {
            return SendProgress::PacketsOnly;
        };
        let step = self.execute_by(mine, &mut linked_peer);
        mine.linked_peer = Some(linked_peer);
        step
    }

    fn execute_by(&self, mine: &mut Inner, linked_peer: &mut LinkedPeer) -> SendProgress {
        let Some(objects) = &mine.objects else {
            return SendProgress::PacketsOnly;
        };
        let first = mine.transport.attributes().send_sequence;
        mine.host_state.peer = Peer::SameHost;
        let mut host = self.environment(objects, &mut mine.host_state);
        let transport = &mut mine.transport;
        let now = || self.device().now();
        let mut volume = Volume::default();
        let step = loop {
            if transport.next_step(now) != SendProgress::Transferred {
                break transport.next_step(now);
            }
            let upcoming = match transport.upcoming(now, &mut host) {
                Ok(upcoming) => upcoming,
                Err(step) => break step,
            };
            let request = (transport.next_request())
                .filter(|request| host.transfer(request, &upcoming) == Transfer::OneSided)
                .and_then(OneSided::of);
            let generation = linked_peer.check_agreement(first, upcoming.first);
            let (Some(request), Some(generation)) = (request, generation) else {
                break SendProgress::PacketsOnly;
            };
            let outcome = match linked_peer.execute(&request, generation, &host) {
                Ok(()) => PartOutcome::ExecutedOneSided,
                Err(OneSidedError::ResultLost) => {
                    PartOutcome::Failed(CompletionStatus::LocalProtection)
                }
                Err(OneSidedError::NotExecuted) => {
                    host.host_state.is_out_of_reach = true;
                    break SendProgress::PacketsOnly;
                }
            };
            if outcome == PartOutcome::ExecutedOneSided {
                host.host_state.is_out_of_reach = false;
                volume.add_one_sided(request.data.length().unwrap_or_default());
            }
            let packets = upcoming.packets;
            let step = transport.conclude_part(&upcoming, packets, outcome, now, &mut host);
            if step != SendProgress::Transferred
                || host.host_state.overrun
                || volume.messages >= MAX_MESSAGES
            {
                break SendProgress::Transferred;
            }
        };
        self.fail_if_overrun(transport, &mut host);
        if volume.messages > 0 {
            mine.tally.add(Flow::OneSided, &volume);
        }
        step
    }

    /// Sends a pending acknowledgement as a ring message (short message in shared memory), and
    /// returns `true`. Sends nothing and returns `false` in three cases: no acknowledgement is
    /// pending, the queue pair also has something else to transmit, or the acknowledgement cannot
    /// be sent as a ring message. `mine` is the locked state of the queue pair.
    pub(super) fn transmit_acknowledgement(
        &self,
        mine: &mut Inner,
        outgoing: &impl Outgoing,
    ) -> bool {
        let Some(near) = self.direct_post(mine) else {
            return false;
        };
        let Some(ring_message) = ring_message::lone_acknowledgement(near.transport) else {
            return false;
        };
        let LinkedPeer { link, tag, .. } = near.linked_peer;
        if link.has_backlog() || link.send_ring_message(*tag, &ring_message).is_err() {
            return false;
        }
        near.transport.acknowledgement_sent();
        near.tally.count(Counter::SentPackets, 1);
        near.tally.count(Counter::SharedSentPackets, 1);
        let bytes = ring_message.bytes() as u64;
        near.tally.count(Counter::SentBytes, bytes);
        wake(link, outgoing);
        true
    }

    /// Sends queued messages as ring messages (short messages in shared memory), up to the first
    /// message that cannot be sent in this way. Returns `true` if no packets must be sent: nothing
    /// is left to send, or the next message waits to be sent as a ring message. If the result is
    /// `false`, the caller must try to send packets. `mine` is the locked state of the queue pair.
    pub(super) fn transmit_ring_messages(
        &self,
        mine: &mut Inner,
        outgoing: &mut impl Outgoing,
    ) -> bool {
        if !self.is_connection() {
            return false;
        }
        let Some(mut linked_peer) = self.take_linked_peer(mine) else {
            return false;
        };
        let link = Arc::clone(&linked_peer.link);
        let tag = linked_peer.tag;
        let (mut packets, mut bytes, mut sent) = (0, 0, Sent::default());
        let mut is_waiting = false;
        self.with(mine, |transport, host| {
            host.answering = true;
            let mut send =
                |ring_message: &RingMessage<'_>, portion: Option<ChunkedRange<'_>>, host: &_| {
                    send_ring_message(&link, tag, ring_message, portion, host)?;
                    packets += 1;
                    bytes += ring_message.bytes() as u64;
                    if let Some(message) = &ring_message.message {
                        sent.add(message);
                    }
                    Ok(())
                };
            while link.may_send(self.number()) {
                let now = || self.device().coarse_now();
                let polled = ring_message::poll(transport, now, host, &mut linked_peer, &mut send);
                if matches!(polled, Polled::Nothing | Polled::Waiting) {
                    is_waiting = polled == Polled::Waiting;
                    break;
                }
            }
        });
        if packets > 0 {
            mine.tally.count(Counter::SentPackets, packets);
            mine.tally.count(Counter::SharedSentPackets, packets);
            mine.tally.count(Counter::SentBytes, bytes);
            for (flow, volume) in [
                (Flow::SlotSent, &sent.slot),
                (Flow::RingSent, &sent.ring),
                (Flow::DescriptorSent, &sent.descriptor),
                (Flow::WrittenSent, &sent.written),
            ] {
                if *volume != Volume::default() {
                    mine.tally.add(flow, volume);
                }
            }
            wake(&link, outgoing);
        }
        mine.linked_peer = Some(linked_peer);
        mine.transport.is_silent() || is_waiting && mine.transport.has_no_response()
    }

    /// Sends a message with the payload `data` through memory shared with the peer process, without
    /// the send queue. Returns whether the message was sent. `mine` is the locked state of the
    /// queue pair.
    ///
    /// If the message was sent, the caller must wake the peer by
    /// [`flush_ring_messages`](Self::flush_ring_messages). Otherwise the caller must add the
    /// message to the send queue. The message is not sent, for example, if an earlier request must
    /// be sent first.
    #[inline]
    pub(super) fn post_ring_message(
        &self,
        mine: &mut Inner,
        message: &UnqueuedMessage,
        data: Data<'_>,
    ) -> bool {
        let Some(near) = self.direct_post(mine) else {
            return false;
        };
        let Some(length) = data.length() else {
            return false;
        };
        let packets = near.transport.packets(length);
        if !near.transport.may_post_sent(packets) || near.linked_peer.link.has_backlog() {
            return false;
        }
        let kind = match message.remote {
            None => Kind::Send,
            Some(_) => Kind::WriteWithImmediate,
        };
        let is_mappable = depends_on_memory(kind, length)
            && matches!(data, Data::Gathered(list) if self.environment(near.objects, near.host_state).can_map(list));
        let request = RequestProperties {
            is_gathered: matches!(data, Data::Gathered(_)),
            is_behind_others: near.transport.outstanding() > 0,
            is_declined: kind == Kind::Send && near.transport.is_declined(is_mappable),
            ..RequestProperties::posted(kind, length, is_mappable)
        };
        match near.host_state.transfer(&request) {
            Transfer::Slot => {
                if request.is_behind_others {
                    // The program does not wait for the peer between its messages.
                    near.linked_peer.link.prefetch_next_slot();
                }
                self.post_in_slot(near, message, data)
            }
            Transfer::Chunks if length <= MAX_CHUNKS_PART => {
                self.send_posted(near, message, data, SlotContent::Chunks)
            }
            Transfer::Descriptor => self.post_descriptor(near, message, data, is_mappable),
            // A write cannot be undone, so all requests before it must be complete.
            Transfer::Written if !request.is_behind_others => {
                self.post_written(near, message, data)
            }
            _ => false,
        }
    }

    /// Sends a message whose payload `data` is short enough for a slot (cache line) of the ring
    /// that both processes share. The message is sent while it is posted, without waiting in the
    /// send queue. `near` is the locked state of this queue pair. Returns `false` if the message
    /// cannot be sent in this way.
    #[inline(always)]
    fn post_in_slot(
        &self,
        near: DirectPost<'_>,
        message: &UnqueuedMessage,
        data: Data<'_>,
    ) -> bool {
        let mut gathered = [0; MAX_SLOT_BYTES];
        let bytes = match data {
            Data::Inline(bytes) => bytes,
            Data::Gathered(list) => {
                let mut length = 0;
                for segment in list.iter().filter(|segment| segment.length > 0) {
                    let bytes = &mut gathered[length..][..segment.length as usize];
                    // If this fails, the message is queued; the queued request fails again and
                    // reports the error.
                    if self.gather_one(near.objects, segment, bytes).is_none() {
                        return false;
                    }
                    length += bytes.len();
                }
                &gathered[..length]
            }
        };
        self.send_posted(near, message, data, SlotContent::Bytes(bytes))
    }

    /// Copies the bytes of the local segment `segment` to `out`, the payload of a message that fits
    /// into one slot (cache line) of the shared ring. `objects` are the objects that the queue pair
    /// uses. Returns `None` if the queue pair may not access the memory, or if the memory is an
    /// on-demand region.
    #[inline(always)]
    fn gather_one(&self, objects: &UsedObjects, segment: &Segment, out: &mut [u8]) -> Option<()> {
        let domain = objects.domain.as_ref()?.id();
        let regions = self.device().memory().regions(self.number());
        let piece = regions.piece(domain, segment, false)?;
        piece.copy_to(&Piece::of_mut(out))
    }

    /// Sends the addresses of the payload `data` to the peer process, which then copies the payload
    /// itself. `is_mappable` must be set if the peer process can map the memory of the payload.
    /// Returns `false` if the message cannot be sent in this way. `near` is the locked state of
    /// this queue pair.
    #[inline(never)]
    fn post_descriptor(
        &self,
        near: DirectPost<'_>,
        message: &UnqueuedMessage,
        data: Data<'_>,
        is_mappable: bool,
    ) -> bool {
        let transport = &near.transport;
        let length = data.length().unwrap_or(u32::MAX);
        let fits = matches!(data, Data::Gathered(list) if list.len() <= SEGMENTS);
        if !fits || length > MAX_MAPPED_PART {
            return false;
        }
        may_offer(
            transport.unacknowledged(),
            MAX_MAPPED_PART / transport.mtu(),
        ) && self.send_posted(near, message, data, SlotContent::Segments { is_mappable })
    }

    /// Executes an RDMA write with immediate data when it is posted, without the send queue. Writes
    /// the payload `data` to the peer's memory, and sends the payload's length as a [`RingMessage`]
    /// (message in a ring that both processes share). Returns `false` if the write cannot be
    /// executed in this way. `near` is the locked state of this queue pair.
    #[inline(never)]
    fn post_written(
        &self,
        near: DirectPost<'_>,
        message: &UnqueuedMessage,
        data: Data<'_>,
    ) -> bool {
        let host = self.environment(near.objects, near.host_state);
        let written = OneSided::posted(message, data)
            .zip(near.linked_peer.connection())
            .and_then(|(write, known)| near.linked_peer.execute(&write, known, &host).ok());
        // If this fails, the message is queued; the queued request is executed again, or sent as
        // packets, which find the reason.
        written.is_some() && self.send_posted(near, message, data, SlotContent::Written)
    }

    /// Sends a message through the ring buffer shared with the peer process. `content` determines
    /// whether the ring contains the payload `data`, its addresses, or only its length. `near` is
    /// the locked state of this queue pair. Returns `false` and sends nothing if the message cannot
    /// be sent in this way.
    #[inline(always)]
    fn send_posted(
        &self,
        near: DirectPost<'_>,
        message: &UnqueuedMessage,
        data: Data<'_>,
        content: SlotContent<'_>,
    ) -> bool {
        let mut room = [0; MAX_SLOT_BYTES];
        let ring_message = ring_message::posted(near.transport, message, data, content, &mut room);
        let portion = matches!(content, SlotContent::Chunks).then(|| ChunkedRange {
            data,
            offset: 0,
            length: data.length().unwrap_or_default(),
        });
        let host = self.environment(near.objects, near.host_state);
        let (link, tag) = (&near.linked_peer.link, near.linked_peer.tag);
        // If this fails, the message is queued; the queued request fails again and reports the
        // error.
        if send_ring_message(link, tag, &ring_message, portion, &host).is_err() {
            return false;
        }
        let bytes = ring_message.bytes();
        // The ring message is already visible, so the peer does not wait for this update.
        ring_message::sent(near.transport, message, data, content);
        near.tally.count(Counter::SentPackets, 1);
        near.tally.count(Counter::SharedSentPackets, 1);
        near.tally.count(Counter::SentBytes, bytes as u64);
        let length = data.length().unwrap_or_default();
        let mut volume = Volume::default();
        let flow = match content {
            SlotContent::Bytes(_) => Flow::SlotSent,
            SlotContent::Chunks => Flow::RingSent,
            SlotContent::Segments { .. } => Flow::DescriptorSent,
            SlotContent::Written => Flow::WrittenSent,
        };
        match content {
            SlotContent::Bytes(_) | SlotContent::Chunks | SlotContent::Segments { .. } => {
                volume.add_part(length, true, 0);
            }
            SlotContent::Written => volume.add_one_sided(length),
        }
        near.tally.add(flow, &volume);
        true
    }

    /// Wakes the peer process, if it sleeps, to receive the messages that were sent through the
    /// ring in shared memory. `mine` is the locked state of the queue pair.
    #[inline]
    pub(super) fn flush_ring_messages(&self, mine: &Inner) {
        if let Some(linked_peer) = &mine.linked_peer {
            linked_peer.link.flush();
        }
    }

    /// Receives a ring message (short message in memory shared with the sender) and its payload
    /// `chunks`. `arrival` contains the sender and the destination. Returns the kind of
    /// transmission that the caller must start: none, an acknowledgement that may be delayed, or an
    /// immediate response. `now` is called only if the present time is needed.
    pub(crate) fn receive_ring_message(
        &self,
        now: impl FnOnce() -> Time,
        arrival: &Arrival,
        ring_message: &RingMessage<'_>,
        chunks: &[Piece<'_>],
    ) -> TransmitUrgency {
        let mut inner = self.inner.lock();
        let message = ring_message.message.as_ref();
        let is_fetched =
            message.is_some_and(|message| matches!(message.form, PayloadForm::Fetch(_)));
        let holds_up_sender = message.is_some_and(MessagePart::holds_up_sender);
        if is_fetched && self.direct_post(&mut inner).is_none() {
            inner.linked_peer = self.take_linked_peer(&mut inner);
        }
        let near = if is_fetched {
            self.direct_post(&mut inner)
        } else {
            None
        };
        let taken = match near {
            Some(DirectPost {
                transport,
                objects,
                host_state,
                linked_peer,
                ..
            }) => {
                let mut host = self.environment(objects, host_state);
                let taken = take_ring_message(
                    transport,
                    now,
                    arrival,
                    ring_message,
                    &mut host,
                    linked_peer,
                );
                self.fail_if_overrun(transport, &mut host);
                if transport.state() == State::Error {
                    self.publish(&mut inner);
                }
                Some(taken)
            }
            None => self.with(&mut inner, |transport, host| {
                take_ring_message(
                    transport,
                    now,
                    arrival,
                    ring_message,
                    host,
                    &mut Chunks(chunks),
                )
            }),
        };
        if let (Some(message), Some(taken)) = (message, taken)
            && taken != Volume::default()
        {
            let flow = match message.form {
                PayloadForm::Whole => Flow::SlotReceived,
                PayloadForm::Chunks(_) | PayloadForm::Write => Flow::RingReceived,
                PayloadForm::Fetch(_) => Flow::DescriptorReceived,
                PayloadForm::Written => Flow::WrittenReceived,
            };
            inner.tally.add(flow, &taken);
        }
        match inner.transport.transmit_urgency() {
            TransmitUrgency::Acknowledgement if holds_up_sender => TransmitUrgency::Urgent,
            transmit_urgency => transmit_urgency,
        }
    }

    /// Makes `outgoing`, which sends the queue pair's packets, send through shared memory if the
    /// peer is in another process of this host. Datagrams can have different destinations, so
    /// `outgoing` chooses the way for each datagram. `mine` is the locked state of the queue pair.
    pub(super) fn select_packet_path(&self, mine: &mut Inner, outgoing: &mut impl Outgoing) {
        if self.service() == Service::UnreliableDatagram {
            if self.device().is_shared() {
                outgoing.share_datagrams();
            }
            return;
        }
        if let Some(linked_peer) = self.take_linked_peer(mine) {
            outgoing.use_link(&linked_peer.link, linked_peer.tag, self.number());
            mine.linked_peer = Some(linked_peer);
        }
    }

    /// Returns the parts of the queue pair that are needed to post a request directly to a peer in
    /// another process. `mine` is the locked state of the queue pair. Returns `None` if the peer is
    /// not known yet, or cannot currently be reached through shared memory.
    #[inline]
    pub(super) fn direct_post<'a>(&self, mine: &'a mut Inner) -> Option<DirectPost<'a>> {
        let Inner {
            transport,
            objects: Some(objects),
            host_state,
            version,
            linked_peer: Some(linked_peer),
            tally,
            ..
        } = mine
        else {
            return None;
        };
        if !linked_peer.is_valid(*version) || !self.device().is_shared() {
            return None;
        }
        debug_assert_eq!(
            host_state.peer,
            Peer::SameHost,
            "the cached peer is the next one"
        );
        Some(DirectPost {
            transport,
            objects,
            host_state,
            linked_peer,
            tally,
        })
    }

    /// Returns whether the queue pair is connected to a queue pair of a process that shares memory
    /// with this process.
    pub(crate) fn is_shared(&self) -> bool {
        let inner = self.inner.lock();
        let attributes = inner.transport.attributes();
        let found = attributes
            .path
            .and_then(|path| self.device().link_to_peer(&path, attributes.destination));
        self.service() != Service::UnreliableDatagram && found.is_some()
    }

    /// Takes the connected queue pair in another process (the peer) out of the cache
    /// `mine.linked_peer`. Searches for the peer if the cache is empty or out of date. The caller
    /// must put the result back into the cache after use. Returns `None` if the peer is not in a
    /// process that shares memory with this process.
    pub(super) fn take_linked_peer(&self, mine: &mut Inner) -> Option<LinkedPeer> {
        if mine.linked_peer.is_none() && self.device().host_peers().is_none() {
            return None;
        }
        mine.host_state.peer = Peer::Elsewhere;
        let version = mine.version;
        if let Some(known) = mine.linked_peer.take() {
            if known.is_valid(version) && self.device().is_shared() {
                mine.host_state.peer = Peer::SameHost;
                return Some(known);
            }
            if known.own == version && known.link.is_dead() && known.link.is_peer_gone() {
                mine.transport.set_peer_gone();
            }
        }
        let attributes = mine.transport.attributes();
        let (path, number) = (attributes.path?, attributes.destination);
        let link = self.device().link_to_peer(&path, number)?;
        let linked_peer = LinkedPeer {
            tag: net::tag(&path, &link)?,
            link,
            target: Target {
                number,
                gid: path.destination,
                own_number: self.number(),
                own_gid: self.device().gid(path.source)?,
                is_unreliable: self.service() == Service::UnreliableConnection,
            },
            known: CachedRecords::default(),
            generation: None,
            found: None,
            own: version,
        };
        mine.host_state.peer = Peer::SameHost;
        Some(linked_peer)
    }
}

/// Passes a message that was received through shared memory to the transport (protocol code) of its
/// queue pair. Drops the message if its sender, according to `arrival`, is not the connected peer.
/// `peer` gives access to the sender's memory. Returns the amount of received data for the
/// counters.
#[inline]
fn take_ring_message<'h, P: PeerMemory<Environment<'h>>>(
    transport: &mut proto::QueuePair,
    now: impl FnOnce() -> Time,
    arrival: &Arrival,
    ring_message: &RingMessage<'_>,
    host: &mut Environment<'h>,
    peer: &mut P,
) -> Volume {
    if arrival.is_from_peer(transport.attributes()) {
        ring_message::receive(transport, now, ring_message, host, peer)
    } else {
        host.count(Counter::Unaddressed, 1);
        Volume::default()
    }
}

/// Wakes the peer process with which `link` shares memory, if the peer sleeps. If `outgoing` defers
/// wakeups, the peer is woken later.
fn wake(link: &Link, outgoing: &impl Outgoing) {
    if outgoing.defers_wakeups() {
        link.flush_later();
    } else {
        link.flush();
    }
}

/// Sends `ring_message` through memory shared with the peer process. The payload `portion`, if any,
/// is copied to this memory. `tag` contains the indices of the connection's GIDs.
#[inline(always)]
fn send_ring_message(
    link: &Link,
    tag: u16,
    ring_message: &RingMessage<'_>,
    portion: Option<ChunkedRange<'_>>,
    host: &Environment<'_>,
) -> Result<(), RingSendError> {
    match portion {
        None => link.send_ring_message(tag, ring_message),
        Some(portion) => link.send_chunks(tag, ring_message, portion.length, |pieces| {
            host.copy_out(portion, pieces)
        }),
    }
}

/// Payload of a received [`RingMessage`]: ranges of the shared ring buffer.
struct Chunks<'a>(&'a [Piece<'a>]);

impl PeerMemory<Environment<'_>> for Chunks<'_> {
    fn take(&mut self, length: u32, to: Sink<'_>, host: &Environment<'_>) -> Result<(), CopyError> {
        host.copy_in(to, length, self.0).ok_or(CopyError::Local)
    }
}

impl LinkedPeer {
    /// Returns whether this cached peer is still valid. The result is `true` if the shared memory
    /// is usable, and the queue pair was not modified since the peer was found. `version` is the
    /// present version of the queue pair, which each modification changes.
    #[inline]
    fn is_valid(&self, version: u64) -> bool {
        self.own == version && !self.link.is_dead()
    }

    /// Returns the generation number of the peer's connection. Each later connection of the peer
    /// has another generation number. Returns `None` if the peer is not connected to this queue
    /// pair.
    #[inline]
    fn connection(&mut self) -> Option<u32> {
        if let known @ Some(_) = self.generation {
            return known;
        }
        let found = (self.found).filter(|found| self.link.has_connection(&self.target, found));
        self.found = found.or_else(|| self.link.connection(&self.target));
        Some(self.found?.generation)
    }

    /// Returns the generation number of the peer's connection, which differs for each later
    /// connection of the peer, and caches it. Returns `None` if the peer is not connected to this
    /// queue pair. Before this side sends its first packet, also returns `None` if the peer does
    /// not expect the sequence number `first`. `first` and `next` are the sequence numbers of this
    /// side's first and next packet.
    fn check_agreement(&mut self, first: Sequence, next: Sequence) -> Option<u32> {
        if let known @ Some(_) = self.generation {
            return known;
        }
        let connection = self.link.connection(&self.target)?;
        // Before the first message, the peer must expect the sequence number that this side begins
        // with.
        if next == first && connection.first != next.value() {
            return None;
        }
        self.generation = Some(connection.generation);
        self.generation
    }

    /// Executes `request` (an RDMA read, write or atomic operation) completely in the peer's
    /// memory. Fails if the peer does not permit the access, or if the peer's connection no longer
    /// has the number `generation`. Some bytes of a long request can have been copied before a
    /// failure, because the request takes several [`CopySession`]s (periods of access to the peer's
    /// memory). `host` gives access to the memory of this process.
    fn execute(
        &mut self,
        request: &OneSided<'_>,
        generation: u32,
        host: &Environment<'_>,
    ) -> Result<(), OneSidedError> {
        let Self {
            link,
            target,
            known,
            ..
        } = self;
        let domain = host
            .objects
            .domain
            .as_ref()
            .ok_or(OneSidedError::NotExecuted)?
            .id();
        let length = request.data.length().ok_or(OneSidedError::NotExecuted)?;
        let mut done = 0;
        loop {
            let end = length.min(done + MAX_COPY);
            let mut across = BothMemories {
                domain,
                regions: host.device.memory().regions(host.number),
                session: link
                    .begin_session(target, generation, known)
                    .ok_or(OneSidedError::NotExecuted)?,
            };
            request.execute(done..end, &mut across)?;
            if end == length {
                return Ok(());
            }
            done = end;
        }
    }
}

impl PeerMemory<Environment<'_>> for LinkedPeer {
    fn write(&mut self, request: &SendRequest, host: &Environment<'_>) -> Option<()> {
        let generation = self.connection()?;
        let request = OneSided::of(request)?;
        self.execute(&request, generation, host).ok()
    }

    fn fetch(
        &mut self,
        from: &[Segment],
        to: &[Segment],
        offset: u32,
        host: &Environment<'_>,
    ) -> Result<(), CopyError> {
        let generation = self.connection().ok_or(CopyError::Peer)?;
        let Self {
            link,
            target,
            known,
            ..
        } = self;
        let mut session = (link.begin_session(target, generation, known)).ok_or(CopyError::Peer)?;
        let mut offset = offset;
        for segment in from {
            let fetched = host.with_segments(to, offset, segment.length, true, |pieces| {
                session.fetch(segment, pieces)
            });
            // The message is then sent as packets, which find the reason. On-demand memory may only
            // be unmapped at present.
            fetched.flatten().ok_or(CopyError::Peer)?;
            offset += segment.length;
        }
        session.was_valid().then_some(()).ok_or(CopyError::Peer)
    }
}

/// Access to the memory on both sides of a one-sided request: memory of this process and memory of
/// the peer process.
pub(super) struct BothMemories<'a> {
    pub(super) domain: DomainId,
    pub(super) regions: Regions<'a>,
    pub(super) session: CopySession<'a>,
}

impl BothMemories<'_> {
    /// Calls `act` with the open [`CopySession`] for the peer's memory, and with the local memory
    /// ranges that contain the bytes `range` of `data`, the data of the request. `write` must be
    /// set if `act` writes to these ranges. Returns `None` if `act` returns `None`, or if the queue
    /// pair is not permitted to access the memory.
    #[inline]
    fn with_pieces(
        &mut self,
        data: Data<'_>,
        range: Range<u32>,
        write: bool,
        act: impl FnOnce(&mut CopySession<'_>, &[Piece<'_>]) -> Option<()>,
    ) -> Option<()> {
        let session = &mut self.session;
        match data {
            Data::Gathered([only]) if range == (0..only.length) && only.length > 0 => {
                act(session, &[self.regions.piece(self.domain, only, write)?])
            }
            Data::Gathered(list) => {
                let parts = Segment::parts(list, range.start, range.len() as u32);
                let pieces = parts.map(|part| self.regions.piece(self.domain, &part, write));
                let pieces = pieces.collect::<Option<SmallVec<[Piece<'_>; 4]>>>()?;
                act(session, &pieces)
            }
            Data::Inline(_) if write => None,
            Data::Inline(bytes) => {
                let range = range.start as usize..range.end as usize;
                act(session, &[Piece::of(bytes.get(range)?)])
            }
        }
    }
}

impl MemoryAccess for BothMemories<'_> {
    #[inline]
    fn put(&mut self, from: Data<'_>, range: Range<u32>, to: Remote) -> Option<()> {
        self.with_pieces(from, range, false, |session, pieces| {
            session.access(to, Access::Put(pieces))
        })
    }

    #[inline]
    fn get(&mut self, to: Data<'_>, range: Range<u32>, from: Remote) -> Option<()> {
        self.with_pieces(to, range, true, |session, pieces| {
            session.access(from, Access::Get(pieces))
        })
    }

    #[inline]
    fn atomic(
        &mut self,
        at: Remote,
        atomic: Atomic,
        result: &[Segment],
    ) -> Result<(), OneSidedError> {
        let [result @ Segment { length: 8, .. }] = result else {
            return Err(OneSidedError::NotExecuted);
        };
        // The result's memory is checked before the operation. Afterwards, the result can only be
        // lost if the memory is unmapped.
        let piece = self.regions.piece(self.domain, result, true);
        let piece = piece.ok_or(OneSidedError::NotExecuted)?;
        let before = self
            .session
            .atomic(at, atomic)
            .ok_or(OneSidedError::NotExecuted)?;
        piece.store(before).ok_or(OneSidedError::ResultLost)
    }
}
