use std::fmt::Write as _;
use std::net::Ipv4Addr;
use std::time::Duration;

use crate::proto::{
    AccessFlags, Attributes, CompletionStatus, GatherList, Mtu, Path, Payload, QueuePair,
    ReceiveRequest, Remote, Segment, SendOperation, SendRequest, Sequence, Service, State, Time,
};

use super::network::{Conditions, Faults, Network};
use super::random::Random;
use super::schedule::ack_delay;
use super::world::{Happening, Notice, QpId, World};

/// Loss rates of the columns of the goodput table, in lost packets per million.
const LOSSES: [u32; 5] = [0, 1000, 10_000, 30_000, 100_000];

/// Number of simulation seeds. Each value of the table is the average of one run per seed.
const SEEDS: u64 = 3;

/// Maximum number of requests that are in the send queue at the same time.
const DEPTH: usize = 16;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Flow {
    Send,
    Write,
    Read,
}

/// Parameters of one row of the goodput table.
#[derive(Clone, Copy, Debug)]
struct Row {
    flow: Flow,
    mtu: Mtu,
    message: u32,
    messages: u64,
    /// Maximum number of bytes that wait in a node to be sent. Further packets are lost.
    backlog: u64,
}

/// Returns a table of the goodput at different loss rates, in Mbit/s of virtual time. The values
/// depend only on the transport, so the table changes if a change of the transport improves or
/// worsens the recovery from losses.
pub fn goodput_table() -> String {
    let mut table = String::from(
        "Goodput in Mbit/s of one reliable connection: 10 Gbit/s, 5 us each way, a window of 128\n\
         packets, an acknowledgement timeout of 4.2 ms, 16 requests in the queue; by the share of\n\
         packets that is lost each way. In the last rows no more than 64 KiB wait for the link, and\n\
         what is more is lost too.\n\n\
         operation  message    MTU        0 %     0.1 %       1 %       3 %      10 %\n",
    );
    for row in rows() {
        let name = match row.flow {
            Flow::Send => "send",
            Flow::Write => "write",
            Flow::Read => "read",
        };
        // Writing to a string cannot fail.
        let _ = write!(table, "{name:<9} {:>8} {:>6}", row.message, row.mtu.bytes());
        for loss in LOSSES {
            let _ = write!(table, " {:>9}", megabits(&row, loss));
        }
        table.push('\n');
    }
    table
}

fn rows() -> Vec<Row> {
    let row = |flow, mtu, message, backlog| Row {
        flow,
        mtu,
        message,
        messages: (2 << 20) / u64::from(message).max(4096),
        backlog,
    };
    let mut rows = Vec::new();
    for flow in [Flow::Send, Flow::Write, Flow::Read] {
        for (mtu, message) in [
            (Mtu::Mtu1024, 64),
            (Mtu::Mtu1024, 65_536),
            (Mtu::Mtu4096, 65_536),
            (Mtu::Mtu4096, 1 << 20),
        ] {
            rows.push(row(flow, mtu, message, u64::MAX));
        }
    }
    for flow in [Flow::Write, Flow::Read] {
        rows.push(row(flow, Mtu::Mtu4096, 65_536, 64 << 10));
    }
    rows
}

/// Returns the goodput of the messages of `row` in Mbit/s at the loss rate `loss`, or "failed" if a
/// message failed.
fn megabits(row: &Row, loss: u32) -> String {
    let mut time = Duration::ZERO;
    for seed in 0..SEEDS {
        match Stream::new(row, loss, seed).run() {
            Some(taken) => time += taken,
            None => return "failed".to_owned(),
        }
    }
    let bits = SEEDS * row.messages * u64::from(row.message) * 8;
    let rate = u128::from(bits) * 1000 / time.as_nanos().max(1);
    rate.to_string()
}

/// Simulation that produces one value of the goodput table: a stream of messages in one direction.
struct Stream<'r> {
    row: &'r Row,
    world: World<'static>,
    ends: [QpId; 2],
    here: u32,
    there: u32,
    posted: u64,
    done: u64,
}

const BASE: u64 = 0x10_0000;

impl<'r> Stream<'r> {
    fn new(row: &'r Row, loss: u32, seed: u64) -> Self {
        let conditions = Conditions {
            loss,
            backlog: row.backlog,
            ..Conditions::CLEAN
        };
        let network = Network::new(Faults::Random(conditions), Random::new(seed, 1));
        let mut world = World::new(network, Duration::ZERO, None);
        let ends = [1, 2].map(|number| {
            let address = Ipv4Addr::new(10, 0, 0, number).to_ipv6_mapped();
            let node = world.add_node(address);
            let queue_pair = QueuePair::new(number.into(), Service::ReliableConnection);
            world.add_queue_pair(node, queue_pair, None)
        });
        let access =
            AccessFlags::LOCAL_WRITE | AccessFlags::REMOTE_WRITE | AccessFlags::REMOTE_READ;
        let register = |world: &World<'_>, place: QpId| {
            let bytes = vec![0; row.message as usize];
            world.memory(place.node).register(bytes, BASE, access)
        };
        let (here, there) = (register(&world, ends[0]), register(&world, ends[1]));
        for (place, peer) in [(ends[0], ends[1]), (ends[1], ends[0])] {
            let path = Path {
                source: 0,
                destination: world.address(peer.node),
                traffic_class: 0,
                hop_limit: 64,
                flow_label: 0,
            };
            let destination = world.queue_pair(peer).number();
            *world.queue_pair_mut(place).attributes_mut() = Attributes {
                destination,
                path: Some(path),
                path_mtu: row.mtu,
                send_sequence: Sequence::new(0xff_ff00),
                receive_sequence: Sequence::new(0xff_ff00),
                ack_timeout: Some(ack_delay(10)),
                retry_count: 7,
                rnr_retry: 7,
                min_rnr_timer: 1,
                max_initiated: 16,
                max_accepted: 16,
                access,
                ..Attributes::default()
            };
            world.enter(place, State::Init);
            world.enter(place, State::ReadyToReceive);
            world.enter(place, State::ReadyToSend);
        }
        Self {
            row,
            world,
            ends,
            here,
            there,
            posted: 0,
            done: 0,
        }
    }

    /// Sends all messages. Returns the virtual time until all are complete, or `None` if a message
    /// fails.
    fn run(mut self) -> Option<Duration> {
        for _ in 0..DEPTH {
            self.post_receive();
            self.post();
        }
        let mut notices = Vec::new();
        loop {
            self.world.take_notices(&mut notices);
            for notice in notices.drain(..) {
                let Notice::At(place, what) = notice else {
                    continue;
                };
                match what {
                    Happening::Sent(end) if end.status != CompletionStatus::Success => return None,
                    Happening::Sent(_) => {
                        self.done += 1;
                        self.post();
                    }
                    Happening::Received(..) if place == self.ends[1] => self.post_receive(),
                    Happening::Received(..) | Happening::Raised(_) => {}
                }
            }
            if self.done == self.row.messages {
                return Some(self.world.now() - Time::default());
            }
            if !matches!(self.world.step(), Ok(true)) {
                return None;
            }
        }
    }

    fn segments(&self, key: u32) -> GatherList {
        GatherList::from_slice(&[Segment {
            address: BASE,
            length: self.row.message,
            key,
        }])
    }

    fn post_receive(&mut self) {
        let segments = self.segments(self.there);
        let request = ReceiveRequest {
            id: 0,
            segments,
            length: self.row.message.into(),
        };
        self.world.post_receive(self.ends[1], request);
    }

    fn post(&mut self) {
        if self.posted == self.row.messages {
            return;
        }
        self.posted += 1;
        let remote = Remote {
            address: BASE,
            key: self.there,
        };
        let operation = match self.row.flow {
            Flow::Send => SendOperation::Send {
                immediate: None,
                invalidate: None,
            },
            Flow::Write => SendOperation::Write {
                remote,
                immediate: None,
            },
            Flow::Read => SendOperation::Read { remote },
        };
        let request = SendRequest {
            id: self.posted,
            operation,
            payload: Payload::Gathered(self.segments(self.here)),
            length: self.row.message,
            xrc_srq: None,
            signaled: true,
            solicited: false,
            fence: false,
        };
        self.world.post(self.ends[0], request);
    }
}
