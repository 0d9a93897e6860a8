//! Long messages of the application, which are sent by rendezvous: the sender lends its memory, the
//! receiver reads it, and then notifies the sender.
//!
//! A receiver also reads the long messages that have arrived behind the one that it takes.
//! Otherwise each read would wait until the sender has acknowledged the notification before it.

use std::alloc::Layout;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;
use rdma_core::RemoteMemory;
use rdma_core::memory::{LentMemory, ReadClaim};

use super::Connection;
use super::frame::Kind;
use super::messages::Payload;
use super::replies::Reply;
use super::send_state::{AWAITED, AwaitedBy, PostTime};
use super::work::Work;
use crate::error::{Error, Result};
use crate::memory::{LocalMr, claim_write};

/// Maximum number of messages, and of their bytes, that are read before the application takes them.
const AHEAD: usize = 16;
const AHEAD_BYTES: usize = 4 << 20;

/// A message for the application that has arrived.
#[derive(Debug)]
pub(crate) enum Incoming {
    Message {
        region: LocalMr,
        immediate: Option<u32>,
    },
    /// A message in the peer's memory.
    Rendezvous {
        id: u64,
        memory: RemoteMemory,
        immediate: Option<u32>,
    },
    /// A message that the request with the given number reads into `region`.
    Reading {
        id: u64,
        number: u64,
        region: LocalMr,
        immediate: Option<u32>,
    },
    /// A message that was read, successfully or not, before the peer was notified.
    Read {
        id: u64,
        outcome: Result<LocalMr>,
        immediate: Option<u32>,
    },
}

/// Messages that come before those in the inbox: messages that are read ahead, and messages whose
/// receive future was dropped.
#[derive(Debug, Default)]
pub(super) struct Ahead {
    queue: Mutex<VecDeque<Incoming>>,
    has_any: AtomicBool,
}

impl Ahead {
    fn pop(&self) -> Option<Incoming> {
        if !self.has_any.load(Ordering::Acquire) {
            return None;
        }
        let mut queue = self.queue.lock();
        let message = queue.pop_front();
        self.has_any.store(!queue.is_empty(), Ordering::Release);
        message
    }

    fn change(&self, change: impl FnOnce(&mut VecDeque<Incoming>)) {
        let mut queue = self.queue.lock();
        change(&mut queue);
        self.has_any.store(!queue.is_empty(), Ordering::Release);
    }
}

impl Connection {
    /// Sends a message that is too long for one piece: lends its memory, and waits until the peer
    /// has read it.
    pub(super) async fn send_by_rendezvous(
        &self,
        claim: ReadClaim,
        immediate: Option<u32>,
    ) -> Result<()> {
        let credit = self.data_credit().await?;
        let lent = LentMemory::new(claim)?;
        let memory = lent.remote();
        let mut question = self.replies.ask(Some(lent));
        let kind = Kind::Rendezvous {
            id: question.id,
            memory,
        };
        let number = {
            // A message that is not sent must not keep its memory lent.
            let mut unsent = question.withdraw_unless_sent();
            let submitted =
                self.submit_frame_when_possible(kind, Payload::Nothing, immediate, AWAITED);
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
                reason: "it could not read it".into(),
            }),
        }
    }

    /// Waits for the application's next message.
    pub(crate) async fn receive(&self) -> Result<(LocalMr, Option<u32>)> {
        let attempt = || self.ahead.pop().or_else(|| self.messages.pop());
        match self.wait(self.messages.waiters(), attempt).await? {
            Incoming::Message { region, immediate } => {
                self.taken();
                Ok((region, immediate))
            }
            long => self.receive_long(long).await,
        }
    }

    /// Reads a long message from the peer's memory, unless it was read ahead, and notifies the
    /// peer. If the future is dropped, the next receive continues with the same message.
    async fn receive_long(&self, message: Incoming) -> Result<(LocalMr, Option<u32>)> {
        let mut taken = PutBack {
            connection: self,
            message: Some(message),
        };
        if let Some(Incoming::Rendezvous {
            id,
            memory,
            immediate,
        }) = taken.message
        {
            taken.message = Some(match self.begin_read(memory).await {
                Ok((number, region)) => Incoming::Reading {
                    id,
                    number,
                    region,
                    immediate,
                },
                Err(error) => {
                    self.taken();
                    Incoming::Read {
                        id,
                        outcome: Err(error),
                        immediate,
                    }
                }
            });
            self.read_ahead();
            self.post_staged();
        }
        if let Some(Incoming::Reading { number, .. }) = taken.message {
            let outcome = self.operation(number, None).await.map(drop);
            self.taken();
            taken.message = taken.message.take().map(|message| message.read(outcome));
        }
        let Some(Incoming::Read { id, outcome, .. }) = &taken.message else {
            unreachable!("a message that arrived in one piece is not read");
        };
        let kind = Kind::RendezvousDone {
            id: *id,
            read: outcome.is_ok(),
        };
        // The sender waits for this notification, which the device delivers once it is posted. If
        // the connection has failed, the sender sees that, and the message that was read is still
        // valid.
        if let Err(error) = self.post_control_frame(kind).await {
            self.fail(error);
        }
        match taken.message.take() {
            Some(Incoming::Read {
                outcome, immediate, ..
            }) => outcome.map(|region| (region, immediate)),
            _ => unreachable!("nothing else takes the message"),
        }
    }

    /// Begins to read a message from the peer's memory, after waiting for room for the request.
    /// Returns the number of the request, and the memory that it reads into.
    async fn begin_read(&self, memory: RemoteMemory) -> Result<(u64, LocalMr)> {
        let mut region = self.memory_for(memory)?;
        let claim = claim_write(&mut region)?;
        let work = Work::Read { remote: memory };
        let number = self.begin_held(work, claim.into()).await?;
        Ok((number, region))
    }

    /// Begins to read the long messages at the front of the inbox, which the application takes
    /// next. Stops at the first message that would have to wait or that exceeds a limit.
    fn read_ahead(&self) {
        let mut bytes = 0;
        let mut has_any = false;
        for _ in 0..AHEAD {
            let Some(message) = self.messages.pop() else {
                break;
            };
            let message = match message {
                Incoming::Rendezvous {
                    id,
                    memory,
                    immediate,
                } => {
                    bytes += usize::try_from(memory.len)
                        .unwrap_or(usize::MAX)
                        .min(AHEAD_BYTES + 1);
                    let begun = (bytes <= AHEAD_BYTES).then(|| self.try_begin_read(memory));
                    match begun.flatten() {
                        Some((number, region)) => Incoming::Reading {
                            id,
                            number,
                            region,
                            immediate,
                        },
                        None => message,
                    }
                }
                other => other,
            };
            let must_wait = matches!(message, Incoming::Rendezvous { .. });
            self.ahead.change(|queue| queue.push_back(message));
            has_any = true;
            if must_wait {
                break;
            }
        }
        if has_any {
            // A task that was woken for one of these messages may have found the inbox empty.
            self.messages.waiters().wake();
        }
    }

    /// Begins to read a message from the peer's memory, like [`Self::begin_read`]. Returns `None`
    /// if that would have to wait or is not possible: the receive of this message then reports the
    /// error.
    fn try_begin_read(&self, memory: RemoteMemory) -> Option<(u64, LocalMr)> {
        let mut region = self.memory_for(memory).ok()?;
        let claim = claim_write(&mut region).ok()?;
        let how = (AwaitedBy::Nothing, PostTime::AtTurnEnd);
        let work = Work::Read { remote: memory };
        let submitted = self.submit_held(work, (None, Some(claim.into())), how, None);
        submitted.ok().map(|number| (number, region))
    }

    /// Allocates memory for a message in the peer's memory.
    fn memory_for(&self, memory: RemoteMemory) -> Result<LocalMr> {
        let limit = self.settings.message_limit;
        let len = usize::try_from(memory.len).ok().filter(|&len| len <= limit);
        let Some(len) = len else {
            let reason = format!("{} bytes are above the limit of {limit}", memory.len);
            return Err(Error::invalid("message of the peer", reason));
        };
        let layout = Layout::from_size_align(len, 1)
            .map_err(|_| Error::invalid("message of the peer", "its length is impossible"))?;
        self.device.alloc_local_mr_stale(layout)
    }

    /// Hands a control message to the device, without waiting for its arrival.
    async fn post_control_frame(&self, kind: Kind) -> Result<()> {
        let credit = self.control_credit().await?;
        // The peer waits for it, so it must not depend on further progress of this runtime.
        let how = (AwaitedBy::Nothing, PostTime::Now);
        self.submit_frame_when_possible(kind, Payload::Nothing, None, how)
            .await?;
        credit.spend();
        Ok(())
    }
}

impl Incoming {
    /// Returns a message whose read has ended with `outcome`.
    fn read(self, outcome: Result<()>) -> Self {
        match self {
            Self::Reading {
                id,
                region,
                immediate,
                ..
            } => Self::Read {
                id,
                outcome: outcome.map(|()| region),
                immediate,
            },
            other => other,
        }
    }
}

/// Guard of a long message that is being received: if it is dropped early, the next receive gets
/// the message.
struct PutBack<'c> {
    connection: &'c Connection,
    message: Option<Incoming>,
}

impl Drop for PutBack<'_> {
    fn drop(&mut self) {
        if let Some(message) = self.message.take() {
            let connection = self.connection;
            connection.ahead.change(|queue| queue.push_front(message));
            connection.messages.waiters().wake();
        }
    }
}
