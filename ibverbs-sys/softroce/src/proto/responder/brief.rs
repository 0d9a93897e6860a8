use super::Responder;
use super::message::Trailer;
use crate::proto::endpoint::Endpoint;
use crate::proto::{Counter, Host, Sequence, Short};

impl Responder {
    /// Returns whether an acknowledgement is the most that there is to transmit.
    pub(in crate::proto) fn is_brief(&self) -> bool {
        self.end.is_none()
            && self.refusal.is_none()
            && self.held.is_none()
            && self.resources.is_idle()
    }

    /// Returns whether nothing is to be transmitted.
    pub(in crate::proto) fn is_silent(&self) -> bool {
        self.is_brief() && !self.acknowledge && self.farewell.is_none()
    }

    /// Returns the number to acknowledge up to, if an acknowledgement is to be transmitted, and marks it as
    /// transmitted.
    pub(in crate::proto) fn take_acknowledgement(&mut self) -> Option<Sequence> {
        std::mem::take(&mut self.acknowledge).then(|| self.acknowledged())
    }

    /// Takes a short message.
    pub(in crate::proto) fn receive_short(
        &mut self,
        endpoint: &Endpoint,
        message: &Short<'_>,
        host: &mut impl Host,
    ) {
        if self.end.is_some() {
            return;
        }
        let distance = message.sequence.distance(self.expected);
        if distance > 0 {
            self.miss(host);
            return;
        }
        // The message is acknowledged in any case, as every complete message is.
        self.acknowledge = true;
        if distance < 0 {
            host.count(Counter::DuplicateRequest, 1);
            return;
        }
        self.refused = false;
        self.refusal = None;
        let trailer = Trailer {
            immediate: message.immediate,
            invalidated: None,
            solicited: message.solicited,
        };
        match (self.message).accept_whole(message.payload, trailer, host) {
            Ok(()) => {
                self.message_sequence += 1;
                self.expected = message.sequence.next();
            }
            Err(refusal) => self.refuse(refusal, endpoint, host),
        }
    }
}
