use std::rc::Rc;

use crate::proto::{Completion, CompletionStatus, Event, State, Work};

use super::buffer::Buffer;
use super::requester::{Effect, Expected, Posted, Requester, WindowState};
use super::scenario::{Scenario, Token};
use super::schedule::{Ending, Kind};
use super::world::{Happening, Place};

impl Scenario<'_> {
    /// A queue pair told something: is it what it must tell now?
    pub(super) fn happened(&mut self, place: Place, what: Happening) -> Result<(), String> {
        let number = self.world.queue_pair(place).number();
        match what {
            Happening::Sent(completion) => {
                let Some(r) = self.roles[&place].asks else {
                    return Err(format!("qp {number:#x} sends nothing, but {completion:?}"));
                };
                self.sent(r, &completion)
                    .map_err(|why| format!("qp {number:#x}, {completion:?}: {why}"))?;
                self.pump(r)?;
            }
            Happening::Received(completion, srq) => {
                self.received(place, &completion, srq)
                    .map_err(|why| format!("qp {number:#x}, {completion:?}: {why}"))?;
            }
            Happening::Raised(event) => self.raised(place, event)?,
        }
        Ok(())
    }

    fn raised(&mut self, place: Place, event: Event) -> Result<(), String> {
        let number = self.world.queue_pair(place).number();
        let Some(role) = self.roles.get_mut(&place) else {
            return Ok(());
        };
        role.raised.push(event);
        match event {
            Event::SendQueueDrained => {
                self.world.drained(place);
                if let Some(r) = role.asks {
                    let delay = self.moment();
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
            self.end(r, completion)?;
        }
        loop {
            let ended = self.requesters[r].ended.is_some();
            let Some(posted) = self.requesters[r].posted.pop_front() else {
                return Err("nothing is posted, or this ended before".to_owned());
            };
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
                if posted.work != completion.work {
                    return Err(format!("it was a {:?}", posted.work));
                }
                return self.settle(r, posted);
            }
            if posted.signaled || (ended && status == CompletionStatus::Flushed) {
                return Err(format!("request {} must be told first", posted.id));
            }
            // One that is not told was successful, as something behind it was.
            self.settle(r, posted)?;
        }
    }

    /// The first completion of a requester that is no success.
    fn end(&mut self, r: usize, completion: &Completion) -> Result<(), String> {
        let status = completion.status;
        // All before it were successful: they are settled while it counts as going on.
        while let Some(first) = self.requesters[r].posted.front() {
            if first.id == completion.id || first.signaled {
                break;
            }
            if let Some(posted) = self.requesters[r].posted.pop_front() {
                self.settle(r, posted)?;
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
        self.broken[connection] = true;
        self.requesters[r].ended = Some(status);
        self.outcome.failed += 1;
        Ok(())
    }

    /// Takes requests that are not told of as successful when nothing is outstanding any more.
    pub(super) fn sweep(&mut self, r: usize) -> Result<(), String> {
        let requester = &self.requesters[r];
        let queue_pair = self.world.queue_pair(requester.place);
        let going = matches!(
            queue_pair.state(),
            State::ReadyToSend | State::SendQueueDrained
        );
        if !going || requester.ended.is_some() || queue_pair.outstanding() > 0 {
            return Ok(());
        }
        // Completions that are told already but not looked at yet stop this.
        while let Some(posted) = self.requesters[r].posted.pop_front() {
            let connection = self.requesters[r].connection;
            if posted.signaled || self.schedule.connections[connection].signal_all {
                self.requesters[r].posted.push_front(posted);
                break;
            }
            self.settle(r, posted)?;
        }
        Ok(())
    }

    /// A request was successful: did it do what it was to do?
    pub(super) fn settle(&mut self, r: usize, posted: Posted) -> Result<(), String> {
        self.outcome.completed += 1;
        let id = posted.id;
        let checked = self.check_effect(r, &posted);
        checked.map_err(|why| format!("request {id} ({:?}): {why}", posted.work))?;
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
            // That it left does not say that it arrived.
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
                    // Whatever it was: what matters is that all of these fit together in the end.
                    let found = memory.gather(buffer.segments(), 0, &mut eight);
                    found.map_err(|fault| format!("{fault:?}"))?;
                }
                let was = u64::from_ne_bytes(eight);
                if let Some(guess) = change.guess(was) {
                    requester.seen[change.word()] = guess;
                }
                self.cells[requester.target.node].done(*change, was)?;
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

    fn received(
        &mut self,
        place: Place,
        completion: &Completion,
        srq: Option<u32>,
    ) -> Result<(), String> {
        let role = &self.roles[&place];
        let pool = match srq {
            Some(number) => self.shared_pool(place.node, number),
            None => role.pool,
        };
        let sender = role.asked_by;
        let pool = pool.ok_or("it has no receives")?;
        let buffer = self.pools[pool].take(completion.id)?;
        let refill = self.pools[pool].refill;
        if refill.is_zero() {
            // Before another packet arrives.
            self.refill(pool);
        } else {
            self.world.wake_after(refill, Token::Refill(pool).number());
        }
        let checked = self.check_received(place, completion, srq, sender, buffer.as_ref());
        if let Some(buffer) = buffer {
            buffer.release(self.world.memory(place.node));
        }
        checked
    }

    fn check_received(
        &mut self,
        place: Place,
        completion: &Completion,
        srq: Option<u32>,
        sender: Option<usize>,
        buffer: Option<&Buffer>,
    ) -> Result<(), String> {
        let state = self.world.queue_pair(place).state();
        let sender = sender.ok_or("nobody sends to it")?;
        let connection = self.requesters[sender].connection;
        let kind = self.schedule.connections[connection].kind;
        if completion.status == CompletionStatus::Flushed {
            return match state {
                State::Error => Ok(()),
                _ => Err(format!("it is {state:?}")),
            };
        }
        if completion.status != CompletionStatus::Success {
            let expected = self.requesters[sender].expected.front();
            return match expected {
                Some(expected) if expected.fault.contains(&completion.status) => Ok(()),
                _ => Err("nothing allows this end".to_owned()),
            };
        }
        let prefix = match kind {
            Kind::Datagram => self.check_route(place, completion, sender, buffer)?,
            _ => Vec::new(),
        };
        let memory = self.world.memory(place.node);
        let fits = |expected: &Expected| {
            check_message(expected, completion, srq, &prefix).and_then(|()| {
                let length = if expected.is_send { expected.length } else { 0 };
                let bytes = expected.content.bytes(expected.id, length);
                let bytes = [&prefix, &*bytes].concat();
                match buffer {
                    Some(buffer) if kind == Kind::Unreliable => buffer.check_reused(memory, &bytes),
                    Some(buffer) => buffer.check(memory, &bytes),
                    None => Err("a receive without memory took it".to_owned()),
                }
            })
        };
        let requester = &mut self.requesters[sender];
        match kind {
            Kind::Reliable | Kind::Extended => {
                let expected = requester.expected.pop_front();
                let expected = expected.ok_or("nothing was sent, or it was received before")?;
                if !expected.fault.is_empty() {
                    return Err(format!("it must end in {:?}", expected.fault));
                }
                fits(&expected).map_err(|why| format!("message {}: {why}", expected.id))?;
                requester.told = expected.id;
                if let Some(key) = expected.invalidated
                    && memory.is_bound(key)
                {
                    return Err(format!("window {key:#x} is still valid"));
                }
                self.check_told_write(sender, &expected)
            }
            Kind::Unreliable => {
                // Messages may be missing, but those that come are in order.
                while let Some(expected) = requester.expected.pop_front() {
                    if fits(&expected).is_ok() {
                        return self.check_told_write(sender, &expected);
                    }
                }
                Err("it was not sent, or is late".to_owned())
            }
            Kind::Datagram => {
                // A network may deliver a datagram twice, and in any order.
                let mut sent = requester.expected.iter();
                let found = sent.any(|expected| fits(expected).is_ok());
                found
                    .then_some(())
                    .ok_or_else(|| "it was not sent".to_owned())
            }
        }
    }

    /// When the receiver is told of a write, its bytes are there.
    fn check_told_write(&mut self, sender: usize, expected: &Expected) -> Result<(), String> {
        let requester = &mut self.requesters[sender];
        let posted = requester.posted.iter().chain(&requester.undone);
        let write = posted.into_iter().find(|posted| posted.id == expected.id);
        let Some(Effect::Write { offset, bytes, .. }) = write.map(|posted| &posted.effect) else {
            return Ok(());
        };
        let range = *offset..offset + bytes.len();
        let overwrites = |posted: &&Posted| {
            let (start, length) = match &posted.effect {
                Effect::Write { offset, bytes, .. } => (*offset, bytes.len()),
                Effect::Atomic { offset, .. } => (*offset, 8),
                _ => return false,
            };
            posted.id != expected.id && start < range.end && range.start < start + length
        };
        if requester.posted.iter().find(overwrites).is_some() {
            return Ok(());
        }
        let memory = self.world.memory(requester.target.node);
        memory.inspect(requester.target.key, |found| {
            if found[range.clone()] == **bytes {
                Ok(())
            } else {
                Err(format!(
                    "message {} is told before it is there",
                    expected.id
                ))
            }
        })
    }

    /// The GRH in front of a datagram; the way it came must be the sender's.
    fn check_route(
        &self,
        place: Place,
        completion: &Completion,
        sender: usize,
        buffer: Option<&Buffer>,
    ) -> Result<Vec<u8>, String> {
        let sender = &self.requesters[sender];
        let number = self.world.queue_pair(sender.place).number();
        if completion.source != number || !completion.route {
            return Err(format!("it came from {number:#x} with a GRH"));
        }
        let buffer = buffer.ok_or("no memory")?;
        let mut route = vec![0; 40];
        let memory = self.world.memory(place.node);
        memory
            .gather(buffer.segments(), 0, &mut route)
            .map_err(|fault| format!("{fault:?}"))?;
        let (from, to) = (
            self.world.address(sender.place.node),
            self.world.address(place.node),
        );
        let addresses = match (from.to_ipv4_mapped(), to.to_ipv4_mapped()) {
            (Some(from), Some(to)) => [from.octets(), to.octets()].concat(),
            _ => [from.octets(), to.octets()].concat(),
        };
        if route.ends_with(&addresses) {
            Ok(route)
        } else {
            Err("the GRH has other addresses".to_owned())
        }
    }
}

fn check_message(
    expected: &Expected,
    completion: &Completion,
    srq: Option<u32>,
    prefix: &[u8],
) -> Result<(), String> {
    let work = match expected.is_send {
        true => Work::Receive,
        false => Work::ReceiveWithImmediate,
    };
    let length = expected.length + prefix.len();
    if completion.work != work {
        Err(format!("it is a {work:?}"))
    } else if completion.length as usize != length {
        Err(format!("it has {length} B"))
    } else if completion.immediate != expected.immediate {
        Err(format!("its immediate is {:?}", expected.immediate))
    } else if completion.invalidated != expected.invalidated {
        Err(format!("it invalidates {:?}", expected.invalidated))
    } else if completion.solicited != expected.solicited {
        Err(format!("solicited is {}", expected.solicited))
    } else if srq != expected.srq {
        Err(format!("it is for {:?}", expected.srq))
    } else {
        Ok(())
    }
}
