use crate::proto::{Completion, CompletionOpcode, CompletionStatus, State};

use super::buffer::Buffer;
use super::requester::{Effect, Expectation, Posted};
use super::scenario::{Scenario, Token};
use super::schedule::Kind;
use super::world::QpId;

impl Scenario<'_> {
    /// Checks the completion of a receive at the queue pair `place`: the completion and the
    /// received bytes must match a message that the peer has sent. For an XRC queue pair, `srq` is
    /// the number of the shared receive queue. For other queue pairs, `srq` is `None`.
    pub(super) fn check_receive(
        &mut self,
        place: QpId,
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
            // The next receive is posted now, before another packet arrives.
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
        place: QpId,
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
            if state != State::Error {
                return Err(format!("it is {state:?}"));
            }
            // Of the receives in a shared queue, only one that a message has begun to fill is
            // flushed. Other queue pairs may use the others.
            if let Some(role) = self.roles.get_mut(&place)
                && (srq.is_some() || self.world.queue_pair(place).attributes().shared_receive)
            {
                role.flushed_shared += 1;
                if role.flushed_shared > 1 {
                    return Err("it flushes a shared queue".to_owned());
                }
            }
            return Ok(());
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
        let fits = |expected: &Expectation| {
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
                self.check_immediate(sender, &expected)
            }
            Kind::Unreliable => {
                // Messages may be missing, but those that arrive are in order.
                while let Some(expected) = requester.expected.pop_front() {
                    if fits(&expected).is_ok() {
                        return self.check_immediate(sender, &expected);
                    }
                }
                Err("it was not sent, or is late".to_owned())
            }
            Kind::Datagram => {
                // The network may deliver a datagram twice, and in any order.
                let mut sent = requester.expected.iter();
                let found = sent.any(|expected| fits(expected).is_ok());
                found
                    .then_some(())
                    .ok_or_else(|| "it was not sent".to_owned())
            }
        }
    }

    /// Checks the received write with immediate data that `expected` describes. The bytes that the
    /// requester with the index `sender` has written must be in the receiver's memory. Skips the
    /// check if another outstanding request has perhaps overwritten the bytes.
    fn check_immediate(&mut self, sender: usize, expected: &Expectation) -> Result<(), String> {
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

    /// Checks that a datagram came from the queue pair of the simulated requester with the index
    /// `sender`, and that its GRH (global routing header) contains the addresses of sender and
    /// receiver. Returns the GRH.
    fn check_route(
        &self,
        place: QpId,
        completion: &Completion,
        sender: usize,
        buffer: Option<&Buffer>,
    ) -> Result<Vec<u8>, String> {
        let sender = &self.requesters[sender];
        let number = self.world.queue_pair(sender.place).number();
        if completion.source != number || completion.network.is_none() {
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
    expected: &Expectation,
    completion: &Completion,
    srq: Option<u32>,
    prefix: &[u8],
) -> Result<(), String> {
    let opcode = match expected.is_send {
        true => CompletionOpcode::Receive,
        false => CompletionOpcode::ReceiveWithImmediate,
    };
    let length = expected.length + prefix.len();
    if completion.opcode != opcode {
        Err(format!("it is a {opcode:?}"))
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
