//! Outgoing bytes of a stream: pieces that wait for credits and for room in the send queue.
//!
//! A piece that is not longer than the peer's receives is sent as a message. A longer piece is sent
//! by [rendezvous](super::rendezvous): the peer reads it from this end's memory. The pieces leave
//! without any task of the application, as soon as credits and room are available. An empty message
//! is the end of the stream.

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
use super::send_state::{AwaitedBy, NotAccepted, PostTime};
use super::waiters::Waiters;
use crate::error::{Error, Result};
use crate::memory::{LocalMr, LocalMrReadAccess, LocalMrWriteAccess, claim_read};

/// Length, in bytes, from which a write is sent by rendezvous.
const LONG: usize = 32 << 10;
/// Maximum length, in bytes, of a piece that is made from a write.
const MAX_PIECE: usize = 256 << 10;

/// No task waits for a request of a stream: its failure ends the connection.
const HOW: (AwaitedBy, PostTime) = (AwaitedBy::Nothing, PostTime::AtTurnEnd);

/// Bytes of a stream that were accepted and not handed to the device.
#[derive(Debug)]
pub(super) struct Outgoing {
    pieces: Mutex<Pieces>,
    /// Number of bytes of the pieces.
    bytes: AtomicUsize,
    /// Set while a piece or the end of the stream waits.
    has_any: AtomicBool,
    /// Set once pieces were dropped, because the connection ended before they were handed to the
    /// device.
    has_lost: AtomicBool,
    /// Number of bytes, accepted and not taken by the peer, from which writers wait.
    limit: usize,
    /// Tasks that wait until more bytes are accepted.
    room: Waiters,
}

#[derive(Debug, Default)]
struct Pieces {
    queue: VecDeque<LocalMr>,
    /// Piece to which small writes of this turn are added, and the number of its bytes.
    open: Option<(LocalMr, usize)>,
    end: End,
}

/// State of the end of the stream.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
enum End {
    /// More bytes are accepted.
    #[default]
    Open,
    /// The end waits behind the pieces.
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

    /// Returns whether everything was handed to the device.
    pub(super) fn is_empty(&self) -> bool {
        !self.has_any.load(Ordering::Acquire)
    }

    /// Returns the tasks that wait until more bytes are accepted.
    pub(super) fn waiters(&self) -> &Waiters {
        &self.room
    }

    /// Drops all pieces, because the connection has ended. While a thread hands pieces to the
    /// device, which may be this thread, the pieces remain until the connection is dropped.
    pub(super) fn clear(&self) {
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

    /// Moves the open piece behind the others.
    fn close(&mut self) {
        if let Some((piece, len)) = self.open.take() {
            self.queue.push_back(piece.truncated(len));
        }
    }
}

impl Connection {
    /// Makes this connection a stream, which accepts up to `limit` bytes that the peer has not
    /// taken.
    pub(crate) fn begin_stream(&self) {
        let limit = self.settings.stream_buffer;
        self.outgoing.get_or_init(|| Outgoing::new(limit));
    }

    /// Accepts bytes of a stream. Returns the number of accepted bytes, which is smaller than the
    /// number of bytes if the buffer is full, or `None` if the writer must wait.
    pub(crate) fn accept_bytes(&self, slices: &[IoSlice<'_>]) -> Result<Option<usize>> {
        self.checked()?;
        let outgoing = self.outgoing();
        let len = slices.iter().map(|slice| slice.len()).sum();
        if len == 0 {
            return Ok(Some(0));
        }
        let mut pieces = outgoing.pieces.lock();
        if !self.has_outgoing_room() {
            return Ok(None);
        }
        // As for a request: the first bytes leave now, and later ones at the end of the turn.
        if len <= self.peer_payload && pieces.is_empty() && self.sender.lock().is_settled() {
            match self.try_send_bytes(slices, len) {
                Ok(true) => return Ok(Some(len)),
                Ok(false) => {}
                // As for bytes that are handed over later: the stream has ended.
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
            // Room can come at any time. The bytes of the next slice must not follow a part of this
            // one.
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
        // At the end of the turn, `post_staged` closes and flushes the open piece.
        if is_new && !self.shard.flush_at_turn_end(self) {
            self.post_staged();
        }
        Ok(Some(accepted))
    }

    /// Accepts a region as the next bytes of a stream, without copying. Returns the region if the
    /// writer must wait.
    pub(crate) fn accept_region(&self, region: LocalMr) -> Result<Option<LocalMr>> {
        self.checked()?;
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
            outgoing.add(region.length());
            pieces.queue.push_back(region);
        }
        self.flush_outgoing();
        Ok(None)
    }

    /// Ends the stream behind the accepted bytes, which leave now.
    pub(crate) fn end_stream(&self) {
        let outgoing = self.outgoing();
        {
            let mut pieces = outgoing.pieces.lock();
            if pieces.end != End::Open || self.failure().is_some() {
                return;
            }
            pieces.end = End::Waiting;
            outgoing.has_any.store(true, Ordering::Release);
        }
        self.post_staged();
    }

    /// Returns the error that ended the connection if accepted bytes of the stream were not handed
    /// to the device before.
    pub(crate) fn lost_bytes(&self) -> Option<&Error> {
        let error = self.failure()?;
        let outgoing = self.outgoing();
        let has_lost =
            outgoing.has_lost.load(Ordering::Acquire) || !outgoing.pieces.lock().is_empty();
        has_lost.then_some(error)
    }

    /// Waits until more bytes of a stream are accepted or the connection has ended.
    pub(crate) async fn wait_for_outgoing_room(&self) {
        let attempt = || (self.failure().is_some() || self.has_outgoing_room()).then_some(());
        let _waiting = self.shard.waiting();
        self.shard.wake_driver();
        self.outgoing().room.wait_for(attempt).await;
    }

    /// Returns the number of bytes of a stream that the peer has not taken, as far as this end
    /// knows. Returns 0 if the connection is no stream.
    pub(super) fn unsent_bytes(&self) -> usize {
        self.outgoing.get().map_or(0, |outgoing| {
            outgoing.bytes.load(Ordering::Relaxed) + self.replies.lent_bytes()
        })
    }

    /// Hands the closed pieces to the device while credits and room are available.
    ///
    /// Every function that makes a data credit or room available calls this afterwards, after it
    /// has released the lock of the send queue.
    #[inline]
    pub(super) fn flush_outgoing(&self) {
        if let Some(outgoing) = self.outgoing.get() {
            self.flush_pieces(outgoing, false);
        }
    }

    /// Hands all pieces to the device, and the open piece too, while credits and room are
    /// available.
    #[inline]
    pub(super) fn flush_outgoing_and_open(&self) {
        if let Some(outgoing) = self.outgoing.get() {
            self.flush_pieces(outgoing, true);
        }
    }

    fn outgoing(&self) -> &Outgoing {
        self.outgoing
            .get()
            .expect("only a stream, which has made this, calls here")
    }

    fn has_outgoing_room(&self) -> bool {
        self.unsent_bytes() < self.outgoing().limit
    }

    /// Sends bytes as one message. Returns `false` if that would have to wait.
    fn try_send_bytes(&self, slices: &[IoSlice<'_>], len: usize) -> Result<bool> {
        if let [slice] = slices
            && HEADER_LEN + len <= self.inline
        {
            let Some(credit) = self.try_data_credit() else {
                return Ok(false);
            };
            return self.try_submit(credit, Kind::Data, Payload::Copied(slice));
        }
        let Ok(mut region) = self.piece(len) else {
            // The caller allocates again, and reports the error.
            return Ok(false);
        };
        let mut rest = region.as_mut_slice();
        for slice in slices {
            let (front, back) = rest.split_at_mut(slice.len());
            front.copy_from_slice(slice);
            rest = back;
        }
        self.try_begin_send(&region, None, HOW)
            .map(|number| number.is_some())
    }

    /// Copies bytes into pieces, until all are copied, the limit is reached or memory is missing,
    /// and returns the number of copied bytes. Fails only if none is copied.
    fn add_bytes(
        &self,
        outgoing: &Outgoing,
        pieces: &mut Pieces,
        mut bytes: &[u8],
    ) -> Result<usize> {
        let before = bytes.len();
        while !bytes.is_empty() && self.has_outgoing_room() {
            let len = if bytes.len() >= LONG && bytes.len() > self.peer_payload {
                let len = bytes.len().min(MAX_PIECE);
                let mut piece = match self.piece(len) {
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
                    empty => match self.piece(self.peer_payload) {
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
            outgoing.add(len);
            bytes = &bytes[len..];
        }
        Ok(before - bytes.len())
    }

    /// Allocates memory for a piece.
    fn piece(&self, len: usize) -> Result<LocalMr> {
        let layout = Layout::from_size_align(len, 1)
            .map_err(|_| Error::invalid("piece of a stream", "its length is impossible"))?;
        self.device.alloc_local_mr_stale(layout)
    }

    fn flush_pieces(&self, outgoing: &Outgoing, includes_open: bool) {
        // Orders the caller's change before the check. A thread that adds a piece checks for
        // credits and room afterwards, so at least one of the two sees the other's change.
        fence(Ordering::SeqCst);
        if outgoing.is_empty() {
            return;
        }
        let mut pieces = outgoing.pieces.lock();
        fence(Ordering::SeqCst);
        if includes_open {
            pieces.close();
        }
        let mut outcome = Ok(true);
        let mut has_sent = false;
        while let Some(piece) = pieces.queue.front() {
            outcome = self.try_send_piece(piece);
            if !matches!(outcome, Ok(true)) {
                break;
            }
            has_sent = true;
            outgoing.bytes.fetch_sub(piece.length(), Ordering::Relaxed);
            pieces.queue.pop_front();
        }
        if pieces.is_empty() && pieces.end == End::Waiting && matches!(outcome, Ok(true)) {
            outcome = self.try_send_end();
            if matches!(outcome, Ok(true)) {
                pieces.end = End::Sent;
            }
        }
        let is_empty = pieces.is_empty() && pieces.end != End::Waiting;
        outgoing.has_any.store(!is_empty, Ordering::Release);
        drop(pieces);
        if has_sent {
            outgoing.room.wake();
        }
        if let Err(error) = outcome {
            self.fail(error);
        }
    }

    /// Sends a piece. Returns `false` if that would have to wait.
    fn try_send_piece(&self, piece: &LocalMr) -> Result<bool> {
        if piece.length() <= self.peer_payload {
            let begun = self.try_begin_send(piece, None, HOW)?;
            return Ok(begun.is_some());
        }
        let Some(credit) = self.try_data_credit() else {
            return Ok(false);
        };
        let lent = LentMemory::new(claim_read(piece)?)?;
        let memory = lent.remote();
        // The table of replies keeps the memory lent until the peer has read it.
        let question = self.replies.ask(Some(lent));
        let mut unsent = question.withdraw_unless_sent();
        let id = question.id;
        let kind = Kind::Rendezvous { id, memory };
        unsent.is_sent = self.try_submit(credit, kind, Payload::Nothing)?;
        Ok(unsent.is_sent)
    }

    /// Sends the end of the stream. Returns `false` if that would have to wait.
    fn try_send_end(&self) -> Result<bool> {
        let Some(credit) = self.try_data_credit() else {
            return Ok(false);
        };
        self.try_submit(credit, Kind::Data, Payload::Nothing)
    }

    /// Submits a message, and spends its credit. Returns `false`, and returns the credit, if the
    /// send queue is full.
    fn try_submit(&self, credit: Credit<'_>, kind: Kind, mut payload: Payload<'_>) -> Result<bool> {
        match self.submit_frame(kind, &mut payload, None, HOW) {
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
    fn add(&self, bytes: usize) {
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
        self.has_any.store(true, Ordering::Release);
    }
}
