//! Reads and writes of the peer's bulks, piece by piece.

use std::future::poll_fn;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::Poll;

use futures_util::StreamExt;
use futures_util::stream::FuturesOrdered;
use tokio::sync::{AcquireError, Semaphore, SemaphorePermit};
use tokio::task::yield_now;

use super::local::{LocalPieces, PieceMemory};
use super::piece::{MAX_PIECES_IN_FLIGHT, PieceTransfer};
use super::table::BulkTable;
use super::{BulkMemory, PeerBulk, memories};
use crate::core::Core;
use crate::error::{BulkError, Error, Result};

/// Number of bytes that a transfer moves before other transfers of the connection get their turn.
/// Large enough that short transfers complete without interruption and release their memory early.
const TURN_LEN: usize = 1 << 20;

/// Direction of a transfer between local memory and the peer's memory. This end reads from or
/// writes to the peer's memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Direction {
    Read,
    Write,
}

impl PeerBulk {
    /// Reads or writes ranges of the peer's memory in a new task. Each part is an offset in the
    /// peer's memory and the local memory for the range. Returns the outcome and the local
    /// memories. If this future is dropped, the task still owns the local memory until all
    /// operations on it have ended, so that the device does not access freed memory.
    pub(super) async fn transfer(
        &self,
        direction: Direction,
        parts: Vec<(usize, BulkMemory)>,
    ) -> (Result<()>, Vec<BulkMemory>) {
        let (transfer, _stopped) = match self.prepare(direction) {
            Ok(prepared) => prepared,
            Err(error) => return (Err(error), memories(parts)),
        };
        let core = Arc::clone(transfer.core());
        let running = core.runtime.spawn(transfer.run(parts));
        match running.await {
            Ok((outcome, memories)) => (outcome, memories),
            Err(_) => (Err(core.end_error()), Vec::new()),
        }
    }

    /// Reads `len` bytes at the offset `at` of the peer's memory into new memory, in a new task
    /// like [`Self::transfer`]. Allocates the memory when the transfer begins: transfers that wait
    /// for others hold no memory, and the memory of a finished transfer, which may still be in the
    /// processor's caches, is used again.
    pub(super) async fn read_new(&self, at: usize, len: usize) -> Result<BulkMemory> {
        let (transfer, _stopped) = self.prepare(Direction::Read)?;
        let core = Arc::clone(transfer.core());
        let running = core.runtime.spawn(transfer.run_read(at, len));
        running.await.map_err(|_| core.end_error())?
    }

    /// Creates a transfer in the direction `direction`, and the guard that stops the transfer when
    /// it is dropped.
    fn prepare(&self, direction: Direction) -> Result<(Transfer, StopOnDrop)> {
        let access = self.access.get().ok_or(BulkError::Ended)?;
        let core = access.core();
        let link = core.outbox.link().ok_or_else(|| core.end_error())?;
        let stopped = StopOnDrop::default();
        let transfer = Transfer {
            pieces: PieceTransfer {
                access: Arc::clone(access),
                token: self.token,
                direction,
                link,
            },
            transferred: Arc::clone(&self.transferred),
            is_stopped: Arc::clone(&stopped.0),
        };
        Ok((transfer, stopped))
    }
}

/// Guard of the future that waits for a transfer. When this future is dropped, the transfer begins
/// no further pieces.
#[derive(Default)]
struct StopOnDrop(Arc<AtomicBool>);

impl Drop for StopOnDrop {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Running transfer between ranges of the peer's memory and local memory, executed by a task.
struct Transfer {
    pieces: PieceTransfer,
    transferred: Arc<AtomicU64>,
    is_stopped: Arc<AtomicBool>,
}

impl Transfer {
    fn core(&self) -> &Arc<Core> {
        self.pieces.access.core()
    }

    /// Transfers all parts in order, in the direction of this transfer, until an error occurs. Each
    /// part is an offset in the peer's memory and local memory. Returns the outcome and the local
    /// memory of all parts.
    async fn run(self, mut parts: Vec<(usize, BulkMemory)>) -> (Result<()>, Vec<BulkMemory>) {
        let device = self.pieces.link.rdma().map(|rdma| rdma.device());
        let divided = parts.iter_mut();
        let mut divided: Vec<_> = divided
            .map(|(at, memory)| LocalPieces::new(*at, memory, device))
            .collect();
        let turn = Turn::new(&self.core().bulks);
        let outcome = self.transfer(&mut divided, turn).await;
        let joined: Vec<_> = divided.into_iter().map(LocalPieces::into_memory).collect();
        for ((_, memory), joined) in parts.iter_mut().zip(joined) {
            if let Some(joined) = joined {
                *memory = joined;
            }
        }
        (outcome, memories(parts))
    }

    /// Waits until this transfer may begin, allocates `len` bytes of memory, and reads the bytes at
    /// the offset `at` of the peer's memory into it. Returns the memory.
    async fn run_read(self, at: usize, len: usize) -> Result<BulkMemory> {
        let core = self.core();
        let mut turn = Turn::new(&core.bulks);
        turn.begin().await.map_err(|_| core.end_error())?;
        let mut memory = BulkMemory::allocate(&self.pieces.link, len, true)?;
        let device = self.pieces.link.rdma().map(|rdma| rdma.device());
        let mut pieces = [LocalPieces::new(at, &mut memory, device)];
        self.transfer(&mut pieces, turn).await?;
        let [pieces] = pieces;
        Ok(match pieces.into_memory() {
            Some(joined) => joined,
            None => memory,
        })
    }

    /// Divides the parts into small pieces, and transfers these in order. `turn` contains the
    /// number of bytes that this transfer may already move. Lets other tasks run before each
    /// further piece. After an error, begins no further piece, and waits for the pieces in flight.
    async fn transfer(&self, parts: &mut [LocalPieces<'_>], mut turn: Turn<'_>) -> Result<()> {
        let core = self.core();
        let mut length = self.pieces.length();
        // Pieces in flight, each with the index of its part.
        let mut in_flight = FuturesOrdered::new();
        let mut current = 0;
        let mut outcome = Ok(());
        // Set if the pieces in flight did not complete while other tasks ran once. Within a host,
        // pieces complete earlier, and one in flight suffices.
        let mut is_slow = false;
        loop {
            while parts.get(current).is_some_and(LocalPieces::is_empty) {
                current += 1;
            }
            let has_more = outcome.is_ok() && current < parts.len();
            if has_more && turn.is_over() && in_flight.is_empty() {
                turn.begin().await.map_err(|_| core.end_error())?;
            }
            let mut may_begin =
                has_more && !turn.is_over() && in_flight.len() < MAX_PIECES_IN_FLIGHT;
            let begins = may_begin && (is_slow || in_flight.is_empty());
            if begins {
                match parts[current].take(length.next()) {
                    Ok((memory, at)) => {
                        turn.count(memory.len());
                        in_flight.push_back(self.piece(current, memory, at));
                    }
                    Err(error) => outcome = Err(error),
                }
                may_begin = in_flight.len() < MAX_PIECES_IN_FLIGHT;
            }
            // Does not wait if another piece may begin.
            let ended = match may_begin {
                true => poll_fn(|cx| Poll::Ready(in_flight.poll_next_unpin(cx))).await,
                false => Poll::Ready(in_flight.next().await),
            };
            is_slow = match ended {
                Poll::Ready(Some((part, ended, memory))) => {
                    parts[part].put_back(memory);
                    outcome = outcome.and(ended);
                    !may_begin
                }
                Poll::Ready(None) => return outcome,
                Poll::Pending => !begins,
            };
            // The transfer of a piece may complete without waiting. Other tasks must be able to
            // run.
            yield_now().await;
        }
    }

    /// Transfers one piece of at most 64 KiB between the local `memory` and the offset `at` of the
    /// peer's memory. `part` is the index of the range to which the piece belongs. Returns `part`,
    /// the outcome and `memory`, so that the caller can put the memory back into this range.
    async fn piece<'m>(
        &self,
        part: usize,
        mut memory: PieceMemory<'m>,
        at: usize,
    ) -> (usize, Result<()>, PieceMemory<'m>) {
        let outcome = self.transfer_piece(&mut memory, at).await;
        (part, outcome, memory)
    }

    /// Transfers one piece between the local `memory` and the offset `at` of the peer's memory, in
    /// the direction of this transfer. Fails if the transfer was stopped, the connection has ended,
    /// or the peer's memory may no longer be accessed.
    async fn transfer_piece(&self, memory: &mut PieceMemory<'_>, at: usize) -> Result<()> {
        if self.is_stopped.load(Ordering::Relaxed) {
            return Err(Error::Cancelled);
        }
        if let Some(end) = self.core().end() {
            return Err(end.clone());
        }
        let _entered = self.pieces.access.begin_piece()?;
        self.pieces.transfer(memory, at).await?;
        let len = memory.len() as u64;
        self.transferred.fetch_add(len, Ordering::Relaxed);
        Ok(())
    }
}

/// Permission of a transfer to transfer the next [`TURN_LEN`] bytes. The transfers of a connection
/// take turns, so that a long transfer does not delay the others.
struct Turn<'c> {
    turns: &'c Semaphore,
    permit: Option<SemaphorePermit<'c>>,
    /// Number of bytes whose transfer may still begin in this turn.
    left: usize,
}

impl<'c> Turn<'c> {
    /// Creates the state of a transfer between local memory and the peer's memory that may not move
    /// bytes yet. The transfer must first get the permission to move [`TURN_LEN`] bytes with
    /// [`Self::begin`].
    fn new(bulks: &'c BulkTable) -> Self {
        Self {
            turns: &bulks.turns,
            permit: None,
            left: 0,
        }
    }

    fn is_over(&self) -> bool {
        self.left == 0
    }

    /// Waits until this transfer may move the next [`TURN_LEN`] bytes. The caller must have no
    /// operations in flight, because their completions are not handled during the wait.
    async fn begin(&mut self) -> Result<(), AcquireError> {
        self.permit = None;
        self.permit = Some(self.turns.acquire().await?);
        self.left = TURN_LEN;
        Ok(())
    }

    /// Subtracts a piece of `len` bytes from the number of bytes that this transfer may still move.
    /// If the number becomes 0 and a permit is free, so that no other transfer waits, allows
    /// further [`TURN_LEN`] bytes.
    fn count(&mut self, len: usize) {
        self.left = self.left.saturating_sub(len);
        // The semaphore is fair: while a transfer waits, no permit is available.
        if self.left == 0 && self.turns.available_permits() > 0 {
            self.left = TURN_LEN;
        }
    }
}
