//! The outbox: a queue of control messages for which no future waits. The messages are sent when
//! credits and room in the send queue are available.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering, fence};

use parking_lot::Mutex;

use super::Connection;
use super::credits::CREDIT_RESERVE;
use super::frame::Kind;
use super::messages::Payload;
use super::send_state::{AwaitedBy, NotAccepted, PostTime};
use crate::error::Result;

/// Maximum number of queued replies to a peer that requests memory of this end. Replies are queued
/// while the peer accepts no further messages. The connection ends if more replies are queued, so
/// that the peer cannot use up the memory of this end.
const MAX_QUEUED_REPLIES: usize = 4096;

/// Queue of control messages of a connection that wait for a credit (permission to send) or for
/// room in the send queue. The code that queues a message does not wait for the send.
#[derive(Debug)]
pub(super) struct Outbox {
    queue: Mutex<Queue>,
    has_messages: AtomicBool,
}

/// Control messages that wait to be sent, in order. The replies to requests for memory are counted,
/// because their number is limited.
#[derive(Debug, Default)]
struct Queue {
    messages: VecDeque<Kind>,
    /// Number of queued replies to requests of the peer. The peer's credits bound the number of
    /// other messages.
    replies: usize,
}

impl Queue {
    /// Adds a control message of the kind `kind` to the end of the queue. A message that returns
    /// ring slots (memory into which the peer writes bytes of a stream) is merged into a queued
    /// message of this kind. The queue thus contains at most one such message. Otherwise, a peer
    /// could make the queue grow by writing to the slots again and again.
    fn push(&mut self, kind: Kind) {
        if let Kind::Returned { slots } = kind {
            let queued = self.messages.iter_mut().find_map(|queued| match queued {
                Kind::Returned { slots } => Some(slots),
                _ => None,
            });
            if let Some(queued) = queued {
                *queued |= slots;
                return;
            }
        }
        self.messages.push_back(kind);
    }
}

impl Outbox {
    pub(super) fn new() -> Self {
        Self {
            queue: Mutex::default(),
            has_messages: AtomicBool::new(false),
        }
    }

    /// Returns whether the queue contains no control message.
    pub(super) fn is_empty(&self) -> bool {
        !self.has_messages.load(Ordering::Acquire)
    }

    /// Drops all queued control messages, because the connection has ended. Does nothing while a
    /// thread, possibly this one, holds the lock to send messages. The messages then stay until the
    /// connection is dropped.
    pub(super) fn clear(&self) {
        let Some(mut queue) = self.queue.try_lock() else {
            return;
        };
        *queue = Queue::default();
        self.has_messages.store(false, Ordering::Release);
    }
}

/// Returns whether this end sends a message of the kind `kind` as the reply to a peer that has
/// requested memory.
fn is_reply(kind: Kind) -> bool {
    matches!(kind, Kind::Grant { .. } | Kind::Refuse { .. })
}

impl Connection {
    /// Queues a control message of the kind `kind`, which is sent as soon as a credit (permission
    /// to send) and room in the send queue are available. Returns without waiting.
    pub(super) fn send_control(&self, kind: Kind) {
        if self.failure().is_some() {
            return;
        }
        let replies = {
            let mut queue = self.outbox.queue.lock();
            queue.push(kind);
            queue.replies += usize::from(is_reply(kind));
            self.outbox.has_messages.store(true, Ordering::Release);
            queue.replies
        };
        if replies > MAX_QUEUED_REPLIES {
            return self.fail_for_violation("more requests than replies may be queued for");
        }
        self.flush_outbox();
    }

    /// Queues a message that returns credits (permissions to send) to the peer, if at least half of
    /// all credits of a class (data or control messages) must be returned. Fewer credits are
    /// returned with the header of the next message.
    pub(super) fn return_credits(&self) {
        let own = self.settings.depths();
        let half = |owed: u32, depth: u16| owed * 2 >= u32::from(depth);
        if half(self.owed_data.load(Ordering::Relaxed), own.data)
            || half(self.owed_control.load(Ordering::Relaxed), own.control)
        {
            {
                let mut queue = self.outbox.queue.lock();
                if queue.messages.front() != Some(&Kind::Credit) {
                    // Queued first, because the other messages may be waiting for credits that the
                    // peer returns in response.
                    queue.messages.push_front(Kind::Credit);
                    self.outbox.has_messages.store(true, Ordering::Release);
                }
            }
            self.flush_outbox();
        }
    }

    /// Sends queued control messages in order, until the send queue is full or the peer accepts no
    /// further control messages.
    ///
    /// Must be called when the peer accepts control messages again. The caller must not hold the
    /// lock of the send queue.
    pub(super) fn flush_outbox(&self) {
        // Orders the caller's change before the check of the outbox. A thread that queues a message
        // checks for credits and room afterwards, so at least one of the two threads sees the
        // change of the other.
        fence(Ordering::SeqCst);
        self.flush_outbox_into_room();
    }

    /// Sends queued control messages like [`Self::flush_outbox`], but without a memory fence. The
    /// caller must have made room in the send queue under the lock of the send queue: the lock
    /// replaces the fence.
    #[inline]
    pub(super) fn flush_outbox_into_room(&self) {
        if self.outbox.has_messages.load(Ordering::Acquire)
            && let Err(error) = self.send_queued()
        {
            self.fail(error);
        }
    }

    /// Sends queued messages in order, while credits (permissions to send) and room in the send
    /// queue are available. Holds the lock of the outbox, so that two threads do not change the
    /// order.
    #[cold]
    fn send_queued(&self) -> Result<()> {
        let mut queue = self.outbox.queue.lock();
        fence(Ordering::SeqCst);
        while let Some(&kind) = queue.messages.front() {
            let reserve = match kind {
                // Only a message that returns control credits may take the last credit. Otherwise
                // both ends could wait for credits of each other forever.
                Kind::Credit if self.owed_control.load(Ordering::Relaxed) > 0 => 0,
                _ => CREDIT_RESERVE,
            };
            if !self.control_credits.try_take(reserve) {
                break;
            }
            // Posted now, because the peer may be waiting for the message and this runtime may not
            // run again soon.
            let how = (AwaitedBy::Nothing, PostTime::Now);
            match self.submit_frame(kind, &mut Payload::Nothing, None, how) {
                Ok(_) => {}
                Err(NotAccepted::Full) => {
                    if !self.control_credits.add(1) {
                        self.fail_for_violation("more credits than were in use");
                    }
                    break;
                }
                Err(NotAccepted::Refused(error)) => return Err(*error),
            }
            queue.messages.pop_front();
            queue.replies -= usize::from(is_reply(kind));
        }
        self.outbox
            .has_messages
            .store(!queue.messages.is_empty(), Ordering::Release);
        Ok(())
    }
}
