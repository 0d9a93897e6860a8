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

/// One end of a connection as one that asks: what it posted and has not been told the end of, and
/// what its peer must be told.
#[derive(Debug)]
pub(crate) struct Requester {
    pub(crate) place: Place,
    pub(crate) connection: usize,
    /// Which end of it.
    pub(crate) side: usize,
    /// The other end as one that asks; an XRC target asks nothing.
    pub(crate) partner: Option<usize>,
    pub(crate) random: Random,
    /// Requests it has still to post.
    pub(crate) remaining: u32,
    /// It still has to post its largest one.
    pub(crate) owes_largest: bool,
    /// Bytes it may still post in large messages.
    pub(crate) budget: u64,
    pub(crate) posted: VecDeque<Posted>,
    /// Requests that ended without success, or of which success says nothing of the peer.
    pub(crate) undone: Vec<Posted>,
    pub(crate) target: Target,
    /// Windows onto the target.
    pub(crate) windows: Vec<PeerWindow>,
    /// Where the next write of an unreliable connection goes.
    pub(crate) cursor: usize,
    /// What each word of the peer's node was when it was last seen.
    pub(crate) seen: [u64; super::cells::WORDS],
    /// Messages the peer has not been told of.
    pub(crate) expected: VecDeque<Expected>,
    /// The last request the peer was told of.
    pub(crate) told: u64,
    /// The first completion that was no success.
    pub(crate) ended: Option<CompletionStatus>,
    /// The request that is to fail was posted.
    pub(crate) spoiled: bool,
    /// It waits for a moment to post again.
    pub(crate) resting: bool,
}

/// A request of which the end has not been told.
#[derive(Debug)]
pub(crate) struct Posted {
    pub(crate) id: u64,
    pub(crate) work: Work,
    pub(crate) signaled: bool,
    pub(crate) length: usize,
    pub(crate) effect: Effect,
    pub(crate) buffer: Option<Rc<Buffer>>,
    /// The window it goes through.
    pub(crate) window: Option<usize>,
}

/// What a request does when it succeeds.
#[derive(Debug)]
pub(crate) enum Effect {
    /// The peer is told of a message.
    Message(Content),
    /// Bytes are written, from an offset of the target on.
    Write {
        offset: usize,
        bytes: Rc<[u8]>,
        /// The peer is told too.
        told: bool,
    },
    /// The buffer holds these bytes.
    Read {
        range: Range<usize>,
        bytes: Rc<[u8]>,
    },
    /// Eight bytes of the target change; the buffer holds what they were.
    Atomic {
        offset: usize,
        was: u64,
        becomes: u64,
    },
    /// A word of all changes.
    Shared(Change),
    /// A window onto the partner's target is bound.
    Bind { window: usize },
    /// A window onto the partner's target becomes invalid.
    Invalidate { window: usize },
    /// None: it fails in one of these ways.
    Fault(&'static [CompletionStatus]),
}

/// The bytes of a message.
#[derive(Clone, Debug)]
pub(crate) enum Content {
    /// Those of its number.
    Numbered,
    /// Those of something that was read.
    Read(Rc<[u8]>),
}

impl Content {
    /// The first `length` bytes of message `id`.
    pub(crate) fn bytes(&self, id: u64, length: usize) -> Cow<'_, [u8]> {
        match self {
            Self::Numbered => Cow::Owned(content::message(id, length)),
            Self::Read(bytes) => Cow::Borrowed(&bytes[..length]),
        }
    }
}

/// A message as the peer must be told of it.
#[derive(Debug)]
pub(crate) struct Expected {
    pub(crate) id: u64,
    pub(crate) content: Content,
    /// It comes to the receive's memory; else it was written.
    pub(crate) is_send: bool,
    pub(crate) length: usize,
    pub(crate) immediate: Option<[u8; 4]>,
    pub(crate) invalidated: Option<u32>,
    pub(crate) solicited: bool,
    pub(crate) srq: Option<u32>,
    /// The receive ends in one of these ways instead.
    pub(crate) fault: &'static [CompletionStatus],
}

/// A window onto a target: the peer binds it, the requester goes through it.
#[derive(Debug)]
pub(crate) struct PeerWindow {
    pub(crate) state: WindowState,
    pub(crate) key: u32,
    pub(crate) range: Range<usize>,
}

/// What may be done with a window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WindowState {
    /// The owner may bind it.
    Free,
    /// It is being bound.
    Binding,
    /// The peer may go through it.
    Bound,
    /// It is being made invalid.
    Invalidating,
}

impl Requester {
    /// Whether a read that has not ended looks at `range`: a write there must wait for it.
    pub(crate) fn is_reading(&self, range: &Range<usize>) -> bool {
        self.posted.iter().any(|posted| match &posted.effect {
            Effect::Read { range: read, .. } => read.start < range.end && range.start < read.end,
            _ => false,
        })
    }

    /// Whether any read has not ended.
    pub(crate) fn is_reading_anything(&self) -> bool {
        let is_read = |posted: &Posted| matches!(posted.effect, Effect::Read { .. });
        self.posted.iter().any(is_read)
    }

    /// Whether something that is posted and has not ended writes to `range`.
    pub(crate) fn is_writing(&self, range: &Range<usize>) -> bool {
        let overlaps =
            |start: usize, length: usize| start < range.end && range.start < start + length;
        self.posted.iter().any(|posted| match &posted.effect {
            Effect::Write { offset, bytes, .. } => overlaps(*offset, bytes.len()),
            Effect::Atomic { offset, .. } => overlaps(*offset, 8),
            _ => false,
        })
    }

    /// Whether a window is in use.
    pub(crate) fn uses(&self, window: usize) -> bool {
        self.posted
            .iter()
            .any(|posted| posted.window == Some(window))
    }
}
