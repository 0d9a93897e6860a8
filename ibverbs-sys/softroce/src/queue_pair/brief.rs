//! Short messages and acknowledgements to a queue pair of another process of the host: through the memory that both share,
//! without being made packets.

use std::sync::Arc;

use super::QueuePair;
use super::device::Outgoing;
use super::object::Inner;
use super::one_sided::Data;
use super::shared::Near;
use crate::proto::brief::SHORT;
use crate::proto::{
    Arrival, Brief, Counter, Form, Host, Memory, Prospect, Service, Short, Time, Utterance,
};
use crate::same_host::Failure;

impl QueuePair {
    /// Sends messages as briefs, up to the first that cannot go that way. Returns whether there is nothing else to be
    /// sent, as far as a quick check shows.
    pub(super) fn transmit_briefs(&self, mine: &mut Inner, outgoing: &mut impl Outgoing) -> bool {
        if self.service() != Service::ReliableConnection {
            return false;
        }
        let Some(partner) = self.partner(mine) else {
            mine.transport.withhold();
            return false;
        };
        let Some(tag) = partner.tag else {
            mine.transport.withhold();
            mine.partner = Some(partner);
            return false;
        };
        let mut partner = partner;
        let link = Arc::clone(&partner.link);
        let (mut packets, mut bytes) = (0, 0);
        self.with(mine, |transport, host| {
            host.answering = true;
            let mut room = [0; SHORT];
            while link.may_send(self.number()) {
                let now = || self.device().coarse_now();
                let Some(brief) = transport.poll_brief(now, host, &mut partner, &mut room) else {
                    break;
                };
                packets += 1;
                bytes += brief.bytes() as u64;
                if link.send_brief(tag, &brief) == Err(Failure::Full) {
                    link.keep_brief(tag, &brief);
                }
                // Of a peer that is gone the timer tells.
            }
        });
        if packets > 0 {
            mine.tally.count(Counter::SentPackets, packets);
            mine.tally.count(Counter::SharedSentPackets, packets);
            mine.tally.count(Counter::SentBytes, bytes);
            if outgoing.is_quiet() {
                link.flush_later();
            } else {
                link.flush();
            }
        }
        mine.partner = Some(partner);
        mine.transport.is_silent()
    }

    /// Sends a message of at most one piece while it is posted, if it is short or if the peer can map its memory. Must be
    /// followed by [`flush_said`](Self::flush_said). Returns `false` if the message has to be posted as others are.
    pub(super) fn say(&self, mine: &mut Inner, message: &Utterance, data: Data<'_>) -> bool {
        let Some(Near {
            transport,
            attached,
            notes,
            partner,
            tally,
        }) = self.near(mine)
        else {
            return false;
        };
        let Some(tag) = partner.tag else {
            return false;
        };
        let link = &partner.link;
        if !transport.may_say() || !link.may_send(self.number()) {
            return false;
        }
        let mut room = [0; SHORT];
        let now = || self.device().coarse_now();
        let brief = match data {
            Data::Inline(bytes) if bytes.len() <= SHORT => transport.say(message, bytes, now),
            Data::Gathered(list @ [segment]) if segment.length as usize <= SHORT => {
                let bytes = &mut room[..segment.length as usize];
                let host = self.surroundings(attached, notes);
                // The usual path meets the same error and can report it.
                if !bytes.is_empty() && host.gather(list, 0, bytes).is_err() {
                    return false;
                }
                transport.say(message, bytes, now)
            }
            Data::Gathered(list @ [segment]) if transport.may_offer(segment.length) => {
                if !self.surroundings(attached, notes).is_mappable(list) {
                    return false;
                }
                transport.offer(message, *segment, &mut room, now)
            }
            _ => return false,
        };
        if link.send_brief(tag, &brief) == Err(Failure::Full) {
            link.keep_brief(tag, &brief);
        }
        tally.count(Counter::SentPackets, 1);
        tally.count(Counter::SharedSentPackets, 1);
        tally.count(Counter::SentBytes, brief.bytes() as u64);
        true
    }

    /// Wakes the peer, if it sleeps, for the briefs that were sent. Returns whether there is nothing else to be sent.
    pub(super) fn flush_said(&self, mine: &Inner) -> bool {
        if let Some(partner) = &mine.partner {
            partner.link.flush();
        }
        mine.transport.is_silent()
    }

    /// Takes a brief. The answer is to be transmitted.
    pub(crate) fn receive_brief(
        &self,
        now: Time,
        arrival: &Arrival,
        brief: &Brief<'_>,
    ) -> Prospect {
        let mut inner = self.inner.lock();
        let message = brief.message.as_ref();
        let is_long = message.is_some_and(|message| message.form != Form::Whole);
        let holds_up_sender = message.is_some_and(Short::holds_up_sender);
        let mut partner = is_long.then(|| self.partner(&mut inner)).flatten();
        self.with(&mut inner, |transport, host| {
            if !arrival.is_of(transport.attributes()) {
                host.count(Counter::Unaddressed, 1);
            } else if let Some(partner) = &mut partner {
                transport.receive_brief(now, brief, host, partner);
            } else {
                transport.receive_brief(now, brief, host, &mut ());
            }
        });
        if partner.is_some() {
            inner.partner = partner;
        }
        match inner.transport.prospect() {
            Prospect::Acknowledgement if holds_up_sender => Prospect::Urgent,
            prospect => prospect,
        }
    }
}
