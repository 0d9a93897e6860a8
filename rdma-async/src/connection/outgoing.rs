//! Outgoing bytes of a stream: pieces that are sent when credits and room in the send queue are
//! available.
//!
//! A piece that fits into a receive of the peer is sent as a message. A longer piece is written
//! directly into the [ring](super::ring) of the peer. Until the peer advertises a ring, and for
//! regions of the application, a longer piece is sent by [rendezvous](super::rendezvous): the peer
//! reads the piece from this end's memory. The pieces are sent without a task of the application,
//! as soon as credits and room are available. An empty message marks the end of the stream.

use std::alloc::Layout;
use std::collections::VecDeque;
use std::io::IoSlice;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering, fence};

use parking_lot::Mutex;
use rdma_core::memory::LentMemory;

use super::Connection;
use super::credits::Credit;
use super::frame::{HEADER_LEN, Kind};
use super::messages::Payload;
use super::ring::SLOT_LEN;
use super::send_state::{NotAccepted, UNAWAITED};
use super::waiters::Waiters;
use crate::error::{Error, Result};
use crate::memory::{LocalMr, LocalMrReadAccess, LocalMrWriteAccess, claim_read};

/// Minimum length in bytes of a long write to a stream. A write that fits into one message is not
/// long. The bytes of a long write are written to the peer's [ring](super::ring), or read by the
/// peer ([rendezvous](super::rendezvous)). A shorter write is split into messages, because a
/// rendezvous takes an additional round trip.
pub(crate) const LONG_LEN: usize = 32 << 10;
/// Maximum length, in bytes, of a piece (buffer with bytes of a stream) that is copied from a
/// write. A longer write becomes several pieces, so that no large registered buffer is needed.
const MAX_PIECE_LEN: usize = 256 << 10;

/// Bytes of a stream that the program has written and that are not yet posted to the device. The
/// bytes are stored in pieces (buffers).
#[derive(Debug)]
pub(super) struct Outgoing {
    pieces: Mutex<Pieces>,
    /// Number of bytes in the pieces.
    bytes: AtomicUsize,
    /// Set while a piece or the end of the stream is queued.
    has_any: AtomicBool,
    /// Set once pieces were dropped, or cancelled in the send queue, without being posted, because
    /// the connection ended.
    has_lost: AtomicBool,
    /// Number of accepted bytes at which writers wait. Bytes count until the peer has read them. A
    /// slot of the peer's ring counts as a whole, until the peer has returned the slot.
    limit: usize,
    /// Tasks that wait until the stream accepts more bytes.
    room: Waiters,
}

/// Pieces (buffers with bytes) of a stream that are not yet posted, and the state of the stream's
/// end.
#[derive(Debug, Default)]
struct Pieces {
    queue: VecDeque<LocalMr>,
    /// Piece to which further writes of this turn are appended, and the number of bytes written to
    /// it.
    open: Option<(LocalMr, usize)>,
    /// Set while the open piece must be sent as soon as all queued pieces were sent. Until then,
    /// further writes are appended to it, so that each queued piece is full.
    is_open_due: bool,
    end: StreamEnd,
}

/// State of the end of a stream, which its writer marks by an empty message: not requested, queued,
/// or sent.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
enum StreamEnd {
    /// The stream accepts more bytes.
    #[default]
    Open,
    /// The end of the stream is queued behind the pieces.
    Waiting,
    Sent,
}

impl Outgoing {
    fn new(limit: usize) -> Self {
        Self {
            pieces: Mutex::default(),
            bytes: AtomicUsize::new(0),
            has_any: AtomicBool::new(false),
            has_lost: AtomicBool::new(false),
            limit,
            room: Waiters::default(),
        }
    }

    /// Returns whether all accepted bytes of the stream, and the end of the stream if it was
    /// requested, were posted to the device.
    pub(super) fn is_empty(&self) -> bool {
        !self.has_any.load(Ordering::Acquire)
    }

    /// Returns the list of the tasks that wait until the stream accepts more bytes.
    pub(super) fn waiters(&self) -> &Waiters {
        &self.room
    }

    /// Drops the bytes of the stream that are not yet posted, because the connection has ended, and
    /// records that these bytes are lost. The caller sets `has_cancelled` if pieces of the stream
    /// were cancelled in the send queue: these bytes are lost too. Drops nothing while a thread,
    /// possibly this one, holds the lock to post bytes. The bytes then stay until the connection is
    /// dropped.
    pub(super) fn clear(&self, has_cancelled: bool) {
        if has_cancelled {
            self.has_lost.store(true, Ordering::Release);
        }
        let Some(mut pieces) = self.pieces.try_lock() else {
            return;
        };
        if !pieces.is_empty() {
            self.has_lost.store(true, Ordering::Release);
        }
        let dropped = std::mem::take(&mut *pieces);
        drop(pieces);
        self.bytes.store(0, Ordering::Relaxed);
        self.has_any.store(false, Ordering::Release);
        drop(dropped);
    }
}

impl Pieces {
    fn is_empty(&self) -> bool {
        self.queue.is_empty() && self.open.is_none()
    }

    /// Ends the buffer to which the latest writes to the stream were copied, and appends the buffer
    /// to the queue of buffers to send. Later writes are copied to a new buffer. Does nothing if no
    /// such buffer exists.
    fn close(&mut self) {
        if let Some((piece, len)) = self.open.take() {
            self.queue.push_back(piece.truncated(len));
        }
    }
}

impl Connection {
    /// Makes this connection a stream of bytes: creates the buffer of outgoing bytes, limited by
    /// `RdmaBuilder::stream_buffer`.
    pub(crate) fn begin_stream(&self) {
        let limit = self.settings.stream_buffer;
        self.outgoing.get_or_init(|| Outgoing::new(limit));
    }

    /// Accepts bytes that the program writes to a stream, and posts or buffers them. Returns the
    /// number of accepted bytes, which is less than the sum of `slices` if the buffer gets full.
    /// Returns `None` if the buffer is full and the writer must wait.
    pub(crate) fn accept_bytes(&self, slices: &[IoSlice<'_>]) -> Result<Option<usize>> {
        self.check_open()?;
        let outgoing = self.outgoing();
        let len = slices.iter().map(|slice| slice.len()).sum();
        if len == 0 {
            return Ok(Some(0));
        }
        if len >= LONG_LEN && self.peer_ring.get().is_some() && !self.sender.lock().is_idle() {
            // A device in software writes a piece to the ring when the piece is posted, if the peer
            // has acknowledged the piece before. Polling delivers the acknowledgement.
            self.shard.poll();
        }
        let mut pieces = outgoing.pieces.lock();
        if !self.has_outgoing_room() {
            return Ok(None);
        }
        // Bytes are sent immediately if no request is in flight, and otherwise at the end of the
        // turn.
        if len <= self.peer_payload && pieces.is_empty() && self.sender.lock().is_idle() {
            match self.try_send_bytes(slices, len) {
                Ok(true) => return Ok(Some(len)),
                Ok(false) => {}
                // An error ends the stream, as it does for bytes that are posted later.
                Err(error) => {
                    drop(pieces);
                    self.fail(error.clone());
                    return Err(error);
                }
            }
        }
        let had_open = pieces.open.is_some();
        let mut accepted = 0;
        for slice in slices {
            let added = match self.add_bytes(outgoing, &mut pieces, slice) {
                Err(error) if accepted == 0 => return Err(error),
                added => added.unwrap_or(0),
            };
            accepted += added;
            // Room may become available at any time. Bytes of the next slice must not follow an
            // incomplete slice.
            if added < slice.len() {
                break;
            }
        }
        let must_flush = !pieces.queue.is_empty();
        let is_new = !had_open && pieces.open.is_some();
        drop(pieces);
        if must_flush {
            self.flush_outgoing();
        }
        // At the end of the turn, `post_staged` closes the open piece and posts it.
        if is_new && !self.shard.flush_at_turn_end(self) {
            self.post_staged();
        }
        Ok(Some(accepted))
    }

    /// Accepts a region as the next bytes of a stream, without copying. Returns the region if the
    /// buffer of the stream is full, so that the writer must wait.
    pub(crate) fn accept_region(&self, region: LocalMr) -> Result<Option<LocalMr>> {
        self.check_open()?;
        let outgoing = self.outgoing();
        if region.length() == 0 {
            return Ok(None);
        }
        {
            let mut pieces = outgoing.pieces.lock();
            if !self.has_outgoing_room() {
                return Ok(Some(region));
            }
            pieces.close();
            outgoing.count_added(region.length());
            pieces.queue.push_back(region);
        }
        self.flush_outgoing();
        Ok(None)
    }

    /// Marks the end of the stream after the bytes that the program has written, and posts the
    /// buffered bytes now.
    pub(crate) fn end_stream(&self) {
        let outgoing = self.outgoing();
        {
            let mut pieces = outgoing.pieces.lock();
            if pieces.end != StreamEnd::Open || self.failure().is_some() {
                return;
            }
            pieces.end = StreamEnd::Waiting;
            outgoing.has_any.store(true, Ordering::Release);
        }
        self.post_staged();
    }

    /// Returns the error that ended the connection if accepted bytes of the stream were lost: the
    /// connection has ended before these bytes were posted to the device. Otherwise returns `None`.
    pub(crate) fn lost_bytes(&self) -> Option<&Error> {
        let error = self.failure()?;
        let outgoing = self.outgoing();
        let has_lost =
            outgoing.has_lost.load(Ordering::Acquire) || !outgoing.pieces.lock().is_empty();
        has_lost.then_some(error)
    }

    /// Waits until the program can write more bytes to the stream, or until the connection has
    /// ended.
    pub(crate) async fn wait_for_outgoing_room(&self) {
        let attempt = || (self.failure().is_some() || self.has_outgoing_room()).then_some(());
        let _waiting = self.shard.waiting();
        self.shard.wake_driver();
        self.outgoing().room.wait_for(attempt).await;
    }

    /// Returns the number of accepted bytes that are not posted, or that the peer has not yet read
    /// from this end's memory. Returns 0 if the connection is not a stream.
    pub(super) fn unsent_bytes(&self) -> usize {
        self.outgoing.get().map_or(0, |outgoing| {
            outgoing.bytes.load(Ordering::Relaxed) + self.replies.lent_bytes()
        })
    }

    /// Posts the queued bytes of the stream, until the send queue is full or the peer accepts no
    /// further messages.
    ///
    /// Must be called when the send queue has room again, or the peer accepts messages again. The
    /// caller must not hold the lock of the send queue.
    #[inline]
    pub(super) fn flush_outgoing(&self) {
        if let Some(outgoing) = self.outgoing.get() {
            self.flush_pieces(outgoing, false);
        }
    }

    /// Posts all bytes of the stream that wait to be sent, while credits (permissions to send) and
    /// room in the send queue are available. Includes the last buffer even if the buffer is not
    /// full.
    #[inline]
    pub(super) fn flush_outgoing_and_open(&self) {
        if let Some(outgoing) = self.outgoing.get() {
            self.flush_pieces(outgoing, true);
        }
    }

    /// Returns the buffer of outgoing bytes of the stream. Panics if the connection is used for
    /// messages instead of a stream.
    fn outgoing(&self) -> &Outgoing {
        self.outgoing
            .get()
            .expect("called only after `begin_stream`")
    }

    /// Returns whether the program can write more bytes to the stream. The number of bytes in
    /// transit must be below the buffer size, and the peer's ring, if there is one, must have a
    /// free slot. Bytes are in transit until they are posted. Bytes that the peer reads from this
    /// end's memory (rendezvous) are in transit until the peer has read them. A slot of the peer's
    /// ring that is in use counts completely.
    fn has_outgoing_room(&self) -> bool {
        let in_ring = match self.peer_ring.get() {
            Some(ring) if !ring.has_free() => return false,
            Some(ring) => ring.bytes_in_use(),
            None => 0,
        };
        self.unsent_bytes() + in_ring < self.outgoing().limit
    }

    /// Sends the `len` bytes of `slices` as one message. Returns `false`, and sends nothing, if the
    /// peer has no free receive for the message, the send queue is full, or no memory is available.
    fn try_send_bytes(&self, slices: &[IoSlice<'_>], len: usize) -> Result<bool> {
        if let [slice] = slices
            && HEADER_LEN + len <= self.inline
        {
            let Some(credit) = self.try_data_credit() else {
                return Ok(false);
            };
            return self.try_submit(credit, Kind::Data, Payload::Copied(slice));
        }
        let Ok(mut region) = self.alloc_piece(len) else {
            // The caller allocates memory again, and reports the error.
            return Ok(false);
        };
        let mut rest = region.as_mut_slice();
        for slice in slices {
            let (front, back) = rest.split_at_mut(slice.len());
            front.copy_from_slice(slice);
            rest = back;
        }
        self.try_begin_send(&region, None, UNAWAITED)
            .map(|number| number.is_some())
    }

    /// Copies bytes of the program into the peer's ring, or into pieces (pooled buffers that are
    /// sent later). Ends when all bytes are copied, the buffer of the stream is full, or no memory
    /// is available. Returns the number of copied bytes, or an error if no byte was copied.
    fn add_bytes(
        &self,
        outgoing: &Outgoing,
        pieces: &mut Pieces,
        mut bytes: &[u8],
    ) -> Result<usize> {
        let before = bytes.len();
        while !bytes.is_empty() && self.has_outgoing_room() {
            let len = if bytes.len() >= LONG_LEN && bytes.len() > self.peer_payload {
                let written = match self.write_to_ring(outgoing, pieces, bytes) {
                    Err(_) if bytes.len() < before => break,
                    written => written?,
                };
                if written > 0 {
                    bytes = &bytes[written..];
                    continue;
                }
                let len = bytes.len().min(MAX_PIECE_LEN);
                let mut piece = match self.alloc_piece(len) {
                    Err(_) if bytes.len() < before => break,
                    piece => piece?,
                };
                piece.as_mut_slice().copy_from_slice(&bytes[..len]);
                pieces.close();
                pieces.queue.push_back(piece);
                len
            } else {
                let (piece, filled) = match &mut pieces.open {
                    Some(open) => open,
                    empty => match self.alloc_piece(self.peer_payload) {
                        Err(_) if bytes.len() < before => break,
                        piece => empty.insert((piece?, 0)),
                    },
                };
                let len = bytes.len().min(self.peer_payload - *filled);
                piece.as_mut_slice()[*filled..][..len].copy_from_slice(&bytes[..len]);
                *filled += len;
                if *filled == self.peer_payload {
                    pieces.close();
                }
                len
            };
            outgoing.count_added(len);
            bytes = &bytes[len..];
        }
        Ok(before - bytes.len())
    }

    /// Sends all queued bytes of the stream, and then writes the first bytes of `bytes`, at most
    /// [`SLOT_LEN`], into a free slot of the peer's ring. Returns the number of bytes written from
    /// `bytes`, or 0 if this is not possible now, for example because the ring or the send queue is
    /// full. An error ends the connection.
    fn write_to_ring(
        &self,
        outgoing: &Outgoing,
        pieces: &mut Pieces,
        bytes: &[u8],
    ) -> Result<usize> {
        let Some(ring) = self.peer_ring.get() else {
            return Ok(0);
        };
        pieces.close();
        let bytes = &bytes[..bytes.len().min(SLOT_LEN)];
        let sent = self.send_pieces(outgoing, pieces);
        let written = sent.and_then(|()| {
            // A piece must not overtake pieces that are still queued. If the ring or the buffer is
            // now full, the writer waits for the slot.
            let must_return = || !self.has_outgoing_room();
            Ok(pieces.is_empty() && self.try_write_to_slot(ring, bytes, must_return)?)
        });
        match written {
            Ok(true) => Ok(bytes.len()),
            Ok(false) => Ok(0),
            Err(error) => {
                self.fail(error.clone());
                Err(error)
            }
        }
    }

    /// Allocates registered memory for a piece (contiguous bytes) of a stream, without zeroing it.
    /// `len` is the number of bytes.
    pub(super) fn alloc_piece(&self, len: usize) -> Result<LocalMr> {
        let layout = Layout::from_size_align(len, 1)
            .map_err(|_| Error::invalid("piece of a stream", "the length is too large"))?;
        self.device.alloc_local_mr_stale(layout)
    }

    /// Posts the queued buffers of the stream while credits (permissions to send) and room in the
    /// send queue are available, and wakes the waiting writers. If `includes_open` is set, also
    /// posts the last buffer, which is not full and could otherwise take further writes.
    fn flush_pieces(&self, outgoing: &Outgoing, includes_open: bool) {
        // Orders the caller's change before the check of the queue. A thread that adds a piece
        // checks for credits and room afterwards, so at least one of the two threads sees the
        // change of the other.
        fence(Ordering::SeqCst);
        // A writer that holds the lock may add the last piece for which this flush was scheduled,
        // and schedules no other one.
        if !includes_open && outgoing.is_empty() {
            return;
        }
        let mut pieces = outgoing.pieces.lock();
        fence(Ordering::SeqCst);
        pieces.is_open_due |= includes_open;
        let before = outgoing.bytes.load(Ordering::Relaxed);
        let outcome = self.send_pieces(outgoing, &mut pieces);
        let has_sent = outgoing.bytes.load(Ordering::Relaxed) < before;
        drop(pieces);
        if has_sent {
            outgoing.room.wake();
        }
        if let Err(error) = outcome {
            self.fail(error);
        }
    }

    /// Posts the queued buffers of the stream in order, until the send queue is full or the peer
    /// accepts no further messages. After these buffers, posts the last buffer, even if the buffer
    /// is not full, if a flush was requested. Then posts the end of the stream if the writer has
    /// requested the end.
    fn send_pieces(&self, outgoing: &Outgoing, pieces: &mut Pieces) -> Result<()> {
        let mut outcome = Ok(true);
        loop {
            if pieces.queue.is_empty() && pieces.is_open_due {
                pieces.close();
            }
            let Some(piece) = pieces.queue.front() else {
                pieces.is_open_due = false;
                break;
            };
            outcome = self.try_send_piece(piece);
            if !matches!(outcome, Ok(true)) {
                break;
            }
            outgoing.bytes.fetch_sub(piece.length(), Ordering::Relaxed);
            pieces.queue.pop_front();
        }
        if pieces.is_empty() && pieces.end == StreamEnd::Waiting && matches!(outcome, Ok(true)) {
            outcome = self.try_send_end();
            if matches!(outcome, Ok(true)) {
                pieces.end = StreamEnd::Sent;
            }
        }
        let is_empty = pieces.is_empty() && pieces.end != StreamEnd::Waiting;
        outgoing.has_any.store(!is_empty, Ordering::Release);
        outcome.map(drop)
    }

    /// Sends a piece (contiguous bytes of a stream) to the peer as one message. A piece that is too
    /// long for one message is lent to the peer, which reads it (rendezvous). Returns `false`, and
    /// sends nothing, if no credit (permission to send) or no room in the send queue is available.
    fn try_send_piece(&self, piece: &LocalMr) -> Result<bool> {
        if piece.length() <= self.peer_payload {
            let begun = self.try_begin_send(piece, None, UNAWAITED)?;
            return Ok(begun.is_some());
        }
        let Some(credit) = self.try_data_credit() else {
            return Ok(false);
        };
        let lent = LentMemory::new(claim_read(piece)?)?;
        let memory = lent.remote();
        // The table of replies holds the lent memory until the peer has read it.
        let mut pending = self.replies.register(Some(lent));
        // No future waits for the reply.
        pending.close();
        let mut unsent = pending.remove_unless_sent();
        let id = pending.id;
        let kind = Kind::Rendezvous { id, memory };
        unsent.is_sent = self.try_submit(credit, kind, Payload::Nothing)?;
        Ok(unsent.is_sent)
    }

    /// Sends an empty message, which marks the end of the stream. Returns `false`, and sends
    /// nothing, if no credit (permission to send) or no room in the send queue is available.
    fn try_send_end(&self) -> Result<bool> {
        let Some(credit) = self.try_data_credit() else {
            return Ok(false);
        };
        self.try_submit(credit, Kind::Data, Payload::Nothing)
    }

    /// Submits a message of the stream. Returns `false` if the send queue is full. `credit`, the
    /// permission to send one message, is used up only if the message is submitted.
    fn try_submit(&self, credit: Credit<'_>, kind: Kind, mut payload: Payload<'_>) -> Result<bool> {
        match self.submit_frame(kind, &mut payload, None, UNAWAITED) {
            Ok(_) => {
                credit.spend();
                Ok(true)
            }
            Err(NotAccepted::Full) => Ok(false),
            Err(NotAccepted::Refused(error)) => Err(*error),
        }
    }
}

impl Outgoing {
    /// Adds `bytes` to the number of buffered bytes of the stream. The caller must hold the lock of
    /// the stream's pieces (buffers), and must append this number of bytes to them.
    fn count_added(&self, bytes: usize) {
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
        self.has_any.store(true, Ordering::Release);
    }
}
