use std::borrow::Cow;
use std::collections::VecDeque;
use std::ops::Range;
use std::rc::Rc;

use crate::proto::{CompletionStatus, Work};

use super::buffer::Buffer;
use super::cells::Change;
use super::content;
use super::random::Random;
use super::target::Target;
use super::world::Place;

/// State of the model for one end of a connection as a requester: its posted requests, and the messages that its peer must
/// receive.
#[derive(Debug)]
pub(crate) struct Requester {
    pub(crate) place: Place,
    pub(crate) connection: usize,
    /// Index of this end of the connection, 0 or 1.
    pub(crate) side: usize,
    /// Requester at the other end. `None` for an XRC target, which posts no requests.
    pub(crate) partner: Option<usize>,
    pub(crate) random: Random,
    /// Number of requests that are still to be posted.
    pub(crate) remaining: u32,
    /// Set until the request of maximum length has been posted.
    pub(crate) owes_largest: bool,
    /// Number of bytes that may still be posted in large messages.
    pub(crate) budget: u64,
    pub(crate) posted: VecDeque<Posted>,
    /// Requests that failed, or of an unreliable service, so that their effect at the peer is unknown.
    pub(crate) undone: Vec<Posted>,
    pub(crate) target: Target,
    /// Memory windows to the target.
    pub(crate) windows: Vec<PeerWindow>,
    /// Offset in the target of the next write of an unreliable connection.
    pub(crate) cursor: usize,
    /// Last known value of each shared word at the peer's node.
    pub(crate) seen: [u64; super::cells::WORDS],
    /// Messages that the peer has not received.
    pub(crate) expected: VecDeque<Expected>,
    /// Id of the last message that the peer received.
    pub(crate) told: u64,
    /// Status of the first failed completion.
    pub(crate) ended: Option<CompletionStatus>,
    /// Set once the request that must fail was posted.
    pub(crate) spoiled: bool,
    /// Set while the requester waits for a wakeup to continue posting.
    pub(crate) resting: bool,
}

/// A request that has not completed.
#[derive(Debug)]
pub(crate) struct Posted {
    pub(crate) id: u64,
    pub(crate) work: Work,
    pub(crate) signaled: bool,
    pub(crate) length: usize,
    pub(crate) effect: Effect,
    pub(crate) buffer: Option<Rc<Buffer>>,
    /// Index of the window whose key the request uses or invalidates.
    pub(crate) window: Option<usize>,
}

/// Effect of a successful request.
#[derive(Debug)]
pub(crate) enum Effect {
    /// The peer receives a message.
    Message(Content),
    /// Bytes are written to the target from `offset` on.
    Write {
        offset: usize,
        bytes: Rc<[u8]>,
        /// Set if the peer gets a completion too.
        told: bool,
    },
    /// The buffer contains these bytes of the target.
    Read {
        range: Range<usize>,
        bytes: Rc<[u8]>,
    },
    /// Eight bytes of the target change from `was` to `becomes`, and the buffer contains `was`.
    Atomic {
        offset: usize,
        was: u64,
        becomes: u64,
    },
    /// A shared word changes.
    Shared(Change),
    /// A window to the partner's target is bound.
    Bind { window: usize },
    /// A window to the partner's target is invalidated.
    Invalidate { window: usize },
    /// No effect: the request must fail with one of these statuses.
    Fault(&'static [CompletionStatus]),
}

/// Content of a message.
#[derive(Clone, Debug)]
pub(crate) enum Content {
    /// Bytes derived from the message id.
    Numbered,
    /// Bytes that a read has fetched.
    Read(Rc<[u8]>),
}

impl Content {
    /// Returns the first `length` bytes of message `id`.
    pub(crate) fn bytes(&self, id: u64, length: usize) -> Cow<'_, [u8]> {
        match self {
            Self::Numbered => Cow::Owned(content::message(id, length)),
            Self::Read(bytes) => Cow::Borrowed(&bytes[..length]),
        }
    }
}

/// A message that the peer must receive.
#[derive(Debug)]
pub(crate) struct Expected {
    pub(crate) id: u64,
    pub(crate) content: Content,
    /// Set if the bytes go to the receive's memory. Otherwise they are written to the target.
    pub(crate) is_send: bool,
    pub(crate) length: usize,
    pub(crate) immediate: Option<[u8; 4]>,
    pub(crate) invalidated: Option<u32>,
    pub(crate) solicited: bool,
    pub(crate) srq: Option<u32>,
    /// Statuses of which the receive must have one. Empty if it must succeed.
    pub(crate) fault: &'static [CompletionStatus],
}

/// A memory window to a target. The peer binds it, and the requester uses its key.
#[derive(Debug)]
pub(crate) struct PeerWindow {
    pub(crate) state: WindowState,
    pub(crate) key: u32,
    pub(crate) range: Range<usize>,
}

/// State of a memory window in the model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WindowState {
    /// The peer may bind the window.
    Free,
    /// The binding has been posted.
    Binding,
    /// The requester may use the window's key.
    Bound,
    /// The invalidation has been posted.
    Invalidating,
}

impl Requester {
    /// Returns whether an outstanding read overlaps `range`. If so, a write there needs a fence.
    pub(crate) fn is_reading(&self, range: &Range<usize>) -> bool {
        self.posted.iter().any(|posted| match &posted.effect {
            Effect::Read { range: read, .. } => read.start < range.end && range.start < read.end,
            _ => false,
        })
    }

    /// Returns whether any read is outstanding.
    pub(crate) fn is_reading_anything(&self) -> bool {
        let is_read = |posted: &Posted| matches!(posted.effect, Effect::Read { .. });
        self.posted.iter().any(is_read)
    }

    /// Returns whether an outstanding write or atomic overlaps `range`.
    pub(crate) fn is_writing(&self, range: &Range<usize>) -> bool {
        let overlaps =
            |start: usize, length: usize| start < range.end && range.start < start + length;
        self.posted.iter().any(|posted| match &posted.effect {
            Effect::Write { offset, bytes, .. } => overlaps(*offset, bytes.len()),
            Effect::Atomic { offset, .. } => overlaps(*offset, 8),
            _ => false,
        })
    }

    /// Returns whether an outstanding request uses this window.
    pub(crate) fn uses(&self, window: usize) -> bool {
        self.posted
            .iter()
            .any(|posted| posted.window == Some(window))
    }
}
