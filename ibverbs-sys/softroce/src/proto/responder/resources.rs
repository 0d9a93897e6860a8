use std::collections::VecDeque;

use crate::proto::{Remote, Sequence};

/// A read or an atomic of the peer that is being answered, or can be again.
#[derive(Clone, Copy, Debug)]
pub(super) struct Resource {
    /// The request's number, which is the response's first.
    pub(super) first: Sequence,
    pub(super) work: Fetch,
    /// The count of messages with this one.
    pub(super) message_sequence: u32,
    /// The packets that are to go: from, the next of them, and before.
    start: u32,
    next: u32,
    end: u32,
    /// All went at least once.
    answered: bool,
}

/// What the peer fetched.
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
}

/// A packet of a response.
#[derive(Clone, Copy, Debug)]
pub(super) struct Answer {
    /// Its number among those of the response.
    pub(super) packet: u32,
    pub(super) first: bool,
    pub(super) last: bool,
    /// How many are answered in this turn.
    pub(super) turn: u32,
    /// The whole response went before.
    pub(super) again: bool,
}

/// As many of the newest as the peer was promised (`max_dest_rd_atomic`), the oldest first.
#[derive(Debug, Default)]
pub(super) struct Resources {
    ring: VecDeque<Resource>,
    /// Those with packets to go.
    unfinished: usize,
}

impl Resource {
    pub(super) fn new(first: Sequence, work: Fetch, message_sequence: u32) -> Self {
        let end = match work {
            Fetch::Read { packets, .. } => packets,
            Fetch::Atomic { .. } => 1,
        };
        Self {
            first,
            work,
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
        let packets = match self.work {
            Fetch::Read { packets, .. } => packets,
            Fetch::Atomic { .. } => 1,
        };
        let distance = sequence.distance(self.first);
        distance >= 0 && (distance as u32) < packets
    }
}

impl Resources {
    /// Whether the peer keeps to the promise of `capacity` with one more.
    pub(super) fn has_room(&self, capacity: usize) -> bool {
        let unanswered = self.ring.iter().rev().take(capacity);
        capacity > 0 && unanswered.filter(|resource| !resource.answered).count() < capacity
    }

    /// Remembers one more, and forgets the oldest beyond `capacity`.
    pub(super) fn push(&mut self, resource: Resource, capacity: usize) {
        while self.ring.len() >= capacity.max(1) {
            if let Some(oldest) = self.ring.pop_front() {
                self.unfinished -= usize::from(!oldest.is_finished());
            }
        }
        self.unfinished += 1;
        self.ring.push_back(resource);
    }

    /// The one that has the number `sequence`.
    pub(super) fn find(&self, sequence: Sequence) -> Option<&Resource> {
        self.ring.iter().find(|resource| resource.holds(sequence))
    }

    /// The newest number up to `newest` that is not one of a response, where the last of `messages` messages has `newest`.
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

    /// Answers again from the number `sequence` on, with `packets` packets.
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
            // What is left of the turn under way comes behind.
            (resource.start, resource.next) = (start, start);
            resource.end = resource.end.max(end);
        } else {
            resource.end = resource.end.max(end);
        }
    }

    /// The oldest with packets to go, and which of them is next.
    pub(super) fn next(&self) -> Option<(&Resource, Answer)> {
        if self.unfinished == 0 {
            return None;
        }
        let resource = self.ring.iter().find(|resource| !resource.is_finished())?;
        let answer = Answer {
            packet: resource.next,
            first: resource.next == resource.start,
            last: resource.next + 1 == resource.end,
            turn: resource.end - resource.start,
            again: resource.answered,
        };
        Some((resource, answer))
    }

    /// The packet that is next went.
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

    /// What is left of the response with the packet that is next does not go.
    pub(super) fn give_up(&mut self) {
        let mut unfinished = self
            .ring
            .iter_mut()
            .filter(|resource| !resource.is_finished());
        if let Some(resource) = unfinished.next() {
            resource.next = resource.end;
            self.unfinished -= 1;
        }
    }

    /// Nothing is to go.
    pub(super) fn is_idle(&self) -> bool {
        self.unfinished == 0
    }

    /// Forgets all.
    pub(super) fn clear(&mut self) {
        self.ring.clear();
        self.unfinished = 0;
    }
}
