#![forbid(unsafe_code)]
//! Who waits until a peer has made room for more.
//!
//! A queue pair asks whether there is room before it makes a packet. Where there is none it is noted, and what it has to send
//! stays in its send queue: nothing is lost, and nothing is sent twice. The peer is told that somebody waits,
//! and wakes this process when it has made room, if it sleeps. Whoever looks after the network then has all go on that
//! were noted.
//!
//! Another thread may take the room between question and packet. Such a packet is kept here, and goes before any other of
//! this link.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;

use super::brief;
use super::link::{Failure, Link};
use super::ring::{CHUNK, WORDS};
use crate::proto::Brief;

/// Chunks of the longest packet.
const MOST: u16 = (super::link::LONGEST / CHUNK) as u16;

/// What waits for room.
#[derive(Debug, Default)]
pub(super) struct Backlog {
    /// Whether there is anything; changes under the lock.
    is_waiting: AtomicBool,
    waiting: Mutex<Waiting>,
}

#[derive(Debug, Default)]
struct Waiting {
    queue_pairs: Vec<u32>,
    kept: VecDeque<(u16, Kept)>,
}

impl Waiting {
    fn enter(&mut self, queue_pair: u32) {
        if !self.queue_pairs.contains(&queue_pair) {
            self.queue_pairs.push(queue_pair);
        }
    }

    /// Those who waited, as they go on. They wait again in that order, and the first of them may take all the room: it is another one
    /// each time.
    fn leave(&mut self) -> Vec<u32> {
        let mut queue_pairs = std::mem::take(&mut self.queue_pairs);
        if !queue_pairs.is_empty() {
            queue_pairs.rotate_left(1);
        }
        queue_pairs
    }
}

/// What was made when there was room.
#[derive(Debug)]
pub(crate) enum Kept {
    /// A packet and its annotation.
    Packet(Box<[u8]>, u64),
    Brief([u64; WORDS]),
}

impl Link {
    /// Returns whether there is room for a packet now.
    pub(crate) fn has_room(&self) -> bool {
        !self.backlog.is_waiting.load(Ordering::Acquire) && self.sender().may_have_room(MOST)
    }

    /// Whether a packet of a queue pair can go. If not, [`resume`](Self::resume) names the queue pair when there is room.
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

    /// Whether something waits for room.
    #[inline]
    pub(crate) fn has_backlog(&self) -> bool {
        self.backlog.is_waiting.load(Ordering::Acquire)
    }

    /// Whether a queue pair waits for room.
    pub(crate) fn has_waiting(&self, queue_pair: u32) -> bool {
        self.backlog.is_waiting.load(Ordering::Acquire)
            && (self.backlog.waiting.lock().queue_pairs).contains(&queue_pair)
    }

    /// Whether somebody is still to be told that the peer, which is known to be gone, makes no room any more. Who comes after that
    /// finds it out by himself.
    pub(super) fn owes_news(&self) -> bool {
        !self.backlog.waiting.lock().queue_pairs.is_empty()
    }

    /// Keeps a brief for which the room has gone.
    pub(crate) fn keep_brief(&self, tag: u16, brief: &Brief<'_>) {
        self.keep(tag, Kept::Brief(brief::encode(brief)));
    }

    /// Keeps a packet or a brief for which the room has gone.
    pub(crate) fn keep(&self, tag: u16, what: Kept) {
        let mut waiting = self.backlog.waiting.lock();
        self.backlog.is_waiting.store(true, Ordering::Release);
        waiting.kept.push_back((tag, what));
        self.settle(&mut waiting);
    }

    /// Whether [`resume`](Self::resume) has something to do. Otherwise the peer wakes this process when it has, if it is
    /// asleep by then.
    pub(crate) fn can_resume(&self) -> bool {
        self.backlog.is_waiting.load(Ordering::Acquire)
            && (self.is_dead() || self.sender().starve(MOST))
    }

    /// If there is room, or nobody to wait for: sends what was kept, and names those who wait.
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

    /// Sends what was kept; whether all of it has gone and there is room for more. If not, the peer was asked to say when
    /// there is.
    fn settle(&self, waiting: &mut Waiting) -> bool {
        while !self.is_dead() {
            let Some((tag, kept)) = waiting.kept.front() else {
                return self.sender().starve(MOST);
            };
            let sent = match kept {
                Kept::Packet(bytes, annotation) => self.send(*tag, *annotation, bytes),
                Kept::Brief(words) => self.send_words(*tag, words),
            };
            if sent != Err(Failure::Full) {
                waiting.kept.pop_front();
            } else if !self.sender().starve(MOST) {
                return false;
            }
        }
        // Nobody gets it any more: what was sent and not answered goes again, by another way.
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
