//! Transfers: reads and writes of bulks of the peer, piece by piece.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use tokio::task::yield_now;

use super::piece::Pieces;
use super::{BulkMemory, Peer, memories};
use crate::core::Core;
use crate::error::{BulkError, Error, Result};

/// Direction of a transfer, as the borrower sees it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Direction {
    Read,
    Write,
}

impl Peer {
    /// Reads or writes parts of the bulk, in a task: if this future is dropped, the task finishes
    /// its piece and keeps the memory until then.
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
            return (Err(core.ended_now()), memories(parts));
        };
        let stopped = StopOnDrop::default();
        let transfer = Transfer {
            pieces: Pieces {
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
            Err(_) => (Err(core.ended_now()), Vec::new()),
        }
    }
}

/// Flag that stops a transfer when the future that waits for it is dropped.
#[derive(Default)]
struct StopOnDrop(Arc<AtomicBool>);

impl Drop for StopOnDrop {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Transfer that runs as a task.
struct Transfer {
    pieces: Pieces,
    transferred: Arc<AtomicU64>,
    is_stopped: Arc<AtomicBool>,
}

impl Transfer {
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

    async fn part(&self, at: usize, memory: &mut BulkMemory) -> Result<()> {
        let (whole, most) = (memory.len(), self.pieces.len());
        let core: &Arc<Core> = self.pieces.access.core();
        let mut done = 0;
        while done < whole {
            if self.is_stopped.load(Ordering::Relaxed) {
                return Err(Error::Cancelled);
            }
            if let Some(end) = core.end() {
                return Err(end.clone());
            }
            // Permits are given in the order of their requests, so that transfers take turns.
            let permit = core.bulks.pieces.acquire().await;
            let permit = permit.map_err(|_| core.ended_now())?;
            let entered = self.pieces.access.enter()?;
            let len = most.min(whole - done);
            self.pieces
                .transfer(memory, done..done + len, at + done)
                .await?;
            drop((entered, permit));
            done += len;
            self.transferred.fetch_add(len as u64, Ordering::Relaxed);
            // A piece may take no time to wait for, and other tasks have calls to make.
            yield_now().await;
        }
        Ok(())
    }
}
