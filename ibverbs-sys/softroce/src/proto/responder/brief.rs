use super::Responder;
use super::message::Trailer;
use crate::proto::endpoint::Endpoint;
use crate::proto::{Counter, Host, Sequence, Short};

impl Responder {
    /// Whether all that is to be said, if anything, is how far it is.
    pub(in crate::proto) fn is_brief(&self) -> bool {
        self.end.is_none()
            && self.refusal.is_none()
            && self.held.is_none()
            && self.resources.is_idle()
    }

    /// Whether nothing is to be said.
    pub(in crate::proto) fn is_silent(&self) -> bool {
        self.is_brief() && !self.acknowledge && self.farewell.is_none()
    }

    /// How far it is, if that is to be said; it is then.
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
        // It is acknowledged in any case, as every message is that ends.
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
