//! Messages of the connection's own, which nobody waits for.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering, fence};

use parking_lot::Mutex;

use super::Connection;
use super::credits::CREDIT_RESERVE;
use super::frame::Kind;
use super::messages::Payload;
use super::send_state::{Attendance, Departure, NotAccepted};
use crate::error::Result;

/// Number of answers that may wait for credits before the peer counts as hostile.
const ANSWERS: usize = 4096;

/// Control messages that wait for a credit or for room in the send queue.
#[derive(Debug)]
pub(super) struct Outbox {
    queue: Mutex<Queue>,
    waiting: AtomicBool,
}

#[derive(Debug, Default)]
struct Queue {
    messages: VecDeque<Kind>,
    /// Number of them that the peer asked for. The number of the others is bounded by the peer's credits.
    answers: usize,
}

impl Outbox {
    pub(super) fn new() -> Self {
        Self {
            queue: Mutex::default(),
            waiting: AtomicBool::new(false),
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
    /// Sends a control message as soon as there is a credit and room; nobody waits for it.
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

    /// Sends the messages in the outbox, as far as credits and the room in the send queue go.
    ///
    /// Every function that makes a control credit available calls this afterwards, and not while it
    /// holds the queue.
    pub(super) fn flush_outbox(&self) {
        // Orders what the caller made available before the look at the outbox; who fills the outbox
        // looks at what is available afterwards, so one of the two sees the other.
        fence(Ordering::SeqCst);
        self.flush_outbox_into_room();
    }

    /// Like [`Self::flush_outbox`], after the caller made room under the lock of the send queue, which
    /// orders the two.
    #[inline]
    pub(super) fn flush_outbox_into_room(&self) {
        if self.outbox.waiting.load(Ordering::Acquire)
            && let Err(error) = self.send_waiting()
        {
            self.fail(error);
        }
    }

    #[cold]
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
            // The peer may wait for it, whether this end's tasks run on or not.
            let how = (Attendance::Nobody, Departure::Now);
            match self.submit_frame(kind, &mut Payload::Nothing, None, how) {
                Ok(_) => {}
                Err(NotAccepted::Full) => {
                    let fits = self.control_credits.give(1);
                    debug_assert!(fits, "a credit that was taken can be given back");
                    break;
                }
                Err(NotAccepted::Refused(error)) => return Err(*error),
            }
            queue.messages.pop_front();
            queue.answers -= usize::from(is_answer(kind));
        }
        self.outbox
            .waiting
            .store(!queue.messages.is_empty(), Ordering::Release);
        Ok(())
    }
}
