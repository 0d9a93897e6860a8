//! Messages of one piece: those of the application, and control messages. A longer message of the
//! application is sent by [rendezvous](super::rendezvous).

use std::sync::atomic::{AtomicU32, Ordering};

use rdma_core::memory::{Claim, ReadClaim};

use super::Connection;
use super::credits::{CREDIT_RESERVE, Credit};
use super::frame::{Credits, Frame, HEADER_LEN, Kind, MAX_FRAME_LEN};
use super::send_state::{AWAITED, AwaitedBy, NotAccepted, PostTime};
use super::work::{Push, Work};
use crate::error::{Error, Result};
use crate::memory::{LocalMrReadAccess, claim_read};
use crate::observe;

/// Bytes that follow the header of a message.
#[derive(Debug)]
pub(super) enum Payload<'a> {
    Nothing,
    /// Bytes that are copied when the message is accepted.
    Copied(&'a [u8]),
    /// Memory that the message claims until it has arrived; `None` once the request has taken the
    /// claim.
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
        let number = match self.try_begin_send(message, immediate, AWAITED)? {
            Some(number) => number,
            None => self.begin_send(message, immediate, AWAITED).await?,
        };
        self.operation(number, None).await.map(drop)
    }

    /// Sends the application's message without waiting for its arrival.
    pub(crate) async fn post_message(&self, message: &impl LocalMrReadAccess) -> Result<()> {
        if message.length() > self.peer_payload {
            return self.send_by_rendezvous(claim_read(message)?, None).await;
        }
        // Its failure ends the connection.
        let how = (AwaitedBy::Nothing, PostTime::AtTurnEnd);
        match self.try_begin_send(message, None, how)? {
            Some(_) => Ok(()),
            None => self.begin_send(message, None, how).await.map(drop),
        }
    }

    /// Submits a message of one piece, and returns its number, or `None` if it would have to wait
    /// for a credit or for room.
    pub(super) fn try_begin_send(
        &self,
        message: &impl LocalMrReadAccess,
        immediate: Option<u32>,
        how: (AwaitedBy, PostTime),
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

    /// Submits a message of one piece, after waiting for a credit and for room, and returns its
    /// number.
    async fn begin_send(
        &self,
        message: &impl LocalMrReadAccess,
        immediate: Option<u32>,
        how: (AwaitedBy, PostTime),
    ) -> Result<u64> {
        let payload = self.payload(message)?;
        let credit = self.data_credit().await?;
        let number = self
            .submit_frame_when_possible(Kind::Data, payload, immediate, how)
            .await?;
        credit.spend();
        Ok(number)
    }

    /// Returns the bytes of a message if they can be copied into the request, or else a claim on
    /// them.
    pub(super) fn payload<'a>(&self, message: &'a impl LocalMrReadAccess) -> Result<Payload<'a>> {
        if HEADER_LEN + message.length() <= self.inline {
            return Ok(Payload::Copied(message.try_as_slice()?));
        }
        Ok(Payload::Claimed(Some(claim_read(message)?)))
    }

    /// Sends a control message, and waits until it has arrived.
    pub(super) async fn send_control_frame(&self, kind: Kind) -> Result<()> {
        let credit = self.control_credit().await?;
        let number = self
            .submit_frame_when_possible(kind, Payload::Nothing, None, AWAITED)
            .await?;
        credit.spend();
        self.operation(number, None).await?;
        Ok(())
    }

    /// Waits for a credit to send one control message.
    pub(super) async fn control_credit(&self) -> Result<Credit<'_>> {
        let attempt = || {
            let take = || self.control_credits.try_take(CREDIT_RESERVE);
            self.failed().or_else(|| take().then_some(Ok(())))
        };
        self.control_credits.waiters().wait_for(attempt).await?;
        Ok(Credit::control(self))
    }

    /// Takes a credit to send one data message, or returns `None` if no credit is available.
    pub(super) fn try_data_credit(&self) -> Option<Credit<'_>> {
        let taken = self.data_credits.try_take(0);
        taken.then(|| Credit::data(self))
    }

    /// Waits for a credit to send one data message.
    pub(super) async fn data_credit(&self) -> Result<Credit<'_>> {
        self.checked()?;
        if let Some(credit) = self.try_data_credit() {
            return Ok(credit);
        }
        let attempt = || {
            self.failed()
                .or_else(|| self.data_credits.try_take(0).then_some(Ok(())))
        };
        observe::count_credit_wait(&self.device);
        let _waiting = self.shard.waiting();
        self.data_credits.waiters().wait_for(attempt).await?;
        Ok(Credit::data(self))
    }

    /// Waits until there is room for a message, and submits it. Returns the number of the request.
    pub(super) async fn submit_frame_when_possible(
        &self,
        kind: Kind,
        mut payload: Payload<'_>,
        immediate: Option<u32>,
        how: (AwaitedBy, PostTime),
    ) -> Result<u64> {
        self.checked()?;
        let mut attempt = || self.submit_frame(kind, &mut payload, immediate, how);
        match attempt() {
            Ok(number) => Ok(number),
            Err(first) => self.retry(first, attempt).await,
        }
    }

    /// Submits a message of this kind, whose header returns the owed credits to the peer. If the
    /// message is not accepted, the payload is left in place.
    pub(super) fn submit_frame(
        &self,
        kind: Kind,
        payload: &mut Payload<'_>,
        immediate: Option<u32>,
        how: (AwaitedBy, PostTime),
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
            // The fence delays the message until all reads have completed: a read that the device
            // repeats, because its response was lost, must still find the memory.
            fence: matches!(kind, Kind::Return { .. } | Kind::Release { .. }),
        };
        let submitted = match payload {
            Payload::Nothing if len <= self.inline => self.submit_copied(push, [header, &[]], how),
            Payload::Copied(bytes) => self.submit_copied(push, [header, bytes], how),
            Payload::Nothing => self.submit_claimed(push, header, &mut None, how),
            Payload::Claimed(claim) => self.submit_claimed(push, header, claim, how),
        };
        if submitted.is_err() {
            // The next message returns these credits.
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
        how: (AwaitedBy, PostTime),
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

    /// Records that the application took a data message, whose credit is now owed to the peer.
    pub(super) fn taken(&self) {
        self.owed_data.fetch_add(1, Ordering::Relaxed);
        self.return_credits();
    }

    /// Waits for the peer's next write with immediate data, and returns that number.
    pub(crate) async fn receive_write_immediate(&self) -> Result<u32> {
        let inbox = &self.write_immediates;
        let immediate = self.wait(inbox.waiters(), || inbox.pop()).await?;
        self.taken();
        Ok(immediate)
    }

    /// Returns the error that ended the connection. Called only after it has ended.
    pub(super) fn ended(&self) -> Error {
        self.failure()
            .cloned()
            .unwrap_or_else(|| Error::disconnected("it was closed"))
    }
}

/// Takes the owed credits, at most `u16::MAX`, to be returned in a header.
fn owed(counter: &AtomicU32) -> u16 {
    if counter.load(Ordering::Relaxed) == 0 {
        return 0;
    }
    u16::try_from(counter.swap(0, Ordering::Relaxed)).unwrap_or(u16::MAX)
}
