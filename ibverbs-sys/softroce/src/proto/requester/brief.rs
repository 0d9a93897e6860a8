use std::iter;

use super::entry::{Entry, Progress};
use super::{Cursor, Failed, Requester};
use crate::proto::brief::{OFFERED, OFFERED_MAPPED, PART, SEGMENTS, SHORT, put_segments};
use crate::proto::endpoint::Endpoint;
use crate::proto::{
    CompletionStatus, Form, GatherList, Host, Inline, Partner, Payload, Segment, SendOperation,
    SendRequest, Sequence, Short, Time, Utterance,
};

impl Requester {
    /// The packet that goes next, if it fits into a brief and may go.
    pub(in crate::proto) fn poll_brief<'a, H: Host>(
        &mut self,
        now: impl FnOnce() -> Time,
        endpoint: &Endpoint,
        host: &mut H,
        partner: &mut impl Partner<H>,
        room: &'a mut [u8; SHORT],
    ) -> Result<Option<Short<'a>>, Failed> {
        self.offers = partner.is_there() && self.refusals < MAX_REFUSALS;
        let next = self.queue.get(self.cursor.entry);
        if !next.is_some_and(|entry| is_short(&entry.request)) && !self.offers_next()
            || self.again_at.is_some()
            || self.probe.is_due()
        {
            return Ok(None);
        }
        let Some((sequence, packets)) = self.select(endpoint, host)? else {
            return Ok(None);
        };
        if self.offers_next() {
            if self
                .skips
                .is_untold(sequence + self.cursor.packet, self.unanswered)
            {
                return Ok(None);
            }
            return self.offer(sequence, packets, now, endpoint, host, partner, room);
        }
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
            form: Form::Whole,
            immediate,
            solicited,
            payload: room,
        }))
    }

    /// Returns the next part of a message whose bytes the receiver copies, or writes the bytes of a write with immediate data to
    /// the peer's memory and returns the rest of it. `first` is the number of the message's first packet.
    #[expect(clippy::too_many_arguments, reason = "they are those of its caller")]
    fn offer<'a, H: Host>(
        &mut self,
        first: Sequence,
        packets: u32,
        now: impl FnOnce() -> Time,
        endpoint: &Endpoint,
        host: &mut H,
        partner: &mut impl Partner<H>,
        room: &'a mut [u8; SHORT],
    ) -> Result<Option<Short<'a>>, Failed> {
        let packet = self.cursor.packet;
        let sequence = first + packet;
        let on_the_way = self.on_the_way(sequence);
        let mtu = endpoint.mtu();
        let request = &self.queue[self.cursor.entry].request;
        let (covers, taken, form, immediate) = match (&request.operation, &request.payload) {
            (&SendOperation::Write { remote, immediate }, _) => {
                // A write cannot be undone, so all requests before it have to be executed.
                if on_the_way > 0 {
                    return Ok(None);
                }
                if partner.write(request, remote, host).is_none() {
                    self.declined = Some(first);
                    return Ok(None);
                }
                room[..4].copy_from_slice(&request.length.to_ne_bytes());
                (packets, 4, Form::Written, immediate)
            }
            (
                SendOperation::Send {
                    immediate,
                    invalidate,
                },
                Payload::Gathered(list),
            ) => {
                let most = PART / mtu;
                let covers = (packets - packet).min(most);
                if on_the_way > 0
                    && (!self.window.has_room(on_the_way, covers) || on_the_way + covers > 2 * most)
                {
                    return Ok(None);
                }
                let offset = packet * mtu;
                let length = (request.length - offset).min(covers * mtu);
                // The first byte tells of memory that is not there any more also while the peer has no receive.
                if packet == 0
                    && (host.check_local(list, 0, request.length).is_err()
                        || host.gather(list, 0, &mut [0]).is_err())
                {
                    let status = CompletionStatus::LocalProtection;
                    self.queue[self.cursor.entry].progress = Progress::Failed(status);
                    self.settle(endpoint, host)?;
                    return Ok(None);
                }
                let taken = put_segments(Segment::parts(list, offset, length), room);
                let ends = packet + covers == packets;
                let form = Form::Fetch {
                    starts: packet == 0,
                    ends,
                    invalidates: invalidate.is_some(),
                };
                let trailer = immediate.or(invalidate.map(u32::to_ne_bytes));
                (covers, taken, form, trailer.filter(|_| ends))
            }
            _ => return Ok(None),
        };
        let solicited = request.solicited;
        self.unasked = 0;
        self.cursor.packet += covers;
        if self.cursor.packet == packets {
            self.cursor = self.after(self.cursor.entry);
        }
        self.went(sequence + covers, host);
        self.expect_answer(now, endpoint);
        Ok(Some(Short {
            sequence,
            form,
            immediate,
            solicited,
            payload: &room[..taken],
        }))
    }

    /// Returns whether the message at the cursor goes by [`poll_brief`](Self::poll_brief) and not by packets.
    pub(in crate::proto) fn offers_next(&self) -> bool {
        let next = self.queue.get(self.cursor.entry);
        next.is_some_and(|entry| self.is_offered(entry, self.cursor.packet))
    }

    /// Returns whether the rest of a message from a packet on is offered.
    fn is_offered(&self, entry: &Entry, packet: u32) -> bool {
        if !self.offers || !is_offerable(entry) {
            return false;
        }
        // A write that packets have begun ends by packets.
        let is_whole =
            packet == 0 || !matches!(entry.request.operation, SendOperation::Write { .. });
        is_whole
            && match entry.progress {
                Progress::Started { first, .. } => self.declined != Some(first),
                Progress::Waiting => true,
                Progress::Done | Progress::Failed(_) => false,
            }
    }

    /// Has the oldest message go by packets if it was offered: the peer could not fetch its bytes. Returns whether that is so.
    pub(super) fn decline(&mut self) -> bool {
        let offered = (self.queue.front())
            .filter(|entry| self.is_offered(entry, 0))
            .map(|entry| entry.progress);
        let Some(Progress::Started { first, .. }) = offered else {
            return false;
        };
        self.declined = Some(first);
        self.refusals += 1;
        self.go_back();
        self.sent_back = true;
        true
    }

    /// Returns whether a message that is done shows that the peer can fetch bytes, after others that it could not fetch.
    pub(super) fn was_fetched(&self, entry: &Entry) -> bool {
        self.refusals > 0 && self.is_offered(entry, 0)
    }

    /// Offers nothing until [`poll_brief`](Self::poll_brief) is called: no memory is shared with the peer at present.
    pub(in crate::proto) fn withhold(&mut self) {
        self.offers = false;
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
            is_mappable: false,
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
            form: Form::Whole,
            immediate,
            solicited: message.solicited,
            payload: said,
        }
    }

    /// Returns whether a message of so many packets can be offered in one part after all that is on the way.
    pub(in crate::proto) fn may_offer(&self, packets: u32, endpoint: &Endpoint) -> bool {
        let on_the_way = self.on_the_way(self.next);
        let has_room = on_the_way == 0
            || self.window.has_room(on_the_way, packets)
                && on_the_way + packets <= 2 * (PART / endpoint.mtu());
        self.offers && has_room
    }

    /// Posts a message of one segment, which the peer can map, and offers all of it.
    pub(in crate::proto) fn offer_posted<'a>(
        &mut self,
        message: &Utterance,
        segment: Segment,
        room: &'a mut [u8; SHORT],
        now: impl FnOnce() -> Time,
        endpoint: &Endpoint,
    ) -> Short<'a> {
        let (sequence, packets) = (self.next, endpoint.packets(segment.length));
        let immediate = message.immediate;
        self.queue.push_back(Entry {
            request: SendRequest {
                id: message.id,
                operation: SendOperation::Send {
                    immediate,
                    invalidate: None,
                },
                payload: Payload::Gathered(GatherList::from_slice(&[segment])),
                length: segment.length,
                xrc_srq: None,
                signaled: message.signaled,
                solicited: message.solicited,
                fence: false,
            },
            progress: Progress::Started {
                first: sequence,
                packets,
            },
            is_mappable: true,
        });
        let taken = put_segments(iter::once(segment), room);
        self.cursor = Cursor::at(self.queue.len());
        self.next = sequence + packets;
        self.sent = self.next;
        self.unasked = 0;
        self.expect_answer(now, endpoint);
        Short {
            sequence,
            form: Form::Fetch {
                starts: true,
                ends: true,
                invalidates: false,
            },
            immediate,
            solicited: message.solicited,
            payload: &room[..taken],
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

/// Number of messages in a row that the peer could not fetch after which a connection offers no more.
const MAX_REFUSALS: u32 = 3;

/// Returns whether the length of a request is one at which the kind of memory decides which way the bytes go.
pub(super) fn may_be_mappable(request: &SendRequest) -> bool {
    (OFFERED_MAPPED..OFFERED).contains(&request.length)
        && matches!(request.operation, SendOperation::Send { .. })
}

/// Returns whether the bytes of a request can go from memory to memory.
fn is_offerable(entry: &Entry) -> bool {
    let request = &entry.request;
    // The kind of memory is not known before the request has started.
    let is_waiting = matches!(entry.progress, Progress::Waiting);
    let is_long =
        request.length >= OFFERED || may_be_mappable(request) && (entry.is_mappable || is_waiting);
    let is_long = is_long && request.xrc_srq.is_none();
    match (&request.operation, &request.payload) {
        (SendOperation::Send { .. }, Payload::Gathered(list)) => {
            let segments = list.iter().filter(|segment| segment.length > 0);
            is_long && segments.count() <= SEGMENTS
        }
        (
            SendOperation::Write {
                immediate: Some(_), ..
            },
            _,
        ) => is_long,
        _ => false,
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
