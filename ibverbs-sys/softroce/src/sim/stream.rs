use crate::proto::{
    AccessFlags, Attributes, GatherList, Mtu, Path, Payload, QueuePair, ReceiveRequest, Remote,
    Segment, SendOperation, SendRequest, Sequence, Service, State,
};

use super::schedule::ack_delay;
use super::world::{QpId, World};

/// Kind of the messages of a [`Stream`]: sends, writes or reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Flow {
    Send,
    Write,
    Read,
}

/// Parameters of a [`Stream`], a simulated reliable connection: the kind and length of its
/// messages, and attributes of its two queue pairs.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Parameters {
    pub(crate) flow: Flow,
    pub(crate) mtu: Mtu,
    /// Length of a message in bytes.
    pub(crate) message: u32,
    /// Maximum number of packets in flight on a path of known capacity.
    pub(crate) max_window: u32,
    /// Attribute [`max_kept`](Attributes::max_kept) of the two queue pairs, which limits the
    /// packets that the responder keeps after a gap.
    pub(crate) max_kept: u32,
    /// Acknowledgement timeout, as the exponent `n` of 4.096 us * 2^n.
    pub(crate) timeout: u32,
}

/// A reliable connection of a simulation that transfers messages of equal length from one node to
/// another.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Stream {
    parameters: Parameters,
    /// The requester and the responder.
    ends: [QpId; 2],
    /// Keys of the memory of the requester and the responder.
    keys: [u32; 2],
    /// Number of messages of the stream that were posted so far.
    posted: u64,
}

/// Address of the memory region at each of the two nodes of a [`Stream`]. The requests refer to
/// this address. The nodes have separate memory, so both can use the same address.
const BASE: u64 = 0x10_0000;

impl Stream {
    /// Creates two queue pairs with the number `number`, and connects them. The requester is at the
    /// node `nodes[0]`, and the responder at the node `nodes[1]`.
    pub(crate) fn connect(
        world: &mut World<'_>,
        nodes: [usize; 2],
        number: u32,
        parameters: Parameters,
    ) -> Self {
        let ends = nodes.map(|node| {
            let queue_pair = QueuePair::new(number, Service::ReliableConnection);
            world.add_queue_pair(node, queue_pair, None)
        });
        let access =
            AccessFlags::LOCAL_WRITE | AccessFlags::REMOTE_WRITE | AccessFlags::REMOTE_READ;
        let keys = nodes.map(|node| {
            let bytes = vec![0; parameters.message as usize];
            world.memory(node).register(bytes, BASE, access)
        });
        for (place, peer) in [(ends[0], nodes[1]), (ends[1], nodes[0])] {
            let path = Path {
                source: 0,
                destination: world.address(peer),
                traffic_class: 0,
                hop_limit: 64,
                flow_label: 0,
            };
            *world.queue_pair_mut(place).attributes_mut() = Attributes {
                destination: number,
                path: Some(path),
                path_mtu: parameters.mtu,
                send_sequence: Sequence::new(0xff_ff00),
                receive_sequence: Sequence::new(0xff_ff00),
                ack_timeout: Some(ack_delay(parameters.timeout)),
                retry_count: 7,
                rnr_retry: 7,
                min_rnr_timer: 1,
                max_initiated: 16,
                max_accepted: 16,
                access,
                max_window: parameters.max_window,
                max_kept: parameters.max_kept,
                ..Attributes::default()
            };
            world.enter(place, State::Init);
            world.enter(place, State::ReadyToReceive);
            world.enter(place, State::ReadyToSend);
        }
        Self {
            parameters,
            ends,
            keys,
            posted: 0,
        }
    }

    /// Returns the ID of the queue pair that posts the requests of this connection.
    pub(crate) fn requester(&self) -> QpId {
        self.ends[0]
    }

    /// Returns the ID of the queue pair that receives and answers the requests of this connection.
    pub(crate) fn responder(&self) -> QpId {
        self.ends[1]
    }

    /// Returns the number of requests of this [`Stream`] (transfer of equal messages) that its
    /// requester has posted so far.
    pub(crate) fn posted(&self) -> u64 {
        self.posted
    }

    /// Posts a receive for one message of this simulated connection at the queue pair that
    /// receives.
    pub(crate) fn post_receive(&self, world: &mut World<'_>) {
        let request = ReceiveRequest {
            id: 0,
            segments: self.segments(self.keys[1]),
            length: self.parameters.message.into(),
        };
        world.post_receive(self.ends[1], request);
    }

    /// Posts the next message of this [`Stream`] (transfer of equal messages) to the send queue of
    /// its requester.
    pub(crate) fn post(&mut self, world: &mut World<'_>) {
        self.posted += 1;
        let remote = Remote {
            address: BASE,
            key: self.keys[1],
        };
        let operation = match self.parameters.flow {
            Flow::Send => SendOperation::Send {
                immediate: None,
                invalidate: None,
            },
            Flow::Write => SendOperation::Write {
                remote,
                immediate: None,
            },
            Flow::Read => SendOperation::Read { remote },
        };
        let request = SendRequest {
            id: self.posted,
            operation,
            payload: Payload::Gathered(self.segments(self.keys[0])),
            length: self.parameters.message,
            xrc_srq: None,
            signaled: true,
            solicited: false,
            fence: false,
        };
        world.post(self.ends[0], request);
    }

    fn segments(&self, key: u32) -> GatherList {
        GatherList::from_slice(&[Segment {
            address: BASE,
            length: self.parameters.message,
            key,
        }])
    }
}
