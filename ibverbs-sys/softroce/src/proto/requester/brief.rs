use super::entry::{Entry, Progress};
use super::{Cursor, Failed, Requester};
use crate::proto::brief::SHORT;
use crate::proto::endpoint::Endpoint;
use crate::proto::{
    CompletionStatus, Host, Inline, Payload, SendOperation, SendRequest, Sequence, Short, Time,
    Utterance,
};

impl Requester {
    /// The packet that goes next, if it fits into a brief and may go.
    pub(in crate::proto) fn poll_brief<'a>(
        &mut self,
        now: impl FnOnce() -> Time,
        endpoint: &Endpoint,
        host: &mut impl Host,
        room: &'a mut [u8; SHORT],
    ) -> Result<Option<Short<'a>>, Failed> {
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
        let (room, solicited) = (&mut room[..request.length as usize], request.solicited);
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
        Ok(Some(Short {
            sequence,
            immediate,
            solicited,
            payload: room,
        }))
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
    pub(in crate::proto) fn say<'a>(
        &mut self,
        message: &Utterance,
        said: &'a [u8],
        now: impl FnOnce() -> Time,
        endpoint: &Endpoint,
    ) -> Short<'a> {
        debug_assert!(self.may_say(), "nothing is overtaken");
        let (sequence, immediate) = (self.next, message.immediate);
        self.queue.push_back(Entry {
            request: SendRequest {
                id: message.id,
                operation: SendOperation::Send {
                    immediate,
                    invalidate: None,
                },
                payload: Payload::Inline(Inline::new()),
                length: said.len() as u32,
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
        // In its place: what was written a moment ago in other pieces than it is read in is read only when all before it has
        // reached memory, and that may be a line of the peer's.
        if let Some(Entry { request, .. }) = self.queue.back_mut()
            && let Payload::Inline(bytes) = &mut request.payload
        {
            bytes.extend_from_slice(said);
        }
        self.cursor = Cursor::at(self.queue.len());
        self.next = sequence.next();
        self.sent = self.next;
        self.unasked = 0;
        self.expect_answer(now, endpoint);
        Short {
            sequence,
            immediate,
            solicited: message.solicited,
            payload: said,
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
