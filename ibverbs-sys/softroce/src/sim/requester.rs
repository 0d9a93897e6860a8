use std::borrow::Cow;
use std::collections::VecDeque;
use std::ops::Range;
use std::rc::Rc;

use crate::proto::{CompletionOpcode, CompletionStatus};

use super::buffer::Buffer;
use super::content;
use super::random::Random;
use super::shared_words::Change;
use super::target_memory::TargetMemory;
use super::world::QpId;

/// Model of one side of a simulated connection: its posted requests, and the messages that its peer
/// has not received yet.
#[derive(Debug)]
pub(crate) struct Requester {
    pub(crate) place: QpId,
    pub(crate) connection: usize,
    /// Number of this side of the connection, 0 or 1: the index in the arrays of the schedule's
    /// connection.
    pub(crate) side: usize,
    /// Index of the requester on the other side of the connection. `None` for an XRC target, which
    /// posts no requests.
    pub(crate) partner: Option<usize>,
    pub(crate) random: Random,
    /// Number of requests that this requester must still post.
    pub(crate) remaining: u32,
    /// Set while a request of the maximum message length of the connection must still be posted.
    pub(crate) owes_largest: bool,
    /// Number of bytes that this requester may still send in large messages, so that a run takes a
    /// limited time.
    pub(crate) budget: u64,
    pub(crate) posted: VecDeque<Posted>,
    /// Requests whose effect at the peer the model cannot know, because they failed or use an
    /// unreliable service.
    pub(crate) undone: Vec<Posted>,
    pub(crate) target: TargetMemory,
    /// Memory windows through which this requester may access the target (its memory at the peer).
    pub(crate) windows: Vec<PeerWindow>,
    /// Offset in the target (memory at the peer) of the next write of an unreliable connection.
    pub(crate) cursor: usize,
    /// Last known value of each word at the peer's node that several requesters change, with which
    /// the next compare-and-swap compares the word.
    pub(crate) seen: [u64; super::shared_words::WORDS],
    /// Messages that the peer has not received yet, oldest first.
    pub(crate) expected: VecDeque<Expectation>,
    /// ID of the last message that the peer received.
    pub(crate) told: u64,
    /// Status of the completion of the first failed request. `None` if no request has failed.
    pub(crate) ended: Option<CompletionStatus>,
    /// Set after the request that must fail was posted.
    pub(crate) spoiled: bool,
    /// Set while the requester pauses posting until a scheduled wakeup.
    pub(crate) resting: bool,
}

/// A posted request of a simulation that has not completed, and its expected effect.
#[derive(Debug)]
pub(crate) struct Posted {
    pub(crate) id: u64,
    pub(crate) opcode: CompletionOpcode,
    pub(crate) signaled: bool,
    pub(crate) length: usize,
    pub(crate) effect: Effect,
    pub(crate) buffer: Option<Rc<Buffer>>,
    /// Index of the memory window whose key the request uses or invalidates, if there is one.
    pub(crate) window: Option<usize>,
}

/// Effect that a simulated request must have if it succeeds, for example the bytes in memory.
#[derive(Debug)]
pub(crate) enum Effect {
    /// The peer receives a message with this content.
    Message(Content),
    /// The bytes are written to the target (memory at the peer), from the offset `offset` on.
    Write {
        offset: usize,
        bytes: Rc<[u8]>,
        /// Set if the peer gets a completion, too.
        told: bool,
    },
    /// The buffer of the request contains `bytes`, which were the bytes `range` of the target
    /// (memory at the peer).
    Read {
        range: Range<usize>,
        bytes: Rc<[u8]>,
    },
    /// Eight bytes of the target (memory at the peer) change from `was` to `becomes`, and the
    /// buffer of the request contains `was`.
    Atomic {
        offset: usize,
        was: u64,
        becomes: u64,
    },
    /// An atomic operation changes a word that other requesters change, too.
    Shared(Change),
    /// A memory window is bound, through which the partner may access its target.
    Bind { window: usize },
    /// A memory window, through which the partner could access its target, is invalidated.
    Invalidate { window: usize },
    /// No effect: the request must fail with one of these statuses.
    Fault(&'static [CompletionStatus]),
}

/// Content that a simulated message must have when the peer receives it.
#[derive(Clone, Debug)]
pub(crate) enum Content {
    /// Bytes that are derived from the message ID.
    Numbered,
    /// Bytes that a read has fetched.
    Read(Rc<[u8]>),
}

impl Content {
    /// Returns the first `length` bytes of the message with the ID `id`. For
    /// [`Numbered`](Self::Numbered), computes the bytes from the ID. For [`Read`](Self::Read),
    /// returns the stored bytes.
    pub(crate) fn bytes(&self, id: u64, length: usize) -> Cow<'_, [u8]> {
        match self {
            Self::Numbered => Cow::Owned(content::message(id, length)),
            Self::Read(bytes) => Cow::Borrowed(&bytes[..length]),
        }
    }
}

/// A message that the peer must receive, and the expected properties of the completion with which
/// the peer receives the message.
#[derive(Debug)]
pub(crate) struct Expectation {
    pub(crate) id: u64,
    pub(crate) content: Content,
    /// Set if the message is a send, whose bytes go to the memory of the receive. Otherwise the
    /// message is a write to the target.
    pub(crate) is_send: bool,
    pub(crate) length: usize,
    pub(crate) immediate: Option<[u8; 4]>,
    pub(crate) invalidated: Option<u32>,
    pub(crate) solicited: bool,
    pub(crate) srq: Option<u32>,
    /// Statuses with which the receive may fail. Empty if the receive must succeed.
    pub(crate) fault: &'static [CompletionStatus],
}

/// A memory window that the peer binds, so that a simulated requester can access a range of the
/// peer's memory by the window's key.
#[derive(Debug)]
pub(crate) struct PeerWindow {
    pub(crate) state: WindowState,
    pub(crate) key: u32,
    pub(crate) range: Range<usize>,
}

/// Expected state of a memory window in a simulation. The state determines the requests that may
/// use the window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WindowState {
    /// The peer may bind the window.
    Free,
    /// The request that binds the window was posted and has not completed.
    Binding,
    /// The requester may use the window's key.
    Bound,
    /// The request that invalidates the window was posted and has not completed.
    Invalidating,
}

impl Requester {
    /// Returns whether an outstanding read fetches bytes of the range `range` of the target (memory
    /// at the peer). If so, a write to these bytes needs a fence.
    pub(crate) fn is_reading(&self, range: &Range<usize>) -> bool {
        self.posted.iter().any(|posted| match &posted.effect {
            Effect::Read { range: read, .. } => read.start < range.end && range.start < read.end,
            _ => false,
        })
    }

    /// Returns whether at least one read of this requester is outstanding.
    pub(crate) fn is_reading_anything(&self) -> bool {
        let is_read = |posted: &Posted| matches!(posted.effect, Effect::Read { .. });
        self.posted.iter().any(is_read)
    }

    /// Returns whether an outstanding write or atomic operation changes bytes of the range `range`
    /// of the target (memory at the peer).
    pub(crate) fn is_writing(&self, range: &Range<usize>) -> bool {
        let overlaps =
            |start: usize, length: usize| start < range.end && range.start < start + length;
        self.posted.iter().any(|posted| match &posted.effect {
            Effect::Write { offset, bytes, .. } => overlaps(*offset, bytes.len()),
            Effect::Atomic { offset, .. } => overlaps(*offset, 8),
            _ => false,
        })
    }

    /// Returns whether an outstanding request of this requester uses the memory window with the
    /// index `window`.
    pub(crate) fn uses(&self, window: usize) -> bool {
        self.posted
            .iter()
            .any(|posted| posted.window == Some(window))
    }
}
