//! Timeouts of the requester: the time to wait for a response before packets are sent again.

use super::entry::Progress;
use super::{Failed, Requester, earlier};
use crate::proto::endpoint::Endpoint;
use crate::proto::{Counter, Host, State, Time};

/// Deadline of the peer's response to the oldest unanswered packet: a time, a time that must still
/// be set, or no deadline. After the deadline, packets are sent again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ResponseDeadline {
    /// No response is awaited, or the wait is unlimited.
    Never,
    /// A response is awaited, but the time is not known yet: [`Requester::arm`] will set it.
    Unset,
    /// A response must arrive by this time.
    At(Time),
}

impl Requester {
    /// Returns the earliest time at which the caller must call
    /// [`handle_timeout`](Self::handle_timeout), or at which a packet may be sent.
    #[inline]
    pub(in crate::proto) fn next_timeout(&self) -> Option<Time> {
        let paused = if self.queue.is_empty() {
            None
        } else {
            self.flow.next_timeout()
        };
        let times = [
            self.answer_by.time(),
            self.again_at,
            self.probe.at(),
            self.pause.end(),
            paused,
        ];
        times.into_iter().fold(None, earlier)
    }

    /// Returns the number of consecutive timeouts since the last response of the peer.
    pub(in crate::proto) fn unanswered_timeouts(&self) -> u8 {
        self.timeouts
    }

    pub(in crate::proto) fn handle_timeout(
        &mut self,
        now: Time,
        endpoint: &Endpoint,
        host: &mut impl Host,
    ) -> Result<(), Failed> {
        self.arm(now, endpoint);
        if self.again_at.is_some_and(|at| at <= now) {
            self.again_at = None;
        }
        self.pause.handle_timeout(now);
        let answer_by = self.answer_by.time();
        if answer_by.is_some_and(|at| at <= now) && !self.extend_late(now, endpoint) {
            host.count(Counter::AcknowledgementTimeout, 1);
            // Packets that were sent after the response may have been lost.
            self.sent_back &= self.position() == self.unanswered;
            self.retry(endpoint, host)?;
            self.timeouts = self.timeouts.saturating_add(1);
            self.window.timeout(self.sent);
            // After a timeout, a repeated NAK refers to the retransmission.
            self.gone_back = false;
        }
        self.probe.handle_timeout(now);
        Ok(())
    }

    /// Sets the deadline of the response to a packet that is sent now. If an earlier packet is
    /// unanswered, its deadline stays.
    #[inline]
    pub(super) fn set_response_deadline(
        &mut self,
        now: impl FnOnce() -> Time,
        endpoint: &Endpoint,
    ) {
        if self.answer_by == ResponseDeadline::Never {
            self.answer_by = self.deadline(now(), endpoint);
        }
    }

    /// Records that a message was sent and awaits a response, if the queue pair has an
    /// acknowledgement timeout. The caller must then set the deadline of the response by
    /// [`arm`](Self::arm).
    #[inline]
    pub(super) fn await_response(&mut self, endpoint: &Endpoint) {
        if self.answer_by == ResponseDeadline::Never && endpoint.attributes.ack_timeout.is_some() {
            self.answer_by = ResponseDeadline::Unset;
        }
    }

    /// Returns whether a response is awaited whose timeout is not set yet. If so,
    /// [`arm`](Self::arm) must be called.
    #[inline]
    pub(in crate::proto) fn is_unarmed(&self) -> bool {
        self.answer_by == ResponseDeadline::Unset
    }

    /// Sets the timeout of an awaited response, unless it is set already.
    #[inline]
    pub(in crate::proto) fn arm(&mut self, now: Time, endpoint: &Endpoint) {
        if self.is_unarmed() {
            self.answer_by = self.deadline(now, endpoint);
        }
    }

    /// Records at the time `now` that the peer's ring is full. The ring is the queue in shared
    /// memory from which the peer receives packets. Starts the acknowledgement timeout, unless the
    /// timeout is already set, to limit the wait for free space.
    pub(in crate::proto) fn wait_for_space(&mut self, now: Time, endpoint: &Endpoint) {
        let Some(next) = self.queue.get(self.cursor.entry) else {
            return;
        };
        let may_go = endpoint.state == State::ReadyToSend
            || matches!(next.progress, Progress::Started { .. });
        if may_go && self.again_at.is_none() {
            self.set_response_deadline(|| now, endpoint);
        }
    }

    /// Records that the peer's ring (queue in shared memory) has free space, because the peer has
    /// removed packets. If nothing is in flight, the wait for free space begins again with new
    /// timeouts and retries, because other senders can use the space first.
    pub(in crate::proto) fn space_available(&mut self) {
        let all_answered = self.sent == self.unanswered || self.sent_back;
        if all_answered && self.position() == self.unanswered && self.again_at.is_none() {
            self.retries = 0;
            self.timeouts = 0;
            self.extended = false;
            self.answer_by = ResponseDeadline::Never;
        }
    }

    /// Returns the deadline of the response to a packet that is sent now. The configured timeout is
    /// doubled after two timeouts in a row, and quadrupled after three or more, as IBTA 9.7.6.1.3
    /// allows. A longer timeout is needed because a busy machine can delay the process of the peer.
    /// If the peer no longer exists, the timeout is not extended.
    pub(super) fn deadline(&self, now: Time, endpoint: &Endpoint) -> ResponseDeadline {
        let Some(timeout) = endpoint.attributes.ack_timeout else {
            return ResponseDeadline::Never;
        };
        let doublings = match self.is_peer_gone {
            false => self.timeouts.saturating_sub(1).min(2),
            true => 0,
        };
        ResponseDeadline::At(now + timeout * (1 << doublings))
    }

    /// Records that the peer does not exist any more. The timeout of its responses is no longer
    /// extended.
    pub(in crate::proto) fn set_peer_gone(&mut self) {
        self.is_peer_gone = true;
    }

    /// Extends an expired timeout once, if this side noticed the expiry late because this process
    /// was not scheduled. A peer on the same machine was perhaps not scheduled either. The
    /// extension is as long as the delay, but at most four timeouts. Returns whether the timeout
    /// was extended. If not, packets are sent again.
    fn extend_late(&mut self, now: Time, endpoint: &Endpoint) -> bool {
        let (Some(at), Some(timeout)) = (self.answer_by.time(), endpoint.attributes.ack_timeout)
        else {
            return false;
        };
        let late = now - at;
        if self.extended || self.is_peer_gone || late < timeout / 4 {
            return false;
        }
        self.extended = true;
        self.answer_by = ResponseDeadline::At(now + late.min(timeout * 4));
        true
    }
}

impl ResponseDeadline {
    #[inline]
    fn time(self) -> Option<Time> {
        match self {
            Self::Never | Self::Unset => None,
            Self::At(time) => Some(time),
        }
    }
}
