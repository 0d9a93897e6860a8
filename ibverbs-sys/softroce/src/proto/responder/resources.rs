use std::collections::VecDeque;

use crate::proto::{Remote, Sequence};

/// A read, atomic operation, atomic write or flush of the peer. The responder stores the request in
/// order to send the response, and to send a lost response again.
#[derive(Clone, Copy, Debug)]
pub(super) struct Resource {
    /// Sequence number of the request and of the first response packet.
    pub(super) first: Sequence,
    pub(super) fetch: Fetch,
    /// Number of messages up to and including this one (MSN).
    pub(super) message_sequence: u32,
    /// Range of response packets that must be sent: the first, the next, and the end (exclusive).
    start: u32,
    next: u32,
    end: u32,
    /// Set once all response packets were sent.
    answered: bool,
}

/// Kind of a stored request, with the data that is needed to send its response again.
#[derive(Clone, Copy, Debug)]
pub(super) enum Fetch {
    Read {
        remote: Remote,
        length: u32,
        packets: u32,
    },
    Atomic {
        original: u64,
    },
    /// An atomic write or a flush, whose response has no data.
    Empty,
}

/// A response packet that must be sent. The packet is identified by its position within the
/// response to a read or an atomic operation.
#[derive(Clone, Copy, Debug)]
pub(super) struct ResponsePacket {
    /// Index of the packet within the response.
    pub(super) packet: u32,
    pub(super) first: bool,
    pub(super) last: bool,
    /// Number of response packets that are scheduled together with this packet. If the window is
    /// smaller, the packets are sent with pauses.
    pub(super) group_length: u32,
    /// Set if the whole response was sent before.
    pub(super) is_repeat: bool,
}

/// Newest reads and atomics of the peer, oldest first, stored so that a lost response can be sent
/// again. The maximum number is the limit on the peer's outstanding reads and atomics
/// (`max_dest_rd_atomic`).
#[derive(Debug, Default)]
pub(super) struct Resources {
    ring: VecDeque<Resource>,
    /// Number of stored reads and atomics whose responses have not been sent completely.
    unfinished: usize,
}

impl Resource {
    pub(super) fn new(first: Sequence, fetch: Fetch, message_sequence: u32) -> Self {
        let end = match fetch {
            Fetch::Read { packets, .. } => packets,
            Fetch::Atomic { .. } | Fetch::Empty => 1,
        };
        Self {
            first,
            fetch,
            message_sequence,
            start: 0,
            next: 0,
            end,
            answered: false,
        }
    }

    fn is_finished(&self) -> bool {
        self.next >= self.end
    }

    fn holds(&self, sequence: Sequence) -> bool {
        let packets = match self.fetch {
            Fetch::Read { packets, .. } => packets,
            Fetch::Atomic { .. } | Fetch::Empty => 1,
        };
        let distance = sequence.distance(self.first);
        distance >= 0 && (distance as u32) < packets
    }
}

impl Resources {
    /// Returns whether the peer may send a further read or atomic operation. The result is `true`
    /// if fewer than `capacity` of the stored requests have an unsent response. `capacity` is the
    /// limit on the peer's outstanding reads and atomics.
    pub(super) fn has_room(&self, capacity: usize) -> bool {
        let unanswered = self.ring.iter().rev().take(capacity);
        capacity > 0 && unanswered.filter(|resource| !resource.answered).count() < capacity
    }

    /// Stores a read or an atomic (IBTA: responder resource), so that the response can be sent
    /// again. If `capacity` requests are already stored, removes the oldest one first. `capacity`
    /// is the maximum number of outstanding requests of the peer.
    pub(super) fn push(&mut self, resource: Resource, capacity: usize) {
        while self.ring.len() >= capacity.max(1) {
            if let Some(oldest) = self.ring.pop_front() {
                self.unfinished -= usize::from(!oldest.is_finished());
            }
        }
        self.unfinished += 1;
        self.ring.push_back(resource);
    }

    /// Returns the read or atomic whose response contains the sequence number `sequence`.
    pub(super) fn find(&self, sequence: Sequence) -> Option<&Resource> {
        self.ring.iter().find(|resource| resource.holds(sequence))
    }

    /// Returns the sequence number with which this side acknowledges all requests up to the
    /// sequence number `newest`. Leaves out reads and atomics at the end of these requests, because
    /// their responses acknowledge them. `messages` is the message sequence number (MSN) of
    /// `newest`. A stored read or atomic with this MSN is the newest request.
    #[inline(always)]
    pub(super) fn before(&self, newest: Sequence, messages: u32) -> Sequence {
        if self.ring.is_empty() {
            newest
        } else {
            self.before_responses(newest, messages)
        }
    }

    fn before_responses(&self, mut newest: Sequence, mut messages: u32) -> Sequence {
        for resource in self.ring.iter().rev() {
            if resource.message_sequence != messages || !resource.holds(newest) {
                break;
            }
            newest = resource.first + 0xff_ffff;
            messages = messages.wrapping_sub(1);
        }
        newest
    }

    /// Schedules `packets` response packets for retransmission, beginning with the sequence number
    /// `sequence`.
    pub(super) fn repeat(&mut self, sequence: Sequence, packets: u32) {
        let Some(resource) = self
            .ring
            .iter_mut()
            .find(|resource| resource.holds(sequence))
        else {
            return;
        };
        let start = sequence.distance(resource.first).max(0) as u32;
        let end = start + packets;
        if resource.is_finished() {
            self.unfinished += 1;
            (resource.start, resource.next, resource.end) = (start, start, end);
        } else if start < resource.next {
            // The rest of the packets that were already scheduled follows.
            (resource.start, resource.next) = (start, start);
            resource.end = resource.end.max(end);
        } else {
            resource.end = resource.end.max(end);
        }
    }

    /// Returns the oldest stored request of the peer (a read or an atomic operation) whose response
    /// must be sent, and the next packet of the response. Returns `None` if all responses were
    /// sent.
    pub(super) fn next(&self) -> Option<(&Resource, ResponsePacket)> {
        if self.unfinished == 0 {
            return None;
        }
        let resource = self.ring.iter().find(|resource| !resource.is_finished())?;
        let answer = ResponsePacket {
            packet: resource.next,
            first: resource.next == resource.start,
            last: resource.next + 1 == resource.end,
            group_length: resource.end - resource.start,
            is_repeat: resource.answered,
        };
        Some((resource, answer))
    }

    /// Records that the response packet that [`next`](Self::next) returned was sent.
    pub(super) fn advance(&mut self) {
        let mut unfinished = self
            .ring
            .iter_mut()
            .filter(|resource| !resource.is_finished());
        if let Some(resource) = unfinished.next() {
            resource.next += 1;
            if resource.is_finished() {
                resource.answered = true;
                self.unfinished -= 1;
            }
        }
    }

    /// Cancels the rest of the read response that this side is sending. Called because the memory
    /// with the bytes can no longer be read.
    pub(super) fn cancel_response(&mut self) {
        let mut unfinished = self
            .ring
            .iter_mut()
            .filter(|resource| !resource.is_finished());
        if let Some(resource) = unfinished.next() {
            resource.next = resource.end;
            self.unfinished -= 1;
        }
    }

    /// Returns whether the responses to all stored reads and atomics were sent. An acknowledgement
    /// or a NAK must wait until then, because responses are sent in the order of the requests.
    pub(super) fn is_idle(&self) -> bool {
        self.unfinished == 0
    }

    /// Removes all stored reads and atomics, so that no responses to them are sent any more.
    pub(super) fn clear(&mut self) {
        self.ring.clear();
        self.unfinished = 0;
    }
}
