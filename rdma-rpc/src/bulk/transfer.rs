//! Reads and writes of the peer's bulks, piece by piece.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use tokio::task::yield_now;

use super::piece::PieceTransfer;
use super::{BulkMemory, PeerBulk, memories};
use crate::core::Core;
use crate::error::{BulkError, Error, Result};

/// Number of bytes that a transfer moves before another transfer of the connection gets its turn.
/// Longer than a piece, so that transfers of up to this length complete one after the other. If
/// they alternated after each piece, all of them would use memory and caches until the last ended.
const TURN_LEN: usize = 1 << 20;

/// Direction of a transfer. The borrower starts every transfer, and reads or writes the owner's
/// memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Direction {
    Read,
    Write,
}

impl PeerBulk {
    /// Reads or writes parts of the bulk in a new task. Each part is an offset in the bulk and
    /// local memory. If this future is dropped, the task owns the local memory until the current
    /// piece has been transferred, so that the device does not access freed memory.
    pub(super) async fn transfer(
        &self,
        direction: Direction,
        parts: Vec<(usize, BulkMemory)>,
    ) -> (Result<()>, Vec<BulkMemory>) {
        let Some(access) = self.access.get() else {
            return (Err(BulkError::Ended.into()), memories(parts));
        };
        let core = Arc::clone(access.core());
        let Some(link) = core.outbox.link() else {
            return (Err(core.end_error()), memories(parts));
        };
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
        let running = core.runtime.spawn(transfer.run(parts));
        match running.await {
            Ok((outcome, memories)) => (outcome, memories),
            Err(_) => (Err(core.end_error()), Vec::new()),
        }
    }
}

/// Guard that stops a transfer after its current piece, when the future that waits for the transfer
/// is dropped.
#[derive(Default)]
struct StopOnDrop(Arc<AtomicBool>);

impl Drop for StopOnDrop {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Running transfer of parts of a bulk, executed by a task.
struct Transfer {
    pieces: PieceTransfer,
    transferred: Arc<AtomicU64>,
    is_stopped: Arc<AtomicBool>,
}

impl Transfer {
    /// Transfers the parts in order until an error occurs. Returns the outcome and the local memory
    /// of all parts.
    async fn run(self, mut parts: Vec<(usize, BulkMemory)>) -> (Result<()>, Vec<BulkMemory>) {
        let mut outcome = Ok(());
        for (at, memory) in &mut parts {
            outcome = self.part(*at, memory).await;
            if outcome.is_err() {
                break;
            }
        }
        (outcome, memories(parts))
    }

    /// Transfers `memory` from or to the offset `at` of the bulk, piece by piece. Other transfers
    /// of the connection can proceed between the pieces.
    async fn part(&self, at: usize, memory: &mut BulkMemory) -> Result<()> {
        let (whole, most) = (memory.len(), self.pieces.len());
        let core: &Arc<Core> = self.pieces.access.core();
        let mut done = 0;
        // The permit of the current turn and the offset at which the turn ends.
        let mut turn = None;
        while done < whole {
            if self.is_stopped.load(Ordering::Relaxed) {
                return Err(Error::Cancelled);
            }
            if let Some(end) = core.end() {
                return Err(end.clone());
            }
            if turn.as_ref().is_none_or(|&(_, end)| done >= end) {
                // The semaphore is fair, so concurrent transfers alternate.
                drop(turn.take());
                let permit = core.bulks.pieces.acquire().await;
                let permit = permit.map_err(|_| core.end_error())?;
                turn = Some((permit, done + TURN_LEN));
            }
            let entered = self.pieces.access.begin_piece()?;
            let len = most.min(whole - done);
            self.pieces
                .transfer(memory, done..done + len, at + done)
                .await?;
            drop(entered);
            done += len;
            self.transferred.fetch_add(len as u64, Ordering::Relaxed);
            // The transfer of a piece may complete without waiting. Other tasks must be able to
            // run.
            yield_now().await;
        }
        Ok(())
    }
}
