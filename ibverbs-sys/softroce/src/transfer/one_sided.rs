//! The executor of one-sided work: reads, writes and atomics in the memory of the peer, by a thread of the sender.

use std::ops::Range;

use crate::proto::{Data, Posted, Remote, Segment, SendOperation, SendRequest, Work};

/// Maximum number of bytes that are copied in one go: a process that takes its memory back waits for the end of a copy.
pub(crate) const STRIDE: u32 = 1 << 20;

/// A request that needs nothing of the target's program.
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
    Atomic(Atomic),
}

/// An atomic operation on eight bytes.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Atomic {
    CompareSwap { compare: u64, swap: u64 },
    FetchAdd { add: u64 },
}

/// Reason why a request was not executed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Undone {
    /// The request was not done, or only in part, and can be done again.
    Left,
    /// The request was done and cannot be done again, but its result could not be stored.
    Lost,
}

/// The memory of both sides, as a request names it. Each function checks the keys, the bounds and the rights.
pub(crate) trait Reach {
    /// Copies a range of the bytes of `from` to the peer. Returns `None` if that cannot be done; some bytes may be copied then.
    fn put(&mut self, from: Data<'_>, range: Range<u32>, to: Remote) -> Option<()>;

    /// Copies from the peer to a range of the bytes of `to`. Returns `None` as [`put`](Self::put) does.
    fn get(&mut self, to: Data<'_>, range: Range<u32>, from: Remote) -> Option<()>;

    /// Does an atomic operation on memory of the peer, and stores the value from before in the first eight bytes of
    /// `result`.
    fn atomic(&mut self, at: Remote, atomic: Atomic, result: &[Segment]) -> Result<(), Undone>;
}

impl<'a> OneSided<'a> {
    /// Executes a range of the bytes of a read or a write, or all of an atomic. A range has at most [`STRIDE`] bytes.
    ///
    /// # Errors
    /// [`Undone::Left`] also for a request that is not allowed or wrong: packets find out why, and report it.
    #[inline(always)]
    pub(crate) fn execute(&self, range: Range<u32>, reach: &mut impl Reach) -> Result<(), Undone> {
        let address = self.remote.address.checked_add(range.start.into());
        let remote = Remote {
            address: address.ok_or(Undone::Left)?,
            key: self.remote.key,
        };
        match self.action {
            Action::Write => reach.put(self.data, range, remote).ok_or(Undone::Left),
            Action::Read => reach.get(self.data, range, remote).ok_or(Undone::Left),
            Action::Atomic(atomic) => {
                let Data::Gathered(result) = self.data else {
                    return Err(Undone::Left);
                };
                if !remote.address.is_multiple_of(8) {
                    return Err(Undone::Left);
                }
                reach.atomic(remote, atomic, result)
            }
        }
    }

    /// Returns the write of a write with immediate data that is posted, or `None` for a send.
    pub(crate) fn posted(message: &Posted, data: Data<'a>) -> Option<Self> {
        Some(Self {
            id: message.id,
            action: Action::Write,
            remote: message.remote?,
            data,
            signaled: message.signaled,
        })
    }

    /// Returns a request as one-sided work: of a write with immediate data, the write. Returns `None` for a request that takes
    /// a receive at the target, or that has nothing to do there.
    pub(crate) fn of(request: &'a SendRequest) -> Option<Self> {
        let (action, remote) = match request.operation {
            SendOperation::Write { remote, .. } => (Action::Write, remote),
            SendOperation::Read { remote } => (Action::Read, remote),
            SendOperation::CompareSwap {
                remote,
                compare,
                swap,
            } => (
                Action::Atomic(Atomic::CompareSwap { compare, swap }),
                remote,
            ),
            SendOperation::FetchAdd { remote, add } => {
                (Action::Atomic(Atomic::FetchAdd { add }), remote)
            }
            _ => return None,
        };
        Some(Self {
            id: request.id,
            action,
            remote,
            data: request.payload.data(),
            signaled: request.signaled,
        })
    }
}

impl Action {
    /// Returns the work that a completion reports.
    pub(crate) fn work(self) -> Work {
        match self {
            Self::Write => Work::Write,
            Self::Read => Work::Read,
            Self::Atomic(Atomic::CompareSwap { .. }) => Work::CompareSwap,
            Self::Atomic(Atomic::FetchAdd { .. }) => Work::FetchAdd,
        }
    }
}
