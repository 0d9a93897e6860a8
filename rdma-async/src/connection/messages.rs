//! Messages: sending and receiving, credits, and memory handed over by them.

use std::alloc::Layout;
use std::sync::atomic::Ordering;
use std::time::Duration;

use rdma_core::{Claim, LentMemory, Part, RemoteMemory, ReservedSlot, SendRequest};
use tokio::time::timeout;

use super::frame::{Credits, Frame, Kind, MAX_FRAME_LEN};
use super::operation::Operation;
use super::replies::Reply;
use super::{Connection, Memory};
use crate::error::{Error, Result};
use crate::memory::{LocalMr, RemoteMr};

/// One credit is kept for the message that returns credits, so that they always come back.
const CREDIT_RESERVE: u32 = 1;
/// How many answers may wait for credits before the peer is taken for hostile.
const OUTBOX_LIMIT: usize = 4096;

/// A message for the application.
#[derive(Debug)]
pub(crate) enum Incoming {
    Message {
        region: LocalMr,
        immediate: Option<u32>,
    },
    Rendezvous {
        id: u64,
        memory: RemoteMemory,
        immediate: Option<u32>,
    },
}

impl Connection {
    /// Allocates local memory, zeroed.
    pub(crate) fn allocate(&self, layout: Layout) -> Result<LocalMr> {
        use crate::memory::LocalMrWriteAccess;

        let mut region = self.allocate_stale(layout)?;
        region.as_mut_slice().fill(0);
        Ok(region)
    }

    /// Allocates local memory that still holds what its last use left.
    pub(crate) fn allocate_stale(&self, layout: Layout) -> Result<LocalMr> {
        if layout.size() == 0 {
            return Err(Error::invalid(
                "memory region",
                "0 bytes cannot be registered",
            ));
        }
        let (memory, lender) = self.pool().take(layout)?;
        Ok(LocalMr::new(memory, 0..layout.size(), lender))
    }

    /// Sends the application's message.
    pub(crate) async fn send(
        &self,
        claim: rdma_core::ReadClaim,
        immediate: Option<u32>,
    ) -> Result<()> {
        if claim.len() > self.peer_payload {
            return self.send_by_rendezvous(claim, immediate).await;
        }
        let credit = self.data_credit().await?;
        let operation = self
            .send_frame(Kind::Data, Some(claim.into()), immediate)
            .await?;
        credit.spend();
        operation.await.map_err(|error| self.cause(error))?;
        Ok(())
    }

    /// Sends the application's message; nobody waits for it to arrive.
    pub(crate) async fn post_message(&self, claim: rdma_core::ReadClaim) -> Result<()> {
        if claim.len() > self.peer_payload {
            return self.send_by_rendezvous(claim, None).await;
        }
        let credit = self.data_credit().await?;
        let operation = self
            .send_frame(Kind::Data, Some(claim.into()), None)
            .await?;
        credit.spend();
        // It stays in flight; its failure is the connection's.
        drop(operation);
        Ok(())
    }

    /// Has the peer read a message that is too long to send.
    async fn send_by_rendezvous(
        &self,
        claim: rdma_core::ReadClaim,
        immediate: Option<u32>,
    ) -> Result<()> {
        let credit = self.data_credit().await?;
        let slot = self.reserve_slot().await?;
        // Without a wait from here to the posting: nothing to undo if the future is dropped.
        let lent = match LentMemory::new(claim) {
            Ok(lent) => lent,
            Err(error) => {
                self.cancel_slot(slot);
                return Err(error.into());
            }
        };
        let memory = lent.remote();
        let mut question = self.replies.ask(Some(lent));
        let kind = Kind::Rendezvous {
            id: question.id,
            memory,
        };
        let operation = match self.post_frame(slot, kind, None, immediate) {
            Ok(operation) => operation,
            Err(error) => {
                question.withdraw();
                return Err(error);
            }
        };
        credit.spend();
        operation.await.map_err(|error| self.cause(error))?;
        match question
            .answer()
            .await
            .unwrap_or_else(|| Err(self.ended()))?
        {
            Reply::Read(true) => Ok(()),
            _ => Err(Error::Refused {
                what: "a message",
                reason: "it could not read it",
            }),
        }
    }

    /// Sends a message of the data class without a payload.
    pub(crate) async fn send_data_frame(&self, kind: Kind) -> Result<()> {
        let credit = self.data_credit().await?;
        let operation = self.send_frame(kind, None, None).await?;
        credit.spend();
        operation.await.map_err(|error| self.cause(error))?;
        Ok(())
    }

    /// Sends a message of the control class and waits until it has arrived.
    async fn send_control_frame(&self, kind: Kind) -> Result<()> {
        self.control_credits
            .waiters()
            .wait_for(|| {
                self.failed().or_else(|| {
                    self.control_credits
                        .try_take(CREDIT_RESERVE)
                        .then_some(Ok(()))
                })
            })
            .await?;
        let credit = Credit {
            connection: self,
            control: true,
        };
        let operation = self.send_frame(kind, None, None).await?;
        credit.spend();
        operation.await.map_err(|error| self.cause(error))?;
        Ok(())
    }

    /// Takes leave to send one data message.
    pub(super) async fn data_credit(&self) -> Result<Credit<'_>> {
        let attempt = || {
            self.failed()
                .or_else(|| self.data_credits.try_take(0).then_some(Ok(())))
        };
        self.data_credits.waiters().wait_for(attempt).await?;
        Ok(Credit {
            connection: self,
            control: false,
        })
    }

    async fn send_frame(
        &self,
        kind: Kind,
        payload: Option<Claim>,
        immediate: Option<u32>,
    ) -> Result<Operation<'_>> {
        let slot = self.reserve_slot().await?;
        self.post_frame(slot, kind, payload, immediate)
    }

    fn post_frame(
        &self,
        slot: ReservedSlot,
        kind: Kind,
        payload: Option<Claim>,
        immediate: Option<u32>,
    ) -> Result<Operation<'_>> {
        match self.framed(kind) {
            Ok(header) => self.post(slot, message((Some(header), payload), immediate)),
            Err(error) => {
                self.cancel_slot(slot);
                Err(error)
            }
        }
    }

    fn cancel_slot(&self, slot: ReservedSlot) {
        self.sends.cancel(slot);
        self.slot_free.wake();
    }

    /// A header that says `kind` and returns the credits that are owed.
    fn framed(&self, kind: Kind) -> Result<Part<rdma_core::Buffer>> {
        let mut buffer = self.headers.pop().ok_or_else(|| {
            Error::disconnected("every header is in use, which more requests than slots would take")
        })?;
        let credits = Credits {
            data: owed(&self.owed_data),
            control: owed(&self.owed_control),
        };
        let len = Frame { credits, kind }.encode(&mut buffer[..MAX_FRAME_LEN]);
        Ok(Part::new(buffer, 0..len)?)
    }

    /// Sends a control message as soon as there is a credit and a slot; nobody waits for it.
    pub(super) fn send_control(&self, kind: Kind) {
        if self.failure().is_some() {
            return;
        }
        let full = {
            let mut outbox = self.outbox.lock();
            outbox.push_back(kind);
            self.outbox_waiting.store(true, Ordering::Release);
            outbox.len() > OUTBOX_LIMIT
        };
        if full {
            return self.violation("more requests than it lets be answered");
        }
        self.flush_outbox();
    }

    /// Sends what waits in the outbox, as far as credits and slots go.
    pub(super) fn flush_outbox(&self) {
        if !self.outbox_waiting.load(Ordering::Acquire) {
            return;
        }
        let mut outbox = self.outbox.lock();
        while let Some(&kind) = outbox.front() {
            let reserve = if kind == Kind::Credit {
                0
            } else {
                CREDIT_RESERVE
            };
            if !self.control_credits.try_take(reserve) {
                break;
            }
            let Some(slot) = self.sends.reserve() else {
                drop(Credit {
                    connection: self,
                    control: true,
                });
                break;
            };
            outbox.pop_front();
            let header = match self.framed(kind) {
                Ok(header) => header,
                Err(error) => {
                    self.cancel_slot(slot);
                    drop(outbox);
                    return self.fail(error);
                }
            };
            self.operation(slot.index()).begin_unattended();
            if let Err(refused) = self.sends.post(slot, message((Some(header), None), None)) {
                drop(outbox);
                return self.fail(refused.error.into());
            }
        }
        self.outbox_waiting
            .store(!outbox.is_empty(), Ordering::Release);
    }

    /// Tells the peer of its credits when half of them are owed and no message carries them.
    pub(super) fn return_credits(&self) {
        let own = self.settings.depths();
        let half = |owed: u32, depth: u16| owed * 2 >= u32::from(depth);
        if half(self.owed_data.load(Ordering::Relaxed), own.data)
            || half(self.owed_control.load(Ordering::Relaxed), own.control)
        {
            let mut outbox = self.outbox.lock();
            if outbox.front() != Some(&Kind::Credit) {
                // In front: the messages behind it may be waiting for the peer's credits in turn.
                outbox.push_front(Kind::Credit);
                self.outbox_waiting.store(true, Ordering::Release);
            }
            drop(outbox);
            self.flush_outbox();
        }
    }

    /// The application took what a data message brought.
    fn taken(&self) {
        self.owed_data.fetch_add(1, Ordering::Relaxed);
        self.return_credits();
    }

    /// Waits for the application's next message.
    pub(crate) async fn receive(&self) -> Result<(LocalMr, Option<u32>)> {
        let attempt = || self.deferred.pop().or_else(|| self.messages.pop());
        match self.wait(self.messages.waiters(), attempt).await? {
            Incoming::Message { region, immediate } => {
                self.replace_receive();
                self.taken();
                Ok((region, immediate))
            }
            Incoming::Rendezvous {
                id,
                memory,
                immediate,
            } => {
                let message = Some(Incoming::Rendezvous {
                    id,
                    memory,
                    immediate,
                });
                let mut deferred = Deferred {
                    connection: self,
                    message,
                };
                let fetched = self.fetch(memory).await;
                deferred.message = None;
                self.taken();
                self.send_control(Kind::RendezvousDone {
                    id,
                    read: fetched.is_ok(),
                });
                fetched.map(|region| (region, immediate))
            }
        }
    }

    /// Reads a message out of the peer's memory.
    async fn fetch(&self, memory: RemoteMemory) -> Result<LocalMr> {
        let limit = self.settings.message_limit;
        let len = usize::try_from(memory.len).ok().filter(|&len| len <= limit);
        let Some(len) = len else {
            let reason = format!("{} bytes are above the limit of {limit}", memory.len);
            return Err(Error::invalid("message of the peer", reason));
        };
        let layout = Layout::from_size_align(len, 1)
            .map_err(|_| Error::invalid("message of the peer", "its length is impossible"))?;
        let mut region = self.allocate_stale(layout)?;
        let claim = crate::memory::claim_write(&mut region)?;
        self.perform(SendRequest::read((None, Some(claim.into())), memory))
            .await?;
        Ok(region)
    }

    /// Waits for the immediate of the peer's next write that has one.
    pub(crate) async fn receive_write_immediate(&self) -> Result<u32> {
        let inbox = &self.write_immediates;
        let immediate = self.wait(inbox.waiters(), || inbox.pop()).await?;
        self.taken();
        Ok(immediate)
    }

    /// Writes with a number, which takes a receive of the peer's and so a credit.
    pub(crate) async fn write_with_immediate(&self, request: SendRequest<Memory>) -> Result<()> {
        let credit = self.data_credit().await?;
        let slot = self.reserve_slot().await?;
        let operation = self.post(slot, request)?;
        credit.spend();
        operation.await.map_err(|error| self.cause(error))?;
        Ok(())
    }

    /// Asks the peer to lend memory.
    pub(crate) async fn request_remote(&self, layout: Layout) -> Result<RemoteMr> {
        let limit = self.settings.response_timeout;
        let reply = async {
            let mut question = self.replies.ask(None);
            let (size, align) = (layout.size() as u64, layout.align() as u64);
            self.send_control_frame(Kind::Request {
                id: question.id,
                size,
                align,
            })
            .await?;
            question.answer().await.unwrap_or_else(|| Err(self.ended()))
        };
        match in_time("the peer's answer to a request for memory", limit, reply).await? {
            Reply::Granted { lease, memory } => {
                Ok(RemoteMr::new(memory, lease, self.itself.clone()))
            }
            Reply::Refused(reason) => Err(Error::Refused {
                what: "a request for memory",
                reason: reason.text(),
            }),
            Reply::Read(_) => Err(Error::disconnected("the peer mixed up its answers")),
        }
    }

    /// Lends the peer memory of the application.
    pub(crate) async fn offer(&self, region: LocalMr) -> Result<()> {
        self.checked()?;
        let (lease, memory) = self.leases.lend(region, 0).map_err(|(_, error)| error)?;
        self.send_data_frame(Kind::Offer { lease, memory }).await
    }

    /// Gives the peer its memory back.
    pub(crate) async fn give_back(&self, mut region: RemoteMr) -> Result<()> {
        match region.take_lease(self) {
            Some(lease) => self.send_control_frame(Kind::Return { lease }).await,
            None => Err(Error::invalid(
                "remote memory",
                "it was not lent on this connection",
            )),
        }
    }

    /// Lets the peer have its memory, without waiting.
    pub(crate) fn release_remote(&self, lease: u64) {
        self.send_control(Kind::Release { lease });
    }

    /// Waits for memory that the peer lends.
    pub(crate) async fn receive_offer(&self) -> Result<RemoteMr> {
        let region = self
            .wait(self.offers.waiters(), || self.offers.pop())
            .await?;
        self.taken();
        Ok(region)
    }

    /// Waits for memory that was lent to the peer.
    pub(crate) async fn receive_returned(&self) -> Result<LocalMr> {
        self.wait(&self.returned_arrived, || self.returned.pop())
            .await
    }

    fn ended(&self) -> Error {
        self.failure()
            .cloned()
            .unwrap_or_else(|| Error::disconnected("it was closed"))
    }
}

/// The request that sends a message.
fn message(memory: Memory, immediate: Option<u32>) -> SendRequest<Memory> {
    match immediate {
        Some(immediate) => SendRequest::send_with_immediate(memory, immediate),
        None => SendRequest::send(memory),
    }
}

/// Takes what is owed, as much as a header can carry.
fn owed(counter: &std::sync::atomic::AtomicU32) -> u16 {
    u16::try_from(counter.swap(0, Ordering::Relaxed)).unwrap_or(u16::MAX)
}

async fn in_time<T>(
    what: &'static str,
    limit: Duration,
    work: impl Future<Output = Result<T>>,
) -> Result<T> {
    timeout(limit, work)
        .await
        .unwrap_or(Err(Error::Timeout { what, limit }))
}

/// Leave to send one message; given back unless it is spent.
#[must_use = "a credit that is dropped is given back"]
pub(super) struct Credit<'c> {
    connection: &'c Connection,
    control: bool,
}

impl Credit<'_> {
    fn spend(self) {
        std::mem::forget(self);
    }
}

impl Drop for Credit<'_> {
    fn drop(&mut self) {
        let Connection {
            data_credits,
            control_credits,
            ..
        } = self.connection;
        let counter = if self.control {
            control_credits
        } else {
            data_credits
        };
        let fits = counter.give(1);
        debug_assert!(fits, "a credit that was taken can be given back");
    }
}

/// A message that is being fetched; one given up halfway is for the next who receives.
struct Deferred<'c> {
    connection: &'c Connection,
    message: Option<Incoming>,
}

impl Drop for Deferred<'_> {
    fn drop(&mut self) {
        if let Some(message) = self.message.take() {
            self.connection.deferred.push(message);
            self.connection.messages.waiters().wake();
        }
    }
}
