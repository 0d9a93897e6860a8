//! Short messages and acknowledgements without headers: for a peer with which memory is shared.
//!
//! A brief says what one packet would say, or an acknowledgement and a packet, with the same sequence numbers; so briefs and
//! packets can follow each other in any order. What does not fit into one goes as a packet.

use super::{Counter, Host, QueuePair, Sequence, Service, State, Time};

/// Bytes of a message that fit into a brief.
pub(crate) const SHORT: usize = 32;

/// What one queue pair of a reliable connection says to the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Brief<'a> {
    /// The number of the queue pair that it is for.
    pub destination: u32,
    /// The partition.
    pub partition_key: u16,
    /// All up to this number is executed.
    pub acknowledged: Option<Sequence>,
    /// A message.
    pub message: Option<Short<'a>>,
}

/// A message of a send that is one packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Short<'a> {
    /// Its number.
    pub sequence: Sequence,
    /// Immediate data.
    pub immediate: Option<[u8; 4]>,
    /// The peer's completion shall raise an event.
    pub solicited: bool,
    /// The message, where it was found: `SHORT` bytes at most.
    pub payload: &'a [u8],
}

/// A short message that is posted, beside its bytes.
#[derive(Clone, Copy, Debug)]
pub struct Utterance {
    /// The caller's number for it.
    pub id: u64,
    /// Immediate data.
    pub immediate: Option<[u8; 4]>,
    /// A success shall be told too.
    pub signaled: bool,
    /// The peer's completion shall raise an event.
    pub solicited: bool,
}

/// What a queue pair has to transmit, as far as can be seen at a glance.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Prospect {
    /// Nothing.
    Nothing,
    /// How far it is, which may wait for what the program has to say, and go together with it.
    Acknowledgement,
    /// Something that shall go now.
    Urgent,
}

impl Brief<'_> {
    /// Bytes that it would have as a packet: a base transport header, an acknowledgement's or immediate data's, the message and
    /// its pad.
    pub fn bytes(&self) -> usize {
        12 + self.message.as_ref().map_or(4, |message| {
            4 * usize::from(message.immediate.is_some()) + message.payload.len().next_multiple_of(4)
        })
    }
}

impl QueuePair {
    /// The next thing to be said, if it fits into a brief; if not, [`poll_transmit`](Self::poll_transmit) has it, or there is
    /// nothing. A message is put into `room`. For `now` holds what [`receive_brief`](Self::receive_brief) says.
    pub fn poll_brief<'a>(
        &mut self,
        now: impl FnOnce() -> Time,
        host: &mut impl Host,
        room: &'a mut [u8; SHORT],
    ) -> Option<Brief<'a>> {
        let sends = match self.endpoint.state {
            State::ReadyToReceive => false,
            State::ReadyToSend | State::SendQueueDrained => true,
            _ => return None,
        };
        if self.endpoint.service != Service::ReliableConnection || !self.responder.is_brief() {
            return None;
        }
        let mut message = None;
        let mut done = Ok(());
        if sends {
            let polled = self.requester.poll_brief(now, &self.endpoint, host, room);
            message = polled.ok().flatten();
            done = polled.map(drop);
        }
        // Before it fails, so that it is told as it is in a packet.
        let acknowledged = self.responder.take_acknowledgement();
        if done.is_err() {
            self.conclude(done, host);
        }
        (message.is_some() || acknowledged.is_some()).then_some(Brief {
            destination: self.endpoint.attributes.destination,
            partition_key: self.endpoint.attributes.partition_key,
            acknowledged,
            message,
        })
    }

    /// Whether a short message that was posted now could go at once: all before it have gone, and nothing holds it up.
    #[inline]
    pub fn may_say(&self) -> bool {
        self.endpoint.state == State::ReadyToSend
            && self.endpoint.service == Service::ReliableConnection
            && self.responder.is_brief()
            && self.requester.may_say()
    }

    /// Posts a short message and sends it, where [`may_say`](Self::may_say) allows it. `bytes`: `SHORT` at most. For `now` holds what [`receive_brief`](Self::receive_brief) says.
    #[inline]
    pub fn say<'a>(
        &mut self,
        message: &Utterance,
        bytes: &'a [u8],
        now: impl FnOnce() -> Time,
    ) -> Brief<'a> {
        let message = self.requester.say(message, bytes, now, &self.endpoint);
        Brief {
            destination: self.endpoint.attributes.destination,
            partition_key: self.endpoint.attributes.partition_key,
            acknowledged: self.responder.take_acknowledgement(),
            message: Some(message),
        }
    }

    /// What is to be transmitted.
    pub fn prospect(&self) -> Prospect {
        if self.endpoint.state != State::ReadyToSend || !self.requester.is_silent() {
            Prospect::Urgent
        } else if self.responder.is_silent() {
            Prospect::Nothing
        } else if self.endpoint.service == Service::ReliableConnection && self.responder.is_brief()
        {
            Prospect::Acknowledgement
        } else {
            Prospect::Urgent
        }
    }

    /// Whether [`poll_transmit`](Self::poll_transmit) has nothing, as far as can be seen at a glance.
    pub fn is_silent(&self) -> bool {
        self.prospect() == Prospect::Nothing
    }

    /// Takes a brief, as [`receive`](Self::receive) takes packets.
    ///
    /// The caller has checked that it came from the peer's address. `now` may be a moment that is somewhat later than the present: no
    /// more follows from it than how long the peer has for the next answer, and memory loses none.
    pub fn receive_brief(&mut self, now: Time, brief: &Brief<'_>, host: &mut impl Host) {
        if self.endpoint.service != Service::ReliableConnection {
            host.count(Counter::Unaddressed, 1);
            return;
        }
        if !self.takes(brief.destination, brief.partition_key, host) {
            return;
        }
        if let Some(sequence) = brief.acknowledged
            && matches!(
                self.endpoint.state,
                State::ReadyToSend | State::SendQueueDrained
            )
        {
            let done = (self.requester).acknowledged(sequence, now, &self.endpoint, host);
            self.conclude(done, host);
        }
        // It may have failed by what was acknowledged.
        if let Some(message) = &brief.message
            && self.endpoint.state != State::Error
        {
            self.tell_established(host);
            self.responder.receive_short(&self.endpoint, message, host);
            self.end_if_due(host);
        }
    }
}

#[cfg(test)]
mod tests;
