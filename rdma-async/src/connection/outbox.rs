//! The outbox: control messages for which no future waits, until credits and room are available.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering, fence};

use parking_lot::Mutex;

use super::Connection;
use super::credits::CREDIT_RESERVE;
use super::frame::Kind;
use super::messages::Payload;
use super::send_state::{AwaitedBy, NotAccepted, PostTime};
use crate::error::Result;

/// Maximum number of answers that wait for credits. A peer that requests more violates the
/// protocol.
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
    /// Number of answers to requests of the peer among the messages. The number of other messages
    /// is bounded by the peer's credits.
    answers: usize,
}

impl Outbox {
    pub(super) fn new() -> Self {
        Self {
            queue: Mutex::default(),
            waiting: AtomicBool::new(false),
        }
    }

    /// Returns whether the outbox is empty.
    pub(super) fn is_empty(&self) -> bool {
        !self.waiting.load(Ordering::Acquire)
    }

    /// Drops all waiting messages, because the connection has ended. While a thread hands messages
    /// to the device, which may be this thread, the messages remain until the connection is
    /// dropped.
    pub(super) fn clear(&self) {
        let Some(mut queue) = self.queue.try_lock() else {
            return;
        };
        *queue = Queue::default();
        self.waiting.store(false, Ordering::Release);
    }
}

fn is_answer(kind: Kind) -> bool {
    matches!(kind, Kind::Grant { .. } | Kind::Refuse { .. })
}

impl Connection {
    /// Sends a control message as soon as a credit and room in the send queue are available.
    /// Returns without waiting.
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

    /// Queues a message that returns credits to the peer, once half of the credits of a class are
    /// owed.
    pub(super) fn return_credits(&self) {
        let own = self.settings.depths();
        let half = |owed: u32, depth: u16| owed * 2 >= u32::from(depth);
        if half(self.owed_data.load(Ordering::Relaxed), own.data)
            || half(self.owed_control.load(Ordering::Relaxed), own.control)
        {
            {
                let mut queue = self.outbox.queue.lock();
                if queue.messages.front() != Some(&Kind::Credit) {
                    // Queued first, since the other messages may be waiting for credits of the
                    // peer.
                    queue.messages.push_front(Kind::Credit);
                    self.outbox.waiting.store(true, Ordering::Release);
                }
            }
            self.flush_outbox();
        }
    }

    /// Sends the messages in the outbox while credits and room in the send queue are available.
    ///
    /// Every function that makes a control credit available calls this afterwards, after it has
    /// released the lock of the queue.
    pub(super) fn flush_outbox(&self) {
        // Orders the caller's change before the check of the outbox. A thread that fills the outbox
        // checks for credits and room afterwards, so at least one of the two sees the other's
        // change.
        fence(Ordering::SeqCst);
        self.flush_outbox_into_room();
    }

    /// Sends messages like [`Self::flush_outbox`], but without a fence: the caller made room under
    /// the lock of the send queue, which orders the change before the check of the outbox.
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
                // The last credit is reserved for a message that returns control credits. Otherwise
                // both ends could wait for each other.
                Kind::Credit if self.owed_control.load(Ordering::Relaxed) > 0 => 0,
                _ => CREDIT_RESERVE,
            };
            if !self.control_credits.try_take(reserve) {
                break;
            }
            // The peer may wait for the message, so it must not depend on the progress of this
            // runtime.
            let how = (AwaitedBy::Nothing, PostTime::Now);
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
