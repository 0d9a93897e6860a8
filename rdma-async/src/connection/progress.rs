//! Taking completions and handing out what they bring.

use std::alloc::Layout;
use std::sync::atomic::Ordering;

use rdma_core::{WorkCompletion, WorkOpcode, WriteClaim};

use super::frame::{Credits, Frame, Kind, Refusal};
use super::messages::Incoming;
use super::replies::Reply;
use super::{Connection, HEADER_LEN};
use crate::error::Error;
use crate::memory::{LocalMr, RemoteMr};

/// Number of completions that are taken at once.
const BATCH: usize = 32;
/// Number of batches in a turn, so that a flood of completions does not keep the thread.
const TURN: usize = 8;

impl Connection {
    /// Takes the completions that are there; nothing if another thread is at it. Returns whether
    /// this thread was the one, and left none.
    pub(super) fn progress(&self) -> bool {
        if self.polling.swap(true, Ordering::Acquire) {
            return false;
        }
        let mut room = [WorkCompletion::default(); BATCH];
        let mut drained = false;
        for _ in 0..TURN {
            let completions = match self.completions.poll(&mut room) {
                Ok(completions) => completions,
                Err(error) => {
                    self.fail(error.into());
                    drained = true;
                    break;
                }
            };
            for completion in completions {
                self.dispatch(completion);
            }
            if completions.len() < BATCH {
                drained = true;
                break;
            }
        }
        self.polling.store(false, Ordering::Release);
        self.flush_outbox();
        drained
    }

    fn dispatch(&self, completion: &WorkCompletion) {
        if let Some((index, (header, claim))) = self.sends.complete(completion).next() {
            let outcome = completion.result().map(|()| match completion.opcode() {
                WorkOpcode::CompareAndSwap | WorkOpcode::FetchAndAdd => {
                    let value = header.as_ref().and_then(|header| header.first_chunk());
                    value.map_or(0, |value| u64::from_ne_bytes(*value))
                }
                _ => 0,
            });
            // First the memory, so that it is the application's again when its future resolves.
            self.recycle((header, claim));
            if let Err(error) = outcome {
                self.fail_with(error);
            }
            if self.operation(index).finish(outcome) {
                self.release_slot(index);
            }
        } else if let Some(memory) = self.receives.complete(completion) {
            match completion.result() {
                Ok(()) => self.arrive(completion, memory),
                Err(error) => self.fail_with(error),
            }
        }
    }

    /// Handles a receive that was used up.
    fn arrive(&self, completion: &WorkCompletion, memory: WriteClaim) {
        if completion.opcode() == WorkOpcode::ReceiveWriteImmediate {
            self.repost(memory);
            let immediate = completion.immediate().unwrap_or_default();
            if !self.write_immediates.push(immediate) {
                self.violation("more writes with immediate than it had credits for");
            }
            return;
        }
        let len = completion.len();
        let Some(frame) = memory.get(..len).and_then(Frame::decode) else {
            return self.violation("a message that is none");
        };
        let Credits { data, control } = frame.credits;
        if !self.data_credits.give(data) || !self.control_credits.give(control) {
            return self.violation("more credits than it has receives");
        }
        match frame.kind {
            Kind::Data => {
                let Ok(memory) = memory.into_shared() else {
                    unreachable!("a posted receive's claim is its memory's only holder");
                };
                let lender = Some(self.receive_memory.clone());
                let region = LocalMr::new(memory, HEADER_LEN..len, lender);
                self.deliver(Incoming::Message {
                    region,
                    immediate: completion.immediate(),
                });
            }
            Kind::Rendezvous { memory: remote, .. } if remote.len == 0 => {
                self.violation("a message without bytes to be read");
            }
            Kind::Rendezvous { id, memory: remote } => {
                self.repost(memory);
                let immediate = completion.immediate();
                self.deliver(Incoming::Rendezvous {
                    id,
                    memory: remote,
                    immediate,
                });
            }
            Kind::Offer {
                lease,
                memory: remote,
            } => {
                self.repost(memory);
                let region = RemoteMr::new(remote, lease, self.itself.clone());
                if !self.offers.push(region) {
                    self.violation("more memory offered than it had credits for");
                }
            }
            control => {
                self.repost(memory);
                self.owed_control.fetch_add(1, Ordering::Relaxed);
                self.handle(control);
                self.return_credits();
            }
        }
    }

    fn deliver(&self, message: Incoming) {
        if !self.messages.push(message) {
            self.violation("more messages than it had credits for");
        }
    }

    /// Handles a message for the connection itself.
    fn handle(&self, control: Kind) {
        match control {
            Kind::Request { id, size, align } => {
                let answer = match self.grant(size, align) {
                    Ok((lease, memory)) => Kind::Grant { id, lease, memory },
                    Err(reason) => Kind::Refuse { id, reason },
                };
                self.send_control(answer);
            }
            Kind::Grant { id, lease, memory } => {
                // The requester may have given up, now or before it sees the answer: then the
                // memory goes back.
                let region = RemoteMr::new(memory, lease, self.itself.clone());
                drop(self.replies.answer(id, Reply::Granted(region)));
            }
            Kind::Refuse { id, reason } => drop(self.replies.answer(id, Reply::Refused(reason))),
            Kind::RendezvousDone { id, read } => drop(self.replies.answer(id, Reply::Read(read))),
            Kind::Return { lease } => match self.leases.end(lease) {
                Some(Ok(region)) => {
                    self.returned.push(region);
                    self.returned_arrived.wake();
                }
                Some(Err(error)) => self.fail(error.into()),
                None => self.violation("memory given back that was not lent"),
            },
            Kind::Release { lease } => match self.leases.end(lease) {
                Some(Ok(region)) => drop(region),
                Some(Err(error)) => self.fail(error.into()),
                None => self.violation("memory released that was not lent"),
            },
            Kind::Credit | Kind::Data | Kind::Rendezvous { .. } | Kind::Offer { .. } => {}
        }
    }

    /// Lends memory because the peer asks.
    fn grant(&self, size: u64, align: u64) -> Result<(u64, rdma_core::RemoteMemory), Refusal> {
        let (Ok(size), Ok(align)) = (usize::try_from(size), usize::try_from(align)) else {
            return Err(Refusal::Layout);
        };
        let layout = Layout::from_size_align(size, align).map_err(|_| Refusal::Layout)?;
        if size == 0 {
            return Err(Refusal::Layout);
        }
        // An alignment above the size takes memory as well.
        let charge = size.max(align);
        if !self
            .leases
            .allows(charge, self.settings.remote_memory_limit)
        {
            return Err(Refusal::Limit);
        }
        let refuse = |error: &dyn std::fmt::Display| {
            tracing::warn!(%error, size, "memory that the peer requested could not be lent");
            Refusal::Memory
        };
        let region = self.allocate(layout).map_err(|error| refuse(&error))?;
        self.leases
            .lend(region, charge)
            .map_err(|(_, error)| refuse(&error))
    }

    /// Posts receive memory.
    pub(super) fn repost(&self, memory: WriteClaim) {
        if let Err(refused) = self.receives.post(memory)
            && self.failure().is_none()
        {
            self.fail(refused.error.into());
        }
    }

    /// Posts fresh receive memory in place of what the application took.
    pub(super) fn replace_receive(&self) {
        match self.receive_memory.take() {
            Ok(memory) => match memory.into_claim(..) {
                Ok(claim) => self.repost(claim),
                Err(_) => unreachable!("memory from the pool is unclaimed"),
            },
            Err(error) => self.fail(error),
        }
    }

    pub(super) fn violation(&self, what: &str) {
        self.fail(Error::disconnected(format!("the peer sent {what}")));
    }
}
