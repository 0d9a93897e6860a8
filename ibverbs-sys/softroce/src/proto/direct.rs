//! The way without packets: what a requester hands to a peer that is at hand, and what it hears.

use std::time::Duration;

use super::datagram::{self, Label};
use super::requester::status_of;
use super::{
    CompletionStatus, Host, Memory, Payload, QueuePair, Remote, Segment, SendOperation,
    SendRequest, Sequence, Service, State, Time,
};

/// A message that is moved without packets, or a part of one that begins and ends at the boundaries of packets.
#[derive(Clone, Copy, Debug)]
pub struct Part<'a> {
    /// The request.
    pub request: &'a SendRequest,
    /// The number of the part's first packet.
    pub sequence: Sequence,
    /// Number of sequence numbers that the part takes.
    pub packets: u32,
    /// Where in the message it begins, in bytes.
    pub offset: u32,
    /// Its bytes.
    pub length: u32,
    /// Set if the part is the first of the message.
    pub starts: bool,
    /// Set if the part is the last of the message.
    pub ends: bool,
    /// The queue pair that it is of.
    pub source: u32,
    /// That queue pair's own queue key.
    pub queue_key: u32,
}

/// Result of offering a [`Part`] to the peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    /// The part was taken, and counts as acknowledged.
    Done,
    /// A whole message was taken without the knowledge of the peer's queue pair, which must be told of it before
    /// packets come again.
    Unseen,
    /// Nothing was done: it shall go by packets.
    Packets,
    /// The peer has no receive for it, and tells this timer code.
    NotReady {
        /// The code.
        timer: u8,
    },
    /// Nothing was done yet: the peer is to be asked again after a time.
    Later {
        /// Time until then.
        again: Duration,
    },
    /// The request ends so, and with it the connection.
    Failed(CompletionStatus),
}

/// Result of an attempt to move a part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// A part was moved, and there may be more.
    Moved,
    /// There is nothing that could go now.
    Idle,
    /// The next part has to go by packets.
    Packets,
}

/// A queue pair's peer that takes messages without packets.
pub trait Peer<H> {
    /// Takes a part, and says at once what becomes of it. `host` is that of the side that sends.
    fn take(&mut self, part: &Part<'_>, host: &mut H) -> Answer;

    /// Returns about how many bytes the peer takes at once.
    fn most(&self) -> u32 {
        MOST
    }
}

/// Where a part's bytes go at the peer.
#[derive(Clone, Copy, Debug)]
pub enum Place<'a> {
    /// To memory that was named by the sender.
    Remote(Remote),
    /// To a message, from this byte on, that is scattered over the pieces.
    Local(&'a [Segment], u32),
}

/// Why nothing could be copied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Misplaced {
    /// The memory of this side.
    Here,
    /// The memory of the peer's.
    There,
}

/// Bytes that are moved at once, about: in that time nobody else gets at the two queue pairs.
pub(super) const MOST: u32 = 64 << 10;

/// The longest datagram.
const DATAGRAM: usize = 4096;

impl QueuePair {
    /// Moves the next part to a peer that is at hand, if one may go and nothing is on the way by packets.
    pub fn poll_direct<H: Host>(
        &mut self,
        now: impl Fn() -> Time,
        host: &mut H,
        peer: &mut impl Peer<H>,
    ) -> Step {
        let step = self.has_direct(&now);
        if step != Step::Moved {
            return step;
        }
        let done = self.requester.poll_direct(now, &self.endpoint, host, peer);
        let step = done.unwrap_or(Step::Moved);
        self.conclude(done.map(drop), host);
        step
    }

    /// Returns the step that [`poll_direct`](Self::poll_direct) would take, as far as this side knows.
    pub fn has_direct(&self, now: impl FnOnce() -> Time) -> Step {
        if matches!(
            self.endpoint.state,
            State::ReadyToSend | State::SendQueueDrained
        ) {
            self.requester.has_direct(now, &self.endpoint)
        } else {
            Step::Packets
        }
    }

    /// Returns whether a request that is posted now would be the next to go: all requests before it are done.
    #[inline]
    pub fn is_idle(&self) -> bool {
        self.endpoint.state == State::ReadyToSend && self.requester.is_idle()
    }

    /// Returns whether packets of an unreliable connection have gone that the peer may not have taken yet: a message that
    /// goes without packets would overtake them. If so, the peer is asked for a receipt of the next packet.
    pub fn awaits_receipt(&mut self) -> bool {
        self.requester.awaits_receipt()
    }

    /// Returns the number of sequence numbers of a message of `length` bytes.
    #[inline]
    pub fn packets(&self, length: u32) -> u32 {
        if length <= 256 {
            // No packet is smaller.
            1
        } else {
            self.endpoint.packets(length)
        }
    }

    /// Messages with so many sequence numbers are done that were never posted, and of which the peer itself does not know.
    /// To be called where [`is_idle`](Self::is_idle) said so.
    pub fn skip(&mut self, packets: u32) {
        self.requester.skip(packets);
    }

    /// Returns whether this queue pair and `peer` are connected to each other. For datagrams only the partition has to
    /// match.
    pub fn is_connected_to(&self, peer: &Self) -> bool {
        let (own, other) = (&self.endpoint, &peer.endpoint);
        let connected = own.service == Service::UnreliableDatagram
            || own.attributes.destination == other.number
                && other.attributes.destination == own.number
                && own.attributes.path_mtu == other.attributes.path_mtu;
        own.service == other.service && connected && own.shares_partition(other)
    }

    /// Returns whether the next request is a send, which takes a receive request at the other side.
    pub fn next_is_send(&self) -> bool {
        let next = self.requester.next_request();
        next.is_some_and(|next| matches!(next.operation, SendOperation::Send { .. }))
    }

    /// Returns the request whose next part or packet goes next.
    pub fn next_request(&self) -> Option<&SendRequest> {
        self.requester.next_request()
    }

    /// Takes a part of a message of `sender`'s, without packets. Where the two do not agree upon what comes next, or
    /// this one takes nothing at all, packets shall find out.
    ///
    /// The caller has checked that the two are connected: their numbers, services, partitions and packet sizes.
    pub fn take<H: Host>(&mut self, part: &Part<'_>, host: &mut H, sender: &mut H) -> Answer {
        if !self.listens() || !self.responder.expects(part) {
            return Answer::Packets;
        }
        if let Err(status) = self.reached(part, host, sender) {
            return Answer::Failed(status);
        }
        match self.endpoint.service {
            Service::ReliableConnection => {
                let answer = self.responder.take(part, &self.endpoint, host, sender);
                if let Some(end) = self.responder.due_end() {
                    self.responder.finish(end, host);
                    let nak = self.responder.told_end();
                    self.fall(host);
                    return nak.and_then(status_of).map_or(answer, Answer::Failed);
                }
                answer
            }
            Service::UnreliableConnection => {
                let taken = (self.responder).take_unreliable(part, &self.endpoint, host, sender);
                taken.unwrap_or_else(|status| {
                    self.responder.abort(status, host);
                    self.fall(host);
                    Answer::Done
                })
            }
            _ => Answer::Packets,
        }
    }

    /// Takes a datagram of `sender`'s without packets, as [`take`](Self::take) does with parts of messages. `route` is
    /// the GRH that its receiver finds in its buffer.
    ///
    /// The caller has checked the queue pair number and the partition.
    pub fn take_datagram<H: Host>(
        &mut self,
        part: &Part<'_>,
        route: &[u8; 40],
        host: &mut H,
        sender: &mut H,
    ) -> Answer {
        let request = part.request;
        let &SendOperation::Datagram {
            immediate,
            queue_key,
            ..
        } = &request.operation
        else {
            return Answer::Packets;
        };
        if !self.listens() || self.endpoint.service != Service::UnreliableDatagram {
            return Answer::Packets;
        }
        let mut room = [0; DATAGRAM];
        let payload = match &request.payload {
            Payload::Inline(bytes) => &bytes[..],
            Payload::Gathered(list) => {
                let Some(bytes) = room.get_mut(..request.length as usize) else {
                    return Answer::Packets;
                };
                if !bytes.is_empty() && sender.gather(list, 0, bytes).is_err() {
                    return Answer::Failed(CompletionStatus::LocalProtection);
                }
                bytes
            }
        };
        let own = queue_key & 1 << 31 != 0;
        let label = Label {
            queue_key: if own { part.queue_key } else { queue_key },
            source: part.source,
            immediate,
            solicited: request.solicited,
        };
        let done = datagram::deliver(&self.endpoint, route, Some(label), payload, host);
        if let Err(status) = done {
            self.responder.abort(status, host);
            self.fall(host);
        }
        Answer::Done
    }

    /// Returns whether the queue pair receives anything in its state.
    fn listens(&self) -> bool {
        !matches!(
            self.endpoint.state,
            State::Reset | State::Init | State::Error
        )
    }

    /// Says that the peer was heard, unless that has nothing to say.
    fn reached<H: Host>(
        &mut self,
        part: &Part<'_>,
        host: &mut H,
        sender: &H,
    ) -> Result<(), CompletionStatus> {
        if self.endpoint.state == State::ReadyToReceive {
            readable(part, sender)?;
            self.tell_established(host);
        }
        Ok(())
    }
}

/// Checks that the bytes of a part can be gathered.
pub(super) fn readable(part: &Part<'_>, sender: &impl Memory) -> Result<(), CompletionStatus> {
    let writes = matches!(
        part.request.operation,
        SendOperation::Send { .. } | SendOperation::Write { .. }
    );
    match &part.request.payload {
        Payload::Gathered(list) if writes && part.length > 0 => sender
            .check_local(list, part.offset, part.length)
            .map_err(|_| CompletionStatus::LocalProtection),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests;
