#![forbid(unsafe_code)]
//! The backlog of a link: queue pairs that wait for room in the ring to the peer.
//!
//! A queue pair asks for room before it makes a packet or a brief. If there is none, the backlog notes the queue pair, and its
//! messages stay in its send queue: nothing is lost, and nothing is sent twice. The peer learns that queue pairs wait, and wakes
//! this process, if it sleeps, after it has made room. The thread that receives then lets all noted queue pairs go on.
//!
//! Another thread may take the room between the question and the packet. The backlog keeps such a packet, and sends it before
//! any other packet of the link.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;

use super::link::{Failure, Link};
use super::ring::CHUNK;
use crate::transfer::PART_CHUNKS;

/// Chunks of the longest message.
const MOST: u16 = {
    let part = PART_CHUNKS as usize;
    assert!(part >= super::link::LONGEST);
    (part / CHUNK) as u16
};

/// Queue pairs and packets that wait for room.
#[derive(Debug, Default)]
pub(super) struct Backlog {
    /// Set if anything waits. Changes only under the lock.
    is_waiting: AtomicBool,
    waiting: Mutex<Waiting>,
}

#[derive(Debug, Default)]
struct Waiting {
    queue_pairs: Vec<u32>,
    /// Packets and their tags.
    kept: VecDeque<(u16, Kept)>,
}

impl Waiting {
    fn enter(&mut self, queue_pair: u32) {
        if !self.queue_pairs.contains(&queue_pair) {
            self.queue_pairs.push(queue_pair);
        }
    }

    /// Takes the queue pairs that wait, which go on in the returned order and wait again in that order. The first of them may
    /// take all the room, so another one is the first each time.
    fn leave(&mut self) -> Vec<u32> {
        let mut queue_pairs = std::mem::take(&mut self.queue_pairs);
        if !queue_pairs.is_empty() {
            queue_pairs.rotate_left(1);
        }
        queue_pairs
    }
}

/// A packet that was made when there was room.
#[derive(Debug)]
pub(crate) struct Kept {
    pub(crate) bytes: Box<[u8]>,
    pub(crate) annotation: u64,
}

impl Link {
    /// Returns whether there is room for a packet now.
    pub(crate) fn has_room(&self) -> bool {
        !self.backlog.is_waiting.load(Ordering::Acquire) && self.sender().may_have_room(MOST)
    }

    /// Returns whether a queue pair may send now. If not, [`resume`](Self::resume) names the queue pair when there is room.
    pub(crate) fn may_send(&self, queue_pair: u32) -> bool {
        if self.has_room() {
            return true;
        }
        let backlog = &self.backlog;
        let mut waiting = backlog.waiting.lock();
        backlog.is_waiting.store(true, Ordering::Release);
        if self.settle(&mut waiting) {
            let is_waiting = !waiting.queue_pairs.is_empty();
            backlog.is_waiting.store(is_waiting, Ordering::Release);
            return true;
        }
        waiting.enter(queue_pair);
        false
    }

    /// Returns whether anything waits for room.
    #[inline]
    pub(crate) fn has_backlog(&self) -> bool {
        self.backlog.is_waiting.load(Ordering::Acquire)
    }

    /// Returns whether a queue pair waits for room.
    pub(crate) fn has_waiting(&self, queue_pair: u32) -> bool {
        self.backlog.is_waiting.load(Ordering::Acquire)
            && (self.backlog.waiting.lock().queue_pairs).contains(&queue_pair)
    }

    /// Returns whether queue pairs wait that must learn that the peer, which is known to be gone, makes no room any more. A queue
    /// pair that asks later learns that at once.
    pub(super) fn owes_news(&self) -> bool {
        !self.backlog.waiting.lock().queue_pairs.is_empty()
    }

    /// Keeps a packet for which the room has gone.
    pub(crate) fn keep(&self, tag: u16, what: Kept) {
        let mut waiting = self.backlog.waiting.lock();
        self.backlog.is_waiting.store(true, Ordering::Release);
        waiting.kept.push_back((tag, what));
        self.settle(&mut waiting);
    }

    /// Returns whether [`resume`](Self::resume) has something to do. Otherwise the peer wakes this process as soon as that is so,
    /// if the process is asleep by then.
    pub(crate) fn can_resume(&self) -> bool {
        self.backlog.is_waiting.load(Ordering::Acquire)
            && (self.is_dead() || self.sender().starve(MOST))
    }

    /// Sends the packets that were kept, and names the queue pairs that wait, if there is room or the peer is gone.
    pub(crate) fn resume(&self, go_on: impl FnMut(u32)) {
        if !self.can_resume() {
            return;
        }
        let mut waiting = self.backlog.waiting.lock();
        if !self.settle(&mut waiting) {
            return;
        }
        self.backlog.is_waiting.store(false, Ordering::Release);
        let queue_pairs = waiting.leave();
        drop(waiting);
        self.flush();
        queue_pairs.into_iter().for_each(go_on);
    }

    /// Sends the packets that were kept. Returns whether all have gone and there is room for more. If not, the peer was asked to
    /// tell when there is.
    fn settle(&self, waiting: &mut Waiting) -> bool {
        while !self.is_dead() {
            let Some((tag, kept)) = waiting.kept.front() else {
                return self.sender().starve(MOST);
            };
            let sent = self.send(*tag, kept.annotation, &kept.bytes);
            if sent != Err(Failure::Full) {
                waiting.kept.pop_front();
            } else if !self.sender().starve(MOST) {
                return false;
            }
        }
        // The peer is gone. Messages that were sent and not answered go again, by another path.
        waiting.kept.clear();
        true
    }
}

#[cfg(test)]
mod tests {
    use super::Waiting;

    #[test]
    fn who_waits_for_room_takes_turns() {
        let mut waiting = Waiting::default();
        (0..5).for_each(|queue_pair| waiting.enter(queue_pair));
        let mut sent = [0; 5];
        // There is room for one message each time, and all have more than one.
        for _ in 0..5 * 4 {
            let going = waiting.leave();
            sent[going[0] as usize] += 1;
            going.into_iter().for_each(|one| waiting.enter(one));
        }
        assert_eq!(sent, [4; 5]);
        assert_eq!(Waiting::default().leave(), []);
    }
}
