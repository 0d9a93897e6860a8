//! Messages of the connection's own, which nobody waits for.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering, fence};

use crossbeam_queue::ArrayQueue;
use parking_lot::Mutex;
use rdma_core::DetachedSlot;

use super::Connection;
use super::credits::CREDIT_RESERVE;
use super::frame::Kind;
use crate::error::Result;

/// Slots of the send queue that only the outbox uses. Futures that have completed and are not
/// polled keep their slots, but cannot keep the peer from its credits.
pub(crate) const OWN_SLOTS: u32 = 2;
/// Number of answers that may wait for credits before the peer counts as hostile.
const ANSWERS: usize = 4096;

/// Control messages that wait for a credit or a slot.
#[derive(Debug)]
pub(super) struct Outbox {
    queue: Mutex<Queue>,
    waiting: AtomicBool,
    slots: ArrayQueue<DetachedSlot>,
}

#[derive(Debug, Default)]
struct Queue {
    messages: VecDeque<Kind>,
    /// Number of them that the peer asked for; of the others there are as many as it lent or sent.
    answers: usize,
}

impl Outbox {
    pub(super) fn new() -> Self {
        Self {
            queue: Mutex::default(),
            waiting: AtomicBool::new(false),
            slots: ArrayQueue::new(OWN_SLOTS as usize),
        }
    }

    /// Returns whether no message waits.
    pub(super) fn is_empty(&self) -> bool {
        !self.waiting.load(Ordering::Acquire)
    }

    /// Drops the messages that wait.
    pub(super) fn clear(&self) {
        let mut queue = self.queue.lock();
        *queue = Queue::default();
        self.waiting.store(false, Ordering::Release);
    }
}

fn is_answer(kind: Kind) -> bool {
    matches!(kind, Kind::Grant { .. } | Kind::Refuse { .. })
}

impl Connection {
    /// Sends a control message as soon as there is a credit and a slot; nobody waits for it.
    pub(super) fn send_control(&self, kind: Kind) {
        if self.failure().is_some() {
            return;
        }
        let answers = {
            let mut queue = self.outbox.queue.lock();
            queue.messages.push_back(kind);
            queue.answers += usize::from(is_answer(kind));
            self.outbox.waiting.store(true, Ordering::Release);
            queue.answers
        };
        if answers > ANSWERS {
            return self.violation("more requests than it lets be answered");
        }
        self.flush_outbox();
    }

    /// Tells the peer of its credits when half of them are owed and no message carries them.
    pub(super) fn return_credits(&self) {
        let own = self.settings.depths();
        let half = |owed: u32, depth: u16| owed * 2 >= u32::from(depth);
        if half(self.owed_data.load(Ordering::Relaxed), own.data)
            || half(self.owed_control.load(Ordering::Relaxed), own.control)
        {
            {
                let mut queue = self.outbox.queue.lock();
                if queue.messages.front() != Some(&Kind::Credit) {
                    // In front: those behind may be waiting for the peer's credits in turn.
                    queue.messages.push_front(Kind::Credit);
                    self.outbox.waiting.store(true, Ordering::Release);
                }
            }
            self.flush_outbox();
        }
    }

    /// Sends the messages in the outbox, as far as credits and slots go.
    ///
    /// Every function that makes a control credit or a slot available calls this afterwards, and
    /// not while it holds the queue.
    pub(super) fn flush_outbox(&self) {
        // Orders what the caller made available before the look at the outbox; who fills the outbox
        // looks at what is available afterwards, so one of the two sees the other.
        fence(Ordering::SeqCst);
        if self.outbox.waiting.load(Ordering::Acquire)
            && let Err(error) = self.send_waiting()
        {
            self.fail(error);
        }
    }

    fn send_waiting(&self) -> Result<()> {
        let mut queue = self.outbox.queue.lock();
        fence(Ordering::SeqCst);
        while let Some(&kind) = queue.messages.front() {
            let reserve = match kind {
                // The last credit is for a message that brings the peer credits of this class. Were
                // it spent otherwise, each end could come to wait for the other's.
                Kind::Credit if self.owed_control.load(Ordering::Relaxed) > 0 => 0,
                _ => CREDIT_RESERVE,
            };
            if !self.control_credits.try_take(reserve) {
                break;
            }
            let own = || self.sends.attach(self.outbox.slots.pop()?).ok();
            let Some(slot) = self.sends.reserve().or_else(own) else {
                let fits = self.control_credits.give(1);
                debug_assert!(fits, "a credit that was taken can be given back");
                break;
            };
            queue.messages.pop_front();
            queue.answers -= usize::from(is_answer(kind));
            self.post_unattended(slot, kind)?;
        }
        self.outbox
            .waiting
            .store(!queue.messages.is_empty(), Ordering::Release);
        Ok(())
    }

    /// Takes slots from the send queue until the outbox has its own again.
    pub(super) fn restore_own_slots(&self) {
        while !self.outbox.slots.is_full() {
            let Some(slot) = self.sends.reserve() else {
                return;
            };
            if let Err(slot) = self.outbox.slots.push(slot.detach()) {
                drop(self.sends.attach(slot));
            }
        }
    }
}
