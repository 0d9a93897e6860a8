//! Sending of short messages of the application, and of control messages. A short message fits into
//! one receive of the peer. A longer message of the application is sent by
//! [rendezvous](super::rendezvous).

use std::sync::atomic::{AtomicU32, Ordering};

use rdma_core::memory::{Claim, ReadClaim};

use super::Connection;
use super::credits::{CREDIT_RESERVE, Credit};
use super::frame::{Credits, Frame, HEADER_LEN, Kind, MAX_FRAME_LEN};
use super::send_state::{AWAITED, AwaitedBy, NotAccepted, PostTime, UNAWAITED};
use super::work::{Push, Work};
use crate::error::{Error, Result};
use crate::memory::{LocalMrReadAccess, claim_read};
use crate::observe;

/// Payload of a message, the bytes after its header: nothing, bytes to be copied, or memory of the
/// application that the device reads. A [`ReadClaim`] reserves that memory: the program cannot
/// write to the memory until the send completes.
#[derive(Debug)]
pub(super) enum Payload<'a> {
    Nothing,
    /// Bytes that are copied when the message is accepted.
    Copied(&'a [u8]),
    /// Memory that the message claims until the send completes. `None` after the request has taken
    /// the claim.
    Claimed(Option<ReadClaim>),
}

impl Connection {
    /// Sends a message of the application, and waits until the peer's device has acknowledged it.
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

    /// Sends a message of the application without waiting for the acknowledgement of the peer. A
    /// message that is too long for one receive of the peer is an exception: waits until the peer
    /// has read the message.
    pub(crate) async fn post_message(&self, message: &impl LocalMrReadAccess) -> Result<()> {
        if message.length() > self.peer_payload {
            return self.send_by_rendezvous(claim_read(message)?, None).await;
        }
        // A failure of the request ends the connection.
        match self.try_begin_send(message, None, UNAWAITED)? {
            Some(_) => Ok(()),
            None => self.begin_send(message, None, UNAWAITED).await.map(drop),
        }
    }

    /// Submits a message that fits into one receive of the peer, without waiting. Returns the
    /// number of the send request, for which [`Self::finish`] can wait. Returns `None` if the peer
    /// has no free receive for the message, or the send queue is full. `how` states whether the
    /// caller waits for the request, and when the request is posted.
    pub(super) fn try_begin_send(
        &self,
        message: &impl LocalMrReadAccess,
        immediate: Option<u32>,
        how: (AwaitedBy, PostTime),
    ) -> Result<Option<u64>> {
        self.check_open()?;
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

    /// Waits for a credit (permission to send) and for room in the send queue, and then submits a
    /// message. Returns the number of the send request, for which [`Self::finish`] can wait.
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

    /// Returns the payload of a short message. If header and payload fit into the inline data of a
    /// request, the payload is bytes to be copied. Otherwise, the payload is a claim, which
    /// reserves the memory for the device until the send completes.
    pub(super) fn payload<'a>(&self, message: &'a impl LocalMrReadAccess) -> Result<Payload<'a>> {
        if HEADER_LEN + message.length() <= self.inline {
            return Ok(Payload::Copied(message.try_as_slice()?));
        }
        Ok(Payload::Claimed(Some(claim_read(message)?)))
    }

    /// Waits for a credit: the permission of the peer to send one control message. Leaves
    /// [`CREDIT_RESERVE`] credits for messages that return credits to the peer.
    pub(super) async fn control_credit(&self) -> Result<Credit<'_>> {
        let attempt = || {
            let take = || self.control_credits.try_take(CREDIT_RESERVE);
            self.failed().or_else(|| take().then_some(Ok(())))
        };
        self.control_credits.waiters().wait_for(attempt).await?;
        Ok(Credit::control(self))
    }

    /// Takes a credit: the permission of the peer to send one data message (a message of the
    /// application). Returns `None` if no credit is available.
    pub(super) fn try_data_credit(&self) -> Option<Credit<'_>> {
        let taken = self.data_credits.try_take(0);
        taken.then(|| Credit::data(self))
    }

    /// Waits for a credit: the permission of the peer to send one data message (a message of the
    /// application).
    pub(super) async fn data_credit(&self) -> Result<Credit<'_>> {
        self.check_open()?;
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

    /// Waits for room in the send queue, and then submits a message of the kind `kind` like
    /// [`Self::submit_frame`]. Returns the number of the send request.
    pub(super) async fn submit_frame_when_possible(
        &self,
        kind: Kind,
        mut payload: Payload<'_>,
        immediate: Option<u32>,
        how: (AwaitedBy, PostTime),
    ) -> Result<u64> {
        self.check_open()?;
        let mut attempt = || self.submit_frame(kind, &mut payload, immediate, how);
        match attempt() {
            Ok(number) => Ok(number),
            Err(first) => self.retry(first, attempt).await,
        }
    }

    /// Submits a message of the kind `kind` to the send queue, and returns the number of its
    /// request. The message header also reports how many further messages the peer may send. `how`
    /// states whether the caller waits for the request, and when the request is posted. On an
    /// error, `payload` is unchanged, so that the caller can try again.
    pub(super) fn submit_frame(
        &self,
        kind: Kind,
        payload: &mut Payload<'_>,
        immediate: Option<u32>,
        how: (AwaitedBy, PostTime),
    ) -> Result<u64, NotAccepted> {
        let credits = Credits {
            data: take_owed(&self.owed_data),
            control: take_owed(&self.owed_control),
        };
        let mut header = [0; MAX_FRAME_LEN];
        let len = Frame { credits, kind }.encode(&mut header);
        let header = &header[..len];
        let push = Push::Send {
            immediate,
            // The fence delays the message until all earlier reads have completed. Otherwise a read
            // that the device repeats, because its response was lost, could access memory that is
            // no longer lent.
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

    /// Submits a message that is too long for inline data. Copies the header to registered memory.
    /// Moves `claim` (the right to use the payload's memory) into the request until the send
    /// completes. On an error, moves the right back to `claim`.
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

    /// Records that the application has taken a data message, so that the peer may send another
    /// message. A later message returns this credit (permission to send) to the peer.
    pub(super) fn owe_data_credit(&self) {
        self.owed_data.fetch_add(1, Ordering::Relaxed);
        self.return_credits();
    }

    /// Waits for the peer's next RDMA write with immediate data, and returns the immediate data.
    pub(crate) async fn receive_write_immediate(&self) -> Result<u32> {
        let inbox = &self.write_immediates;
        let immediate = self.wait(inbox.waiters(), || inbox.pop()).await?;
        self.owe_data_credit();
        Ok(immediate)
    }

    /// Returns the error that ended the connection. Must be called only after the connection has
    /// ended.
    pub(super) fn end_reason(&self) -> Error {
        self.failure()
            .cloned()
            .unwrap_or_else(|| Error::disconnected("it was closed"))
    }
}

/// Takes all credits (permissions to send) that this end must return to the peer from `counter`,
/// which becomes 0. Returns their number, at most `u16::MAX`, for the header of the next message.
fn take_owed(counter: &AtomicU32) -> u16 {
    if counter.load(Ordering::Relaxed) == 0 {
        return 0;
    }
    u16::try_from(counter.swap(0, Ordering::Relaxed)).unwrap_or(u16::MAX)
}
