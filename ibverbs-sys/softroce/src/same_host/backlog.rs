#![forbid(unsafe_code)]
//! The backlog of a link (shared memory with a peer process): queue pairs that wait for free space
//! in the ring to the peer.
//!
//! A queue pair checks for free space before it composes a packet or a ring message (short message
//! without packet headers). If the ring has no space, the backlog records the queue pair, and the
//! messages of the queue pair stay in the send queue. So nothing is lost, and nothing is sent
//! twice. This process also requests that the peer wakes it when the peer has freed space. The
//! thread that receives then resumes all recorded queue pairs.
//!
//! After a queue pair has found space, another thread may take the space before the packet is sent.
//! The backlog keeps such a packet, and sends it before all other packets of the link.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;

use super::link::{Link, SendError};
use super::ring::CHUNK;
use crate::transfer::MAX_CHUNKS_PART;

/// Maximum length of a packet or message in the ring (shared message queue) to the peer, in chunks
/// (cache lines of payload). If this many chunks are free, a message of any length can be sent.
const MAX_MESSAGE_CHUNKS: u16 = {
    let part = MAX_CHUNKS_PART as usize;
    assert!(part >= super::link::MAX_PACKET);
    (part / CHUNK) as u16
};

/// Queue pairs and packets that wait for free space in the ring that is shared with a peer process.
#[derive(Debug, Default)]
pub(super) struct Backlog {
    /// Set while a queue pair or a packet waits. Written only under the lock.
    is_waiting: AtomicBool,
    waiting: Mutex<Waiting>,
}

#[derive(Debug, Default)]
struct Waiting {
    queue_pairs: Vec<u32>,
    /// Packets that found no free space in the ring, each with its tag (number that identifies the
    /// packet's GIDs to the peer).
    kept: VecDeque<(u16, DelayedPacket)>,
}

impl Waiting {
    fn enter(&mut self, queue_pair: u32) {
        if !self.queue_pairs.contains(&queue_pair) {
            self.queue_pairs.push(queue_pair);
        }
    }

    /// Returns all queue pairs that wait for space in the ring, and removes them from the list of
    /// waiting queue pairs. The caller must resume the queue pairs in the returned order. Each call
    /// rotates the order by one, because the first queue pair can take all the free space.
    fn take_all(&mut self) -> Vec<u32> {
        let mut queue_pairs = std::mem::take(&mut self.queue_pairs);
        if !queue_pairs.is_empty() {
            queue_pairs.rotate_left(1);
        }
        queue_pairs
    }
}

/// A packet that could not be sent because the ring (shared message queue) had no space. The ring
/// had space when the queue pair began to compose the packet, but another thread took the space
/// first.
#[derive(Debug)]
pub(crate) struct DelayedPacket {
    pub(crate) bytes: Box<[u8]>,
    pub(crate) annotation: u64,
}

impl Link {
    /// Returns whether a packet can be sent on this link (shared memory) now. The result is `true`
    /// if the ring has free space for a packet of any length, and no queue pair or packet waits for
    /// space. Otherwise a new packet would overtake the waiting packets.
    pub(crate) fn has_room(&self) -> bool {
        !self.backlog.is_waiting.load(Ordering::Acquire)
            && self.sender().may_have_room(MAX_MESSAGE_CHUNKS)
    }

    /// Returns whether the queue pair with the number `queue_pair` may send a packet now. If the
    /// ring (shared message queue) to the peer has no space, records that the queue pair waits.
    /// [`resume`](Self::resume) then resumes it later.
    pub(crate) fn may_send(&self, queue_pair: u32) -> bool {
        if self.has_room() {
            return true;
        }
        let backlog = &self.backlog;
        let mut waiting = backlog.waiting.lock();
        if self.send_or_wait(&mut waiting) {
            return true;
        }
        waiting.enter(queue_pair);
        false
    }

    /// Returns whether a queue pair or packet waits for free space in the ring of this link (shared
    /// memory).
    #[inline]
    pub(crate) fn has_backlog(&self) -> bool {
        self.backlog.is_waiting.load(Ordering::Acquire)
    }

    /// Returns whether the queue pair with the number `queue_pair` waits for free space in the ring
    /// (shared message queue) to the peer. Such a queue pair can send no further message now.
    pub(crate) fn has_waiting(&self, queue_pair: u32) -> bool {
        self.backlog.is_waiting.load(Ordering::Acquire)
            && (self.backlog.waiting.lock().queue_pairs).contains(&queue_pair)
    }

    /// Returns whether queue pairs still wait for space in the ring buffer of this link (shared
    /// memory). After the link has ended, the caller must resume these queue pairs, so that they
    /// send by another path. An ended link accepts no further waiting queue pairs.
    pub(super) fn must_resume(&self) -> bool {
        !self.backlog.waiting.lock().queue_pairs.is_empty()
    }

    /// Stores the packet `what`, which found no space in the ring buffer, until
    /// [`resume`](Self::resume) can send it. `tag` contains the indices of the packet's GIDs, from
    /// which the peer finds the GIDs.
    pub(crate) fn delay_packet(&self, tag: u16, what: DelayedPacket) {
        let mut waiting = self.backlog.waiting.lock();
        waiting.kept.push_back((tag, what));
        self.send_or_wait(&mut waiting);
    }

    /// Sends the packets that wait for space in the ring, and records whether a packet or queue
    /// pair still waits. Returns whether the ring then has space for another packet.
    fn send_or_wait(&self, waiting: &mut Waiting) -> bool {
        let is_waiting = &self.backlog.is_waiting;
        is_waiting.store(true, Ordering::Release);
        let has_space = self.send_delayed(waiting);
        if has_space {
            is_waiting.store(!waiting.queue_pairs.is_empty(), Ordering::Release);
        }
        has_space
    }

    /// Returns whether the caller must call [`resume`](Self::resume) now. Two conditions must hold.
    /// First, queue pairs or packets wait for space in the ring buffer. Second, the buffer has
    /// space, or the link (shared memory) has ended. If the buffer is still full, requests that the
    /// peer wakes this process later.
    pub(crate) fn can_resume(&self) -> bool {
        self.backlog.is_waiting.load(Ordering::Acquire)
            && (self.is_dead() || self.sender().request_space(MAX_MESSAGE_CHUNKS))
    }

    /// Sends the packets that wait for space in the ring buffer to the peer. If space remains,
    /// calls `go_on` with the number of each queue pair that waits. `go_on` makes the queue pair
    /// continue to send. After the link (shared memory) has ended, drops the packets and resumes
    /// all queue pairs.
    pub(crate) fn resume(&self, go_on: impl FnMut(u32)) {
        if !self.can_resume() {
            return;
        }
        let mut waiting = self.backlog.waiting.lock();
        if !self.send_delayed(&mut waiting) {
            return;
        }
        self.backlog.is_waiting.store(false, Ordering::Release);
        let queue_pairs = waiting.take_all();
        drop(waiting);
        self.flush();
        queue_pairs.into_iter().for_each(go_on);
    }

    /// Sends the packets that wait for space in the ring, and wakes the peer to receive them.
    /// Returns `true` if all packets were sent and the ring has space for another packet. Returns
    /// `false` if the ring is full: the peer then wakes this process when the peer has freed space.
    /// After the link (shared memory) has ended, drops the packets and returns `true`.
    fn send_delayed(&self, waiting: &mut Waiting) -> bool {
        let before = waiting.kept.len();
        let has_space = loop {
            if self.is_dead() {
                // Messages without an acknowledgement are sent again by another path.
                waiting.kept.clear();
                return true;
            }
            let Some((tag, kept)) = waiting.kept.front() else {
                break self.sender().request_space(MAX_MESSAGE_CHUNKS);
            };
            let sent = self.send(*tag, kept.annotation, &kept.bytes);
            if sent != Err(SendError::Full) {
                waiting.kept.pop_front();
            } else if !self.sender().request_space(MAX_MESSAGE_CHUNKS) {
                break false;
            }
        };
        if waiting.kept.len() < before {
            // The callers may send nothing else.
            self.flush();
        }
        has_space
    }
}

#[cfg(test)]
mod tests {
    use super::Waiting;

    #[test]
    fn queue_pairs_that_wait_for_space_take_turns() {
        let mut waiting = Waiting::default();
        (0..5).for_each(|queue_pair| waiting.enter(queue_pair));
        let mut sent = [0; 5];
        // Each time, there is space for one message, and every queue pair has more than one message
        // to send.
        for _ in 0..5 * 4 {
            let going = waiting.take_all();
            sent[going[0] as usize] += 1;
            going.into_iter().for_each(|one| waiting.enter(one));
        }
        assert_eq!(sent, [4; 5]);
        assert_eq!(Waiting::default().take_all(), []);
    }
}
