use super::entry::{Entry, Progress};
use super::{Cursor, Failed, Requester};
use crate::proto::brief::SHORT;
use crate::proto::endpoint::Endpoint;
use crate::proto::{
    CompletionStatus, Host, Payload, SendOperation, SendRequest, Sequence, Short, Time, Utterance,
};

impl Requester {
    /// The packet that goes next, if it fits into a brief and may go.
    pub(in crate::proto) fn poll_brief(
        &mut self,
        now: impl FnOnce() -> Time,
        endpoint: &Endpoint,
        host: &mut impl Host,
    ) -> Result<Option<Short>, Failed> {
        let next = self.queue.get(self.cursor.entry);
        if !next.is_some_and(|entry| is_short(&entry.request))
            || self.again_at.is_some()
            || self.probe.is_due()
        {
            return Ok(None);
        }
        let Some((sequence, packets)) = self.select(endpoint, host)? else {
            return Ok(None);
        };
        let on_the_way = self.on_the_way(sequence);
        let entry = &mut self.queue[self.cursor.entry];
        let request = &entry.request;
        let SendOperation::Send { immediate, .. } = request.operation else {
            return Ok(None);
        };
        // What is selected may be another one than the first look was at.
        if !is_short(request)
            || packets != 1
            || self.skips.is_untold(sequence, self.unanswered)
            || !self.window.has_room(on_the_way, 1)
        {
            return Ok(None);
        }
        let mut message = Short {
            sequence,
            immediate,
            solicited: request.solicited,
            length: request.length as u8,
            bytes: [0; SHORT],
        };
        let room = &mut message.bytes[..request.length as usize];
        let gathered = match &request.payload {
            Payload::Inline(bytes) if bytes.len() >= room.len() => {
                room.copy_from_slice(&bytes[..room.len()]);
                Ok(())
            }
            Payload::Inline(_) => Err(CompletionStatus::LocalLength),
            Payload::Gathered(_) if room.is_empty() => Ok(()),
            Payload::Gathered(list) => host
                .gather(list, 0, room)
                .map_err(|_| CompletionStatus::LocalProtection),
        };
        if let Err(status) = gathered {
            entry.progress = Progress::Failed(status);
            self.settle(endpoint, host)?;
            return Ok(None);
        }
        self.unasked = 0;
        self.cursor = self.after(self.cursor.entry);
        self.went(sequence.next(), host);
        // There is no probe for it: memory loses nothing.
        self.expect_answer(now, endpoint);
        Ok(Some(message))
    }

    /// Whether a message that was posted now would go now.
    #[inline]
    pub(in crate::proto) fn may_say(&self) -> bool {
        self.cursor.entry >= self.queue.len()
            && self.again_at.is_none()
            && !self.probe.is_due()
            && !self.skips.is_untold(self.next, self.unanswered)
            && self.window.has_room(self.on_the_way(self.next), 1)
    }

    /// Posts a message and sends it.
    #[inline]
    pub(in crate::proto) fn say(
        &mut self,
        message: &Utterance,
        said: &[u8],
        now: impl FnOnce() -> Time,
        endpoint: &Endpoint,
    ) -> Short {
        debug_assert!(self.may_say(), "nothing is overtaken");
        let sequence = self.next;
        let (length, immediate) = (said.len().min(SHORT), message.immediate);
        let mut bytes = [0; SHORT];
        bytes[..length].copy_from_slice(&said[..length]);
        self.queue.push_back(Entry {
            request: SendRequest {
                id: message.id,
                operation: SendOperation::Send {
                    immediate,
                    invalidate: None,
                },
                payload: Payload::Inline(said.into()),
                length: length as u32,
                xrc_srq: None,
                signaled: message.signaled,
                solicited: message.solicited,
                fence: false,
            },
            progress: Progress::Started {
                first: sequence,
                packets: 1,
            },
        });
        self.cursor = Cursor::at(self.queue.len());
        self.next = sequence.next();
        self.sent = self.next;
        self.unasked = 0;
        self.expect_answer(now, endpoint);
        Short {
            sequence,
            immediate,
            solicited: message.solicited,
            length: length as u8,
            bytes,
        }
    }

    /// The peer says that it has executed all up to `sequence`. The present may be somewhat before `now`.
    pub(in crate::proto) fn acknowledged(
        &mut self,
        sequence: Sequence,
        now: Time,
        endpoint: &Endpoint,
        host: &mut impl Host,
    ) -> Result<(), Failed> {
        if self.is_news(sequence) {
            self.probe.forgo_measuring();
            self.acknowledge_before(sequence.next(), now, endpoint, host)?;
        }
        Ok(())
    }

    /// Nothing is left to be sent, nor to be looked at again.
    pub(in crate::proto) fn is_silent(&self) -> bool {
        self.cursor.entry >= self.queue.len() && !self.probe.is_due() && !self.flow.asks()
    }
}

/// Whether a brief can be made of a request.
#[inline]
fn is_short(request: &SendRequest) -> bool {
    request.length as usize <= SHORT
        && matches!(
            request.operation,
            SendOperation::Send {
                invalidate: None,
                ..
            }
        )
}
