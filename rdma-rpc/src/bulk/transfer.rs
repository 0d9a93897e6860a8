//! Reads and writes of the peer's bulks, piece by piece.

use std::future::poll_fn;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::Poll;

use futures_util::StreamExt;
use futures_util::stream::FuturesOrdered;
use tokio::sync::{Semaphore, SemaphorePermit, watch};
use tokio::task::yield_now;

use super::access::PieceInFlight;
use super::local::{LocalPieces, PieceMemory};
use super::piece::{MAX_PIECES_IN_FLIGHT, PieceTransfer};
use super::table::{BulkTable, MAX_READ_MEMORY};
use super::{BulkMemory, PeerBulk, memories};
use crate::core::Core;
use crate::error::{BulkError, Error, Result};

/// Number of bytes that a transfer moves before other transfers of the connection get their turn.
/// Large enough that short transfers complete without interruption and release their memory early.
const TURN_LEN: usize = 1 << 20;

/// Maximum number of bytes with which one long read counts against [`MAX_READ_MEMORY`], the limit
/// of the memory of all long reads of a connection. Half of this limit, so that a very long read
/// leaves memory for other long reads.
const MAX_READ_SHARE: usize = MAX_READ_MEMORY / 2;

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
    /// memories.
    ///
    /// If this future is dropped while the transfer waits for other transfers, the transfer ends
    /// immediately. A running transfer owns the local memory until all operations on the memory
    /// have ended, so that the device does not access freed memory.
    pub(super) async fn transfer(
        &self,
        direction: Direction,
        parts: Vec<(usize, BulkMemory)>,
    ) -> (Result<()>, Vec<BulkMemory>) {
        let (transfer, _receiver) = match self.prepare(direction) {
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

    /// Reads `len` bytes at the offset `at` of the peer's memory into new memory, in a new task.
    /// Allocates the memory only when the transfer begins, so that waiting transfers hold no
    /// memory. The allocation can then reuse memory of a finished transfer, which is perhaps still
    /// in the processor's caches. A long read also waits while other long reads use too much
    /// memory.
    pub(super) async fn read_new(&self, at: usize, len: usize) -> Result<BulkMemory> {
        let (transfer, _receiver) = self.prepare(Direction::Read)?;
        if len == 0 {
            return Ok(BulkMemory::default());
        }
        let core = Arc::clone(transfer.core());
        let running = core.runtime.spawn(transfer.run_read(at, len));
        running.await.map_err(|_| core.end_error())?
    }

    /// Creates a transfer with this direction. Returns the transfer and a receiver. The transfer
    /// begins no further pieces after the receiver was dropped.
    fn prepare(&self, direction: Direction) -> Result<(Transfer, watch::Receiver<()>)> {
        let access = self.access.get().ok_or(BulkError::Ended)?;
        let core = access.core();
        let link = core.outbox.link().ok_or_else(|| core.end_error())?;
        let (caller, receiver) = watch::channel(());
        let transfer = Transfer {
            pieces: PieceTransfer {
                access: Arc::clone(access),
                token: self.token,
                direction,
                link,
            },
            transferred: Arc::clone(&self.transferred),
            caller,
        };
        Ok((transfer, receiver))
    }
}

/// Waits until a read of `len` bytes may allocate new memory. Returns a permit that the read must
/// hold until its end. Returns `None`, without waiting, for a read of at most [`TURN_LEN`] bytes:
/// few such reads run at the same time.
async fn acquire_memory(bulks: &BulkTable, len: usize) -> Option<SemaphorePermit<'_>> {
    if len <= TURN_LEN {
        return None;
    }
    let share = u32::try_from(len.min(MAX_READ_SHARE)).ok()?;
    // The semaphore is never closed.
    bulks.read_memory.acquire_many(share).await.ok()
}

/// Running transfer between ranges of the peer's memory and local memory, executed by a task.
struct Transfer {
    pieces: PieceTransfer,
    transferred: Arc<AtomicU64>,
    /// Channel whose receiver is dropped with the future that waits for this transfer.
    caller: watch::Sender<()>,
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
        let bulks = &self.core().bulks;
        let mut turn = Turn::new(bulks);
        // Held until the end of the transfer.
        let _memory_permit = self.unless_dropped(acquire_memory(bulks, len)).await?;
        self.unless_dropped(turn.next()).await?;
        // The call or the connection may have ended during the wait.
        drop(self.begin_piece()?);
        let mut memory = BulkMemory::allocate(&self.pieces.link, len, true)?;
        let device = self.pieces.link.rdma().map(|rdma| rdma.device());
        let mut pieces = [LocalPieces::new(at, &mut memory, device)];
        let outcome = self.transfer(&mut pieces, turn).await;
        let [pieces] = pieces;
        // Joined also after an error, so that the pool gets the memory back as a whole.
        let joined = pieces.into_memory();
        outcome.map(|()| joined.unwrap_or(memory))
    }

    /// Divides the parts into small pieces, and transfers these in order. `turn` is the permission
    /// of this transfer to move a number of bytes. Lets other tasks run before each further piece.
    /// After an error, begins no further piece, and waits for the pieces in flight.
    async fn transfer(&self, parts: &mut [LocalPieces<'_>], mut turn: Turn<'_>) -> Result<()> {
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
                self.unless_dropped(turn.next()).await?;
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

    /// Waits for the future `waiting`, and returns its output. Fails if the caller drops the future
    /// of the transfer during the wait.
    async fn unless_dropped<F: Future>(&self, waiting: F) -> Result<F::Output> {
        tokio::select! {
            output = waiting => Ok(output),
            () = self.caller.closed() => Err(Error::Cancelled),
        }
    }

    /// Counts a piece of the peer's memory as being transferred, until the returned guard is
    /// dropped. Fails if the caller has dropped the transfer, if the connection has ended, or if
    /// this end no longer has the permission to access the memory.
    fn begin_piece(&self) -> Result<PieceInFlight> {
        if self.caller.is_closed() {
            return Err(Error::Cancelled);
        }
        if let Some(end) = self.core().end() {
            return Err(end.clone());
        }
        Ok(self.pieces.access.begin_piece()?)
    }

    /// Transfers one piece between the local `memory` and the offset `at` of the peer's memory, in
    /// the direction of this transfer. Fails if [`Self::begin_piece`] fails.
    async fn transfer_piece(&self, memory: &mut PieceMemory<'_>, at: usize) -> Result<()> {
        let _entered = self.begin_piece()?;
        self.pieces.transfer(memory, at).await?;
        let len = memory.len() as u64;
        self.transferred.fetch_add(len, Ordering::Relaxed);
        Ok(())
    }
}

/// Permission of a transfer to move a number of bytes, at most [`TURN_LEN`]. The transfers of a
/// connection take turns, so that a long transfer does not delay other transfers.
struct Turn<'c> {
    turns: &'c Semaphore,
    permit: Option<SemaphorePermit<'c>>,
    /// Number of bytes whose transfer may still begin in this turn.
    left: usize,
}

impl<'c> Turn<'c> {
    /// Creates a permission to move 0 bytes. Before the transfer moves bytes, the caller must get
    /// the permission to move [`TURN_LEN`] bytes with [`Self::next`].
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

    /// Waits until this transfer may move the next [`TURN_LEN`] bytes. The caller must ensure that
    /// no operation of the transfer is in flight, because completions are not handled during the
    /// wait.
    async fn next(&mut self) {
        self.permit = None;
        // The semaphore is never closed.
        self.permit = self.turns.acquire().await.ok();
        self.left = TURN_LEN;
    }

    /// Subtracts a piece of `len` bytes from the number of bytes that this transfer may still move.
    /// If the number becomes 0 and no other transfer waits for its turn, allows further
    /// [`TURN_LEN`] bytes.
    fn count(&mut self, len: usize) {
        self.left = self.left.saturating_sub(len);
        // The semaphore is fair: while a transfer waits, no permit is available.
        if self.left == 0 && self.turns.available_permits() > 0 {
            self.left = TURN_LEN;
        }
    }
}
