use smallvec::SmallVec;

use super::Responder;
use super::message::{Refusal, Trailer};
use crate::proto::brief::{SEGMENTS, segments};
use crate::proto::endpoint::Endpoint;
use crate::proto::{AccessFlags, Counter, Form, Host, Partner, Segment, Sequence, Short};

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
    pub(in crate::proto) fn receive_short<H: Host>(
        &mut self,
        endpoint: &Endpoint,
        message: &Short<'_>,
        host: &mut H,
        partner: &mut impl Partner<H>,
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
        let done = match message.form {
            Form::Whole => self
                .message
                .accept_whole(message.payload, trailer, host)
                .map(|()| Some((1, true))),
            Form::Fetch {
                starts,
                ends,
                invalidates,
            } => {
                let key = message.immediate.filter(|_| invalidates);
                let trailer = Trailer {
                    immediate: trailer.immediate.filter(|_| !invalidates),
                    invalidated: key.map(u32::from_ne_bytes),
                    ..trailer
                };
                let list: SmallVec<[Segment; SEGMENTS]> = segments(message.payload).collect();
                let fetched = (self.message).fetch((starts, ends), &list, trailer, host, partner);
                fetched.map(|length| length.map(|length| (endpoint.packets(length), ends)))
            }
            Form::Written => {
                let length = message
                    .payload
                    .first_chunk()
                    .map_or(0, |bytes| u32::from_ne_bytes(*bytes));
                let may_write = endpoint
                    .attributes
                    .access
                    .contains(AccessFlags::REMOTE_WRITE);
                let done = if may_write {
                    self.message.accept_written(length, trailer, host)
                } else {
                    Err(Refusal::Invalid)
                };
                done.map(|()| Some((endpoint.packets(length), true)))
            }
        };
        match done {
            Ok(Some((packets, ends))) => {
                self.message_sequence += u32::from(ends);
                self.expected = message.sequence + packets;
            }
            // The sender is asked for packets.
            Ok(None) => self.miss(host),
            Err(refusal) => self.refuse(refusal, endpoint, host),
        }
    }
}
