//! [`Outbox`]: the frames of a connection that wait to be sent.
//!
//! Frames are encoded into the open batch, which becomes one message. A batch is sent when it is
//! full, at once if its caller asks for that, or by the flusher at the end of a turn of the
//! scheduler.

mod batch;
mod flusher;
mod long;

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::{Mutex, MutexGuard};
use tokio::sync::Notify;

pub(crate) use self::batch::{BATCH, Batch, ItemHeader};
pub(crate) use self::long::send_long;
use crate::codec::{CodecError, Encodable};
use crate::error::Error;
use crate::link::Link;
use crate::payload::Buffer;
use crate::status::Status;
use crate::wire::Header;

/// Number of frames with which a batch is sent before the end of the turn. The other end then
/// handles them while this end makes further ones. Otherwise the two ends would take turns.
const ENOUGH: u16 = 32;

/// Number of bytes in full batches above which an end takes no more work that adds frames.
const CROWDED: usize = 256 << 10;

/// Number of bytes of long frames, each sent by itself, above which an end takes no more work that
/// adds frames.
const LONG_CROWDED: usize = 16 << 20;

/// Frames that wait to be sent, and the transport that sends them.
#[derive(Debug)]
pub(crate) struct Outbox {
    state: Mutex<State>,
    /// Set while more than [`CROWDED`] or [`LONG_CROWDED`] bytes wait.
    is_crowded: AtomicBool,
    /// Notification of the flusher.
    work: Notify,
    /// Notification of those who wait for room or for the end of all frames.
    drained: Notify,
}

#[derive(Debug)]
struct State {
    /// `None` once the connection has ended.
    link: Option<Arc<Link>>,
    open: Option<Batch>,
    queue: VecDeque<Batch>,
    /// Number of bytes of the batches in `queue`, and of the batch that the flusher is sending.
    queued: usize,
    /// Number of bytes of the long frames that wait or are being sent, each by itself.
    long: usize,
    /// Buffers to be used again, the one that was sent first at the front.
    spare: VecDeque<Buffer>,
    /// Set once the flusher was notified, until it runs.
    is_scheduled: bool,
    /// Set while the flusher waits for the transport, so that no batch overtakes another.
    is_sending: bool,
    sent: Sent,
}

/// Numbers of the frames and messages that one end of a connection has sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct Sent {
    /// Number of frames: requests or responses, items of streams, credits and cancellations.
    pub frames: u64,
    /// Number of messages that carried these frames: how often the transport was used.
    pub messages: u64,
}

/// Time at which an appended frame is sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Leaves {
    /// With the next flush, which the caller must request.
    WithFlush,
    /// At the end of this turn of the scheduler.
    AtTurnEnd,
}

/// Result of [`Outbox::append`].
#[derive(Debug)]
pub(crate) enum Placed {
    /// The frame is part of a batch.
    Batched,
    /// The frame is longer than a batch: a message of its own, to be sent by [`send_long`].
    Long(Batch),
}

/// Reason why a frame was not placed.
#[derive(Debug)]
pub(crate) enum Unplaced {
    Codec(CodecError),
    TooLarge { len: usize, limit: usize },
    Transport(Error),
}

impl Unplaced {
    /// Returns the error of a caller whose request or item was not placed.
    pub(crate) fn into_error(self) -> Error {
        match self {
            Self::Codec(error) => Error::Encode(error),
            Self::TooLarge { len, limit } => Error::TooLarge { len, limit },
            Self::Transport(error) => error,
        }
    }

    /// Returns the status that replaces a response that was not placed.
    pub(crate) fn into_status(self) -> Status {
        match self {
            Self::Codec(error) => Status::BadResponse(error.to_string().into()),
            Self::TooLarge { len, limit } => Status::TooLarge {
                len: len as u64,
                limit: limit as u64,
            },
            Self::Transport(error) => Status::BadResponse(error.to_string().into()),
        }
    }
}

impl Outbox {
    pub(crate) fn new(link: Link) -> Self {
        Self {
            state: Mutex::new(State {
                link: Some(Arc::new(link)),
                open: None,
                queue: VecDeque::new(),
                queued: 0,
                long: 0,
                spare: VecDeque::new(),
                is_scheduled: false,
                is_sending: false,
                sent: Sent::default(),
            }),
            is_crowded: AtomicBool::new(false),
            work: Notify::new(),
            drained: Notify::new(),
        }
    }

    /// Returns the numbers of frames and messages sent so far.
    pub(crate) fn counts(&self) -> Sent {
        self.state.lock().sent
    }

    /// Returns the transport, unless the connection has ended.
    pub(crate) fn link(&self) -> Option<Arc<Link>> {
        self.state.lock().link.clone()
    }

    /// Appends a frame to the open batch. `limit` is the maximum length of a message.
    pub(crate) fn append(
        &self,
        header: &Header<'_>,
        body: &(impl Encodable + ?Sized),
        limit: usize,
        leaves: Leaves,
    ) -> Result<Placed, Unplaced> {
        let push = |batch: &mut Batch| batch.push(header, body);
        // A statement of its own, after which the lock is free.
        let placed = self.begin().place(push, leaves)?;
        match placed {
            Some(_) => Ok(Placed::Batched),
            None => self.place_alone(header, body, limit).map(Placed::Long),
        }
    }

    /// Locks the open batch, for frames that are appended one after the other.
    pub(crate) fn begin(&self) -> Appending<'_> {
        Appending {
            outbox: self,
            state: self.state.lock(),
        }
    }

    /// Encodes a frame that is longer than a batch, to be sent by [`send_long`].
    pub(crate) fn place_alone(
        &self,
        header: &Header<'_>,
        body: &(impl Encodable + ?Sized),
        limit: usize,
    ) -> Result<Batch, Unplaced> {
        let link = self.link().ok_or_else(|| Unplaced::Transport(ended()))?;
        Batch::of_one(&link, header, body, limit)
    }

    /// Appends a frame without a body, to be sent at the end of the turn.
    pub(crate) fn append_bare(&self, header: &Header<'_>) -> Result<(), Error> {
        match self.append(header, &[][..], BATCH, Leaves::AtTurnEnd) {
            Ok(_) => Ok(()),
            Err(unplaced) => Err(unplaced.into_error()),
        }
    }

    /// Sends everything that the transport accepts without waiting. The flusher sends the rest.
    pub(crate) fn flush(&self) -> Result<(), Error> {
        let mut state = self.state.lock();
        state.close_batch();
        self.send_queue(&mut state)
    }

    /// Notifies the flusher, which sends everything at the end of this turn of the scheduler.
    pub(crate) fn schedule(&self) {
        let mut state = self.state.lock();
        self.notify_flusher(&mut state);
    }

    fn notify_flusher(&self, state: &mut State) {
        if !state.is_scheduled {
            state.is_scheduled = true;
            self.work.notify_one();
        }
    }

    /// Hands the batches of the queue to the transport until it accepts no more.
    fn send_queue(&self, state: &mut State) -> Result<(), Error> {
        let Some(link) = state.link.clone() else {
            return Err(ended());
        };
        if state.is_sending {
            self.update_crowded(state);
            return Ok(());
        }
        while let Some(batch) = state.queue.front_mut() {
            if !link.try_send(batch)? {
                self.notify_flusher(state);
                break;
            }
            if let Some(batch) = state.queue.pop_front() {
                self.sent(state, &link, batch);
            }
        }
        self.update_crowded(state);
        Ok(())
    }

    /// Records whether too many bytes wait. Notifies those who wait for room once there is some.
    fn update_crowded(&self, state: &State) {
        let is_crowded = state.queued > CROWDED || state.long > LONG_CROWDED;
        if self.is_crowded.swap(is_crowded, Ordering::AcqRel) && !is_crowded {
            self.drained.notify_waiters();
        }
    }

    /// Counts a batch as sent and keeps its buffer.
    fn sent(&self, state: &mut State, link: &Link, batch: Batch) {
        state.sent.frames += u64::from(batch.frames());
        state.sent.messages += 1;
        let before = state.queued;
        state.queued -= batch.len().min(before);
        batch.recycle(link, &mut state.spare);
        self.update_crowded(state);
        let is_short_again = before > CROWDED && state.queued <= CROWDED;
        if state.queue.is_empty() || is_short_again {
            self.drained.notify_waiters();
        }
    }

    /// Returns whether there is room for the frames of more work.
    pub(crate) fn has_room(&self) -> bool {
        !self.is_crowded.load(Ordering::Acquire)
    }

    /// Returns the number of bytes of the full batches that wait to be sent.
    pub(crate) fn queued(&self) -> usize {
        self.state.lock().queued
    }

    /// Waits until there is room for the frames of more work, or the connection has ended.
    pub(crate) async fn room(&self) {
        if !self.has_room() {
            self.wait_until(|| self.has_room()).await;
        }
    }

    /// Waits until the transport has accepted everything, or the connection has ended.
    pub(crate) async fn sent_all(&self) {
        self.schedule();
        let is_done = || {
            let state = self.state.lock();
            state.link.is_none() || (state.open.is_none() && state.queued == 0)
        };
        self.wait_until(is_done).await;
    }

    async fn wait_until(&self, mut is_done: impl FnMut() -> bool) {
        loop {
            let mut drained = std::pin::pin!(self.drained.notified());
            drained.as_mut().enable();
            if is_done() {
                return;
            }
            drained.await;
        }
    }

    /// Ends the transport. Frames that are not sent are dropped.
    pub(crate) fn close(&self) {
        let (link, queue) = {
            let mut state = self.state.lock();
            state.open = None;
            state.queued = 0;
            state.spare.clear();
            (state.link.take(), std::mem::take(&mut state.queue))
        };
        self.is_crowded.store(false, Ordering::Release);
        self.work.notify_one();
        self.drained.notify_waiters();
        drop((link, queue));
    }
}

/// Guard for appending frames to the open batch.
pub(crate) struct Appending<'o> {
    outbox: &'o Outbox,
    state: MutexGuard<'o, State>,
}

impl Appending<'_> {
    /// Appends an item of a stream, to be sent at the end of the turn. Consecutive items of a
    /// stream share a frame. Returns the length of the item, or `None` if a batch has no room for
    /// it.
    pub(crate) fn place_item(
        &mut self,
        header: &ItemHeader,
        body: &(impl Encodable + ?Sized),
    ) -> Result<Option<usize>, Unplaced> {
        self.place(|batch| batch.push_item(header, body), Leaves::AtTurnEnd)
    }

    /// Encodes a frame into the open batch with `push`, or into a new batch if it does not fit.
    /// Returns the length of its body, or `None` if a batch has no room for it.
    fn place(
        &mut self,
        push: impl Fn(&mut Batch) -> Result<Option<usize>, CodecError>,
        leaves: Leaves,
    ) -> Result<Option<usize>, Unplaced> {
        let state = &mut *self.state;
        // At most two attempts: the second one has a whole batch.
        loop {
            let batch = state.open_batch().map_err(Unplaced::Transport)?;
            if let Some(len) = push(batch).map_err(Unplaced::Codec)? {
                if batch.frames() >= ENOUGH {
                    state.close_batch();
                    self.outbox.send_queue(state).map_err(Unplaced::Transport)?;
                } else if leaves == Leaves::AtTurnEnd {
                    self.outbox.notify_flusher(state);
                }
                return Ok(Some(len));
            }
            if batch.is_empty() {
                return Ok(None);
            }
            state.close_batch();
            self.outbox.send_queue(state).map_err(Unplaced::Transport)?;
        }
    }
}

impl State {
    /// Returns the open batch, after opening one if there is none.
    fn open_batch(&mut self) -> Result<&mut Batch, Error> {
        let Some(link) = &self.link else {
            return Err(ended());
        };
        match &mut self.open {
            Some(batch) => Ok(batch),
            none => Ok(none.insert(Batch::open(link, &mut self.spare)?)),
        }
    }

    /// Moves the open batch, if it has frames, to the queue.
    fn close_batch(&mut self) {
        if let Some(batch) = self.open.take_if(|batch| !batch.is_empty()) {
            self.queued += batch.len();
            self.queue.push_back(batch.finish());
        }
    }
}

/// Returns the error of frames for a connection that has ended, whose reason the connection knows.
fn ended() -> Error {
    Error::disconnected("it was closed")
}
