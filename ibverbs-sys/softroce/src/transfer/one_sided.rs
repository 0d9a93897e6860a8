//! Executor of one-sided operations: reads, writes and atomics in the memory of the peer, by a thread of the sender.

use std::ops::Range;

use crate::proto::{Data, Posted, Remote, Segment, SendOperation, SendRequest, Work};

/// Maximum number of bytes of one copy. A process that withdraws memory waits until a running copy ends.
pub(crate) const STRIDE: u32 = 1 << 20;

/// An operation that needs no thread of the target.
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

/// Reason why an operation was not executed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Undone {
    /// The operation was not executed, or only in part, and can be repeated.
    Left,
    /// The operation was executed and cannot be repeated, but its result could not be stored.
    Lost,
}

/// Access to the memory of both sides of an operation. Implementations check the keys, the bounds and the access rights.
pub(crate) trait Reach {
    /// Copies a range of the bytes of `from` to memory of the peer. Returns `None` on failure; some bytes may have been copied.
    fn put(&mut self, from: Data<'_>, range: Range<u32>, to: Remote) -> Option<()>;

    /// Copies memory of the peer to a range of the bytes of `to`. Returns `None` on failure; some bytes may have been copied.
    fn get(&mut self, to: Data<'_>, range: Range<u32>, from: Remote) -> Option<()>;

    /// Executes an atomic operation on memory of the peer, and stores the previous value in the first eight bytes of `result`.
    fn atomic(&mut self, at: Remote, atomic: Atomic, result: &[Segment]) -> Result<(), Undone>;
}

impl<'a> OneSided<'a> {
    /// Executes a range of the bytes of a read or a write, or a whole atomic. A range has at most [`STRIDE`] bytes.
    ///
    /// # Errors
    /// [`Undone::Left`] also for an operation that is invalid or not allowed. The caller then sends packets, whose responses
    /// report the reason.
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

    /// Returns the write part of a posted write with immediate data, or `None` for a send.
    pub(crate) fn posted(message: &Posted, data: Data<'a>) -> Option<Self> {
        Some(Self {
            id: message.id,
            action: Action::Write,
            remote: message.remote?,
            data,
            signaled: message.signaled,
        })
    }

    /// Returns a request as a one-sided operation; for a write with immediate data, its write part. Returns `None` for a
    /// request that needs a receive at the target, or that does nothing there.
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
    /// Returns the kind of work that a completion reports.
    pub(crate) fn work(self) -> Work {
        match self {
            Self::Write => Work::Write,
            Self::Read => Work::Read,
            Self::Atomic(Atomic::CompareSwap { .. }) => Work::CompareSwap,
            Self::Atomic(Atomic::FetchAdd { .. }) => Work::FetchAdd,
        }
    }
}
