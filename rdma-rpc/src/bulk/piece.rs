//! The transfer of one piece of a bulk.

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use rdma_async::{LocalMrReadAccess, LocalMrWriteAccess, Rdma, RdmaDevice, RemoteMr};
use tokio::time::timeout;

use super::BulkMemory;
use super::access::Access;
use super::table::Answer;
use super::token::Token;
use super::transfer::Direction;
use crate::core::Core;
use crate::error::{BulkError, Error, Result};
use crate::link::Link;
use crate::outbox::{Leaves, Placed, Unplaced, send_long};
use crate::wire::Header;

/// Maximum length of a piece in bytes. A call waits for the pieces before it, so a piece must be
/// short; and a piece must be so long that its cost is that of its bytes.
pub(super) const PIECE: usize = 64 << 10;

/// Number of pieces of a connection that are transferred at a time.
pub(super) const IN_FLIGHT: usize = 2;

/// Room in a message beside the bytes of a piece.
const FRAME: usize = 64;

/// Time within which the peer must answer the message of a piece.
const ANSWER: Duration = Duration::from_secs(30);

/// Bulk of the peer, for the transfer of its pieces.
pub(super) struct Pieces {
    pub(super) access: Arc<Access>,
    pub(super) token: Token,
    pub(super) direction: Direction,
    pub(super) link: Arc<Link>,
}

impl Pieces {
    fn core(&self) -> &Arc<Core> {
        self.access.core()
    }

    /// Returns the maximum length of a piece in bytes.
    pub(super) fn len(&self) -> usize {
        match self.link.rdma() {
            Some(_) => PIECE,
            None => PIECE.min(self.core().send_limit() - FRAME),
        }
    }

    /// Transfers the bytes `range` of memory from or to the bulk's offset `at`.
    pub(super) async fn transfer(
        &self,
        memory: &mut BulkMemory,
        range: Range<usize>,
        at: usize,
    ) -> Result<()> {
        let Some(rdma) = self.link.rdma() else {
            return self.exchange(memory, range, at).await;
        };
        let Some(token) = &self.token.memory else {
            return Err(BulkError::Lost.into());
        };
        let mut remote = RemoteMr::from_token_bytes(token);
        let outcome = self
            .access_remote(rdma, &mut remote, memory, range, at)
            .await;
        outcome.map_err(|error| self.core().end().cloned().unwrap_or(error))
    }

    /// Transfers a piece one-sided.
    async fn access_remote(
        &self,
        rdma: &Rdma,
        remote: &mut RemoteMr,
        memory: &mut BulkMemory,
        range: Range<usize>,
        at: usize,
    ) -> Result<()> {
        let outside = || Error::from(BulkError::Lost);
        let len = range.len();
        let mut remote = remote.get_mut(at..at + len).ok_or_else(outside)?;
        if let Some(region) = memory.region(rdma.device()) {
            let mut local = region.get_mut(range).ok_or_else(outside)?;
            match self.direction {
                Direction::Read => rdma.read(&mut local, &remote).await?,
                Direction::Write => rdma.write(&local, &mut remote).await?,
            }
            return Ok(());
        }
        // Memory that is not registered goes through a registered copy of the piece.
        let mut copy = BulkMemory::allocate(&self.link, len, true)?;
        let device: &RdmaDevice = rdma.device();
        match self.direction {
            Direction::Read => {
                let region = copy.region(device).ok_or_else(outside)?;
                rdma.read(region, &remote).await?;
                memory[range].copy_from_slice(region.as_slice());
            }
            Direction::Write => {
                let region = copy.region(device).ok_or_else(outside)?;
                region.as_mut_slice().copy_from_slice(&memory[range]);
                rdma.write(region, &mut remote).await?;
            }
        }
        Ok(())
    }

    /// Transfers a piece in messages: a request, and the answer of the owner.
    async fn exchange(
        &self,
        memory: &mut BulkMemory,
        range: Range<usize>,
        at: usize,
    ) -> Result<()> {
        let core = self.core();
        let (tag, answer) = core.bulks.expect_answer();
        let expecting = Expecting { core, tag };
        if let Some(end) = core.end() {
            return Err(end.clone());
        }
        let (lease, at) = (self.access.lease(), at as u64);
        let len = u32::try_from(range.len()).unwrap_or(u32::MAX);
        let limit = core.send_limit();
        let placed = match self.direction {
            Direction::Read => {
                let header = Header::BulkRead {
                    lease,
                    tag,
                    at,
                    len,
                };
                core.outbox
                    .append(&header, &[][..], limit, Leaves::AtTurnEnd)
            }
            Direction::Write => {
                let header = Header::BulkWrite { lease, tag, at };
                let bytes = &memory[range.clone()];
                core.outbox.append(&header, bytes, limit, Leaves::AtTurnEnd)
            }
        };
        if let Placed::Long(batch) = placed.map_err(Unplaced::into_error)? {
            send_long(&**core, batch).await?;
        }
        let Ok(answer) = timeout(ANSWER, answer).await else {
            let reason = format!("the peer has not answered within {ANSWER:?}");
            core.fail(Error::disconnected(reason));
            return Err(core.ended_now());
        };
        drop(expecting);
        let Answer { has_ended, bytes } = answer.map_err(|_| core.ended_now())?;
        match self.direction {
            _ if has_ended => return Err(BulkError::Ended.into()),
            Direction::Read if bytes.len() == range.len() => {
                memory[range].copy_from_slice(&bytes);
            }
            Direction::Read => return Err(BulkError::Lost.into()),
            Direction::Write => {}
        }
        Ok(())
    }
}

/// Expectation of an answer, which ends when this value is dropped.
struct Expecting<'c> {
    core: &'c Core,
    tag: u32,
}

impl Drop for Expecting<'_> {
    fn drop(&mut self) {
        self.core.bulks.forget_answer(self.tag);
    }
}
