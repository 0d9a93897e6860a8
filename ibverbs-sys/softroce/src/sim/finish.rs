use crate::proto::{
    CompletionStatus, Event, GatherList, Payload, SendOperation, SendRequest, State,
};

use super::receive_pool::Queue;
use super::requester::{Effect, Posted};
use super::scenario::Scenario;
use super::schedule::{Ending, Kind};
use super::target_memory::PossibleWrite;

impl Scenario<'_> {
    /// Checks the state at the end of a simulation. Fails if a simulated requester in `requesters`
    /// (list of indices) has not completed all its requests, or if some memory does not have the
    /// expected content. Then moves all queue pairs to the error state, and checks that the
    /// remaining receives are flushed.
    pub(super) fn finish(&mut self, requesters: &[usize]) -> Result<(), String> {
        for &r in requesters {
            let number = self.world.queue_pair(self.requesters[r].place).number();
            self.finish_requester(r)
                .map_err(|why| format!("qp {number:#x} in the end: {why}"))?;
        }
        for &r in requesters {
            self.check_memory(r)?;
        }
        for (node, cells) in self.cells.iter().enumerate() {
            let checked = cells.check(self.world.memory(node));
            checked.map_err(|why| format!("the words of node {node}: {why}"))?;
        }
        self.flush_all()
    }

    fn finish_requester(&mut self, r: usize) -> Result<(), String> {
        self.complete_unsignaled(r)?;
        let place = self.requesters[r].place;
        let fell = self.world.queue_pair(place).state() == State::Error;
        if fell && self.requesters[r].ended.is_none() {
            // Outstanding requests have been flushed. The rest succeeded, but were not signaled.
            while let Some(posted) = self.requesters[r].posted.pop_front() {
                if posted.signaled {
                    return Err(format!("the end of request {} was never told", posted.id));
                }
                self.check_success(r, posted)?;
            }
        }
        let requester = &self.requesters[r];
        let connection = &self.schedule.connections[requester.connection];
        if let Some(posted) = requester.posted.front() {
            return Err(format!(
                "request {} ({:?}) never ended",
                posted.id, posted.opcode
            ));
        }
        let outstanding = self.world.queue_pair(place).outstanding();
        if outstanding > 0 {
            return Err(format!("{outstanding} requests are outstanding"));
        }
        if fell || requester.ended.is_some() {
            return self.check_events(r);
        }
        if requester.remaining > 0 {
            return Err(format!(
                "{} requests were never posted",
                requester.remaining
            ));
        }
        let spoils = self.life == 0 && requester.side == 0 && connection.ending.is_some();
        if spoils {
            return Err(format!("{:?} did not end it", connection.ending));
        }
        let reliable = matches!(connection.kind, Kind::Reliable | Kind::Extended);
        match requester.expected.front() {
            Some(expected) if reliable => {
                Err(format!("the peer was not told of message {}", expected.id))
            }
            _ => Ok(()),
        }
    }

    /// Checks the events that the peer of the simulated requester with the index `r` has raised. If
    /// the test made the requester's last request fail by a wrong key, address range or alignment,
    /// the peer must have raised the event for this fault.
    fn check_events(&self, r: usize) -> Result<(), String> {
        let requester = &self.requesters[r];
        let ending = self.schedule.connections[requester.connection].ending;
        let as_planned = matches!(
            requester.ended,
            Some(CompletionStatus::RemoteAccess | CompletionStatus::RemoteInvalidRequest)
        );
        let event = match ending {
            Some(Ending::UnknownKey | Ending::OutOfBounds) => Event::AccessViolation,
            Some(Ending::Misaligned) => Event::InvalidRequest,
            _ => return Ok(()),
        };
        let role = requester.partner.and_then(|partner| {
            let place = self.requesters[partner].place;
            self.roles.get(&place)
        });
        match role {
            Some(role) if as_planned && requester.spoiled && !role.raised.contains(&event) => {
                Err(format!("the peer did not raise {event:?}"))
            }
            _ => Ok(()),
        }
    }

    fn check_memory(&mut self, r: usize) -> Result<(), String> {
        let requester = &self.requesters[r];
        let after: Vec<(&Posted, [u8; 8])> = requester
            .undone
            .iter()
            .map(|posted| match posted.effect {
                Effect::Atomic { becomes, .. } => (posted, becomes.to_ne_bytes()),
                _ => (posted, [0; 8]),
            })
            .collect();
        let mut maybe = Vec::new();
        for (posted, becomes) in &after {
            let (offset, bytes): (usize, &[u8]) = match &posted.effect {
                Effect::Write { offset, bytes, .. } => (*offset, bytes),
                Effect::Atomic { offset, .. } => (*offset, becomes),
                Effect::Shared(change) => {
                    self.cells[requester.target.node].record_failed(*change);
                    continue;
                }
                _ => continue,
            };
            maybe.push(PossibleWrite { offset, bytes });
        }
        let number = self.world.queue_pair(requester.place).number();
        let memory = self.world.memory(requester.target.node);
        let checked = requester.target.check(memory, &maybe);
        checked.map_err(|why| format!("what qp {number:#x} wrote: {why}"))
    }

    /// Moves every queue pair of the simulation to the error state, and posts another request for
    /// each requester. Checks that all remaining receives and these requests complete with the
    /// status "flushed". The error describes the first difference.
    fn flush_all(&mut self) -> Result<(), String> {
        for requester in &mut self.requesters {
            self.broken[requester.connection] = true;
            requester.ended.get_or_insert(CompletionStatus::Flushed);
        }
        for pool in &mut self.pools {
            pool.stopped = true;
        }
        let mut places: Vec<_> = self.roles.keys().copied().collect();
        places.sort_unstable_by_key(|place| (place.node, place.slot));
        for &place in &places {
            if self.world.queue_pair(place).state() != State::Error {
                self.world.enter(place, State::Error);
            }
        }
        for r in 0..self.requesters.len() {
            self.post_in_error(r);
        }
        self.run_until_idle()?;
        for (place, role) in &self.roles {
            let number = self.world.queue_pair(*place).number();
            let own = role.pool.map(|pool| &self.pools[pool]);
            let own = own.filter(|pool| matches!(pool.queue, Queue::Own(_)));
            let left = own.map_or(0, |pool| pool.outstanding());
            if left > 0 {
                return Err(format!(
                    "{left} receives of qp {number:#x} were not flushed"
                ));
            }
            let shares = self.world.queue_pair(*place).attributes().shared_receive;
            if shares && role.pool.is_some() {
                let last = |event: &&Event| **event == Event::LastRequestReached;
                let told = role.raised.iter().filter(last).count();
                if told != 1 {
                    return Err(format!(
                        "qp {number:#x} raised its last request {told} times"
                    ));
                }
            }
        }
        let lost = |requester: &&super::requester::Requester| !requester.posted.is_empty();
        match self.requesters.iter().find(lost) {
            Some(_) => Err("what was posted in the error state was not flushed".to_owned()),
            None => Ok(()),
        }
    }

    /// Posts a request of the simulated requester with the index `r`, whose queue pair must be in
    /// the error state. Records that the model expects the request to complete with the status
    /// "flushed".
    fn post_in_error(&mut self, r: usize) {
        let id = self.next_id();
        let operation = SendOperation::Send {
            immediate: None,
            invalidate: None,
        };
        let requester = &mut self.requesters[r];
        requester.posted.push_back(Posted {
            id,
            opcode: crate::proto::CompletionOpcode::Send,
            signaled: false,
            length: 0,
            effect: Effect::Fault(&[CompletionStatus::Flushed]),
            buffer: None,
            window: None,
        });
        self.world.post(
            requester.place,
            SendRequest {
                id,
                operation,
                payload: Payload::Gathered(GatherList::new()),
                length: 0,
                xrc_srq: None,
                signaled: false,
                solicited: false,
                fence: false,
            },
        );
    }
}
