//! The types of asynchronous events.

use std::fmt;

use ibverbs_sys::ibv_event_type as Kind;

use super::AsyncEventObject;
use crate::completion::CompletionQueueId;
use crate::ffi::{DEVICE_SPEED_CHANGE, RawEvent};
use crate::receive::SharedReceiveQueueId;

/// An asynchronous event: a change or failure of a device that no completion reports
/// (`ibv_async_event`).
///
/// Queue pairs, work queues and ports are identified by their numbers, completion queues and shared
/// receive queues by their ids. The object of an event may no longer exist when the program reads
/// the event.
#[doc(alias = "ibv_async_event")]
#[doc(alias = "ibv_event_type")]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum AsyncEvent {
    /// A completion queue overflowed or failed. The queue delivers no more completions, and its
    /// queue pairs fail.
    #[doc(alias = "IBV_EVENT_CQ_ERR")]
    CompletionQueueError {
        /// The completion queue that failed.
        completion_queue: CompletionQueueId,
    },
    /// A queue pair failed in a way that no completion reports, and is in the error state.
    #[doc(alias = "IBV_EVENT_QP_FATAL")]
    QueuePairFatal {
        /// The queue pair that failed.
        queue_pair: u32,
    },
    /// A peer's request was invalid. The queue pair is then in the error state.
    #[doc(alias = "IBV_EVENT_QP_REQ_ERR")]
    QueuePairRequestError {
        /// The queue pair that received the request.
        queue_pair: u32,
    },
    /// A peer's request had no access to the memory. The queue pair is then in the error state.
    #[doc(alias = "IBV_EVENT_QP_ACCESS_ERR")]
    QueuePairAccessError {
        /// The queue pair that received the request.
        queue_pair: u32,
    },
    /// A queue pair that cannot send yet has received its first message.
    #[doc(alias = "IBV_EVENT_COMM_EST")]
    CommunicationEstablished {
        /// The queue pair that received the message.
        queue_pair: u32,
    },
    /// A send queue has finished draining: all requests that the device had started have completed.
    #[doc(alias = "IBV_EVENT_SQ_DRAINED")]
    SendQueueDrained {
        /// The queue pair to which the send queue belongs.
        queue_pair: u32,
    },
    /// A connection migrated to its alternate path.
    #[doc(alias = "IBV_EVENT_PATH_MIG")]
    PathMigrated {
        /// The queue pair whose connection migrated.
        queue_pair: u32,
    },
    /// A connection could not migrate to its alternate path.
    #[doc(alias = "IBV_EVENT_PATH_MIG_ERR")]
    PathMigrationFailed {
        /// The queue pair whose connection could not migrate.
        queue_pair: u32,
    },
    /// A queue pair in the error state consumes no more receives from the shared receive queue that
    /// it uses. Once the completions of the queue pair have been polled, the queue pair can be
    /// destroyed without losing receives.
    #[doc(alias = "IBV_EVENT_QP_LAST_WQE_REACHED")]
    LastRequestReached {
        /// The queue pair in the error state.
        queue_pair: u32,
    },
    /// A shared receive queue failed.
    #[doc(alias = "IBV_EVENT_SRQ_ERR")]
    SharedReceiveQueueError {
        /// The shared receive queue that failed.
        shared_receive_queue: SharedReceiveQueueId,
    },
    /// A shared receive queue holds fewer receives than the limit that the program set. The event
    /// removes the limit.
    #[doc(alias = "IBV_EVENT_SRQ_LIMIT_REACHED")]
    SharedReceiveQueueLimit {
        /// The shared receive queue that is below its limit.
        shared_receive_queue: SharedReceiveQueueId,
    },
    /// A receive work queue (one of the queues of receive side scaling) failed.
    #[doc(alias = "IBV_EVENT_WQ_FATAL")]
    WorkQueueFatal {
        /// The number of the work queue that failed.
        work_queue: u32,
    },
    /// The link of a port is up.
    #[doc(alias = "IBV_EVENT_PORT_ACTIVE")]
    PortActive {
        /// The number of the port.
        port: u8,
    },
    /// The link of a port is down.
    #[doc(alias = "IBV_EVENT_PORT_ERR")]
    PortError {
        /// The number of the port.
        port: u8,
    },
    /// The LID of a port changed.
    #[doc(alias = "IBV_EVENT_LID_CHANGE")]
    LidChange {
        /// The number of the port.
        port: u8,
    },
    /// The P_Key table of a port changed.
    #[doc(alias = "IBV_EVENT_PKEY_CHANGE")]
    PkeyChange {
        /// The number of the port.
        port: u8,
    },
    /// The subnet manager of a port changed.
    #[doc(alias = "IBV_EVENT_SM_CHANGE")]
    SubnetManagerChange {
        /// The number of the port.
        port: u8,
    },
    /// The subnet manager requests that all clients of a port register again, for example for
    /// multicast groups.
    #[doc(alias = "IBV_EVENT_CLIENT_REREGISTER")]
    ClientReregister {
        /// The number of the port.
        port: u8,
    },
    /// The GID table of a port changed.
    #[doc(alias = "IBV_EVENT_GID_CHANGE")]
    GidChange {
        /// The number of the port.
        port: u8,
    },
    /// The link speed of a port changed.
    #[doc(alias = "IBV_EVENT_DEVICE_SPEED_CHANGE")]
    SpeedChange {
        /// The number of the port.
        port: u8,
    },
    /// The device failed. All its objects are unusable and can only be destroyed.
    #[doc(alias = "IBV_EVENT_DEVICE_FATAL")]
    DeviceFatal,
    /// An event of a type that this crate does not know, by its `ibv_event_type`.
    Unknown(u32),
}

impl AsyncEvent {
    pub(crate) fn from_raw(event: RawEvent) -> Self {
        let completion_queue = CompletionQueueId(event.about);
        let shared_receive_queue = SharedReceiveQueueId(event.about);
        // The number of a queue pair, work queue or port has at most the width of these types.
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

    /// Returns the device, port or queue that the event refers to.
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

    /// Returns whether the event reports a failure that makes the queue or the device of the event
    /// unusable. Returns `false` for a port whose link is down, because the link may recover.
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
    fn an_unknown_event_keeps_its_number() {
        let unknown = event(21, 0);
        assert_eq!(unknown, AsyncEvent::Unknown(21));
        assert_eq!(unknown.object(), AsyncEventObject::Unknown);
        assert!(!unknown.is_fatal());
    }

    #[test]
    fn events_name_their_objects() {
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
