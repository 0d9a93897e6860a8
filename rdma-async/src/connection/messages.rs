//! Messages: sending and receiving.

use std::alloc::Layout;
use std::sync::atomic::{AtomicU32, Ordering};

use rdma_core::{Claim, LentMemory, ReadClaim, RemoteMemory};

use super::Connection;
use super::credits::{CREDIT_RESERVE, Credit};
use super::frame::{Credits, Frame, HEADER_LEN, Kind, MAX_FRAME_LEN};
use super::replies::Reply;
use super::send_state::{ATTENDED, Attendance, Departure, NotAccepted};
use super::work::{Push, Work};
use crate::error::{Error, Result};
use crate::memory::{LocalMr, LocalMrReadAccess, claim_read, claim_write};

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

/// Bytes that follow the header of a message.
#[derive(Debug)]
pub(super) enum Payload<'a> {
    Nothing,
    /// Bytes that are copied when the message is accepted.
    Copied(&'a [u8]),
    /// Memory that the message keeps until it has arrived; `None` while it does.
    Claimed(Option<ReadClaim>),
}

impl Connection {
    /// Sends the application's message, and waits until it has arrived.
    pub(crate) async fn send(
        &self,
        message: &impl LocalMrReadAccess,
        immediate: Option<u32>,
    ) -> Result<()> {
        if message.length() > self.peer_payload {
            return self
                .send_by_rendezvous(claim_read(message)?, immediate)
                .await;
        }
        let number = match self.try_begin_send(message, immediate, ATTENDED)? {
            Some(number) => number,
            None => self.begin_send(message, immediate, ATTENDED).await?,
        };
        self.operation(number, None).await.map(drop)
    }

    /// Sends the application's message; nobody waits for it to arrive.
    pub(crate) async fn post_message(&self, message: &impl LocalMrReadAccess) -> Result<()> {
        if message.length() > self.peer_payload {
            return self.send_by_rendezvous(claim_read(message)?, None).await;
        }
        // Its failure is the connection's.
        let how = (Attendance::Nobody, Departure::WithTurn);
        match self.try_begin_send(message, None, how)? {
            Some(_) => Ok(()),
            None => self.begin_send(message, None, how).await.map(drop),
        }
    }

    /// Sends a message that fits into one piece, if that needs no wait. Returns its number unless it does.
    pub(super) fn try_begin_send(
        &self,
        message: &impl LocalMrReadAccess,
        immediate: Option<u32>,
        how: (Attendance, Departure),
    ) -> Result<Option<u64>> {
        self.checked()?;
        let mut payload = self.payload(message)?;
        let Some(credit) = self.try_data_credit() else {
            return Ok(None);
        };
        match self.submit_frame(Kind::Data, &mut payload, immediate, how) {
            Ok(number) => {
                credit.spend();
                Ok(Some(number))
            }
            Err(NotAccepted::Full) => Ok(None),
            Err(NotAccepted::Refused(error)) => Err(*error),
        }
    }

    /// Sends a message that fits into one piece.
    async fn begin_send(
        &self,
        message: &impl LocalMrReadAccess,
        immediate: Option<u32>,
        how: (Attendance, Departure),
    ) -> Result<u64> {
        let payload = self.payload(message)?;
        let credit = self.data_credit().await?;
        let number = self
            .submit_frame_when_possible(Kind::Data, payload, immediate, how)
            .await?;
        credit.spend();
        Ok(number)
    }

    /// Returns the bytes of a message, or a claim on them if they are too many to be copied.
    pub(super) fn payload<'a>(&self, message: &'a impl LocalMrReadAccess) -> Result<Payload<'a>> {
        if HEADER_LEN + message.length() <= self.inline {
            return Ok(Payload::Copied(message.try_as_slice()?));
        }
        Ok(Payload::Claimed(Some(claim_read(message)?)))
    }

    /// Has the peer read a message that is too long to send.
    async fn send_by_rendezvous(&self, claim: ReadClaim, immediate: Option<u32>) -> Result<()> {
        let credit = self.data_credit().await?;
        let lent = LentMemory::new(claim)?;
        let memory = lent.remote();
        let mut question = self.replies.ask(Some(lent));
        let kind = Kind::Rendezvous {
            id: question.id,
            memory,
        };
        let number = {
            // A message that the peer never hears of must not keep its memory.
            let mut unsent = question.withdraw_unless_sent();
            let submitted =
                self.submit_frame_when_possible(kind, Payload::Nothing, immediate, ATTENDED);
            let number = submitted.await?;
            unsent.is_sent = true;
            number
        };
        credit.spend();
        self.operation(number, None).await?;
        match question
            .answer()
            .await
            .unwrap_or_else(|| Err(self.ended()))
            .map_err(Error::of_posted)?
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
        let number = self
            .submit_frame_when_possible(kind, Payload::Nothing, None, ATTENDED)
            .await?;
        credit.spend();
        self.operation(number, None).await?;
        Ok(())
    }

    /// Hands a message of the control class to the device, and does not wait for it to arrive.
    async fn post_control_frame(&self, kind: Kind) -> Result<()> {
        let credit = self.control_credit().await?;
        // The peer waits for it, whether this end's tasks run on or not.
        let how = (Attendance::Nobody, Departure::Now);
        self.submit_frame_when_possible(kind, Payload::Nothing, None, how)
            .await?;
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

    /// Takes leave to send one data message, if the peer takes one.
    pub(super) fn try_data_credit(&self) -> Option<Credit<'_>> {
        let taken = self.data_credits.try_take(0);
        taken.then(|| Credit::data(self))
    }

    /// Takes leave to send one data message.
    pub(super) async fn data_credit(&self) -> Result<Credit<'_>> {
        self.checked()?;
        if let Some(credit) = self.try_data_credit() {
            return Ok(credit);
        }
        let attempt = || {
            self.failed()
                .or_else(|| self.data_credits.try_take(0).then_some(Ok(())))
        };
        let _waiting = self.shard.waiting();
        self.data_credits.waiters().wait_for(attempt).await?;
        Ok(Credit::data(self))
    }

    /// Accepts a message as soon as there is room for it.
    pub(super) async fn submit_frame_when_possible(
        &self,
        kind: Kind,
        mut payload: Payload<'_>,
        immediate: Option<u32>,
        how: (Attendance, Departure),
    ) -> Result<u64> {
        self.checked()?;
        let mut attempt = || self.submit_frame(kind, &mut payload, immediate, how);
        match attempt() {
            Ok(number) => Ok(number),
            Err(first) => self.retry(first, attempt).await,
        }
    }

    /// Accepts a message whose header says `kind` and returns the credits that are owed. A message that
    /// is not accepted leaves the payload.
    pub(super) fn submit_frame(
        &self,
        kind: Kind,
        payload: &mut Payload<'_>,
        immediate: Option<u32>,
        how: (Attendance, Departure),
    ) -> Result<u64, NotAccepted> {
        let credits = Credits {
            data: owed(&self.owed_data),
            control: owed(&self.owed_control),
        };
        let mut header = [0; MAX_FRAME_LEN];
        let len = Frame { credits, kind }.encode(&mut header);
        let header = &header[..len];
        let push = Push::Send {
            immediate,
            // A read that is repeated because its answer was lost must still find the memory.
            fence: matches!(kind, Kind::Return { .. } | Kind::Release { .. }),
        };
        let submitted = match payload {
            Payload::Nothing if len <= self.inline => self.submit_copied(push, [header, &[]], how),
            Payload::Copied(bytes) => self.submit_copied(push, [header, bytes], how),
            Payload::Nothing => self.submit_claimed(push, header, &mut None, how),
            Payload::Claimed(claim) => self.submit_claimed(push, header, claim, how),
        };
        if submitted.is_err() {
            // The next message returns them.
            self.owed_data
                .fetch_add(u32::from(credits.data), Ordering::Relaxed);
            self.owed_control
                .fetch_add(u32::from(credits.control), Ordering::Relaxed);
        }
        submitted
    }

    fn submit_claimed(
        &self,
        push: Push,
        bytes: &[u8],
        claim: &mut Option<ReadClaim>,
        how: (Attendance, Departure),
    ) -> Result<u64, NotAccepted> {
        let header = self.device.pool().take_header(bytes.len());
        let mut header = header.map_err(|error| NotAccepted::Refused(Box::new(error)))?;
        header.copy_from_slice(bytes);
        let memory = (Some(header), claim.take().map(Claim::Read));
        self.submit_held(Work::Push(push), memory, how, None)
            .map_err(|(not_accepted, (header, payload))| {
                self.recycle((header, None));
                if let Some(Claim::Read(payload)) = payload {
                    *claim = Some(payload);
                }
                not_accepted
            })
    }

    /// The application took what a data message brought.
    pub(super) fn taken(&self) {
        self.owed_data.fetch_add(1, Ordering::Relaxed);
        self.return_credits();
    }

    /// Waits for the application's next message.
    pub(crate) async fn receive(&self) -> Result<(LocalMr, Option<u32>)> {
        let attempt = || {
            // Messages whose receiving was given up halfway come first.
            let deferred = || self.deferred.pop();
            let given_up = (!self.deferred.is_empty()).then(deferred).flatten();
            given_up.or_else(|| self.messages.pop())
        };
        match self.wait(self.messages.waiters(), attempt).await? {
            Incoming::Message { region, immediate } => {
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
        let mut region = self.device.alloc_local_mr_stale(layout)?;
        let claim = claim_write(&mut region)?;
        let work = Work::Read { remote: memory };
        self.perform_held(work, claim.into()).await?;
        Ok(region)
    }

    /// Waits for the immediate of the peer's next write that has one.
    pub(crate) async fn receive_write_immediate(&self) -> Result<u32> {
        let inbox = &self.write_immediates;
        let immediate = self.wait(inbox.waiters(), || inbox.pop()).await?;
        self.taken();
        Ok(immediate)
    }

    /// Why the connection has ended, for who knows that it has.
    pub(super) fn ended(&self) -> Error {
        self.failure()
            .cloned()
            .unwrap_or_else(|| Error::disconnected("it was closed"))
    }
}

/// Takes what is owed, as much as a header can carry.
fn owed(counter: &AtomicU32) -> u16 {
    if counter.load(Ordering::Relaxed) == 0 {
        return 0;
    }
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
