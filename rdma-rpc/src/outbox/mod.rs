//! [`Outbox`]: the send queue of a connection.
//!
//! Frames are encoded into the open batch. A batch is sent as one message: when it is full, when
//! the caller flushes the outbox, or by the flusher, a task of the connection. The flusher runs at
//! the *end of a turn of the scheduler*, which is when the runtime has run the other tasks that
//! were ready. Therefore frames of several tasks share a message.

mod batch;
mod flusher;
mod long;

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::{Mutex, MutexGuard};
use tokio::sync::Notify;

pub(crate) use self::batch::{Batch, ItemHeader, MAX_BATCH_LEN};
pub(crate) use self::long::send_long;
use crate::codec::{CodecError, Encodable};
use crate::error::Error;
use crate::link::Link;
use crate::payload::Buffer;
use crate::status::Status;
use crate::wire::Header;

/// Number of frames in a message at which the message is sent at once, so that the peer can handle
/// these frames while this end produces more. With fewer frames, the message is sent only after the
/// other ready tasks have run. Applies only if no earlier message waits or is being sent.
const EARLY_SEND_FRAMES: u16 = 32;

/// Maximum number of bytes in complete messages that wait to be sent. Above this limit, new calls
/// and stream items wait too, which limits the memory of the queue. Large enough that the transport
/// has data to send while calls wait.
const MAX_QUEUED: usize = 256 << 10;

/// Maximum number of bytes of long frames (each a separate message) that wait to be sent. Above
/// this limit, new calls and stream items wait, which limits the memory. Higher than
/// [`MAX_QUEUED`], because a single long frame has up to 16 MiB by default.
const MAX_LONG: usize = 16 << 20;

/// Send queue of a connection. Collects frames in batches (messages with several frames), which the
/// transport sends.
#[derive(Debug)]
pub(crate) struct Outbox {
    state: Mutex<State>,
    /// Set while more than [`MAX_QUEUED`] or [`MAX_LONG`] bytes wait to be sent.
    is_full: AtomicBool,
    /// Wakes the flusher, which then sends the batches.
    flush_notify: Notify,
    /// Wakes the tasks that wait for room, or for the sending of all frames.
    drained: Notify,
}

#[derive(Debug)]
/// State of an [`Outbox`] under its lock: the transport, the batches and the free buffers.
struct State {
    /// Transport, or `None` once the connection has ended.
    link: Option<Arc<Link>>,
    /// Batch to which frames are appended.
    open: Option<Batch>,
    /// Complete batches that wait to be sent.
    queue: VecDeque<Batch>,
    /// Number of bytes of the batches in `queue` and of the batch that the flusher is sending.
    queued: usize,
    /// Part of `queued` without the excess of long batches: each batch counts with at most
    /// [`MAX_BATCH_LEN`] bytes.
    queued_short: usize,
    /// Number of bytes of the long frames that wait or are being sent.
    long: usize,
    /// Free buffers. The buffer that was sent first is at the front.
    spare: VecDeque<Buffer>,
    /// Set from the notification of the flusher until the flusher runs.
    is_scheduled: bool,
    /// Set while the flusher waits for the transport. No other batch may be sent then, because
    /// batches must stay in order.
    is_sending: bool,
    /// Numbers of frames and messages sent so far.
    sent: SendCounts,
}

/// Numbers of frames and messages that one end of a connection has sent, which show how many frames
/// share a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct SendCounts {
    /// Number of frames. A frame is a request, a response, a group of stream items, or a control
    /// message such as a cancellation.
    pub frames: u64,
    /// Number of messages that contained these frames. Each message is one send operation of the
    /// transport.
    pub messages: u64,
}

/// Time at which an appended frame is sent. An early time reduces the latency. A later time lets
/// more frames share a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SendAt {
    /// At the next flush, which the caller must request.
    NextFlush,
    /// At the end of this turn of the scheduler: after the other ready tasks have run.
    TurnEnd,
}

/// Result of appending a frame to the outbox (the send queue of a connection). The frame is either
/// in a batch (a message with several frames), which the outbox sends, or in a separate message,
/// which the caller must send.
#[derive(Debug)]
pub(crate) enum Appended {
    /// The frame was appended to a batch.
    Batched,
    /// The frame is longer than a batch. The caller must send this separate message by
    /// [`send_long`].
    Long(Box<Batch>),
}

/// Reason for which a frame was not appended to the outbox, the send queue of a connection.
#[derive(Debug)]
pub(crate) enum AppendError {
    /// The body cannot be encoded.
    Codec(CodecError),
    /// The message would have `len` bytes, and `limit` is the maximum.
    TooLarge { len: usize, limit: usize },
    /// The connection has ended, or memory cannot be allocated.
    Transport(Error),
}

impl AppendError {
    /// Converts the reason for which a request or stream item could not be queued for sending to
    /// the error that the program gets.
    pub(crate) fn into_error(self) -> Error {
        match self {
            Self::Codec(error) => Error::Encode(error),
            Self::TooLarge { len, limit } => Error::TooLarge { len, limit },
            Self::Transport(error) => error,
        }
    }

    /// Converts the reason for which a response could not be queued for sending to the status that
    /// the caller gets instead.
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
                queued_short: 0,
                long: 0,
                spare: VecDeque::new(),
                is_scheduled: false,
                is_sending: false,
                sent: SendCounts::default(),
            }),
            is_full: AtomicBool::new(false),
            flush_notify: Notify::new(),
            drained: Notify::new(),
        }
    }

    /// Returns the numbers of frames and of messages that this end of the connection has sent so
    /// far.
    pub(crate) fn counts(&self) -> SendCounts {
        self.state.lock().sent
    }

    /// Returns the transport of the connection, or `None` once the connection has ended.
    pub(crate) fn link(&self) -> Option<Arc<Link>> {
        self.state.lock().link.clone()
    }

    /// Appends a frame to the open batch. A frame that is longer than a batch is returned as a
    /// separate message, which the caller must send. `limit` is the maximum length of such a frame
    /// in bytes.
    pub(crate) fn append(
        &self,
        header: &Header<'_>,
        body: &(impl Encodable + ?Sized),
        limit: usize,
        send_at: SendAt,
    ) -> Result<Appended, AppendError> {
        let push = |batch: &mut Batch| batch.push(header, body);
        // A separate statement, so that the lock is released before `encode_long`.
        let appended = self.lock_batch().append_with(push, send_at)?;
        match appended {
            Some(_) => Ok(Appended::Batched),
            None => self.encode_long(header, body, limit).map(Appended::Long),
        }
    }

    /// Locks the outbox (the send queue of the connection), in order to append several items of a
    /// stream in sequence.
    pub(crate) fn lock_batch(&self) -> OpenBatch<'_> {
        OpenBatch {
            outbox: self,
            state: self.state.lock(),
        }
    }

    /// Encodes `header` and `body` as a separate message. Called for a frame that is too long to
    /// share a message with other frames. The caller must send the message by [`send_long`]. Fails
    /// if the message would have more than `limit` bytes.
    pub(crate) fn encode_long(
        &self,
        header: &Header<'_>,
        body: &(impl Encodable + ?Sized),
        limit: usize,
    ) -> Result<Box<Batch>, AppendError> {
        let link = self.link().ok_or_else(|| AppendError::Transport(ended()))?;
        Batch::new_long(&link, header, body, limit).map(Box::new)
    }

    /// Appends a frame without a body, such as a notification to the peer. The frame is sent after
    /// the other ready tasks have run.
    pub(crate) fn append_empty(&self, header: &Header<'_>) -> Result<(), Error> {
        match self.append(header, &[][..], MAX_BATCH_LEN, SendAt::TurnEnd) {
            Ok(_) => Ok(()),
            Err(error) => Err(error.into_error()),
        }
    }

    /// Completes the message to which frames are being appended, and sends all complete messages
    /// that the transport accepts without waiting. The background task of this outbox sends the
    /// rest.
    pub(crate) fn flush(&self) -> Result<(), Error> {
        let mut state = self.state.lock();
        state.close_batch();
        self.send_queue(&mut state)
    }

    /// Notifies the background task of this outbox, which sends all queued messages after the other
    /// ready tasks have run.
    pub(crate) fn schedule(&self) {
        let mut state = self.state.lock();
        self.notify_flusher(&mut state);
    }

    /// Notifies the task that sends the queued messages. Does nothing if the task has not yet
    /// handled an earlier notification. `state` is the locked state of this outbox.
    fn notify_flusher(&self, state: &mut State) {
        if !state.is_scheduled {
            state.is_scheduled = true;
            self.flush_notify.notify_one();
        }
    }

    /// Passes the queued messages to the transport, oldest first, until the transport accepts no
    /// more without waiting. The flusher (the sending task) then sends the remaining messages.
    /// Passes no message while the flusher is sending a message, because messages must stay in
    /// order. Fails if the transport fails, or if the connection has ended.
    fn send_queue(&self, state: &mut State) -> Result<(), Error> {
        let Some(link) = state.link.clone() else {
            return Err(ended());
        };
        if state.is_sending {
            self.update_full(state);
            return Ok(());
        }
        while let Some(batch) = state.queue.front_mut() {
            if !link.try_send(batch)? {
                self.notify_flusher(state);
                break;
            }
            if let Some(batch) = state.queue.pop_front() {
                self.count_sent(state, &link, batch);
            }
        }
        self.update_full(state);
        Ok(())
    }

    /// Updates the flag `is_full`, which is set while too many bytes wait to be sent. New calls and
    /// stream items wait while the flag is set, and are woken when the flag is cleared. `state` is
    /// the locked state of this outbox. After the end of the connection the flag stays clear, so
    /// that no task waits.
    fn update_full(&self, state: &State) {
        let is_full = state.link.is_some() && (state.queued > MAX_QUEUED || state.long > MAX_LONG);
        if self.is_full.swap(is_full, Ordering::AcqRel) && !is_full {
            self.drained.notify_waiters();
        }
    }

    /// Counts the message `batch` as sent, and keeps its buffer for a later message. Wakes the
    /// tasks that wait until all messages were sent, or until fewer bytes wait to be sent.
    fn count_sent(&self, state: &mut State, link: &Link, batch: Batch) {
        state.sent.frames += u64::from(batch.frames());
        state.sent.messages += 1;
        let before = state.queued;
        state.queued -= batch.len().min(before);
        state.queued_short -= batch.short_len().min(state.queued_short);
        batch.recycle(link, &mut state.spare);
        self.update_full(state);
        let is_short_again = before > MAX_QUEUED && state.queued <= MAX_QUEUED;
        if state.queue.is_empty() || is_short_again {
            self.drained.notify_waiters();
        }
    }

    /// Returns `true` if frames of further calls can be appended now. Returns `false` while more
    /// bytes wait to be sent than [`MAX_QUEUED`] and [`MAX_LONG`] allow.
    pub(crate) fn has_room(&self) -> bool {
        !self.is_full.load(Ordering::Acquire)
    }

    /// Returns the number of bytes of the complete messages that wait or are being sent. A message
    /// with a single long frame counts with at most the maximum length of a batch
    /// ([`MAX_BATCH_LEN`]).
    pub(crate) fn queued_in_batches(&self) -> usize {
        self.state.lock().queued_short
    }

    /// Waits until there is room for the frames of further calls, or the connection has ended.
    pub(crate) async fn wait_for_room(&self) {
        if !self.has_room() {
            self.wait_until(|| self.has_room()).await;
        }
    }

    /// Waits until the transport has accepted all frames, or the connection has ended.
    pub(crate) async fn wait_until_sent(&self) {
        self.schedule();
        let is_done = || {
            let state = self.state.lock();
            // An open batch without frames is never sent.
            let is_open_empty = state.open.as_ref().is_none_or(Batch::is_empty);
            state.link.is_none() || (is_open_empty && state.queued == 0)
        };
        self.wait_until(is_done).await;
    }

    /// Waits until `is_done` returns `true`. Calls `is_done` immediately, and again whenever all
    /// complete batches were sent, the number of waiting bytes has fallen below a limit, or the
    /// connection has ended.
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

    /// Closes this send queue, because the connection has ended: drops the transport and all unsent
    /// messages. Wakes all tasks that wait until fewer bytes wait to be sent.
    pub(crate) fn close(&self) {
        let (link, queue) = {
            let mut state = self.state.lock();
            state.open = None;
            state.queued = 0;
            state.queued_short = 0;
            state.spare.clear();
            (state.link.take(), std::mem::take(&mut state.queue))
        };
        self.is_full.store(false, Ordering::Release);
        self.flush_notify.notify_one();
        self.drained.notify_waiters();
        drop((link, queue));
    }
}

/// Lock guard of the outbox (the send queue of a connection), through which several frames are
/// appended to the open message without a frame of another task in between.
pub(crate) struct OpenBatch<'o> {
    outbox: &'o Outbox,
    state: MutexGuard<'o, State>,
}

impl OpenBatch<'_> {
    /// Appends an item of a stream to the message that is being filled. The message is sent after
    /// the other ready tasks have run. Returns the length of the encoded item in bytes, or `None`
    /// if the item is too long to share a message with others.
    pub(crate) fn append_item(
        &mut self,
        header: &ItemHeader,
        body: &(impl Encodable + ?Sized),
    ) -> Result<Option<usize>, AppendError> {
        self.append_with(|batch| batch.push_item(header, body), SendAt::TurnEnd)
    }

    /// Appends a frame to the message that is being filled, or to a new message if the frame does
    /// not fit. `push` must encode the frame into the message that it gets. `send_at` is the time
    /// at which the message is sent. Returns the length of the frame's encoded body in bytes, or
    /// `None` if the frame is too long to share a message.
    fn append_with(
        &mut self,
        push: impl Fn(&mut Batch) -> Result<Option<usize>, CodecError>,
        send_at: SendAt,
    ) -> Result<Option<usize>, AppendError> {
        let state = &mut *self.state;
        // At most two iterations: the second iteration has an empty batch.
        loop {
            let batch = state.open_batch().map_err(AppendError::Transport)?;
            if let Some(len) = push(batch).map_err(AppendError::Codec)? {
                let has_enough_frames = batch.frames() >= EARLY_SEND_FRAMES;
                if has_enough_frames && state.queue.is_empty() && !state.is_sending {
                    state.close_batch();
                    // The frame was appended. After an error the flusher tries again, and ends the
                    // connection if that fails, too.
                    if self.outbox.send_queue(state).is_err() {
                        self.outbox.notify_flusher(state);
                    }
                } else if send_at == SendAt::TurnEnd {
                    self.outbox.notify_flusher(state);
                }
                return Ok(Some(len));
            }
            if batch.is_empty() {
                return Ok(None);
            }
            state.close_batch();
            self.outbox
                .send_queue(state)
                .map_err(AppendError::Transport)?;
        }
    }
}

impl State {
    /// Returns the batch to which frames are appended, after creating it if necessary.
    fn open_batch(&mut self) -> Result<&mut Batch, Error> {
        let Some(link) = &self.link else {
            return Err(ended());
        };
        match &mut self.open {
            Some(batch) => Ok(batch),
            none => Ok(none.insert(Batch::open(link, &mut self.spare)?)),
        }
    }

    /// Completes the message that is being filled, and moves it to the queue of messages to be
    /// sent. Does nothing if the message is empty.
    fn close_batch(&mut self) {
        if let Some(batch) = self.open.take_if(|batch| !batch.is_empty()) {
            self.push(batch.finish());
        }
    }

    /// Adds a complete message to the queue of messages to be sent.
    fn push(&mut self, batch: Batch) {
        self.queued += batch.len();
        self.queued_short += batch.short_len();
        self.queue.push_back(batch);
    }
}

/// Returns the error for sending on a connection that has ended. The error does not contain the
/// actual reason, which only the connection stores.
fn ended() -> Error {
    Error::disconnected("the reason was not recorded")
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use rdma_async::RdmaBuilder;
    use tokio::time::timeout;

    use super::*;
    use crate::address::Address;
    use crate::link::{Encryption, Listener};

    #[tokio::test(start_paused = true)]
    async fn a_batch_without_frames_does_not_delay_the_wait_for_the_last_message() {
        let (address, transport) = (Address::memory(), RdmaBuilder::default());
        let listener = Listener::bind(&address, transport.clone()).await.unwrap();
        let encryption = Encryption::default();
        let link = Link::connect(&address, transport, &encryption).await;
        let outbox = Outbox::new(link.unwrap().0);
        // A frame that is too long for a batch leaves an open batch without frames.
        let body = vec![0; MAX_BATCH_LEN];
        let header = Header::Goodbye { status: 0 };
        let appended = outbox.append(&header, &body[..], 2 * MAX_BATCH_LEN, SendAt::NextFlush);
        assert!(matches!(appended, Ok(Appended::Long(_))));
        let waiting = timeout(Duration::from_secs(60), outbox.wait_until_sent());
        waiting.await.expect("nothing is left to be sent");
        drop(listener);
    }
}
