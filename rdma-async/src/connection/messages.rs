//! Messages: sending and receiving.

use std::alloc::Layout;
use std::sync::atomic::Ordering;

use rdma_core::{Claim, LentMemory, Part, RemoteMemory, ReservedSlot, SendRequest};

use super::credits::{CREDIT_RESERVE, Credit};
use super::frame::{Credits, Frame, Kind, MAX_FRAME_LEN};
use super::operation::Operation;
use super::replies::Reply;
use super::{Connection, Memory};
use crate::error::{Error, Result};
use crate::memory::LocalMr;

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
    /// A message that was read, or could not be, and of which the peer has not been told.
    Fetched {
        id: u64,
        outcome: Result<LocalMr>,
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
        operation.await?;
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
        operation.await?;
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

    /// Sends a message of the control class and waits until it has arrived.
    pub(super) async fn send_control_frame(&self, kind: Kind) -> Result<()> {
        let credit = self.control_credit().await?;
        let operation = self.send_frame(kind, None, None).await?;
        credit.spend();
        operation.await?;
        Ok(())
    }

    /// Posts a message of the control class, and does not wait for it to arrive.
    async fn post_control_frame(&self, kind: Kind) -> Result<()> {
        let credit = self.control_credit().await?;
        let slot = self.reserve_slot().await?;
        self.post_unattended(slot, kind)?;
        credit.spend();
        Ok(())
    }

    /// Takes leave to send one control message.
    pub(super) async fn control_credit(&self) -> Result<Credit<'_>> {
        let attempt = || {
            let take = || self.control_credits.try_take(CREDIT_RESERVE);
            self.failed().or_else(|| take().then_some(Ok(())))
        };
        self.control_credits.waiters().wait_for(attempt).await?;
        Ok(Credit::control(self))
    }

    /// Takes leave to send one data message.
    pub(super) async fn data_credit(&self) -> Result<Credit<'_>> {
        let attempt = || {
            self.failed()
                .or_else(|| self.data_credits.try_take(0).then_some(Ok(())))
        };
        self.data_credits.waiters().wait_for(attempt).await?;
        Ok(Credit::data(self))
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

    /// Posts a message in a reserved slot, with a future that waits for it to arrive.
    pub(super) fn post_frame(
        &self,
        slot: ReservedSlot<'_>,
        kind: Kind,
        payload: Option<Claim>,
        immediate: Option<u32>,
    ) -> Result<Operation<'_>> {
        match self.framed(kind) {
            Ok(header) => self.post(slot, message(kind, (Some(header), payload), immediate)),
            Err(error) => {
                self.cancel_slot(slot);
                Err(error)
            }
        }
    }

    /// Posts a message in a reserved slot; nobody waits for it. The caller fails the connection if this
    /// fails.
    pub(super) fn post_unattended(&self, slot: ReservedSlot<'_>, kind: Kind) -> Result<()> {
        let header = self.framed(kind)?;
        self.operation(slot.index()).begin_unattended();
        let request = message(kind, (Some(header), None), None);
        self.sends.post(slot, request).map_err(|refused| {
            self.recycle(refused.memory);
            refused.error.into()
        })
    }

    /// A header that says `kind` and returns the credits that are owed.
    fn framed(&self, kind: Kind) -> Result<Part<rdma_core::Buffer>> {
        let mut buffer = self.header(MAX_FRAME_LEN)?.into_inner();
        let credits = Credits {
            data: owed(&self.owed_data),
            control: owed(&self.owed_control),
        };
        let len = Frame { credits, kind }.encode(&mut buffer[..MAX_FRAME_LEN]);
        Ok(Part::new(buffer, 0..len)?)
    }

    /// The application took what a data message brought.
    pub(super) fn taken(&self) {
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
            rendezvous => self.receive_by_rendezvous(rendezvous).await,
        }
    }

    /// Reads a message that is too long to be sent, and tells the peer. If the future is dropped, the
    /// next one goes on from there.
    async fn receive_by_rendezvous(&self, message: Incoming) -> Result<(LocalMr, Option<u32>)> {
        let mut deferred = Deferred {
            connection: self,
            message: Some(message),
        };
        if let Some(Incoming::Rendezvous {
            id,
            memory,
            immediate,
        }) = deferred.message
        {
            let outcome = self.fetch(memory).await;
            self.taken();
            deferred.message = Some(Incoming::Fetched {
                id,
                outcome,
                immediate,
            });
        }
        let Some(Incoming::Fetched { id, outcome, .. }) = &deferred.message else {
            unreachable!("a message that arrived in one piece is not read");
        };
        let kind = Kind::RendezvousDone {
            id: *id,
            read: outcome.is_ok(),
        };
        // The sender waits for this. Once it is posted the device delivers it, whatever becomes of this end.
        // Where the connection has failed, the sender sees that, and the message here is still valid.
        if let Err(error) = self.post_control_frame(kind).await {
            self.fail(error);
        }
        match deferred.message.take() {
            Some(Incoming::Fetched {
                outcome, immediate, ..
            }) => outcome.map(|region| (region, immediate)),
            _ => unreachable!("nothing else takes the message"),
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
        operation.await?;
        Ok(())
    }

    /// Why the connection has ended, for who knows that it has.
    pub(super) fn ended(&self) -> Error {
        self.failure()
            .cloned()
            .unwrap_or_else(|| Error::disconnected("it was closed"))
    }
}

/// The request that sends a message.
fn message(kind: Kind, memory: Memory, immediate: Option<u32>) -> SendRequest<Memory> {
    let request = match immediate {
        Some(immediate) => SendRequest::send_with_immediate(memory, immediate),
        None => SendRequest::send(memory),
    };
    match kind {
        // A read that is repeated because its answer was lost must still find the memory.
        Kind::Return { .. } | Kind::Release { .. } => request.fence(),
        _ => request,
    }
}

/// Takes what is owed, as much as a header can carry.
fn owed(counter: &std::sync::atomic::AtomicU32) -> u16 {
    u16::try_from(counter.swap(0, Ordering::Relaxed)).unwrap_or(u16::MAX)
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
