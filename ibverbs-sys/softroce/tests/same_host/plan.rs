//! Plans of the messages between a test and its peer: their lengths, kinds, bytes and places.

use std::sync::LazyLock;

use ibverbs_sys::ibv_wr_opcode;
use softroce::fault::stops::StopPoint;

use crate::node::Node;

/// The length of the longest message.
const LONGEST: usize = 1 << 20;

/// Offsets in each memory: of messages to send, of receives, and of targets of writes.
const SENDS: usize = 0;
const RECEIVES: usize = LONGEST;
const WRITES: usize = 2 * LONGEST;

/// The number of messages of a stream without an end.
pub(crate) const ENDLESS: u8 = u8::MAX;

/// Set in the numbers of receives.
pub(crate) const RECEIVE: u64 = 1 << 63;

/// Lengths of messages that take turns.
const LENGTHS: [usize; 7] = [
    4 << 10,
    1 << 20,
    64 << 10,
    (4 << 10) + 3,
    (64 << 10) + 1,
    40_000,
    (1 << 20) - 1,
];

/// Kinds of messages.
pub(crate) const KINDS: [ibv_wr_opcode; 3] = [
    ibv_wr_opcode::IBV_WR_SEND,
    ibv_wr_opcode::IBV_WR_SEND_WITH_IMM,
    ibv_wr_opcode::IBV_WR_RDMA_WRITE_WITH_IMM,
];

/// The messages between the test and its peer, as one of the two sees them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Plan {
    /// Length of the messages, a power of two; else the [`LENGTHS`] take turns.
    pub(crate) length: Option<usize>,
    /// Kind of the messages; else the [`KINDS`] take turns.
    pub(crate) kind: Option<ibv_wr_opcode>,
    /// Receives are posted to shared receive queues.
    pub(crate) is_shared: bool,
    /// Messages go from memory of the program to memory of the device, and the other way round.
    pub(crate) crosses: bool,
    /// The timeout of both sides.
    pub(crate) timeout: u8,
    /// Point at which the peer stops itself, and the pass.
    pub(crate) stop: Option<(StopPoint, u8)>,
    /// Number of messages that this side sends, and of those that it receives.
    pub(crate) sends: u8,
    pub(crate) receives: u8,
    /// This side is the peer.
    pub(crate) is_peer: bool,
}

impl Plan {
    /// Returns a plan of the test: all kinds of messages in all lengths, but none yet.
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

    /// Returns the number of the test's plan, for the peer.
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

    /// Returns the peer's plan of a number.
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

    /// Makes a node for the plan.
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

    /// Returns the number of messages that fit into a mebibyte.
    fn fitting(&self) -> u64 {
        ((LONGEST / self.longest()) as u64).min(8)
    }

    /// Returns the number of sends, and of receives, that are posted at once: half of them in each memory.
    pub(crate) fn window(&self) -> u64 {
        2 * self.fitting()
    }

    /// Returns the memory that message `id` is sent from, and the offset.
    pub(crate) fn sent_from(&self, id: u64) -> (usize, usize) {
        let place = (id / 2 % self.fitting()) as usize;
        ((id % 2) as usize, SENDS + place * self.longest())
    }

    /// Returns the memory that message `id` is received to, and the offset.
    pub(crate) fn received_at(&self, id: u64) -> (usize, usize) {
        let place = (id / 2 % self.fitting()) as usize;
        let memory = (id % 2) as usize ^ usize::from(self.crosses);
        (memory, RECEIVES + place * self.longest())
    }

    /// Returns the memory that message `id` is written to, and the offset. When the message is posted, the receiver may not
    /// have looked at as many messages before it as can be posted and received at once.
    pub(crate) fn written_at(&self, id: u64) -> (usize, usize) {
        let place = (id / 2 % (2 * self.fitting())) as usize;
        (self.received_at(id).0, WRITES + place * self.longest())
    }

    pub(crate) fn kind_of(&self, id: u64) -> ibv_wr_opcode {
        self.kind.unwrap_or(KINDS[id as usize / 2 % KINDS.len()])
    }

    /// Returns the bytes of message `id` of the peer, or of the test.
    pub(crate) fn bytes(&self, id: u64, is_of_peer: bool) -> &'static [u8] {
        let turn = id as usize / 2 % LENGTHS.len();
        let length = self.length.unwrap_or(LENGTHS[turn]);
        let begin = (id as usize * 2 + usize::from(is_of_peer)) * 13 % MARGIN;
        &NOISE[begin..begin + length]
    }
}

/// Number of places in the [`NOISE`] at which messages may begin.
const MARGIN: usize = 8191;

/// Bytes of which all messages are parts.
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

/// Returns the number of messages that a plan has: most of all where there is no end.
pub(crate) fn count(number: u8) -> u64 {
    match number {
        ENDLESS => u64::MAX,
        number => number.into(),
    }
}

/// Writes other bytes over all messages that were sent.
pub(crate) fn reuse(node: &Node) {
    for memory in &node.memories {
        memory.fill(SENDS, &vec![0xee; LONGEST]);
    }
}
