//! Fuzz targets for the transport: two queue pairs whose states, requests and packets the fuzzer's
//! input determines.

use std::collections::VecDeque;

use smallvec::smallvec;

use super::testing::{self, Node, attributes};
use super::{
    AccessFlags, Flush, Mtu, Payload, SendOperation, SendRequest, Sequence, Service, State, Time,
    WindowBinding,
};
use crate::fuzz::Input;
use crate::sim::PacketChecker;
use crate::wire::{Aeth, AtomicEth, Deth, Feth, Header, Opcode, Packet, Reth, Syndrome, Transport};

/// Maximum number of steps for one input, such as posting a request, delivering a packet or passing
/// time. The limit keeps the time for an input short.
const STEPS: usize = 200;

/// Maximum number of packets that a queue pair may send in a row in the fuzz test, far more than
/// the posted requests need. If a queue pair sends more, the test fails.
const BURST: usize = 10_000;

/// Length of a memory region in bytes, and maximum length of a message. With the smallest path MTU
/// (256 bytes), such a message has eight packets, which can be lost and reordered.
const REGION: u32 = 2048;

/// A queue pair, with the requests that were posted to it and have not completed.
struct TestedQueuePair {
    node: Node,
    watch: PacketChecker,
    /// Set after this side or its peer received a forged or changed packet. Such a packet may have
    /// acknowledged requests that the peer never received.
    is_deceived: bool,
    posted: VecDeque<u64>,
    receives: VecDeque<u64>,
    /// Keys of this side's memory: a region with all access rights, a region for receives, and a
    /// memory window.
    keys: [u32; 3],
    next: u64,
}

/// Two connected queue pairs, and the packets in flight between them.
struct Connection {
    sides: [TestedQueuePair; 2],
    /// Packets in flight to each side.
    wires: [VecDeque<Vec<u8>>; 2],
    now: Time,
}

/// Runs two queue pairs. The input bytes determine the transitions, requests and timeouts, and
/// which packets are delayed, duplicated, changed, dropped or forged.
pub fn queue_pair(bytes: &[u8]) {
    let mut input = Input::new(bytes);
    let mut world = Connection::new(&mut input);
    for _ in 0..STEPS {
        if input.is_empty() {
            break;
        }
        let side = input.below(2);
        match input.below(16) {
            0..3 => world.post(side, &mut input),
            3 => world.post_receive(side, &mut input),
            4..8 => world.deliver(side, &mut input),
            8 => world.deliver_all(),
            9 | 10 => world.pass_time(),
            11 | 12 => world.enter(side, &mut input),
            13 => world.change(side, &mut input),
            14 => world.inject(side, &mut input, None),
            _ => world.sides[side].node.queue_pair.set_peer_gone(),
        }
        world.check();
    }
    world.end();
}

/// Runs two connected queue pairs, and delivers forged packets between their own packets. The
/// forged packets have opcodes that the specification reserves for manufacturers. Checks that no
/// forged packet changes memory, completes a request or consumes a posted receive.
pub fn manufacturer(bytes: &[u8]) {
    let mut input = Input::new(bytes);
    let mut world = Connection::new(&mut input);
    for _ in 0..STEPS {
        if input.is_empty() {
            break;
        }
        let side = input.below(2);
        match input.below(8) {
            0 | 1 => world.post(side, &mut input),
            2 => world.post_receive(side, &mut input),
            3 | 4 => world.deliver(side, &mut input),
            5 => world.pass_time(),
            _ => {
                let before = world
                    .sides
                    .each_ref()
                    .map(TestedQueuePair::observable_state);
                world.inject(side, &mut input, Some(Transport::Manufacturer));
                assert_eq!(
                    world
                        .sides
                        .each_ref()
                        .map(TestedQueuePair::observable_state),
                    before
                );
            }
        }
        world.check();
    }
    world.end();
}

impl TestedQueuePair {
    fn new(node: Node) -> Self {
        let mut side = Self {
            node,
            watch: PacketChecker::default(),
            is_deceived: false,
            posted: VecDeque::new(),
            receives: VecDeque::new(),
            keys: [0; 3],
            next: 0,
        };
        let machine = &mut side.node.machine;
        side.keys = [
            machine.register(testing::pattern(REGION as usize)),
            machine.register_for(vec![0; REGION as usize], AccessFlags::LOCAL_WRITE),
            machine.window(),
        ];
        side
    }

    /// Returns the state that a forged packet must not change: the bytes of this side's memory, the
    /// numbers of its send completions and receive completions, and the number of its posted
    /// receives.
    fn observable_state(&self) -> (Vec<Vec<u8>>, usize, usize, usize) {
        let machine = &self.node.machine;
        (
            machine.content(),
            machine.sends.len(),
            machine.received.len(),
            machine.receives.len(),
        )
    }

    fn transmit(&mut self, now: Time, wire: &mut VecDeque<Vec<u8>>) {
        for count in 0.. {
            assert!(count < BURST, "it sends without end");
            let Some(bytes) = self.node.transmit(now) else {
                break;
            };
            let packet = Packet::parse(&bytes).expect("it sends packets");
            let sent = self.watch.sent(&packet, self.node.queue_pair.attributes());
            if !self.is_deceived {
                sent.expect("it keeps the rules");
            }
            wire.push_back(bytes);
        }
    }

    fn receive(&mut self, now: Time, bytes: &[u8]) {
        if let Ok(packet) = Packet::parse(bytes) {
            self.watch.arrived(&packet);
            self.node.receive(now, bytes);
        }
    }

    /// Asserts that each request and each receive of this queue pair completes once, in the order
    /// of posting. In the error state, all of them must have completed.
    fn check(&mut self) {
        for completion in self.node.machine.sends.drain(..) {
            assert_eq!(self.posted.pop_front(), Some(completion.id), "in order");
        }
        assert_eq!(self.node.queue_pair.outstanding(), self.posted.len());
        for (completion, _) in self.node.machine.received.drain(..) {
            assert_eq!(self.receives.pop_front(), Some(completion.id), "in order");
        }
        assert!(self.node.machine.receives.len() <= self.receives.len());
        if self.node.queue_pair.state() == State::Error {
            assert!(self.posted.is_empty(), "all that was posted is flushed");
            assert!(self.receives.is_empty(), "and all receives");
        }
    }
}

impl Connection {
    fn new(input: &mut Input<'_>) -> Self {
        let service = input.one_of(&[
            Service::ReliableConnection,
            Service::ReliableConnection,
            Service::UnreliableConnection,
            Service::UnreliableDatagram,
        ]);
        let nodes = [1, 2].map(|number| {
            let mut node = Node::new(number, service);
            set(&mut node, input);
            node.enter(State::Init);
            node.enter(State::ReadyToReceive);
            node.enter(State::ReadyToSend);
            TestedQueuePair::new(node)
        });
        Self {
            sides: nodes,
            wires: Default::default(),
            now: Time::default(),
        }
    }

    fn post(&mut self, side: usize, input: &mut Input<'_>) {
        let other = self.sides[1 - side].keys;
        let now = self.now;
        let TestedQueuePair {
            node,
            posted,
            keys,
            next,
            ..
        } = &mut self.sides[side];
        let takes = !matches!(
            node.queue_pair.state(),
            State::Reset | State::Init | State::ReadyToReceive
        );
        if !takes || posted.len() >= 32 {
            return;
        }
        let service = node.queue_pair.service();
        let immediate = input.flag().then_some(*b"imm!");
        let remote = {
            let key = input.one_of(&[other[0], other[0], other[0], other[1], other[2], 99]);
            node.machine.remote(key, u64::from(input.byte()) * 8)
        };
        let send = SendOperation::Send {
            immediate,
            invalidate: (immediate.is_none() && input.byte() == 7).then_some(other[2]),
        };
        let reliable = service == Service::ReliableConnection;
        let operation = match input.below(10) {
            _ if service == Service::UnreliableDatagram => SendOperation::Datagram {
                immediate,
                path: testing::path(),
                destination: 2 - side as u32,
                queue_key: 0x1234,
            },
            1 | 2 => SendOperation::Write { remote, immediate },
            3 if reliable => SendOperation::Read { remote },
            4 if reliable => SendOperation::CompareSwap {
                remote,
                compare: input.long(),
                swap: 3,
            },
            5 if reliable => SendOperation::FetchAdd { remote, add: 5 },
            6 => SendOperation::Bind(WindowBinding {
                window: keys[2],
                key: keys[2],
                region: keys[0],
                address: remote.address,
                length: u64::from(input.byte()),
                access: AccessFlags::REMOTE_WRITE,
            }),
            7 => SendOperation::LocalInvalidate { key: keys[2] },
            8 if reliable => SendOperation::AtomicWrite {
                remote,
                bytes: input.long().to_ne_bytes(),
            },
            9 if reliable => SendOperation::Flush(Flush {
                remote,
                length: u32::from(input.byte()),
                placement: input.byte() & 3,
                level: input.byte() & 1,
            }),
            _ => send,
        };
        let most = match service {
            Service::UnreliableDatagram => 256,
            _ => REGION,
        };
        let length = match operation {
            SendOperation::CompareSwap { .. } | SendOperation::FetchAdd { .. } => 8,
            SendOperation::AtomicWrite { .. }
            | SendOperation::Flush(_)
            | SendOperation::Bind(_)
            | SendOperation::LocalInvalidate { .. } => 0,
            _ => u32::from(input.half()) % (most + 1),
        };
        // Some requests name their data by an invalid key.
        let key = if input.byte() == 9 { 77 } else { keys[0] };
        let segment = node.machine.segment(key, 0, length);
        *next += 1;
        posted.push_back(*next);
        node.post(SendRequest {
            id: *next,
            operation,
            payload: Payload::Gathered(smallvec![segment]),
            length,
            xrc_srq: None,
            signaled: true,
            solicited: false,
            fence: input.flag(),
        });
        self.sides[side].transmit(now, &mut self.wires[1 - side]);
    }

    fn post_receive(&mut self, side: usize, input: &mut Input<'_>) {
        let side = &mut self.sides[side];
        let state = side.node.queue_pair.state();
        if state == State::Reset || state == State::Error || side.receives.len() >= 32 {
            return;
        }
        let length = u32::from(input.half()) % (REGION + 1);
        let segment = side.node.machine.segment(side.keys[1], 0, length);
        side.next += 1;
        side.receives.push_back(side.next);
        let request = super::ReceiveRequest::new(side.next, &[segment]);
        side.node.machine.receives.push_back(request);
    }

    /// Delivers the oldest packet in flight to the queue pair `side`. If the input determines so,
    /// drops, duplicates, delays or changes the packet instead.
    fn deliver(&mut self, side: usize, input: &mut Input<'_>) {
        let wire = &mut self.wires[side];
        let Some(mut packet) = wire.pop_front() else {
            return;
        };
        match input.below(8) {
            0 => return,
            1 => wire.push_back(packet.clone()),
            2 => {
                wire.push_back(packet);
                return;
            }
            3 => {
                self.sides
                    .iter_mut()
                    .for_each(|side| side.is_deceived = true);
                let at = usize::from(input.half()) % packet.len();
                packet[at] ^= input.byte();
            }
            _ => {}
        }
        self.deliver_bytes(side, &packet);
    }

    fn deliver_all(&mut self) {
        for side in [0, 1] {
            for _ in 0..self.wires[side].len() {
                if let Some(packet) = self.wires[side].pop_front() {
                    self.deliver_bytes(side, &packet);
                }
            }
        }
    }

    fn deliver_bytes(&mut self, side: usize, packet: &[u8]) {
        self.sides[side].receive(self.now, packet);
        self.sides[side].transmit(self.now, &mut self.wires[1 - side]);
    }

    /// Delivers a forged packet, which neither queue pair has sent, to the queue pair with the
    /// index `side`. The fuzz input `input` determines the packet. Either all bytes of the packet
    /// are arbitrary, or its queue pair number and partition key are valid. If `only` is set, these
    /// two fields are always valid, and the opcode belongs to the transport `only`.
    fn inject(&mut self, side: usize, input: &mut Input<'_>, only: Option<Transport>) {
        self.sides
            .iter_mut()
            .for_each(|side| side.is_deceived = true);
        if only.is_none() && input.flag() {
            let length = input.below(120);
            let bytes = input.some(length).to_vec();
            self.deliver_bytes(side, &bytes);
            return;
        }
        let own = match self.sides[side].node.queue_pair.service() {
            Service::UnreliableConnection => Transport::UnreliableConnection,
            Service::UnreliableDatagram => Transport::UnreliableDatagram,
            _ => Transport::ReliableConnection,
        };
        let wanted = only.unwrap_or_else(|| input.one_of(&[own, own, Transport::Manufacturer]));
        let opcodes: Vec<Opcode> = Opcode::all()
            .filter(|opcode| opcode.transport == wanted)
            .collect();
        let opcode = input.one_of(&opcodes);
        let TestedQueuePair { node, keys, .. } = &self.sides[side];
        let sequence = match input.below(4) {
            0 => input.word() & 0xff_ffff,
            1 => (node.queue_pair.send_sequence() + u32::from(input.byte())).value(),
            _ => (node.queue_pair.receive_sequence() + u32::from(input.byte() % 8)).value(),
        };
        let length = input.below(200);
        let payload = if opcode.has_payload() {
            input.some(length)
        } else {
            &[]
        };
        let remote = node.machine.remote(keys[0], u64::from(input.byte()));
        let mut bth = crate::wire::Bth::new(opcode, node.queue_pair.number(), sequence);
        bth.pad = Header::pad_for(payload.len());
        bth.acknowledge = input.flag();
        let syndrome = match input.below(4) {
            0 => Syndrome::ReceiverNotReady {
                timer: input.byte() % 32,
            },
            1 => Syndrome::Nak(crate::wire::Nak::SequenceError),
            2 => Syndrome::Nak(crate::wire::Nak::RemoteAccessError),
            _ => Syndrome::Ack { credits: 31 },
        };
        let header = Header {
            bth,
            xrc_srq: opcode.has_xrc_srq().then_some(3),
            deth: opcode.has_deth().then(|| Deth {
                queue_key: input.one_of(&[0x1234, 0, 0xffff_ffff]),
                source: input.word() & 0xff_ffff,
            }),
            feth: opcode.has_feth().then_some(Feth {
                placement: 1,
                level: 0,
            }),
            reth: opcode.has_reth().then(|| Reth {
                address: input.one_of(&[remote.address, 0, u64::MAX, 1, 1 << 22, 1 << 24]),
                key: input.one_of(&[remote.key, 0, 99]),
                length: input.one_of(&[8, 300, REGION, u32::MAX]),
            }),
            atomic: opcode.has_atomic().then(|| AtomicEth {
                address: remote.address,
                key: remote.key,
                swap_or_add: input.long(),
                compare: 0,
            }),
            aeth: opcode.has_aeth().then_some(Aeth {
                syndrome,
                message_sequence: input.word() & 0xff_ffff,
            }),
            original: opcode.has_original().then_some(42),
            immediate: opcode.has_immediate().then_some(*b"imm!"),
            invalidate: opcode.has_invalidate().then_some(keys[2]),
        };
        let mut bytes = Vec::new();
        Packet { header, payload }.emit(&mut bytes);
        match only {
            // Delivers this packet alone, so that its effect can be checked.
            Some(_) => self.sides[side].receive(self.now, &bytes),
            None => self.deliver_bytes(side, &bytes),
        }
    }

    /// Advances the time to the next timeout of either side, and lets both sides handle timeouts.
    fn pass_time(&mut self) {
        let due = (self.sides.iter()).filter_map(|side| side.node.queue_pair.next_timeout());
        let Some(due) = due.min() else { return };
        self.now = self.now.max(due);
        for side in [0, 1] {
            let TestedQueuePair { node, .. } = &mut self.sides[side];
            node.queue_pair.handle_timeout(self.now, &mut node.machine);
            self.sides[side].transmit(self.now, &mut self.wires[1 - side]);
        }
    }

    /// Moves the queue pair of the side `side` to another state, by a transition that the
    /// specification allows. `input` determines the state.
    fn enter(&mut self, side: usize, input: &mut Input<'_>) {
        use State::{
            Error, Init, ReadyToReceive, ReadyToSend, Reset, SendQueueDrained, SendQueueError,
        };
        let TestedQueuePair { node, watch, .. } = &mut self.sides[side];
        let next = match node.queue_pair.state() {
            Reset => input.one_of(&[Init, Init, Init, Error, Reset]),
            Init => input.one_of(&[ReadyToReceive, ReadyToReceive, ReadyToReceive, Error, Reset]),
            ReadyToReceive => input.one_of(&[ReadyToSend, ReadyToSend, ReadyToSend, Error, Reset]),
            ReadyToSend => input.one_of(&[SendQueueDrained, SendQueueDrained, Error, Reset]),
            SendQueueDrained if node.queue_pair.is_draining() => {
                input.one_of(&[SendQueueDrained, Error, Reset])
            }
            SendQueueDrained => input.one_of(&[ReadyToSend, ReadyToSend, Error, Reset]),
            SendQueueError => input.one_of(&[ReadyToSend, ReadyToSend, Error, Reset]),
            Error => Reset,
        };
        if next == Init || next == ReadyToReceive && input.flag() {
            set(node, input);
        }
        let now = self.now;
        node.queue_pair.enter(next, now, &mut node.machine);
        if matches!(next, Reset | Init) {
            watch.restart();
        }
        if next == Reset {
            node.machine.receives.clear();
            // Requests whose completions were generated before the reset still have to be checked.
            let (sends, received) = (node.machine.sends.len(), node.machine.received.len());
            let side = &mut self.sides[side];
            side.posted.truncate(sends);
            side.receives.truncate(received);
        }
        self.sides[side].transmit(now, &mut self.wires[1 - side]);
    }

    /// Changes the remote access rights and the RNR attributes of the queue pair of the side
    /// `side`, while this queue pair is in use. `input` determines the new values.
    fn change(&mut self, side: usize, input: &mut Input<'_>) {
        let TestedQueuePair { node, .. } = &mut self.sides[side];
        let attributes = node.queue_pair.attributes_mut();
        attributes.access = AccessFlags::from_bits_truncate(u32::from(input.byte()) & 0xe);
        attributes.rnr_retry = input.byte() % 8;
        attributes.min_rnr_timer = input.byte() % 32;
    }

    fn check(&mut self) {
        self.sides.iter_mut().for_each(TestedQueuePair::check);
    }

    /// Moves both queue pairs to the error state. Checks that every request then completes, and
    /// that the queue pairs stop sending packets.
    fn end(&mut self) {
        for side in [0, 1] {
            let TestedQueuePair { node, .. } = &mut self.sides[side];
            if node.queue_pair.state() != State::Reset {
                node.enter(State::Error);
            }
        }
        self.check();
        let mut turns = 0;
        while self.wires.iter().any(|wire| !wire.is_empty()) {
            turns += 1;
            assert!(turns < 1000, "two that have ended go on to talk");
            self.deliver_all();
            self.check();
        }
    }
}

/// Sets attributes of the queue pair of `node`, such as the path MTU and the retry counts, to
/// values that the fuzz input `input` determines.
fn set(node: &mut Node, input: &mut Input<'_>) {
    let number = node.queue_pair.number();
    let mut chosen = attributes(3 - number);
    chosen.path_mtu = input.one_of(&[Mtu::Mtu256, Mtu::Mtu256, Mtu::Mtu512, Mtu::Mtu4096]);
    if input.byte() % 16 == 15 {
        chosen.send_sequence = Sequence::new(input.word() & 0xff_ffff);
    }
    chosen.retry_count = input.byte() % 8;
    chosen.rnr_retry = input.byte() % 8;
    chosen.max_initiated = 1 + input.byte() % 4;
    chosen.max_accepted = input.byte() % 5;
    chosen.window = input.one_of(&[128, 1, 2, 5]);
    chosen.max_kept = 64;
    *node.queue_pair.attributes_mut() = chosen;
}
