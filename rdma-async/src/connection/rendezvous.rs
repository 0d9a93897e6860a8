//! Long messages of the application, sent by rendezvous: the sender lends the memory of the
//! message, the receiver reads it by RDMA, and then notifies the sender.
//!
//! When the application receives a long message, the receiver also begins to read the next long
//! messages. Otherwise each read would wait for the acknowledgement of the notification before it.

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
use super::ring::RingPiece;
use super::send_state::{AWAITED, AwaitedBy, PostTime, UNAWAITED};
use super::work::Work;
use crate::error::{Error, Result};
use crate::memory::{LocalMr, LocalMrReadAccess, claim_write};

/// A received message for the application: its bytes, or the state of a long message that is read
/// from the peer's memory.
#[derive(Debug)]
pub(crate) enum IncomingMessage {
    Message {
        region: LocalMr,
        immediate: Option<u32>,
    },
    /// Long message that is still in the peer's memory.
    Rendezvous {
        id: u64,
        memory: RemoteMemory,
        immediate: Option<u32>,
    },
    /// Long message that the request `number` is reading into `region`.
    BeingRead {
        id: u64,
        number: u64,
        region: LocalMr,
        immediate: Option<u32>,
    },
    /// Long message whose read has ended, successfully or not. The peer is not yet notified.
    WasRead {
        id: u64,
        outcome: Result<LocalMr>,
        immediate: Option<u32>,
    },
    /// Piece of a stream in the [ring](super::ring) of this end.
    InRing(RingPiece),
}

/// A received piece (contiguous bytes) of a stream: a message, a long piece that was read from the
/// peer's memory, or a piece that the peer has written into the ring of this end.
#[derive(Debug)]
pub(crate) enum StreamPiece {
    /// Piece that arrived as a message.
    Message(LocalMr),
    /// Long piece that was read from the peer's memory.
    Long(LocalMr),
    /// Long piece in the ring of this end.
    InRing(RingPiece),
}

impl StreamPiece {
    /// Returns the length of the piece in bytes.
    pub(crate) fn len(&self) -> usize {
        match self {
            Self::Message(region) | Self::Long(region) => region.length(),
            Self::InRing(piece) => piece.len(),
        }
    }
}

/// Queue of the messages that the application receives before the messages in the inbox. Contains
/// messages that [`Connection::read_ahead`] has moved from the inbox, and messages whose receive
/// future was dropped.
#[derive(Debug, Default)]
pub(super) struct FrontQueue {
    queue: Mutex<VecDeque<IncomingMessage>>,
    has_any: AtomicBool,
}

impl FrontQueue {
    fn pop(&self) -> Option<IncomingMessage> {
        if !self.has_any.load(Ordering::Acquire) {
            return None;
        }
        let mut queue = self.queue.lock();
        let message = queue.pop_front();
        self.has_any.store(!queue.is_empty(), Ordering::Release);
        message
    }

    /// Locks the queue of messages and calls `change`, for example to add a message. Then updates
    /// the flag `has_any`, which shows readers without the lock that the queue contains messages.
    fn change(&self, change: impl FnOnce(&mut VecDeque<IncomingMessage>)) {
        let mut queue = self.queue.lock();
        change(&mut queue);
        self.has_any.store(!queue.is_empty(), Ordering::Release);
    }
}

impl Connection {
    /// Sends a long message: lends the memory of the message to the peer, and waits until the peer
    /// has read the memory by RDMA.
    pub(super) async fn send_by_rendezvous(
        &self,
        claim: ReadClaim,
        immediate: Option<u32>,
    ) -> Result<()> {
        let credit = self.data_credit().await?;
        let lent = LentMemory::new(claim)?;
        let memory = lent.remote();
        let mut pending = self
            .replies
            .register_limited("a long message", Some(lent))?;
        let kind = Kind::Rendezvous {
            id: pending.id,
            memory,
        };
        let number = {
            // If the message is not sent, its memory must not stay lent.
            let mut unsent = pending.remove_unless_sent();
            let submitted =
                self.submit_frame_when_possible(kind, Payload::Nothing, immediate, AWAITED);
            let number = submitted.await?;
            unsent.is_sent = true;
            number
        };
        credit.spend();
        self.operation(number, None).await?;
        match pending
            .wait()
            .await
            .unwrap_or_else(|| Err(self.end_reason()))
            .map_err(Error::of_posted)?
        {
            Reply::Read(true) => Ok(()),
            _ => Err(Error::Refused {
                what: "a message",
                reason: "it could not read the memory".into(),
            }),
        }
    }

    /// Waits for the next message of the peer, and returns the bytes of the message and its
    /// immediate data.
    pub(crate) async fn receive(&self) -> Result<(LocalMr, Option<u32>)> {
        match self.next_message().await? {
            IncomingMessage::Message { region, immediate } => {
                self.owe_data_credit();
                Ok((region, immediate))
            }
            IncomingMessage::InRing(piece) => {
                self.owe_data_credit();
                let region = self.region_from_ring(&piece, 0);
                self.free_slot(piece);
                Ok((region?, None))
            }
            long => self.receive_long(long).await,
        }
    }

    /// Waits for the next piece (contiguous bytes) of the stream that the peer writes, and returns
    /// the piece.
    pub(crate) async fn receive_piece(&self) -> Result<StreamPiece> {
        match self.next_message().await? {
            IncomingMessage::Message { region, .. } => {
                self.owe_data_credit();
                Ok(StreamPiece::Message(region))
            }
            IncomingMessage::InRing(piece) => {
                self.owe_data_credit();
                Ok(StreamPiece::InRing(piece))
            }
            long => {
                let (region, _) = self.receive_long(long).await?;
                Ok(StreamPiece::Long(region))
            }
        }
    }

    /// Waits for the next message of the peer, and returns the message. If the returned message is
    /// a long message that is still in the peer's memory, the caller must read the bytes.
    async fn next_message(&self) -> Result<IncomingMessage> {
        let attempt = || self.front.pop().or_else(|| self.messages.pop());
        self.wait(self.messages.waiters(), attempt).await
    }

    /// Receives a long message: reads it from the peer's memory, unless the read has already begun,
    /// and notifies the peer. Returns the bytes of the message and its immediate data. If the
    /// future is dropped, the next receive continues with this message.
    async fn receive_long(&self, message: IncomingMessage) -> Result<(LocalMr, Option<u32>)> {
        let mut current = RequeueOnDrop {
            connection: self,
            message: Some(message),
        };
        if let Some(IncomingMessage::Rendezvous {
            id,
            memory,
            immediate,
        }) = current.message
        {
            current.message = Some(match self.begin_read(memory).await {
                Ok((number, region)) => IncomingMessage::BeingRead {
                    id,
                    number,
                    region,
                    immediate,
                },
                Err(error) => {
                    self.owe_data_credit();
                    IncomingMessage::WasRead {
                        id,
                        outcome: Err(error),
                        immediate,
                    }
                }
            });
            self.read_ahead();
            self.post_staged();
        }
        if let Some(IncomingMessage::BeingRead { number, .. }) = current.message {
            let outcome = self.operation(number, None).await.map(drop);
            self.owe_data_credit();
            current.message = current.message.take().map(|old| old.finish_read(outcome));
        }
        let Some(IncomingMessage::WasRead { id, outcome, .. }) = &current.message else {
            unreachable!("a message that arrived in one piece is not read");
        };
        let kind = Kind::RendezvousDone {
            id: *id,
            read: outcome.is_ok(),
        };
        // The sender waits for this notification. After the notification is posted, the device
        // delivers it without further action. If the connection has failed, the sender gets an
        // error, and the message that was read is still valid.
        if let Err(error) = self.post_control_frame(kind).await {
            self.fail(error);
        }
        match current.message.take() {
            Some(IncomingMessage::WasRead {
                outcome, immediate, ..
            }) => outcome.map(|region| (region, immediate)),
            _ => unreachable!("nothing else takes the message"),
        }
    }

    /// Begins to read a long message from `memory`, memory of the peer. Waits for room in the send
    /// queue. Returns the number of the request, and the region that the request writes to.
    async fn begin_read(&self, memory: RemoteMemory) -> Result<(u64, LocalMr)> {
        let mut region = self.memory_for(memory)?;
        let claim = claim_write(&mut region)?;
        let work = Work::Read { remote: memory };
        let number = self.begin_held(work, claim.into()).await?;
        Ok((number, region))
    }

    /// Begins to read the long messages that the application receives next, from the front of the
    /// inbox, so that their receives wait less. Stops at the limits of
    /// [`RdmaBuilder::read_ahead`](crate::RdmaBuilder::read_ahead), or if the read of a message
    /// cannot begin.
    fn read_ahead(&self) {
        let limit = self.settings.read_ahead;
        let mut bytes = 0_usize;
        let mut has_any = false;
        for _ in 0..limit.messages {
            let Some(message) = self.messages.pop() else {
                break;
            };
            let message = match message {
                IncomingMessage::Rendezvous {
                    id,
                    memory,
                    immediate,
                } => {
                    let len = usize::try_from(memory.len).unwrap_or(usize::MAX);
                    bytes = bytes.saturating_add(len);
                    let begun = (bytes <= limit.bytes).then(|| self.try_begin_read(memory));
                    match begun.flatten() {
                        Some((number, region)) => IncomingMessage::BeingRead {
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
            let must_wait = matches!(message, IncomingMessage::Rendezvous { .. });
            self.front.change(|queue| queue.push_back(message));
            has_any = true;
            if must_wait {
                break;
            }
        }
        if has_any {
            // A task that was woken for one of the moved messages may have found the inbox empty.
            self.messages.waiters().wake();
        }
    }

    /// Begins to read a long message from the peer's memory, without waiting. Returns the number of
    /// the request, and the region that the request writes to. Returns `None` if the read cannot
    /// begin, for example because the send queue is full. The program's receive of this message
    /// then tries the read again, and reports an error.
    fn try_begin_read(&self, memory: RemoteMemory) -> Option<(u64, LocalMr)> {
        let mut region = self.memory_for(memory).ok()?;
        let claim = claim_write(&mut region).ok()?;
        let work = Work::Read { remote: memory };
        let submitted = self.submit_held(work, (None, Some(claim.into())), UNAWAITED, None);
        submitted.ok().map(|number| (number, region))
    }

    /// Allocates local memory with the length of `memory`, into which a message is read. Fails if
    /// the length exceeds the message limit.
    fn memory_for(&self, memory: RemoteMemory) -> Result<LocalMr> {
        let limit = self.settings.message_limit;
        let len = usize::try_from(memory.len).ok().filter(|&len| len <= limit);
        let Some(len) = len else {
            let reason = format!("{} bytes exceed the limit of {limit} bytes", memory.len);
            return Err(Error::invalid("message of the peer", reason));
        };
        let layout = Layout::from_size_align(len, 1)
            .map_err(|_| Error::invalid("message of the peer", "the length is too large"))?;
        self.device.alloc_local_mr_stale(layout)
    }

    /// Sends a control message of the kind `kind` to the peer, after waiting for a credit
    /// (permission to send) and for room in the send queue. Does not wait for the acknowledgement
    /// of the message.
    async fn post_control_frame(&self, kind: Kind) -> Result<()> {
        let credit = self.control_credit().await?;
        // Posted now, because the peer waits for the message and this runtime may not run again
        // soon.
        let how = (AwaitedBy::Nothing, PostTime::Now);
        self.submit_frame_when_possible(kind, Payload::Nothing, None, how)
            .await?;
        credit.spend();
        Ok(())
    }
}

impl IncomingMessage {
    /// Records that the RDMA read of this long message from the peer's memory has ended with
    /// `outcome`. Returns the message in its new state, or unchanged if the message was not being
    /// read.
    fn finish_read(self, outcome: Result<()>) -> Self {
        match self {
            Self::BeingRead {
                id,
                region,
                immediate,
                ..
            } => Self::WasRead {
                id,
                outcome: outcome.map(|()| region),
                immediate,
            },
            other => other,
        }
    }
}

/// Guard of a long message that is being received. If the receive future is dropped before it
/// returns the message, the guard puts the message back, and the next receive continues with it.
struct RequeueOnDrop<'c> {
    connection: &'c Connection,
    message: Option<IncomingMessage>,
}

impl Drop for RequeueOnDrop<'_> {
    fn drop(&mut self) {
        if let Some(message) = self.message.take() {
            let connection = self.connection;
            connection.front.change(|queue| queue.push_front(message));
            connection.messages.waiters().wake();
        }
    }
}
