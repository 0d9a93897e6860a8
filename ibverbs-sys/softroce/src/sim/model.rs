use std::rc::Rc;

use crate::proto::{Completion, CompletionStatus, Event, State};

use super::requester::{Effect, Posted, Requester, WindowState};
use super::scenario::{Scenario, Token};
use super::schedule::{Ending, Kind};
use super::world::{Happening, QpId};

impl Scenario<'_> {
    /// Checks that the completion or event `what` of the queue pair at the location `place` is
    /// expected, and updates the expected state of the simulation.
    pub(super) fn check_happening(&mut self, place: QpId, what: Happening) -> Result<(), String> {
        let number = self.world.queue_pair(place).number();
        match what {
            Happening::Sent(completion) => {
                let none = || format!("qp {number:#x} sends nothing, but {completion:?}");
                let r = self.roles[&place].asks.ok_or_else(none)?;
                self.sent(r, &completion)
                    .map_err(|why| format!("qp {number:#x}, {completion:?}: {why}"))?;
                self.post_requests(r)?;
            }
            Happening::Received(completion, srq) => {
                self.check_receive(place, &completion, srq)
                    .map_err(|why| format!("qp {number:#x}, {completion:?}: {why}"))?;
            }
            Happening::Raised(event) => self.raised(place, event)?,
        }
        Ok(())
    }

    fn raised(&mut self, place: QpId, event: Event) -> Result<(), String> {
        let number = self.world.queue_pair(place).number();
        let Some(role) = self.roles.get_mut(&place) else {
            return Ok(());
        };
        role.raised.push(event);
        match event {
            Event::SendQueueDrained => {
                self.world.set_drained(place);
                if let Some(r) = role.asks {
                    let delay = self.short_delay();
                    self.world.wake_after(delay, Token::Resume(r).number());
                }
                Ok(())
            }
            Event::Fatal => Err(format!("qp {number:#x} raises {event:?}")),
            Event::CommunicationEstablished
            | Event::InvalidRequest
            | Event::AccessViolation
            | Event::LastRequestReached => Ok(()),
        }
    }

    fn sent(&mut self, r: usize, completion: &Completion) -> Result<(), String> {
        let status = completion.status;
        if let Some(before) = self.requesters[r].ended {
            if status != CompletionStatus::Flushed {
                return Err(format!("after {before:?} all must be flushed"));
            }
        } else if status != CompletionStatus::Success {
            self.check_failure(r, completion)?;
        }
        loop {
            let ended = self.requesters[r].ended.is_some();
            let posted = self.requesters[r].posted.pop_front();
            let posted =
                posted.ok_or("no request is posted, or the request has completed before")?;
            if posted.id == completion.id {
                if ended {
                    self.requesters[r].undone.push(posted);
                    self.outcome.flushed += 1;
                    return Ok(());
                }
                let connection = self.requesters[r].connection;
                if !posted.signaled && !self.schedule.connections[connection].signal_all {
                    return Err("nobody asked for it".to_owned());
                }
                if posted.opcode != completion.opcode {
                    return Err(format!("it was a {:?}", posted.opcode));
                }
                return self.check_success(r, posted);
            }
            if posted.signaled || (ended && status == CompletionStatus::Flushed) {
                return Err(format!("request {} must be told first", posted.id));
            }
            // The request was not signaled, and succeeded: a later one has completed.
            self.check_success(r, posted)?;
        }
    }

    /// Checks the first failed completion of the simulated requester with the index `r`, and
    /// records that the requester's connection has failed. The failure is expected in three cases:
    /// the test makes this request fail, the schedule permits exhausted retries, or the connection
    /// has failed before. Fails if the failure is not expected.
    fn check_failure(&mut self, r: usize, completion: &Completion) -> Result<(), String> {
        let status = completion.status;
        // All earlier requests succeeded, and their effects are checked before the requester counts
        // as failed.
        while let Some(first) = self.requesters[r].posted.front() {
            if first.id == completion.id || first.signaled {
                break;
            }
            if let Some(posted) = self.requesters[r].posted.pop_front() {
                self.check_success(r, posted)?;
            }
        }
        let requester = &self.requesters[r];
        let connection = requester.connection;
        let settings = &self.schedule.connections[connection];
        let conditions = &self.schedule.conditions;
        let is_cut = settings.ending == Some(Ending::Cut);
        let lossy = is_cut || conditions.loss + conditions.corrupt > 0;
        let at_first = requester.posted.front();
        let as_planned = match at_first.map(|posted| &posted.effect) {
            Some(Effect::Fault(statuses)) => statuses.contains(&status),
            _ => false,
        };
        let gave_up = status == CompletionStatus::RetryExceeded;
        let reliable = matches!(settings.kind, Kind::Reliable | Kind::Extended);
        let partner_fell = requester.partner.is_some_and(|partner| {
            let place = self.requesters[partner].place;
            self.world.queue_pair(place).state() == State::Error
        });
        let excused = reliable
            && (as_planned
                || (self.schedule.harsh && gave_up)
                || (self.broken[connection]
                    && (gave_up || status == CompletionStatus::Flushed)
                    && (!requester.spoiled || lossy || partner_fell)));
        if !excused {
            return Err(format!(
                "nothing allows this end (retries: {})",
                settings.retry_count
            ));
        }
        if gave_up {
            self.check_retry_time(connection)?;
        }
        self.broken[connection] = true;
        self.requesters[r].ended = Some(status);
        self.outcome.failed += 1;
        Ok(())
    }

    /// Checks the time from the cut of a connection's network path to the failure of the
    /// connection. The check is made only if the network had no faults before the cut, so that only
    /// the cut consumed retries.
    ///
    /// The second timeout takes the configured time, the third twice that time, and each later
    /// timeout four times that time (IBTA 9.7.6.1.3). The first timeout may have begun before the
    /// cut, so it counts as zero in the minimum.
    fn check_retry_time(&self, connection: usize) -> Result<(), String> {
        let conditions = &self.schedule.conditions;
        let disturbed = conditions.loss + conditions.corrupt + conditions.reorder;
        let Some(&cut) = self.cut.get(&connection) else {
            return Ok(());
        };
        if disturbed > 0 || conditions.backlog < u64::MAX {
            return Ok(());
        }
        let connection = &self.schedule.connections[connection];
        let tries = u32::from(connection.retry_count);
        let waited = self.world.now() - cut;
        let least =
            connection.ack_timeout * (1..=tries).map(|silent| 1 << (silent - 1).min(2)).sum();
        let most = connection.ack_timeout * (4 * (tries + 1));
        if (least..=most).contains(&waited) {
            Ok(())
        } else {
            Err(format!(
                "it gave up after {waited:?}, not {least:?} to {most:?}"
            ))
        }
    }

    /// Counts posted unsignaled requests of the simulated requester with the index `r` as
    /// successful if its queue pair has no outstanding request. The model needs this check, because
    /// no completion reports an unsignaled request. Fails if one of the requests did not have its
    /// expected effect.
    pub(super) fn complete_unsignaled(&mut self, r: usize) -> Result<(), String> {
        let requester = &self.requesters[r];
        let queue_pair = self.world.queue_pair(requester.place);
        let going = matches!(
            queue_pair.state(),
            State::ReadyToSend | State::SendQueueDrained
        );
        if !going || requester.ended.is_some() || queue_pair.outstanding() > 0 {
            return Ok(());
        }
        // The loop ends at a signaled request whose completion has not been handled yet.
        while let Some(posted) = self.requesters[r].posted.pop_front() {
            let connection = self.requesters[r].connection;
            if posted.signaled || self.schedule.connections[connection].signal_all {
                self.requesters[r].posted.push_front(posted);
                break;
            }
            self.check_success(r, posted)?;
        }
        Ok(())
    }

    /// Records that the request `posted` of the simulated requester with the index `r` has
    /// succeeded. Checks its effect: the bytes in memory, or the message at the peer.
    pub(super) fn check_success(&mut self, r: usize, posted: Posted) -> Result<(), String> {
        self.outcome.completed += 1;
        let id = posted.id;
        let checked = self.check_effect(r, &posted);
        checked.map_err(|why| format!("request {id} ({:?}): {why}", posted.opcode))?;
        let requester = &mut self.requesters[r];
        let unreliable = matches!(
            self.schedule.connections[requester.connection].kind,
            Kind::Unreliable | Kind::Datagram
        );
        let mut posted = posted;
        if let Some(buffer) = posted.buffer.take().and_then(Rc::into_inner) {
            buffer.release(self.world.memory(requester.place.node));
        }
        if unreliable {
            // On an unreliable service, success does not mean that the message arrived.
            requester.undone.push(posted);
        }
        Ok(())
    }

    fn check_effect(&mut self, r: usize, posted: &Posted) -> Result<(), String> {
        let requester = &mut self.requesters[r];
        let kind = self.schedule.connections[requester.connection].kind;
        let reliable = matches!(kind, Kind::Reliable | Kind::Extended);
        let memory = self.world.memory(requester.place.node);
        let buffer = posted.buffer.as_deref();
        let holds = |bytes: &[u8]| match buffer {
            Some(buffer) => buffer.check(memory, bytes),
            None => Ok(()),
        };
        let told = |requester: &Requester| {
            if reliable && requester.told < posted.id {
                Err("it succeeded before the peer had it".to_owned())
            } else {
                Ok(())
            }
        };
        match &posted.effect {
            Effect::Message(content) => {
                holds(&content.bytes(posted.id, posted.length))?;
                told(requester)?;
                if let Some(number) = posted.window {
                    let window = &mut requester.windows[number];
                    window.state = WindowState::Free;
                    if self
                        .world
                        .memory(requester.target.node)
                        .is_bound(window.key)
                    {
                        return Err(format!("window {:#x} is still valid", window.key));
                    }
                }
            }
            Effect::Write {
                offset,
                bytes,
                told: is_told,
            } => {
                holds(bytes)?;
                if !reliable {
                    return Ok(());
                }
                if *is_told {
                    told(requester)?;
                }
                requester.target.commit(*offset, bytes);
                let range = *offset..offset + bytes.len();
                if !requester.is_writing(&range) {
                    let memory = self.world.memory(requester.target.node);
                    requester.target.check_written(memory, range)?;
                }
            }
            Effect::Read { bytes, .. } => holds(bytes)?,
            Effect::Atomic {
                offset,
                was,
                becomes,
            } => {
                holds(&was.to_ne_bytes())?;
                requester.target.commit(*offset, &becomes.to_ne_bytes());
            }
            Effect::Shared(change) => {
                let mut eight = [0; 8];
                if let Some(buffer) = buffer {
                    // Each value is accepted here. After the run, the values must be consistent
                    // with each other.
                    let found = memory.gather(buffer.segments(), 0, &mut eight);
                    found.map_err(|fault| format!("{fault:?}"))?;
                }
                let was = u64::from_ne_bytes(eight);
                if let Some(guess) = change.next_compare(was) {
                    requester.seen[change.word()] = guess;
                }
                self.cells[requester.target.node].record_completed(*change, was)?;
            }
            Effect::Bind { window } | Effect::Invalidate { window } => {
                let Some(partner) = requester.partner else {
                    return Ok(());
                };
                let binds = matches!(posted.effect, Effect::Bind { .. });
                let partner = &mut self.requesters[partner];
                let window = &mut partner.windows[*window];
                window.state = match binds {
                    true => WindowState::Bound,
                    false => WindowState::Free,
                };
                if self.world.memory(partner.target.node).is_bound(window.key) != binds {
                    return Err(format!("window {:#x} is not as it should be", window.key));
                }
            }
            Effect::Fault(statuses) => return Err(format!("it must end in {statuses:?}")),
        }
        Ok(())
    }
}
