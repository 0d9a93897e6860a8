//! The executor of one-sided work: reads, writes and atomics in the memory of another process, by a thread of this one.

use std::ops::Range;

use smallvec::SmallVec;

use crate::context::DomainId;
use crate::memory::{Piece, Regions};
use crate::proto::{Payload, Remote, Segment, SendOperation, SendRequest, Work};
use crate::same_host::{Access, Atomic, Visit};

/// Maximum number of bytes that are copied in one visit: a process that takes its memory back waits for the end of a visit.
pub(super) const STRIDE: u32 = 1 << 20;

/// A request that needs nothing of the target's process.
#[derive(Clone, Copy, Debug)]
pub(crate) struct OneSided<'a> {
    pub(crate) id: u64,
    pub(crate) action: Action,
    pub(crate) remote: Remote,
    pub(crate) data: Data<'a>,
    pub(crate) signaled: bool,
}

/// Operation of the request.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Action {
    Write,
    Read,
    CompareSwap { compare: u64, swap: u64 },
    FetchAdd { add: u64 },
}

/// The bytes of the request in this process.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Data<'a> {
    Gathered(&'a [Segment]),
    Inline(&'a [u8]),
}

/// Reason why a request was not carried out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Undone {
    /// The request was not done, or only in part, and can be done again.
    Left,
    /// The request was done and cannot be done again, but its result could not be stored.
    Lost,
}

/// The memory of this process, as the requests of a queue pair name it.
pub(super) struct Executor<'a> {
    pub(super) domain: DomainId,
    pub(super) regions: Regions<'a>,
}

impl Executor<'_> {
    /// Carries out a range of the bytes of a read or a write, or all of an atomic. A range has at most [`STRIDE`] bytes.
    #[inline]
    pub(super) fn execute(
        &self,
        request: &OneSided<'_>,
        range: Range<u32>,
        visit: &mut Visit<'_>,
    ) -> Result<(), Undone> {
        let address = request.remote.address.checked_add(range.start.into());
        let remote = Remote {
            address: address.ok_or(Undone::Left)?,
            key: request.remote.key,
        };
        let atomic = match request.action {
            Action::Write => {
                let put = self.with_pieces(request.data, range, false, |pieces| {
                    visit.access(remote, Access::Put(pieces))
                });
                return put.ok_or(Undone::Left);
            }
            Action::Read => {
                let got = self.with_pieces(request.data, range, true, |pieces| {
                    visit.access(remote, Access::Get(pieces))
                });
                return got.ok_or(Undone::Left);
            }
            Action::CompareSwap { compare, swap } => Atomic::CompareSwap { compare, swap },
            Action::FetchAdd { add } => Atomic::FetchAdd { add },
        };
        let Data::Gathered([segment]) = request.data else {
            return Err(Undone::Left);
        };
        if segment.length != 8 {
            return Err(Undone::Left);
        }
        // The key of the result's memory is checked first: after the operation, the result can be lost only if that
        // memory is missing.
        let piece = self.regions.piece(self.domain, segment, true);
        let piece = piece.ok_or(Undone::Left)?;
        let before = visit.atomic(remote, atomic).ok_or(Undone::Left)?;
        piece.store(before).ok_or(Undone::Lost)
    }

    /// Calls `act` with a range of the bytes of a request. Returns `None` if the bytes cannot be accessed as requested, or if
    /// `act` returns `None`.
    #[inline]
    fn with_pieces(
        &self,
        data: Data<'_>,
        range: Range<u32>,
        write: bool,
        act: impl FnOnce(&[Piece<'_>]) -> Option<()>,
    ) -> Option<()> {
        match data {
            Data::Gathered([only]) if range == (0..only.length) && only.length > 0 => {
                act(&[self.regions.piece(self.domain, only, write)?])
            }
            Data::Gathered(list) => {
                let parts = Segment::parts(list, range.start, range.len() as u32);
                let pieces = parts.map(|part| self.regions.piece(self.domain, &part, write));
                act(&pieces.collect::<Option<SmallVec<[Piece<'_>; 4]>>>()?)
            }
            Data::Inline(_) if write => None,
            Data::Inline(bytes) => {
                let range = range.start as usize..range.end as usize;
                act(&[Piece::of(bytes.get(range)?)])
            }
        }
    }
}

impl<'a> OneSided<'a> {
    /// Returns a request as one-sided work. Returns `None` for a request that takes a receive at the target, or that has
    /// nothing to do there.
    pub(super) fn of(request: &'a SendRequest) -> Option<Self> {
        let (action, remote) = match request.operation {
            SendOperation::Write {
                remote,
                immediate: None,
            } => (Action::Write, remote),
            SendOperation::Read { remote } => (Action::Read, remote),
            SendOperation::CompareSwap {
                remote,
                compare,
                swap,
            } => (Action::CompareSwap { compare, swap }, remote),
            SendOperation::FetchAdd { remote, add } => (Action::FetchAdd { add }, remote),
            _ => return None,
        };
        Some(Self {
            id: request.id,
            action,
            remote,
            data: Data::of(&request.payload),
            signaled: request.signaled,
        })
    }

    /// Returns the write of the bytes of a request to `remote`.
    pub(super) fn write(request: &'a SendRequest, remote: Remote) -> Self {
        Self {
            id: request.id,
            action: Action::Write,
            remote,
            data: Data::of(&request.payload),
            signaled: request.signaled,
        }
    }
}

impl<'a> Data<'a> {
    fn of(payload: &'a Payload) -> Self {
        match payload {
            Payload::Gathered(list) => Self::Gathered(list),
            Payload::Inline(bytes) => Self::Inline(bytes),
        }
    }

    /// Returns the number of bytes. Returns `None` if there are more than a request can have.
    #[inline]
    pub(super) fn length(&self) -> Option<u32> {
        match self {
            Self::Gathered([only]) => Some(only.length),
            Self::Gathered(list) => {
                (list.iter()).try_fold(0, |total: u32, segment| total.checked_add(segment.length))
            }
            Self::Inline(bytes) => u32::try_from(bytes.len()).ok(),
        }
    }
}

impl Action {
    /// Returns the work that a completion reports.
    pub(super) fn work(self) -> Work {
        match self {
            Self::Write => Work::Write,
            Self::Read => Work::Read,
            Self::CompareSwap { .. } => Work::CompareSwap,
            Self::FetchAdd { .. } => Work::FetchAdd,
        }
    }
}
