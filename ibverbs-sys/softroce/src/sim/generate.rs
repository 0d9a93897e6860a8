use std::rc::Rc;
use std::time::Duration;

use crate::proto::{
    CompletionOpcode, GatherList, Inline, Payload, SendOperation, SendRequest, State,
};

use super::buffer::Buffer;
use super::content;
use super::requester::{Effect, Expectation, Posted};
use super::scenario::{Scenario, Token};
use super::schedule::Kind;

/// Maximum length in bytes of a message that may be posted inline: the number of bytes that
/// [`Inline`] stores without an allocation.
const MAX_INLINE: usize = 128;

/// A request that was prepared and has not been posted yet. Also contains the effect that the model
/// of the simulation expects if the request succeeds.
pub(super) struct Draft {
    pub(super) opcode: CompletionOpcode,
    pub(super) operation: SendOperation,
    pub(super) payload: Payload,
    pub(super) length: usize,
    pub(super) effect: Effect,
    pub(super) buffer: Option<Rc<Buffer>>,
    pub(super) window: Option<usize>,
    pub(super) fence: bool,
    /// Message that the peer must receive if the request succeeds.
    pub(super) expected: Option<Expectation>,
}

impl Draft {
    pub(super) fn new(opcode: CompletionOpcode, operation: SendOperation, effect: Effect) -> Self {
        Self {
            opcode,
            operation,
            payload: Payload::Gathered(GatherList::new()),
            length: 0,
            effect,
            buffer: None,
            window: None,
            fence: false,
            expected: None,
        }
    }
}

impl Scenario<'_> {
    /// Posts requests of the simulated requester with the index `r` until its send queue is full,
    /// all its requests are posted, or a random pause begins. A request that is meant to fail is
    /// posted last.
    pub(super) fn post_requests(&mut self, r: usize) -> Result<(), String> {
        loop {
            self.complete_unsignaled(r)?;
            let requester = &mut self.requesters[r];
            let connection = &self.schedule.connections[requester.connection];
            let state = self.world.queue_pair(requester.place).state();
            let open = matches!(state, State::ReadyToSend | State::SendQueueDrained);
            if !open || requester.resting || requester.posted.len() >= connection.depth {
                return Ok(());
            }
            if requester.remaining == 0 {
                self.post_failing_request(r);
                return Ok(());
            }
            if requester.random.percent(15) {
                requester.resting = true;
                let pause = Duration::from_nanos(requester.random.magnitude(200_000));
                self.world.wake_after(pause, Token::Post(r).number());
                return Ok(());
            }
            requester.remaining -= 1;
            let id = self.next_id();
            let draft = match connection.kind {
                Kind::Reliable | Kind::Extended => self.draft_reliable(r, id),
                Kind::Unreliable => self.draft_unreliable(r, id),
                Kind::Datagram => self.draft_datagram(r, id),
            };
            self.post(r, id, draft);
        }
    }

    /// Posts the prepared request `draft` of the simulated requester with the index `r`, with the
    /// ID `id`. Also records the expected effect of the request, which is checked after the request
    /// has completed.
    pub(super) fn post(&mut self, r: usize, id: u64, draft: Draft) {
        let requester = &mut self.requesters[r];
        let connection = &self.schedule.connections[requester.connection];
        // The request that fills the send queue must be signaled. Otherwise the model would not
        // learn that there is room again.
        let fills = requester.posted.len() + 1 >= connection.depth;
        let signaled = connection.signal_all || requester.random.percent(60) || fills;
        let solicited = requester.random.percent(20);
        let fence = draft.fence || requester.random.percent(3);
        let xrc_srq = match connection.kind {
            Kind::Extended => Some(requester.random.range(0, 1) as u32),
            _ => None,
        };
        let xrc_srq = xrc_srq.map(|number| self.xrc_queue(r, number));
        let requester = &mut self.requesters[r];
        requester.posted.push_back(Posted {
            id,
            opcode: draft.opcode,
            signaled,
            length: draft.length,
            effect: draft.effect,
            buffer: draft.buffer,
            window: draft.window,
        });
        if let Some(expected) = draft.expected {
            requester.expected.push_back(Expectation {
                solicited,
                srq: xrc_srq,
                ..expected
            });
        }
        let place = requester.place;
        self.outcome.requests += 1;
        self.world.post(
            place,
            SendRequest {
                id,
                operation: draft.operation,
                payload: draft.payload,
                length: draft.length as u32,
                xrc_srq,
                signaled,
                solicited,
                fence,
            },
        );
    }

    /// Returns a random message length in bytes for a request of the simulated requester with the
    /// index `r`. Zero, short lengths, and lengths near a multiple of the path MTU are frequent,
    /// because they are special cases of the transport.
    pub(super) fn draw_length(&mut self, r: usize) -> usize {
        let requester = &mut self.requesters[r];
        let connection = &self.schedule.connections[requester.connection];
        let largest = u64::from(connection.largest);
        if requester.owes_largest && requester.random.percent(15) {
            requester.owes_largest = false;
            return largest as usize;
        }
        let random = &mut requester.random;
        let mtu = connection.mtu.bytes() as u64;
        let length = match random.range(0, 19) {
            0..=2 => 0,
            3..=8 => random.range(1, 64),
            9..=12 => (mtu * random.range(1, 4) + random.range(0, 2)).saturating_sub(1),
            13..=18 => random.magnitude(largest),
            _ => random.range(0, largest),
        };
        let length = length.min(largest);
        // Large messages make up most of the packets of a schedule, so the budget of the requester
        // limits them.
        if length > requester.budget {
            return random.range(0, largest.min(4096)) as usize;
        }
        if length > 4096 {
            requester.budget -= length;
        }
        length as usize
    }

    /// Sets the data of the prepared request `draft` to the first `length` bytes of the message
    /// with the ID `id`, inline or in registered memory. `r` is the index of the simulated
    /// requester that will post the request.
    pub(super) fn set_message(&mut self, r: usize, draft: &mut Draft, id: u64, length: usize) {
        let requester = &mut self.requesters[r];
        let message = content::message(id, length);
        draft.length = length;
        if length <= MAX_INLINE && requester.random.percent(30) {
            draft.payload = Payload::Inline(Inline::from_slice(&message));
            return;
        }
        let memory = self.world.memory(requester.place.node);
        let buffer = Buffer::containing(memory, &mut requester.random, &message);
        draft.payload = Payload::Gathered(buffer.segments().clone());
        draft.buffer = Some(Rc::new(buffer));
    }

    /// Registers `length` zero bytes as the memory of the prepared request `draft`, for example for
    /// the data that a read fetches. `r` is the index of the simulated requester that will post the
    /// request.
    pub(super) fn set_response_memory(&mut self, r: usize, draft: &mut Draft, length: usize) {
        let requester = &mut self.requesters[r];
        let memory = self.world.memory(requester.place.node);
        let buffer = Buffer::zeroed(memory, &mut requester.random, length);
        draft.length = length;
        draft.payload = Payload::Gathered(buffer.segments().clone());
        draft.buffer = Some(Rc::new(buffer));
    }
}
