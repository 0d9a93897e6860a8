mod frame;
mod transmission;

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};
use std::net::Ipv6Addr;
use std::time::Duration;

use crate::proto::{
    Completion, Counter, Event, QueuePair, ReceiveRequest, SendRequest, State, Time,
};

use super::host::{ReceiveQueue, View};
use super::memory::Memory;
use super::network::Network;
use super::packet_checker::PacketChecker;
use super::trace::{self, Lines, Micros};

/// Location of a queue pair in the simulated world: its node, and its index within the node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct QpId {
    pub(crate) node: usize,
    /// Index of the queue pair within its node.
    pub(crate) slot: usize,
}

/// A completion or an event that a queue pair of the simulation has reported.
#[derive(Debug)]
pub(crate) enum Happening {
    Sent(Completion),
    Received(Completion, Option<u32>),
    Raised(Event),
}

/// An occurrence in a simulation that the test must check or react to.
#[derive(Debug)]
pub(crate) enum Notice {
    /// A queue pair reported a completion or an event.
    At(QpId, Happening),
    /// A wakeup that the model has requested is due. Contains the token of the wakeup.
    Wake(u64),
}

/// Error of the simulation: the description of a rule that a queue pair has violated. The error
/// ends the run.
#[derive(Debug)]
pub(crate) struct Breach(pub(crate) String);

/// Counts of the packets that a simulated network has sent, lost and disturbed, and of the
/// simulated events.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Traffic {
    /// Number of packets that were sent.
    pub packets: u64,
    /// Number of packets that the network lost or changed.
    pub lost: u64,
    /// Number of packets that the network duplicated or delayed.
    pub disturbed: u64,
    /// Number of simulated events that were processed.
    pub events: u64,
}

/// The simulated world: nodes, the network between them, and the virtual time.
pub(crate) struct World<'t> {
    now: Time,
    /// Number of the next event. Events at the same time are processed in the order of their
    /// creation.
    order: u64,
    events: BinaryHeap<Reverse<Scheduled>>,
    nodes: Vec<Node>,
    network: Network,
    notices: Vec<Notice>,
    breach: Option<Breach>,
    /// Time for which a node collects packets that arrive, before it sends responses to all of them
    /// together.
    batch: Duration,
    /// Time for which the acknowledgement of a [`RingMessage`](crate::transfer::RingMessage) is
    /// delayed. `None` if nodes send only packets.
    ring_messages: Option<Duration>,
    traffic: Traffic,
    digest: u64,
    buffers: Vec<Vec<u8>>,
    lines: Option<&'t mut Lines<'t>>,
}

struct Node {
    address: Ipv6Addr,
    memory: Memory,
    slots: Vec<Slot>,
    directory: HashMap<u32, usize>,
    shared: Vec<ReceiveQueue>,
    counters: [u64; Counter::COUNT],
}

struct Slot {
    queue_pair: QueuePair,
    receives: ReceiveQueue,
    from_shared: Option<usize>,
    /// Time of the queue pair's next timer event.
    timer: Option<Time>,
    /// Set while an event that makes the queue pair transmit is scheduled, so that no second one is
    /// scheduled.
    polled: bool,
    watch: PacketChecker,
}

#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Scheduled {
    at: Time,
    order: u64,
    what: EventKind,
}

/// Kind of a simulated event, with its parameters. `Ord` is implemented because events are kept in
/// a heap. The order of two kinds has no effect, because the unique numbers of the events are
/// compared first.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
enum EventKind {
    /// A packet of the node `from` arrives at the queue of a shared link, on its way to the queue
    /// pair `number` of the node `node`.
    Enter {
        from: usize,
        node: usize,
        number: u32,
        packet: Vec<u8>,
    },
    Arrive {
        node: usize,
        packet: Vec<u8>,
    },
    Hear {
        node: usize,
        words: [u64; 7],
    },
    Timer {
        node: usize,
        slot: usize,
    },
    Poll {
        node: usize,
        slot: usize,
    },
    Wake {
        token: u64,
    },
}

/// Maximum number of packets that a queue pair may send at one time. If a queue pair sends more
/// packets, the simulation fails, because the queue pair would probably never stop.
const MAX_BURST: usize = 100_000;

impl<'t> World<'t> {
    pub(crate) fn new(network: Network, batch: Duration, ring_messages: Option<Duration>) -> Self {
        Self {
            now: Time::default(),
            order: 0,
            events: BinaryHeap::new(),
            nodes: Vec::new(),
            network,
            notices: Vec::new(),
            breach: None,
            batch,
            ring_messages,
            traffic: Traffic::default(),
            digest: 0,
            buffers: Vec::new(),
            lines: None,
        }
    }

    /// Passes a trace of every packet and completion to `lines` from now on.
    pub(crate) fn trace_to(&mut self, lines: &'t mut Lines<'t>) {
        self.lines = Some(lines);
    }

    pub(crate) fn now(&self) -> Time {
        self.now
    }

    pub(crate) fn traffic(&self) -> Traffic {
        self.traffic
    }

    /// Returns a hash of all packets and of the times at which they were sent. Two identical runs
    /// have equal hashes, so a difference shows that a run is not reproducible.
    pub(crate) fn digest(&self) -> u64 {
        self.digest
    }

    /// Returns the sums of the statistics counters of all simulated nodes, indexed by [`Counter`].
    pub(crate) fn counters(&self) -> [u64; Counter::COUNT] {
        let mut sums = [0; Counter::COUNT];
        for node in &self.nodes {
            for (sum, count) in sums.iter_mut().zip(node.counters) {
                *sum += count;
            }
        }
        sums
    }

    pub(crate) fn add_node(&mut self, address: Ipv6Addr) -> usize {
        self.network.add_node();
        self.nodes.push(Node {
            address,
            memory: Memory::default(),
            slots: Vec::new(),
            directory: HashMap::new(),
            shared: Vec::new(),
            counters: [0; Counter::COUNT],
        });
        self.nodes.len() - 1
    }

    /// Adds a shared receive queue to the simulated node with the index `node`. Returns the number
    /// of the queue.
    pub(crate) fn add_shared_queue(&mut self, node: usize) -> usize {
        let shared = &mut self.nodes[node].shared;
        shared.push(ReceiveQueue::new());
        shared.len() - 1
    }

    pub(crate) fn add_queue_pair(
        &mut self,
        node: usize,
        queue_pair: QueuePair,
        from_shared: Option<usize>,
    ) -> QpId {
        let slots = &mut self.nodes[node].slots;
        let slot = slots.len();
        let number = queue_pair.number();
        slots.push(Slot {
            queue_pair,
            receives: ReceiveQueue::new(),
            from_shared,
            timer: None,
            polled: false,
            watch: PacketChecker::default(),
        });
        self.nodes[node].directory.insert(number, slot);
        QpId { node, slot }
    }

    pub(crate) fn address(&self, node: usize) -> Ipv6Addr {
        self.nodes[node].address
    }

    pub(crate) fn memory(&self, node: usize) -> &Memory {
        &self.nodes[node].memory
    }

    pub(crate) fn network(&mut self) -> &mut Network {
        &mut self.network
    }

    pub(crate) fn queue_pair(&self, place: QpId) -> &QueuePair {
        &self.nodes[place.node].slots[place.slot].queue_pair
    }

    pub(crate) fn queue_pair_mut(&mut self, place: QpId) -> &mut QueuePair {
        &mut self.nodes[place.node].slots[place.slot].queue_pair
    }

    /// Removes all receives from the receive queue that only the queue pair at the location `place`
    /// uses. Receives of shared receive queues stay posted.
    pub(crate) fn drop_receives(&mut self, place: QpId) {
        self.nodes[place.node].slots[place.slot].receives.clear();
    }

    pub(crate) fn post_receive(&mut self, place: QpId, request: ReceiveRequest) {
        let slot = &mut self.nodes[place.node].slots[place.slot];
        slot.receives.push_back(request);
    }

    pub(crate) fn post_shared_receive(
        &mut self,
        node: usize,
        queue: usize,
        request: ReceiveRequest,
    ) {
        self.nodes[node].shared[queue].push_back(request);
    }

    /// Posts a send request to the queue pair at `place`, and transmits all packets and messages
    /// that the queue pair may send now.
    pub(crate) fn post(&mut self, place: QpId, request: SendRequest) {
        if self.lines.is_some() {
            let line = format!(
                "{} {} posts #{} {:?} {} B{}{}",
                Micros(self.now),
                self.name(place),
                request.id,
                request.operation,
                request.length,
                if request.fence { " fence" } else { "" },
                if request.signaled { "" } else { " unsignaled" },
            );
            self.tell(&line);
        }
        if self.ring_messages.is_none() || !self.post_ring_message(place, &request) {
            self.with(place, |queue_pair, view, _| queue_pair.post(request, view));
        }
        self.transmit(place);
    }

    /// Moves the queue pair at `place` to the state `state`, and then transmits the packets that
    /// the queue pair may send.
    pub(crate) fn enter(&mut self, place: QpId, state: State) {
        if self.lines.is_some() {
            let line = format!("{} {} enters {state:?}", Micros(self.now), self.name(place));
            self.tell(&line);
        }
        self.with(place, |queue_pair, view, now| {
            queue_pair.enter(state, now, view);
        });
        let watch = &mut self.nodes[place.node].slots[place.slot].watch;
        watch.set_drained(false);
        if matches!(state, State::Reset | State::Init) {
            watch.restart();
        }
        self.transmit(place);
    }

    /// Records that the queue pair at `place` has reported its send queue as drained. The queue
    /// pair must then send no requests until it enters another state.
    pub(crate) fn set_drained(&mut self, place: QpId) {
        let slot = &mut self.nodes[place.node].slots[place.slot];
        if slot.queue_pair.state() == State::SendQueueDrained {
            slot.watch.set_drained(true);
        }
    }

    /// Schedules a wakeup of the code that controls the simulation, after `delay`. The
    /// [`Notice::Wake`] of this wakeup contains `token`, which identifies the purpose of the
    /// wakeup.
    pub(crate) fn wake_after(&mut self, delay: Duration, token: u64) {
        self.schedule(self.now + delay, EventKind::Wake { token });
    }

    /// Advances the virtual time to the next event, and processes this event. Returns `false` if no
    /// event is left. Fails if a queue pair has violated a rule of the protocol.
    pub(crate) fn step(&mut self) -> Result<bool, Breach> {
        let Some(Reverse(event)) = self.events.pop() else {
            return Ok(false);
        };
        self.now = event.at;
        self.traffic.events += 1;
        match event.what {
            EventKind::Enter {
                from,
                node,
                number,
                packet,
            } => {
                let (fate, arrival) = (self.network).send(self.now, from, number, packet.len());
                self.forward(node, packet, fate, arrival);
            }
            EventKind::Arrive { node, packet } => {
                self.arrive(node, &packet);
                self.buffers.push(packet);
            }
            EventKind::Hear { node, words } => self.deliver_ring_message(node, &words),
            EventKind::Timer { node, slot } => self.timer(QpId { node, slot }),
            EventKind::Poll { node, slot } => {
                self.nodes[node].slots[slot].polled = false;
                self.transmit(QpId { node, slot });
            }
            EventKind::Wake { token } => self.notices.push(Notice::Wake(token)),
        }
        match self.breach.take() {
            Some(breach) => Err(breach),
            None => Ok(true),
        }
    }

    /// Removes all notices (completions, events and wakeups) that the simulated world has
    /// collected, and appends them to `into`.
    pub(crate) fn take_notices(&mut self, into: &mut Vec<Notice>) {
        if self.lines.is_some() {
            for place in 0..self.notices.len() {
                if let Notice::At(at, what) = &self.notices[place] {
                    let what = trace::happening(what);
                    let line = format!("{} {} {what}", Micros(self.now), self.name(*at));
                    self.tell(&line);
                }
            }
        }
        into.append(&mut self.notices);
    }

    fn name(&self, place: QpId) -> String {
        let number = self.queue_pair(place).number();
        format!("node {} qp {number:#x}", place.node)
    }

    fn tell(&mut self, line: &str) {
        if let Some(lines) = &mut self.lines {
            lines(line);
        }
    }

    fn schedule(&mut self, at: Time, what: EventKind) {
        let order = self.order;
        self.order += 1;
        self.events.push(Reverse(Scheduled { at, order, what }));
    }

    fn with<T>(
        &mut self,
        place: QpId,
        work: impl FnOnce(&mut QueuePair, &mut View<'_>, Time) -> T,
    ) -> T {
        let node = &mut self.nodes[place.node];
        let slot = &mut node.slots[place.slot];
        let mut view = View {
            place,
            queue_pair: slot.queue_pair.number(),
            memory: &node.memory,
            own: &mut slot.receives,
            shared: &mut node.shared,
            from_shared: slot.from_shared,
            notices: &mut self.notices,
            counters: &mut node.counters,
        };
        work(&mut slot.queue_pair, &mut view, self.now)
    }
}
