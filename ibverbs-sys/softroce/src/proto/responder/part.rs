//! The receiver's side of messages that are transferred without packets. A part is a range of such
//! a message.

use super::Responder;
use super::message::Refusal;
use crate::proto::endpoint::Endpoint;
use crate::proto::{Counter, Host, Incoming, Part, PartRefusal, Sequence, Source};

impl Responder {
    /// Returns whether the peer may execute `part` (a range of a message) directly in memory now.
    /// The result is `true` only if the part has the expected sequence number, and if the responses
    /// to all earlier reads and atomics are sent.
    #[inline]
    pub(in crate::proto) fn expects(&self, part: &Part<'_>) -> bool {
        let is_skipped = self.dropping_message && !part.starts;
        self.expected == part.sequence
            && self.final_nak.is_none()
            && self.key_in_use.is_none()
            && self.resources.is_idle()
            && !is_skipped
    }

    /// Records that the peer has executed a part (range) of a read, a write or an atomic directly
    /// in this process's memory. Afterwards, the responder expects the sequence number after the
    /// part.
    pub(in crate::proto) fn executed(&mut self, part: &Part<'_>) {
        if part.starts {
            self.begin();
        }
        self.message.executed(part);
        self.advance(part.sequence + part.packets, part.ends);
    }

    /// Receives a part (range) of a message on the sender's thread, and copies its bytes from
    /// `source`. After an error, the state is unchanged, with two exceptions: the message has
    /// perhaps taken a receive, and an RNR NAK has perhaps been counted.
    pub(in crate::proto) fn take_part<H: Host>(
        &mut self,
        part: &Incoming,
        source: &mut impl Source<H>,
        endpoint: &Endpoint,
        host: &mut H,
    ) -> Result<(), PartRefusal> {
        if part.starts && !endpoint.is_reliable() {
            self.begin();
        }
        match self.message.take(part, source, host) {
            Ok(true) => {
                self.advance(part.end(endpoint), part.ends);
                Ok(())
            }
            // On an unreliable connection, the message is dropped.
            Err(Refusal::NotReady) if endpoint.is_reliable() => {
                host.count(Counter::SentRnr, 1);
                let timer = endpoint.attributes.min_rnr_timer;
                Err(PartRefusal::NotReady { timer })
            }
            Err(Refusal::Later { delay, .. }) => Err(PartRefusal::Later { delay }),
            Ok(false) | Err(_) => Err(PartRefusal::UsePackets),
        }
    }

    /// Receives a part of a message of a reliable connection, and copies its bytes from `source`.
    /// Acknowledgements and NAKs are sent later. Returns whether the part was accepted and all its
    /// bytes were copied.
    #[inline(always)]
    pub(in crate::proto) fn receive_part<H: Host>(
        &mut self,
        part: &Incoming,
        source: &mut impl Source<H>,
        endpoint: &Endpoint,
        host: &mut H,
    ) -> bool {
        if self.final_nak.is_some() {
            return false;
        }
        let distance = part.sequence.distance(self.expected);
        if distance > 0 {
            self.handle_gap(host);
            return false;
        }
        // The part is acknowledged in any case, like every complete message.
        self.acknowledgement_pending = true;
        if distance < 0 {
            host.count(Counter::DuplicateRequest, 1);
            return false;
        }
        self.expected_arrived();
        match self.message.take_from_process(part, source, endpoint, host) {
            Ok(true) => {
                self.advance(part.end(endpoint), part.ends);
                return true;
            }
            // The NAK makes the sender transfer the bytes.
            Ok(false) => self.handle_gap(host),
            Err(refusal) => self.refuse(refusal, endpoint, host),
        }
        false
    }

    /// Returns whether the responder has no packet to send to the peer. A pending acknowledgement
    /// is ignored.
    #[inline]
    pub(in crate::proto) fn has_no_packet(&self) -> bool {
        self.final_nak.is_none()
            && self.pending_nak.is_none()
            && !self.report_pending
            && self.key_in_use.is_none()
            && self.resources.is_idle()
    }

    /// Returns whether the responder has no packet to send to the peer, not even an
    /// acknowledgement.
    #[inline]
    pub(in crate::proto) fn is_silent(&self) -> bool {
        self.has_no_packet() && !self.acknowledgement_pending && self.closing_nak.is_none()
    }

    /// Returns the sequence number of the acknowledgement that must be sent, and records that it
    /// was sent. Returns `None` if no acknowledgement must be sent.
    #[inline]
    pub(in crate::proto) fn take_acknowledgement(&mut self) -> Option<Sequence> {
        let number = self.acknowledgement();
        self.acknowledgement_sent();
        number
    }

    /// Records that the [acknowledgement](Self::acknowledgement) was sent, if one had to be sent.
    #[inline]
    pub(in crate::proto) fn acknowledgement_sent(&mut self) {
        self.acknowledgement_pending = false;
    }

    /// Returns the sequence number of the acknowledgement that must be sent, or `None` if no
    /// acknowledgement must be sent.
    #[inline]
    pub(in crate::proto) fn acknowledgement(&self) -> Option<Sequence> {
        self.acknowledgement_pending.then(|| self.acknowledged())
    }

    /// Begins to receive a message that is transferred without packets. Drops any message that was
    /// being received before, because such a message may be incomplete on an unreliable connection.
    fn begin(&mut self) {
        self.message.drop_packets();
        self.dropping_message = false;
    }

    #[inline]
    fn advance(&mut self, end: Sequence, ends: bool) {
        self.expected = end;
        self.message_sequence = self.message_sequence.wrapping_add(u32::from(ends));
    }
}

impl Incoming {
    /// Returns the sequence number after the last one of this part (range) of a message.
    #[inline]
    pub(super) fn end(&self, endpoint: &Endpoint) -> Sequence {
        self.sequence + endpoint.packets(self.length)
    }
}
