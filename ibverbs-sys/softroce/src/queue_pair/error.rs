use libc::c_int;

use super::Exhausted;
use super::transition::Mask;
use crate::proto::State;

/// Reason for which `ibv_modify_qp` fails. The program gets the reason's [error
/// number](Self::errno).
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub(crate) enum ModifyError {
    #[error("the attribute mask has bits that are none: {0:#x}")]
    Unknown(u32),
    #[error("there is no state {0}")]
    NoState(u32),
    #[error("no transition leads from {from:?} to {to:?}")]
    Transition { from: State, to: State },
    #[error("the queue pair is in {0:?}")]
    Current(State),
    #[error("the send queue is still draining")]
    Draining,
    #[error("attributes are missing: {0:?}")]
    Missing(Mask),
    #[error("attributes have no place in this transition: {0:?}")]
    Excess(Mask),
    #[error("{0:?} is out of range")]
    Range(Mask),
    #[error("the address needs a GRH, for RoCE has nothing else")]
    NoRoute,
    #[error("the address's GID cannot be the peer's")]
    Destination,
    #[error("the GID table has no entry {0}")]
    Source(u8),
    #[error("the device cannot migrate paths")]
    Migration,
    #[error(
        "a process that is stopped is in the middle of a copy to or from memory of the queue pair"
    )]
    Visited,
}

impl ModifyError {
    /// Returns the error number (`errno`) that `ibv_modify_qp` returns for this error.
    pub(crate) fn errno(self) -> c_int {
        match self {
            Self::Unknown(_) => libc::EOPNOTSUPP,
            Self::Visited => libc::EBUSY,
            _ => libc::EINVAL,
        }
    }
}

/// Reason for which `ibv_create_qp` fails. The program gets the reason's [error
/// number](Self::errno).
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub(crate) enum CreateError {
    #[error("there is no type {0} of queue pairs")]
    Type(u32),
    #[error("{0} is missing")]
    Missing(&'static str),
    #[error("{0} has no place in this type of queue pair")]
    Excess(&'static str),
    #[error("{0} is of another context")]
    Foreign(&'static str),
    #[error("{what}: {asked} is more than the device's {limit}")]
    Limit {
        what: &'static str,
        asked: u32,
        limit: u32,
    },
    #[error("queue pairs of type {0} are not supported")]
    UnsupportedType(u32),
    #[error("{0} is not supported")]
    Unsupported(&'static str),
    #[error("{0} is being destroyed")]
    Gone(&'static str),
    #[error(transparent)]
    Exhausted(#[from] Exhausted),
}

impl CreateError {
    /// Returns the error number (`errno`) that `ibv_create_qp` sets for this error.
    pub(crate) fn errno(self) -> c_int {
        match self {
            Self::UnsupportedType(_) | Self::Unsupported(_) => libc::EOPNOTSUPP,
            Self::Exhausted(_) => libc::ENOMEM,
            _ => libc::EINVAL,
        }
    }
}

/// Reason for which a request cannot be posted. The posting verb returns the error, and the request
/// has no completion (an immediate error of IBTA 11.4.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub(crate) enum PostError {
    #[error("nothing can be posted in {0:?}")]
    State(State),
    #[error("the queue is full")]
    Full,
    #[error("the queue pair's receives come from a shared queue, or it has none")]
    NoQueue,
    #[error("this type of queue pair has no such operation")]
    Operation,
    #[error("more pieces than a request may have")]
    Segments,
    #[error("the length is wrong for the operation")]
    Length,
    #[error("the data cannot be inline")]
    Inline,
    #[error("flags that are none, or that the device does not support")]
    Flags,
    #[error("the address handle is none of the queue pair's domain")]
    Address,
    #[error("the window or the region cannot be bound so")]
    Bind,
    #[error("the device has no such operation")]
    Unsupported,
    #[error("the calls are not in the order that makes a request")]
    Order,
}

impl PostError {
    /// Returns the error number (`errno`) for this error, which `ibv_post_send`, `ibv_post_recv`
    /// and `ibv_wr_complete` return.
    pub(crate) fn errno(self) -> c_int {
        match self {
            Self::Full => libc::ENOMEM,
            Self::Unsupported => libc::EOPNOTSUPP,
            _ => libc::EINVAL,
        }
    }
}
