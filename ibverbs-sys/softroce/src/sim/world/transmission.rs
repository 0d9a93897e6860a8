use std::time::Duration;

use super::frame::{accept, corrupt, emit};
use super::{Breach, EventKind, MAX_BURST, Node, QpId, World};
use crate::proto::{
    Arrival, Memory, Path, Payload, SendOperation, SendRequest, Service, Time, TransmitUrgency,
    UnqueuedMessage,
};
use crate::same_host::ring_message;
use crate::sim::network::Fate;
use crate::sim::random::splitmix;
use crate::sim::trace::{self, Line, Micros};
use crate::transfer::{self, MAX_SLOT_BYTES, RingMessage};
use crate::wire::Packet;

/// Simulated error of the coarse system clock: three ticks of 4 ms. The error is added to the time
/// that a queue pair gets when it handles a [`RingMessage`], because only the coarse clock is read
/// in this case.
const COARSE_CLOCK_ERROR: Duration = Duration::from_millis(12);

/// Number of bytes that the simulated network adds to the length of each [`RingMessage`]. The bytes
/// stand for packet headers, which such a message does not have.
const COUNTED_HEADER_BYTES: usize = 40;

impl World<'_> {
    pub(super) fn arrive(&mut self, node: usize, bytes: &[u8]) {
        let Some((headers, packet)) = accept(bytes) else {
            return;
        };
        let found = &self.nodes[node];
        let number = packet.header.bth.destination;
        let Some(&slot) = found.directory.get(&number) else {
            self.record_violation(format!(
                "a packet for queue pair {number:#x} came to node {node}"
            ));
            return;
        };
        let route = headers.route();
        let arrival = Arrival {
            local: 0,
            source: route.source,
            destination: route.destination,
            route: headers.global_route(),
            slot: None,
            // The simulated network loses and repeats all packets, even those that come by a
            // private path.
            private: true,
        };
        let place = QpId { node, slot };
        if self.lines.is_some() {
            let line = format!("{} node {node}   <- {}", Micros(self.now), Line(&packet));
            self.tell(&line);
        }
        self.nodes[node].slots[slot].watch.arrived(&packet);
        self.with(place, |queue_pair, view, now| {
            queue_pair.receive(now, &arrival, &packet, view);
        });
        self.answer_after(place, self.batch);
    }

    /// Delivers an encoded [`RingMessage`] (a short message without packet headers) to its queue
    /// pair at the node `node`.
    pub(super) fn deliver_ring_message(&mut self, node: usize, words: &[u64; 7]) {
        let mut room = [0; MAX_SLOT_BYTES];
        let Some(ring_message) = ring_message::decode(words, &mut room) else {
            self.record_violation("a ring message makes no sense".to_owned());
            return;
        };
        let Some(&slot) = self.nodes[node].directory.get(&ring_message.destination) else {
            let number = ring_message.destination;
            self.record_violation(format!(
                "a ring message for queue pair {number:#x} came to node {node}"
            ));
            return;
        };
        if self.lines.is_some() {
            let said = trace::ring_message(&ring_message);
            let line = format!("{} node {node}   <- {said}", Micros(self.now));
            self.tell(&line);
        }
        self.nodes[node].slots[slot]
            .watch
            .arrived_short(&ring_message);
        let place = QpId { node, slot };
        self.with(place, |queue_pair, view, now| {
            transfer::ring_message::receive(
                queue_pair,
                || now + COARSE_CLOCK_ERROR,
                &ring_message,
                view,
                &mut (),
            );
        });
        match self.queue_pair(place).transmit_urgency() {
            TransmitUrgency::Nothing => {}
            TransmitUrgency::Acknowledgement => {
                self.answer_after(place, self.ring_messages.unwrap_or_default());
            }
            TransmitUrgency::Urgent => self.answer_after(place, self.batch),
        }
    }

    fn answer_after(&mut self, place: QpId, delay: Duration) {
        let QpId { node, slot } = place;
        if delay.is_zero() {
            self.transmit(place);
        } else if !self.nodes[node].slots[slot].polled {
            self.nodes[node].slots[slot].polled = true;
            self.schedule(self.now + delay, EventKind::Poll { node, slot });
        }
    }

    pub(super) fn timer(&mut self, place: QpId) {
        let slot = &mut self.nodes[place.node].slots[place.slot];
        if slot.timer != Some(self.now) {
            // Another timer, which is due earlier, has replaced this one.
            return;
        }
        slot.timer = None;
        if slot
            .queue_pair
            .next_timeout()
            .is_some_and(|at| at <= self.now)
        {
            self.with(place, |queue_pair, view, now| {
                queue_pair.handle_timeout(now, view);
            });
        }
        self.transmit(place);
    }

    /// Transmits all packets and ring messages (short messages without packet headers) that a queue
    /// pair may send now, and schedules its timer.
    pub(super) fn transmit(&mut self, place: QpId) {
        if !self.transmit_ring_messages(place) {
            self.transmit_packets(place);
        }
        let slot = &mut self.nodes[place.node].slots[place.slot];
        let Some(timeout) = slot.queue_pair.next_timeout() else {
            return;
        };
        let at = timeout.max(self.now);
        if slot.timer.is_none_or(|timer| at < timer) {
            slot.timer = Some(at);
            let QpId { node, slot } = place;
            self.schedule(at, EventKind::Timer { node, slot });
        }
    }

    /// Sends the next messages of a queue pair as [`RingMessage`]s (short messages without packet
    /// headers), up to the first message that must be sent as packets. Returns `true` if the queue
    /// pair has nothing left to send.
    fn transmit_ring_messages(&mut self, place: QpId) -> bool {
        if self.ring_messages.is_none()
            || self.queue_pair(place).service() != Service::ReliableConnection
        {
            return false;
        }
        for sent in 0.. {
            if sent == MAX_BURST {
                self.record_violation(format!("{} never stops sending", self.name(place)));
                break;
            }
            let mut said = None;
            self.with(place, |queue_pair, view, now| {
                transfer::ring_message::poll(
                    queue_pair,
                    || now + COARSE_CLOCK_ERROR,
                    view,
                    &mut (),
                    |ring_message, _, _| {
                        said = Some(ring_message::encode(ring_message));
                        Ok(())
                    },
                );
            });
            let mut room = [0; MAX_SLOT_BYTES];
            let Some(ring_message) = said.and_then(|words| ring_message::decode(&words, &mut room))
            else {
                break;
            };
            self.send_ring_message(place, &ring_message);
        }
        self.queue_pair(place).is_silent()
    }

    fn transmit_packets(&mut self, place: QpId) {
        for sent in 0.. {
            if sent == MAX_BURST {
                self.record_violation(format!("{} never stops sending", self.name(place)));
                return;
            }
            if self.transmit_run(place) {
                continue;
            }
            let mut transport = self.buffers.pop().unwrap_or_default();
            transport.clear();
            let path = self.with(place, |queue_pair, view, now| {
                queue_pair.poll_transmit(now, view, &mut transport)
            });
            match path {
                Some(path) => self.send(place, &path, &transport),
                None if transport.is_empty() => {}
                None => self.record_violation(format!("{} left bytes", self.name(place))),
            }
            self.buffers.push(transport);
            if path.is_none() {
                break;
            }
        }
    }

    /// Sends several packets of a queue pair in one step, if the next packets are middle packets of
    /// one message (a run). The packets of a run have the same length. Returns `false` if no
    /// packets were sent.
    fn transmit_run(&mut self, place: QpId) -> bool {
        let Some(run) = self.with(place, |queue_pair, view, _| queue_pair.next_run(view)) else {
            return false;
        };
        let mut bytes = vec![0; run.length * run.count];
        let written = self.with(place, |queue_pair, view, now| {
            queue_pair.write_run(run.count, now, view, &mut bytes)
        });
        if written {
            for packet in bytes.chunks_exact(run.length) {
                self.send(place, &run.path, packet);
            }
        }
        written
    }

    /// Sends one packet of the queue pair `place` over the network path `path`. `transport`
    /// contains the bytes of the packet from the BTH to the padding.
    fn send(&mut self, place: QpId, path: &Path, transport: &[u8]) {
        let slot = &mut self.nodes[place.node].slots[place.slot];
        let packet = match Packet::parse(transport) {
            Ok(packet) => packet,
            Err(error) => {
                let name = self.name(place);
                self.record_violation(format!("{name} sent what is no packet: {error}"));
                return;
            }
        };
        if let Err(rule) = slot.watch.sent(&packet, slot.queue_pair.attributes()) {
            let name = self.name(place);
            self.record_violation(format!("{name} sent {}: {rule}", Line(&packet)));
            return;
        }
        let number = packet.header.bth.destination;
        let Some(receiver) = self.receiver(place, path) else {
            return;
        };
        let mut bytes = self.buffers.pop().unwrap_or_default();
        bytes.clear();
        emit(self.nodes[place.node].address, path, transport, &mut bytes);
        if let Some(at) = self.network.access(self.now, place.node, bytes.len()) {
            let (from, node, packet) = (place.node, receiver, bytes);
            let enter = EventKind::Enter {
                from,
                node,
                number,
                packet,
            };
            return self.schedule(at, enter);
        }
        let (fate, arrival) = self.network.send(self.now, place.node, number, bytes.len());
        let bth = &packet.header.bth;
        let said = u64::from(bth.destination) << 40
            ^ u64::from(bth.sequence) << 16
            ^ u64::from(bth.opcode.to_byte()) << 8
            ^ packet.payload.len() as u64;
        self.account(said, fate);
        if self.lines.is_some() {
            let line = format!(
                "{} node {} ->   {}{}",
                Micros(self.now),
                place.node,
                Line(&packet),
                trace::fate(fate)
            );
            self.tell(&line);
        }
        self.forward(receiver, bytes, fate, arrival);
    }

    /// Schedules the arrival of a packet at the node `node` at the time `arrival`. `fate` is the
    /// effect of the network: the packet is perhaps lost, or arrives twice or with changed bytes.
    pub(super) fn forward(&mut self, node: usize, mut packet: Vec<u8>, fate: Fate, arrival: Time) {
        match fate {
            Fate::Lose => {
                self.buffers.push(packet);
                return;
            }
            Fate::Duplicate(later) => {
                let packet = packet.clone();
                self.schedule(arrival + later, EventKind::Arrive { node, packet });
            }
            Fate::Corrupt(how) => corrupt(&mut packet, how),
            Fate::Deliver | Fate::Hold(_) => {}
        }
        self.schedule(arrival, EventKind::Arrive { node, packet });
    }

    /// Sends `request` of the queue pair at the location `place` immediately, as a [`RingMessage`]
    /// (short message without packet headers). Returns `false` if the request is not suitable, or
    /// cannot be sent now.
    pub(super) fn post_ring_message(&mut self, place: QpId, request: &SendRequest) -> bool {
        let SendOperation::Send {
            immediate,
            invalidate: None,
        } = request.operation
        else {
            return false;
        };
        let mut bytes = [0; MAX_SLOT_BYTES];
        let Some(bytes) = bytes.get_mut(..request.length as usize) else {
            return false;
        };
        let (mut said, mut room) = (None, [0; MAX_SLOT_BYTES]);
        self.with(place, |queue_pair, view, now| {
            let gathered = match &request.payload {
                Payload::Inline(data) => {
                    bytes.copy_from_slice(data);
                    true
                }
                Payload::Gathered(list) => view.gather(list, 0, bytes).is_ok(),
            };
            let message = UnqueuedMessage {
                id: request.id,
                immediate,
                remote: None,
                signaled: request.signaled,
                solicited: request.solicited,
            };
            if gathered && !request.fence && queue_pair.may_post_sent(1) {
                let content = transfer::ring_message::SlotContent::Bytes(bytes);
                let data = request.payload.data();
                let ring_message =
                    transfer::ring_message::posted(queue_pair, &message, data, content, &mut room);
                said = Some(ring_message::encode(&ring_message));
                transfer::ring_message::sent(queue_pair, &message, data, content);
                queue_pair.arm(now + COARSE_CLOCK_ERROR);
            }
        });
        let ring_message = said.and_then(|words| ring_message::decode(&words, &mut room));
        if let Some(ring_message) = &ring_message {
            self.send_ring_message(place, ring_message);
        }
        ring_message.is_some()
    }

    /// Sends a [`RingMessage`] (short message without packet headers) of the queue pair at `place`
    /// over the simulated network. A ring message that the network corrupts does not arrive.
    fn send_ring_message(&mut self, place: QpId, ring_message: &RingMessage<'_>) {
        let slot = &mut self.nodes[place.node].slots[place.slot];
        let attributes = slot.queue_pair.attributes();
        let path = attributes.path;
        let said = trace::ring_message(ring_message);
        if let Err(rule) = slot.watch.sent_ring_message(ring_message, attributes) {
            let name = self.name(place);
            self.record_violation(format!("{name} sent {said}: {rule}"));
            return;
        }
        let Some(node) = path.and_then(|path| self.receiver(place, &path)) else {
            return;
        };
        let words = ring_message::encode(ring_message);
        let bytes = COUNTED_HEADER_BYTES + ring_message.bytes();
        let (fate, arrival) =
            (self.network).send(self.now, place.node, ring_message.destination, bytes);
        self.account(
            words.iter().fold(0, |all, word| all.rotate_left(9) ^ word),
            fate,
        );
        if self.lines.is_some() {
            let (now, fate) = (Micros(self.now), trace::fate(fate));
            let line = format!("{now} node {} ->   {said}{fate}", place.node);
            self.tell(&line);
        }
        match fate {
            Fate::Lose | Fate::Corrupt(_) => return,
            Fate::Duplicate(later) => {
                self.schedule(arrival + later, EventKind::Hear { node, words });
            }
            Fate::Deliver | Fate::Hold(_) => {}
        }
        self.schedule(arrival, EventKind::Hear { node, words });
    }

    /// Returns the index of the simulated node that has the destination address of `path`. If no
    /// node has this address, returns `None`, and records a violation of the rules by the queue
    /// pair at `place`.
    fn receiver(&mut self, place: QpId, path: &Path) -> Option<usize> {
        let receiver = |node: &Node| node.address == path.destination;
        let found = self.nodes.iter().position(receiver);
        if found.is_none() {
            self.record_violation(format!("{} sent to {}", self.name(place), path.destination));
        }
        found
    }

    fn account(&mut self, said: u64, fate: Fate) {
        self.traffic.packets += 1;
        match fate {
            Fate::Lose | Fate::Corrupt(_) => self.traffic.lost += 1,
            Fate::Duplicate(_) | Fate::Hold(_) => self.traffic.disturbed += 1,
            Fate::Deliver => {}
        }
        let mut state = self.digest ^ said ^ self.now.as_nanos().rotate_left(20);
        self.digest = splitmix(&mut state);
    }

    fn record_violation(&mut self, rule: String) {
        // Only the first violation is kept, because later ones may be consequences.
        self.breach.get_or_insert(Breach(rule));
    }
}
