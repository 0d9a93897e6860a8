use super::frame::{accept, corrupt, emit};
use super::{BURST, Breach, Node, Place, What, World};
use crate::proto::{Arrival, Path};
use crate::sim::network::Fate;
use crate::sim::random::splitmix;
use crate::sim::trace::{self, Brief, Clock};
use crate::wire::Packet;

impl World<'_> {
    pub(super) fn arrive(&mut self, node: usize, bytes: &[u8]) {
        let Some((headers, packet)) = accept(bytes) else {
            return;
        };
        let found = &self.nodes[node];
        let number = packet.header.bth.destination;
        let Some(&slot) = found.directory.get(&number) else {
            self.break_rule(format!(
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
        };
        let place = Place { node, slot };
        if self.lines.is_some() {
            let line = format!("{} node {node}   <- {}", Clock(self.now), Brief(&packet));
            self.tell(&line);
        }
        self.nodes[node].slots[slot].watch.arrived(&packet);
        self.with(place, |queue_pair, view, now| {
            queue_pair.receive(now, &arrival, &packet, view);
        });
        if self.batch.is_zero() {
            self.transmit(place);
        } else if !self.nodes[node].slots[slot].polled {
            self.nodes[node].slots[slot].polled = true;
            self.schedule(self.now + self.batch, What::Poll { node, slot });
        }
    }

    pub(super) fn timer(&mut self, place: Place) {
        let slot = &mut self.nodes[place.node].slots[place.slot];
        if slot.timer != Some(self.now) {
            // An earlier one has replaced it.
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

    /// Sends what a queue pair has to send.
    pub(super) fn transmit(&mut self, place: Place) {
        for sent in 0.. {
            if sent == BURST {
                self.break_rule(format!("{} never stops sending", self.name(place)));
                return;
            }
            let mut transport = self.buffers.pop().unwrap_or_default();
            transport.clear();
            let path = self.with(place, |queue_pair, view, now| {
                queue_pair.poll_transmit(now, view, &mut transport)
            });
            match path {
                Some(path) => self.send(place, &path, &transport),
                None if transport.is_empty() => {}
                None => self.break_rule(format!("{} left bytes", self.name(place))),
            }
            self.buffers.push(transport);
            if path.is_none() {
                break;
            }
        }
        let slot = &mut self.nodes[place.node].slots[place.slot];
        let Some(timeout) = slot.queue_pair.next_timeout() else {
            return;
        };
        let at = timeout.max(self.now);
        if slot.timer.is_none_or(|timer| at < timer) {
            slot.timer = Some(at);
            let Place { node, slot } = place;
            self.schedule(at, What::Timer { node, slot });
        }
    }

    /// Sends one packet, BTH to pad.
    fn send(&mut self, place: Place, path: &Path, transport: &[u8]) {
        let slot = &mut self.nodes[place.node].slots[place.slot];
        let packet = match Packet::parse(transport) {
            Ok(packet) => packet,
            Err(error) => {
                let name = self.name(place);
                self.break_rule(format!("{name} sent what is no packet: {error}"));
                return;
            }
        };
        if let Err(rule) = slot.watch.sent(&packet, slot.queue_pair.attributes()) {
            let name = self.name(place);
            self.break_rule(format!("{name} sent {}: {rule}", Brief(&packet)));
            return;
        }
        let number = packet.header.bth.destination;
        let receiver = |node: &Node| node.address == path.destination;
        let Some(receiver) = self.nodes.iter().position(receiver) else {
            self.break_rule(format!("{} sent to {}", self.name(place), path.destination));
            return;
        };
        let mut bytes = self.buffers.pop().unwrap_or_default();
        bytes.clear();
        emit(self.nodes[place.node].address, path, transport, &mut bytes);
        let (fate, arrival) = self.network.send(self.now, place.node, number, bytes.len());
        self.account(&packet, fate);
        if self.lines.is_some() {
            let line = format!(
                "{} node {} ->   {}{}",
                Clock(self.now),
                place.node,
                Brief(&packet),
                trace::fate(fate)
            );
            self.tell(&line);
        }
        match fate {
            Fate::Lose => {
                self.buffers.push(bytes);
                return;
            }
            Fate::Duplicate(later) => {
                let node = receiver;
                let packet = bytes.clone();
                self.schedule(arrival + later, What::Arrive { node, packet });
            }
            Fate::Corrupt(how) => corrupt(&mut bytes, how),
            Fate::Deliver | Fate::Hold(_) => {}
        }
        let (node, packet) = (receiver, bytes);
        self.schedule(arrival, What::Arrive { node, packet });
    }

    fn account(&mut self, packet: &Packet<'_>, fate: Fate) {
        self.traffic.packets += 1;
        match fate {
            Fate::Lose | Fate::Corrupt(_) => self.traffic.lost += 1,
            Fate::Duplicate(_) | Fate::Hold(_) => self.traffic.disturbed += 1,
            Fate::Deliver => {}
        }
        let bth = &packet.header.bth;
        let said = u64::from(bth.destination) << 40
            ^ u64::from(bth.sequence) << 16
            ^ u64::from(bth.opcode.to_byte()) << 8
            ^ packet.payload.len() as u64;
        let mut state = self.digest ^ said ^ self.now.as_nanos().rotate_left(20);
        self.digest = splitmix(&mut state);
    }

    fn break_rule(&mut self, rule: String) {
        // The first says most.
        self.breach.get_or_insert(Breach(rule));
    }
}
