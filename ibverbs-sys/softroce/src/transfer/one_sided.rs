//! Executor of one-sided operations: reads, writes and atomics in the memory of the peer, by a
//! thread of the sender.

use std::ops::Range;

use crate::proto::{
    CompletionOpcode, Data, Remote, Segment, SendOperation, SendRequest, UnqueuedMessage,
};

/// Maximum number of bytes that are copied in one step to or from the peer's memory. A process that
/// withdraws a key of its memory waits until the running copy ends. The limit keeps this wait
/// short.
pub(crate) const MAX_COPY: u32 = 1 << 20;

/// A read, write or atomic operation that the sender's thread executes directly in the memory of
/// the peer, without a thread of the peer.
#[derive(Clone, Copy, Debug)]
pub(crate) struct OneSided<'a> {
    pub(crate) id: u64,
    pub(crate) action: Action,
    pub(crate) remote: Remote,
    pub(crate) data: Data<'a>,
    pub(crate) signaled: bool,
}

/// Kind of a [`OneSided`] request: read, write, or atomic operation. An atomic operation includes
/// its operands.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Action {
    Write,
    Read,
    Atomic(Atomic),
}

/// An atomic operation on eight bytes of the peer's memory, with its operands.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Atomic {
    CompareSwap { compare: u64, swap: u64 },
    FetchAdd { add: u64 },
}

/// Reason for which a one-sided operation did not succeed. The reason determines whether the
/// operation can be sent as packets instead.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OneSidedError {
    /// The operation was not executed, or only in part, and can be repeated.
    NotExecuted,
    /// The operation was executed and cannot be repeated, but its result could not be stored in
    /// local memory.
    ResultLost,
}

/// Access to local memory and to the peer's memory, for a read, write or atomic operation that the
/// sender's thread executes without a thread of the peer. Implementations check the keys, the
/// bounds and the access rights.
pub(crate) trait MemoryAccess {
    /// Copies the bytes `range` of the local payload `from` to the peer's memory, beginning at the
    /// address `to`. Returns `None` if the copy fails. Some bytes can have been copied
    /// nevertheless.
    fn put(&mut self, from: Data<'_>, range: Range<u32>, to: Remote) -> Option<()>;

    /// Copies bytes of the peer's memory to the bytes `range` of the local message `to`. `from` is
    /// the location of the first byte in the peer's memory. Returns `None` if not all bytes were
    /// copied.
    fn get(&mut self, to: Data<'_>, range: Range<u32>, from: Remote) -> Option<()>;

    /// Executes the atomic operation `atomic` on the eight bytes of the peer's memory at `at`, and
    /// stores the previous value in the first eight bytes of `result`.
    fn atomic(
        &mut self,
        at: Remote,
        atomic: Atomic,
        result: &[Segment],
    ) -> Result<(), OneSidedError>;
}

impl<'a> OneSided<'a> {
    /// Executes the read, write or atomic operation, and accesses the memory of both sides through
    /// `reach`. Of a read or write, executes only the bytes `range`, at most [`MAX_COPY`].
    ///
    /// # Errors
    /// * [`OneSidedError::NotExecuted`] if the operation could not be executed, for example because
    ///   it is invalid or not allowed. The caller then sends the request as packets, and the peer's
    ///   response reports the reason.
    /// * [`OneSidedError::ResultLost`] if the result of an atomic could not be stored.
    #[inline(always)]
    pub(crate) fn execute(
        &self,
        range: Range<u32>,
        reach: &mut impl MemoryAccess,
    ) -> Result<(), OneSidedError> {
        let address = self.remote.address.checked_add(range.start.into());
        let remote = Remote {
            address: address.ok_or(OneSidedError::NotExecuted)?,
            key: self.remote.key,
        };
        match self.action {
            Action::Write => reach
                .put(self.data, range, remote)
                .ok_or(OneSidedError::NotExecuted),
            Action::Read => reach
                .get(self.data, range, remote)
                .ok_or(OneSidedError::NotExecuted),
            Action::Atomic(atomic) => {
                let Data::Gathered(result) = self.data else {
                    return Err(OneSidedError::NotExecuted);
                };
                if !remote.address.is_multiple_of(8) {
                    return Err(OneSidedError::NotExecuted);
                }
                reach.atomic(remote, atomic, result)
            }
        }
    }

    /// Returns the RDMA write of `message`, a write with immediate data. The result does not
    /// contain the immediate data. Returns `None` if `message` is a send. `data` is the payload to
    /// write.
    pub(crate) fn posted(message: &UnqueuedMessage, data: Data<'a>) -> Option<Self> {
        Some(Self {
            id: message.id,
            action: Action::Write,
            remote: message.remote?,
            data,
            signaled: message.signaled,
        })
    }

    /// Returns the part of `request` that can be executed directly in the peer's memory: a read, an
    /// atomic, or a write without its immediate data. Returns `None` for any other request.
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
    /// Returns the kind of this operation, which its work completion reports (`ibv_wc_opcode`).
    pub(crate) fn completion_opcode(self) -> CompletionOpcode {
        match self {
            Self::Write => CompletionOpcode::Write,
            Self::Read => CompletionOpcode::Read,
            Self::Atomic(Atomic::CompareSwap { .. }) => CompletionOpcode::CompareSwap,
            Self::Atomic(Atomic::FetchAdd { .. }) => CompletionOpcode::FetchAdd,
        }
    }
}
