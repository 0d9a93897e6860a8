//! Plans of the messages between a test and its peer: lengths, kinds, bytes and places in memory.

use std::sync::LazyLock;

use ibverbs_sys::ibv_wr_opcode;
use softroce::fault::stops::StopPoint;

use crate::node::Node;

/// Length of the longest message in bytes.
const LONGEST: usize = 1 << 20;

/// Offsets in each memory of messages to send, of receives, and of the targets of writes.
const SENDS: usize = 0;
const RECEIVES: usize = LONGEST;
const WRITES: usize = 2 * LONGEST;

/// Number of messages that stands for a stream without end.
pub(crate) const ENDLESS: u8 = u8::MAX;

/// Bit that is set in the `wr_id` of receives.
pub(crate) const RECEIVE: u64 = 1 << 63;

/// Lengths of messages in bytes, used in turn.
const LENGTHS: [usize; 7] = [
    4 << 10,
    1 << 20,
    64 << 10,
    (4 << 10) + 3,
    (64 << 10) + 1,
    40_000,
    (1 << 20) - 1,
];

/// Opcodes of messages.
pub(crate) const KINDS: [ibv_wr_opcode; 3] = [
    ibv_wr_opcode::IBV_WR_SEND,
    ibv_wr_opcode::IBV_WR_SEND_WITH_IMM,
    ibv_wr_opcode::IBV_WR_RDMA_WRITE_WITH_IMM,
];

/// Messages between the test and its peer, from the point of view of one of the two.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Plan {
    /// Length of all messages, a power of two. `None`: the [`LENGTHS`] take turns.
    pub(crate) length: Option<usize>,
    /// Opcode of all messages. `None`: the [`KINDS`] take turns.
    pub(crate) kind: Option<ibv_wr_opcode>,
    /// Set if receives are posted to shared receive queues.
    pub(crate) is_shared: bool,
    /// Set if messages go from memory of the program to memory of the device, and vice versa.
    pub(crate) crosses: bool,
    /// Exponent of the acknowledgement timeout of both sides.
    pub(crate) timeout: u8,
    /// Point at which the peer stops itself, and on which pass through this point.
    pub(crate) stop: Option<(StopPoint, u8)>,
    /// Number of messages that this side sends, and number that it receives.
    pub(crate) sends: u8,
    pub(crate) receives: u8,
    /// Set on the side of the peer.
    pub(crate) is_peer: bool,
}

impl Plan {
    /// Creates a plan of the test with all kinds and lengths of messages, but no messages yet.
    pub(crate) fn new(timeout: u8) -> Self {
        Self {
            length: None,
            kind: None,
            is_shared: false,
            crosses: false,
            timeout,
            stop: None,
            sends: 0,
            receives: 0,
            is_peer: false,
        }
    }

    /// Returns the test's plan as a number for the peer.
    pub(crate) fn encode(&self) -> u64 {
        let (point, pass) = match self.stop {
            None => (0, 0),
            Some((StopPoint::Copy, pass)) => (1, pass),
            Some((StopPoint::Copied, pass)) => (2, pass),
        };
        u64::from_le_bytes([
            self.length.map_or(0, |length| length.ilog2() as u8),
            self.kind.map_or(u8::MAX, |kind| kind.0 as u8),
            u8::from(self.is_shared) | u8::from(self.crosses) << 1,
            self.timeout,
            point,
            pass,
            self.sends,
            self.receives,
        ])
    }

    /// Returns the peer's plan from the number of [`encode`](Self::encode).
    pub(crate) fn decode(number: u64) -> Self {
        let [length, kind, flags, timeout, point, pass, sends, receives] = number.to_le_bytes();
        Self {
            length: (length > 0).then(|| 1 << length),
            kind: (kind < u8::MAX).then(|| ibv_wr_opcode(kind.into())),
            is_shared: flags & 1 != 0,
            crosses: flags & 2 != 0,
            timeout,
            stop: match point {
                0 => None,
                1 => Some((StopPoint::Copy, pass)),
                _ => Some((StopPoint::Copied, pass)),
            },
            sends: receives,
            receives: sends,
            is_peer: true,
        }
    }

    /// Creates a node for the plan.
    pub(crate) fn node(&self) -> Node {
        let mut node = if self.is_shared {
            Node::sharing()
        } else {
            Node::new()
        };
        node.timeout = self.timeout;
        node
    }

    /// Posts the first receives.
    pub(crate) fn post_receives(&self, node: &Node) {
        (0..self.first_receives()).for_each(|id| self.post_receive(node, id));
    }

    pub(crate) fn first_receives(&self) -> u64 {
        self.window().min(count(self.receives))
    }

    pub(crate) fn post_receive(&self, node: &Node, id: u64) {
        let (memory, offset) = self.received_at(id);
        let room = self.longest();
        node.receive(RECEIVE | id, node.memories[memory].sge(offset, room));
    }

    fn longest(&self) -> usize {
        self.length.unwrap_or(LONGEST)
    }

    /// Returns the number of messages that fit into a mebibyte, at most 8.
    fn fitting(&self) -> u64 {
        ((LONGEST / self.longest()) as u64).min(8)
    }

    /// Returns the number of sends, and of receives, that are posted at the same time. Half of them
    /// are in each memory.
    pub(crate) fn window(&self) -> u64 {
        2 * self.fitting()
    }

    /// Returns the memory and the offset that message `id` is sent from.
    pub(crate) fn sent_from(&self, id: u64) -> (usize, usize) {
        let place = (id / 2 % self.fitting()) as usize;
        ((id % 2) as usize, SENDS + place * self.longest())
    }

    /// Returns the memory and the offset that message `id` is received to.
    pub(crate) fn received_at(&self, id: u64) -> (usize, usize) {
        let place = (id / 2 % self.fitting()) as usize;
        let memory = (id % 2) as usize ^ usize::from(self.crosses);
        (memory, RECEIVES + place * self.longest())
    }

    /// Returns the memory and the offset that message `id` is written to. A place is used again
    /// only after two windows, because the receiver may not have checked the messages of one window
    /// when the next ones arrive.
    pub(crate) fn written_at(&self, id: u64) -> (usize, usize) {
        let place = (id / 2 % (2 * self.fitting())) as usize;
        (self.received_at(id).0, WRITES + place * self.longest())
    }

    pub(crate) fn kind_of(&self, id: u64) -> ibv_wr_opcode {
        self.kind.unwrap_or(KINDS[id as usize / 2 % KINDS.len()])
    }

    /// Returns the bytes of message `id`, which the peer or the test has sent.
    pub(crate) fn bytes(&self, id: u64, is_of_peer: bool) -> &'static [u8] {
        let turn = id as usize / 2 % LENGTHS.len();
        let length = self.length.unwrap_or(LENGTHS[turn]);
        let begin = (id as usize * 2 + usize::from(is_of_peer)) * 13 % MARGIN;
        &NOISE[begin..begin + length]
    }
}

/// Number of offsets in [`NOISE`] at which messages may begin.
const MARGIN: usize = 8191;

/// Random bytes; each message is a part of them.
static NOISE: LazyLock<Vec<u8>> = LazyLock::new(|| {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let words = (0..(LONGEST + MARGIN).div_ceil(8)).flat_map(|_| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state.to_ne_bytes()
    });
    words.collect()
});

/// Returns a number of messages of a plan, with [`ENDLESS`] as `u64::MAX`.
pub(crate) fn count(number: u8) -> u64 {
    match number {
        ENDLESS => u64::MAX,
        number => number.into(),
    }
}

/// Overwrites all messages that were sent.
pub(crate) fn reuse(node: &Node) {
    for memory in &node.memories {
        memory.fill(SENDS, &vec![0xee; LONGEST]);
    }
}
