//! What can happen.

use std::fmt;

use ibverbs_sys::ibv_event_type as Kind;

use super::AsyncEventObject;
use crate::completion::CompletionQueueId;
use crate::ffi::{DEVICE_SPEED_CHANGE, RawEvent};
use crate::receive::SharedReceiveQueueId;

/// Something that happened at a device and that no completion tells (`ibv_async_event`).
///
/// Queue pairs and work queues are named by their numbers, completion queues and shared receive
/// queues by their ids, ports by their numbers. The object may be gone by now.
#[doc(alias = "ibv_async_event")]
#[doc(alias = "ibv_event_type")]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum AsyncEvent {
    /// A completion queue overflowed or failed: it gives no completions any more, and its queue
    /// pairs fail.
    #[doc(alias = "IBV_EVENT_CQ_ERR")]
    CompletionQueueError {
        /// Which one.
        completion_queue: CompletionQueueId,
    },
    /// A queue pair failed in a way that no completion can tell, and is in the error state.
    #[doc(alias = "IBV_EVENT_QP_FATAL")]
    QueuePairFatal {
        /// Which one.
        queue_pair: u32,
    },
    /// A peer's request was invalid; the queue pair is in the error state.
    #[doc(alias = "IBV_EVENT_QP_REQ_ERR")]
    QueuePairRequestError {
        /// Which one received it.
        queue_pair: u32,
    },
    /// A peer's request reached for memory that it may not; the queue pair is in the error state.
    #[doc(alias = "IBV_EVENT_QP_ACCESS_ERR")]
    QueuePairAccessError {
        /// Which one received it.
        queue_pair: u32,
    },
    /// A queue pair that is not ready to send yet has received its first message.
    #[doc(alias = "IBV_EVENT_COMM_EST")]
    CommunicationEstablished {
        /// Which one.
        queue_pair: u32,
    },
    /// A send queue that was told to drain has finished what it had begun.
    #[doc(alias = "IBV_EVENT_SQ_DRAINED")]
    SendQueueDrained {
        /// Whose.
        queue_pair: u32,
    },
    /// A connection moved to its alternate path.
    #[doc(alias = "IBV_EVENT_PATH_MIG")]
    PathMigrated {
        /// Whose.
        queue_pair: u32,
    },
    /// A connection could not move to its alternate path.
    #[doc(alias = "IBV_EVENT_PATH_MIG_ERR")]
    PathMigrationFailed {
        /// Whose.
        queue_pair: u32,
    },
    /// A queue pair in the error state takes no more from its shared receive queue: once its
    /// completions are polled it can be destroyed and nothing is lost.
    #[doc(alias = "IBV_EVENT_QP_LAST_WQE_REACHED")]
    LastRequestReached {
        /// Which one.
        queue_pair: u32,
    },
    /// A shared receive queue failed.
    #[doc(alias = "IBV_EVENT_SRQ_ERR")]
    SharedReceiveQueueError {
        /// Which one.
        shared_receive_queue: SharedReceiveQueueId,
    },
    /// A shared receive queue holds fewer receives than its limit; the limit is now off.
    #[doc(alias = "IBV_EVENT_SRQ_LIMIT_REACHED")]
    SharedReceiveQueueLimit {
        /// Which one.
        shared_receive_queue: SharedReceiveQueueId,
    },
    /// A work queue failed.
    #[doc(alias = "IBV_EVENT_WQ_FATAL")]
    WorkQueueFatal {
        /// Its number.
        work_queue: u32,
    },
    /// A port's link is up.
    #[doc(alias = "IBV_EVENT_PORT_ACTIVE")]
    PortActive {
        /// Which one.
        port: u8,
    },
    /// A port's link is down.
    #[doc(alias = "IBV_EVENT_PORT_ERR")]
    PortError {
        /// Which one.
        port: u8,
    },
    /// A port's LID changed.
    #[doc(alias = "IBV_EVENT_LID_CHANGE")]
    LidChange {
        /// Which one's.
        port: u8,
    },
    /// A port's P_Key table changed.
    #[doc(alias = "IBV_EVENT_PKEY_CHANGE")]
    PkeyChange {
        /// Which one's.
        port: u8,
    },
    /// A port has another subnet manager.
    #[doc(alias = "IBV_EVENT_SM_CHANGE")]
    SubnetManagerChange {
        /// Which one.
        port: u8,
    },
    /// A port's subnet manager asks for every registration anew, those of multicast groups too.
    #[doc(alias = "IBV_EVENT_CLIENT_REREGISTER")]
    ClientReregister {
        /// Which one's.
        port: u8,
    },
    /// A port's GID table changed.
    #[doc(alias = "IBV_EVENT_GID_CHANGE")]
    GidChange {
        /// Which one's.
        port: u8,
    },
    /// A port's link has another speed.
    #[doc(alias = "IBV_EVENT_DEVICE_SPEED_CHANGE")]
    SpeedChange {
        /// Which one's.
        port: u8,
    },
    /// The device failed: nothing works any more, and closing everything is all that is left.
    #[doc(alias = "IBV_EVENT_DEVICE_FATAL")]
    DeviceFatal,
    /// One that this crate does not know, by its `ibv_event_type`.
    Unknown(u32),
}

impl AsyncEvent {
    pub(crate) fn from_raw(event: RawEvent) -> Self {
        let completion_queue = CompletionQueueId(event.about);
        let shared_receive_queue = SharedReceiveQueueId(event.about);
        // Of numbers of this width.
        let queue_pair = u32::try_from(event.about).unwrap_or(0);
        let port = u8::try_from(event.about).unwrap_or(0);
        match event.kind {
            Kind::IBV_EVENT_CQ_ERR => Self::CompletionQueueError { completion_queue },
            Kind::IBV_EVENT_QP_FATAL => Self::QueuePairFatal { queue_pair },
            Kind::IBV_EVENT_QP_REQ_ERR => Self::QueuePairRequestError { queue_pair },
            Kind::IBV_EVENT_QP_ACCESS_ERR => Self::QueuePairAccessError { queue_pair },
            Kind::IBV_EVENT_COMM_EST => Self::CommunicationEstablished { queue_pair },
            Kind::IBV_EVENT_SQ_DRAINED => Self::SendQueueDrained { queue_pair },
            Kind::IBV_EVENT_PATH_MIG => Self::PathMigrated { queue_pair },
            Kind::IBV_EVENT_PATH_MIG_ERR => Self::PathMigrationFailed { queue_pair },
            Kind::IBV_EVENT_QP_LAST_WQE_REACHED => Self::LastRequestReached { queue_pair },
            Kind::IBV_EVENT_SRQ_ERR => Self::SharedReceiveQueueError {
                shared_receive_queue,
            },
            Kind::IBV_EVENT_SRQ_LIMIT_REACHED => Self::SharedReceiveQueueLimit {
                shared_receive_queue,
            },
            Kind::IBV_EVENT_WQ_FATAL => Self::WorkQueueFatal {
                work_queue: queue_pair,
            },
            Kind::IBV_EVENT_PORT_ACTIVE => Self::PortActive { port },
            Kind::IBV_EVENT_PORT_ERR => Self::PortError { port },
            Kind::IBV_EVENT_LID_CHANGE => Self::LidChange { port },
            Kind::IBV_EVENT_PKEY_CHANGE => Self::PkeyChange { port },
            Kind::IBV_EVENT_SM_CHANGE => Self::SubnetManagerChange { port },
            Kind::IBV_EVENT_CLIENT_REREGISTER => Self::ClientReregister { port },
            Kind::IBV_EVENT_GID_CHANGE => Self::GidChange { port },
            DEVICE_SPEED_CHANGE => Self::SpeedChange { port },
            Kind::IBV_EVENT_DEVICE_FATAL => Self::DeviceFatal,
            Kind(other) => Self::Unknown(other),
        }
    }

    /// What it is about.
    pub fn object(&self) -> AsyncEventObject {
        match *self {
            Self::CompletionQueueError { completion_queue } => {
                AsyncEventObject::CompletionQueue(completion_queue)
            }
            Self::QueuePairFatal { queue_pair }
            | Self::QueuePairRequestError { queue_pair }
            | Self::QueuePairAccessError { queue_pair }
            | Self::CommunicationEstablished { queue_pair }
            | Self::SendQueueDrained { queue_pair }
            | Self::PathMigrated { queue_pair }
            | Self::PathMigrationFailed { queue_pair }
            | Self::LastRequestReached { queue_pair } => AsyncEventObject::QueuePair(queue_pair),
            Self::SharedReceiveQueueError {
                shared_receive_queue,
            }
            | Self::SharedReceiveQueueLimit {
                shared_receive_queue,
            } => AsyncEventObject::SharedReceiveQueue(shared_receive_queue),
            Self::WorkQueueFatal { work_queue } => AsyncEventObject::WorkQueue(work_queue),
            Self::PortActive { port }
            | Self::PortError { port }
            | Self::LidChange { port }
            | Self::PkeyChange { port }
            | Self::SubnetManagerChange { port }
            | Self::ClientReregister { port }
            | Self::GidChange { port }
            | Self::SpeedChange { port } => AsyncEventObject::Port(port),
            Self::DeviceFatal => AsyncEventObject::Device,
            Self::Unknown(_) => AsyncEventObject::Unknown,
        }
    }

    /// Whether what it is about does not work any more: nothing new comes of a queue, and of a
    /// device nothing at all. A port whose link is down may come back.
    pub fn is_fatal(&self) -> bool {
        matches!(
            self,
            Self::CompletionQueueError { .. }
                | Self::QueuePairFatal { .. }
                | Self::QueuePairRequestError { .. }
                | Self::QueuePairAccessError { .. }
                | Self::SharedReceiveQueueError { .. }
                | Self::WorkQueueFatal { .. }
                | Self::DeviceFatal
        )
    }
}

impl fmt::Display for AsyncEvent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let what = match self {
            Self::CompletionQueueError { .. } => "failed, by an overflow usually",
            Self::QueuePairFatal { .. } | Self::SharedReceiveQueueError { .. } => "failed",
            Self::WorkQueueFatal { .. } | Self::DeviceFatal => "failed",
            Self::QueuePairRequestError { .. } => "received an invalid request",
            Self::QueuePairAccessError { .. } => "received a request for memory out of reach",
            Self::CommunicationEstablished { .. } => "received its first message",
            Self::SendQueueDrained { .. } => "has drained its send queue",
            Self::PathMigrated { .. } => "moved to its alternate path",
            Self::PathMigrationFailed { .. } => "could not move to its alternate path",
            Self::LastRequestReached { .. } => "takes no more receives",
            Self::SharedReceiveQueueLimit { .. } => "holds fewer receives than its limit",
            Self::PortActive { .. } => "is active",
            Self::PortError { .. } => "lost its link",
            Self::LidChange { .. } => "has another LID",
            Self::PkeyChange { .. } => "has other P_Keys",
            Self::SubnetManagerChange { .. } => "has another subnet manager",
            Self::ClientReregister { .. } => "wants every registration anew",
            Self::GidChange { .. } => "has other GIDs",
            Self::SpeedChange { .. } => "has another speed",
            Self::Unknown(kind) => return write!(f, "event {kind}"),
        };
        write!(f, "{} {what}", self.object())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(kind: u32, about: u64) -> AsyncEvent {
        AsyncEvent::from_raw(RawEvent {
            kind: Kind(kind),
            about,
        })
    }

    #[test]
    fn every_kind_of_the_headers_is_known() {
        for kind in 0..=20 {
            let event = event(kind, 3);
            assert!(!matches!(event, AsyncEvent::Unknown(_)), "{kind}");
            assert_ne!(event.object(), AsyncEventObject::Unknown, "{event:?}");
        }
    }

    #[test]
    fn one_of_the_future_stays_what_it_is() {
        let unknown = event(21, 0);
        assert_eq!(unknown, AsyncEvent::Unknown(21));
        assert_eq!(unknown.object(), AsyncEventObject::Unknown);
        assert!(!unknown.is_fatal());
    }

    #[test]
    fn events_say_whom_they_are_about() {
        assert_eq!(event(1, 17).to_string(), "queue pair 17 failed");
        assert_eq!(event(10, 2).to_string(), "port 2 lost its link");
        assert_eq!(event(8, 0).to_string(), "the device failed");
        assert_eq!(
            event(0, 9).object(),
            AsyncEventObject::CompletionQueue(CompletionQueueId(9))
        );
        assert!(event(0, 9).is_fatal() && !event(15, 9).is_fatal());
    }
}
