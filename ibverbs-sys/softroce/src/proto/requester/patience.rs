//! The time that the requester waits for an answer.

use super::entry::Progress;
use super::{Failed, Requester, sooner};
use crate::proto::endpoint::Endpoint;
use crate::proto::{Counter, Host, State, Time};

/// Time by which the peer must answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum AnswerBy {
    /// No answer is awaited, or not for a limited time.
    Never,
    /// An answer is awaited. The time is set by [`Requester::arm`].
    Unset,
    /// This time.
    At(Time),
}

impl Requester {
    /// Returns when [`handle_timeout`](Self::handle_timeout) or another packet is due.
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
        times.into_iter().fold(None, sooner)
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
        if answer_by.is_some_and(|at| at <= now) && !self.excuse(now, endpoint) {
            host.count(Counter::AcknowledgementTimeout, 1);
            // Packets that were sent since are not known to have arrived.
            self.sent_back &= self.position() == self.unanswered;
            self.retry(endpoint, host)?;
            self.silences = self.silences.saturating_add(1);
            self.window.silence(self.sent);
            // A peer that says the same once more says it of what goes now.
            self.gone_back = false;
        }
        self.probe.handle_timeout(now);
        Ok(())
    }

    /// Sets the time by which a packet that goes now must be answered, unless an earlier packet is waiting for an
    /// answer: then the answer is due by that one's time.
    #[inline]
    pub(super) fn expect_answer(&mut self, now: impl FnOnce() -> Time, endpoint: &Endpoint) {
        if self.answer_by == AnswerBy::Never {
            self.answer_by = self.deadline(now(), endpoint);
        }
    }

    /// Notes that a message has gone that must be answered, by a time that [`arm`](Self::arm) sets.
    #[inline]
    pub(super) fn expect_answer_later(&mut self, endpoint: &Endpoint) {
        if self.answer_by == AnswerBy::Never && endpoint.attributes.ack_timeout.is_some() {
            self.answer_by = AnswerBy::Unset;
        }
    }

    /// Returns whether an answer is awaited whose time is not set.
    #[inline]
    pub(in crate::proto) fn is_unarmed(&self) -> bool {
        self.answer_by == AnswerBy::Unset
    }

    /// Sets the time by which the peer must answer, if an answer is awaited whose time is not set.
    #[inline]
    pub(in crate::proto) fn arm(&mut self, now: Time, endpoint: &Endpoint) {
        if self.is_unarmed() {
            self.answer_by = self.deadline(now, endpoint);
        }
    }

    /// Notes that the peer has no room for the next packet. The peer has as long to make room as it has to answer.
    pub(in crate::proto) fn expect_room(&mut self, now: Time, endpoint: &Endpoint) {
        let Some(next) = self.queue.get(self.cursor.entry) else {
            return;
        };
        let may_go = endpoint.state == State::ReadyToSend
            || matches!(next.progress, Progress::Started { .. });
        if may_go && self.again_at.is_none() {
            self.expect_answer(|| now, endpoint);
        }
    }

    /// Notes that the peer has made some room. A requester with nothing on the way waits for its turn, and its wait
    /// begins anew: if others were first, that is not the peer's fault.
    pub(in crate::proto) fn room_came(&mut self) {
        let all_answered = self.sent == self.unanswered || self.sent_back;
        if all_answered && self.position() == self.unanswered && self.again_at.is_none() {
            self.retries = 0;
            self.silences = 0;
            self.excused = false;
            self.answer_by = AnswerBy::Never;
        }
    }

    /// When a packet that goes now has to be answered. To a peer of which nothing was heard twice it goes with up to four times
    /// the time that is set, which the specification leaves to the requester (IBTA 9.7.6.1.3): a peer is a program, and where
    /// processors are scarce it may be kept from running for longer than the timeouts of a device add up to.
    pub(super) fn deadline(&self, now: Time, endpoint: &Endpoint) -> AnswerBy {
        let Some(timeout) = endpoint.attributes.ack_timeout else {
            return AnswerBy::Never;
        };
        let doublings = match self.is_peer_gone {
            false => self.silences.saturating_sub(1).min(2),
            true => 0,
        };
        AnswerBy::At(now + timeout * (1 << doublings))
    }

    /// The peer is gone, as far as is known: it gets no more time than what is set.
    pub(in crate::proto) fn peer_is_gone(&mut self) {
        self.is_peer_gone = true;
    }

    /// Returns whether this side's own delay may explain the silence. A side that looks at its clock so late was kept
    /// from running, and a peer on the same machine perhaps as well: the peer gets as much time again, once.
    fn excuse(&mut self, now: Time, endpoint: &Endpoint) -> bool {
        let (Some(at), Some(timeout)) = (self.answer_by.time(), endpoint.attributes.ack_timeout)
        else {
            return false;
        };
        let late = now - at;
        if self.excused || self.is_peer_gone || late < timeout / 4 {
            return false;
        }
        self.excused = true;
        self.answer_by = AnswerBy::At(now + late.min(timeout * 4));
        true
    }
}

impl AnswerBy {
    #[inline]
    fn time(self) -> Option<Time> {
        match self {
            Self::Never | Self::Unset => None,
            Self::At(time) => Some(time),
        }
    }
}
