//! The states of a queue pair.

use std::fmt;

use ibverbs_sys::ibv_qp_state as raw;

/// The state of a queue pair (`ibv_qp_state`; IBTA volume 1, 10.3.1).
#[doc(alias = "ibv_qp_state")]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum QueuePairState {
    /// RESET: the queue pair was newly created, or was reset. No request can be posted.
    Reset,
    /// INIT: receives can be posted, but the queue pair accepts no message yet.
    Init,
    /// RTR: ready to receive.
    ReadyToReceive,
    /// RTS: ready to send and receive.
    ReadyToSend,
    /// SQD: the send queue is draining or has drained. Receives continue.
    SendQueueDrain,
    /// SQE: a send failed, and the send queue has stopped. Receives continue.
    SendQueueError,
    /// ERR: the device flushes all outstanding requests, and all requests posted later.
    Error,
    /// A value that this crate does not know.
    Unknown(u32),
}

impl QueuePairState {
    /// All queue pair states that this crate knows.
    pub const ALL: [Self; 7] = [
        Self::Reset,
        Self::Init,
        Self::ReadyToReceive,
        Self::ReadyToSend,
        Self::SendQueueDrain,
        Self::SendQueueError,
        Self::Error,
    ];

    pub(crate) fn to_raw(self) -> raw {
        match self {
            Self::Reset => raw::IBV_QPS_RESET,
            Self::Init => raw::IBV_QPS_INIT,
            Self::ReadyToReceive => raw::IBV_QPS_RTR,
            Self::ReadyToSend => raw::IBV_QPS_RTS,
            Self::SendQueueDrain => raw::IBV_QPS_SQD,
            Self::SendQueueError => raw::IBV_QPS_SQE,
            Self::Error => raw::IBV_QPS_ERR,
            Self::Unknown(other) => raw(other),
        }
    }

    pub(crate) fn from_raw(state: raw) -> Self {
        match state {
            raw::IBV_QPS_RESET => Self::Reset,
            raw::IBV_QPS_INIT => Self::Init,
            raw::IBV_QPS_RTR => Self::ReadyToReceive,
            raw::IBV_QPS_RTS => Self::ReadyToSend,
            raw::IBV_QPS_SQD => Self::SendQueueDrain,
            raw::IBV_QPS_SQE => Self::SendQueueError,
            raw::IBV_QPS_ERR => Self::Error,
            raw(other) => Self::Unknown(other),
        }
    }
}

impl fmt::Display for QueuePairState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Reset => "RESET",
            Self::Init => "INIT",
            Self::ReadyToReceive => "RTR",
            Self::ReadyToSend => "RTS",
            Self::SendQueueDrain => "SQD",
            Self::SendQueueError => "SQE",
            Self::Error => "ERR",
            Self::Unknown(value) => return write!(f, "state {value}"),
        })
    }
}
